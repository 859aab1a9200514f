"""Pictures of spikes, potentials, firing rates and surrogate derivatives, by matplotlib."""

from spikecore.inspect._plot import raster, rates, surrogates, traces

__all__ = ["raster", "rates", "surrogates", "traces"]
