"""Work of a network, operations and words moved through memory, and what it takes on hardware with stated costs.

The words are those of E. Lemaire et al., "An analytical estimation of spiking neural networks energy efficiency",
ICONIP 2022, whose equations are named below. A memory is as large as what a layer keeps in it, and a word in a larger
one takes more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple

#: Bits of sums and states, whatever the bits of weights and inputs.
_WIDE = 32
_HOROWITZ = 'M. Horowitz, "Computing\'s energy problem", ISSCC 2014, Figure 1.1.9, doi:10.1109/ISSCC.2014.6757323'


@dataclass(frozen=True)
class Arithmetic:
    """Picojoules of a multiply-accumulate and of an accumulate of numbers of so many ``bits``, and their ``source``."""

    bits: int
    mac: float
    ac: float
    source: str


@dataclass(frozen=True)
class Memory:
    """Picojoules of 64 bits, read or written, in a memory of so many bytes, and their ``source``."""

    bytes: float
    picojoules: float
    source: str


@dataclass(frozen=True)
class Hardware:
    """Costs of operations and memory, each with its source, for :func:`spikecore.energy`.

    ``full``: arithmetic of the network as it is. ``quantised``: that of the same network in few bits, whose sums and
    states have 32. ``memories``: from the smallest to the largest. Between two of them the costs lie on a line; a
    smaller memory costs as the first one, a larger one as the last.
    """

    name: str
    full: Arithmetic
    quantised: Arithmetic
    memories: Tuple[Memory, ...]

    def word(self, words: float, bits: int) -> float:
        """Picojoules of a word of ``bits`` in a memory of so many ``words``."""
        size = words * bits / 8
        below = [memory for memory in self.memories if memory.bytes <= size] or [self.memories[0]]
        above = [memory for memory in self.memories if memory.bytes > size] or [self.memories[-1]]
        low, high = below[-1], above[0]
        part = min(1.0, max(0.0, size - low.bytes) / ((high.bytes - low.bytes) or 1))
        return (low.picojoules + part * (high.picojoules - low.picojoules)) * bits / 64

    @property
    def sources(self) -> Tuple[str, ...]:
        """Each source once."""
        memories = [memory.source for memory in self.memories]
        return tuple(dict.fromkeys([self.full.source, self.quantised.source, *memories]))


#: 45 nm at 0.9 V: 32-bit floating point, 8-bit integers summed in 32 bits, and SRAM. What is larger than 1 MiB lies in
#: several memories of that size.
SRAM_45NM = Hardware(
    "45 nm, SRAM",
    Arithmetic(32, 3.7 + 0.9, 0.9, _HOROWITZ),
    Arithmetic(8, 0.2 + 0.1, 0.1, _HOROWITZ),
    (Memory(2**13, 10.0, _HOROWITZ), Memory(2**15, 20.0, _HOROWITZ), Memory(2**20, 100.0, _HOROWITZ)),
)


class Work(NamedTuple):
    """Operations, and words moved, per sample: ``inputs`` and ``weights`` read, ``sums`` and ``states`` read and
    written, ``outputs`` written.
    """

    macs: float = 0.0
    acs: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    sums: float = 0.0
    states: float = 0.0
    outputs: float = 0.0

    @property
    def words(self) -> float:
        """All words."""
        return math.fsum(self[2:])


@dataclass(frozen=True)
class Traffic:
    """Work of one layer, or of the neurons of one, per sample.

    ``dense``: every product: each reads a weight, in a convolution an input, too; a linear layer reads each input once;
    a sum is written once. ``twin``: the same of the ReLU twin. ``sparse``: only where the input is not 0. Of spikes
    each is read once, and each accumulate reads a weight, and reads and writes a sum; products of other numbers are
    taken as in ``dense``. Neurons read and write each state at every step; ``sparse`` ones write spikes, ``dense`` ones
    read every input and write every output. ``sizes``: words of each memory.
    """

    name: str
    kind: str
    sparse: Work
    dense: Work
    twin: Work
    sizes: Work


class Form(NamedTuple):
    """Picojoules per sample of a network, or of its twin, in a number of bits."""

    name: str
    bits: int
    operations: float
    memory: float

    @property
    def energy(self) -> float:
        """Both together."""
        return self.operations + self.memory


def layer_traffic(
    name: str, kind: str, done: Work, every: Work, twin: Work, sizes: Tuple[float, float], weights: int
) -> Traffic:
    """Traffic of a layer of ``done`` operations and inputs other than 0, out of ``every``. ``weights``: how many it
    has; ``sizes``: inputs and outputs of a sample in a step.
    """
    operations = done.macs + done.acs
    if done.macs:  # equations 3, 4, 6, 11 and 12
        part = operations / (every.macs + every.acs)
        read = operations if every.inputs == every.macs + every.acs else done.inputs
        sparse = done._replace(inputs=read, weights=every.weights * part, outputs=every.outputs)
    else:  # equations 5, 7 to 10, 14 and 15
        sparse = done._replace(weights=operations if every.weights else 0.0, sums=2 * operations)
    memories = Work(inputs=sizes[0], weights=weights, sums=sizes[1], outputs=sizes[1])
    return Traffic(name, kind, sparse, every, twin, memories)


def neuron_traffic(name: str, kind: str, states: int, outputs: float, spikes: float, neurons: int) -> Traffic:
    """Traffic of neurons with so many ``states``: ``outputs`` over all steps, of which ``spikes`` are none of 0."""
    updates = 2.0 * states * outputs  # equations 9, 10 and 13 to 15
    sizes = Work(inputs=neurons, states=states * neurons, outputs=neurons)
    dense = Work(inputs=outputs, states=updates, outputs=outputs)
    return Traffic(name, kind, Work(states=updates, outputs=spikes), dense, Work(), sizes)


def cost(hardware: Hardware, arithmetic: Arithmetic, work: Work, sizes: Work) -> Tuple[float, float]:
    """Picojoules of operations and of memory."""
    bits = (arithmetic.bits, arithmetic.bits, _WIDE, _WIDE, arithmetic.bits)
    moved = [words * hardware.word(size, wide) for words, size, wide in zip(work[2:], sizes[2:], bits)]
    return arithmetic.mac * work.macs + arithmetic.ac * work.acs, math.fsum(moved)


def forms(hardware: Hardware, rows: Sequence[Traffic]) -> Tuple[Form, ...]:
    """The network with and without sparsity, and its twin, in the bits of ``full`` and of ``quantised``."""
    made: List[Form] = []
    for arithmetic in (hardware.full, hardware.quantised):
        for name in ("sparse", "dense", "twin"):
            costs = [cost(hardware, arithmetic, getattr(row, name), row.sizes) for row in rows]
            made.append(Form(name, arithmetic.bits, *[math.fsum(column) for column in zip(*costs, (0.0, 0.0))]))
    return tuple(made)


def shares(hardware: Hardware, rows: Sequence[Traffic]) -> Optional[Tuple[float, float]]:
    """The share of products that layers compute whose inputs are spikes, and that at which the network takes as much
    as its quantised twin; None without such layers. What spikes ask for is taken to grow with their number; the rest
    stays.
    """
    fed = [row for row in rows if row.sparse.acs and row.sizes.weights and not row.sparse.macs]
    if not fed:
        return None
    share = math.fsum(row.sparse.acs for row in fed) / math.fsum(row.dense.macs + row.dense.acs for row in fed)
    growing = rest = 0.0
    for row in rows:
        whole = math.fsum(cost(hardware, hardware.quantised, row.sparse, row.sizes))
        by_spikes = row.sparse if row.sparse.acs and not row.sparse.macs else Work(outputs=row.sparse.outputs)
        part = math.fsum(cost(hardware, hardware.quantised, by_spikes, row.sizes))
        growing, rest = growing + part, rest + whole - part
    twin = math.fsum(math.fsum(cost(hardware, hardware.quantised, row.twin, row.sizes)) for row in rows)
    return share, max(0.0, share * (twin - rest) / (growing or math.inf))
