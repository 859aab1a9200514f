"""What a generated case is made of, as data: factors, their levels, and the levels that exclude one another.

The first level of each factor is the simplest: a row that does not name a factor has it, and shrinking moves there.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, List, Tuple

from spikecore.testing._generated.programs import PROGRAMS
from spikecore.testing._tolerances import OTHER_DTYPES

_OF_INPUT = ("contiguous", "batch-first", "permuted", "every-other", "part", "one-step")
_OF_COTANGENT = ("permuted", "every-other", "one-number")

FACTORS: Dict[str, Tuple[str, ...]] = {
    #: Time steps. Up to 16 they are a constant of a compiled runner.
    "T": ("1", "2", "15", "16", "17", "31", "32", "33", "64", "100", "250", "0"),
    #: Dimensions of one time step. Three are past 2^16 or 2^17 neurons.
    "size": ("7", "1", "3x5", "2x3x7", "2x3x1x2x3", "none", "3x0", "65539", "131101", "2x3x21851"),
    "dtype": ("float32", *OTHER_DTYPES),
    "program": tuple(PROGRAMS),
    "detach": ("no", "yes"),
    #: Of the parameters. ``spread`` is a tensor with dimensions of one, ``mixed`` one kind after another.
    "kind": ("number", "scalar", "channel", "full", "spread", "mixed"),
    #: ``inexact``: no multiple of a small power of two; as a number or in a float64 tensor, none of float32.
    "value": ("exact", "inexact"),
    #: Of parameters that are tensors.
    "param_dtype": ("float32", *OTHER_DTYPES),
    "param_layout": ("contiguous", "permuted", "every-other", "one-number"),
    "learn": ("none", "first", "all"),
    #: The start: at rest, or a given state of this layout.
    "state": ("rest", "contiguous", "permuted", "every-other", "part"),
    "record": ("none", "first", "all"),
    #: Which gradients are asked for, beside those of learnt parameters.
    "wanted": ("inputs", "nothing", "state", "both", "last-input"),
    "x": _OF_INPUT,
    #: The second input; ``same`` is the very tensor that is the first.
    "x2": ("contiguous", "permuted", "every-other", "one-step", "same"),
    #: Layouts of cotangents, ``none`` where none arrives: of the first output, the second, traces, final states.
    "out": ("contiguous", "none", "one-step", *_OF_COTANGENT),
    "out2": ("none", "contiguous", *_OF_COTANGENT),
    "trace": ("none", "contiguous", *_OF_COTANGENT),
    "final": ("none", "contiguous", "last", *_OF_COTANGENT),
    #: ``huge``: gradients overflow in float16. ``nan``: some are not a number.
    "cotangents": ("plain", "huge", "nan"),
    #: ``short``: the call that hands out no state.
    "call": ("run", "short"),
}

Pair = Tuple[str, str, str, str]


def _those(factor: str, holds: Callable[[str], bool]) -> List[str]:
    return [level for level in FACTORS[factor] if holds(level)]


def _other(factor: str) -> List[str]:
    """All levels but the simplest."""
    return list(FACTORS[factor][1:])


def _excluded() -> FrozenSet[Pair]:
    one_input = _those("program", lambda name: len(PROGRAMS[name].inputs) == 1)
    one_output = _those("program", lambda name: PROGRAMS[name].outputs == 1)
    large = _those("size", lambda size: neurons(size) > 10_000)
    flat = _those("size", lambda size: size == "none" or "x" not in size)
    rules = [
        # the second input, and what has one
        ("x2", _other("x2"), "program", one_input),
        ("wanted", ["last-input"], "program", one_input),
        ("wanted", ["last-input"], "x2", ["same"]),
        ("cotangents", ["huge"], "x2", ["same"]),  # two infinities may meet in the sum
        ("out2", _other("out2"), "program", one_output),
        # tensors of parameters
        *(("kind", ["number"], name, _other(name)) for name in ("param_dtype", "param_layout", "learn")),
        ("kind", ["scalar"], "param_layout", _other("param_layout")),
        ("kind", ["channel", "spread"], "size", flat),
        ("kind", ["full", "mixed"], "size", ["none"]),
        # what is recorded, given and handed out
        ("record", ["none"], "trace", _other("trace")),
        ("state", ["rest"], "wanted", ["state", "both"]),
        *(("call", ["short"], name, _other(name)) for name in ("state", "record", "final", "trace")),
        ("call", ["short"], "wanted", ["state", "both"]),
        # time: many neurons take few steps; programs that amplify small differences are short
        ("size", large, "T", _those("T", lambda steps: int(steps) not in (1, 2, 17))),
        ("program", ["drawn"], "T", _those("T", lambda steps: int(steps) > 33)),
        # float16 holds no sum over so many neurons
        ("size", large, "param_dtype", ["float16"]),
        ("size", large, "cotangents", ["huge"]),
    ]
    return frozenset(
        pair
        for one, ones, other, others in rules
        for a in ones
        for b in others
        for pair in ((one, a, other, b), (other, b, one, a))
    )


def dimensions(size: str) -> Tuple[int, ...]:
    """The shape of one time step."""
    return () if size == "none" else tuple(int(length) for length in size.split("x"))


def neurons(size: str) -> int:
    """How many numbers one time step has."""
    count = 1
    for length in dimensions(size):
        count *= length
    return count


EXCLUDED = _excluded()


def agree(one: str, level: str, other: str, level_of_other: str) -> bool:
    """Whether two levels can be in one row."""
    return (one, level, other, level_of_other) not in EXCLUDED
