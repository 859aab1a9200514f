"""From a definition to a :class:`~spikecore.lang._program.Program`: call ``dynamics`` once with values that record.

The definition runs as plain Python, so an ``if`` on a configuration attribute picks a program. Everything that can be
wrong with what it returns is said here, by name.
"""

from __future__ import annotations

from collections import Counter, namedtuple
from contextlib import nullcontext
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from spikecore.lang._expr import (
    COMPARISON_AS_NUMBER,
    Expr,
    TraceError,
    defining,
    here,
    lift,
    refusing_no_grad,
)
from spikecore.lang._graph import topological
from spikecore.lang._numbers import Numbers
from spikecore.lang._program import Program
from spikecore.lang.node import Node, const, substitute


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


def input_values(names: Sequence[str], values: Sequence[Any]) -> Any:
    """Input of ``dynamics``: the value itself, or a named tuple of several."""
    if len(names) == 1:
        return values[0]
    return namedtuple("Inputs", names)(*values)


def trace(
    dynamics: Callable[..., Any],
    *,
    name: str,
    inputs: Sequence[str],
    states: Mapping[str, Union[float, str]],
    params: Union[Sequence[str], Mapping[str, Expr]],
    detached: Sequence[str] = (),
    numbers: Optional[Numbers] = None,
) -> Program:
    """Record ``dynamics(x, s, p) -> (outputs, next_states)``.

    ``states`` maps a name to its initial value, a number or the name of a parameter. ``params`` are names, each maybe
    with the expression of parameters that the definition reads in the place of one. In the next values of the states
    named by ``detached``, spikes carry no gradient. With ``numbers``, those of surrogates are parameters behind the
    others, whose values it gets; without, they are constants. The grad mode of the caller is of no effect.
    """
    values = {param: Expr(Node("param", (), param)) for param in params}
    values.update(params if isinstance(params, Mapping) else {})
    initial = [_initial(name, state, value, values) for state, value in states.items()]
    leaves = [Node("input", (), i) for i in inputs]
    x = input_values(inputs, [Expr(leaf) for leaf in leaves])
    s = Names(name, "state", {state: Expr(Node("state", (), state)) for state in states})
    p = Names(name, "parameter", values)
    with nullcontext() if numbers is None else numbers.following(), refusing_no_grad(), defining(f"{name}.dynamics"):
        try:
            returned = dynamics(x, s, p)
        except AttributeError as error:
            # an AttributeError in a property of a neuron would make nn.Module say "no attribute 'program'"
            raise TraceError(f"{name}.dynamics: {error} (states are s.NAME, parameters p.NAME)") from error
        outputs, following = _outputs(name, returned), _next(name, returned, states)
    followed = () if numbers is None else tuple(numbers.values)
    following = [detach_spikes(node) if state in detached else node for state, node in zip(states, following)]
    return Program(
        name,
        inputs=inputs,
        states=tuple(states),
        params=(*params, *followed),
        outputs=outputs,
        next=following,
        initial=initial,
        labels={
            **{value.node: f"{param}_in_range" for param, value in values.items() if value.node.args},
            **_labels(outputs, dict(zip(states, following))),
        },
        numbers=followed,
    )


def _initial(owner: str, state: str, value: Union[float, str], params: Mapping[str, Expr]) -> Node:
    if not isinstance(value, str):
        return const(value)
    if value not in params:
        raise TraceError(
            f"{owner}: the initial value of state {state!r} is {value!r}, which is no parameter; "
            f"its parameters are: {', '.join(params) or 'none'}"
        )
    return params[value].node


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
    return [_number(owner, f"the next {state}", following[state]) for state in states]


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
    """Names that make a text readable: ``z`` for spikes, ``v_next`` for the next value of ``v`` that is used again."""
    roots = [*outputs, *following.values()]
    order = topological(roots)
    uses = Counter([*roots, *(arg for node in order for arg in node.args)])
    labels = {node: f"{state}_next" for state, node in following.items() if node.args and uses[node] > 1}
    return {**labels, **{node: "z" for node in order if node.op == "spike"}}
