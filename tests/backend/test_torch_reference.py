"""The reference backend, called as the contract in spikecore/backend.py says; and a backend that can do nothing."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import types

import pytest
import torch

import spikecore as sc
from spikecore import functional
from spikecore._plugins import registry, selection
from spikecore._plugins.registry import Registry, hookimpl
from spikecore._shell import checks
from spikecore.backend import Backend, BackendInfo, Capabilities, Spec, Unsupported
from spikecore_torch import CAPABILITIES, spikecore_backends
from spikecore_torch.backend import TorchBackend

T, B, C = 6, 3, 4


def values(*shape, seed=0, dtype=torch.float64):
    """Normal values around 0.5."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).add(0.5).to(dtype)


def runner(program, dtype=torch.float64, **spec):
    """The reference's runner for a program whose parameters are numbers, unless told otherwise.

    It takes the neuron's own parameters; behind them come the numbers of the surrogate, those of ``ATan(alpha=2.0)``.
    """
    spec = {"steps": T, "params": ("number",) * len(program.params), **spec}
    made, numbers = TorchBackend().compile(program, Spec(dtype=dtype, **spec)), (math.pi, 1.0)[: len(program.numbers)]
    return lambda inputs, state, params, record: made(inputs, state, (*params, *numbers), record)


class Everything(sc.Neuron):
    """Two inputs, two outputs, two states, a rest value that is a parameter, and an input that nothing reads."""

    inputs = ("x", "unused", "gate")
    states = {"v": "start", "n": 1.0}
    params = {"tau": 2.0, "start": 0.25, "never": 3.0}

    def dynamics(self, x, s, p):
        h = s.v + (x.x - s.v) / p.tau + x.gate
        z = self.spike(h - 1.0)
        return (z, h), {"v": sc.ops.select(z, 0.0, h), "n": s.n + z}


class TestRunner:
    """``runner(inputs, state, params, record) -> (outputs, state, trace)``."""

    inputs = tuple(values(T, B, C, seed=i) for i in range(3))

    def test_what_it_gives(self):
        """Tuples of tensors: [T, *N] outputs, [*N] states, [T, *N] trace in the order asked for."""
        program = Everything().program
        assert program.params == ("tau", "start", "alpha_1", "alpha_2")
        outputs, state, trace = runner(program)(self.inputs, None, (2.0, 0.25), ("n", "v"))
        assert [type(part) for part in (outputs, state, trace)] == [tuple] * 3
        assert [value.shape for value in outputs] == [(T, B, C)] * 2
        assert [value.shape for value in state] == [(B, C)] * 2
        assert [value.shape for value in trace] == [(T, B, C)] * 2
        assert torch.equal(trace[0][-1], state[1])
        assert torch.equal(trace[1][-1], state[0])
        assert torch.equal(trace[0], 1 + outputs[0].cumsum(0))
        again = runner(program)(self.inputs, None, (2.0, 0.25), ("v", "n"))[2]
        assert torch.equal(again[0], trace[1])
        assert torch.equal(again[1], trace[0])

    def test_it_computes_the_program(self):
        """The values are those of a loop by hand, from rest and from a state; the unused input plays no part."""
        x, unused, gate = self.inputs
        for state in (None, (values(B, C, seed=7), values(B, C, seed=8))):
            outputs, end, _ = runner(Everything().program)((x, unused * float("nan"), gate), state, (2.5, 0.25), ())
            v, n = (torch.full((B, C), 0.25).double(), torch.ones(B, C).double()) if state is None else state
            for t in range(T):
                h = v + (x[t] - v) / 2.5 + gate[t]
                z = (h >= 1).double()
                v, n = torch.where(h >= 1, 0.0, h), n + z
                assert torch.equal(outputs[0][t], z)
                torch.testing.assert_close(outputs[1][t], h)
            torch.testing.assert_close(end, (v, n))

    @pytest.mark.parametrize("kind", ["number", "scalar"])
    def test_half_input_meets_numbers_in_float32(self, kind):
        """Between float16 input and a parameter nothing is rounded to float16: 300 * 300 / 300 is 300."""

        class Scaled(sc.Neuron):
            params = {"gain": 300.0}

            def dynamics(self, x, s, p):
                return x * p.gain / p.gain, {}

        x = torch.full((T, 2), 300.0, dtype=torch.float16)
        gain = 300.0 if kind == "number" else torch.tensor(300.0)
        (out,), _, _ = runner(Scaled().program, torch.float16, params=(kind,))((x,), None, (gain,), ())
        assert torch.equal(out, x)

    def test_rounding_is_that_of_ieee_division(self):
        """``x / tau`` is one correctly rounded division, never a multiplication by a rounded reciprocal."""
        x = values(1, 5000).float()
        (out,), _, _ = runner(sc.LI().program, torch.float32, steps=1)((x,), None, (3.0, 0.0), ())
        exact = (x.double() / 3.0).float()
        assert torch.equal(out, exact)
        assert not torch.equal(x * torch.tensor(1 / 3.0), exact)

    def test_results_may_be_written_to(self):
        """What a runner gives belongs to the caller: writing to it changes no later result."""
        x = values(T, B)
        one = runner(sc.LI().program)
        first = one((x,), None, (2.0, 0.0), ("v",))
        kept = copy.deepcopy(first)
        for value in (*first[0], *first[2]):
            value.zero_()
        torch.testing.assert_close(one((x,), None, (2.0, 0.0), ("v",)), kept, rtol=0, atol=0)


class TestBackendObject:
    """What the host sees."""

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

    def world(builtins=registry.BUILTINS, **capabilities):
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
        for place in (checks, selection, registry):
            monkeypatch.setattr(place, "default_registry", lambda: here)
        return here

    return world


BASIC = {"float32": True, "gradients": True}


class Two(sc.Neuron):
    """Two inputs, two outputs."""

    inputs = ("x", "y")

    def dynamics(self, x, s, p):
        return (x.x, x.y), {}


class TestUnsupported:
    """What a backend does not declare is refused before anything runs, and nothing falls back."""

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
        """What it declares it is asked for: with the spec of the call, once per kind of call."""
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
