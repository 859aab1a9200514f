"""Words for sentences of errors."""

from __future__ import annotations

from typing import Any


def a_kind(value: Any) -> str:
    """The class of ``value`` with its article: a LIF, an int."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"
