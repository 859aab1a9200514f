"""Nested tuples, named tuples, lists and dictionaries, as arguments and outputs of a model are made of them.

Anything else is a leaf: a tensor, a number, None, an object of the user's. Types and the order of keys are kept.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Type, TypeVar

Leaf = TypeVar("Leaf")


def tree_map(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same structure with ``function`` of each leaf in its place."""
    kind = type(structure)
    if kind is tuple or kind is list:  # most structures are these
        return kind([tree_map(function, item) for item in structure])
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(tree_map(function, item) for item in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(tree_map(function, item) for item in structure)
    if isinstance(structure, dict):
        items = [(key, tree_map(function, value)) for key, value in structure.items()]
        return dict(items) if type(structure) is dict else _refilled(structure, items)
    return function(structure)


def _refilled(structure: Any, items: List[Any]) -> Any:
    """A copy of a dictionary of another class, an OrderedDict for one, with other values."""
    copy = structure.copy()
    copy.update(items)
    return copy


def ordered(structure: Any, like: Any) -> Any:
    """The same structure with the keys of its dictionaries in the order that they have in ``like``."""
    if isinstance(structure, (tuple, list)):
        return [ordered(item, other) for item, other in zip(structure, like)]
    if isinstance(structure, dict):
        return {key: ordered(structure[key], other) for key, other in like.items()}
    return structure


def leaves(structure: Any, kind: Type[Leaf]) -> Iterator[Leaf]:
    """The leaves of one type, from left to right."""
    found: List[Leaf] = []
    _collect(structure, kind, found)
    return iter(found)


# a list that is filled, because recursive generators took a sixteenth of the time of a recording
def _collect(structure: Any, kind: Type[Leaf], found: List[Leaf]) -> None:
    if isinstance(structure, (tuple, list)):
        for item in structure:
            _collect(item, kind, found)
    elif isinstance(structure, dict):
        for item in structure.values():
            _collect(item, kind, found)
    elif isinstance(structure, kind):
        found.append(structure)
