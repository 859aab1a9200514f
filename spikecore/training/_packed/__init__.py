"""Spikes that are saved for backward, kept as bits.

``sc.packed_spikes()`` does it by a hook of tensors that are saved (:mod:`spikecore.training._packed.hooks`), a compiled
network in its graph (:mod:`spikecore.training._packed.compiled`).
"""

from spikecore.training._packed.hooks import InBits, packed_spikes, packing_around

__all__ = ["InBits", "packed_spikes", "packing_around"]
