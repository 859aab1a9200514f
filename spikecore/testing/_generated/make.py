"""From a row to a case of :mod:`spikecore.testing.random_programs`: its numbers, and what it must give.

Everything follows from the row, its seed included. Many neurons are copies of a few, in random order: the oracle
computes the few.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from spikecore.testing._generated.programs import PROGRAMS
from spikecore.testing._generated.row import Row
from spikecore.testing._oracle.rules import EXACT, Array
from spikecore.testing.random_programs._case import Around, Case, rounded, runs_of, settled, values_of
from spikecore.testing.random_programs._oracle import Cotangents, Run
from spikecore.testing.random_programs._tree import Tree, order

#: A dimension longer than this consists of copies of so many neurons.
LONGEST, COPIED = 1000, 61
#: Candidates for each neuron, of which the first good one is taken, and how often they are drawn.
POOL, ATTEMPTS = 3, 20
#: By what cotangents are multiplied so that gradients overflow in float16 and cotangents do not: those of outputs, and
#: those of states, which are never float16.
HUGE, HUGE_STATE = 2.0**14, 2.0**18
#: The share of cotangents that are NaN.
NANS = 0.02


def case_of(row: Row) -> Case:
    """The case of a row."""
    rng = np.random.default_rng(row.seed)
    for _ in range(ATTEMPTS):
        case = _drawn(row, rng)
        if settled(case, rng):
            if row["cotangents"] != "plain":
                case.given = _changed(case.given, row["cotangents"], rng)
                case.expected, *case.others = runs_of(case, rng, case.inputs, case.state, case.given)
            return _grown(case, row, rng)
    raise RuntimeError(f"no numbers were found for the row {row}: its program amplifies rounding errors")


def _drawn(row: Row, rng: np.random.Generator) -> Case:
    """With several candidates for the inputs and the state of each neuron."""
    tree = PROGRAMS[row["program"]].make()
    tree.detach_reset = row["detach"] == "yes"
    shape, steps, dtype = tuple(COPIED if n > LONGEST else n for n in row.shape), int(row["T"]), row["dtype"]
    compute = "float64" if dtype == "float64" else "float32"
    layouts = [row["x"], *([row["x2"]] if len(tree.inputs) > 1 else [])]
    same = layouts[1:] == ["same"]
    layouts = [(row["x"] if name == "same" else name).replace("-", " ") for name in layouts]
    inputs = [_inputs(rng, steps, shape, layout, dtype) for layout in layouts]
    if same:
        inputs[1] = inputs[0]
    state = {name: values_of(rng, (POOL, *shape), False, compute) for name in tree.states}
    record = tuple(tree.states)[: {"none": 0, "first": 1}.get(row["record"])]
    given, given_layouts = _cotangents(row, rng, tree, (steps, *shape), record)
    around = Around(
        state_layout="contiguous" if row["state"] == "rest" else row["state"].replace("-", " "),
        param_layout=row["param_layout"].replace("-", " "),
        param_dtype=row["param_dtype"],
        cotangent_layouts=given_layouts,
        same_input=same,
        inputs_wanted=tree.inputs[-1:] if row["wanted"] == "last-input" else None,
        flat_channels=True,
    )
    return Case(
        row.seed, tree, dtype, all(node.op in EXACT or not node.args for node in order(tree.roots)), shape, inputs,
        layouts, None if row["state"] == "rest" else state, _params(row, rng, shape), row.kinds, row.learn, record,
        given, "contiguous", (row["wanted"] in ("inputs", "both", "last-input"), row["wanted"] in ("state", "both")),
        row["call"] == "short", *_later(), around,
    )  # fmt: skip


def _later() -> Tuple[Any, Any]:
    return None, []


def _inputs(rng: np.random.Generator, steps: int, shape: Sequence[int], layout: str, dtype: str) -> Array:
    values = values_of(rng, (1 if layout == "one step" else steps, POOL, *shape), bool(rng.random() < 0.3), dtype)
    return np.broadcast_to(values, (steps, POOL, *shape))


def _params(row: Row, rng: np.random.Generator, shape: Sequence[int]) -> Dict[str, Array]:
    values = {}
    channels = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else ()
    sizes: Dict[str, Tuple[int, ...]] = {"full": tuple(shape), "channel": channels}
    sizes["spread"] = tuple(n if k % 2 else 1 for k, n in enumerate(shape))
    for name, (low, high) in PROGRAMS[row["program"]].ranges.items():
        kind = row.kinds[name]
        size = sizes.get(kind, ())
        drawn = rng.uniform(low, high, () if row["param_layout"] == "one-number" else size)
        if row["value"] == "exact":
            drawn = np.rint(drawn * 8) / 8
        value = np.broadcast_to(drawn, size)
        if kind == "number":
            values[name] = np.asarray(value, np.float64)
        else:
            held = row["param_dtype"]
            values[name] = rounded(value, held) if held != "float64" else np.array(value, np.float64)
    return values


def _cotangents(
    row: Row, rng: np.random.Generator, tree: Tree, size: Tuple[int, ...], record: Sequence[str]
) -> Tuple[Cotangents, Dict[str, str]]:
    """The cotangents, and their layouts by the names of results."""
    compute = "float64" if row["dtype"] == "float64" else "float32"
    layouts: Dict[str, str] = {}

    def some(name: str, layout: str, shape: Tuple[int, ...], dtype: str) -> Array:
        layout = layouts[name] = layout.replace("-", " ")
        kept = (1,) * len(shape) if layout == "one number" else (1, *shape[1:]) if layout == "one step" else shape
        return np.broadcast_to(values_of(rng, kept, False, dtype), shape)

    outputs: List[Optional[Array]] = []
    for k, layout in zip(range(len(tree.outputs)), (row["out"], row["out2"])):
        outputs.append(None if layout == "none" else some(f"output {k}", layout, size, row["dtype"]))
    trace = {n: some(f"trace of {n}", row["trace"], size, compute) for n in record if row["trace"] != "none"}
    names = {"none": [], "last": list(tree.states)[-1:]}.get(row["final"], list(tree.states))
    layout = "contiguous" if row["final"] == "last" else row["final"]
    return Cotangents(outputs, trace, {n: some(f"final {n}", layout, size[1:], compute) for n in names}), layouts


def _changed(given: Cotangents, how: str, rng: np.random.Generator) -> Cotangents:
    """Larger, or NaN in some places; where an array is one number, all of it or nothing."""

    def change(g: Array, factor: float) -> Array:
        if how == "huge":
            return np.asarray(g * g.dtype.type(factor))
        own = g[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in g.strides)]
        return np.broadcast_to(np.where(rng.random(own.shape) < NANS, g.dtype.type(np.nan), own), g.shape)

    return Cotangents(
        [None if g is None else change(g, HUGE) for g in given.outputs],
        {name: change(g, HUGE_STATE) for name, g in given.trace.items()},
        {name: change(g, HUGE_STATE) for name, g in given.final.items()},
    )


# -- many neurons


def _grown(case: Case, row: Row, rng: np.random.Generator) -> Case:
    """The case with every long dimension at its length."""
    for at, length in enumerate(row.shape):
        if length > LONGEST:
            _copied(case, at, rng.integers(COPIED, size=length))
    return case


def _copied(case: Case, at: int, source: Array) -> None:
    """Neurons along a dimension become copies of those that ``source`` names."""
    dims = len(case.shape)

    def steps(value: Array) -> Array:
        return value.take(source, at + 1)

    def one(value: Array) -> Array:
        return value.take(source, at)

    def parameter(value: Array) -> Array:
        own = at - (dims - value.ndim)
        return value.take(source, own) if own >= 0 and value.shape[own] == COPIED else value

    case.shape = (*case.shape[:at], len(source), *case.shape[at + 1 :])
    case.inputs = [steps(x) for x in case.inputs]
    case.state = None if case.state is None else {n: one(v) for n, v in case.state.items()}
    case.params = {n: parameter(v) for n, v in case.params.items()}
    case.given = Cotangents(
        [None if g is None else steps(g) for g in case.given.outputs],
        {n: steps(g) for n, g in case.given.trace.items()},
        {n: one(g) for n, g in case.given.final.items()},
    )
    case.expected, *case.others = [
        Run(
            [steps(v) for v in run.outputs],
            {n: steps(v) for n, v in run.trace.items()},
            {n: one(v) for n, v in run.final.items()},
            one(run.decided),
            [steps(v) for v in run.inputs],
            {n: one(v) for n, v in run.state.items()},
            {n: one(v) for n, v in run.params.items()},
            {n: one(v) for n, v in run.sizes.items()},
        )
        for run in (case.expected, *case.others)
    ]
