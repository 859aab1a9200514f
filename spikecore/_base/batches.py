"""What goes into a network and comes out of it: tensors, and tuples, lists and dicts of them.

A batch is a tensor, a tuple or list for ``net(*inputs)``, or a dict for ``net(**inputs)``.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch
from torch import Tensor, nn

from spikecore._base import structure


def tree_map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure of tuples, lists and dicts with its tensors changed."""
    # isinstance() runs Python where it is asked of a tensor's class
    return structure.tree_map(
        lambda leaf: change(leaf) if type(leaf) is Tensor or isinstance(leaf, Tensor) else leaf, value
    )


def flattened(value: Any) -> List[Tensor]:
    """The tensors of a structure, in the order in which :func:`tree_map` meets them."""
    return list(structure.leaves(value, Tensor))


def device_of(net: nn.Module) -> Optional[torch.device]:
    """Where the network's parameters are; None without any."""
    return next((p.device for p in net.parameters()), None)


def to_device(value: Any, device: Optional[torch.device]) -> Any:
    """The structure on a device; None leaves it where it is."""
    if device is None:
        return value
    # a copy to the host that does not block could be read before it is there
    return tree_map(lambda tensor: moved(tensor, device, non_blocking=device.type != "cpu"), value)


def moved(tensor: Tensor, device: torch.device, non_blocking: bool = False, copy: bool = False) -> Tensor:
    """``tensor.to(device, ...)``; what repeats there repeats here, too, where torch would write it out."""
    least = unrepeated(tensor)
    made = least.to(device, non_blocking=non_blocking, copy=copy)
    if made is least:
        return tensor
    return made if least is tensor else made.expand(tensor.shape)


def unrepeated(tensor: Tensor) -> Tensor:
    """The tensor with size 1 along each dimension of stride 0, along which it repeats: all of its memory, once."""
    if tensor.layout is not torch.strided or type(tensor) is not Tensor or 0 not in tensor.stride():
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def beside(outputs: Any, targets: Any) -> Any:
    """The targets on the device of the outputs, which may be another one than that of the inputs (several devices)."""
    places = {tensor.device for tensor in flattened(outputs)}
    return to_device(targets, places.pop()) if len(places) == 1 else targets


def run_network(net: nn.Module, inputs: Any) -> Any:
    """The network on one batch."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)
