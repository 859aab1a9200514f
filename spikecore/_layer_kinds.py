"""Layers of torch.nn that have no state and treat every sample apart from the others, by what they take.

In training dropout and batch normalisation are no such layers: :mod:`spikecore._hoisting` says when they are.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Type

from torch import nn

from spikecore._packed import PackedConv2d, PackedLinear


def _of(*names: str) -> FrozenSet[Type[nn.Module]]:
    """The types of torch.nn of these names that this version of torch has."""
    return frozenset(getattr(nn, name) for name in names if hasattr(nn, name))


#: Of each number: they may stand behind any leading dimensions.
ELEMENTWISE = _of(
    *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU"),
    *("LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign"),
    *("Tanh", "Tanhshrink", "Threshold"),
)
#: Of each sample ``[B, ...]``.
OF_SAMPLES = _of(
    *(f"{name}{n}d" for n in (1, 2, 3) for name in ("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "MaxPool")),
    *("LPPool1d", "LPPool2d", "GroupNorm", "LocalResponseNorm", "PReLU", "PixelShuffle", "PixelUnshuffle"),
    *("ChannelShuffle", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"),
)
#: The same, with the number of last dimensions that they pad. ``nn.ConstantPad2d`` of ``[B, C]`` pads the batch.
PADS = {
    kind: n
    for n in (1, 2, 3)
    for kind in _of(*(f"{how}Pad{n}d" for how in ("Circular", "Constant", "Reflection", "Replication", "Zero")))
}
#: The same, of a number of dimensions: with one less torch takes a whole batch for one sample.
CONVOLUTIONS: Dict[Type[nn.Module], int] = {
    **{getattr(nn, f"Conv{kind}{n}d"): n + 2 for n in (1, 2, 3) for kind in ("", "Transpose")},
    PackedConv2d: 4,
}
DROPOUTS = _of("AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout")
BATCH_NORMS = _of("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
#: Those to which ``[T, B, ...]`` is as ``[B, ...]``.
BEHIND_TIME = ELEMENTWISE | DROPOUTS | _of("Linear", "LayerNorm", "RMSNorm") | {PackedLinear}
