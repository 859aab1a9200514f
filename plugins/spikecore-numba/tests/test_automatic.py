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
from spikecore.backend import BackendError, Unsupported
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


def gradients(make: Callable[..., sc.Neuron], backend: Any, steps: int) -> List[torch.Tensor]:
    """First, second and third derivatives of something that uses outputs, states and traces."""
    neuron = make(backend=backend).double()
    x, start = data(steps, 2, 3).requires_grad_(), torch.full((2, 3), 0.2, dtype=torch.float64, requires_grad=True)
    rest = [torch.zeros(2, 3, dtype=torch.float64) for _ in range(len(neuron.states) - 1)]
    state: Dict[str, torch.Tensor] = dict(zip(neuron.states, [start, *rest]))
    out, final, trace = neuron.run(x.tanh() * 2, state=state, record=(next(iter(neuron.states)),))
    parts = [out, *final.values(), *trace.values()]
    # what is asked of the results depends on the input, too
    value = sum((part * part * (k + 1)).sum() for k, part in enumerate(parts)) + (out * x**3).sum()
    of: List[torch.Tensor] = [x, start, *neuron.parameters()]
    found = []
    for order in (1, 2, 3):
        grads = torch.autograd.grad(value, of, create_graph=order < 3, allow_unused=True)
        found += [torch.zeros(()) if grad is None else grad.detach() for grad in grads]
        if order < 3:
            value = sum((grad * grad).sum() for grad in grads if grad is not None)
    return found


NEURONS: Dict[str, Callable[..., sc.Neuron]] = {
    "LIF": lambda **k: sc.LIF(2.5, learn=("tau",), **k),
    "ALIF": lambda **k: sc.ALIF(torch.full((3,), 2.5), channel_dim=-1, learn=("tau", "rho"), **k),
    "LI": lambda **k: sc.LI(2.5, **k),
}


@pytest.mark.parametrize("steps", [3, 20])
@pytest.mark.parametrize("name", NEURONS)
@pytest.mark.filterwarnings("ignore:backend 'torch' computes instead of 'numba':RuntimeWarning")
def test_higher_derivatives_are_the_references(name: str, steps: int) -> None:
    """Up to the third, of inputs, initial state and parameters, through outputs, final states and traces."""
    for ours, theirs in zip(gradients(NEURONS[name], None, steps), gradients(NEURONS[name], "torch", steps)):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * max(1.0, theirs.abs().max().item()))


def test_second_derivatives_say_who_computes_them() -> None:
    """One warning; first derivatives with create_graph=True alone are the kernel's and say nothing."""
    x = data(4, 3).requires_grad_()
    (grad,) = torch.autograd.grad(sc.LIF()(x).sum(), x, create_graph=True)
    with pytest.warns(RuntimeWarning) as caught:
        grad.square().sum().backward()
    assert [str(warning.message) for warning in caught] == [
        "backend 'torch' computes instead of 'numba', which was chosen automatically: backend 'numba' derives first "
        "derivatives only; for a second one choose backend='torch'"
    ]


def test_asked_for_by_name_it_refuses_second_derivatives() -> None:
    """As it declares."""
    x = data(4, 3).requires_grad_()
    (grad,) = torch.autograd.grad(sc.LIF(backend="numba")(x).sum(), x, create_graph=True)
    with pytest.raises(Unsupported, match="derives first derivatives only; for a second one choose backend='torch'"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:backend 'torch' computes instead")
def test_second_derivatives_of_an_automatic_step() -> None:
    """The reference computes them, as of a call of one time step."""
    found = []
    for step in ("single", "multi"):
        lif = sc.LIF(backend="auto", step=step)
        for _ in range(3):
            sc.reset(lif)
            x = torch.rand((4, 6), generator=torch.Generator().manual_seed(1)).mul(3).requires_grad_()
            out = lif(x) if step == "single" else lif(x.unsqueeze(0)).squeeze(0)
            (first,) = torch.autograd.grad((out * x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
        found.append((first, second))
    for got, wanted in zip(*found):
        assert torch.equal(got, wanted)


def test_second_derivatives_of_a_step_are_refused_by_name() -> None:
    """With the way out, as of other calls."""
    lif, x = sc.LIF(backend="numba", step="single"), torch.rand((4, 6), requires_grad=True)
    for _ in range(3):
        sc.reset(lif)
        (first,) = torch.autograd.grad((lif(x) * x).sum(), x, create_graph=True)
    with pytest.raises(sc.backend.BackendError, match="for a second one choose backend='torch'"):
        first.sum().backward()


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
