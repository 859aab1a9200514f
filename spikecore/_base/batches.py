"""What goes into a network and comes out of it: tensors, and tuples, lists and dicts of them.

A batch is a tensor, a tuple or list for ``net(*inputs)``, or a dict for ``net(**inputs)``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional

import torch
from torch import Tensor, nn

from spikecore._base import structure

#: The attribute of an input that was made to repeat here.
_MADE = "_spikecore_made_to_repeat"
#: What torch says of a write into such a tensor, and of a view that it cannot have.
_REFUSED = ("more than one element of the written-to tensor", "view size is not compatible")


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
    return tree_map(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu"), value)


def inputs_on(value: Any, device: Optional[torch.device], copy: bool = False) -> Any:
    """Inputs of a network on a device, as :func:`to_device` has them or as a copy; but what repeats in an input is
    moved once and repeats there, too, where torch would write it out. :func:`repeating` goes with it.
    """
    if device is None:
        return value

    def moved(tensor: Tensor) -> Tensor:
        least = unrepeated(tensor)
        made = least.to(device, non_blocking=device.type != "cpu", copy=copy)
        if made is least:
            return tensor
        return made if least is tensor else _expanded(made, tensor)

    return tree_map(moved, value)


def laid_out_as(x: Tensor, step: Tensor) -> Tensor:
    """``step``, the one of ``x [T, ...]`` in another layout, for every step."""
    return _expanded(step, x)


def unrepeated(tensor: Tensor) -> Tensor:
    """The tensor with size 1 along each dimension of stride 0, along which it repeats: all of its memory, once."""
    # with a derivative every number has one of its own; and what inference mode made has no count of the writes into it
    if type(tensor) is not Tensor or tensor.requires_grad:
        return tensor
    if tensor.is_inference() or torch.is_inference_mode_enabled():
        return tensor
    if tensor.layout is not torch.strided or tensor.is_nested or 0 not in tensor.stride():
        return tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


@contextmanager
def repeating(inputs: Any) -> Iterator[None]:
    """Around the call of a network with inputs that were made to repeat here.

    Raises RuntimeError where the network writes into one of them, because the steps share one memory, so that a value
    written into one step appears in every step; and where torch refuses such a write, or a view of it, says of which
    input, and what to give instead.
    """
    before = [(tensor, tensor._version) for tensor in flattened(inputs) if hasattr(tensor, _MADE)]
    try:
        yield
    except RuntimeError as error:
        if before and any(words in str(error) for words in _REFUSED):
            raise RuntimeError(f"{error}. {_shared(before[0][0])}") from error
        raise
    for tensor, version in before:
        if tensor._version != version:
            raise RuntimeError(f"the network writes into its input. {_shared(tensor)}")


def _shared(tensor: Tensor) -> str:
    return (
        f"The steps of the input of shape {tuple(tensor.shape)} and strides {tensor.stride()} share one memory: write "
        "into a copy (x = x.clone()), take x.reshape(...) for x.view(...), or give the step a batch whose steps lie "
        "apart (x.contiguous())"
    )


def _expanded(made: Tensor, given: Tensor) -> Tensor:
    whole = made.expand(given.shape)
    setattr(whole, _MADE, True)
    return whole


def beside(outputs: Any, targets: Any) -> Any:
    """The targets on the device of the outputs, which may be another one than that of the inputs (several devices)."""
    places = {tensor.device for tensor in flattened(outputs)}
    return to_device(targets, places.pop()) if len(places) == 1 else targets


def run_network(net: nn.Module, inputs: Any) -> Any:
    """The network on one batch."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)
