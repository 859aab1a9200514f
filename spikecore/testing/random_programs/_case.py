"""Everything around a drawn neuron: sizes, values, layouts, dtypes, parameters, states, cotangents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from spikecore import dtypes
from spikecore.testing._oracle.rules import EXACT, Array
from spikecore.testing.random_programs._draw import Drawing
from spikecore.testing.random_programs._oracle import Cotangents, Oracle, Run
from spikecore.testing.random_programs._tree import Tree, order

DTYPES = ("float32", *(name for name in dtypes.DTYPES if name != "float32"))
LAYOUTS = ("contiguous", "contiguous", "permuted", "batch first", "every other", "part", "one step")
#: Inputs that are drawn for each neuron, of which the first good one is taken; and how often errors are tried.
POOL, TRIES = 5, 3
#: A neuron whose numbers grow beyond this, or hang on the last digit so much, is not taken.
LARGEST, LOOSEST = 1e3, 1e-2


@dataclass(frozen=True)
class Around:
    """How a neuron's tensors are made, where a case says more than what is drawn for every program."""

    state_layout: str = "contiguous"
    param_layout: str = "contiguous"
    #: dtype of parameters that are tensors; None for that of their values.
    param_dtype: Optional[str] = None
    #: Result -> layout of its cotangent, instead of one for all.
    cotangent_layouts: Mapping[str, str] = field(default_factory=dict)
    #: Whether the second input is the very tensor that is the first.
    same_input: bool = False
    #: Inputs whose gradient is wanted, where ``Case.wanted`` says that those of inputs are; None for all.
    inputs_wanted: Optional[Tuple[str, ...]] = None
    #: Whether a parameter with one value per channel has one dimension.
    flat_channels: bool = False


@dataclass
class Case:
    """A neuron, its arguments, and what it must give."""

    seed: int
    tree: Tree
    dtype: str
    #: Whether every backend must give the very bits of outputs and states.
    exact: bool
    shape: Tuple[int, ...]
    inputs: List[Array]
    layouts: List[str]
    state: Optional[Dict[str, Array]]
    params: Dict[str, Array]
    #: name -> "number", "scalar", "channel" or "full".
    kinds: Dict[str, str]
    learn: Tuple[str, ...]
    record: Tuple[str, ...]
    given: Cotangents
    cotangent_layout: str
    #: Whether gradients of the inputs, and of a given state, are asked for.
    wanted: Tuple[bool, bool]
    #: Whether the short call is made, which hands out no state.
    short: bool
    expected: Run
    others: List[Run]
    around: Around = Around()

    @property
    def compute(self) -> Any:
        """The dtype of arithmetic."""
        return np.float64 if self.dtype == "float64" else np.float32


def rounded(values: Any, dtype: str) -> Array:
    """The values as a tensor of this dtype would hold them, in float32 or float64."""
    if dtype == "float64":
        return np.asarray(values, np.float64)
    values = np.asarray(values, np.float32)
    return NARROWED[dtype](values) if dtype in dtypes.NARROW else np.asarray(values)


def _as_float16(values: Array) -> Array:
    return np.asarray(values.astype(np.float16).astype(np.float32))


def _as_bfloat16(values: Array) -> Array:
    bits = values.view(np.uint32).astype(np.uint64)
    # every number is a uint64: older NumPy makes float64 of a 0-d uint64 and a Python int
    bits = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16) << np.uint64(16)
    return np.asarray(bits.astype(np.uint32).view(np.float32).reshape(values.shape))


#: Narrow dtype -> float32 values rounded as a tensor of that dtype would hold them.
NARROWED: Dict[str, Callable[[Array], Array]] = {"float16": _as_float16, "bfloat16": _as_bfloat16}


def draw(seed: int, dtypes: Sequence[str] = DTYPES, hostile: bool = True, inexact: Sequence[str] = ()) -> Case:
    """The case of a seed. ``inexact`` are operations that a backend need not round correctly."""
    rng = np.random.default_rng(seed)
    while True:
        case = _attempt(seed, rng, dtypes, hostile, EXACT - set(inexact))
        if case is not None:
            return case


def _attempt(seed: int, rng: np.random.Generator, dtypes: Sequence[str], hostile: bool, exact: Any) -> Optional[Case]:
    drawing = Drawing(rng, bool(rng.random() < 0.5), hostile)
    tree = drawing.tree()
    one, chance = drawing.one, drawing.chance
    dtype = one([d for d in ("float32", *DTYPES) if d in dtypes])
    steps = int(one((0, 1, 2, 3, 5, 9, 16, 17, 23, 33, 48, 70))) if chance(0.5) else int(one((1, 2, 3, 4, 7)))
    shape = one(((1,), (5,), (33,), (3, 5), (2, 4), (2, 3, 5), (1, 2, 3, 2), (3, 7)))
    params, kinds = _params(drawing, tree, shape)
    levels = chance(0.5)
    layouts = [one(LAYOUTS) for _ in tree.inputs]
    pool = [values_of(rng, (1 if kind == "one step" else steps, POOL, *shape), levels, dtype) for kind in layouts]
    pool = [np.broadcast_to(x, (steps, *x.shape[1:])) for x in pool]
    compute = "float64" if dtype == "float64" else "float32"
    state = {n: values_of(rng, (POOL, *shape), levels, compute) for n in tree.states} if chance(0.4) else None
    short = state is None and chance(0.3)
    record = () if short else tuple(n for n in tree.states if chance(0.3))
    given = _cotangents(drawing, tree, (steps, *shape), dtype, compute, record, short)
    case = Case(
        seed, tree, dtype, all(n.op in exact or not n.args for n in order(tree.roots)), shape, pool, layouts,
        state, params, kinds, tuple(n for n in tree.params if kinds[n] != "number" and chance(0.6)), record, given,
        one(("contiguous", "permuted", "one step", "every other")), (chance(0.8), chance(0.6)), short, *_none(),
    )  # fmt: skip
    return case if settled(case, rng) else None


def settled(case: Case, rng: np.random.Generator) -> bool:
    """Choose, of the inputs and states that were drawn for each neuron (``[T, POOL, ...]``), the first good ones.

    Fills in what the case must give. False where a neuron has no good ones, or what was chosen is not good together.
    """
    given, pool, state = case.given, case.inputs, case.state
    spread = Cotangents(
        [None if g is None else g[:, None] for g in given.outputs],
        {n: g[:, None] for n, g in given.trace.items()},
        {n: g[None] for n, g in given.final.items()},
    )
    runs = runs_of(case, rng, pool, state, spread)
    good = _good(runs)
    if not good.any(axis=0).all():
        return False
    first = good.argmax(axis=0)[None]
    case.inputs = [np.take_along_axis(x, first[None], axis=1)[:, 0] for x in pool]
    for x, kind in zip(case.inputs, case.layouts):
        if kind == "one step" and not (x == x[:1]).all():
            return False
    case.state = {n: np.take_along_axis(v, first, axis=0)[0] for n, v in state.items()} if state is not None else None
    case.expected, *case.others = runs_of(case, rng, case.inputs, case.state, given)
    return bool(_good([case.expected, *case.others]).all())


def _none() -> Tuple[Any, Any]:
    return None, []


def values_of(rng: np.random.Generator, shape: Sequence[int], levels: bool, dtype: str) -> Array:
    """Random numbers of a dtype; with ``levels`` they are quarters."""
    if levels:  # few binary digits: ties and thresholds are met exactly
        return rounded(rng.integers(-8, 13, tuple(shape)) / 4.0, dtype)
    return rounded(rng.uniform(-2.0, 3.0, tuple(shape)), dtype)


def _params(drawing: Drawing, tree: Tree, shape: Sequence[int]) -> Tuple[Dict[str, Array], Dict[str, str]]:
    values, kinds = {}, {}
    for name in tree.params:
        kind = drawing.one(("number", "number", "scalar", "full", *(("channel", "channel") if len(shape) > 1 else ())))
        size = {"number": (), "scalar": (), "full": tuple(shape)}.get(kind)
        if size is None:
            size = (shape[1], *(1,) * (len(shape) - 2))
        value = drawing.rng.uniform(0.5, 2.5, size) if drawing.chance(0.5) else drawing.rng.integers(4, 20, size) / 8.0
        # a number is Python's and need not be one of float32
        values[name], kinds[name] = np.asarray(value, np.float64 if kind == "number" else np.float32), kind
        tree.params[name] = float(values[name]) if kind == "number" else tree.params[name]
    return values, kinds


def _cotangents(
    drawing: Drawing, tree: Tree, size: Tuple[int, ...], dtype: str, compute: str, record: Sequence[str], short: bool
) -> Cotangents:
    def some(shape: Tuple[int, ...], kind: str) -> Array:
        return values_of(drawing.rng, shape, drawing.chance(0.5), kind)

    outputs = [some(size, dtype) if drawing.chance(0.8) else None for _ in tree.outputs]
    if short and all(g is None for g in outputs):
        outputs[0] = some(size, dtype)
    trace = {name: some(size, compute) for name in record if drawing.chance(0.7)}
    final = {} if short else {name: some(size[1:], compute) for name in tree.states if drawing.chance(0.4)}
    return Cotangents(outputs, trace, final)


def runs_of(
    case: Case,
    rng: np.random.Generator,
    inputs: Sequence[Array],
    state: Optional[Mapping[str, Array]],
    given: Cotangents,
) -> List[Run]:
    """Without errors, and with."""
    errors = [np.random.default_rng(int(rng.integers(1 << 60))) for _ in range(TRIES)]
    return Oracle(case.tree, case.params, case.compute, errors).runs(inputs, state, given)


def _good(runs: Sequence[Run]) -> Array:
    """Which neurons stay in range and do not hang on the last digit."""
    base, *others = runs
    fine = np.ones(base.decided.shape, bool)
    for other in others:
        fine &= other.decided == base.decided
    with np.errstate(all="ignore"):
        for k, wanted in enumerate(_all(base)):
            top = np.abs(wanted).max(axis=0) if wanted.ndim > fine.ndim and len(wanted) else np.abs(wanted)
            fine &= True if not wanted.size else (top < LARGEST)
            for other in others:
                off = np.abs(_all(other)[k] - wanted)
                off = off.max(axis=0) if wanted.ndim > fine.ndim and len(wanted) else off
                fine &= True if not wanted.size else (off <= LOOSEST * (top + 1e-2))
    return fine


def _all(run: Run) -> List[Array]:
    """Every array of a run; those of all steps have one more dimension."""
    return [*run.outputs, *run.trace.values(), *run.inputs, *run.state.values(), *run.params.values()]


__all__ = ["DTYPES", "POOL", "Around", "Case", "draw", "replace", "rounded", "runs_of", "settled", "values_of"]
