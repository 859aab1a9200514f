"""Vectors: several values of each neuron under one name, of neurons of the library and of the suite's own.

The oracle knows the values by the names that a program has for them, ``h[0]``, ``h[1]``, ...; what a neuron takes and
gives has them in the last dimension of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor

import spikecore as sc
from spikecore.core.neuron import Neuron
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator, margin, rounded
from spikecore.testing._oracle import Array, Next, Oracle, Value, adjoint, ops, run
from spikecore.testing._oracle import neurons as oracle
from spikecore.testing._oracle.neurons import each, numbered, total
from spikecore.testing.compare import Mismatch, as_array, same
from spikecore.testing.models import spread
from spikecore.testing.tolerances import TOLERANCES

CASES = Collection()
_case = CASES.family("vectors", "state")
_NEEDS = ("gradients", "parameter_gradients", "state_gradients", "record")
_STEPS, _BATCH, _CHANNELS = 7, 3, 5


class Bank(Neuron):
    """A vector that starts at a parameter and is reset by the spike, and one that shifts: a filter of three taps."""

    sizes = {"n": 3}
    states = {"h": sc.vector("n", "start"), "taps": sc.vector(3), "v": 0.0}
    params = {"keep": sc.vector("n", 0.5), "gain": sc.vector("n", 0.25), "start": sc.vector("n", 0.125), "level": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        taps = [x, *s.taps[:-1]]
        h = p.keep * s.h + p.gain * x
        u = 0.5 * s.v + sc.ops.sum(h) - 0.25 * (taps[2] * h[-1])
        z = self.spike(u - p.level)
        return z, {"h": sc.ops.select(z, 0.5 * h, h), "taps": taps, "v": u - z}


class OfBank(Oracle):
    """The same."""

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        taps = [x[0], *each(s, "taps")[:-1]]
        h = [keep * before + gain * x[0] for keep, before, gain in zip(each(p, "keep"), each(s, "h"), each(p, "gain"))]
        u = 0.5 * s.v + total(h) - 0.25 * (taps[2] * h[-1])
        z = self.fire(u - p.level)
        halved = [ops.select(z, 0.5 * value, value) for value in h]
        return (z,), {**numbered("h", halved), **numbered("taps", taps), "v": u - z}


@dataclass(frozen=True)
class Subject:
    """A neuron with vectors, its oracle, and values: of vectors those in the middle of what they are spread over."""

    neuron: Any
    oracle: Type[Oracle]
    values: Mapping[str, float]
    sizes: Mapping[str, int]
    drive: Tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)


def _bank(n: int) -> Subject:
    values = {"keep": 0.75, "gain": 1.5 / n, "start": 0.25, "level": 1.0}
    return Subject(Bank, OfBank, values, {"n": n}, (-1.0, 2.0))


_DHLIF = Subject(
    sc.DHLIF, oracle.DHLIF, {"w_branch": 0.75, "w_soma": 0.5, "threshold": 0.5}, {"branches": 4}, (-1.0, 2.5)
)
_SSM = Subject(
    sc.SpikingSSM,
    oracle.SpikingSSM,
    {"rate": 3.0, "b": 0.75, "c": 1.25, "d": 0.25, "dt": 0.125, "tau": 2.0, "threshold": 0.875, "v_reset": 0.125},
    {"n": 16},
    (-1.0, 3.0),
    {"reset": "soft"},
)

_HOLDS = "outputs, states and gradients of vectors are the oracle's, each value at its place in the last dimension"


@_case("three", _HOLDS, *_NEEDS, of=_bank(3))
@_case("sixteen", _HOLDS, *_NEEDS, of=_bank(16))
@_case("sixteen-float64", _HOLDS, *_NEEDS, dtype="float64", of=_bank(16), compute=torch.float64)
@_case("three-given", f"{_HOLDS}, from a given state", *_NEEDS, of=_bank(3), given=True)
@_case("three-of-each-channel", _HOLDS, *_NEEDS, "channel_parameters", of=_bank(3), shape=(_CHANNELS,))
@_case("dhlif", _HOLDS, *_NEEDS, "several_inputs", of=_DHLIF)
@_case("dhlif-of-each-channel", _HOLDS, *_NEEDS, "several_inputs", "channel_parameters", of=_DHLIF, shape=(_CHANNELS,))
@_case("spikingssm", _HOLDS, *_NEEDS, of=_SSM)
def _vectors(
    context: Context,
    of: Subject,
    shape: Tuple[int, ...] = (),
    compute: torch.dtype = torch.float32,
    given: bool = False,
) -> None:
    """A call over all steps with a record, from rest or a given state; then the same steps in two calls that carry the
    state.
    """
    name, kind = of.neuron.__name__, "float64" if compute == torch.float64 else "float32"
    neuron, values = _neuron(context, of, shape, compute)
    params = _apart(values, neuron.vectors)
    twin = of.oracle(inputs=neuron.inputs, rest=_rest(neuron), **of.options)
    rng = generator(name, of.sizes, shape)
    size = (_BATCH, _CHANNELS)
    begin = {key: rounded(rng.uniform(-0.5, 0.5, size), compute) for key in twin.rest} if given else {}
    inputs = margin(twin, params, (_STEPS, *size), of.drive, compute, rng, begin or None)
    seen = run(twin, inputs, params, begin or None)
    together = _together(begin, neuron.vectors)
    start: Dict[str, Any] = {key: context.tensor(value, compute, grad=True) for key, value in together.items()}
    xs = [context.tensor(x, compute, grad=len(inputs) == 1) for x in inputs]
    x = xs[0] if len(xs) == 1 else torch.stack(xs, -1).detach().requires_grad_()
    out, final, trace = neuron.run(x, state=start or None, record=tuple(neuron.states))
    same("spikes", name, as_array(out), seen.outputs[0], TOLERANCES[kind, "spikes"])
    near = TOLERANCES[kind, "potential"]
    for what, results, right, axes in (("final", final, seen.final, "n"), ("recorded", trace, seen.states, "t, n")):
        for state, value in _together(right, neuron.vectors).items():
            same(f"{what} {state}", name, as_array(results[state]), value, near, axes=axes)
    _check_gradients(neuron, values, [out, *final.values(), *trace.values()], seen, x, start, rng, kind)
    if given:
        return
    with torch.no_grad(), sc.carry_state(neuron):
        parts = torch.cat([neuron(x[:3]), neuron(x[3:])])
        carried = neuron.state
    if not torch.equal(parts, out):
        raise Mismatch(f"spikes of {name}: two calls that carry the state are not the call over all steps")
    for state, value in (carried or {}).items():
        same(f"carried {state}", name, as_array(value), as_array(final[state]), near, axes="n", right="one call")


def _check_gradients(
    neuron: Any,
    values: Mapping[str, Array],
    results: Sequence[Tensor],
    seen: Any,
    x: Tensor,
    start: Mapping[str, Any],
    rng: Any,
    kind: str,
) -> None:
    """Gradients of input, given state and learnt vectors, for cotangents of all results."""
    cotangents = [torch.tensor(rng.normal(size=tuple(each.shape))).to(each) for each in results]
    torch.autograd.backward(list(results), cotangents)
    states, arrays = tuple(neuron.states), [as_array(value) for value in cotangents]
    ends = _apart(dict(zip(states, arrays[1 : 1 + len(states)])), neuron.vectors)
    traces = _apart(dict(zip(states, arrays[1 + len(states) :])), neuron.vectors)
    right, name = adjoint(seen, [arrays[0]], ends, traces), type(neuron).__name__
    of_x = right.inputs[0] if len(right.inputs) == 1 else np.stack(right.inputs, -1)
    near, gradient = TOLERANCES[kind, "parameter gradient"], x.grad
    if gradient is None:
        raise Mismatch(f"input gradient of {name}: there is none")
    same("input gradient", name, as_array(gradient), of_x, TOLERANCES[kind, "input gradient"])
    for state, value in _together(right.state, neuron.vectors).items() if start else ():
        same(f"gradient of the given {state}", name, as_array(start[state].grad), value, near, axes="n")
    for param, value in _together(right.params, neuron.vectors).items():
        if param in neuron.vectors:
            grad, expected = getattr(neuron, param).grad, np.asarray(value).reshape(values[param].shape)
            if grad is not None or expected.any():  # a start that is given depends on no parameter
                same(f"gradient of {param}", name, as_array(grad), expected, near, axes="n")


def _neuron(context: Context, of: Subject, shape: Tuple[int, ...], dtype: torch.dtype) -> Tuple[Any, Dict[str, Array]]:
    """The neuron, which learns its vectors, and the values of its parameters."""
    vectors = of.neuron(**of.sizes).vectors
    values: Dict[str, Array] = {}
    for name, value in of.values.items():
        values[name] = spread(value, (*shape, int(vectors[name].n)), 0.4) if name in vectors else np.asarray(value)
    numbers = {name: float(value) for name, value in values.items() if name not in vectors}
    tensors = {name: torch.tensor(value, dtype=dtype) for name, value in values.items() if name in vectors}
    neuron = of.neuron(backend=context.name, learn=(*tensors,), **of.sizes, **of.options, **numbers, **tensors)
    return context.place(neuron), values


def _rest(neuron: Any) -> Dict[str, Any]:
    """Where the values of states start, by name."""
    starts: Dict[str, Any] = {}
    for name, kind in neuron.states.items():
        vector = neuron.vectors.get(name)
        for k in range(vector.n if vector else 1):
            start = vector.initial if vector else kind
            of_each = isinstance(start, str) and start in neuron.vectors
            starts[f"{name}[{k}]" if vector else name] = f"{start}[{k}]" if of_each else start
    return starts


def _apart(values: Mapping[str, Array], vectors: Mapping[str, Any]) -> Dict[str, Array]:
    """Values by the names of a program."""
    apart: Dict[str, Array] = {}
    for name, value in values.items():
        parts = np.moveaxis(np.asarray(value), -1, 0) if name in vectors else [value]
        apart.update({f"{name}[{k}]" if name in vectors else name: part for k, part in enumerate(parts)})
    return apart


def _together(values: Mapping[str, Array], vectors: Mapping[str, Any]) -> Dict[str, Array]:
    """The reverse: vectors with their values in the last dimension."""
    parts: Dict[str, List[Array]] = {}
    for name, value in values.items():
        parts.setdefault(name.partition("[")[0], []).append(np.asarray(value))
    return {name: np.stack(each, -1) if name in vectors else each[0] for name, each in parts.items()}
