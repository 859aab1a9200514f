"""A neuron in ``nn.DataParallel``, which runs copies of a network and drops them, so that no state is carried.

By default ``nn.DataParallel`` splits the first dimension, which is time, unless the network makes time itself.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Optional, Set

from torch import nn


def check_replica(module: nn.Module, carries: bool) -> None:
    """Raise RuntimeError if ``nn.DataParallel`` would split time, or lose the state of a replica that carries it."""
    frame: Optional[FrameType] = sys._getframe(1)
    dim: Any = None
    net: Any = None
    while frame is not None and dim is None:
        if frame.f_globals.get("__name__") == "torch.nn.parallel.data_parallel":
            parallel = frame.f_locals.get("self")
            dim = frame.f_locals.get("dim", getattr(parallel, "dim", None))
            net = frame.f_locals.get("module", getattr(parallel, "module", None))
        frame = frame.f_back
    if carries:
        raise RuntimeError(
            f"{type(module).__name__} carries its state, and nn.DataParallel forgets that of its replicas after each "
            "call; use nn.parallel.DistributedDataParallel, sc.Pipeline for a network that one GPU does not hold, or "
            "step='multi' outside sc.carry_state with dim=1"
        )
    if dim == 0 and not makes_time(net):
        raise RuntimeError(f"{type(module).__name__} is in an {SPLITS_TIME}")


def makes_time(net: Any) -> bool:
    """Whether the network makes time itself, so that dimension 0 of its input is the batch.

    A module that does so has a true attribute ``makes_time``: the encoders of :mod:`spikecore.encode`, neurons with
    ``repeat``, and networks whose own ``forward`` repeats or transposes their input, which nobody can tell from
    outside.
    """
    return isinstance(net, nn.Module) and any(
        getattr(one, "makes_time", False) and getattr(one, "step", "multi") == "multi" for one in net.modules()
    )


def time_makers(net: nn.Module) -> Set[nn.Module]:
    """The encoders and neurons of a network that make time: before the first of them is called, there is none."""
    return {one for one in net.modules() if makes_time(one) and not any(True for _ in one.children())}


#: What is wrong with the default of ``nn.DataParallel``.
SPLITS_TIME = (
    "nn.DataParallel that splits dimension 0 of its input, which is time; write nn.DataParallel(net, dim=1), which "
    "splits the batch, or use nn.parallel.DistributedDataParallel; sc.Pipeline is for a network that one GPU does not "
    "hold. If the network takes the batch first and its own forward makes time, write makes_time = True into its class"
)
