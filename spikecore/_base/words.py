"""Words for sentences of errors."""

from __future__ import annotations

from typing import Any

from torch.nn.utils.rnn import PackedSequence


def a_kind(value: Any) -> str:
    """The class of ``value`` with its article: a LIF, an int."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def no_tensor(name: str, value: Any) -> str:
    """What is said of an input ``name`` that is no tensor, and what to give."""
    if isinstance(value, PackedSequence):
        return (
            f"{name} is a PackedSequence; give a padded tensor, as torch.nn.utils.rnn.pad_sequence or "
            "pad_packed_sequence makes it, and a mask to losses and metrics, sc.functional.mask_of(lengths, T)"
        )
    return f"{name} is {a_kind(value)}; give a tensor"
