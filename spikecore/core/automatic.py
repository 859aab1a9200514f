"""Runners of calls whose backend was chosen automatically.

Nobody asked for that backend by name. Where it does not declare what a call needs, or its ``compile`` raises
``Unsupported``, the next backend of the order computes the call, and one warning says so: all this is known before
anything runs. Any other error, such as a kernel that cannot be compiled, is the caller's, and names the backend to
choose.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Callable, Iterator, List, NamedTuple, Tuple

from spikecore._plugins.registry import default_registry
from spikecore._plugins.selection import Resolved, alternatives
from spikecore.backend import Backend, Runner, Spec, Unsupported
from spikecore.core import checks
from spikecore.lang import Program

#: Listeners of refusals: functions of the names of the refusing and of the next backend, and the error.
Told = Callable[[str, str, Unsupported], None]
_told: List[Told] = []


@contextmanager
def told_of_refusals(tell: Told) -> Iterator[None]:
    """Within the block ``tell`` is called where a backend that was chosen automatically does not support a call."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


class Calls(NamedTuple):
    """Calls of one kind: what a runner is made for, and what it must be able to do."""

    device_type: str
    program: Program
    spec: Spec
    gradients: bool
    state_gradients: bool
    record: bool

    def lacks(self, backend: Backend) -> Tuple[str, ...]:
        """Names of the capabilities that these calls need and a backend does not have."""
        return checks.lacking(
            backend.capabilities_on(self.device_type),
            self.program,
            self.spec,
            gradients=self.gradients,
            state_gradients=self.state_gradients,
            record=self.record,
        )


def automatic_runner(resolved: Resolved, calls: Calls) -> Runner:
    """A runner of the chosen backend, or of the next one where that does not do what these calls need.

    Raises the :class:`Unsupported` of the first one where no backend does.
    """
    missing = calls.lacks(resolved.backend)
    try:
        if missing:
            raise Unsupported(checks.unsupported(resolved, calls.program.name, missing, calls.device_type))
        return resolved.backend.runner(calls.program, calls.spec)
    except Unsupported as error:
        return automatic_runner(_behind(resolved, calls, error), calls)


def _behind(refusing: Resolved, calls: Calls, error: Unsupported) -> Resolved:
    """The next backend that can compute these calls, with a warning; raises the error where there is none."""
    name = refusing.backend.name
    for other in alternatives(calls.device_type, name):
        if not calls.lacks(other.backend):
            if default_registry().first(("refused", name, str(error))):
                warnings.warn(
                    f"backend {other.backend.name!r} computes instead of {name!r}, which was chosen automatically: "
                    f"{error}",
                    RuntimeWarning,
                    stacklevel=5,
                )
            for tell in tuple(_told):
                tell(name, other.backend.name, error)
            return other
    raise error
