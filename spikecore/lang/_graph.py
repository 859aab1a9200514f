"""The order of a graph, for anything that has arguments; it needs no module of the language."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Protocol, Set, Tuple, TypeVar


class _HasArguments(Protocol):
    @property
    def args(self) -> Tuple[Any, ...]: ...


_N = TypeVar("_N", bound=_HasArguments)


def topological(roots: Iterable[_N], known: Iterable[_N] = ()) -> Tuple[_N, ...]:
    """Every node the roots need, arguments before users, in order of first need; ``known`` ones left out."""
    order: Dict[_N, None] = {}
    seen: Set[_N] = set(known)
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order[node] = None
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
    return tuple(order)
