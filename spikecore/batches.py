"""Batches and outputs of networks: tensors, and nested tuples, named tuples, lists and dictionaries of them.

A batch is a tensor, a tuple or list for ``net(*inputs)``, or a dict for ``net(**inputs)``. Anything else is a leaf.
Types and the order of keys are kept.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional, Type, TypeVar

import torch
from torch import Tensor, nn

Leaf = TypeVar("Leaf")


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same structure with ``function`` of each leaf in its place."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(map_leaves(function, item) for item in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(map_leaves(function, item) for item in structure)
    if not isinstance(structure, dict):
        return function(structure)
    items = [(key, map_leaves(function, value)) for key, value in structure.items()]
    if type(structure) is dict:
        return dict(items)
    copy = structure.copy()  # an OrderedDict for one
    copy.update(items)
    return copy


def leaves(structure: Any, kind: Type[Leaf]) -> Iterator[Leaf]:
    """The leaves of one type, from left to right."""
    if isinstance(structure, (tuple, list, dict)):
        for item in structure.values() if isinstance(structure, dict) else structure:
            yield from leaves(item, kind)
    elif isinstance(structure, kind):
        yield structure


def tree_map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with its tensors changed."""
    # isinstance() runs Python where it is asked of a tensor's class
    return map_leaves(lambda leaf: change(leaf) if type(leaf) is Tensor or isinstance(leaf, Tensor) else leaf, value)


def flattened(value: Any) -> List[Tensor]:
    """The tensors of a structure, in the order in which :func:`tree_map` meets them."""
    return list(leaves(value, Tensor))


def device_of(net: nn.Module) -> Optional[torch.device]:
    """Device of the network's parameters; None without any."""
    return next((p.device for p in net.parameters()), None)


def to_device(value: Any, device: Optional[torch.device]) -> Any:
    """The structure on a device; None leaves it where it is."""
    if device is None:
        return value
    # a copy to the host that does not block could be read before it is there
    return tree_map(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu"), value)


def folded(x: Tensor) -> Tensor:
    """``x`` ``[T, B, ...]`` with time and batch as one, ``[T * B, ...]``."""
    # Of one sample in channels-last memory, flatten() gives strides from which torch's batch normalisation on a CPU
    # computes wrong gradients, without an error (seen with torch 2.13).
    return x.squeeze(0) if x.shape[0] == 1 == x.shape[1] else x.flatten(0, 1)


def unfolded_as(y: Tensor, x: Tensor) -> Tensor:
    """``[T * B, ...]`` as ``[T, B, ...]``, with the sizes of ``x [T, B, ...]``."""
    return unfolded(y, x.shape[0], x.shape[1])


def unfolded(y: Tensor, steps: int, batch: int) -> Tensor:
    """``y`` ``[T * B, ...]`` as ``[T, B, ...]``."""
    return y.unsqueeze(0) if steps == 1 == batch else y.view(steps, batch, *y.shape[1:])


#: Layouts of images with channels last, by their number of dimensions; torch has none for one.
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def laid_last(x: Tensor) -> Tensor:
    """``x [B, C, ...]``, or a copy of it, with its channels last in memory."""
    memory_format = CHANNELS_LAST.get(x.ndim - 2)
    return (
        x.movedim(1, -1).contiguous().movedim(-1, 1)
        if memory_format is None
        else x.contiguous(memory_format=memory_format)
    )


def channels_last(inputs: Any, dims: int) -> Any:
    """The tensors of a batch that are images of ``dims`` dimensions, laid out channels-last. Shapes and numbers stay;
    of ``[T, B, C, H, W]`` every time step is channels-last, as layers that fold time into the batch see it.
    """

    def laid_out(x: Tensor) -> Tensor:
        if x.layout == torch.strided and x.ndim == dims + 2:
            return laid_last(x)
        if x.layout == torch.strided and x.ndim == dims + 3:
            return x.movedim(2, -1).contiguous().movedim(-1, 2)
        return x

    return tree_map(laid_out, inputs)


def beside(outputs: Any, targets: Any) -> Any:
    """The targets on the device of the outputs, which may be another one than that of the inputs (several devices)."""
    places = {tensor.device for tensor in flattened(outputs)}
    return to_device(targets, places.pop()) if len(places) == 1 else targets


def run_network(net: nn.Module, inputs: Any) -> Any:
    """The network on one batch."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)
