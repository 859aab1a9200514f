"""Learning rules that move along with time: each a choice of what is kept of a neuron's transition, and how.

The path of a chunk: :class:`OnlineTraining` runs the network on it and records its calls, cut at every neuron
(:mod:`~spikecore_online._chunk`), where neurons compute by programs that the rule makes of theirs
(:mod:`~spikecore_online._rules`). Backward goes from neuron to neuron
(:mod:`~spikecore_online._backward`), and at each asks the traces of its weights
(:mod:`~spikecore_online._traces`) and of its parameters
(:mod:`~spikecore_online._sensitivities`) what the chunk owes to earlier steps. Local plasticity has no
backward, and pairs the spikes of the calls (:mod:`~spikecore_online._plasticity`).
"""

from spikecore_online._options import OnlineOptions
from spikecore_online._plasticity import STDP
from spikecore_online.step import OnlineTraining

__all__ = ["STDP", "OnlineOptions", "OnlineTraining"]
