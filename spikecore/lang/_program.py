"""A traced neuron: the only thing a backend compiles.

A :class:`Program` is a value. It is hashable by content (names of intermediate values do not count), pickles, prints as
the equations it was traced from, and never changes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from spikecore.lang._grad import reverse
from spikecore.lang._graph import topological
from spikecore.lang._listing import ListingPrinter
from spikecore.lang._reach import Reach, constant_states, reached
from spikecore.lang.node import Flat, Node, flat, parameters, unflat


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
    #: What this step adds to the cotangent of each wanted parameter.
    params: Tuple[Node, ...]


class Program:
    """One step of a neuron, with what it starts from.

    Attributes
    ----------
    name: the neuron's name, for people.
    inputs, states, params: names, in the order in which a runner gets their values. ``params`` has those that are used.
    outputs: one expression per output.
    next: one expression per state, its value after the step.
    initial: one per state, its initial value: a ``const`` or a ``param`` node.
    labels: names that the definition gave to intermediate values.
    numbers: those of ``params`` that are numbers of surrogates. They come last, and are Python numbers in every call.
    statistics: names of the parameters mean, rstd, weight and bias if the first two are statistics of the first input,
        per channel over all steps and neurons (:func:`spikecore.lang.normalised`). The derivative of that input is the
        total one, through them as well, and they are never learnt; empty for all other programs.
    seeds: values of a step that have a cotangent of their own, an expression in the step's leaves, beside what the
        results give. Of no effect but in the adjoint.
    """

    __slots__ = (
        "initial",
        "inputs",
        "key",
        "labels",
        "name",
        "next",
        "numbers",
        "outputs",
        "params",
        "seeds",
        "states",
        "statistics",
    )

    name: str
    inputs: Tuple[str, ...]
    states: Tuple[str, ...]
    params: Tuple[str, ...]
    outputs: Tuple[Node, ...]
    next: Tuple[Node, ...]
    initial: Tuple[Node, ...]
    labels: Mapping[Node, str]
    numbers: Tuple[str, ...]
    statistics: Tuple[str, ...]
    seeds: Tuple[Tuple[Node, Node], ...]
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
        statistics: Sequence[str] = (),
        seeds: Sequence[Tuple[Node, Node]] = (),
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
            "statistics": tuple(statistics),
            "seeds": tuple(seeds),
        }
        digest = hashlib.blake2b(digest_size=16)
        for names in (values["inputs"], values["states"], values["params"]):
            digest.update(repr(names).encode())
        for nodes in (values["outputs"], values["next"], values["initial"]):
            digest.update(b"|")
            for node in nodes:
                digest.update(node.key)
        if statistics or seeds:  # else the key is that of before there were any, which names cached kernels
            digest.update(repr(values["statistics"]).encode())
            for node in seeded:
                digest.update(node.key)
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
            *(node for pair in self.seeds for node in pair),
        ]
        place = {node: k for k, node in enumerate(topological(roots))}
        for name in ("outputs", "next", "initial"):
            values[name] = [place[node] for node in values[name]]
        values["labels"] = [(place[node], label) for node, label in self.labels.items()]
        values["seeds"] = [(place[value], place[cotangent]) for value, cotangent in self.seeds]
        return (_restore, (flat(roots), values))

    def __repr__(self) -> str:
        return f"<Program {self.name} {self.key[:8]}>"

    def __str__(self) -> str:
        return ListingPrinter().program(self)

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
        """Where a gradient flows if cotangents arrive as :meth:`adjoint` has them."""
        return _reach(self, tuple(outputs), tuple(trace), self._finals(final))

    def constant_states(self) -> FrozenSet[str]:
        """The states that no gradient passes from one step to the next."""
        return _constant_states(self)

    def _finals(self, final: Union[bool, Sequence[str]]) -> Tuple[str, ...]:
        if isinstance(final, str):
            raise ValueError(f"final={final!r} is one text; give a list of names of states, [{final!r}]")
        return (self.states if final else ()) if isinstance(final, bool) else tuple(final)


def _restore(entries: Flat, values: Dict[str, Any]) -> Program:
    nodes = unflat(entries)
    for name in ("outputs", "next", "initial"):
        values[name] = [nodes[k] for k in values[name]]
    values["labels"] = {nodes[k]: label for k, label in values["labels"]}
    values["seeds"] = [(nodes[value], nodes[cotangent]) for value, cotangent in values["seeds"]]
    return Program(values.pop("name"), **values)


@lru_cache(maxsize=256)
def _adjoint(
    program: Program, learn: Tuple[str, ...], outputs: Tuple[bool, ...], trace: Tuple[str, ...], final: Tuple[str, ...]
) -> Adjoint:
    """See :meth:`Program.adjoint`."""
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
    found = reverse(roots, leaves)
    return Adjoint(tuple(found[:inputs]), tuple(found[inputs : inputs + states]), tuple(found[inputs + states :]))


@lru_cache(maxsize=256)
def _constant_states(program: Program) -> FrozenSet[str]:
    """See :meth:`Program.constant_states`."""
    return constant_states(program.states, program.next, program.outputs, program.initial)


@lru_cache(maxsize=1024)
def _reach(program: Program, outputs: Tuple[bool, ...], trace: Tuple[str, ...], final: Tuple[str, ...]) -> Reach:
    """See :meth:`Program.reach`."""
    arriving = [node for node, there in zip(program.outputs, outputs) if there]
    return reached(program.states, program.next, arriving, trace, final)
