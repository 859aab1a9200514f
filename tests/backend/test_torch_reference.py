"""The reference backend: the whole suite, its capabilities, and a backend that can do nothing."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Callable

import pytest
import torch

import spikecore as sc
from spikecore import functional
from spikecore.backend import Backend, BackendInfo, Capabilities, Spec, Unsupported, hookimpl
from spikecore.plugins.registry import BUILTINS, Registry, default_registry, replace_default
from spikecore.testing import TIERS, BackendConformance
from spikecore_torch import CAPABILITIES, spikecore_backends
from spikecore_torch.backend import TorchBackend


class TestBackendObject:
    """The object that the host sees."""

    def test_it_declares_what_it_does(self):
        """Every capability but torch.compile; of every device; usable everywhere; the class agrees with the listing."""
        (info,) = spikecore_backends()
        assert (info.name, info.devices, info.probe()) == ("torch", ("*",), None)
        assert info.capabilities == CAPABILITIES == TorchBackend().capabilities
        everything = {name for name in Capabilities.__dataclass_fields__ if not name.startswith("_")}
        assert everything - set(CAPABILITIES.names()) <= {"torch_compile"}
        assert TorchBackend.name == "torch"

    def test_runners_are_kept(self):
        """One program and one spec have one runner; another spec, or another program, has its own."""
        backend, spec = TorchBackend(), Spec(dtype=torch.float32, steps=4, params=("number",) * 5)
        program = sc.LIF().program
        again = pickle.loads(pickle.dumps(program))
        one = backend.runner(program, spec)
        assert backend.runner(again, Spec(dtype=torch.float32, steps=4, params=("number",) * 5)) is one
        assert backend.runner(program, Spec(dtype=torch.float64, steps=4, params=("number",) * 5)) is not one
        assert backend.runner(sc.LIF(reset="soft").program, spec) is not one


class Recorder(Backend):
    """Passes everything on to the reference, and remembers for what."""

    name = "poor"

    def __init__(self):
        super().__init__()
        self.specs = []

    def compile(self, program, spec):
        self.specs.append(spec)
        return TorchBackend().compile(program, spec)


@pytest.fixture
def poor(monkeypatch):
    """A world with the reference and a backend named "poor"; a function declares what that one does."""

    def world(builtins=BUILTINS, **capabilities):
        declared = Capabilities(**capabilities)
        info = BackendInfo("poor", "fake_poor:Recorder", ("cpu",), declared, lambda: None)
        module = types.ModuleType("fake_poor")
        module.Recorder = type("Recorder", (Recorder,), {"capabilities": declared})

        def spikecore_backends():
            return [info]

        module.spikecore_backends = hookimpl(spikecore_backends)
        monkeypatch.setitem(sys.modules, "fake_poor", module)
        point = types.SimpleNamespace(name="poor", value="fake_poor", dist=None, load=lambda: module)
        # the ipu backend is usable in these tests, by its emulator, and messages would name it
        here = Registry(builtins, entry_points=[point], environ={"SPIKECORE_BLOCK": "ipu"})
        replace_default(here)
        return here

    before = default_registry()
    yield world
    replace_default(before)


BASIC = {"float32": True, "gradients": True}


class Two(sc.Neuron):
    """Two inputs, two outputs."""

    inputs = ("x", "y")

    def dynamics(self, x, s, p):
        return (x.x, x.y), {}


class TestUnsupported:
    """A capability that a backend does not declare is refused before anything runs, and nothing falls back."""

    @pytest.mark.parametrize(
        ("call", "missing"),
        [
            (lambda: sc.LIF(backend="poor")(torch.zeros(2, 3).half()), "float16"),
            (lambda: sc.LIF(backend="poor")(torch.zeros(2, 3).bfloat16()), "bfloat16"),
            (lambda: sc.LIF(backend="poor")(torch.zeros(2, 3).double()), "float64"),
            (lambda: sc.LIF(backend="poor", learn=("tau",))(torch.zeros(2, 3)), "parameter_gradients"),
            (lambda: sc.LIF(torch.ones(3), backend="poor")(torch.zeros(2, 5, 3)[:, :3]), "channel_parameters"),
            (lambda: sc.LIF(torch.ones(5, 3), backend="poor")(torch.zeros(2, 5, 3)), "full_parameters"),
            (lambda: sc.LIF(backend="poor").run(torch.zeros(2, 3), record=("v",)), "record"),
            (
                lambda: sc.LIF(backend="poor").run(torch.zeros(2, 3), state={"v": torch.zeros(3, requires_grad=True)}),
                "state_gradients",
            ),
            (lambda: Two(backend="poor")(torch.zeros(2), torch.zeros(2)), "several_inputs, several_outputs"),
        ],
    )
    def test_names_what_is_missing_and_who_could(self, poor, call, missing):
        """The message names the backend, who asked for it, what it lacks, the neuron, and who could."""
        poor(**BASIC)
        message = (
            f"^backend 'poor' \\(from argument\\) does not support {missing}, which this call of (LIF|Two) needs; "
            "of those loaded, torch could$"
        )
        with pytest.raises(Unsupported, match=message):
            call()

    def test_gradient(self, poor):
        """An input gradient is refused where it is not declared; the same call without one runs."""
        poor(float32=True)
        lif, x = sc.LIF(backend="poor"), torch.ones(2, 3)
        assert lif(x).shape == (2, 3)
        with pytest.raises(Unsupported, match="does not support gradients, which this call of LIF needs"):
            lif(x.clone().requires_grad_())
        with torch.no_grad():
            assert lif(x.clone().requires_grad_()).shape == (2, 3)

    def test_a_supported_call_runs_on_it(self, poor):
        """A capability that it declares is used: with the spec of the call, once per kind of call."""
        here = poor(**BASIC, parameter_gradients=True, state_gradients=True, channel_parameters=True)
        lif = sc.LIF(torch.ones(3) * 2, learn=("tau",), backend="poor")
        x = torch.rand(2, 5, 3)
        assert torch.equal(lif(x), sc.LIF(2.0, backend="torch")(x))
        lif(torch.rand(2, 1, 3))
        lif(torch.rand(3, 1, 3))
        specs = here.get("poor", "test").specs
        kinds = ("channel", *["number"] * 4)
        common = {"dtype": torch.float32, "params": kinds}
        assert specs == [Spec(steps=steps, learn=("tau",), final=False, **common) for steps in (2, 3)]
        lif.run(torch.rand(40, 1, 3))
        with torch.no_grad():
            lif(x)
        later = [Spec(steps=None, learn=("tau",), final=True, **common), Spec(steps=2, learn=(), final=False, **common)]
        assert specs[2:] == later
        assert lif.extra_repr().endswith("backend=poor (poor on cpu)")

    def test_set_backend_finds_it(self, poor, monkeypatch):
        """sc.set_backend and sc.use_backend ask for it, and the message says which of them did."""
        poor(**BASIC)
        lif = sc.LIF()
        functional.set_backend(lif, "poor")
        with pytest.raises(Unsupported, match=r"^backend 'poor' \(from set_backend\(\)\) does not support float64"):
            lif(torch.zeros(2, 3).double())
        with sc.use_backend("poor"):
            lif = sc.LIF()
        with pytest.raises(Unsupported, match=r"^backend 'poor' \(from use_backend\(\)\) does not support float64"):
            lif(torch.zeros(2, 3).double())
        monkeypatch.setenv("SPIKECORE_BACKEND", "poor")
        with pytest.raises(Unsupported, match=r"^backend 'poor' \(from SPIKECORE_BACKEND\) does not support float64"):
            sc.LIF()(torch.zeros(2, 3).double())


@pytest.mark.parametrize(
    "make",
    [
        lambda: sc.LI(tau=2.0, backend="torch"),
        lambda: sc.LIF(tau=2.0, detach_reset=True, backend="torch"),
        lambda: sc.LIF(tau=2.0, reset="soft", detach_reset=True, backend="torch"),
    ],
)
def test_second_derivatives(make: Callable[[], sc.LIF]) -> None:
    """Of input, parameter and cotangent, by difference quotients, which see no surrogate: so a reset is detached."""
    neuron = make().double()

    def call(x: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        neuron.tau = tau
        return neuron(x)

    x = torch.rand(6, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_()
    tau = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(call, (x, tau))


@pytest.mark.matrix(tier="core")
class TestTorch(BackendConformance):
    """The torch backend."""

    backend = "torch"
    tiers = TIERS
