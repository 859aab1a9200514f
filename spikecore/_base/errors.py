"""Exceptions of backends, which :mod:`spikecore.backend` names for users."""

from __future__ import annotations


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
