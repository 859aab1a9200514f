"""Words for sentences of errors: a value, and its class."""

from __future__ import annotations

from typing import Any, Sequence

__all__ = ["a_kind", "listed", "no_tensor", "shown"]


def shown(value: Any) -> str:
    """The value for a sentence: a tensor or a network would fill the screen."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def a_kind(value: Any) -> str:
    """The class of ``value`` with its article: a LIF, an int."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def no_tensor(name: str, value: Any) -> str:
    """Message for an input ``name`` that is no tensor, with what to give."""
    if type(value).__name__ == "PackedSequence":  # not imported: errors need no torch
        return (
            f"{name} is a PackedSequence; give a padded tensor, as torch.nn.utils.rnn.pad_sequence or "
            "pad_packed_sequence makes it, and a mask to losses and metrics, sc.functional.mask_of(lengths, T)"
        )
    way = f", torch.from_numpy({name}).float()" if type(value).__module__ == "numpy" else ""
    return f"{name} is {a_kind(value)}; give a tensor{way}"
