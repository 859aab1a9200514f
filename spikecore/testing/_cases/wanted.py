"""Which gradients are wanted, and which arrive: each alone, some, all, none."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject
from spikecore.testing._turning import TURN

_INPUTS, _STATES, _PARAMS = ("x", "y"), ("a", "b", "c"), ("leak", "gain", "start")
_EVERY = (*_INPUTS, *_STATES, *_PARAMS)
_RESULTS = ("output 0", "output 1", "final a", "final b", "final c", "trace a", "trace b", "trace c")
_NEEDS = ("gradients", "parameter_gradients", "state_gradients", "record", "several_inputs", "several_outputs")


class Wanted(NamedTuple):
    """What requires a gradient, and the results that have a cotangent."""

    of: Tuple[str, ...] = _EVERY
    given: Tuple[str, ...] = _RESULTS
    rest: bool = False


#: Case -> what is wanted and given.
TABLE: Dict[str, Wanted] = {
    "first-input-only": Wanted(("x",)),
    "second-input-only": Wanted(("y",)),
    "states-only": Wanted(_STATES),
    "one-state-only": Wanted(("b",)),
    "parameters-only": Wanted(_PARAMS),
    "one-parameter-only": Wanted(("gain",)),
    "starting-parameter-only": Wanted(("start",), rest=True),
    "one-of-each": Wanted(("y", "c", "leak")),
    "inputs-and-states": Wanted((*_INPUTS, *_STATES)),
    "inputs-and-parameters": Wanted((*_INPUTS, *_PARAMS), rest=True),
    "states-and-parameters": Wanted((*_STATES, *_PARAMS[:2])),
    "everything": Wanted(),
    "from-first-output-only": Wanted(given=("output 0",)),
    "from-second-output-only": Wanted(given=("output 1",)),
    "from-final-state-only": Wanted(given=("final a", "final b", "final c")),
    "from-one-final-state-only": Wanted(given=("final c",)),
    "from-trace-only": Wanted(given=("trace a", "trace b", "trace c")),
    "from-one-trace-only": Wanted(given=("trace b",)),
    "parameters-from-trace-only": Wanted(_PARAMS, ("trace a",), rest=True),
    "parameters-from-final-state-only": Wanted(_PARAMS, ("final b",), rest=True),
    "parameters-from-second-output-only": Wanted(_PARAMS, ("output 1",), rest=True),
}


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of state."""
    for name, wanted in TABLE.items():
        cases.add(
            f"wanted/{name}",
            "state",
            "what requires a gradient gets that of the results that have a cotangent; nothing else gets one",
            partial(some, wanted=wanted),
            _NEEDS,
        )
    cases.add(
        "wanted/none",
        "state",
        "where nothing requires a gradient, or under no_grad, results require none",
        nothing,
        ("record", "several_inputs", "several_outputs"),
    )
    for name in ("same", "view"):
        cases.add(
            f"wanted/one-tensor-for-both-inputs-{name}",
            "state",
            "one tensor given as both inputs gets the sum of both gradients",
            partial(twice, view=name == "view"),
            _NEEDS,
        )
    cases.add(
        "wanted/one-tensor-for-all-states",
        "state",
        "one tensor given as every state gets the sum of their gradients",
        one_state,
        _NEEDS,
    )


def _subject(context: Context, learn: Sequence[str] = (), state: bool = True) -> Subject:
    return Subject(context, TURN, "none", shape=(6, 3, 5), state=state, learn=tuple(learn))


def _run(s: Subject, xs: Sequence[Tensor], start: Any) -> Dict[str, Tensor]:
    output, final, trace = s.neuron.run(*xs, state=start, record=_STATES)
    named = {f"output {i}": one for i, one in enumerate(output)}
    named.update({f"final {name}": final[name] for name in _STATES})
    named.update({f"trace {name}": trace[name] for name in _STATES})
    return named


def some(context: Context, wanted: Wanted) -> None:
    """The leaves that are wanted, against the oracle; the others have no gradient."""
    s = _subject(context, [name for name in _PARAMS if name in wanted.of], not wanted.rest)
    xs = [x.requires_grad_(name in wanted.of) for name, x in zip(_INPUTS, s.xs())]
    start = s.start()
    for name, value in (start or {}).items():
        value.requires_grad_(name in wanted.of)
    results = _run(s, xs, start)
    cotangents = {name: s.cotangent(results[name]) for name in wanted.given}
    s.cotangents = cotangents
    # a result that nothing wanted leads to may be without a graph
    connected = [name for name in cotangents if results[name].requires_grad] or list(cotangents)
    of = f"{', '.join(wanted.given)} of {s.of}"
    backward(of, [results[name] for name in connected], [cotangents[name] for name in connected])
    right = s.gradients(
        [cotangents.get(f"output {i}") for i in range(2)],
        {name: cotangents[f"final {name}"] for name in _STATES if f"final {name}" in cotangents},
        {name: cotangents[f"trace {name}"] for name in _STATES if f"trace {name}" in cotangents},
    )
    expected = {**dict(zip(_INPUTS, right.inputs)), **right.state, **right.params}
    leaves = {**dict(zip(_INPUTS, xs)), **(start or {}), **dict(s.neuron.named_parameters())}
    for name, leaf in leaves.items():
        if name not in wanted.of:
            if leaf.grad is not None:
                raise Mismatch(f"{name} of {s.of} requires no gradient and got one")
            continue
        quantity = "input gradient" if name in _INPUTS else f"{'state' if name in _STATES else 'parameter'} gradient"
        grad = torch.zeros_like(leaf) if leaf.grad is None and not np.any(expected[name]) else leaf.grad
        words = f"{name}, with cotangents of {', '.join(wanted.given)} alone,"
        s.check(quantity, grad, expected[name], name=words, of=name)


def nothing(context: Context) -> None:
    """Numbers as parameters; then leaves that require gradients, under ``no_grad``."""
    s = _subject(context)
    for what, results in (("of plain tensors", _run(s, s.xs(), s.start())), ("under no_grad", _without(s))):
        for name, value in results.items():
            if value.requires_grad or value.grad_fn is not None:
                raise Mismatch(f"{name} of {s.of}, {what}, requires a gradient: what does it keep for a backward pass?")
        s.check_outputs((results["output 0"], results["output 1"]), f" {what}")


def _without(s: Subject) -> Dict[str, Tensor]:
    xs, start = s.xs(grad=s.context.declares("gradients")), s.start()
    with torch.no_grad():
        return _run(s, xs, start)


def twice(context: Context, view: bool) -> None:
    """The tensor itself, or a view of it."""
    s = _subject(context, _PARAMS[:2])
    s.takes([s.inputs[0], s.inputs[0]])
    x = s.xs(grad=True)[0]
    results = _run(s, [x, x.view_as(x) if view else x], s.start())
    outputs = [results["output 0"], results["output 1"]]
    s.check_outputs(tuple(outputs), " of one tensor given twice")
    cotangents = [s.cotangent(one) for one in outputs]
    backward(s.of, outputs, cotangents)
    expected = s.gradients(cotangents)
    both = expected.inputs[0] + expected.inputs[1]
    parts = {"of the first input alone": lambda: expected.inputs[0], "of the second alone": lambda: expected.inputs[1]}
    s.check("input gradient", x.grad, both, name="one tensor given as both inputs", suspects=parts)


def one_state(context: Context) -> None:
    """The same tensor for a, b and c."""
    s = _subject(context)
    held = (s.state or {})["a"]
    s.takes(s.inputs, dict.fromkeys(_STATES, held))
    value = (s.start() or {})["a"].requires_grad_()
    results = _run(s, s.xs(), dict.fromkeys(_STATES, value))
    outputs: List[Tensor] = [results["output 0"], results["output 1"]]
    s.check_outputs(tuple(outputs), " from one tensor as every state")
    cotangents = [s.cotangent(one) for one in outputs]
    backward(s.of, outputs, cotangents)
    total = sum(s.gradients(cotangents).state.values())
    s.check("state gradient", value.grad, np.asarray(total), name="one tensor given as every state")
    if not np.array_equal(as_array(value), held):
        raise Mismatch(f"the state given to {s.of} was written to")
