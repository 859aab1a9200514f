"""What spikecore does for every backend in modules above the contract, which therefore cannot import them.

:mod:`spikecore.training` hands it in when it is imported, as ``import spikecore`` does; nobody else calls
:func:`set_host`.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple


class Host(NamedTuple):
    """What is handed in."""

    #: ``(net, loss, optimizer, options)`` -> an eager training step.
    training_model: Callable[..., Any]
    #: ``(net, options)`` -> an eager inference step.
    inference_model: Callable[..., Any]
    #: The one object of the backend with this name, for a pickle that refers to it.
    backend_named: Callable[[str], Any]


_hosts: List[Host] = []


def set_host(
    training_model: Callable[..., Any], inference_model: Callable[..., Any], backend_named: Callable[[str], Any]
) -> None:
    """Hand in what serves every backend."""
    _hosts[:] = [Host(training_model, inference_model, backend_named)]


def host() -> Host:
    """What was handed in."""
    return _hosts[0]
