"""An oracle's step, repeated: forward over all time steps, and its adjoint from the last step back to the first.

Rules of this module:

- :func:`run` computes in the dtype it is told. In float64 it says what is right; in the dtype of a backend's arithmetic
  it gives the very bits of a neuron of ``+ - * /``, since NumPy rounds each operation as IEEE 754 has it.
- :func:`adjoint` is float64 always.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from spikecore.testing._oracle.surrogates import SURROGATES, Derivative

Array = NDArray[Any]
#: Values by name: ``s.v``, ``p.tau``.
Values = SimpleNamespace


class Step(SimpleNamespace):
    """What one step computes, and what its adjoint needs of it.

    ``outputs``: tuple of arrays. ``next``: state -> array. ``tested``: the potential minus threshold that decides about
    a spike, None where nothing fires. ``edges``: further arrays where something jumps at zero. Anything else is between
    a step and its adjoint.
    """

    outputs: Tuple[Array, ...]
    next: Dict[str, Array]
    tested: Optional[Array] = None
    edges: Tuple[Array, ...] = ()


class Cotangents(NamedTuple):
    """What one step's adjoint gives: by input, by state, by parameter (not yet summed over neurons)."""

    inputs: Tuple[Array, ...]
    states: Dict[str, Array]
    params: Dict[str, Array]


class Oracle:
    """A neuron: one step, and the adjoint of one step."""

    inputs: Tuple[str, ...] = ("x",)
    #: State -> where it starts: a number, or the name of a parameter.
    rest: Mapping[str, Union[float, str]] = {}
    params: Tuple[str, ...] = ()
    #: Fires on ``>`` instead of ``>=``.
    strict = False

    def __init__(self, surrogate: Optional[Derivative] = None, **options: Any) -> None:
        self.surrogate = SURROGATES["ATan"] if surrogate is None else surrogate
        self.reset: str = options.pop("reset", "hard")
        self.detach: bool = options.pop("detach_reset", False)
        self.__dict__.update(options)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        """One step from state ``s`` with parameters ``p``."""
        raise NotImplementedError

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        """The adjoint of the step ``k`` that started from ``s``, given cotangents of its next states and outputs."""
        raise NotImplementedError

    def fire(self, u: Array) -> Array:
        """The spikes for a potential minus threshold ``u``. NaN does not fire."""
        with np.errstate(invalid="ignore"):
            return np.asarray(u > 0 if self.strict else u >= 0).astype(u.dtype)


class Trajectory(NamedTuple):
    """A run of an oracle."""

    oracle: Oracle
    params: Any
    #: One ``[T, *N]`` per output.
    outputs: Tuple[Array, ...]
    #: State -> its values after every step, ``[T, *N]``.
    states: Dict[str, Array]
    #: State -> its value before the first step.
    start: Dict[str, Array]
    #: State -> its value after the last step.
    final: Dict[str, Array]
    steps: List[Step]
    #: Whether it started at rest.
    at_rest: bool

    @property
    def tested(self) -> Optional[Array]:
        """The potential minus threshold of every step, ``[T, *N]``; None for a neuron that does not fire."""
        seen = [step.tested for step in self.steps if step.tested is not None]
        return np.stack(seen) if seen else None


class Gradients(NamedTuple):
    """The derivative of ``sum(output * cotangent) + ...``."""

    inputs: Tuple[Array, ...]
    #: With respect to the state before the first step.
    state: Dict[str, Array]
    #: Of the shape that each parameter has.
    params: Dict[str, Array]


def run(
    oracle: Oracle,
    inputs: Sequence[Array],
    params: Mapping[str, Any],
    state: Optional[Mapping[str, Array]] = None,
    dtype: Any = np.float64,
) -> Trajectory:
    """All steps of ``inputs``, ``[T, *N]`` each, from ``state`` or from rest. Parameters broadcast against ``[*N]``."""
    xs = [np.asarray(x, dtype) for x in inputs]
    shape = xs[0].shape[1:]
    p = Values(**{name: np.asarray(value, dtype) for name, value in params.items()})
    now = {
        name: np.broadcast_to(np.asarray(_start(name, value, state, p), dtype), shape)
        for name, value in oracle.rest.items()
    }
    start, steps = now, []
    with np.errstate(all="ignore"):
        for at in zip(*xs):
            step = oracle.step(Values(**now), p, *at)
            step.before = Values(**now)
            now = {name: _over(np.asarray(step.next[name], dtype), shape) for name in oracle.rest}
            steps.append(step)
    count = len(steps[0].outputs) if steps else 1
    empty = np.zeros((0, *shape), dtype)
    return Trajectory(
        oracle,
        p,
        tuple(np.stack([_over(k.outputs[i], shape) for k in steps]) if steps else empty for i in range(count)),
        {name: np.stack([_over(k.next[name], shape) for k in steps]) if steps else empty for name in now},
        start,
        now,
        steps,
        state is None,
    )


def _over(value: Array, shape: Tuple[int, ...]) -> Array:
    """The value over one time step. Most values have its shape, which NumPy takes longer to find than to add two."""
    return value if np.shape(value) == shape else np.broadcast_to(value, shape)


def _start(name: str, value: Union[float, str], state: Optional[Mapping[str, Array]], p: Any) -> Any:
    if state is not None:
        return state[name]
    return getattr(p, value) if isinstance(value, str) else value


def adjoint(
    seen: Trajectory,
    outputs: Sequence[Optional[Array]],
    final: Optional[Mapping[str, Array]] = None,
    trace: Optional[Mapping[str, Array]] = None,
    counted: Optional[range] = None,
) -> Gradients:
    """Gradients of a float64 trajectory, given cotangents of outputs, of the final state and of recorded states.

    counted: the steps that add to the gradients of parameters; all that is right, others say what a fault would give.
    """
    shape = next(iter(seen.outputs)).shape[1:]
    zero = np.zeros(shape)
    g = {name: np.asarray((final or {}).get(name, zero), float) for name in seen.start}
    g_inputs: List[Tuple[Array, ...]] = []
    g_params = {name: np.zeros(np.shape(value)) for name, value in vars(seen.params).items()}
    with np.errstate(all="ignore"):
        for t in reversed(range(len(seen.steps))):
            for name, cotangent in (trace or {}).items():
                g[name] = g[name] + cotangent[t]
            g_out = [zero if cotangent is None else np.asarray(cotangent[t], float) for cotangent in outputs]
            step = seen.steps[t]
            found = seen.oracle.back(step, step.before, seen.params, Values(**g), *g_out)
            g = {name: np.asarray(found.states[name]) for name in g}
            g_inputs.append(found.inputs)
            for name, value in found.params.items() if counted is None or t in counted else ():
                g_params[name] = g_params[name] + summed(value, shape, g_params[name].shape)
    for name, initial in seen.oracle.rest.items():
        if seen.at_rest and isinstance(initial, str):
            g_params[initial] = g_params[initial] + summed(g[name], shape, g_params[initial].shape)
    stacked = tuple(
        np.stack([_over(at[i], shape) for at in reversed(g_inputs)]) if g_inputs else np.zeros((0, *shape))
        for i in range(len(seen.oracle.inputs))
    )
    return Gradients(stacked, g, g_params)


def summed(value: Array, full: Sequence[int], shape: Sequence[int]) -> Array:
    """The sum of ``value``, spread to ``full``, over the dimensions along which a parameter of ``shape`` was spread."""
    value = _over(value, tuple(full))
    lead = value.ndim - len(shape)
    value = value.sum(axis=tuple(range(lead)))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and value.shape[i] != 1)
    return np.asarray(value.sum(axis=axes, keepdims=True) if axes else value)
