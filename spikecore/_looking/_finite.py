"""Whether the numbers of a watched call are finite: kept on the device, and read when somebody asks."""

from __future__ import annotations

from typing import List, Mapping, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Tensors
from spikecore.dtypes import has_float64


class Finite:
    """Sums over each time step of what a neuron was given and gave: NaN or infinite where a number is."""

    def __init__(
        self, module: nn.Module, inputs: Tensors, outputs: Tensors, trace: Mapping[str, Tensor], single: bool
    ) -> None:
        self._single = single
        named = [*module.named_parameters(), *module.named_buffers()]
        with torch.no_grad():
            #: By what it is.
            self._sums: List[Tuple[str, Tensor]] = [("its input has", _sum(x)) for x in inputs]
            self._parameters = [(name, tensor.detach().sum()) for name, tensor in named if tensor.is_floating_point()]
            self._sums += [(f"its state {name!r} has", _sum(values)) for name, values in trace.items()]
            self._sums += [("its output has", _sum(x)) for x in outputs]

    def in_words(self, call: int) -> str:
        """What is not finite, and since when, of the call of this number; "" where all is. It waits for the device."""
        for name, total in self._parameters:
            # an infinite threshold is one that a neuron never reaches
            if bool(torch.isnan(total)):
                return f"its parameter {name!r} has NaN, since call {call} or before"
        for what, sums in self._sums:
            spoilt = (~torch.isfinite(sums)).nonzero().flatten()
            if len(spoilt):
                step = int(spoilt[0])
                kind = "NaN" if bool(torch.isnan(sums[step])) else "an infinity"
                when = f"call {call}" if self._single else f"time step {step} of call {call}"
                return f"{what} {kind}, from {when} on"
        return ""


def _sum(x: Tensor) -> Tensor:
    """The sum of each time step, in a precision that finite numbers do not leave."""
    dims: Sequence[int] = range(1, x.ndim)
    dtype = torch.float64 if has_float64(x.device.type) else torch.float32
    return x.detach().sum(tuple(dims), dtype=dtype) if x.ndim > 1 else x.detach()
