"""Nested tuples, named tuples, lists and dictionaries, as arguments and outputs of a model are made of them.

Anything else is a leaf: a tensor, a number, None, an object of the user's. Types and the order of keys are kept.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Type, TypeVar

Leaf = TypeVar("Leaf")


def tree_map(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same structure with ``function`` of each leaf in its place."""
    if not isinstance(structure, (tuple, list, dict)):
        return function(structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(tree_map(function, item) for item in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(tree_map(function, item) for item in structure)
    items = [(key, tree_map(function, value)) for key, value in structure.items()]
    return dict(items) if type(structure) is dict else _refilled(structure, items)


def _refilled(structure: Any, items: List[Any]) -> Any:
    """A copy of a dictionary of another class, an OrderedDict for one, with other values."""
    copy = structure.copy()
    copy.update(items)
    return copy


def leaves(structure: Any, kind: Type[Leaf]) -> Iterator[Leaf]:
    """The leaves of one type, from left to right."""
    if isinstance(structure, (tuple, list)):
        for item in structure:
            yield from leaves(item, kind)
    elif isinstance(structure, dict):
        for item in structure.values():
            yield from leaves(item, kind)
    elif isinstance(structure, kind):
        yield structure
