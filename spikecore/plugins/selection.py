"""Choice of the backend that a neuron gets.

Rules of this module:

- Argument, then ``with use_backend(...)``, then ``SPIKECORE_BACKEND``, then automatic choice. ``None`` means "go on",
  as does a variable that is empty, which is as if it were unset; ``"auto"`` ends the search. An empty name is refused.
- Argument and context are taken when a neuron is made, the rest when it first meets a tensor.
- A name is checked when it is given, which imports nothing of a plugin.
- An explicit choice that cannot be honoured raises and is never replaced by another.
- Automatic choice takes the first of the project's own backends that works for the device, in the order of
  :data:`AUTO`, then the reference. Nobody else's backend is ever chosen unasked. A backend that is installed and does
  not work is passed over with a warning, a plugin that is not installed or is blocked in silence.
"""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from spikecore._base.contract import ANY_DEVICE, BackendError, BackendStatus, BackendUnavailable, UnknownBackend
from spikecore.plugins.registry import AUTO as AUTO
from spikecore.plugins.registry import AUTO_NAME, Registry, default_registry
from spikecore.plugins.registry import REFERENCE as REFERENCE

if TYPE_CHECKING:
    from spikecore.backend import Backend

_context: ContextVar[Optional[str]] = ContextVar("spikecore_backend", default=None)
_log = logging.getLogger("spikecore")


def use_backend(name: Optional[str]) -> ContextManager[None]:
    """Neurons made inside the block ask for this backend; others are left as they are.

    ::

        with sc.use_backend("cupy"):
            net = nn.Sequential(nn.Linear(784, 256), sc.LIF(tau=2.0))

    ``None`` takes back what an outer ``use_backend`` asked for. Blocks nest; one object serves one block. As
    every context variable it holds for this thread and task only. Raises ``TypeError`` if ``name`` is not a string,
    and :class:`~spikecore.backend.UnknownBackend` if no backend has it.
    """
    return _use_backend(_checked(name, "name", "use_backend()"))


@contextmanager
def _use_backend(name: Optional[str]) -> Iterator[None]:
    token = _context.set(name)
    try:
        yield
    finally:
        _context.reset(token)


class Request(NamedTuple):
    """Requested backend and the place of the request; ``Request(None, "")`` without one."""

    name: Optional[str]
    source: str


class Resolved(NamedTuple):
    """The backend that was chosen, by whom, and why, in words."""

    backend: Backend
    source: str
    reason: str


def capture(backend: Optional[str], source: str = "argument") -> Request:
    """The request at construction: the argument ``backend``, else that of the ``use_backend`` block around.

    ``source`` is who asks, in the words that errors use. Raises ``TypeError`` if ``backend`` is not a string, and
    :class:`~spikecore.backend.BackendError` for a name that nobody has or that is blocked; whether the backend works
    here is known when it is resolved.
    """
    argument = _checked(backend, "backend", source)
    if argument is not None:
        return Request(argument, source)
    context = _context.get()
    return Request(None, "") if context is None else Request(context, "use_backend()")


def resolve(
    request: Request,
    device_type: str,
    registry: Optional[Registry] = None,
    environ: Optional[Mapping[str, str]] = None,
    auto: Optional[Mapping[str, Sequence[str]]] = None,
) -> Resolved:
    """The backend for tensors of ``device_type``, under ``request``, the context and the environment of now.

    Raises :class:`~spikecore.backend.BackendError`, naming what was asked, by whom, and the way out, when an explicit
    choice cannot be honoured: an unknown name, a broken or unusable backend, one that does not compute on this device.
    """
    registry = default_registry() if registry is None else registry
    request = _asked(request, os.environ if environ is None else environ)
    if request.name is None or request.name == AUTO_NAME:
        return _choose(device_type, registry, (AUTO if auto is None else auto).get(device_type, (REFERENCE,)))
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


def asked_in_words(request: Request, bound: Iterable[Resolved] = ()) -> str:
    """Requested backend, and the place of the request unless it is an argument: ``numba from SPIKECORE_BACKEND``.

    Where the environment decides, what is bound already counts, and not the environment of now.
    """
    if not request.name:
        request = _asked(request, os.environ)
        for resolved in bound:
            request = Request(resolved.backend.name, resolved.source)
    if not request.name or AUTO_NAME in request:
        return AUTO_NAME
    return request.name if request.source == "argument" else f"{request.name} from {request.source}"


def backend_named(request: Request) -> Backend:
    """The backend asked for under ``request``, the context and the environment of now; the reference if none is.

    For what needs no device yet, such as a data loader.
    """
    name, source = _asked(request, os.environ)
    if name is None or name == AUTO_NAME:
        name, source = REFERENCE, AUTO_NAME
    return default_registry().get(name, source)


def backends(probe: bool = False) -> List[BackendStatus]:
    """The backends that are installed, built-ins and plugins: what each is and does, works here or why not.

    Imports nothing of them, unless ``probe`` asks to load and try each one.
    """
    devices: Dict[str, Tuple[str, ...]] = {}
    for device_type, names in {**AUTO, ANY_DEVICE: (REFERENCE,)}.items():
        for name in names:
            devices[name] = (*devices.get(name, ()), device_type)
    return default_registry().status(probe, devices)


def automatic_order(device_type: str) -> Tuple[str, ...]:
    """The backends that automatic choice tries for a device type, in this order, where they are installed."""
    return tuple(filter(default_registry().offers, AUTO.get(device_type, (REFERENCE,))))


def alternatives(device_type: str, after: str) -> Iterator[Resolved]:
    """Usable backends behind ``after`` in the order of automatic choice."""
    registry, order = default_registry(), automatic_order(device_type)
    for name in order[order.index(after) + 1 :] if after in order else ():
        try:
            if registry.info(name, AUTO_NAME).takes(device_type):
                yield Resolved(registry.get(name, AUTO_NAME), AUTO_NAME, _reason(name, device_type, registry))
        except BackendError:
            continue


def _checked(name: Optional[str], argument: str, source: str) -> Optional[str]:
    """The name, if it can be asked for."""
    if name is None or name == AUTO_NAME:
        return name
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a backend's name, 'auto' or None, got {name!r}")
    if not name.strip():
        known = ", ".join(default_registry().names())
        raise UnknownBackend(
            f"{argument}={name!r} (from {source}) is no backend's name; None leaves the choice to context, environment "
            f"and auto. Known: {known}"
        )
    default_registry().check(name, source)
    return name


def _asked(request: Request, environ: Mapping[str, str]) -> Request:
    """The request captured, or that of the environment."""
    if request.name:
        return request
    return Request(environ.get("SPIKECORE_BACKEND", "").strip() or None, "SPIKECORE_BACKEND")


def _choose(device_type: str, registry: Registry, order: Sequence[str]) -> Resolved:
    """The first backend of the order that works for this device type, and why none before it does."""
    passed: List[BackendError] = []
    for name in filter(registry.offers, order):
        try:
            backend = registry.get(name, AUTO_NAME)
            if not registry.info(name, AUTO_NAME).takes(device_type):
                raise BackendUnavailable(f"backend {name!r} (from {AUTO_NAME}) does not compute on {device_type} here")
        except BackendError as error:
            passed.append(error)
            continue
        reason = _reason(name, device_type, registry)
        if passed:
            first = f"auto: the reference, for {device_type} tensors" if name == REFERENCE else reason
            reason = "; ".join((first, *map(str, passed)))
            if registry.first(("fallback", device_type)):
                slow = "the reference backend 'torch', which is slow" if name == REFERENCE else f"backend {name!r}"
                warnings.warn(
                    f"{device_type} tensors run on {slow}: {'; '.join(map(str, passed))}; SPIKECORE_BACKEND={name} "
                    "makes this a choice and silences the warning",
                    RuntimeWarning,
                    stacklevel=3,
                )
        if registry.first(("auto", device_type)):
            _log.info("backend %r chosen for %s tensors (%s)", name, device_type, reason)
        return Resolved(backend, AUTO_NAME, reason)
    raise passed[0] if passed else UnknownBackend(f"there is no backend for {device_type} tensors")


def _reason(name: str, device_type: str, registry: Registry) -> str:
    whose = "built-in" if name in registry.builtins else "project's own plugin"
    return f"auto: the {whose} for {device_type} tensors"
