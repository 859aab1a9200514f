"""Networks over several processes: what torch's engines make of one.

``DistributedDataParallel`` wraps a network, whose names then have a prefix. ``fully_shard`` turns parameters into
shards (``DTensor``), and into plain tensors while the module it was given runs.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Tuple

from torch import Tensor, nn

from spikecore.lang._plain import PLAIN

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(net: nn.Module) -> nn.Module:
    """The network itself, within ``DistributedDataParallel``, ``torch.compile`` and ``sc.checkpoint``."""
    inner: Any = net
    while True:
        if isinstance(inner, _WRAPPERS) or getattr(type(inner), "is_checkpointed", False):
            inner = inner._modules["module"]
        elif "_orig_mod" in inner._modules:
            inner = inner._modules["_orig_mod"]
        else:
            break
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
