"""What goes into a network and comes out of it: tensors, and tuples, lists and dicts of them.

A batch is a tensor, a tuple or list for ``net(*inputs)``, or a dict for ``net(**inputs)``.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch
from torch import Tensor, nn


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure of tuples, lists and dicts with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)({key: mapped(change, item) for key, item in value.items()})
    if isinstance(value, (tuple, list)):
        items = [mapped(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def flattened(value: Any) -> List[Tensor]:
    """The tensors of a structure, in the order in which :func:`mapped` meets them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flattened(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in flattened(item)]
    return []


def home(net: nn.Module) -> Optional[torch.device]:
    """Where the network's parameters are; None without any."""
    return next((p.device for p in net.parameters()), None)


def sent(value: Any, device: Optional[torch.device]) -> Any:
    """The structure on a device; None leaves it where it is."""
    return value if device is None else mapped(lambda tensor: tensor.to(device, non_blocking=True), value)


def run(net: nn.Module, inputs: Any) -> Any:
    """The network on one batch."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)
