"""Which states a kernel needs: those that what it computes is read from, those that these are read from, and so on."""

from __future__ import annotations

from typing import FrozenSet, Iterable, List, Mapping, Sequence, Set, Tuple

from spikecore.lang import Node, topological


def leaves_of(op: str, roots: Iterable[Node]) -> Set[str]:
    """Names of the leaves of one kind that the roots use."""
    return {str(node.attr) for node in topological(roots) if node.op == op}


def closure(names: Iterable[str], op: str, rule: Mapping[str, Node]) -> FrozenSet[str]:
    """The names, and those of the leaves that their rules use, and so on."""
    found: Set[str] = set()
    waiting: List[str] = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(leaves_of(op, [rule[name]]))
    return frozenset(found)


def in_order(names: Sequence[str], chosen: Iterable[str]) -> Tuple[str, ...]:
    """The chosen ones of the names, in their order."""
    chosen = set(chosen)
    return tuple(name for name in names if name in chosen)
