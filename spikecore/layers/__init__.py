"""Layers around neurons: stateless modules applied to all steps at once, normalisation, delays, residual blocks."""

from __future__ import annotations

from spikecore.layers._blocks import EachToken, MeanOfTokens, MSBlock, SEWBlock, SpikingSelfAttention, Tokens
from spikecore.layers._delay import Delay
from spikecore.layers._dropout import SequenceDropout
from spikecore.layers._norm_neuron import NormNeuron
from spikecore.layers._packed import PackedConv2d, PackedLinear
from spikecore.layers._packing import pack, unpack
from spikecore.layers._psn import PSN, SlidingPSN
from spikecore.layers._stateless import TEBN, TimeBatched, Voting, tdbn

__all__ = [
    "PSN",
    "TEBN",
    "Delay",
    "EachToken",
    "MSBlock",
    "MeanOfTokens",
    "NormNeuron",
    "PackedConv2d",
    "PackedLinear",
    "SEWBlock",
    "SequenceDropout",
    "SlidingPSN",
    "SpikingSelfAttention",
    "TimeBatched",
    "Tokens",
    "Voting",
    "pack",
    "tdbn",
    "unpack",
]
