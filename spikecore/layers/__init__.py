"""Layers around neurons: stateless modules applied to all time steps at once, normalisation, and delays."""

from __future__ import annotations

from spikecore._delay import Delay
from spikecore._hoisting import per_sample
from spikecore._norm_neuron import NormNeuron
from spikecore.layers._time_batched import TimeBatched

__all__ = ["Delay", "NormNeuron", "TimeBatched", "per_sample"]
