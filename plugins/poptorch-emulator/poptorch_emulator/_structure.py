"""Nested tuples, named tuples, lists and dictionaries, as arguments and outputs of a model are made of them.

Anything else is a leaf: a tensor, a number, None, an object of the user's, unless its class has a parser. Types and the
order of keys are kept.
"""

from __future__ import annotations

import abc
from typing import Any, Callable, Dict, Iterator, List, Optional, Type, TypeVar

from torch import Tensor

from ._errors import py_error

Leaf = TypeVar("Leaf")


class ICustomArgParser(abc.ABC):
    """``poptorch.ICustomArgParser``: the tensors in an object of a user's class, and another object of others."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Tensor]:
        """The tensors of an object, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """An object like the original, with tensors from the iterator in the order of :meth:`yieldTensors`."""


_parsers: Dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: type, arg_parser: Optional[ICustomArgParser]) -> None:
    """Have models take and return objects of a class; ``None`` removes its parser."""
    if arg_parser is None:
        _parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise py_error("arg_parser must inherit from ICustomArgParser")
    _parsers[arg_data_type] = arg_parser


def _parser(structure: Any) -> Optional[ICustomArgParser]:
    """The parser of an object: of its class, or else of a class that it inherits."""
    own = _parsers.get(type(structure))
    if own is not None:
        return own
    return next((parser for kind, parser in _parsers.items() if isinstance(structure, kind)), None)


def tree_map(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same structure with ``function`` of each leaf in its place."""
    kind = type(structure)
    parser = _parser(structure) if _parsers else None
    if parser is not None:
        return parser.reconstruct(structure, iter([function(leaf) for leaf in parser.yieldTensors(structure)]))
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
    if _parsers and _parser(structure) is not None:
        return structure
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
    parser = _parser(structure) if _parsers else None
    if parser is not None:
        found.extend(leaf for leaf in parser.yieldTensors(structure) if isinstance(leaf, kind))
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            _collect(item, kind, found)
    elif isinstance(structure, dict):
        for item in structure.values():
            _collect(item, kind, found)
    elif isinstance(structure, kind):
        found.append(structure)
