"""Layers around neurons: stateless modules applied to all steps at once, normalisation, delays, residual blocks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spikecore.layers._batch_norm_stats import is_plain_norm
from spikecore.layers._between import Between
from spikecore.layers._blocks import (
    EachToken,
    MakeNeuron,
    MakeNorm,
    MeanOfTokens,
    MSBlock,
    SEWBlock,
    SpikingSelfAttention,
    Tokens,
    convolution,
    linear,
)
from spikecore.layers._channels_last import (
    ChannelsLastBatchNorm1d,
    ChannelsLastConv1d,
    channels_first,
    channels_last,
)
from spikecore.layers._dropout import SequenceDropout
from spikecore.layers._fusable import fusable
from spikecore.layers._fuse import fuse, unfuse
from spikecore.layers._norm_neuron import NormNeuron, NormPlace
from spikecore.layers._packed import PackedConv1d, PackedConv2d, PackedConv3d, PackedLinear
from spikecore.layers._packing import adders, is_packed, pack, packable, unpack, whole_numbers
from spikecore.layers._pooling import (
    CompactAvgPool2d,
    CompactMaxPool1d,
    CompactMaxPool2d,
    CompactMaxPool3d,
    SumPool2d,
    keeps_little,
)
from spikecore.layers._psn import PSN, SlidingPSN
from spikecore.layers._stateless import TEBN, TimeBatched, Voting, counts, makers, normalised, tdbn
from spikecore.layers.delay import Delay
from spikecore.layers.feedback import Feedback

if TYPE_CHECKING:
    from spikecore.neurons.gated import SLSTM, SConv2dLSTM, SpikingGRU, SpikingLSTM

__all__ = [
    "PSN",
    "SLSTM",
    "TEBN",
    "Between",
    "ChannelsLastBatchNorm1d",
    "ChannelsLastConv1d",
    "CompactAvgPool2d",
    "CompactMaxPool1d",
    "CompactMaxPool2d",
    "CompactMaxPool3d",
    "Delay",
    "EachToken",
    "Feedback",
    "MSBlock",
    "MakeNeuron",
    "MakeNorm",
    "MeanOfTokens",
    "NormNeuron",
    "NormPlace",
    "PackedConv1d",
    "PackedConv2d",
    "PackedConv3d",
    "PackedLinear",
    "SConv2dLSTM",
    "SEWBlock",
    "SequenceDropout",
    "SlidingPSN",
    "SpikingGRU",
    "SpikingLSTM",
    "SpikingSelfAttention",
    "SumPool2d",
    "TimeBatched",
    "Tokens",
    "Voting",
    "adders",
    "channels_first",
    "channels_last",
    "convolution",
    "counts",
    "fusable",
    "fuse",
    "is_packed",
    "is_plain_norm",
    "keeps_little",
    "linear",
    "makers",
    "normalised",
    "pack",
    "packable",
    "tdbn",
    "unfuse",
    "unpack",
    "whole_numbers",
]
__dir__ = __all__.copy

#: Layers of neurons, which stand above this package: they are imported when they are first used.
_OF_NEURONS = ("SLSTM", "SConv2dLSTM", "SpikingGRU", "SpikingLSTM")


def __getattr__(name: str) -> object:
    if name in _OF_NEURONS:
        return getattr(import_module("spikecore.neurons.gated"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
