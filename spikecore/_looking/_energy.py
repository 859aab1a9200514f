"""``sc.energy``: synaptic operations of a network, and an estimate of what they cost."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, List, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import device_of, flattened, run_network, to_device
from spikecore._explain._preserved import preserved
from spikecore._looking._monitor import FIRING, monitor
from spikecore._looking._operations import Counting
from spikecore._looking._seen import Layer
from spikecore._looking._table import html_table, table
from spikecore._shell.checks import shown
from spikecore._shell.modules import makes_time, unwrapped
from spikecore.functional import stateful_modules, to_rest
from spikecore.neurons import Recurrent

#: Picojoules of a 32-bit floating-point multiplication and addition, of the addition alone.
E_MAC, E_AC = 4.6, 0.9


@dataclass(frozen=True)
class Operations:
    """Operations of one layer, over the batch and all time steps.

    ``macs``: multiply-accumulates, products of two numbers of which neither is a spike. ``acs``: accumulates, additions
    for spikes and in average pooling. ``products``, ``sums``: those that the layer has for whatever input, of products
    and of average pooling. ``energy``, ``twin``: picojoules per sample, of this layer and of its ReLU twin.
    """

    name: str
    kind: str
    macs: int
    acs: int
    products: int
    sums: int
    energy: float
    twin: float


@dataclass(frozen=True)
class Energy:
    """What :func:`spikecore.energy` found. ``str()`` gives a table; notebooks show the same.

    ``layers``: an :class:`Operations` for each layer that computes products or sums. ``samples``, ``steps``: B and T.
    ``e_mac``, ``e_ac``: picojoules of an operation.
    """

    layers: Tuple[Operations, ...]
    samples: int
    steps: int
    e_mac: float
    e_ac: float

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all layers, over the batch."""
        return sum(layer.macs for layer in self.layers)

    @property
    def acs(self) -> int:
        """Accumulates of all layers, over the batch."""
        return sum(layer.acs for layer in self.layers)

    @property
    def energy(self) -> float:
        """Picojoules per sample."""
        return math.fsum(layer.energy for layer in self.layers)

    @property
    def twin(self) -> float:
        """Picojoules per sample of the ReLU twin: the same layers, once, on numbers that are not 0."""
        return math.fsum(layer.twin for layer in self.layers)

    def __str__(self) -> str:
        return "\n".join([*table(_HEADINGS, self._rows(), left=2), "", *self._legend()])

    def _repr_html_(self) -> str:
        return html_table(_HEADINGS, self._rows()) + "".join(f"<p>{line}</p>" for line in self._legend())

    def _rows(self) -> List[Tuple[str, ...]]:
        rows = []
        for layer in self.layers:
            there = layer.products + layer.sums
            done = (layer.macs + layer.acs) / there if there else 0.0
            counts = (_amount(layer.macs / self.samples), _amount(layer.acs / self.samples), f"{100 * done:.1f} %")
            rows.append((layer.name or "(net)", layer.kind, *counts, _joules(layer.energy), _joules(layer.twin)))
        macs, acs = (_amount(count / self.samples) for count in (self.macs, self.acs))
        return [*rows, ("all", "", macs, acs, "", _joules(self.energy), _joules(self.twin))]

    def _legend(self) -> Tuple[str, ...]:
        return (
            f"per sample, mean of {self.samples}, over {self.steps} time steps; {self.e_mac:g} pJ a MAC, {self.e_ac:g} "
            "pJ an AC; computed: MACs and ACs of all that the layer has, above 100 % where spikes are multiples",
            "ReLU twin: the same layers once, without time steps, every product a MAC",
        )


_HEADINGS = ("layer", "kind", "MACs", "ACs", "computed", "energy", "ReLU twin")


def energy(net: nn.Module, x: Any, *, e_mac: float = E_MAC, e_ac: float = E_AC) -> Energy:
    """Run ``net`` once on ``x``, count the operations that its numbers ask for, and estimate the energy that they take.

    ::

        E = e_mac * MACs + e_ac * ACs                        of the network, per sample
        E_twin = e_mac * products + e_ac * sums              of its ReLU twin: the same layers, once

        print(sc.energy(net, images))

    Counted are the products of ``nn.Linear``, of convolutions (dilated, grouped, strided and transposed ones, too) and
    of matrices anywhere in the network (attention, ``torch.einsum``), and the additions of average pooling, from the
    very tensors that torch computes with. A product whose input is 0 is not counted, and one that padding would make
    is none. An input of spikes counts an accumulate (AC) for each product that is left, any other input a
    multiply-accumulate (MAC): so a first layer that gets an image is MACs, and one that gets events is ACs, without
    being told. Spikes are 0 and multiples of one number by whole numbers up to 4: the scale of average pooling, of a
    threshold or of dropout is folded into the weights behind it, and a multiple of m counts m accumulates. So a layer
    behind neurons that give several spikes in a step, or behind added spikes, may have more accumulates than products,
    and ``computed`` in its row of the table is then above 100 %.
    Of a product of two tensors that are no weights both factors must not be 0.

    Not counted: batch normalisation, which is folded into the layer before it; biases; maximum pooling, additions of
    shortcuts, and other functions of each number; what neurons compute within a step; and memory, which takes far more
    energy than arithmetic on most hardware. A layer that is computed once for all steps (behind ``sc.encode.Constant``)
    is counted once. It is an estimate of arithmetic for comparisons, and no measurement of any chip.

    net: a network, with or without neurons; it runs in eval mode, without gradients, from rest, and is afterwards as it
        was. What wraps it (``torch.compile``, ``DistributedDataParallel``) is left out.
    x: a batch, as for ``training_model``: ``[T, B, ...]``, or ``[B, ...]`` where an encoder makes time, where neurons
        take single steps, and without neurons; ``[B, T, ...]`` where the network itself puts time first. Neurons in
        single steps are called as the network calls them: one that takes one step counts one step, one whose
        ``forward`` loops over ``[T, B, ...]`` counts T.
    e_mac, e_ac: picojoules of an operation. The defaults are those of 32-bit floating point in 45 nm at 0.9 V, 3.7 pJ a
        multiplication and 0.9 pJ an addition: M. Horowitz, "Computing's energy problem (and what we can do about it)",
        IEEE International Solid-State Circuits Conference (ISSCC), 2014, pp. 10-14, Figure 1.1.9,
        doi:10.1109/ISSCC.2014.6757323.

    Raises TypeError for a ``net`` that is no module and an ``x`` without tensors, ValueError for energies that are no
    finite numbers of 0 or more, :class:`spikecore.Unsupported` for a layer whose products torch computes unseen (its
    fused attention, ``nn.LSTM`` on some devices), and what the network raises.
    """
    modules = stateful_modules(net)
    net = unwrapped(net)
    for name, value in (("e_mac", e_mac), ("e_ac", e_ac)):
        if isinstance(value, bool) or not (isinstance(value, (int, float)) and 0 <= value < math.inf):
            raise ValueError(f"{name}={value!r} must be picojoules of an operation, a number of 0 or more")
    inputs = to_device(x, device_of(net))
    given = flattened(inputs)
    if not given:
        raise TypeError(f"x={shown(x)} has no tensor; give the network's input, or a tuple or dict of inputs")
    with ExitStack() as stack:
        stack.enter_context(preserved(net, [one.device for one in (*net.parameters(), *given)]))
        stack.enter_context(torch.no_grad())
        net.eval()
        to_rest(modules, carried=True)
        for module in modules:
            if isinstance(
                module, Recurrent
            ):  # products within a kernel are not seen, and fused=True would insist on it
                stack.callback(setattr, module, "fused", module.fused)
                module.fused = False
        seen = stack.enter_context(monitor(net)) if any(isinstance(one, FIRING) for one in modules) else None
        counting = stack.enter_context(Counting(net))
        run_network(net, inputs)
        called = [layer for layer in seen.layers if layer.calls] if seen is not None else []
        steps = max((layer.steps for layer in called), default=1)
        samples = _samples(net, given[0], steps, called)
    rows = []
    for one in counting.found.values():
        products, sums = (
            (total - once) / steps + once
            for total, once in ((one.products, one.products_once), (one.sums, one.sums_once))
        )
        cost = (e_mac * one.macs + e_ac * one.acs) / samples
        twin = (e_mac * products + e_ac * sums) / samples
        rows.append(Operations(one.name, one.kind, one.macs, one.acs, one.products, one.sums, cost, twin))
    return Energy(tuple(rows), samples, steps, float(e_mac), float(e_ac))


def _samples(net: nn.Module, x: Tensor, steps: int, called: List[Layer]) -> int:
    """The size of the batch: of ``[T, B, ...]`` the second dimension, of an input without time the first."""
    if x.ndim < 2 or makes_time(net) or x.shape[0] != steps:
        return max(1, x.shape[0]) if x.ndim else 1
    multi = any(isinstance(module, FIRING) and module.step == "multi" for module in net.modules())
    if not multi and steps == 1:
        return 1
    # of as many samples as steps, the neurons say which: they have the batch, or the batch and its tokens in one
    seen = {call.batch for layer in called for call in layer.calls}
    for which in (lambda size: size in seen, lambda size: all(size and batch % size == 0 for batch in seen)):
        first, second = which(x.shape[0]), which(x.shape[1])
        if first != second:
            return int(x.shape[0] if first else max(1, x.shape[1]))
    return max(1, x.shape[1])


def _amount(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f}" if count == round(count) else f"{count:.1f}"


def _joules(picojoules: float) -> str:
    for unit, size in (("mJ", 1e9), ("uJ", 1e6), ("nJ", 1e3)):
        if picojoules >= size:
            return f"{picojoules / size:.2f} {unit}"
    return f"{picojoules:.2f} pJ" if picojoules else "0"
