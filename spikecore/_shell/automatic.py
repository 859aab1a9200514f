"""What becomes of a call that the automatically chosen backend refuses.

Nobody asked for that backend by name. A program that runs on the reference must not fail because a faster backend was
installed, so the next backend of the order computes the call, and one warning says so. Derivatives go the same way:
the second ones, and the first where the backward kernel, which is compiled in backward, cannot be had. What was asked
for by name raises instead, and this module has no part in it.

How often a refusing runner is asked again:

- After an error that is no :class:`~spikecore.backend.Unsupported`, such as a kernel that cannot be compiled, never.
- After ``Unsupported`` in a call that torch follows (a transform, a tracer, a mode), always: the reason passes with it.
- After ``Unsupported`` in a plain call, for calls that differ from it: in shape, layout, state, record or gradients.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Callable, Hashable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from spikecore._base.caches import CALLS, Recent
from spikecore._base.running import BoundCall, NormalisedCall, bound, direct_normalised, in_graph
from spikecore._plugins.registry import AUTO_NAME, default_registry
from spikecore._plugins.selection import Resolved, alternatives
from spikecore._shell import checks
from spikecore.backend import (
    BackendError,
    Capabilities,
    ParamValue,
    Runner,
    Spec,
    Tensors,
    Unsupported,
    by_call,
    one_step,
)
from spikecore.lang import Program
from spikecore.lang._plain import is_compiling, is_plain

#: Who is told of refusals: functions of the names of the refusing and of the next backend, and the error.
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
    #: Names of the capabilities that these calls need and a backend does not have.
    lacks: Callable[[Capabilities], Tuple[str, ...]]


def runner_of(resolved: Resolved, calls: Calls, owner: str) -> Runner:
    """The runner of calls of one kind.

    Where a backend was asked for by name and lacks what they need, :class:`Unsupported` names ``owner``; a backend that
    was chosen automatically leaves such calls to the next one.
    """
    if resolved.source == AUTO_NAME:
        return automatic_runner(resolved, calls)
    missing = calls.lacks(resolved.backend.capabilities_on(calls.device_type))
    if missing:
        raise Unsupported(checks.unsupported(resolved, owner, missing, calls.device_type))
    return resolved.backend.runner(calls.program, calls.spec)


def automatic_runner(resolved: Resolved, calls: Calls) -> Runner:
    """A runner of the chosen backend, or of the next one where that does not do what these calls need.

    Raises the error of the first one, :class:`Unsupported` for one, where no backend does.
    """
    missing = calls.lacks(resolved.backend.capabilities_on(calls.device_type))
    if missing:
        why = checks.unsupported(resolved, calls.program.name, missing, calls.device_type)
        return _next(resolved, calls, Unsupported(why))
    try:
        return _Automatic(resolved, calls)
    except BackendError as error:
        return _next(resolved, calls, error)


def _next(refusing: Resolved, calls: Calls, error: BackendError) -> Runner:
    """The runner of the first backend behind the refusing one that can; raises the error where none can."""
    return automatic_runner(_behind(refusing, calls, error), calls)


def _behind(refusing: Resolved, calls: Calls, error: BackendError) -> Resolved:
    """The next backend that can compute these calls, with a warning; raises the error where there is none."""
    for other in alternatives(calls.device_type, refusing.backend.name):
        if not calls.lacks(other.backend.capabilities_on(calls.device_type)):
            _warn(refusing.backend.name, other.backend.name, error)
            for tell in tuple(_told):
                tell(refusing.backend.name, other.backend.name, error)
            return other
    raise error


def _warn(name: str, other: str, error: BackendError) -> None:
    if default_registry().first(("refused", name, str(error))):
        warnings.warn(
            f"backend {other!r} computes instead of {name!r}, which was chosen automatically: {error}",
            RuntimeWarning,
            stacklevel=6,
        )


class _Automatic:
    """A runner that gives calls which its backend refuses to the runner of another backend."""

    def __init__(self, resolved: Resolved, calls: Calls) -> None:
        self._resolved, self._calls = resolved, calls
        self._other: Optional[Runner] = None
        #: Kinds of plain calls that the runner refused.
        self._refused: Recent[Hashable, bool] = Recent(CALLS)
        runner = resolved.backend.runner(calls.program, calls.spec)
        with_other = getattr(runner, "with_other", None)
        self._runner: Runner = runner if with_other is None else with_other(self._instead)

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
        if is_compiling() or self._runner is self._other:
            return self._runner(inputs, state, params, record)
        if self._other is not None and len(self._refused) and is_plain(inputs[0]):
            again = self._refused.get(_kind(inputs, state, params, record))
            if again:
                return self._other(inputs, state, params, record)
        try:
            return self._runner(inputs, state, params, record)
        except BackendError as error:
            other = self._instead(error)
            if isinstance(error, Unsupported) and is_plain(inputs[0]):
                self._refused.put(_kind(inputs, state, params, record), True)
        return other(inputs, state, params, record)

    def one_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """See :func:`spikecore.backend.one_step`."""
        if len(self._refused):  # __call__ finds out whether this call was refused before
            return by_call(self, inputs, state, params)
        try:
            return one_step(self._runner, inputs, state, params)
        except BackendError:
            return by_call(self, inputs, state, params)

    def in_graph(self, x: torch.Tensor, numbers: Sequence[float]) -> Optional[torch.Tensor]:
        """See :func:`spikecore._base.running.in_graph`. Of the runner that computes now, which torch.compile guards."""
        return in_graph(self._runner, x, numbers)

    def moments(self, x: torch.Tensor) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        """Mean and variance of an input per channel, by the backend; None where torch is to compute them."""
        find = getattr(self._runner, "moments", None)
        try:
            return None if find is None else find(x)
        except BackendError:  # the call itself meets it, too, and does what is to be done then
            return None

    def input_statistics(
        self, x: torch.Tensor, eps: float, running: Any
    ) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        """Mean and 1 / sqrt(variance + eps) of an input per channel, by the backend, which moves the running ones; None
        where torch is to compute them.
        """
        find = getattr(self._runner, "input_statistics", None)
        try:
            return None if find is None else find(x, eps, running)
        except BackendError:  # as above; before a kernel runs, so nothing was moved
            return None

    def bind(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        views: Sequence[Optional[Tuple[int, ...]]],
        single: bool,
    ) -> Optional[BoundCall]:
        """See :func:`spikecore._base.running.bound`. For as long as this runner computes, and refused nothing."""
        runner = self._runner
        call = None if len(self._refused) else bound(runner, inputs, state, params, views, single)
        if call is None:
            return None

        def automatic(inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]) -> Any:
            if self._runner is not runner:
                raise Unsupported("another backend computes by now")
            return call(inputs, state, params)

        return automatic

    def direct_normalised(self, views: Sequence[Optional[Tuple[int, ...]]]) -> Optional[NormalisedCall]:
        """See :func:`spikecore._base.running.direct_normalised`."""
        call = direct_normalised(self._runner, views)
        return None if call is None else _DirectNormalised(self, call)

    def __deepcopy__(self, memo: Any) -> _Automatic:
        return self  # copies of a neuron share its runners, as they share its backend

    def _instead(self, error: BackendError) -> Runner:
        # every error is warned of, but the other runner is made once; of two that threads make at once, either will do
        behind = _behind(self._resolved, self._calls, error)
        if self._other is None:
            self._other = automatic_runner(behind, self._calls)
        if not isinstance(error, Unsupported):
            self._runner = self._other  # no later call can succeed either
        return self._other


class _DirectNormalised:
    """A call that normalises, of a runner for as long as it is the runner of ``automatic``."""

    def __init__(self, automatic: _Automatic, call: NormalisedCall) -> None:
        self._automatic, self._call, self._runner = automatic, call, automatic._runner

    def laid(self, x: torch.Tensor, skip: Optional[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
        return self._call.laid(x, skip, tensors) if self._automatic._runner is self._runner else None

    def statistics(
        self, laid: Any, x: torch.Tensor, eps: float, running: Any
    ) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        try:
            return self._call.statistics(laid, x, eps, running)
        except BackendError:  # as in input_statistics
            return None

    def __call__(self, laid: Any, inputs: Tensors, params: Tuple[ParamValue, ...]) -> Optional[Tensors]:
        return self._call(laid, inputs, params)


def _kind(inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]) -> Any:
    """Everything that may decide whether a runner refuses a plain call, beside what the runner was made for."""
    grad = torch.is_grad_enabled()
    tensors = (*inputs, *(state or ()), *(value for value in params if isinstance(value, torch.Tensor)))
    return tuple((x.shape, x.stride(), x.device, grad and x.requires_grad) for x in tensors), state is None, record
