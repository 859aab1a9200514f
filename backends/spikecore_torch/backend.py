"""The reference: one step after the other, one torch operation per node, in source order, under autograd.

It is short and obvious because it defines what every other backend must compute. Speed is not its job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Tuple

from spikecore.backend import Backend, Capabilities, ParamValue, Runner, Spec, Tensors, by_call
from spikecore.dtypes import has_float64
from spikecore.interpreter import FeedbackLoop, Interpreter, is_autocast, step_spec
from spikecore.lang import Program
from spikecore.lang.eager import is_plain
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
            return FeedbackLoop(program, TorchRunner(program, step_spec(program, spec)), spec.feedback)
        return TorchRunner(program, spec)


class TorchRunner(Interpreter):
    """The runner: the interpreter with torch's functions, which define the language."""

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        return self.interpret(inputs, state, params, record)

    def one_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """See :func:`spikecore.backend.one_step`."""
        if self.ties or self.program.normalised or not is_plain(inputs[0]) or is_autocast(inputs[0].device.type):
            return by_call(self, inputs, state, params)
        return self.single_step(inputs, state, params)
