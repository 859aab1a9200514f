"""Inputs for something with a threshold, where one rounding more or less turns a spike into none.

Two kinds, and each finds what the other cannot:

- *margin*: drawn so that no potential comes near the threshold in the oracle; then spikes must be equal bit for bit
  and potentials nearly so, whatever the rounding. Blind to ``>`` for ``>=``.
- *exact*: multiples of a power of two, with parameters to match, so that nothing is ever rounded, and potentials do
  meet the threshold. Blind to the order of operations.
"""

from __future__ import annotations

import zlib
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from spikecore.testing._oracle import Array, Oracle, Trajectory, run
from spikecore.testing._tolerances import MARGIN

#: Draws per neuron from which the first good one is taken.
POOL = 64
#: An exact case has at least so many ties; so many inputs are drawn to find them.
TIES, TRIES = 3, 50
#: Potentials beyond this are not drawn: rounding errors would grow past what the tolerances are made for.
BOUND = 6.0


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
) -> Tuple[Array, ...]:
    """One ``[T, *N]`` per input, uniform in ``drive``, that keeps every tested potential a margin from every jump."""
    steps, neurons = shape[0], tuple(shape[1:])
    pool = (steps, POOL, *neurons)
    draws = tuple(rounded(rng.uniform(*drive, size=pool), dtype) for _ in oracle.inputs)
    good = _clear(run(oracle, draws, params, state), (POOL, *neurons))
    if not good.any(axis=0).all():
        raise AssertionError(f"no inputs with a margin for {type(oracle).__name__} {vars(oracle)} in {POOL} draws")
    chosen = good.argmax(axis=0)
    return tuple(np.take_along_axis(x, chosen[None, None], axis=1)[:, 0] for x in draws)


def _clear(seen: Trajectory, shape: Sequence[int]) -> Array:
    """Which of the neurons keep the margin at every step."""
    fine = np.ones(tuple(shape), bool)
    for step in seen.steps:
        if step.tested is not None:
            u = np.broadcast_to(step.tested, fine.shape)
            fine &= np.abs(u) < BOUND
            for jump in (0.0, *seen.oracle.surrogate.jumps):
                fine &= np.abs(u - jump) > MARGIN
        for edge in step.edges:
            fine &= np.abs(np.broadcast_to(edge, fine.shape)) > MARGIN
    return fine


def dyadic(
    oracle: Oracle,
    params: Mapping[str, Any],
    shape: Sequence[int],
    levels: Sequence[float],
    rng: np.random.Generator,
) -> Tuple[Array, ...]:
    """One ``[T, *N]`` per input, drawn from ``levels``; nothing is rounded in float32, and ties do occur."""
    for _ in range(TRIES):
        draws = tuple(rng.choice(np.asarray(levels, float), size=tuple(shape)) for _ in oracle.inputs)
        wide, single = run(oracle, draws, params), run(oracle, draws, params, dtype=np.float32)
        for name, value in wide.states.items():
            if not np.array_equal(value, single.states[name]):
                raise AssertionError(f"{name} of {type(oracle).__name__} is rounded in float32 on {levels}")
        tested = wide.tested
        if tested is None or (tested == 0).sum() >= TIES:
            return draws
    raise AssertionError(f"fewer than {TIES} ties in {type(oracle).__name__} on {levels}, in {TRIES} draws")
