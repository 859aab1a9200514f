"""A neuron over time: its step repeated, and the adjoint from the last step back to the first.

- :func:`run` computes in the dtype it is told. In float64 it says what is right; in the dtype of a backend's arithmetic
  it gives the very bits of a neuron of ``+ - * /``, since NumPy rounds each operation as IEEE 754 has it.
- :func:`adjoint` computes each step again, from the state before it, in the dtype of the run; its own is float64.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from spikecore.testing._oracle.layers import Matrices, Norm
from spikecore.testing._oracle.moved import Moves
from spikecore.testing._oracle.rules import Array
from spikecore.testing._oracle.surrogates import SURROGATES, Derivative
from spikecore.testing._oracle.values import Value, cotangents, distances, ops, spike

#: Results of a step: its outputs, and the next value of each state.
Next = Tuple[Tuple[Value, ...], Dict[str, Value]]


class Oracle:
    """A neuron: its declaration, and one step written with :class:`Value`."""

    inputs: Tuple[str, ...] = ("x",)
    #: State -> where it starts: a number, or the name of a parameter.
    rest: Mapping[str, Union[float, str]] = {}
    params: Tuple[str, ...] = ()
    #: Number of outputs.
    outputs = 1
    #: Fires on ``>`` instead of ``>=``.
    strict = False
    #: States into whose next value no spike carries a gradient with ``detach_reset``; None for all.
    reset_states: Optional[Tuple[str, ...]] = None
    #: Of a neuron with no row of its own in the table of models: values of parameters other than the defaults, and the
    #: range of its inputs.
    values: Mapping[str, float] = {}
    drive: Tuple[float, float] = (-1.0, 4.5)

    def __init__(self, surrogate: Optional[Derivative] = None, **options: Any) -> None:
        self.surrogate = SURROGATES["ATan"] if surrogate is None else surrogate
        self.reset: str = options.pop("reset", "hard")
        self.detach: bool = options.pop("detach_reset", False)
        self.__dict__.update(options)
        self._tested: Optional[Array] = None

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        """One step from state ``s`` with parameters ``p``."""
        raise NotImplementedError

    def start(self, params: Mapping[str, Value]) -> Dict[str, Value]:
        """The states at rest."""
        return {name: params[value] if isinstance(value, str) else Value(value) for name, value in self.rest.items()}

    def fire(self, u: Value, strict: Optional[bool] = None, surrogate: Any = None) -> Value:
        """The spikes for a potential minus threshold ``u``; the first of a step decides about the output."""
        self._tested = u.array if self._tested is None else self._tested
        return spike(u, self.surrogate if surrogate is None else surrogate, self.strict if strict is None else strict)

    def flag(self, u: Value) -> Value:
        """A spike that carries no gradient."""
        flag: Value = ops.detach(spike(u, self.surrogate, self.strict))
        return flag

    @property
    def cut(self) -> Tuple[str, ...]:
        """States whose next value gets no gradient through a spike."""
        return (tuple(self.rest) if self.reset_states is None else self.reset_states) if self.detach else ()


class Step(NamedTuple):
    """One step as it ran."""

    before: Dict[str, Array]
    inputs: Tuple[Array, ...]
    outputs: Tuple[Array, ...]
    next: Dict[str, Array]
    #: The potential minus threshold that decides about a spike; None where nothing fires.
    tested: Optional[Array]
    #: Arrays that are 0 where a decision changes, if the run was asked for them.
    distances: Tuple[Array, ...] = ()


class Trajectory(NamedTuple):
    """A run of an oracle."""

    oracle: Oracle
    params: Dict[str, Array]
    #: One ``[T, *N]`` per output.
    outputs: Tuple[Array, ...]
    #: State -> its values after every step, ``[T, *N]``.
    states: Dict[str, Array]
    #: State -> its value before the first step.
    start: Dict[str, Array]
    #: State -> its value after the last step.
    final: Dict[str, Array]
    steps: List[Step]
    #: True if the run started at rest.
    at_rest: bool
    #: The layer around the neuron, and the inputs of that.
    layer: Union[Matrices, Norm, None] = None
    layer_inputs: Sequence[Array] = ()

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


class Leaves(NamedTuple):
    """Leaves of a step, as values."""

    inputs: Tuple[Value, ...]
    states: Dict[str, Value]
    params: Dict[str, Value]


def _leaves(values: Mapping[str, Array]) -> Dict[str, Value]:
    return {name: Value(value) for name, value in values.items()}


def computed(
    oracle: Oracle, before: Mapping[str, Array], params: Mapping[str, Array], inputs: Sequence[Array]
) -> Tuple[Leaves, Next, Oracle]:
    """One step: its leaves, its results, and the oracle with what it noted on the way."""
    leaves = Leaves(tuple(map(Value, inputs)), _leaves(before), _leaves(params))
    noting = copy.copy(oracle)
    noting._tested = None
    with np.errstate(all="ignore"):
        results = noting.step(SimpleNamespace(**leaves.states), SimpleNamespace(**leaves.params), *leaves.inputs)
    return leaves, results, noting


def run(
    oracle: Oracle,
    inputs: Sequence[Array],
    params: Mapping[str, Any],
    state: Optional[Mapping[str, Array]] = None,
    dtype: Any = np.float64,
    decisions: bool = False,
    layer: Union[Matrices, Norm, None] = None,
) -> Trajectory:
    """All steps of ``inputs``, ``[T, *N]`` each, from ``state`` or from rest. Parameters broadcast against ``[*N]``.

    decisions: whether each step notes how near its decisions were. layer: what is around the neuron, whose inputs these
    are then. With feedback the state has the last output, too.
    """
    layer_inputs = [np.asarray(x, dtype) for x in inputs]
    xs = layer.forward(layer_inputs) if isinstance(layer, Norm) else layer_inputs
    shape = xs[0].shape[1:]
    p = {name: np.asarray(value, dtype) for name, value in params.items()}
    rest = {name: value.array for name, value in oracle.start(_leaves(p)).items()}
    matrices = layer if isinstance(layer, Matrices) else None
    names = {} if matrices is None else matrices.names
    rest.update(dict.fromkeys(names.values(), np.zeros(())))
    start = {name: np.broadcast_to(np.asarray((state or rest)[name], dtype), shape) for name in rest}
    current, steps = start, []
    fed = {output: [start[name]] for output, name in names.items()}
    for t, at in enumerate(zip(*xs)):
        if matrices is not None:
            at = tuple(matrices.drives(at, {output: np.stack(values) for output, values in fed.items()}, t))
        _, (outputs, after), noted = computed(oracle, current, p, at)
        after = {**after, **{name: outputs[output] for output, name in names.items()}}
        before, current = current, {name: over(after[name].array, shape) for name in rest}
        for output, name in names.items():
            fed[output].append(current[name])
        near = tuple(distances((*outputs, *after.values()))) if decisions else ()
        steps.append(Step(before, at, tuple(over(y.array, shape) for y in outputs), current, noted._tested, near))
    count = len(steps[0].outputs) if steps else oracle.outputs
    empty = np.zeros((0, *shape), dtype)
    return Trajectory(
        oracle,
        p,
        tuple(np.stack([k.outputs[i] for k in steps]) if steps else empty for i in range(count)),
        {name: np.stack([k.next[name] for k in steps]) if steps else empty for name in current},
        start,
        current,
        steps,
        state is None,
        layer,
        layer_inputs,
    )


def over(value: Array, shape: Tuple[int, ...]) -> Array:
    """The value over one time step. Most values have its shape, which NumPy takes longer to find than to add two."""
    return value if np.shape(value) == shape else np.broadcast_to(value, shape)


@np.errstate(all="ignore")  # cotangents that are not finite are values, as those of steps are
def adjoint(
    seen: Trajectory,
    outputs: Sequence[Optional[Array]],
    final: Optional[Mapping[str, Array]] = None,
    trace: Optional[Mapping[str, Array]] = None,
    cut: int = 0,
) -> Gradients:
    """Gradients of a trajectory, in float64, given cotangents of outputs, of the final state and of recorded states.

    cut: the step before which the state is detached.
    """
    shape = seen.outputs[0].shape[1:]
    zero = np.zeros(shape)
    ends, matrices = dict(final or {}), seen.layer if isinstance(seen.layer, Matrices) else None
    names = {} if matrices is None else matrices.names
    g: Dict[str, Array] = {name: np.asarray(ends.get(name, zero), float) for name in seen.start}
    g_inputs: List[Tuple[Array, ...]] = []
    sent: Dict[int, List[Array]] = {output: [] for output in names}
    fed = {output: np.stack([seen.start[name], *seen.outputs[output]]) for output, name in names.items()}
    g_params = {name: np.zeros(np.shape(value)) for name, value in seen.params.items()}
    for t in reversed(range(len(seen.steps))):
        for name, cotangent in (trace or {}).items():
            g[name] = Moves.plus(g[name], np.asarray(cotangent[t], float))
        g_out = [zero if cotangent is None else np.asarray(cotangent[t], float) for cotangent in outputs]
        for output, name in names.items():
            g_out[output] = g_out[output] + g[name]
        inputs, g, of_params = back(seen, t, g, g_out)
        g_inputs.append(inputs)
        for name, value in of_params.items():
            g_params[name] = Moves.plus(g_params[name], summed(value, shape, g_params[name].shape))
        if matrices is not None:
            for output, rows in matrices.sent(inputs).items():
                sent[output].insert(0, rows)
                # a matrix with delays is alone
                g[names[output]] = matrices.each[0].departing(sent[output], t)
            for name, value in matrices.gradients(inputs, fed, t).items():
                g_params[name] = g_params.get(name, 0.0) + value
        if 0 < cut == t:
            g = dict.fromkeys(g, zero)
            sent = {output: [np.zeros_like(value) for value in values] for output, values in sent.items()}
    if seen.at_rest:
        leaves = _leaves(seen.params)
        of_rest = cotangents((value, g[name]) for name, value in seen.oracle.start(leaves).items())
        for name, leaf in leaves.items():
            if leaf.number in of_rest:
                g_params[name] = Moves.plus(g_params[name], summed(of_rest[leaf.number], shape, g_params[name].shape))
    stacked = tuple(
        np.stack([at[i] for at in reversed(g_inputs)]) if g_inputs else np.zeros((0, *shape))
        for i in range(len(seen.oracle.inputs))
    )
    if isinstance(seen.layer, Norm):
        stacked, of_layer = seen.layer.back(seen.layer_inputs, stacked[0], outputs[0])
        g_params.update(of_layer)
    return Gradients(stacked, g, g_params)


@np.errstate(all="ignore")
def back(
    seen: Trajectory, t: int, g_next: Mapping[str, Array], g_out: Sequence[Array]
) -> Tuple[Tuple[Array, ...], Dict[str, Array], Dict[str, Array]]:
    """The adjoint of step ``t``: cotangents of inputs, of states, and of parameters, not yet summed over neurons."""
    step, oracle = seen.steps[t], seen.oracle
    leaves, (outputs, after), _ = computed(oracle, step.before, seen.params, step.inputs)
    through = [*zip(outputs, g_out), *((after[name], g_next[name]) for name in oracle.rest if name not in oracle.cut)]
    parts = [cotangents(through)]
    if oracle.cut:
        parts.append(cotangents([(after[name], g_next[name]) for name in oracle.cut], through_spikes=False))
    shape = seen.outputs[0].shape[1:]

    def of(leaf: Value) -> Array:
        return over(np.asarray(sum((g[leaf.number] for g in parts if leaf.number in g), 0.0)), shape)

    return (
        tuple(map(of, leaves.inputs)),
        {name: of(leaf) for name, leaf in leaves.states.items()},
        {name: of(leaf) for name, leaf in leaves.params.items()},
    )


def summed(value: Array, full: Sequence[int], shape: Sequence[int]) -> Array:
    """The sum of ``value``, spread to ``full``, over the dimensions along which a parameter of ``shape`` was spread."""
    value = over(value, tuple(full))
    lead = value.ndim - len(shape)
    value = value.sum(axis=tuple(range(lead)))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and value.shape[i] != 1)
    if not axes:
        return np.asarray(value)
    total = value.sum(axis=axes, keepdims=True)
    return np.asarray(total if Moves.now is None else Moves.now.total(value, axes, total))
