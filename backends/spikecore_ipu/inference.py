"""``predict(inputs)`` on an IPU: one call of a ``poptorch.inferenceModel``."""

from __future__ import annotations

from typing import Any

from torch import nn

from spikecore_ipu.device import exclusive
from spikecore_ipu.executor import Compiled, checked_net, checked_options
from spikecore_ipu.outputs import joined
from spikecore_ipu.sdk import poptorch
from spikecore_ipu.step import Step
from spikecore_ipu.training import trainer_of


class IpuInference(Compiled):
    """``predict(inputs) -> outputs`` in eval mode, compiled at the first call, with the weights as they are now.

    Weights that a training step of the same network holds on its device are read back before a call, and other programs
    are detached until their next call, unless both have an ``options.useIpuId`` of their own. The outputs of
    all micro batches are put side by side along their batch dimension, unless the options' output mode says otherwise.
    """

    def __init__(self, net: nn.Module, options: Any = None) -> None:
        options = checked_options(options)
        step = Step(checked_net(net), None)
        super().__init__(net, step, options)
        self._weights: Any = None

    def _wrapped(self) -> Any:
        return poptorch().inferenceModel(self._step, self._options)

    def __call__(self, inputs: Any) -> Any:
        """Outputs, without gradients."""
        with exclusive():
            return self._predict(inputs)

    def _predict(self, inputs: Any) -> Any:
        modes = [(module, module.training) for module in self.net.modules()]
        self.net.eval()
        try:
            self._check_layout()
            self._take_device()
            self._hand_over()
            return joined(self._run(inputs), self._step.traced)
        finally:
            for module, mode in modes:
                module.training = mode

    def _hand_over(self) -> None:
        """Copy the weights to the device if they have changed since the last call."""
        now = _weights_of(self.net)
        if self.compiled and now != self._weights and self.executor.isAttachedToDevice():  # attaching copies them, too
            self.executor.copyWeightsToDevice()
        self._weights = now


def _weights_of(net: nn.Module) -> Any:
    """A value that differs whenever the weights do. Weights on the device that trains them are read back first."""
    trainer = trainer_of(net)
    if trainer is not None and trainer.compiled:
        trainer.executor.copyWeightsToHostIfNeeded()
    calls = None if trainer is None else trainer.calls
    return calls, [(id(held), held._version) for held in (*net.parameters(), *net.buffers())]
