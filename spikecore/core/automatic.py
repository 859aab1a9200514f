"""Fallback of a call that the automatically chosen backend refuses.

Nobody asked for that backend by name. A program that runs on the reference must not fail because a faster backend was
installed, so the next backend of the order computes the call, and one warning says so. Derivatives go the same way:
the second ones, and the first where the backward kernel, which is compiled in backward, cannot be had. What was asked
for by name raises instead, and this module has no part in it.

After ``Unsupported`` the backend is asked again for the next call. After another error, such as a kernel that cannot be
compiled, it is not asked again.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from torch import Tensor

from spikecore._base.running import BoundCall, bound, in_graph
from spikecore._plugins.registry import default_registry
from spikecore._plugins.selection import Resolved, alternatives
from spikecore.backend import Backend, BackendError, ParamValue, Runner, Spec, Tensors, Unsupported, by_call, one_step
from spikecore.context import is_compiling
from spikecore.core import checks
from spikecore.lang import Program

#: Listeners of refusals: functions of the names of the refusing and of the next backend, and the error.
Told = Callable[[str, str, BackendError], None]
_told: List[Told] = []


@contextmanager
def told_of_refusals(tell: Told) -> Iterator[None]:
    """Within the block ``tell`` is called where an automatically chosen backend refuses and the next one computes."""
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

    Raises the error of the first one, :class:`Unsupported` for one, where no backend does.
    """
    missing = calls.lacks(resolved.backend)
    try:
        if missing:
            raise Unsupported(checks.unsupported(resolved, calls.program.name, missing, calls.device_type))
        return _Automatic(resolved, calls)
    except BackendError as error:
        return automatic_runner(_behind(resolved, calls, error), calls)


def _behind(refusing: Resolved, calls: Calls, error: BackendError) -> Resolved:
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


class _Automatic:
    """A runner that gives calls which its backend refuses to the runner of another backend."""

    def __init__(self, resolved: Resolved, calls: Calls) -> None:
        self._resolved, self._calls = resolved, calls
        self._other: Optional[Runner] = None
        runner = resolved.backend.runner(calls.program, calls.spec)
        with_other = getattr(runner, "with_other", None)
        self._runner: Runner = runner if with_other is None else with_other(self._instead)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Implementation of :meth:`spikecore.backend.Backend.compile`."""
        if is_compiling() or self._runner is self._other:
            return self._runner(inputs, state, params, record)
        try:
            return self._runner(inputs, state, params, record)
        except BackendError as error:
            other = self._instead(error)
        return other(inputs, state, params, record)

    def one_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """Implementation of :func:`spikecore.backend.one_step`."""
        try:
            return one_step(self._runner, inputs, state, params)
        except BackendError:  # __call__ raises it again, or falls back
            return by_call(self, inputs, state, params)

    def in_graph(self, x: Tensor, numbers: Sequence[float]) -> Optional[Tensor]:
        """Implementation of :func:`spikecore._base.running.in_graph`; torch.compile guards the current runner."""
        return in_graph(self._runner, x, numbers)

    def bind(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        views: Sequence[Optional[Tuple[int, ...]]],
        single: bool,
    ) -> Optional[BoundCall]:
        """Implementation of :func:`spikecore._base.running.bound`, valid while this runner computes."""
        runner = self._runner
        call = bound(runner, inputs, state, params, views, single)
        if call is None:
            return None

        def automatic(inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Any:
            if self._runner is not runner:
                raise Unsupported("another backend computes by now")
            return call(inputs, state, params)

        return automatic

    def moments(self, x: Tensor, dim: int) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and variance of an input per channel, by the backend; None where torch is to compute them."""
        return self._statistics("moments", x, dim)  # type: ignore[no-any-return]  # as declared

    def input_statistics(self, x: Tensor, dim: int, eps: float, running: Any) -> Optional[Tuple[Tensor, Tensor]]:
        """Mean and 1 / sqrt(variance + eps) of an input per channel, by the backend, which moves the running ones; None
        where torch is to compute them.
        """
        return self._statistics("input_statistics", x, dim, eps, running)  # type: ignore[no-any-return]  # as declared

    def _statistics(self, name: str, *arguments: Any) -> Any:
        find = getattr(self._runner, name, None)
        try:
            return None if find is None else find(*arguments)
        except BackendError:  # before a kernel runs, so nothing was moved; the call itself meets it, too
            return None

    def _instead(self, error: BackendError) -> Runner:
        # every error is warned of, but the other runner is made once; of two that threads make at once, either will do
        behind = _behind(self._resolved, self._calls, error)
        if self._other is None:
            self._other = automatic_runner(behind, self._calls)
        if not isinstance(error, Unsupported):
            self._runner = self._other  # no later call can succeed either
        return self._other
