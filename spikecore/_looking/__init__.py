"""Looking inside a network: firing rates and states of its neurons, seen while it runs."""

from spikecore._looking._monitor import monitor
from spikecore._looking._seen import Call, Layer, Seen

__all__ = ["Call", "Layer", "Seen", "monitor"]
