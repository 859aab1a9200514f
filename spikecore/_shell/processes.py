"""Networks over several processes: what torch's engines make of one, and what would go wrong there in silence.

``DistributedDataParallel`` wraps a network, whose names then have a prefix. ``fully_shard`` turns parameters into
shards (``DTensor``), and into plain tensors while the module it was given runs. ``torch.distributed.pipelining`` calls
a part of the network once for each part of the batch, and once before for the shapes.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from spikecore._shell.replicas import makes_time
from spikecore.lang._plain import PLAIN

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
PIPELINING = "torch.distributed.pipelining"


def unwrapped(net: nn.Module) -> nn.Module:
    """The network itself, within ``DistributedDataParallel``, ``nn.DataParallel`` and ``torch.compile``."""
    inner: Any = net
    while isinstance(inner, _WRAPPERS) or "_orig_mod" in inner._modules:
        inner = inner.module if isinstance(inner, _WRAPPERS) else inner._modules["_orig_mod"]
    return inner  # type: ignore[no-any-return]  # a module holds modules


def named_as(net: nn.Module, state: Mapping[str, Any]) -> nn.Module:
    """``net``, if ``state`` names its values as this wrapped network does, else the network within."""
    return net if state.keys() == net.state_dict().keys() else unwrapped(net)


def is_shard(value: Any) -> bool:
    """Whether it is a ``DTensor``, of which each process may hold a part only."""
    return isinstance(value, Tensor) and type(value) not in PLAIN and hasattr(value, "full_tensor")


def check_gathered(owner: str, x: Tensor, named: Sequence[Tuple[str, Any]]) -> None:
    """Raise RuntimeError for a parameter that is a shard beside an input that is none."""
    for name, value in named:
        if is_shard(value) and not is_shard(x):
            raise RuntimeError(
                f"{owner}: {name} is sharded over processes (fully_shard), and gathered only while the forward of the "
                "module that was given to fully_shard runs. Call the neuron within that; where it is called as "
                "neuron.run(...), after torch.distributed.fsdp.register_fsdp_forward_method(neuron, 'run'); or gather "
                "by hand: unshard() of the module that was given to fully_shard before, reshard() after"
            )


def check_micro_batch(module: nn.Module) -> None:
    """Raise RuntimeError if a stage of a pipeline is called, whose earlier call left the state to go on from."""
    if any(True for _ in _pipelining()):
        raise RuntimeError(
            f"{type(module).__name__} carries its state from one call of a stage of {PIPELINING} to the next: these "
            "are micro-batches, of other samples, and a first call that finds out shapes. Let each begin at rest: with "
            "step='multi' outside sc.carry_state, or by sc.reset(self) first in the forward of the stage"
        )


def check_split(module: nn.Module) -> None:
    """Raise RuntimeError if a schedule of ``torch.distributed.pipelining`` splits dimension 0, where time is."""
    if PIPELINING not in sys.modules:
        return
    stage: Any = None
    for one in _pipelining():
        if stage is None and hasattr(one, "submod"):
            stage = one
        specs = [getattr(one, name, ()) for name in ("_args_chunk_spec", "_kwargs_chunk_spec")]
        if specs == [None, None] and getattr(one, "_n_microbatches", 1) > 1:
            if stage is not None and stage.is_first and not makes_time(stage.submod):
                raise RuntimeError(
                    f"{type(module).__name__} is in the first stage of a pipeline that splits dimension 0 of its "
                    "input, which is time. TensorChunkSpec of torch.distributed.pipelining.microbatch says otherwise: "
                    f"{type(one).__name__}(..., args_chunk_spec=(TensorChunkSpec(1),), output_merge_spec="
                    "TensorChunkSpec(1)) splits the batch of [T, B, ...]; TensorChunkSpec(0) is for an input whose "
                    "dimension 0 is the batch"
                )
            return


def _pipelining() -> Iterator[Any]:
    """The stages and schedules at work in the calls that led here, from the inside out."""
    if PIPELINING not in sys.modules:
        return
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(f"{PIPELINING}."):
            one = frame.f_locals.get("self")
            if one is not None:
                yield one
        frame = frame.f_back
