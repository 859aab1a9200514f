"""The reference: one step after the other, one torch operation per node, in source order, under autograd.

It is short and obvious because it defines what every other backend must compute. Speed is not its job, but for single
steps of plain tensors, which are one node of autograd's graph.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Callable, Optional, Sequence, Tuple

from torch import Tensor

from spikecore.backend import Backend, Capabilities, ParamValue, Runner, Spec, Tensors, by_call
from spikecore.dtypes import has_float64
from spikecore.interpreter import FeedbackLoop, Interpreter, step_spec
from spikecore.kernels.eager import SingleSteps
from spikecore.lang import Program
from spikecore_torch import CAPABILITIES

_SINGLE = replace(CAPABILITIES, float64=False)


class TorchBackend(Backend):
    """Runs every program on every device, dtype and layout that PyTorch has."""

    name = "torch"
    capabilities = CAPABILITIES

    def capabilities_on(self, device_type: str) -> Capabilities:
        """All of them, but float64 where the device has none."""
        return CAPABILITIES if has_float64(device_type) else _SINGLE

    def compile(self, program: Program, spec: Spec) -> Runner:
        """An interpreter of the program; any step count, parameter kind and gradient is the same to it."""
        if spec.feedback is not None:
            return FeedbackLoop(program, TorchRunner(program, step_spec(program, spec)), spec.feedback, spec.further)
        return TorchRunner(program, spec)


class TorchRunner(Interpreter):
    """The runner: the interpreter with torch's functions, which define the language."""

    @cached_property
    def single(self) -> SingleSteps:
        """Its single steps."""
        return SingleSteps(self)

    __call__ = Interpreter.interpret

    def one_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """Implementation of :func:`spikecore.backend.one_step`."""
        call = self.single.bind(inputs, state, params)
        return by_call(self, inputs, state, params) if call is None else call(inputs, state, params)

    def bind(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Sequence[ParamValue],
        views: Sequence[Optional[Tuple[int, ...]]],
        single: bool,
    ) -> Optional[Callable[..., Tuple[Tensors, Optional[Tensors]]]]:
        """Implementation of :func:`spikecore._base.running.bound`."""
        as_they_are = all(not isinstance(p, Tensor) or tuple(p.shape) == view for p, view in zip(params, views))
        return self.single.bind(inputs, state, params) if single and as_they_are else None
