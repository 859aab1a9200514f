"""Drawn neurons that neither blow up nor die, and calls of them and of the suite's neurons, by Hypothesis.

Hypothesis draws, shrinks and replays. Names are such that a kernel might use them for itself. What a backend does not
declare is not drawn. A drawn neuron is the text of one step. The library makes a neuron class of it, as of any source.
The oracle runs the same text with :class:`~spikecore.testing._oracle.Value` in the place of inputs, states and
parameters, so it uses nothing of the language.
"""

from __future__ import annotations

import dataclasses
import itertools
import keyword
import linecache
import re
import textwrap
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch

import spikecore as sc
from spikecore.core.checks import COMMON
from spikecore.lang import FROM_TORCH
from spikecore.lang.operations import ROWS
from spikecore.testing._config import Config
from spikecore.testing._inputs import NoInputsError
from spikecore.testing._oracle import Array, Value, distances, ops
from spikecore.testing._oracle.rules import EXACT
from spikecore.testing.models import Model, as_written

try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover  # the named cases do without
    raise ImportError("drawn cases need Hypothesis: pip install 'spikecore[testing]'") from error

Names = Tuple[str, ...]

_count = itertools.count()


@dataclass(frozen=True)
class Program:
    """Declarations of a neuron, and the bodies of its methods."""

    name: str
    inputs: Names
    states: Mapping[str, Union[float, str]]
    params: Mapping[str, float]
    #: Lines of ``dynamics``.
    body: Names
    #: Of each output ``spikes`` or ``output``.
    outputs: Names
    #: The surrogate: its class, its numbers, its derivative in ``u``.
    surrogate: str
    fields: Mapping[str, float]
    derivative: str
    reset_states: Optional[Names] = None
    #: True if every operation is rounded in one way only.
    exact: bool = False

    def __str__(self) -> str:
        """Functions ``dynamics`` and ``derivative`` in Python."""
        body = textwrap.indent("\n".join(self.body), "    ")
        return f"def dynamics(self, x, s, p):\n{body}\n\ndef derivative(self, u):\n    return {self.derivative}\n"

    @property
    def declared(self) -> str:
        """Declarations of the class, in words."""
        return (
            f"class {self.name!r}: inputs {self.inputs}, states {dict(self.states)}, params {dict(self.params)}, "
            f"reset_states {self.reset_states}, surrogate {self.surrogate!r} {dict(self.fields)}"
        )

    @property
    def facts(self) -> Tuple[Names, Names, Names, Names]:
        """Names of inputs, states and parameters, and what outputs are."""
        return self.inputs, tuple(self.states), tuple(self.params), self.outputs

    def functions(self, **space: Any) -> Dict[str, Any]:
        """The functions of the text, which tracebacks can show."""
        text, file = str(self), f"<random program {next(_count)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), space)
        return space

    def model(self) -> Model:
        """The neuron as a case sees it: the library's class beside the oracle."""
        made = self.functions(sc=sc, torch=torch)
        body = {"derivative": made["derivative"], "__annotations__": dict.fromkeys(self.fields, float), **self.fields}
        surrogate: Any = dataclasses.dataclass(frozen=True)(type(self.surrogate, (sc.Surrogate,), body))
        declared = {"inputs": self.inputs, "states": dict(self.states), "params": dict(self.params)}
        more = {"reset_states": self.reset_states, "dynamics": made["dynamics"]}
        neuron: Any = type(self.name, (sc.Neuron,), {**declared, **more})
        here = self.functions(sc=SimpleNamespace(ops=ops), torch=ops)
        return Model(
            self.name,
            neuron,
            as_written(neuron, outputs=len(self.outputs)),
            dict(self.params),
            (-2.0, 3.0),
            resets=("none",),
            arithmetic=self.exact,
            outputs=self.outputs,
            surrogate=WrittenDerivative(surrogate, here["derivative"], self.fields),
        )


class WrittenDerivative:
    """The derivative of a surrogate, by its text."""

    name = "written"
    arguments: Mapping[str, float] = {}  # never written to

    def __init__(self, library: type, function: Any, fields: Mapping[str, float]) -> None:
        self.library, self.function, self.fields = library, function, SimpleNamespace(**fields)

    def __call__(self, u: Array) -> Array:
        """The derivative at ``u``."""
        return np.asarray(self.function(self.fields, Value(u)).array)

    def distances(self, u: Array) -> List[Array]:
        """Distance of ``u`` from each jump."""
        return distances([self.function(self.fields, Value(u))])


# -- drawing

#: Names of kernel frames, of C, CUDA, Triton and NumPy, and other awkward ones.
_AWKWARD = (
    "j i t k n T N V U u0 t0 t1 t2 k0 out out0 outs grad grad_x grad_v sum neurons steps begin end count chunk "
    "whole step adjoint value rounded load store channel channels block_sum hold Pack NULL M_PI HUGE_VAL INFINITY "
    "NAN EOF int float double half bool auto main tl at inside chunks turn first tail BLOCK float32 libdevice "
    "sigmoid scratch width length start stop saved past math np torch_ expf signf lesser greater minimum maximum "
    "clamp select where_ state inputs params x_ v w a b c h z tau rho mask zero one new_v kept between following "
    "sum_tau threadIdx blockIdx assert_ printf τ größe naïve v_before v_next x_step l O "
    "very_long_name_of_a_quantity_that_goes_on_and_on_over_a_whole_line"
).split()
_TAKEN = {*dir(sc.Neuron), *COMMON, "training", *keyword.kwlist}
NAMES = tuple(name for name in _AWKWARD if name not in _TAKEN)

#: Functions of one number that neither grow quickly nor have an argument that is out of range; ``abs`` is drawn apart.
BOUNDED = tuple(
    row.name
    for row in ROWS
    if row.is_function and row.arity == 1 and row.gradient and not row.unbounded and row.name != "abs"
    if float(row.torch(torch.tensor(20.0))) < 21.0
)
#: Operations that torch itself has under the same name, with the same arguments.
_TORCH = {op for name, op in FROM_TORCH.items() if name == op and hasattr(torch, op)} - {"clamp", "detach", "where"}
_NUMBER = re.compile(r"\(?-?[0-9.e-]+\)?")
_CLASSES = ("Neuron 1", "2nd", "a-b", "größer", "int", "Lif")
_COMPARISONS = (">=", ">", "<=", "<", "==", "!=")


class _Drawing:
    """One neuron in the making: expressions as text."""

    def __init__(self, draw: Any, can: Callable[..., bool], exact: Any, fixed: bool = False) -> None:
        self.draw, self.can, self.exact, self.fixed = draw, can, exact, fixed
        self.names: List[str] = list(draw(st.permutations(NAMES)))
        self.by_torch = self.chance()
        self.leaves: List[str] = []
        self.params: List[str] = []

    def one(self, of: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(of))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def name(self) -> str:
        return self.names.pop()

    def const(self, *values: float) -> str:
        """A number, mostly one with few binary digits."""
        value = self.one(values or (0.5, 0.25, 1.0, 1.5, 2.0, -0.5, -1.0, 0.75, 0.1, 0.7, 1e-3))
        return repr(value) if value >= 0 else f"({value!r})"

    def call(self, op: str, *args: str) -> str:
        # torch's own functions take no Python number
        torch_too = self.by_torch and op in _TORCH and not any(_NUMBER.fullmatch(arg) for arg in args)
        return f"{'torch' if torch_too else 'sc.ops'}.{op}({', '.join(args)})"

    # -- expressions

    def value(self, depth: int) -> str:
        """An expression with an input, a state or a parameter in it."""
        if depth <= 0:
            return str(self.one(self.leaves))
        kinds = [lambda d: self.value(0), self._infix, self._infix, self._quotient, self._bounded, self._extremum]
        return str(self.one([*kinds, self._choice, self._flat, self._unary])(depth - 1))

    def other(self, depth: int) -> str:
        return self.value(depth) if self.chance() else self.const()

    def sided(self, depth: int) -> Tuple[str, str]:
        pair = self.value(depth), self.other(depth)
        return pair if self.chance() else pair[::-1]

    def _infix(self, depth: int) -> str:
        a, b = self.sided(depth)
        return f"({a} {self.one('+-*')} {b})"

    def _quotient(self, depth: int) -> str:
        if self.params and self.chance():
            return f"({self.value(depth)} / {self.one(self.params)})"
        if self.fixed:
            return f"({self.value(depth)} / {self.const(2.0, 0.7, 3.0)})"
        return f"({self.other(depth)} / {self._away(depth)})"

    def _away(self, depth: int) -> str:
        """An expression that is away from 0."""
        return f"({self.call('abs', self.value(depth))} + {self.const(0.5, 1.0)})"

    def _bounded(self, depth: int) -> str:
        op = self.one(("clamp", *(op for op in (*BOUNDED, "exp", "log", "power") if self.exact is None)))
        if op == "clamp":
            low = self.const(-1.0, -0.5, 0.0) if self.chance() else self.value(0)
            return self.call(op, self.value(depth), low, self.const(0.5, 1.0, 2.0) if self.chance() else self.value(0))
        if op == "exp":
            return self.call(op, self.call("minimum", self.value(depth), self.const(1.0, 0.5)))
        if op == "power":
            exponent = self.one(self.params) if self.params and self.chance() else self.const(2.0, 0.5, -1.0, 1.5)
            return self.call(op, self._away(depth), exponent)
        return self.call(op, self._away(depth) if op == "log" else self.value(depth))

    def _extremum(self, depth: int) -> str:
        return self.call(self.one(("minimum", "maximum")), *self.sided(depth))

    def _flat(self, depth: int) -> str:
        return self.call(self.one(("detach", "sign", "floor", "round")), self.value(depth))

    def _unary(self, depth: int) -> str:
        op = self.one(("neg", "abs", "sqrt"))
        if op == "sqrt" and (self.exact is None or "sqrt" in self.exact):
            return self.call(op, self._away(depth))
        return self.call("abs", self.value(depth)) if op == "abs" else f"(-{self.value(depth)})"

    def condition(self, depth: int) -> str:
        """A comparison, or several combined."""
        op = self.one((*_COMPARISONS, *("~&|" if depth > 0 else "")))
        if op == "~":
            return f"(~{self.condition(depth - 1)})"
        if op in "&|":
            return f"({self.condition(depth - 1)} {op} {self.condition(depth - 1)})"
        return f"({self.value(depth)} {op} {self.other(depth)})"

    def spike(self, depth: int) -> str:
        return f"self.spike({self.value(depth)} - {self.other(depth)}, strict={self.chance()})"

    def _choice(self, depth: int) -> str:
        a, b = self.sided(depth)
        if self.chance():
            return f"sc.ops.select({self.spike(depth)}, {a}, {b})"
        return f"sc.ops.where({self.condition(min(depth, 1))}, {a}, {b})"

    # -- the neuron

    def program(self) -> Program:
        inputs = tuple(self.name() for _ in range(self.one((1, 2, 3) if self.can("several_inputs") else (1,))))
        params = {self.name(): self.draw(st.integers(8, 24)) / 8 for _ in range(self.one((0, 1, 2, 3)))}
        states = {self.name(): self.one((0.0, 0.5, -0.25, *params)) for _ in range(self.one((1, 0, 2, 3)))}
        self.params = [f"p.{name}" for name in params]
        self.leaves = [f"x.{name}" for name in inputs] if len(inputs) > 1 else ["x"]
        self.leaves += [*(f"s.{name}" for name in states), *self.params]
        body = []
        for _ in range(self.one((0, 1, 2, 3))):
            line = self.value(2)
            body.append(f"{self.name()} = {line}")
            self.leaves.append(body[-1].partition(" ")[0])
        following = [f"{name!r}: {self.next(name)}" for name in states]
        kinds = [
            self.one(("output", "spikes")) for _ in range(self.one((1, 2) if self.can("several_outputs") else (1,)))
        ]
        outputs = ", ".join(self.spike(2) if kind == "spikes" else self.value(3) for kind in kinds)
        body.append(f"return {f'({outputs})' if len(kinds) > 1 else outputs}, {{{', '.join(following)}}}")
        fields = {self.name(): self.one((1.0, 0.5, 2.0, 1.25)) for _ in range(self.one((0, 1, 2)))}
        cut = tuple(name for name in states if self.chance()) if self.chance() else None
        names = [self.one(_CLASSES) for _ in range(2)]
        return Program(
            names[0], inputs, states, params, tuple(body), tuple(kinds), names[1], fields,
            self.derivative(list(fields)), cut, self.exact is not None,
        )  # fmt: skip

    def next(self, name: str) -> str:
        """A next value that does not grow without bound, mostly."""
        drive, state = self.value(3), f"s.{name}"
        kind = self.one(("free", "decay", "leak", "reset", "soft"))
        decayed = f"({state} * {self.const(0.5, 0.25, 0.75, 0.9)} + {drive})"
        if kind == "leak":
            return f"({state} + ({drive} - {state}) / {self.const(2.0, 1.5, 3.0)})"
        if kind == "reset":
            return f"sc.ops.select({self.spike(1)}, {self.other(1)}, {decayed})"
        if kind == "soft":
            return f"({decayed} - {self.spike(1)} * {self.const(0.5, 1.0)})"
        return drive if kind == "free" else decayed

    def derivative(self, fields: Sequence[str]) -> str:
        """A surrogate's derivative: smooth, or with jumps."""
        scale = f"self.{self.one(fields)}" if fields else self.const(1.0, 0.5, 2.0)
        size = f"(abs(u) * {scale})" if fields else "abs(u)"
        kind = self.one(("smooth", "jumps", *(("bell",) if self.exact is None else ())))
        if kind == "jumps":
            return f"sc.ops.where(abs(u) < {scale}, {self.const(0.5, 1.0)}, {self.const(0.0, 0.1)} * u)"
        return (
            f"{self.const(0.5, 1.0)} / ({size} + {self.const(1.0, 2.0)})"
            if kind == "smooth"
            else f"sc.ops.exp(-{size})"
        )


def programs(can: Callable[..., bool], fixed: bool = False) -> Any:
    """Drawn neurons of what is declared. fixed: they have the operations of fixed point alone."""

    @st.composite
    def drawn(draw: Any) -> Program:
        if fixed:
            return _Drawing(draw, can, EXACT - {"sqrt"}, fixed).program()
        return _Drawing(draw, can, EXACT if draw(st.booleans()) else None).program()

    return drawn()


def calls(can: Callable[..., bool], dtypes: Names, call: str = "", fixed: bool = False) -> Any:
    """Drawn neurons, each with a call of it: a configuration that lacks the neuron itself."""

    @st.composite
    def drawn(draw: Any) -> Tuple[Program, Config]:
        program = draw(programs(can, fixed))
        steps = (2, 1, 3, 5, 7, 16, 17, 33, 48) if call else (2, 1, 3, 0, 5, 9, 16, 17, 33)
        shape = draw(st.sampled_from(steps)), *draw(st.sampled_from(_STEPS))
        around = _around(draw, can, dtypes, shape, program.facts, call)
        if fixed:
            around["word"], around["rounding"] = draw(st.sampled_from((16, 12, 8))), draw(st.sampled_from(ROUNDINGS))
        return program, Config(reset="none", shape=shape, bits=program.exact, **around)

    return drawn()


ROUNDINGS = ("nearest", "floor")
_STEPS = ((5,), (3, 5), (1,), (2, 4), (2, 3, 5), (1, 2, 3, 2), (33,))
_LAYOUTS = ("contiguous", "batch-first", "transposed", "strided", "part")


def _around(
    draw: Any, can: Callable[..., bool], dtypes: Names, shape: Sequence[int], facts: Sequence[Names], call: str
) -> Dict[str, Any]:
    """Facts of a call beside its neuron and its shape. facts: names of inputs, states, parameters and outputs."""
    (inputs, states, params, outputs), dims = facts, len(shape) - 1

    def one(*of: Any) -> Any:
        return draw(st.sampled_from(of))

    def some(names: Sequence[str], when: bool) -> Names:
        return tuple(name for name in names if draw(st.booleans())) if when else ()

    kinds = ("number", "scalar", *(("channel",) if can("channel_parameters") and dims > 1 else ()))
    kinds += ("full", "mixed") if can("full_parameters") else ()
    found: Dict[str, Any] = {"params": one(*kinds) if params else "number", "draw": draw(st.integers(0, 999))}
    found["learn"] = some(params, found["params"] not in ("number", "mixed") and can("parameter_gradients"))
    found["dtype"] = one(*dtypes)
    found["x"] = one(*_LAYOUTS, "expanded-steps")
    found["x2"] = one(*_LAYOUTS) if len(inputs) > 1 else "contiguous"
    found["detach"] = draw(st.booleans())
    found["call"] = call or ("run" if can("state_gradients") and draw(st.booleans()) else "short")
    run = found["call"] != "short"
    found["repeat"] = shape[0] > 0 and not call and draw(st.integers(0, 3)) == 3
    found["state"] = run and bool(states) and draw(st.booleans())
    found["state_layout"] = one("contiguous", "transposed", "strided") if found["state"] else "contiguous"
    found["record"] = some(states, run and can("record"))
    found["wanted"] = ("inputs",) if can("gradients") and draw(st.booleans()) else ()
    found["wanted"] += ("states",) if found["state"] and can("state_gradients") and draw(st.booleans()) else ()
    given = [f"output {k}" for k in range(len(outputs))]
    given += [f"final {name}" for name in states] if run else []
    found["given"] = some([*given, *(f"trace {name}" for name in found["record"])], True) or (given[0],)
    found["g"] = one("contiguous", "transposed", "strided")
    return found


# -- examples of a strategy

#: Seconds of computing in which a failing example is made simpler.
SHRINKING = 5.0


def examples(strategy: Any, body: Callable[[Any], None], count: int, seed: Optional[int]) -> None:
    """Call ``body`` with so many examples of a seed, by default always the same ones; raises what the simplest failing
    one raises.
    """
    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=seed is None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    failures: Dict[str, BaseException] = {}
    until = [float("inf")]

    def bounded(example: Any) -> None:
        known = failures.get(repr(example))
        if known is not None:
            raise known
        if time.process_time() > until[0]:
            return  # the simplest failure so far is given
        try:
            body(example)
        except NoInputsError:
            hypothesis.reject()
        except Exception as error:
            until[0] = min(until[0], time.process_time() + SHRINKING)
            failures[repr(example)] = error
            raise

    test: Any = hypothesis.given(strategy)(bounded)
    if seed is not None:
        test = hypothesis.seed(seed)(test)
    settings(test)()


def drawn(strategy: Any, count: int, seed: int) -> Any:
    """So many different examples of a seed."""
    found: Dict[str, Any] = {}
    # some are drawn twice, and the first is the simplest
    examples(strategy, lambda example: found.setdefault(str(example), example), 2 * count, seed)
    return list(found.values())[:count]
