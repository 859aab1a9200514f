"""Chosen automatically: a program that works on the reference works here, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import pytest
import torch

import spikecore as sc
import warm
from spikecore.backend import BackendError
from spikecore.plugins import selection
from spikecore.plugins.registry import default_registry
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
for backend in (None, "numba"):
    try:
        sc.LIF(backend=backend)(torch.full((4, 3), 1.7))
    except sc.backend.BackendError as error:
        print(error)
"""


def test_a_numba_that_cannot_be_imported_says_what_to_choose(tmp_path: Path) -> None:
    """The error is the same where it was named."""
    done = warm.run("-c", BROKEN, env={**os.environ, "SPIKECORE_CACHE_DIR": str(tmp_path)})
    said = done.stdout.splitlines()
    assert len(said) == 2, done.stderr
    for error in said:
        assert error.startswith("backend 'numba' cannot compile here: importing Numba raised ModuleNotFoundError: ")
        assert error.endswith("; choose backend='torch'")


@pytest.mark.parametrize("backend", [None, "numba"])
@pytest.mark.parametrize("broken", ["forward", "backward"])
def test_what_numba_cannot_compile_says_what_to_choose(
    monkeypatch: pytest.MonkeyPatch, broken: str, backend: Optional[str]
) -> None:
    """An error of Numba's own is one of the backend, in every call, with the kernel; that of backward comes there."""
    real, factor = compiler.compile_source, 1.0078125 if broken == "forward" else 1.0390625

    def compile_other(source: Any, types: Any) -> Any:
        if source.name.endswith(broken):
            raise ValueError("no way to lower this\nand more")
        return real(source, types)

    monkeypatch.setattr(compiler, "compile_source", compile_other)

    class Uncompiled(sc.Neuron):
        """A program whose broken kernel no test has compiled, and none has put on disk."""

        states = {"v": 0.0}
        params = {"k": 0.6875}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = s.v * p.k + x * factor
            return self.spike(v - 1.0), {"v": v}

    neuron, x = Uncompiled(learn=("k",), backend=backend), data(20, 5).float().requires_grad_()
    for _ in range(2):
        with pytest.raises(
            BackendError, match=f"kernel uncompiled_{broken}: ValueError: no way to lower this; choose backend='torch'"
        ):
            neuron(x).sum().backward()


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
