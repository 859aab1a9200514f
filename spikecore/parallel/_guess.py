"""Whether the dimension that a pipeline takes for the batch, unless its user says which one is, may be time.

A stage with single-step neurons may take one step, ``[B, ...]``, or loop over the steps of ``[T, B, ...]`` itself. Both
run whichever dimension is split, and the shapes of outputs follow both. How often the neurons are called tells them
apart: with the dimension that is split if the loop is over it, always as often if it is the batch.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from torch import nn

from spikecore._base.batches import flattened
from spikecore._shell.replicas import makes_time
from spikecore.parallel import _dims as dims
from spikecore.parallel._dry import shapes

_SAY = (
    "Say which dimension of the input is the batch: Pipeline(..., batch_dim=1) for [T, B, ...], over whose steps the "
    "stages loop, batch_dim=0 for [B, ...]"
)


def check(net: nn.Module, x: Any, dim: int, size: int, calls: Sequence[int], larger: Optional[Tuple[int, int]]) -> None:
    """Raise ValueError if dimension ``dim`` of the input may be time.

    ``calls``: how often single-step neurons were called for a part of ``size``, empty if the stages could not be run
    without data. ``larger``: another size, and how often for it; None if that could not be run.
    """
    neurons = dims.outermost(net)
    if dim != 0 or not neurons or any(module.step != "single" for module in neurons):
        return
    if calls and larger is not None:
        if calls[0] != larger[1]:
            raise ValueError(
                f"Pipeline: the input has {shapes(x)}, and for a part of {size} along its first dimension the stages "
                f"call their single-step neurons {calls[0]} times, for one of {larger[0]} {larger[1]} times: they loop "
                f"over that dimension, as over time. {_SAY}"
            )
    elif not makes_time(net) and any(value.ndim > 2 for value in flattened(x)):
        raise ValueError(
            f"Pipeline: the input has {shapes(x)}, the neurons are single-step ones, and the stages could not be run "
            f"without data for parts of two sizes, which tells whether the first dimension is time. {_SAY}"
        )
