"""Channels-last networks: convolutions, their optimiser's states and their inputs with the channels last in memory.

Shapes and numbers stay what they are. ``[T, B, C, H, W]`` has every time step channels-last, as layers that fold time
into the batch see it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import tree_map

#: Convolutions by their number of dimensions.
_CONVOLUTIONS: Dict[int, Tuple[type, ...]] = {
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}
_FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def dimensions(net: nn.Module) -> int:
    """The number of dimensions of the network's convolutions, 2 or 3; 0 without such, or with both."""
    found = {dims for dims, kinds in _CONVOLUTIONS.items() if any(isinstance(one, kinds) for one in net.modules())}
    return found.pop() if len(found) == 1 else 0


def weights_channels_last(net: nn.Module, dims: int) -> List[Tensor]:
    """Lay the weights of convolutions out channels-last, in place; gives these weights."""
    found: List[Tensor] = []
    for module in net.modules():
        if isinstance(module, _CONVOLUTIONS[dims]):
            weight = module._parameters.get("weight")  # None where a parametrization computes it
            if weight is not None:
                weight.data = weight.data.contiguous(memory_format=_FORMATS[dims])
                found.append(weight)
    return found


def states_channels_last(optimizer: Any, weights: List[Tensor], dims: int) -> None:
    """Lay an optimiser's states of these weights out as the weights are: fused updates want the same strides."""
    for weight in weights:
        for name, value in optimizer.state.get(weight, {}).items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                optimizer.state[weight][name] = value.contiguous(memory_format=_FORMATS[dims])


def inputs_channels_last(inputs: Any, dims: int) -> Any:
    """The tensors of a batch that are images, with or without time, laid out channels-last."""

    def laid_out(x: Tensor) -> Tensor:
        if x.layout == torch.strided and x.ndim == dims + 2:
            return x.contiguous(memory_format=_FORMATS[dims])
        if x.layout == torch.strided and x.ndim == dims + 3:
            return x.movedim(2, -1).contiguous().movedim(-1, 2)
        return x

    return tree_map(laid_out, inputs)
