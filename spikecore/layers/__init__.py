"""Layers around neurons: stateless modules applied to all steps at once, normalisation, delays, residual blocks."""

from __future__ import annotations

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
from spikecore.layers._delay import Delay
from spikecore.layers._dropout import SequenceDropout
from spikecore.layers._norm_neuron import NormNeuron
from spikecore.layers._packed import PackedConv2d, PackedLinear
from spikecore.layers._packing import pack, unpack
from spikecore.layers._pooling import CompactAvgPool2d, CompactMaxPool2d, SumPool2d
from spikecore.layers._psn import PSN, SlidingPSN
from spikecore.layers._stateless import TEBN, TimeBatched, Voting, counts, makers, normalised, tdbn

__all__ = [
    "PSN",
    "TEBN",
    "CompactAvgPool2d",
    "CompactMaxPool2d",
    "Delay",
    "EachToken",
    "MSBlock",
    "MakeNeuron",
    "MakeNorm",
    "MeanOfTokens",
    "NormNeuron",
    "PackedConv2d",
    "PackedLinear",
    "SEWBlock",
    "SequenceDropout",
    "SlidingPSN",
    "SpikingSelfAttention",
    "SumPool2d",
    "TimeBatched",
    "Tokens",
    "Voting",
    "convolution",
    "counts",
    "linear",
    "makers",
    "normalised",
    "pack",
    "tdbn",
    "unpack",
]
