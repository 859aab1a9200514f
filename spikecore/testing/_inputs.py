"""Inputs of calls: their values, and the places in memory where these lie.

An input is for something with a threshold, where one rounding more or less turns a spike into none.

There are two kinds, and each finds what the other cannot:

- *margin*: drawn so that no decision is near to another one in the oracle; then spikes must be equal bit for bit and
  potentials nearly so, whatever the rounding. Blind to ``>`` for ``>=``.
- *exact*: multiples of a power of two, with parameters to match, so that nothing is ever rounded, and potentials do
  meet the threshold. Blind to the order of operations.

A drawn neuron has inputs of either kind: with a margin, or, where every operation is rounded in one way only, any.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._oracle import Array, Oracle, Trajectory, run
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
    """Flags of the neurons that keep the margin at every step. A decision other than that of a spike may be at the very
    tie: a counter that is 0.
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


# -- the same values in other places of memory, and values that stand for many

Layout = Callable[[Tensor], Tensor]


#: The layouts in which values repeat, and the part that is there once.
_ONCE: Dict[str, Callable[[Any], Any]] = {
    "expanded": lambda x: x[..., :1],
    "expanded-steps": lambda x: x[:1],
    "one-number": lambda x: x[(slice(1),) * x.ndim],
}


def repeated(x: Any, layout: str) -> Any:
    """An array with the values that it has in a layout."""
    return np.broadcast_to(_ONCE[layout](x), x.shape) if layout in _ONCE and x.ndim else x


#: Inputs ``[T, *N]`` that broadcast, by what they have once: for the number of dimensions of ``*N``, these dimensions.
_BROADCAST: Dict[str, Callable[[int], Sequence[int]]] = {
    "batch": lambda dims: [-dims],
    "last": lambda dims: [-1],
    "all-but-channels": lambda dims: [axis for axis in range(-dims, 0) if axis != 1 - dims],
    "neurons": lambda dims: range(-dims, 0),
    "time": lambda dims: [0],
    "time-and-batch": lambda dims: [0, -dims],
    # given as [T]
    "step": lambda dims: range(-dims, 0),
}
BROADCAST = tuple(_BROADCAST)


def part_of(x: Any, how: str, dims: int) -> Any:
    """The part of an array that an input has which broadcasts so; ``dims``: of one time step."""
    once = [axis % x.ndim for axis in _BROADCAST[how](dims)]
    return x[tuple(slice(1) if axis in once else slice(None) for axis in range(x.ndim))]


def as_input(part: Any, how: str) -> Any:
    """The part as it is given to a neuron."""
    return part.reshape(-1) if how == "step" else part


def summed(x: Any, how: str, dims: int) -> Any:
    """The sum over those that read one number, in the shape of the input."""
    return as_input(x.sum(tuple(axis % x.ndim for axis in _BROADCAST[how](dims)), keepdims=True), how)


def expanded(x: Tensor, layout: str) -> Tensor:
    """The values of a part for all, without memory of their own: where others would lie there is NaN."""
    part = _ONCE[layout](torch.full_like(x, float("nan"), memory_format=torch.contiguous_format))
    return part.copy_(_ONCE[layout](x)).expand(x.shape) if x.numel() else x


def strided(x: Tensor) -> Tensor:
    """Every second element of a wider tensor, NaN between."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    wide[..., ::2] = x
    return wide[..., ::2]


def swapped(x: Tensor, one: int, other: int) -> Tensor:
    """Two dimensions exchanged in memory."""
    return x.transpose(one, other).contiguous().transpose(one, other) if x.ndim > 1 else x


def time_last(x: Tensor) -> Tensor:
    """The steps of a neuron next to each other."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def channels_last(x: Tensor) -> Tensor:
    """Each step in channels-last, as a convolution gives it."""
    steps, batch = x.shape[:2]
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(steps, batch, *x.shape[2:])


def unaligned(x: Tensor) -> Tensor:
    """Contiguous, one element past where memory begins."""
    flat = x.new_empty(x.numel() + 1)
    flat[1:] = x.reshape(-1)
    return flat[1:].view(x.shape)


def part(x: Tensor) -> Tensor:
    """A block out of a larger tensor, NaN around."""
    around = x.new_full((x.shape[0] + 2, *(n + 1 for n in x.shape[1:2]), *x.shape[2:]), float("nan"))
    inside = around[1:-1, 1:] if x.ndim > 1 else around[1:-1]
    inside.copy_(x)
    return inside


def backwards(x: Tensor) -> Tensor:
    """Dimensions in the opposite order in memory."""
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def first_of_the_batch(x: Tensor) -> Tensor:
    """The first half of a larger batch, of NaN beyond."""
    axis = min(1, x.ndim - 1)
    return torch.cat([x, torch.full_like(x, float("nan"))], axis).narrow(axis, 0, x.shape[axis])


def laid(x: Tensor, layout: str) -> Tensor:
    """The tensor, which begins with time, in a layout."""
    return EVERY[layout](x) if layout != "contiguous" and x.ndim else x


def laid_step(x: Tensor, layout: str) -> Tensor:
    """A state or a parameter in a layout."""
    return laid(x[None], layout)[0] if x.ndim else x


#: Layouts of the same values.
LAYOUTS: Dict[str, Layout] = {
    "strided": strided,
    "transposed": partial(swapped, one=1, other=-1),
    "time-last": time_last,
    "channels-last": channels_last,
    "unaligned": unaligned,
    "part-of-a-larger-one": part,
}
#: Layouts in which values repeat.
EXPANDED: Dict[str, Layout] = {name: partial(expanded, layout=name) for name in ("expanded", "expanded-steps")}
#: Every layout by its name.
EVERY: Dict[str, Layout] = {
    **LAYOUTS,
    **EXPANDED,
    "batch-first": partial(swapped, one=0, other=1),
    "backwards": backwards,
    "first-of-the-batch": first_of_the_batch,
    "part": part,
    "one-number": partial(expanded, layout="one-number"),
    "ones": lambda x: x.new_ones((1,) * x.ndim).expand(x.shape),
}
