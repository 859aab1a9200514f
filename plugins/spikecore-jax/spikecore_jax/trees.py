"""Places within modules, by names with dots."""

from __future__ import annotations

from typing import Any


def at(module: Any, name: str) -> Any:
    """The value at ``layers.0.learnt.tau``: attributes, numbers of lists, keys of dictionaries.

    Raises ``KeyError`` where there is nothing.
    """
    found = module
    for part in name.split("."):
        try:
            found = found[part] if isinstance(found, dict) else _below(found, part)
        except (AttributeError, KeyError, IndexError):
            raise KeyError(f"there is no {name!r} in {type(module).__name__}: {part!r} is not there") from None
    if found is None:
        raise KeyError(f"there is no {name!r} in {type(module).__name__}: it is None")
    return found


def _below(found: Any, part: str) -> Any:
    return found[int(part)] if part.isdigit() else getattr(found, part)


def fits(name: str, value: Any, place: Any) -> Any:
    """The value. Raises ``ValueError`` if its shape is not that of the place."""
    if tuple(value.shape) != tuple(place.shape):
        raise ValueError(f"{name!r} has shape {list(value.shape)}, in the module {list(place.shape)}")
    return value
