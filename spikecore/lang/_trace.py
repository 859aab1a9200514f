"""From a definition to a :class:`~spikecore.lang._program.Program`: call ``dynamics`` once with values that record.

The definition runs as plain Python, so an ``if`` on a configuration attribute picks a program. Everything that can be
wrong with what it returns is said here, by name.
"""

from __future__ import annotations

from collections import Counter, namedtuple
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

from spikecore.lang._expr import (
    COMPARISON_AS_NUMBER,
    Definition,
    TraceError,
    defining,
    here,
    lift,
)
from spikecore.lang._graph import topological
from spikecore.lang._numbers import Numbers
from spikecore.lang._program import Program
from spikecore.lang.node import Node, computed_once, const, parameters, substitute
from spikecore.lang.vectors import Vector, VectorExpr, elements, leaf, parts


class Names:
    """Values by attribute: ``s.v``, ``p.tau``. An unknown name is an error that lists the known ones."""

    def __init__(self, owner: str, kind: str, values: Mapping[str, Any]) -> None:
        self._owner, self._kind, self._values = owner, kind, dict(values)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(values) or "none"
        raise TraceError(f"{self._owner} has no {self._kind} {name!r}{here()}; its {self._kind}s are: {known}")

    def __getitem__(self, name: Any) -> Any:
        short = {"state": "s", "parameter": "p"}.get(self._kind, self._kind)
        known = name if name in self._values else next(iter(self._values), "v")
        raise TraceError(
            f"{self._kind}s of {self._owner} are attributes{here()}: write {short}.{known}, not [{name!r}]"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"{self._kind}s({', '.join(self._values)})"


def input_values(names: Iterable[str], values: Sequence[Any]) -> Any:
    """Input of ``dynamics``: the value itself, or a named tuple of several."""
    return values[0] if len(values) == 1 else namedtuple("Inputs", tuple(names))(*values)


def trace(
    dynamics: Callable[..., Any],
    *,
    name: str,
    inputs: Union[Sequence[str], Mapping[str, Any]],
    states: Mapping[str, Union[float, str, Vector]],
    params: Union[Sequence[str], Mapping[str, Any]],
    detached: Sequence[str] = (),
    numbers: Optional[Numbers] = None,
) -> Program:
    """Record ``dynamics(x, s, p) -> (outputs, next_states)``.

    ``states`` maps a name to its initial value, a number or the name of a parameter, or to a vector. ``inputs`` are
    names, each maybe with its vector, and ``params`` are names, each maybe with the expression of parameters that the
    definition reads in the place of one, which is a traced vector for a vector. In the next values of the states
    named by ``detached``, spikes carry no gradient. With ``numbers``, those of surrogates are parameters behind the
    others, whose values it gets; without, they are constants. The grad mode of the caller is of no effect.
    """
    values = dict(params) if isinstance(params, Mapping) else {param: leaf("param", param, None) for param in params}
    initial = [node for state, value in states.items() for node in _initial(name, state, value, values)]
    kinds = inputs if isinstance(inputs, Mapping) else dict.fromkeys(inputs)
    x = input_values(kinds, [leaf("input", each, kind) for each, kind in kinds.items()])
    s = Names(name, "state", {state: leaf("state", state, value) for state, value in states.items()})
    p = Names(name, "parameter", values)
    named: Dict[str, Node] = {}
    with defining(Definition(f"{name}.dynamics", numbers, refuses_no_grad=True, named=named)):
        try:
            returned = dynamics(x, s, p)
        except AttributeError as error:
            # an AttributeError in a property of a neuron would make nn.Module say "no attribute 'program'"
            raise TraceError(f"{name}.dynamics: {error} (states are s.NAME, parameters p.NAME)") from error
        outputs, following = _outputs(name, returned), _next(name, returned, states)
        _check_named(named, {"an input": inputs, "a state": states, "a parameter": params})
    followed = () if numbers is None else tuple(numbers.values)
    detaching = {each for state in detached for each in elements(state, states[state])}
    state_names = [each for state, value in states.items() for each in elements(state, value)]
    following = [detach_spikes(node) if state in detaching else node for state, node in zip(state_names, following)]
    in_range = {each: part.node for param, value in values.items() for each, part in parts(param, value)}
    program = Program(
        name,
        inputs=[each for input, kind in kinds.items() for each in elements(input, kind)],
        states=state_names,
        params=(*in_range, *followed),
        outputs=outputs,
        next=following,
        initial=initial,
        labels={
            **{node: f"{param}_in_range" for param, node in in_range.items() if node.args},
            **_labels(outputs, dict(zip(state_names, following))),
        },
        numbers=followed,
        named=named,
    )
    for value, node in named.items():
        unread = [param for param in parameters([node]) if param.attr not in program.params]
        if unread:
            raise TraceError(
                f"{name}.dynamics: the value {value!r} of sc.ops.named reads the parameter {unread[0].attr!r}, which "
                "neither an output nor a next state reads"
            )
    return program


def _check_named(named: Mapping[str, Node], others: Mapping[str, Iterable[str]]) -> None:
    for kind, names in others.items():
        for name in filter(named.__contains__, names):
            raise TraceError(f"sc.ops.named({name!r}, ...) has the name of {kind}{here()}; give it another one")


def _initial(owner: str, state: str, declared: Any, params: Mapping[str, Any]) -> List[Node]:
    """The initial value of a state, of a vector those of its values."""
    count = len(elements(state, declared))
    value = declared.initial if isinstance(declared, Vector) else declared
    if not isinstance(value, str):
        return [const(value)] * count
    if value not in params:
        raise TraceError(
            f"{owner}: the initial value of state {state!r} is {value!r}, which is no parameter; "
            f"its parameters are: {', '.join(params) or 'none'}"
        )
    nodes = [part.node for _, part in parts(value, params[value])]
    if isinstance(params[value], VectorExpr) and len(nodes) != count:
        raise TraceError(
            f"{owner}: state {state!r} has {count} values and starts at parameter {value!r} of {len(nodes)}; declare "
            "both with the same n"
        )
    return nodes if len(nodes) == count else nodes * count


def _shape_of_return(owner: str) -> str:
    return f"{owner}.dynamics must return (output, next states as a dict), or ((output, output, ...), dict)"


def _outputs(owner: str, returned: Any) -> List[Node]:
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        raise TraceError(f"{_shape_of_return(owner)}; it returned {returned!r}")
    outputs = returned[0] if isinstance(returned[0], tuple) else (returned[0],)
    if not outputs:
        raise TraceError(f"{_shape_of_return(owner)}; it returned no output")
    return [_number(owner, f"output {i}", value) for i, value in enumerate(outputs)]


def _next(owner: str, returned: Any, states: Mapping[str, Any]) -> List[Node]:
    following: Dict[str, Any] = returned[1]
    missing = [state for state in states if state not in following]
    if missing:
        raise TraceError(
            f"{owner}.dynamics returns no next value for state {', '.join(map(repr, missing))}; "
            f"return one for each of: {', '.join(states)}"
        )
    unknown = [state for state in following if state not in states]
    if unknown:
        raise TraceError(
            f"{owner}.dynamics returns a next value for {', '.join(map(repr, unknown))}, which is no state; "
            f"its states are: {', '.join(states) or 'none'}"
        )
    return [
        _number(owner, f"the next {name}", value)
        for state, declared in states.items()
        for name, value in zip(elements(state, declared), _values(owner, state, declared, following[state]))
    ]


def _values(owner: str, state: str, declared: Any, value: Any) -> Sequence[Any]:
    """The next value of a state, of a vector those of its values."""
    if not isinstance(declared, Vector):
        return (value,)
    is_list = isinstance(value, (list, tuple))
    if (is_list or isinstance(value, VectorExpr)) and len(value) == declared.n:
        return tuple(value)
    raise TraceError(
        f"the next {state} of {owner} is {f'a list of {len(value)} values' if is_list else repr(value)}, and state "
        f"{state!r} is a vector of {declared.n} values; return one of that size, or a list of {declared.n} values"
    )


def _number(owner: str, what: str, value: Any) -> Node:
    node = lift(value, f"{what} of {owner}")
    if node.is_bool:
        raise TraceError(f"{what} of {owner} is a comparison ({node!r}); {COMPARISON_AS_NUMBER}")
    return node


def detach_spikes(root: Node) -> Node:
    """The expression in which spikes carry no gradient."""
    spikes = [node for node in topological([root]) if node.op == "spike"]
    return substitute(root, {spike: Node("detach", (spike,)) for spike in spikes})


def _labels(outputs: Sequence[Node], following: Mapping[str, Node]) -> Dict[Node, str]:
    """Names that make a text readable: ``z`` for spikes, ``v_next`` for the next value of ``v`` that is used again, and
    ``k1``, ``k2``, ... for what a step reads of values that are computed once.
    """
    roots = [*outputs, *following.values()]
    order = topological(roots)
    uses = Counter([*roots, *(arg for node in order for arg in node.args)])
    labels = {node: f"k{number}" for number, node in enumerate(computed_once(order, roots), 1)}
    labels.update({node: f"{state}_next" for state, node in following.items() if node.args and uses[node] > 1})
    return {**labels, **{node: "z" for node in order if node.op == "spike"}}
