"""Inputs for something with a threshold, where one rounding more or less turns a spike into none.

Two kinds, and each finds what the other cannot:

- *margin*: drawn so that no decision is near to another one in the oracle; then spikes must be equal bit for bit and
  potentials nearly so, whatever the rounding. Blind to ``>`` for ``>=``.
- *exact*: multiples of a power of two, with parameters to match, so that nothing is ever rounded, and potentials do
  meet the threshold. Blind to the order of operations.

A drawn neuron has inputs of either kind: with a margin, or, where every operation is rounded in one way only, any.
"""

from __future__ import annotations

import zlib
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from spikecore.testing._oracle import Array, Gradients, Oracle, Trajectory, run
from spikecore.testing.tolerances import MARGIN, TOLERANCES

#: Draws per neuron from which the first good one is taken; fewer for many neurons.
POOL, MANY, POOL_OF_MANY = 64, 10_000, 6
#: An exact case has at least so many ties; so many inputs are drawn to find them.
TIES, TRIES = 3, 50
#: Potentials beyond this are not drawn: rounding errors would grow past what the tolerances are made for.
BOUND = 6.0
#: The same of any number of a drawn neuron, and the share of its tolerance that float32 may take.
LARGEST, SHARE = 1e3, 0.1

#: Function that makes inputs of drawn ones: one step for all, one tensor for two inputs.
Tie = Callable[[Tuple[Array, ...]], Tuple[Array, ...]]


class NoInputsError(AssertionError):
    """There are no inputs of the kind that a call asks for."""


def generator(*names: object) -> np.random.Generator:
    """Random numbers that are the same in every run, and different for different names."""
    return np.random.default_rng(zlib.crc32("/".join(map(str, names)).encode()))


def rounded(values: Any, dtype: torch.dtype) -> Array:
    """The values as a tensor of ``dtype`` would hold them, in float64."""
    return np.asarray(torch.as_tensor(np.asarray(values, float)).to(dtype).double().numpy())


def margin(
    oracle: Oracle,
    params: Mapping[str, Any],
    shape: Sequence[int],
    drive: Tuple[float, float],
    dtype: torch.dtype,
    rng: np.random.Generator,
    state: Optional[Mapping[str, Array]] = None,
    tie: Tie = tuple,
) -> Tuple[Array, ...]:
    """One ``[T, *N]`` per input, uniform in ``drive``, that keeps every decision a margin from another one."""
    steps, neurons = shape[0], tuple(shape[1:])
    pool = (steps, POOL if np.prod(neurons) < MANY else POOL_OF_MANY, *neurons)
    draws = tie(tuple(rounded(rng.uniform(*drive, size=pool), dtype) for _ in oracle.inputs))
    return _first(draws, _clear(run(oracle, draws, params, state, decisions=True), pool[1:]), oracle)


def _first(draws: Sequence[Array], good: Array, oracle: Oracle) -> Tuple[Array, ...]:
    """For each neuron the first draw that is good: for those that share an input, one that is good for all of them."""
    shared = {axis - 1 for x in draws for axis in range(2, x.ndim) if not x.strides[axis]}
    good = np.broadcast_to(good.all(axis=tuple(shared), keepdims=True), good.shape)
    if not good.any(axis=0).all():
        raise NoInputsError(f"no inputs with a margin for {type(oracle).__name__} {vars(oracle)} in {len(good)} draws")
    chosen = good.argmax(axis=0)[None, None]
    return tuple(np.take_along_axis(x, chosen, axis=1)[:, 0] for x in draws)


def _clear(seen: Trajectory, shape: Sequence[int]) -> Array:
    """Which of the neurons keep the margin at every step. A decision other than that of a spike may be at the very tie:
    a counter that is 0.
    """
    fine = np.ones(tuple(shape), bool)
    for step in seen.steps:
        if step.tested is not None:
            size = np.abs(np.broadcast_to(step.tested, fine.shape))
            fine &= (size < BOUND) & (size > MARGIN)
        for distance in step.distances:
            value = np.broadcast_to(distance, fine.shape)
            fine &= (np.abs(value) > MARGIN) | (value == 0)
    return fine


def settled(
    oracle: Oracle,
    params: Mapping[str, Any],
    shape: Sequence[int],
    dtype: torch.dtype,
    rng: np.random.Generator,
    state: Optional[Mapping[str, Array]],
    tie: Tie,
    *,
    quarters: bool,
    exact: bool,
) -> Tuple[Array, ...]:
    """One ``[T, *N]`` per input of a drawn neuron, with which its numbers stay within bounds.

    Unless it is exact, its decisions in float32 are those in float64, with a margin or at the very tie, and so are its
    values within a share of their tolerance. Raises :class:`NoInputsError` if there are none such.
    """
    pool = (shape[0], POOL, *shape[1:])
    draws = tie(
        tuple(
            rng.integers(-8, 13, pool) / 4.0 if quarters else rounded(rng.uniform(-2.0, 3.0, pool), dtype)
            for _ in oracle.inputs
        )
    )
    single = run(oracle, draws, params, state, np.float32, decisions=not exact)
    wide = single if exact else run(oracle, draws, params, state, decisions=True)
    fine = np.ones(pool[1:], bool)
    near = TOLERANCES["float32", "output"]
    with np.errstate(all="ignore"):
        for one, other in zip(single.steps, wide.steps):
            for a, b in zip((*one.outputs, *one.next.values()), (*other.outputs, *other.next.values())):
                fine &= (np.abs(b) < LARGEST) & (np.abs(a - b) <= SHARE * (near.rtol * np.abs(b) + near.atol))
            for a, b in zip(one.distances, other.distances):
                fine &= (np.abs(b) > MARGIN) | ((a == 0) & (b == 0))
    return _first(draws, fine, oracle)


def unsteady(right: Gradients, rough: Gradients, shape: Sequence[int]) -> Array:
    """The neurons of which one of these gradients, of arrays ``[..., *N]``, is rough or large."""
    found = np.zeros(tuple(shape), bool)
    near = TOLERANCES["float32", "input gradient"]
    pairs = [*zip(right.inputs, rough.inputs)]
    pairs += [(a[n], b[n]) for a, b in ((right.state, rough.state), (right.params, rough.params)) for n in a]
    with np.errstate(all="ignore"):
        for a, b in pairs:
            bad = ~((np.abs(a) < 10 * LARGEST) & (np.abs(a - b) <= SHARE * (near.rtol * np.abs(a) + near.atol)))
            found |= bad.any(axis=0) if bad.ndim > found.ndim else bad
    return found


def dyadic(
    oracle: Oracle,
    params: Mapping[str, Any],
    shape: Sequence[int],
    levels: Sequence[float],
    rng: np.random.Generator,
    tie: Tie = tuple,
) -> Tuple[Array, ...]:
    """One ``[T, *N]`` per input, drawn from ``levels``; nothing is rounded in float32, and ties do occur."""
    for _ in range(TRIES):
        draws = tie(tuple(rng.choice(np.asarray(levels, float), size=tuple(shape)) for _ in oracle.inputs))
        wide, single = run(oracle, draws, params), run(oracle, draws, params, dtype=np.float32)
        for name, value in wide.states.items():
            if not np.array_equal(value, single.states[name]):
                raise AssertionError(f"{name} of {type(oracle).__name__} is rounded in float32 on {levels}")
        tested = wide.tested
        if tested is None or (tested == 0).sum() >= TIES:
            return draws
    raise AssertionError(f"fewer than {TIES} ties in {type(oracle).__name__} on {levels}, in {TRIES} draws")
