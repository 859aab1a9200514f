"""Looking inside a network: rates and states of its neurons, seen while it runs, and the operations that it takes."""

from spikecore._looking._energy import Energy, Operations, energy
from spikecore._looking._monitor import monitor
from spikecore._looking._seen import Call, Layer, Seen

__all__ = ["Call", "Energy", "Layer", "Operations", "Seen", "energy", "monitor"]
