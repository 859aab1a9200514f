"""Chosen automatically: a program that works on the reference works here, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest
import torch

import spikecore as sc
import warm
from spikecore._plugins import selection
from spikecore._plugins.registry import default_registry
from spikecore.backend import BackendError
from spikecore_numba import compiler


@pytest.fixture(autouse=True)
def _nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable chooses, and the table is the project's; warnings are said anew in every test."""
    # other tests of the same run may have it without plugins
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("numba", "torch")})
    for name in ("SPIKECORE_BACKEND", "SPIKECORE_BLOCK", "SPIKECORE_NO_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    default_registry().refresh()


def data(steps: int, *shape: int) -> torch.Tensor:
    return torch.randn(steps, *shape, generator=torch.Generator().manual_seed(steps), dtype=torch.float64) + 0.8


def test_a_cpu_tensor_is_computed_here() -> None:
    """Without a word from anybody, and ``repr`` says so."""
    lif = sc.LIF()
    lif(torch.rand(4, 3))
    assert repr(lif).endswith("backend=auto (numba on cpu))")
    assert lif.bound["cpu"].reason == "auto: the project's own plugin for cpu tensors"


@pytest.mark.parametrize("backend", [None, "numba"])
@pytest.mark.parametrize("step", ["multi", "single"])
def test_second_derivatives_are_refused(step: str, backend: Optional[str]) -> None:
    """With the way out, in the second backward pass; the first one is the kernel's also under create_graph=True."""
    x, (lif, plain) = data(4, 3).requires_grad_(), (sc.LIF(backend=name, step=step) for name in (backend, "numba"))
    for _ in range(3):
        sc.reset(lif), sc.reset(plain)
        (first,) = torch.autograd.grad((lif(x) * x).sum(), x, create_graph=True)
        assert torch.equal(first, torch.autograd.grad((plain(x) * x).sum(), x)[0])
    with pytest.raises(sc.backend.Unsupported, match="derives first derivatives only; .* choose backend='torch'"):
        first.square().sum().backward()


TRANSFORMS: Dict[str, Callable[[sc.Neuron, torch.Tensor], torch.Tensor]] = {
    "grad": lambda lif, x: torch.func.grad(lambda a: lif(a).sum())(x),
    "vmap": lambda lif, x: torch.func.vmap(lif)(torch.stack([x, x + 1])),
    "jacrev": lambda lif, x: torch.func.jacrev(lif)(x),
    "jvp": lambda lif, x: torch.func.jvp(lif, (x,), (x * x,))[1],
}


@pytest.mark.parametrize("backend", [None, "numba"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_the_references(name: str, backend: Optional[str]) -> None:
    """No transform looks through a kernel, so the reference computes, also where numba was asked for."""
    x = data(4, 3)
    ours = TRANSFORMS[name](sc.LIF(backend=backend), x)
    assert torch.equal(ours, TRANSFORMS[name](sc.LIF(backend="torch"), x))


BROKEN = """
import sys, torch, spikecore as sc
sys.modules["numba"] = None  # as where the wheel does not fit the installed NumPy
lif = sc.LIF()
x = torch.full((4, 3), 1.7)
print(torch.equal(lif(x), sc.LIF(backend="torch")(x)))
try:
    sc.LIF(backend="numba")(x)
except sc.backend.BackendError as error:
    print(error)
"""


def test_a_numba_that_cannot_be_imported_stops_nobody(tmp_path: Path) -> None:
    """A program that did not ask for it runs on the reference, with a warning; one that did gets the reason."""
    environ = {**os.environ, "SPIKECORE_CACHE_DIR": str(tmp_path)}
    done = warm.run("-c", BROKEN, env=environ)
    same, error = done.stdout.splitlines()
    assert same == "True", done.stderr
    assert error.startswith("backend 'numba' cannot compile here: importing Numba raised ModuleNotFoundError: ")
    assert "backend 'torch' computes instead of 'numba', which was chosen automatically" in done.stderr


def test_what_numba_cannot_compile_the_reference_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of Numba's own is one of the backend: an automatic choice goes on, a named one says which kernel."""

    def broken(source: Any, types: Any) -> Any:
        raise ValueError("no way to lower this\nand more")

    monkeypatch.setattr("spikecore_numba.compiler._compile", broken)
    x = torch.rand(3, 5)

    class Uncompiled(sc.Neuron):
        """A program that no test has compiled."""

        states = {"v": 0.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = s.v * 0.3125 + x * 1.0078125
            return v, {"v": v}

    with pytest.raises(BackendError, match="cannot compile kernel uncompiled_forward: ValueError: no way to lower"):
        Uncompiled(backend="numba")(x)
    with pytest.warns(RuntimeWarning, match="no way to lower this"):
        found = Uncompiled()(x)
    assert torch.equal(found, Uncompiled(backend="torch")(x))


def test_a_backward_kernel_that_numba_cannot_compile_is_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled in backward, which must not end a program that named no backend; a named one gets the reason."""
    real = compiler._compile

    def forward_alone(source: Any, types: Any) -> Any:
        if source.name.endswith("_backward"):
            raise ValueError("no way to lower this")
        return real(source, types)

    monkeypatch.setattr(compiler, "_compile", forward_alone)

    class Uncompiled(sc.Neuron):
        """A program that no test has compiled."""

        states = {"v": 0.0}
        params = {"k": 0.6875}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = s.v * p.k + x * 1.0234375
            return self.spike(v - 1.0), {"v": v}

    def gradients(backend: Any) -> List[torch.Tensor]:
        neuron, x = Uncompiled(learn=("k",), backend=backend), data(20, 5).float().requires_grad_()
        return [*torch.autograd.grad(neuron(x).sum(), [x, *neuron.parameters()])]

    with pytest.raises(BackendError, match="cannot compile kernel uncompiled_backward: ValueError: no way to lower"):
        gradients("numba")
    with pytest.warns(RuntimeWarning) as caught:
        found = gradients(None)
    assert len(caught) == 1
    assert "'torch' computes instead of 'numba', which was chosen automatically" in str(caught[0].message)
    assert all(map(torch.equal, found, gradients("torch")))


def test_a_parameter_that_stands_for_other_tensors() -> None:
    """Beside a plain input it goes through torch's dispatcher, which knows what it is; kernels saw no memory."""
    two = pytest.importorskip(
        "torch.testing._internal.two_tensor", reason="torch before 2.4 has no TwoTensor"
    ).TwoTensor
    tau, x = torch.full((3,), 2.5), data(4, 2, 3)
    expected = sc.LIF(tau=tau, backend="torch")(x)
    neuron = sc.LIF(tau=tau, backend="numba")
    neuron(x)  # later calls of plain tensors go straight to the kernel
    neuron._buffers["tau"] = two(tau, tau.clone())  # as a library does that shards or quantises tensors
    for wrapped in (neuron, sc.LIF(tau=two(tau, tau.clone()), backend="numba")):
        spikes = wrapped(x)
        assert torch.equal(getattr(spikes, "a", spikes), expected)
