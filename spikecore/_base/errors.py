"""Exceptions of backends, which :mod:`spikecore.backend` names for users, and words for sentences of errors."""

from __future__ import annotations

from typing import Any


class BackendError(RuntimeError):
    """Something is wrong with the backend that was asked for; the message says what and the way out."""

    __module__ = "spikecore.backend"


class UnknownBackend(BackendError):
    """No backend has this name."""

    __module__ = "spikecore.backend"


class BackendUnavailable(BackendError):
    """The backend exists but cannot be used here, for example because there is no such device."""

    __module__ = "spikecore.backend"


class BackendLoadError(BackendError):
    """The backend is installed but broken: import error, wrong API version, name conflict. See ``__cause__``."""

    __module__ = "spikecore.backend"


class Unsupported(BackendError, NotImplementedError):
    """The backend works here but does not do what this call needs."""

    __module__ = "spikecore.backend"


def a_kind(value: Any) -> str:
    """The class of ``value`` with its article: a LIF, an int."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def no_tensor(name: str, value: Any) -> str:
    """What is said of an input ``name`` that is no tensor, and what to give."""
    if type(value).__name__ == "PackedSequence":  # not imported: errors need no torch
        return (
            f"{name} is a PackedSequence; give a padded tensor, as torch.nn.utils.rnn.pad_sequence or "
            "pad_packed_sequence makes it, and a mask to losses and metrics, sc.functional.mask_of(lengths, T)"
        )
    way = f", torch.from_numpy({name}).float()" if type(value).__module__ == "numpy" else ""
    return f"{name} is {a_kind(value)}; give a tensor{way}"
