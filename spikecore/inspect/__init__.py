"""Tools to look into a network: rates and states while it runs, operations and energy, advice, pictures, text of
kernels.

- ``explain``: a network runs once, and what it did with its tensors is said layer by layer, with advice.
- ``floor_words``: the least that any implementation of a neuron moves through memory.
- ``monitor``: within a block every neuron is watched.
- ``sc.record``, which gives ``Recorded``: a state or a named value of every neuron, for a loss.
- ``energy``: the operations that the numbers of a network ask for, the words that they move through memory, and what
  both cost.
- ``kernel_source``: the kernels of a neuron. Pictures are :mod:`spikecore.plot`.
"""

from spikecore.inspect._energy import Energy, Operations, energy
from spikecore.inspect._explain import explain
from spikecore.inspect._facts import Words, floor_words
from spikecore.inspect._monitor import Call, Seen, monitor
from spikecore.inspect._report import Explanation, Layer
from spikecore.inspect._source import kernel_source
from spikecore.inspect._traffic import SRAM_45NM, Arithmetic, Form, Hardware, Memory, Traffic, Work
from spikecore.inspect.recorded import Recorded

__all__ = [
    "SRAM_45NM",
    "Arithmetic",
    "Call",
    "Energy",
    "Explanation",
    "Form",
    "Hardware",
    "Layer",
    "Memory",
    "Operations",
    "Recorded",
    "Seen",
    "Traffic",
    "Words",
    "Work",
    "energy",
    "explain",
    "floor_words",
    "kernel_source",
    "monitor",
]
__dir__ = __all__.copy
