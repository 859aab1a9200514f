"""``sc.layers.channels_last`` and ``sc.layers.channels_first``: where the channels of a network lie in memory.

Images and volumes that lie as ``[B, H, W, C]`` take no conversion around a convolution on a GPU. Torch has that layout
for two and three dimensions. For one, the layers of this module compute what lies as ``[B, L, C]`` where it lies; so
do normalisations, poolings and neurons behind them.
"""

from __future__ import annotations

from typing import Any, Dict, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore.batches import laid_last
from spikecore.context import PLAIN
from spikecore.core.checks import check_network
from spikecore.core.modules import replace_modules
from spikecore.graph import CONVOLUTIONS
from spikecore.layers._batch_norm_stats import where_it_lies
from spikecore.layers._packed import PackedConv1d, as_kind, is_product


class ChannelsLastConv1d(nn.Conv1d):
    """``nn.Conv1d`` whose output has its channels last in memory: ``[B, C, L] -> [B, D, L']`` lies as ``[B, L', D]``.

    It is computed as a convolution in two dimensions, one of which is 1; with a kernel of 1 as a product over the
    channels. An input that lies in the same way is read where it is; another one is copied. Parameters, names in
    ``state_dict`` and numbers, to rounding, are those of ``nn.Conv1d``. :func:`channels_last` puts it into a network.

    args, keywords: those of ``nn.Conv1d``.
    """

    computes = nn.Conv1d

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        _lay(self, last=True)

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, L] -> [B, D, L']``, or ``[C, L] -> [D, L']``."""
        weight, bias, padding = self.weight, self.bias, self.padding
        if is_product(self):
            places = input if self.stride == (1,) else input[..., :: self.stride[0]]
            return F.linear(places.transpose(-1, -2), weight.squeeze(2), bias).transpose(-1, -2)
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._reversed_padding_repeated_twice, self.padding_mode), (0,)
        x = (input if input.ndim > 2 else input.unsqueeze(0)).unsqueeze(2)
        x = x.contiguous(memory_format=torch.channels_last)
        of_two: Any = padding if isinstance(padding, str) else (0, *padding)
        stride, dilation = (1, *self.stride), (1, *self.dilation)
        y = F.conv2d(x, weight.unsqueeze(2), bias, stride, of_two, dilation, self.groups).squeeze(2)
        return y if input.ndim > 2 else y.squeeze(0)


class ChannelsLastBatchNorm1d(nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that leaves ``[B, C, L]`` with its channels last in memory as it lies.

    Torch's own copies such an input, or reads it slowly. Everything else is that of ``nn.BatchNorm1d``.
    :func:`channels_last` puts it into a network.

    args, keywords: those of ``nn.BatchNorm1d``.
    """

    computes = of_samples = nn.BatchNorm1d

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, L] -> [B, C, L]``, or ``[B, C] -> [B, C]``."""
        return where_it_lies(super().forward, input)


#: Torch's layers, and those that take their place.
_LAST: Dict[Type[nn.Module], Type[nn.Module]] = {
    nn.Conv1d: ChannelsLastConv1d,
    nn.BatchNorm1d: ChannelsLastBatchNorm1d,
}
_FIRST = {last: first for first, last in _LAST.items()}
#: The convolutions whose weights have a layout.
KINDS = (*CONVOLUTIONS, nn.ConvTranspose2d, nn.ConvTranspose3d)


def channels_last(net: nn.Module) -> nn.Module:
    """Have the convolutions of ``net`` compute with channels last in memory; gives ``net`` back.

    Of two and three dimensions that is torch's ``channels_last`` and ``channels_last_3d``: the weights are laid so, and
    a convolution gives what lies as its weight. In the place of ``nn.Conv1d`` and ``nn.BatchNorm1d``, for which torch
    has no such layout, stand :class:`ChannelsLastConv1d` and :class:`ChannelsLastBatchNorm1d`. Poolings, neurons and
    normalisations behind them leave a tensor as it lies, so that nothing is converted but the input of the first
    layer, and that once where it comes so already: ``x.movedim(2, -1).contiguous().movedim(-1, 2)`` for ``[T, B, C,
    ...]``.

    Parameters and hooks stay the same objects, so that an optimiser goes on, and ``state_dict()`` has the same keys.
    Shapes stay, and numbers to rounding; it may be called before or behind :func:`fuse` and :func:`pack`. Left as they
    are: subclasses, layers with a parametrisation, lazy layers before their first call, ``nn.ConvTranspose1d``, and
    ``net`` itself. Call it before ``DistributedDataParallel`` wraps the network, and before the first step of an
    optimiser with ``fused=True``, whose states lie as the weights. :func:`channels_first` undoes it. Raises TypeError
    for what is no module.
    """
    check_network("sc.layers.channels_last", net)
    return _laid(net, last=True)


def channels_first(net: nn.Module) -> nn.Module:
    """Undo :func:`channels_last` in ``net``, which is given back: torch's layers, and contiguous weights.

    Raises TypeError for what is no module.
    """
    check_network("sc.layers.channels_first", net)
    return _laid(net, last=False)


def _laid(net: nn.Module, last: bool) -> nn.Module:
    others = _LAST if last else _FIRST
    module: Any
    for module in net.modules():
        if isinstance(module, KINDS):
            _lay(module, last)
        if isinstance(module, PackedConv1d):
            module.plain = others.get(module.plain, module.plain)
    replace_modules(
        net, {module: as_kind(module, others[type(module)]) for module in net.modules() if type(module) in others}
    )
    return net


def _lay(convolution: nn.Module, last: bool) -> None:
    """Lay the weight of a convolution in memory; values stay. There is none where a parametrisation computes it."""
    weight = convolution._parameters.get("weight")
    if weight is not None and type(weight) in PLAIN:
        weight.data = laid_last(weight.data) if last else weight.data.contiguous()
