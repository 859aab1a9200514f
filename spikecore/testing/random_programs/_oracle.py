"""The oracle: a drawn neuron over time and its reverse-mode gradients, in NumPy, operation by operation.

It is run without errors, and with small errors added wherever a backend may round in another way. How far results then
move says how close a backend must come; where a decision changes (a spike, a comparison, a rounding), the neuron says
nothing. These runs are one: arrays have a dimension for them before those of the neurons, because the time of NumPy on
few neurons is that of its calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from spikecore.testing._oracle.rules import BACK, EXACT, VALUE, Array
from spikecore.testing.random_programs._tree import Node, Tree, order

#: Relative errors that are tried, in units of the last place: of functions, and of each step of a gradient.
FUNCTION_ERROR, GRADIENT_ERROR = 16.0, 4.0
#: Errors are drawn for so many operations at once: one by one they took a third of the oracle's time.
AHEAD = 64


@dataclass
class Cotangents:
    """What a scalar loss adds to: outputs, recorded states, final states. None where nothing arrives."""

    outputs: List[Optional[Array]]
    trace: Dict[str, Array]
    final: Dict[str, Array]


@dataclass
class Run:
    """What a run gives: values of all steps, gradients, and what was decided."""

    outputs: List[Array]
    trace: Dict[str, Array]
    final: Dict[str, Array]
    #: One number per neuron that stands for all decisions.
    decided: Array
    inputs: List[Array]
    state: Dict[str, Array]
    #: Per neuron, in float64; and the sum of the sizes of what was summed up.
    params: Dict[str, Array]
    sizes: Dict[str, Array]


class Oracle:
    """One neuron with its parameters, as arrays that broadcast against the neurons.

    ``errors`` has a source of errors for each run after the first, which has none.
    """

    def __init__(self, tree: Tree, params: Mapping[str, Array], dtype: Any, errors: Sequence[np.random.Generator] = ()):
        self.tree, self.dtype, self.errors = tree, np.dtype(dtype), errors
        self.eps = float(np.finfo(self.dtype).eps)
        self.params = {name: np.asarray(value).astype(dtype) for name, value in params.items()}
        self.order = order(tree.roots)
        self.derivative = order([tree.derivative])
        detached = tree.states if tree.reset_states is None else tree.reset_states
        self.detached = set(detached) if tree.detach_reset else set()
        self.decided = np.zeros((), np.uint64)

    def runs(self, inputs: Sequence[Array], state: Optional[Mapping[str, Array]], given: Cotangents) -> List[Run]:
        """All steps of ``inputs`` (``[T, *N]`` each) from a state or from rest, and back: a run without errors, and one
        with the errors of each source.
        """
        xs = [x.astype(self.dtype) for x in inputs]
        #: Of every array of a step: runs, then neurons.
        self.shape = (1 + len(self.errors), *xs[0].shape[1:])
        self.decided = np.zeros(self.shape, np.uint64)
        self.used = 0
        self.factors = {ulps: np.ones((AHEAD, *self.shape)) for ulps in (FUNCTION_ERROR, GRADIENT_ERROR)}
        # what no step changes is made once
        self.fixed = {("param", name): self._full(value) for name, value in self.params.items()}
        self.numbers = {
            node: self._full(self.tree.fields[node.value] if node.op == "field" else node.value)
            for node in (*self.order, *self.derivative)
            if node.op in ("const", "field")
        }
        initial = {n: self.params[v] if isinstance(v, str) else v for n, v in self.tree.states.items()}
        now = {n: self._full((state or initial)[n]) for n in self.tree.states}
        steps, outputs, trace = [], [], []
        with np.errstate(all="ignore"):
            for at in zip(*(np.broadcast_to(x[:, None], (len(x), *self.shape)) for x in xs)):
                values = self._forward(self.order, self._leaves(at, now))
                now = {name: values[node] for name, node in self.tree.next.items()}
                steps.append(values)
                outputs.append([values[node] for node in self.tree.outputs])
                trace.append(now)
            back = self._backward(steps, given, state is None)
        empty = np.zeros((0, *self.shape), self.dtype)
        every = Run(
            [np.stack([o[k] for o in outputs]) if outputs else empty for k in range(len(self.tree.outputs))],
            {n: np.stack([t[n] for t in trace]) if trace else empty for n in now},
            now,
            self.decided,
            *back,
        )
        return [_one(every, run) for run in range(self.shape[0])]

    def _full(self, value: Any) -> Array:
        return np.broadcast_to(np.asarray(value, self.dtype), self.shape)

    def _leaves(self, at: Sequence[Array], now: Mapping[str, Array]) -> Dict[Tuple[str, Any], Array]:
        leaves = {("input", name): x for name, x in zip(self.tree.inputs, at)}
        leaves.update((("state", name), value) for name, value in now.items())
        leaves.update(self.fixed)
        return leaves

    # -- one step

    def _forward(self, nodes: Sequence[Node], leaves: Mapping[Tuple[str, Any], Array]) -> Dict[Node, Array]:
        values: Dict[Node, Array] = {}
        for node in nodes:
            args = [values[arg] for arg in node.args]
            if node in self.numbers:
                values[node] = self.numbers[node]
            elif not args:
                values[node] = leaves[node.op, node.value]
            elif node.op == "spike":
                fires = args[0] > 0 if node.value else args[0] >= 0
                values[node] = self._noted(fires).astype(self.dtype)
            else:
                values[node] = self._value(node.op, args)
        return values

    def _value(self, op: str, args: Sequence[Array]) -> Array:
        y = np.asarray(VALUE[op](*args))
        if op in ("ge", "gt", "le", "lt", "eq", "ne"):
            self._noted(y)
        elif op in ("floor", "round"):
            self._noted(np.clip(np.nan_to_num(y), -1e6, 1e6))
        elif op in ("sign", "abs"):
            self._noted(np.sign(np.nan_to_num(args[0])))
        elif op in ("minimum", "maximum"):
            self._noted(np.sign(np.nan_to_num(args[0] - args[1])))
        elif op == "clamp":
            for a, b in ((args[0], args[1]), (args[0], args[2]), (args[1], args[2])):
                self._noted(np.sign(np.nan_to_num(a - b)))
        return y if op in EXACT else self._off(y, FUNCTION_ERROR)

    def _noted(self, decision: Array) -> Array:
        seen = np.asarray(decision).astype(np.int64).astype(np.uint64)
        with np.errstate(over="ignore"):
            self.decided = self.decided * np.uint64(1000003) + seen + np.uint64(7)
        return decision

    def _off(self, y: Array, ulps: float) -> Array:
        if not self.errors:
            return y
        moved = np.empty(self.shape, self.dtype)
        # in float64, rounded once
        return np.multiply(y, self._factor(ulps), out=moved, casting="same_kind")

    def _factor(self, ulps: float) -> Array:
        """1 for the run without errors, and near 1 for the others, new at each call."""
        at = self.used % AHEAD
        if at == 0:
            count = len(self.errors)
            drawn = [errors.random((AHEAD, self.decided[0, ...].size)) for errors in self.errors]
            for known, factors in self.factors.items():
                made = 1.0 + (np.stack(drawn, 1) * (2 * known) - known) * self.eps
                factors[:, 1:] = made.reshape(AHEAD, count, *self.shape[1:])
        self.used += 1
        factor: Array = self.factors[ulps][at]
        return factor

    # -- gradients

    def _backward(
        self, steps: Sequence[Dict[Node, Array]], given: Cotangents, at_rest: bool
    ) -> Tuple[List[Array], Dict[str, Array], Dict[str, Array], Dict[str, Array]]:
        tree, zero = self.tree, self._full(0.0)
        g = {name: self._full(given.final.get(name, zero)) for name in tree.states}
        inputs: List[List[Array]] = []
        params = {name: np.zeros(self.shape) for name in tree.params}
        sizes = {name: np.zeros(self.shape) for name in tree.params}
        for t in reversed(range(len(steps))):
            g = {
                n: value + given.trace[n][t].astype(self.dtype) if n in given.trace else value for n, value in g.items()
            }
            outs = [(n, self._full(c[t])) for n, c in zip(tree.outputs, given.outputs) if c is not None]
            cut = [(tree.next[name], g[name]) for name in tree.states if name in self.detached]
            outs += [(tree.next[name], g[name]) for name in tree.states if name not in self.detached]
            found: Dict[Tuple[str, Any], Array] = {}
            for roots, through_spikes in ((outs, True), (cut, False)):
                for leaf, value in self._step_back(steps[t], roots, through_spikes).items():
                    found[leaf] = self._off(found[leaf] + value if leaf in found else value, GRADIENT_ERROR)
            g = {name: found.get(("state", name), zero) for name in tree.states}
            inputs.append([found.get(("input", name), zero) for name in tree.inputs])
            for name in tree.params:
                part = found.get(("param", name), zero).astype(np.float64)
                params[name] = params[name] + part
                sizes[name] = sizes[name] + np.abs(part)
        for name, initial in tree.states.items():
            if at_rest and isinstance(initial, str):
                params[initial] = params[initial] + g[name]
                sizes[initial] = sizes[initial] + np.abs(g[name])
        empty = np.zeros((0, *self.shape), self.dtype)
        stacked = [np.stack([row[k] for row in inputs[::-1]]) if inputs else empty for k in range(len(tree.inputs))]
        return stacked, g, params, sizes

    def _step_back(
        self, values: Mapping[Node, Array], roots: Sequence[Tuple[Node, Array]], through_spikes: bool
    ) -> Dict[Tuple[str, Any], Array]:
        g: Dict[Node, Array] = {}
        for node, arriving in roots:
            g[node] = g[node] + arriving if node in g else arriving
        leaves: Dict[Tuple[str, Any], Array] = {}
        for node in reversed(self.order):
            if node not in g:
                continue
            if node.op in ("input", "state", "param"):
                leaf = (node.op, node.value)
                leaves[leaf] = leaves[leaf] + g[node] if leaf in leaves else g[node]
            for arg, part in zip(node.args, self._parts(node, g[node], values, through_spikes)):
                if part is not None:
                    part = self._off(np.asarray(part).astype(self.dtype, copy=False), GRADIENT_ERROR)
                    g[arg] = g[arg] + part if arg in g else part
        return leaves

    def _parts(self, node: Node, g: Array, values: Mapping[Node, Array], through_spikes: bool) -> Sequence[Any]:
        if node.op == "spike":
            if not through_spikes:
                return (None,)
            derivative = self._forward(self.derivative, {("u", None): values[node.args[0]]})
            return (g * derivative[self.tree.derivative],)
        if node.op not in BACK:
            return (None,) * len(node.args)
        return BACK[node.op](g, values[node], *(values[arg] for arg in node.args))


def _one(every: Run, run: int) -> Run:
    """One of the runs that were made together."""

    def of_steps(values: List[Array]) -> List[Array]:
        return [value[:, run, ...] for value in values]

    def of_neurons(values: Mapping[str, Array]) -> Dict[str, Array]:
        return {name: value[run, ...] for name, value in values.items()}

    return Run(
        of_steps(every.outputs),
        dict(zip(every.trace, of_steps(list(every.trace.values())))),
        of_neurons(every.final),
        every.decided[run, ...],
        of_steps(every.inputs),
        *map(of_neurons, (every.state, every.params, every.sizes)),
    )
