"""Which backend a neuron gets.

Rules of this module:

- Argument, then ``with use_backend(...)``, then ``SPIKECORE_BACKEND``, then automatic choice. ``None`` and ``""`` mean
  "go on"; ``"auto"`` ends the search.
- Argument and context are taken when a neuron is made, the rest when it first meets a tensor.
- An explicit choice that cannot be honoured raises and is never replaced by another.
- Automatic choice knows built-ins only: installing a plugin changes nothing by itself.
"""

from __future__ import annotations

import logging
import os
import warnings
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import List, Mapping, Optional, Type

from spikecore.backend import Backend, BackendError, BackendUnavailable
from spikecore.registry import AUTO_NAME, BackendStatus, Registry, default_registry

#: Device type -> the built-in that automatic choice prefers there.
AUTO: Mapping[str, str] = {"cuda": "cupy", "ipu": "ipu"}
#: The backend of every other device, and of those above where the preferred one cannot be used.
REFERENCE = "torch"

_context: ContextVar[Optional[str]] = ContextVar("spikecore_backend", default=None)
_log = logging.getLogger("spikecore")


class use_backend:  # noqa: N801 - a statement more than a class, as torch.no_grad
    """``with use_backend("cupy"):`` neurons made inside ask for this backend; others are left as they are.

    ``None`` or ``""`` takes back what an outer ``use_backend`` asked for. Blocks nest; one object serves one block. As
    every context variable it holds for this thread and task only. Raises ``TypeError`` if ``name`` is not a string.
    """

    def __init__(self, name: Optional[str]) -> None:
        self.name = _checked(name, "name")
        self._token: Optional[Token[Optional[str]]] = None

    def __enter__(self) -> None:
        if self._token is not None:
            raise RuntimeError(f"this use_backend({self.name!r}) was entered before; write use_backend(...) anew")
        self._token = _context.set(self.name)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._token is not None:
            _context.reset(self._token)

    def __repr__(self) -> str:
        return f"use_backend({self.name!r})"


@dataclass(frozen=True)
class Request:
    """What was asked for, and where: ``Request(None, "")`` when nothing was."""

    name: Optional[str]
    source: str


@dataclass(frozen=True)
class Resolved:
    """The backend that was chosen, by whom, and why, in words."""

    backend: Backend
    source: str
    reason: str


def capture(backend: Optional[str]) -> Request:
    """The request at construction: the argument ``backend``, else that of the ``use_backend`` block around.

    Raises ``TypeError`` if ``backend`` is not a string. Whether it can be honoured is known when it is resolved.
    """
    argument = _checked(backend, "backend")
    if argument is not None:
        return Request(argument, "argument")
    context = _context.get()
    return Request(None, "") if context is None else Request(context, "use_backend()")


def resolve(
    request: Request,
    device_type: str,
    registry: Optional[Registry] = None,
    environ: Optional[Mapping[str, str]] = None,
    auto: Optional[Mapping[str, str]] = None,
) -> Resolved:
    """The backend for tensors of ``device_type``, under ``request``, the context and the environment of now.

    Raises :class:`~spikecore.backend.BackendError`, naming what was asked, by whom, and the way out, when an explicit
    choice cannot be honoured: an unknown name, a broken or unusable backend, one that does not compute on this device.
    """
    registry = default_registry() if registry is None else registry
    request = _asked(request, os.environ if environ is None else environ)
    if request.name is None or request.name == AUTO_NAME:
        return _choose(device_type, registry, AUTO if auto is None else auto)
    name, source = request.name, request.source
    backend = registry.get(name, source)
    info = registry.info(name, source)
    if not info.takes(device_type):
        if device_type in info.never:
            where, move = f"does not compute on {device_type}", ""
        else:
            where, move = f"computes on {', '.join(info.devices)}", f"move it (x.to({info.devices[0]!r})) or "
        raise BackendUnavailable(
            f"backend {name!r} (from {source}) {where}; the input is on {device_type}: {move}choose another backend"
        )
    return Resolved(backend, source, f"asked for by {source}")


def backend_named(request: Request) -> Backend:
    """The backend asked for under ``request``, the context and the environment of now; the reference if none is.

    For what needs no device yet, such as a data loader.
    """
    request = _asked(request, os.environ)
    if request.name is None or request.name == AUTO_NAME:
        return default_registry().get(REFERENCE, AUTO_NAME)
    return default_registry().get(request.name, request.source)


def backends(probe: bool = False) -> List[BackendStatus]:
    """The backends that are installed, built-ins and plugins: what each is and does, works here or why not.

    Imports nothing of them, unless ``probe`` asks to load and try each one.
    """
    return default_registry().status(probe)


def _checked(name: Optional[str], argument: str) -> Optional[str]:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{argument} must be a backend's name, 'auto' or None, got {name!r}")
    return name or None


def _asked(request: Request, environ: Mapping[str, str]) -> Request:
    """The request captured, or that of the environment."""
    if request.name:
        return request
    return Request(environ.get("SPIKECORE_BACKEND", "").strip() or None, "SPIKECORE_BACKEND")


def _choose(device_type: str, registry: Registry, auto: Mapping[str, str]) -> Resolved:
    """The built-in for this device type: the preferred one, or the reference, which says why."""
    name = auto.get(device_type, REFERENCE)
    reason = f"auto: the built-in for {device_type} tensors"
    try:
        backend = registry.get(name, AUTO_NAME)
    except BackendError as error:
        if name == REFERENCE or not registry.info(REFERENCE, AUTO_NAME).takes(device_type):
            raise
        backend = registry.get(REFERENCE, AUTO_NAME)
        reason = f"auto: the reference, for {device_type} tensors; {error}"
        if registry.first(("fallback", device_type)):
            warnings.warn(_fallback(device_type, error, registry), RuntimeWarning, stacklevel=3)
    if registry.first(("auto", device_type)):
        _log.info("backend %r chosen for %s tensors (%s)", backend.name, device_type, reason)
    return Resolved(backend, AUTO_NAME, reason)


def _fallback(device_type: str, error: BackendError, registry: Registry) -> str:
    able = [name for name in registry.names() if name not in registry.builtins and _able(name, device_type, registry)]
    plugins = f"installed plugins that could, if asked for: {', '.join(able)}; " if able else ""
    return (
        f"{device_type} tensors run on the reference backend {REFERENCE!r}, which is slow: {error}; {plugins}"
        f"SPIKECORE_BACKEND={REFERENCE} makes this a choice and silences the warning"
    )


def _able(name: str, device_type: str, registry: Registry) -> bool:
    """Whether a plugin could serve this device here. Loads its description, so this is for the slow path only."""
    try:
        return registry.info(name, AUTO_NAME).takes(device_type) and registry.probe(name, AUTO_NAME) is None
    except BackendError:
        return False
