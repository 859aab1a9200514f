"""The order of a graph, for anything that has arguments; it needs no module of the language."""

from __future__ import annotations

from typing import Any, Iterable, List, Protocol, Set, Tuple, TypeVar


class _HasArguments(Protocol):
    @property
    def args(self) -> Tuple[Any, ...]: ...


_N = TypeVar("_N", bound=_HasArguments)


def topological(roots: Iterable[_N], known: Iterable[_N] = ()) -> Tuple[_N, ...]:
    """Every node the roots need, arguments before users, in order of first need; ``known`` ones left out."""
    order: List[_N] = []
    seen: Set[_N] = set(known)
    for root in roots:
        # None says that the arguments of the node beneath it are done
        stack: List[Any] = [root]
        while stack:
            node = stack.pop()
            if node is None:
                order.append(stack.pop())
                continue
            count = len(seen)
            seen.add(node)  # the one time that it is hashed
            if len(seen) == count:
                continue
            if node.args:
                stack += (node, None, *node.args[::-1])
            else:
                order.append(node)
    return tuple(order)
