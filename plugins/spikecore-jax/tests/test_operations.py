"""Every operation on normal numbers, infinities, NaN and zeros, which no expected failure covers."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any, List

import jax
import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore.backend import BackendError
from spikecore.lang import ops
from spikecore.lang.operations import ROWS
from spikecore_jax import operations
from spikecore_jax.tensors import x64

POINTS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-3, 1e30, -1e30, math.inf, -math.inf, math.nan]
ONE = [row.name for row in ROWS if row.is_function and row.arity == 1 and row.name != "detach"]
TWO = [row.name for row in ROWS if row.kind == "number" and row.arity == 2]
#: Right to the bit, zeros' sign included.
EXACT = {row.name for row in ROWS if row.exact}
ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "power": lambda a, b: a**b,
}


def computed(op: str, backend: str) -> List[torch.Tensor]:
    """Values and derivatives of an operation at all points, or at all pairs of them."""
    function: Any = ARITHMETIC.get(op) or getattr(ops, op)

    class Applied(sc.Neuron):
        inputs = ("a", "b") if op in TWO else ("a",)
        states = {"v": 0.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            return function(*((x.a, x.b) if op in TWO else (x,))), {"v": s.v}

    points = zip(*itertools.product(POINTS, POINTS)) if op in TWO else [POINTS]
    leaves = [torch.tensor(values)[None].requires_grad_() for values in points]
    out = Applied(backend=backend)(*leaves)
    # of an operation without a derivative torch gives an output without a gradient, and kernels zeros
    reached = out + sum(0.0 * leaf for leaf in leaves)
    return [out.detach(), *torch.autograd.grad(reached, leaves, torch.full_like(out, 1.5))]


@pytest.mark.parametrize("op", [*ONE, *TWO])
def test_numbers_are_those_of_the_reference(op: str) -> None:
    """To the bit where the language asks for it, else to some units in the last place."""
    ours, theirs = computed(op, "jax"), computed(op, "torch")
    for k, (one, other) in enumerate(zip(ours, theirs)):
        torch.testing.assert_close(one, other, rtol=0 if op in EXACT and not k else 2e-5, atol=0, equal_nan=True)
    if op in EXACT:
        same = torch.signbit(ours[0]) == torch.signbit(theirs[0])
        assert bool((same | ours[0].isnan()).all())


def test_many_sizes_share_code() -> None:
    """Beyond the first eight sizes arrays are padded, and the numbers are those of the call alone."""
    ours, theirs = (sc.ALIF(learn=("tau",), backend=name) for name in ("jax", "torch"))
    generator = torch.Generator().manual_seed(0)
    for steps, neurons in [(t, n) for t in (1, 3, 17, 20) for n in (1, 5, 1025)]:
        x = torch.randn(steps, neurons, generator=generator) * 2
        found = []
        for neuron in (ours, theirs):
            leaf = x.clone().requires_grad_()
            out, state = neuron.run(leaf)
            of_x, of_tau = torch.autograd.grad(
                [out, *state.values()], [leaf, neuron.tau], [out * 0 + 1, *state.values()]
            )
            found.append([out, *state.values(), of_x, of_tau])
        for one, other in zip(found[0][:-1], found[1][:-1]):
            assert torch.equal(one, other)
        torch.testing.assert_close(found[0][-1], found[1][-1], rtol=1e-4, atol=1e-4)


def test_an_argument_may_change_after_the_call() -> None:
    """JAX computes beside the thread that calls it; the numbers are those of the call."""
    neuron, x = sc.LIF(2.0, backend="jax"), torch.rand(64, 512, 64) * 3
    expected = sc.LIF(2.0, backend="torch")(x)
    for _ in range(3):
        given = x.clone()
        out = neuron(given)
        given.zero_()
        assert torch.equal(out, expected)


def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's threads are not in it, and a call would never end."""
    neuron = sc.LIF(2.0, backend="jax")
    neuron(torch.ones(2, 3))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(BackendError, match="computed in the process that this one was forked from"):
        neuron(torch.ones(2, 3))


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "x64"])
def test_quotients_and_roots_of_platforms_that_approximate_them(monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    """The way that a GPU takes, on a CPU."""
    monkeypatch.setattr(operations, "INEXACT", (jax.default_backend(),))
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(20_000) * np.exp2(random.integers(-60, 60, 20_000)) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)

    def both(zero: Any, a: Any, b: Any) -> Any:
        table = operations.Table(zero, [])
        return table["div"](a, b), table["sqrt"](jax.lax.abs(a))

    with x64(wide):
        made = operations.compiled(both)
        quotient, root = made(np.uint32(0), a, b)
        lines = made.lower(np.uint32(0), a, b).compile().as_text().splitlines()
    assert quotient.dtype == root.dtype == np.float32
    ordinary = np.abs(a / b) > np.finfo(np.float32).tiny
    assert ordinary.sum() > 15_000
    assert np.array_equal(np.asarray(quotient)[ordinary], (a / b)[ordinary])
    assert np.array_equal(root, np.sqrt(np.abs(a)))
    # what is converted is what came from integers, of which no compiler knows what was computed
    for dtype, count in (("f64", 3), ("f32", 2)):
        converted = [line for line in lines if f"= {dtype}" in line and " convert(" in line]
        assert len(converted) == count
        assert all("convert(%bitcast" in line for line in converted)
