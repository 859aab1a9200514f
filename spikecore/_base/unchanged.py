"""Checks whether a value still holds the very objects that it held, for :mod:`spikecore._base.contents`.

The functions of Python that these use let no other thread run in between.
"""

from __future__ import annotations

from itertools import repeat
from operator import is_
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

#: Whether a value still holds the same objects.
Check = Callable[[], bool]


def bytes_of(view: memoryview) -> Tuple[Any, ...]:
    """The bytes of a memory, and how they are laid out."""
    return view.format, view.shape, view.tobytes()


def holds(held: Mapping[str, Any], names: Iterable[str], kept: Iterable[Any]) -> bool:
    """Whether a dict has these objects under these names, None where there is none."""
    return all(map(is_, map(held.get, names), kept))


def holds_within(value: nn.Module, where: Optional[str], names: Iterable[str], kept: Iterable[Any]) -> bool:
    """The same of a dict of a module, of ``__dict__`` itself for None."""
    return holds(value.__dict__ if where is None else value.__dict__[where], names, kept)


def sizes(value: nn.Module) -> Tuple[int, int, int]:
    """How many attributes, parameters and buffers a module has."""
    return len(value.__dict__), len(value._parameters), len(value._buffers)


def is_built(value: nn.Module, names: Iterable[str], kept: Sequence[Any], size: Tuple[int, int, int]) -> bool:
    """Whether a module holds these modules under these names, and as much else as before."""
    return sizes(value) == size and maps(value._modules, names, kept)


def lists(value: Any, kept: Sequence[Any]) -> bool:
    """Whether a list holds these objects."""
    return len(value) == len(kept) and all(map(is_, value, kept))


def maps(value: Any, names: Iterable[Any], kept: Sequence[Any]) -> bool:
    """Whether a dict holds these objects under these names, in this order, and no others."""
    return len(value) == len(kept) and all(map(is_, value, names)) and all(map(is_, value.values(), kept))


def maps_within(value: Any, names: Iterable[Any], kept: Sequence[Any]) -> bool:
    """The same of the attributes of an object."""
    return maps(value.__dict__, names, kept)


def has(value: Any, names: Iterable[str], kept: Iterable[Any]) -> bool:
    """Whether the attributes of an object are these objects, None where there is none."""
    return all(map(is_, map(getattr, repeat(value), names, repeat(None)), kept))


def has_version(value: Tensor, version: int) -> bool:
    """Whether nothing has written to a tensor since."""
    return value._version == version


def has_bytes(value: Any, kept: Tuple[Any, ...]) -> bool:
    """Whether an array has the same bytes."""
    return bytes_of(memoryview(value)) == kept
