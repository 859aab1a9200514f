"""The language: every operation, neurons and surrogates as users write them, and programs as nobody writes them."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any, Callable, Dict, Mapping, Tuple

import numpy as np

import spikecore as sc
from spikecore.lang.dialects import WORDS
from spikecore.lang.operations import COMPOSED, ROWS
from spikecore.testing._case import Collection
from spikecore.testing._cases.rows import BACK, BOTH
from spikecore.testing._config import Config
from spikecore.testing._config_check import add_row
from spikecore.testing._context import Context
from spikecore.testing._oracle.rules import BACK as RULES
from spikecore.testing._oracle.rules import EXACT
from spikecore.testing._subject import subject
from spikecore.testing.compare import as_array, same
from spikecore.testing.models import Model, as_written, described
from spikecore.testing.naming import ROLES, Naming, awkward, namings, results, usable
from spikecore.testing.tolerances import TOLERANCES

CASES = Collection()
_LEARN = ("gradients", "parameter_gradients")
Next = Tuple[Any, Dict[str, Any]]


def _case(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
    return CASES.case(name, "language", holds, *needs, **more)


# -- operations

#: ``(neuron, ops, x, c) -> y`` for what is not a function of :data:`ROWS`; ``c`` is a parameter.
_WRITTEN: Dict[str, Callable[..., Any]] = {
    "add": lambda n, ops, x, c: x + c,
    "sub": lambda n, ops, x, c: c - x,
    "mul": lambda n, ops, x, c: x * c,
    "div": lambda n, ops, x, c: c / x,
    "neg": lambda n, ops, x, c: -x,
    "clamp": lambda n, ops, x, c: ops.clamp(x, -1.0, 1.5),
    "clamp-below": lambda n, ops, x, c: ops.clamp(x, low=c),
    "round-straight-through": lambda n, ops, x, c: ops.round(x, straight_through=True),
    "floor-straight-through": lambda n, ops, x, c: ops.floor(x, straight_through=True),
    "detach": lambda n, ops, x, c: ops.detach(x * x) * x,
    "select": lambda n, ops, x, c: ops.select(n.spike(x - c), x * x, c),
    "spike": lambda n, ops, x, c: n.spike(x - c),
    "spike-strict": lambda n, ops, x, c: n.spike(x - c, strict=True),
    # two thresholds and two surrogates: +1, -1 or 0
    "spike-ternary": lambda n, ops, x, c: n.spike(x - c, surrogate=replace(n.surrogate, alpha=5.0)) - n.spike(-x - c),
    # the width follows a parameter, to which no gradient flows on that way
    "spike-width": lambda n, ops, x, c: n.spike(x - c, surrogate=replace(n.surrogate, alpha=2.0 / c)),
    "ge": lambda n, ops, x, c: ops.where(x >= c, x * x, c),
    "gt": lambda n, ops, x, c: ops.where(x > c, x * x, c),
    "le": lambda n, ops, x, c: ops.where(x <= c, x * x, c),
    "lt": lambda n, ops, x, c: ops.where(x < c, x * x, c),
    "eq": lambda n, ops, x, c: ops.where(x == c, x * x, c),
    "ne": lambda n, ops, x, c: ops.where(x != c, x * x, c),
    "and": lambda n, ops, x, c: ops.where((x > -c) & (x <= c), x * x, c),
    "or": lambda n, ops, x, c: ops.where((x < -c) | (x >= c), x * x, c),
    "not": lambda n, ops, x, c: ops.where(~(x > c), x * x, c),
}
#: Name of a function of the language -> number of its arguments.
_FUNCTIONS = {
    **{row.name: row.arity for row in ROWS if row.is_function and row.arity < 3 and row.name not in _WRITTEN},
    **{name: len(signature(formula).parameters) for name, formula in COMPOSED.items()},
}
#: Those whose other argument has no gradient.
_ALONE = (
    "neg",
    "clamp",
    "round-straight-through",
    "floor-straight-through",
    "detach",
    *(name for name, arity in _FUNCTIONS.items() if arity == 1),
)
#: Those with an infinite derivative somewhere, which get positive inputs, and a function with poles.
_POSITIVE = {"div", "rsqrt", *(row.name for row in ROWS if row.is_function and row.unbounded)}
_DRIVES = {**dict.fromkeys(_POSITIVE, (0.125, 3.25)), "tan": (-1.25, 1.25)}


def operation(name: str) -> Model:
    """One operation, summed up by a leak: ``v' = v / 2 + op(x, c)``; its output is ``v'``."""
    arity = _FUNCTIONS.get(name)
    write = _WRITTEN.get(name, lambda n, ops, x, c: getattr(ops, name)(*(x, c)[:arity]))

    class Apply(sc.Neuron):
        states = {"v": 0.0}
        params = {"c": 0.75}

        def dynamics(self, x: Any, s: Any, p: Any) -> Next:
            v = s.v * 0.5 + write(self, sc.ops, x, p.c)
            return v, {"v": v}

    exact: Dict[str, Any] = {"arithmetic": arity is None or name in EXACT, "outputs": ("output",), "resets": ("none",)}
    drive = _DRIVES.get(name, (-2.5, 3.25))
    return described(Apply, name, drive, "c=0.75", twin=as_written(Apply), exact_resets=(), **exact)


def _add_operations() -> None:
    for name in (*_FUNCTIONS, *_WRITTEN):
        model = operation(name)
        config = Config(model, "none", shape=(3, 14), bits=model.arithmetic)
        add_row(CASES, f"language/{name}", "language", "this operation has its value", config)
        holds = "this operation has its derivative"
        if name in _WRITTEN or name in RULES:
            add_row(CASES, f"language/{name}-gradient", "language", holds, replace(config, **BACK))
        if name not in _ALONE:
            learnt = replace(config, **{**BACK, "wanted": (), "learn": ("c",)})
            add_row(CASES, f"language/{name}-parameter", "language", f"{holds} by the other argument", learnt)


_add_operations()

# -- neurons


@_case("custom/same-name", "two neurons of one name and other equations are two")
def _same_name(context: Context) -> None:
    """Classes made in a function, as in a notebook's cell that is run again."""

    def made(gain: float) -> Any:
        class Gain(sc.Neuron):
            states: Mapping[str, Any] = {"v": 0.0}

            def dynamics(self, x: Any, s: Any, p: Any) -> Next:
                return x * gain + s.v, {"v": s.v}

        return Gain(backend=context.name)

    x = np.asarray([[1.0, 2.0, 3.0]])
    for gain in (2.0, 3.0):
        neuron = made(gain)
        same(f"x * {gain}", repr(neuron), as_array(neuron(context.tensor(x))), x * gain)


@_case("custom/configured", "one class configured twice is two programs")
def _configured(context: Context) -> None:
    """The same neuron object, its reset changed between calls."""
    hard, soft = subject(context, "lif", "hard"), subject(context, "lif", "soft")
    hard.check_outputs(hard.neuron(hard.x()))
    soft.check_outputs(soft.neuron(soft.x()))
    hard.neuron.reset = "soft"
    soft.check_outputs(hard.neuron(soft.x()), " after reset was changed to 'soft'")


# -- names

#: Names of kernels' own values, of C, Python, NumPy, CUDA and Triton: as many for each of the five roles.
_NAMES = "j i t0 n N T out grad_x sum count begin at M_PI INFINITY tl np math auto range float32".split()
_NEEDS = (
    *(*_LEARN, "state_gradients", "channel_parameters", "full_parameters"),
    *("record", "several_outputs", "several_inputs"),
)


@_case("language/names", "a user's names may be those of anything in a kernel", *_NEEDS)
def _names(context: Context) -> None:
    """Every name in every role: local variable, parameter, state, input, field of a surrogate."""
    for naming in namings(usable(_NAMES), len(_NAMES)):
        _as_under_harmless_names(context, naming)


@_case("language/words", "a user's names may be words of any language that kernels are printed in", *_NEEDS)
def _words(context: Context) -> None:
    """Words drawn from those of all dialects of C, eight for each role."""
    drawn = np.random.default_rng(context.seed("words", 3)).permutation(usable(WORDS))[: 8 * len(ROLES)]
    _as_under_harmless_names(context, next(namings([str(word) for word in drawn], len(drawn))))


@_case("language/long-names", "names may be long, beyond ASCII, and no identifiers for a class", *_NEEDS[:-1])
def _long_names(context: Context) -> None:
    """500 letters, Greek and German ones, and a class whose name has quotes and a line break."""
    _as_under_harmless_names(context, awkward())


def _as_under_harmless_names(context: Context, naming: Naming) -> None:
    device = str(context.device)
    ours, expected = results(naming, context.name, device), results(naming.harmless(), context.name, device)
    for (what, value), right in zip(ours.items(), expected.values()):
        near = TOLERANCES["float32", "parameter gradient" if what.startswith("gradient") else "output"]
        same(f"{what}, as under other names,", repr(naming), as_array(value), as_array(right), near)


# -- many values, and many operations

#: Inputs, outputs and states of :class:`Many`; it has twice as many parameters.
COUNT = 18
#: Of one term to the next in :class:`Deep`.
RATIO = 0.99


class Many(sc.Neuron):
    """``y_k = s_k + p_k x_k`` and ``s_k' = s_k / 2 + q_k x_(k + 1)``, for each k."""

    inputs = tuple(f"x{k}" for k in range(COUNT))
    states = {f"s{k}": 0.0 for k in range(COUNT)}
    params = {**{f"p{k}": 1.0 for k in range(COUNT)}, **{f"q{k}": 1.0 for k in range(COUNT)}}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """One after the other."""
        xs = [getattr(x, f"x{k}") for k in range(COUNT)]
        outputs = tuple(getattr(s, f"s{k}") + xs[k] * getattr(p, f"p{k}") for k in range(COUNT))
        after = {f"s{k}": getattr(s, f"s{k}") * 0.5 + xs[(k + 1) % COUNT] * getattr(p, f"q{k}") for k in range(COUNT)}
        return outputs, after


class Deep(sc.Neuron):
    """Hundreds of operations, one in the other, of inputs and of parameters alone."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        """Both sums, term by term."""
        y, c = x, p.a
        for k in range(220):
            y = y * RATIO + s.v
            c = c * 0.25 + p.a if k < 60 else c
        return y, {"v": x * c}


def _add_large() -> None:
    numbers = " ".join(f"p{k}={1 + k / 8} q{k}={2 - k / 16}" for k in range(COUNT))
    outputs = ("output",) * COUNT
    many = described(
        Many, "many", (-1.0, 1.0), numbers, twin=as_written(Many, outputs=COUNT), resets=("none",), outputs=outputs
    )
    holds = f"{COUNT} inputs, states and outputs and {2 * COUNT} parameters: each has its own value and gradient"
    config = Config(many, "none", shape=(3, 5), bits=True, call="run", wanted=("inputs",), given=("outputs",))
    add_row(CASES, "language/many", "language", holds, replace(config, params="scalar", learn=("*",)))
    deep = described(Deep, "deep", (0.0, 1.0), "a=0.5", twin=as_written(Deep), resets=("none",), outputs=("output",))
    holds = "hundreds of operations, one in the other, are computed: Python's parser stops at 200 parentheses"
    config = Config(deep, "none", shape=(3, 2, 3), params="channel", learn=("*",), **BOTH)
    add_row(CASES, "language/deep", "language", holds, config)


_add_large()
