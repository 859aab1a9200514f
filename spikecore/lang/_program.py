"""A traced neuron, the only thing a backend compiles; its adjoint, its text, and the programs made from it.

A :class:`Program` is a value. It is hashable by content (names of intermediate values do not count), pickles, prints as
the equations it was traced from, and never changes.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from spikecore.lang._expr import Expr, record
from spikecore.lang._graph import topological
from spikecore.lang.node import Flat, Node, SpikeRule, const, flat, loop_invariant, parameters, substitute, unflat
from spikecore.lang.operations import OPERATION, ROWS
from spikecore.lang.render import TextPrinter, on_one_line

if TYPE_CHECKING:
    from spikecore._base.bits import Whole

# -- reverse rules, and which cotangents there are
#
# The rules are those of ``ROWS`` of operations: each is one line of calculus, with torch's convention where a
# function has no derivative: half to each at a tie of ``minimum`` and ``maximum``, 1 at the bounds of ``clamp``, 0 for
# ``abs`` at 0. The forward values that a rule needs are the program's own nodes, so an adjoint shares them with the
# recomputed step.
#
# A path of a gradient is there or is not, whatever the numbers on it are: a zero cotangent that arrives along a path is
# multiplied like any other (0 times an infinite derivative is NaN), and what no path leads to has a zero gradient.

#: Contributions of one node's cotangent to its arguments; None for none.
Contributions = Sequence[Optional[Expr]]
#: Operations on numbers through which no gradient flows.
FLAT = frozenset(row.name for row in ROWS if row.kind == "number" and row.gradient is None) - {"spike", "select"}


def _contributions(node: Node, g: Expr) -> Contributions:
    if isinstance(node.attr, SpikeRule):
        derivative = substitute(node.attr.derivative, {Node("argument", (), "u"): node.args[0]})
        return (g * Expr(derivative),)
    args = [Expr(arg) for arg in node.args]
    if node.op == "select":  # torch has none, whose functions the rules are written with
        z, a, b = args
        return g * (a - b), record("select", z, g, 0.0), record("select", z, 0.0, g)
    rule = OPERATION[node.op].gradient
    if rule is None:
        raise KeyError(node.op)
    return rule(g, Expr(node), args)


def _active(order: Sequence[Node], leaves: Set[Node]) -> Set[Node]:
    """Nodes through which a gradient flows to a wanted leaf."""
    active = set(leaves)
    for node in order:
        if node.op not in FLAT and not node.is_bool and any(arg in active for arg in node.args):
            active.add(node)
    return active


def cotangents(roots: Sequence[Tuple[Node, Node]], leaves: Sequence[Node]) -> List[Node]:
    """Cotangents of the wanted leaves, given pairs of (root, its cotangent). Zero where none arrives."""
    order = topological([root for root, _ in roots])
    active = _active(order, set(leaves))
    cotangent: Dict[Node, Expr] = {}

    def add(node: Node, g: Expr) -> None:
        cotangent[node] = cotangent[node] + g if node in cotangent else g

    for root, g in roots:
        add(root, Expr(g))
    for node in reversed(order):
        if node in active and node in cotangent and node.args:
            for arg, g_arg in zip(node.args, _contributions(node, cotangent[node])):
                if g_arg is not None and arg in active:
                    add(arg, g_arg)
    return [cotangent[leaf].node if leaf in cotangent else const(0.0) for leaf in leaves]


class Reach(NamedTuple):
    """States and leaves that the gradient of some results of a run reaches."""

    #: States whose cotangent is carried from step to step; 0 after the last step, unless one arrives there.
    live: FrozenSet[str]
    #: Leaves of a step that a path leads to.
    leaves: FrozenSet[Node]


def differentiable_leaves(roots: Iterable[Node]) -> Set[Node]:
    """The leaves that a gradient can flow to from the roots."""
    waiting, seen = list(roots), set()
    while waiting:
        node = waiting.pop()
        if node not in seen and not node.is_bool and node.op not in FLAT:
            seen.add(node)
            waiting.extend(node.args)
    return {node for node in seen if node.is_leaf and node.op != "const"}


# -- programs


class Adjoint(NamedTuple):
    """One step run backwards, as expressions in the step's leaves and its cotangents.

    Leaves beside those of the program: ``out_grad`` (by output index) and ``next_grad`` (by state name). The backward
    pass through time evaluates this from the last step to the first: ``states`` of one step is ``next_grad`` of the
    step before, ``params`` is summed over steps. Where a run starts at rest, ``states`` of the first step goes on to
    the parameters that ``Program.initial`` names.
    """

    #: Cotangent of each input at this step.
    inputs: Tuple[Node, ...]
    #: Cotangent of each state at the start of this step.
    states: Tuple[Node, ...]
    #: Contribution of this step to the cotangent of each wanted parameter.
    params: Tuple[Node, ...]


class Statistics(NamedTuple):
    """An input that is normalised by its own mean and standard deviation, per channel over all steps and neurons, and
    the parameters of that: ``(x - mean) * (rstd * weight) + bias``.
    """

    input: str
    mean: str
    rstd: str
    weight: str
    bias: str


class Program:
    """One step of a neuron, with what it starts from.

    Attributes
    ----------
    name: the neuron's name, for people.
    inputs, states, params: names, in the order in which a runner gets their values. ``params`` has those that are used.
    outputs: one expression per output.
    next: one expression per state, its value after the step.
    initial: one per state, its initial value: a ``const`` or a ``param`` node.
    labels: names of values for people: ``z`` of spikes, ``v_next`` of a next value of ``v`` that is read again. Local
        variables of a definition have none in a text.
    numbers: those of ``params`` that are numbers of surrogates. They come last, and are Python numbers in every call.
    normalised: the inputs that are normalised by their own statistics, with the names of the parameters mean, rstd,
        weight and bias (:func:`normalised`). The derivative of such an input is the total one, through mean and rstd as
        well, and these are never learnt; empty for all other programs.
    whole: the inputs that hold whole numbers, as spikes, and which: autograd may keep them in fewer bits.
    named: values of a step by name, which a call may record (:class:`spikecore.lang.transform.Recorded`).
    seeds: extra (node, cotangent) pairs added to the adjoint, cotangents as expressions in the step's leaves; the
        forward step ignores them.
    """

    __slots__ = (
        "initial",
        "inputs",
        "key",
        "labels",
        "name",
        "named",
        "next",
        "normalised",
        "numbers",
        "outputs",
        "params",
        "seeds",
        "states",
        "whole",
    )

    name: str
    inputs: Tuple[str, ...]
    states: Tuple[str, ...]
    params: Tuple[str, ...]
    outputs: Tuple[Node, ...]
    next: Tuple[Node, ...]
    initial: Tuple[Node, ...]
    labels: Mapping[Node, str]
    named: Mapping[str, Node]
    numbers: Tuple[str, ...]
    normalised: Tuple[Statistics, ...]
    seeds: Tuple[Tuple[Node, Node], ...]
    whole: Tuple[Tuple[str, Whole], ...]
    key: str

    def __init__(
        self,
        name: str,
        *,
        inputs: Sequence[str],
        states: Sequence[str],
        outputs: Sequence[Node],
        next: Sequence[Node],
        initial: Sequence[Node],
        params: Sequence[str] = (),
        labels: Mapping[Node, str] = {},  # never written to
        numbers: Sequence[str] = (),
        normalised: Sequence[Statistics] = (),
        seeds: Sequence[Tuple[Node, Node]] = (),
        whole: Sequence[Tuple[str, Whole]] = (),
        named: Mapping[str, Node] = {},  # never written to
    ) -> None:
        seeded = [node for pair in seeds for node in pair]
        used = {node.attr for node in parameters([*outputs, *next, *initial, *seeded])}
        values: Dict[str, Any] = {
            "name": name,
            "inputs": tuple(inputs),
            "states": tuple(states),
            "params": tuple(p for p in params if p in used),
            "outputs": tuple(outputs),
            "next": tuple(next),
            "initial": tuple(initial),
            "labels": dict(labels),
            "numbers": tuple(name for name in numbers if name in used),
            "normalised": tuple(normalised),
            "seeds": tuple(seeds),
            "whole": tuple(whole),
            "named": dict(named),
        }
        digest = hashlib.blake2b(digest_size=16)
        for names in (values["inputs"], values["states"], values["params"]):
            digest.update(repr(names).encode())
        for nodes in (values["outputs"], values["next"], values["initial"]):
            digest.update(b"|")
            for node in nodes:
                digest.update(node.key)
        if normalised or seeds:  # else the key is that of before there were any, which names cached kernels
            digest.update(repr([*map(tuple, normalised)]).encode())
            for node in seeded:
                digest.update(node.key)
        if whole:
            digest.update(repr([(name, *numbers) for name, numbers in whole]).encode())
        if named:
            digest.update(repr([(name, node.key) for name, node in named.items()]).encode())
        for attribute, value in {**values, "key": digest.hexdigest()}.items():
            object.__setattr__(self, attribute, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a program never changes; {name!r} cannot be set")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Tuple[Any, ...]:
        values = {name: getattr(self, name) for name in self.__slots__ if name != "key"}
        roots = [
            *self.outputs,
            *self.next,
            *self.initial,
            *self.labels,
            *self.named.values(),
            *(node for pair in self.seeds for node in pair),
        ]
        place = {node: k for k, node in enumerate(topological(roots))}
        for name in ("outputs", "next", "initial"):
            values[name] = [place[node] for node in values[name]]
        values["labels"] = [(place[node], label) for node, label in self.labels.items()]
        values["named"] = {name: place[node] for name, node in self.named.items()}
        values["seeds"] = [(place[value], place[cotangent]) for value, cotangent in self.seeds]
        return (_restore, (flat(roots), values))

    def __repr__(self) -> str:
        return f"<Program {self.name} {self.key[:8]}>"

    def __str__(self) -> str:
        return ListingPrinter().program(self)

    @property
    def statistics(self) -> Tuple[str, ...]:
        """The names of mean, rstd, weight and bias of the first input, if that is normalised by its own statistics."""
        return next((row[1:] for row in self.normalised if row.input == self.inputs[0]), ())

    @property
    def leaves(self) -> Tuple[Node, ...]:
        """Input, state and parameter nodes, in the order of ``inputs + states + params``."""
        return (
            *(Node("input", (), name) for name in self.inputs),
            *(Node("state", (), name) for name in self.states),
            *(Node("param", (), name) for name in self.params),
        )

    @property
    def nodes(self) -> Tuple[Node, ...]:
        """Every node that the outputs and next states need, arguments first. Nothing else is ever computed."""
        return topological([*self.outputs, *self.next])

    def adjoint(
        self,
        learn: Sequence[str] = (),
        outputs: Optional[Sequence[bool]] = None,
        trace: Sequence[str] = (),
        final: Union[bool, Sequence[str]] = True,
    ) -> Adjoint:
        """The adjoint of one step, with the cotangents of the named parameters.

        A cotangent that does not arrive is not 0: 0 times an infinite derivative is NaN. So it has no leaf.

        outputs: for each output, whether a cotangent arrives; by default all do. trace: names of the recorded states
        with a cotangent. final: names of the final states with a cotangent; True for all, False for none. Other states
        have a ``next_grad`` if a cotangent that arrives leads to them, which is 0 after the last step.

        Raises ``ValueError`` for a name that is none of a parameter, or of a state, and another number of outputs.
        """
        there = (True,) * len(self.outputs) if outputs is None else tuple(map(bool, outputs))
        return _adjoint(self, tuple(learn), there, tuple(trace), self._finals(final))

    def reach(self, outputs: Sequence[bool], trace: Sequence[str], final: Union[bool, Sequence[str]]) -> Reach:
        """Reach of the gradient for the cotangents that :meth:`adjoint` takes."""
        return _reach(self, tuple(outputs), tuple(trace), self._finals(final))

    def constant_states(self) -> FrozenSet[str]:
        """The states that no gradient passes from one step to the next."""
        return _constant_states(self)

    def _finals(self, final: Union[bool, Sequence[str]]) -> Tuple[str, ...]:
        if isinstance(final, str):
            raise ValueError(f"final={final!r} is one text; give a list of names of states, [{final!r}]")
        return (self.states if final else ()) if isinstance(final, bool) else tuple(final)


class ListingPrinter(TextPrinter):
    """The language's own notation, of whole programs."""

    def program(self, program: Program) -> str:
        """A whole program: signature, initial values, what is computed once, the step, its results, the surrogate
        derivatives and what the host computes for them.
        """
        names: Dict[Node, str] = {leaf: self.symbol(leaf) for leaf in program.leaves}

        def inline(node: Node) -> str:
            return names.get(node) or self.expression(node, names)

        of_neuron = [name for name in program.params if name not in program.numbers]
        inputs, states, params = (
            [self.symbol(Node(op, (), name)) for name in known]
            for op, known in (("input", program.inputs), ("state", program.states), ("param", of_neuron))
        )
        lines = [("", f"({', '.join(inputs)}; {', '.join(states)}; {', '.join(params)})")]
        lines += [("  rest  ", f"{state} = {inline(node)}") for state, node in zip(states, program.initial)]
        once = [node for node in loop_invariant(program.nodes) if node in program.labels]
        lines += [("  once  ", line) for line in self.block(once, names, program.labels)]
        results = [*program.outputs, *program.next]
        lines += [("  step  ", line) for line in self.block(results, names, program.labels, name_roots=False)]
        lines += [("  next  ", f"{state} = {inline(node)}") for state, node in zip(states, program.next)]
        lines += [("  out   ", inline(node)) for node in program.outputs]
        # "next", "out" and the like at the beginning of a line are not identifiers: values may have these names
        write = self.named([line for _, line in lines])
        spikes = {node.attr.label: node.attr for node in program.nodes if isinstance(node.attr, SpikeRule)}
        texts = [on_one_line(program.name) + write(lines[0][1]), *(word + write(line) for word, line in lines[1:])]
        # a derivative may read parameters of the neuron, which are called in it as they are above
        others = set(re.findall(r"\w+", "\n".join(texts))) - set(map(write, params))
        for label, rule in spikes.items():
            *computed, text = ListingPrinter(others).derivative(rule)
            texts += [*(f"  host  {line}" for line in computed), f"  grad  {text}  # {on_one_line(label)}"]
        return "\n".join(texts)

    def derivative(self, rule: SpikeRule) -> List[str]:
        """Lines of the host's computation with a surrogate's numbers, and of the derivative, with own names."""
        lines = [f"{self.symbol(leaf)} = {self.expression(recipe)}" for leaf, recipe in rule.recipes]
        names: Dict[Node, str] = {}
        steps = self.block([rule.derivative], names, name_roots=False)
        argument = self.symbol(Node("argument", (), "u"))
        lines.append(f"spike'({argument}) = {'; '.join([*steps, self.expression(rule.derivative, names)])}")
        write = self.named(lines)
        return [write(line) for line in lines]


def _restore(entries: Flat, values: Dict[str, Any]) -> Program:
    nodes = unflat(entries)
    for name in ("outputs", "next", "initial"):
        values[name] = [nodes[k] for k in values[name]]
    values["labels"] = {nodes[k]: label for k, label in values["labels"]}
    values["named"] = {name: nodes[k] for name, k in values["named"].items()}
    values["seeds"] = [(nodes[value], nodes[cotangent]) for value, cotangent in values["seeds"]]
    return Program(values.pop("name"), **values)


@lru_cache(maxsize=256)
def _adjoint(
    program: Program, learn: Tuple[str, ...], outputs: Tuple[bool, ...], trace: Tuple[str, ...], final: Tuple[str, ...]
) -> Adjoint:
    """Cached result of :meth:`Program.adjoint`."""
    unknown = [name for name in learn if name not in program.params]
    if unknown:
        known = tuple(name for name in program.params if name not in program.numbers)
        raise ValueError(f"learn={learn!r}: {', '.join(unknown)} is no parameter of {program!r}: {known}")
    if len(outputs) != len(program.outputs):
        raise ValueError(
            f"outputs={outputs!r}: {program!r} has {len(program.outputs)} outputs, give one value for each"
        )
    for what, names in (("trace", trace), ("final", final)):
        if not set(names) <= set(program.states):
            raise ValueError(f"{what}={names!r}: the states of {program!r} are {program.states}")
    roots = [(node, Node("out_grad", (), i)) for i, node in enumerate(program.outputs) if outputs[i]]
    live = program.reach(outputs, trace, final).live
    following = zip(program.states, program.next)
    roots += [(node, Node("next_grad", (), state)) for state, node in following if state in live]
    roots += program.seeds
    inputs, states = len(program.inputs), len(program.states)
    leaves = [*program.leaves[: inputs + states], *(Node("param", (), name) for name in learn)]
    of_leaves = cotangents(roots, leaves)
    return Adjoint(
        tuple(of_leaves[:inputs]), tuple(of_leaves[inputs : inputs + states]), tuple(of_leaves[inputs + states :])
    )


@lru_cache(maxsize=256)
def _constant_states(program: Program) -> FrozenSet[str]:
    """No result of a step has a derivative by the state, or its next value has none by an input or a parameter."""
    states, following = program.states, program.next
    read = differentiable_leaves([*program.outputs, *following])
    learnt = {name for name, value in zip(states, program.initial) if value.op != "const"}

    def moves(name: str) -> bool:
        reach = program.reach([False] * len(program.outputs), (), [name])
        return any(leaf.op in ("input", "param") for leaf in reach.leaves) or bool(reach.live & learnt)

    return frozenset(name for name in states if Node("state", (), name) not in read or not moves(name))


@lru_cache(maxsize=1024)
def _reach(program: Program, outputs: Tuple[bool, ...], trace: Tuple[str, ...], final: Tuple[str, ...]) -> Reach:
    """Cached result of :meth:`Program.reach`."""
    next_of = dict(zip(program.states, program.next))
    leaves = differentiable_leaves(node for node, there in zip(program.outputs, outputs) if there)
    waiting = [*final, *trace, *(str(leaf.attr) for leaf in leaves if leaf.op == "state")]
    live: Set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in live:
            live.add(name)
            behind = differentiable_leaves([next_of[name]])
            leaves |= behind
            waiting += [str(leaf.attr) for leaf in behind if leaf.op == "state"]
    return Reach(frozenset(live), frozenset(leaves))


# -- batch normalisation in front of a program, and the program of its second backward pass
#
# The input x of a program becomes, with ``mean`` and ``rstd`` per channel of x over all steps and neurons,
#
#     y = (x - mean) * (rstd * weight) + bias [+ skip before the neuron]
#
# and a skip behind the neuron is added to the program's first output. A skip before the neuron may be normalised in the
# same way, with parameters of its own. What follows holds for each input that is.
#
# Let g be the cotangent of y, n how many numbers a channel has and ``xhat = (x - mean) * rstd``. The gradients of
# ``bias`` and ``weight`` are the sums of g and of ``g * xhat`` over a channel, and with these
#
#     dL/dx = rstd * weight * (g - sum(g) / n - xhat * sum(g * xhat) / n)
#
# (Ioffe and Szegedy, 2015, where mean and variance are functions of x). So a first backward pass finds the two sums,
# and a second one, which computes g again, the gradient of x: nothing that is normalised is ever stored.


class Derived(NamedTuple):
    """A program made from another one."""

    program: Program
    #: The parameters that it has beside those of the other one: behind the neuron's own, and in front of them.
    names: Tuple[str, ...] = ()
    front: Tuple[str, ...] = ()


def changed(program: Program, nodes: Mapping[Node, Node], **values: Any) -> Program:
    """The program with some nodes replaced, and other values of attributes."""

    def replaced(roots: Sequence[Node]) -> List[Node]:
        return [substitute(root, dict(nodes)) for root in roots]

    same = {name: getattr(program, name) for name in ("inputs", "states", "initial", "params", "numbers")}
    labels = dict(zip(replaced([*program.labels]), program.labels.values()))
    named = dict(zip(program.named, replaced([*program.named.values()])))
    outputs, following = replaced(program.outputs), replaced(program.next)
    written = {**same, "outputs": outputs, "next": following, "labels": labels, "named": named}
    return Program(program.name, **{**written, **values})


@lru_cache(maxsize=256)
def normalised(program: Program, shortcut: str, statistics: Tuple[bool, ...], whole: Optional[Whole] = None) -> Derived:
    """``program`` with its first input normalised, and where ``statistics`` has two values the shortcut as well. The
    parameters of each are mean, rstd, weight and bias, in front of the numbers of surrogates.

    shortcut: where a second input is added: to what is normalised ("before"), to the first output ("after"), "" for
    nowhere. statistics: for each normalised input whether its mean and rstd are functions of it; else they are given,
    as the running ones are. whole: what the shortcut holds, where that is known.
    """
    reserved = [*program.inputs, *program.states, *program.params]
    inputs = (*program.inputs, free_name("skip", reserved)) if shortcut else program.inputs
    leaves: List[Expr] = [Expr(Node("input", (), name)) for name in (inputs[0], inputs[-1])]
    normal, rows = list(leaves), []
    for k, (name, prefix) in enumerate(zip((inputs[0], inputs[-1])[: len(statistics)], ("norm", "skip_norm"))):
        row = Statistics(name, *[free_name(f"{prefix}_{what}", reserved) for what in Statistics._fields[1:]])
        mean, rstd, weight, bias = map(_param, row[1:])
        normal[k] = (leaves[k] - mean) * (rstd * weight) + bias
        rows.append(row)
    y, skip = normal
    behind = {leaves[0].node: (y + skip if shortcut == "before" else y).node}
    names = tuple(name for row in rows for name in row[1:])
    values: Dict[str, Any] = {"inputs": inputs, "params": _before_numbers(program, names)}
    values["normalised"] = [row for row, are_of_input in zip(rows, statistics) if are_of_input]
    values["whole"] = [] if whole is None else [(inputs[-1], whole)]
    if shortcut == "after":
        first, *others = (substitute(node, dict(behind)) for node in program.outputs)
        values["outputs"] = ((Expr(first) + skip).node, *others)
    return Derived(changed(program, behind, **values), names)


@lru_cache(maxsize=256)
def corrected(program: Program) -> Derived:
    """The program whose adjoint gives the gradients of the inputs that a program normalises by their own statistics.

    Its parameters beside those of the other one are the gradients of weight and bias of each, and 1 / n.
    """
    share, seeds, names = _share(program), [], []
    for row in program.normalised:
        names += _gradients_of(program, row)
        centred, _, through = _through_statistics(row, names[-2:], share)
        seeds.append((centred.node, through.node))
    added = (*names, share)
    return Derived(changed(program, {}, params=_before_numbers(program, added), seeds=seeds), added)


@lru_cache(maxsize=256)
def added_to_normalised(program: Program) -> str:
    """The input that is added to the one that a program normalises by its own statistics, and read nowhere else: its
    gradient is that of the sum. "" where there is no such input.
    """
    if len(program.normalised) != 1:
        return ""
    row = program.normalised[0]
    mean, rstd, weight, bias = map(_param, row[1:])
    normal = (Expr(Node("input", (), row.input)) - mean) * (rstd * weight) + bias
    for name in program.inputs:
        leaf = Node("input", (), name)
        readers = [node for node in program.nodes if leaf in node.args]
        if readers == [(normal + Expr(leaf)).node] and leaf not in (*program.outputs, *program.next):
            return name
    return ""


@lru_cache(maxsize=256)
def gradient_of_normalised(program: Program) -> Derived:
    """The program whose output is the gradient of the input that ``program`` normalises, from that input and the
    gradient of :func:`added_to_normalised`.

    Its parameters are mean, rstd and weight of that program, the gradients of weight and bias, and 1 / n.
    """
    row, share = program.normalised[0], _share(program)
    names = _gradients_of(program, row)
    cotangent = free_name("cotangent", program.inputs)
    _, scale, through = _through_statistics(row, names, share)
    gradient = Program(
        f"{program.name} gradient",
        inputs=(row.input, cotangent),
        states=(),
        outputs=[(Expr(Node("input", (), cotangent)) * scale + through).node],
        next=(),
        initial=(),
        params=(row.mean, row.rstd, row.weight, *names, share),
        normalised=[row],
    )
    return Derived(gradient, (*names, share))


def _share(program: Program) -> str:
    """The name of 1 / n, for n numbers of a channel."""
    return free_name("norm_share", [*program.inputs, *program.states, *program.params])


def _gradients_of(program: Program, row: Statistics) -> List[str]:
    """The names of the gradients of weight and bias."""
    reserved = [*program.inputs, *program.states, *program.params]
    return [free_name(f"{name}_grad", reserved) for name in (row.weight, row.bias)]


def _through_statistics(row: Statistics, gradients: Sequence[str], share: str) -> Tuple[Expr, Expr, Expr]:
    """``x - mean``, the factor of a cotangent of the normalised x, and what reaches x through its statistics."""
    mean, rstd, weight, grad_weight, grad_bias, part = map(_param, (row.mean, row.rstd, row.weight, *gradients, share))
    centred, scale = Expr(Node("input", (), row.input)) - mean, rstd * weight
    # of parameters alone but for one product and one sum per number
    through = -(scale * (grad_bias * part)) - centred * (scale * rstd * (grad_weight * part))
    return centred, scale, through


@lru_cache(maxsize=None)
def moments() -> Program:
    """The program whose parameters ``total`` and ``squares`` have the sums of x and of its square for gradients.

    Both of ``x - shift``: a shift near the mean keeps the digits that the difference of two large sums would lose.
    """
    x = Expr(Node("input", (), "x"))
    total, squares = Node("param", (), "total"), Node("param", (), "squares")
    centred = x - _param("shift")
    return Program(
        "Moments",
        inputs=("x",),
        states=(),
        outputs=[x.node],
        next=(),
        initial=(),
        params=("shift", "total", "squares"),
        seeds=[(total, centred.node), (squares, (centred * centred).node)],
    )


def _param(name: str) -> Expr:
    return Expr(Node("param", (), name))


def free_name(name: str, reserved: Collection[str]) -> str:
    """The name, with underscores behind it until it is in no use."""
    while name in reserved:
        name += "_"
    return name


def _before_numbers(program: Program, names: Tuple[str, ...]) -> Tuple[str, ...]:
    of_neuron = program.params[: len(program.params) - len(program.numbers)]
    return (*of_neuron, *names, *program.numbers)


# -- inputs that are the same at every step: each input as a parameter with one number per neuron
#
# A kernel reads such a parameter once, before the first step, and adds up its gradient over time in registers: forward
# reads 1 / T of a word where it read one, backward writes 1 / T where it wrote one. The arithmetic of a step stays the
# same, bit for bit. Where every input is one, the program keeps the first, which no line reads: a call has its steps,
# dtype and device from it.


@lru_cache(maxsize=256)
def repeated(program: Program, inputs: Collection[str]) -> Derived:
    """``program`` with a parameter in the place of each of these inputs that it reads.

    The names are those of the parameters, one for each input; "" for another one, and for one that the program does not
    read. These parameters are the first ones of the program, in this order.
    """
    read = {node.attr for node in program.nodes if node.op == "input"}
    reserved = {*program.inputs, *program.states, *program.params}
    constants = [free_name(f"{name}_constant", reserved) for name in program.inputs]
    nodes = {Node("input", (), name): Node("param", (), ours) for name, ours in zip(program.inputs, constants)}
    names = tuple(ours if name in read and name in inputs else "" for name, ours in zip(program.inputs, constants))
    nodes = {node: param for node, param in nodes.items() if param.attr in names}
    left = tuple([name for name, param in zip(program.inputs, names) if not param]) or program.inputs[:1]
    return Derived(changed(program, nodes, inputs=left, params=(*filter(None, names), *program.params)), front=names)
