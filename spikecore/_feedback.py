"""Feedback through a matrix by a loop over steps, for runners that compute under autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecore.backend import ParamValue, Runner, Spec, Tensors, one_step
from spikecore.lang import Program


class FeedbackLoop:
    """A runner of ``program`` under a spec with :attr:`~spikecore.backend.Spec.feedback`.

    ``step`` is a runner of the same program under :func:`step_spec`, which computes one step after the other; between
    them the last output goes through the matrix by torch. Derivatives of any order are autograd's.
    """

    def __init__(self, program: Program, step: Runner) -> None:
        self.program, self.step = program, step

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
        (x,), count = inputs, len(self.program.params)
        own = params[:count]
        weights: Any = params[count:]  # tensors
        now = None if state is None else state[:-1]
        last = torch.zeros_like(x[0]) if state is None else state[-1]
        outputs: List[Tensor] = []
        traces: Dict[str, List[Tensor]] = {name: [] for name in record}
        for at in x.unbind(0):
            (last,), now = one_step(self.step, (at + self.through(last, *weights),), now, own)
            outputs.append(last)
            for name, value in zip(self.program.states, now or ()):
                if name in traces:
                    traces[name].append(value)
        return (
            (torch.stack(outputs),),
            (*(now or ()), last.clone()),
            tuple([torch.stack(traces[name]) for name in record]),
        )

    def through(self, last: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        """What comes back of an output."""
        return F.linear(last.to(weight.dtype), weight, bias)


def step_spec(program: Program, spec: Spec) -> Spec:
    """The spec of one step of a program without its feedback."""
    learn = tuple([name for name in spec.learn if name in program.params])
    return replace(spec, steps=1, learn=learn, final=True, feedback=None)
