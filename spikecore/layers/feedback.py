"""A way by which an output of a neuron comes back to its inputs: a module of one step, and its two ends."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

from torch import Tensor, nn

from spikecore.core import checks
from spikecore.core.state import Stateful, Stepped
from spikecore.layers.delay import Delay

#: Names of the inputs that something is added to, or the only one.
Into = Union[None, str, Tuple[str, ...]]


class Feedback(nn.Module):
    """One of several ways back within :class:`spikecore.Recurrent`: an output, a module, and inputs that it adds to::

        sc.Recurrent(
            Conductances(),  # inputs = ("e", "i"); outputs z, v
            [
                sc.layers.Feedback(nn.Linear(C, 2 * C), into=("e", "i"), output=0),
                sc.layers.Feedback(nn.Identity(), into="e", output=1, detach=True),
            ],
        )

    module: any module without state that computes one time step, such as ``nn.Linear``, a convolution,
        ``nn.Identity``, or a :class:`spikecore.Delay`.
    into: the name of the input that is added to, or a tuple of k names, among which one dimension of what the module
        gives, k times that of a step, is shared out in this order; None where the neuron has one input.
    output: the number of the output that comes back, from 0; None where the neuron has one.
    detach: whether what comes back is a constant for backward.
    """

    def __init__(
        self, module: nn.Module, *, into: Into = None, output: Optional[int] = None, detach: bool = False
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"Feedback: module={module!r} must be a module, such as nn.Linear(C, C)")
        self.into = tuple(into) if isinstance(into, list) else into
        self.output = output
        self.detach = detach
        self.module = module

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("into", "output") and name in self.__dict__:
            raise AttributeError(f"Feedback: {name} is fixed when a Feedback is made; make a new Recurrent")
        if name == "module":
            check_one_step("Feedback", name, value)
        if name == "detach":
            value = checks.flag("Feedback", name, value)
        super().__setattr__(name, value)

    def forward(self, y: Tensor) -> Any:
        """The module of an output ``[*N]``."""
        return self.module(y)

    def extra_repr(self) -> str:
        """The two ends, and whether it is a constant."""
        values = {"into": self.into, "output": self.output, "detach": self.detach or None}
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)


def check_one_step(owner: str, name: str, module: nn.Module) -> None:
    """Refuse a module that a loop over the steps would call wrongly: it is given one step, ``[B, ...]``."""
    if not isinstance(module, Delay):
        for part in module.modules():
            _check_part(owner, name, type(module).__name__, part)
        return
    if module.step != "multi":
        raise ValueError(f"{owner}: {name} has step='single'; give the step mode to Recurrent(step=...) instead")
    if type(module).forward is not Delay.forward:
        raise TypeError(f"{owner}: {type(module).__name__} has a forward of its own, which would not be called")
    if not isinstance(module.linear, nn.Linear):
        raise TypeError(
            f"{owner}: {name} is a Delay of {type(module.linear).__name__}, and what comes back goes through "
            "nn.Linear; give Delay(nn.Linear(C, C), max_delay)"
        )


def _check_part(owner: str, name: str, kind: str, part: nn.Module) -> None:
    """Refuse a module within a ``kind`` that would take a batch for steps, or go on from the last call."""
    if isinstance(part, Delay):
        raise ValueError(
            f"{owner}: {name} is {kind} with a Delay in it, which would take the steps one "
            "by one for whole sequences; give the Delay itself, Recurrent(neuron, Delay(nn.Linear(C, C), 20))"
        )
    inner = type(part).__name__
    where = f"{name} is {kind}" if kind == inner else f"{name} is {kind} with {inner} in it"
    if isinstance(part, Stateful):
        raise ValueError(
            f"{owner}: {where}, whose state would be no part of that of Recurrent; give a module without state, and "
            "write neurons that feed each other as the equations of one, or as a loop over neuron.run(x, state=state)"
        )
    if isinstance(part, Stepped) and part.step == "multi":
        raise ValueError(
            f"{owner}: {where} with step='multi', which would take the batch of a step for time; call "
            f"sc.set_step({name}, 'single') first"
        )
