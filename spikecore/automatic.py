"""What becomes of a call that the automatically chosen backend refuses.

Nobody asked for that backend by name. A program that runs on the reference must not fail because a faster backend was
installed, so the next backend of the order computes the call, and one warning says so. Second derivatives go the same
way. What was asked for by name raises instead, and this module has no part in it.
"""

from __future__ import annotations

import warnings
from typing import Callable, NamedTuple, Optional, Tuple

from spikecore import checks
from spikecore.backend import BackendError, Capabilities, ParamValue, Runner, Spec, Tensors, Unsupported
from spikecore.lang import Program
from spikecore.lang.plain import is_compiling
from spikecore.registry import default_registry
from spikecore.selection import Resolved, alternatives


class Calls(NamedTuple):
    """Calls of one kind: what a runner is made for, and what it must be able to do."""

    device_type: str
    program: Program
    spec: Spec
    #: Names of the capabilities that these calls need and a backend does not have.
    lacks: Callable[[Capabilities], Tuple[str, ...]]


def automatic_runner(resolved: Resolved, calls: Calls) -> Runner:
    """A runner of the chosen backend, or of the next one where that does not do what these calls need.

    Raises :class:`Unsupported` where no backend does.
    """
    missing = calls.lacks(resolved.backend.capabilities)
    if missing:
        return _next(resolved, calls, Unsupported(checks.unsupported(resolved, calls.program.name, missing)))
    try:
        return _Automatic(resolved, calls)
    except Unsupported as error:
        return _next(resolved, calls, error)


def _next(refusing: Resolved, calls: Calls, error: BackendError) -> Runner:
    """The runner of the first backend behind the refusing one that can; raises the error where none can."""
    for other in alternatives(calls.device_type, refusing.backend.name):
        if not calls.lacks(other.backend.capabilities):
            _warn(refusing.backend.name, other.backend.name, error)
            return automatic_runner(other, calls)
    raise error


def _warn(name: str, other: str, error: BackendError) -> None:
    if default_registry().first(("refused", name, str(error))):
        warnings.warn(
            f"backend {other!r} computes instead of {name!r}, which was chosen automatically: {error}",
            RuntimeWarning,
            stacklevel=6,
        )


class _Automatic:
    """A runner that hands on what its backend refuses."""

    def __init__(self, resolved: Resolved, calls: Calls) -> None:
        self._resolved, self._calls = resolved, calls
        self._other: Optional[Runner] = None
        runner = resolved.backend.runner(calls.program, calls.spec)
        with_second = getattr(runner, "with_second", None)
        self._runner: Runner = runner if with_second is None else with_second(self._instead)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
        if is_compiling():
            return self._runner(inputs, state, params, record)
        try:
            return self._runner(inputs, state, params, record)
        except BackendError as error:
            other = self._instead(error)
            if not isinstance(error, Unsupported):
                self._runner = other  # it is broken, and not only for this call
        return other(inputs, state, params, record)

    def _instead(self, error: BackendError) -> Runner:
        # threads that come here together make the same, and one of them counts
        if self._other is None:
            self._other = _next(self._resolved, self._calls, error)
        return self._other
