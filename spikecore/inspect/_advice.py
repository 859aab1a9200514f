"""Advice that makes a network learn, and makes it faster or smaller, the most valuable first."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple

from torch import nn

from spikecore.core.neuron import Neuron
from spikecore.core.state import Stepped
from spikecore.encode import Constant
from spikecore.graph import DROPOUTS
from spikecore.inspect._facts import Facts
from spikecore.inspect._report import Layer
from spikecore.inspect.record import neuron_of
from spikecore.layers import NormNeuron, adders, fusable
from spikecore.plugins.selection import REFERENCE, automatic_order
from spikecore.words import listed

#: A rate that is next to nothing, and a share of neurons that is most of them.
_HARDLY, _MOST = 0.001, 0.5
#: Steps of samples from which on a neuron that fires at a usual rate has fired.
_ENOUGH = 100
#: The share of inputs up to which a layer gets few spikes.
_FEW = 0.05
#: A time constant that makes potentials small where the input is divided by it.
_LONG = 5.0


class Row(NamedTuple):
    """A row of the table, and the facts that it is made of."""

    layer: Layer
    facts: Facts


Rows = Sequence[Row]


def advice(net: nn.Module, rows: Rows, device_type: str, spoilt: str) -> Tuple[str, ...]:
    """Sentences, the most valuable first: what is wrong, then what is slow.

    ``spoilt``: the place where numbers stop being finite, "" if nowhere.
    """
    wrong = spoilt or _silent(rows)
    learns = (_partly_silent(rows), _read_out(rows))
    slow = (
        _reference(rows, device_type),
        _slower(rows, device_type),
        _looped(rows),
        _repeated(net, rows),
        _fused(net, rows, device_type),
        _sparse(net, rows),
        _channels_last(rows, device_type),
    )
    return tuple([text for text in (wrong, *learns, *slow) if text])


def _silent(rows: Rows) -> str:
    """Layers that never fire, or always: the network learns nothing there, at whatever speed."""
    rows = [row for row in rows if row.layer.rate is not None and is_extreme(row.layer.rate)]
    if not rows:
        return ""
    texts = []
    # the kind of the first layer comes first
    for silent in dict.fromkeys([_is_silent(row) for row in rows]):
        who = listed([f"{_named([row])} {_how_often(row)}" for row in rows if _is_silent(row) is silent])
        means = "next to nothing comes out" if silent else "the spikes say nothing about the input"
        texts.append(f"{who} on this batch, so that {means}")
    texts.append(_way_out(rows[0]))
    if len(rows) > 1:
        texts.append("Then explain the network again: the layers behind it get other spikes")
    return ". ".join(texts)


def is_extreme(rate: float) -> bool:
    """True if a layer hardly ever fires, or at nearly every step."""
    return not _HARDLY <= rate <= 1.0 - _HARDLY


def _is_silent(row: Row) -> bool:
    return (row.layer.rate or 0.0) < 0.5


def _how_often(row: Row) -> str:
    rate = row.layer.rate or 0.0
    return {0.0: "never fired", 1.0: "fired at every step"}.get(rate) or f"fired at {100 * rate:.3g} % of all steps"


def _way_out(row: Row) -> str:
    """Sentences on a layer's input, the range of its states, and settings that change its rate."""
    name, silent, neuron, reached = _named([row]), _is_silent(row), neuron_of(row.facts.module), row.facts.ranges
    if reached.get("its input") == (0.0, 0.0):
        return f"The input of {name} is 0 at every step, so that no setting helps: look at what lies in front of it"
    before, deciding = "the layer before", ["its input", "v"]
    if isinstance(row.facts.module, NormNeuron):  # it fires by what its normalisation gives
        before, deciding = "its normalisation", ["v"]
    never = [what for what in deciding if silent and reached.get(what, (0.0, 1.0))[1] <= 0.0]
    if never:
        ways = [f"a higher bias of {before}, because {never[0]} was never positive"]
    else:
        ways = ["a larger input" if silent else "a smaller input"]
        if "threshold" in neuron.params:
            ways.append("a lower threshold" if silent else "a higher threshold")
        if silent and getattr(neuron, "decay_input", False):
            undivided = "decay_input=False, which does not divide the input by the time constant"
            ways.insert(0 if _divides(neuron) else len(ways), undivided)
    raises = "raises" if silent else "lowers"
    scales = (
        f" sc.functional.calibrate(net, x) scales the weights and the bias of {before} for a rate; where its factor is "
        "large, the learning rate must grow with it."
    )
    changes = "" if never else scales
    return (
        f"{name} is {neuron!r}; the ranges of its input and states are below its row. What {raises} the rate: "
        f"{'; '.join(ways)}.{changes} Usual rates are 0.05 to 0.4"
    )


def _partly_silent(rows: Rows) -> str:
    """Layers whose mean rate is usual, and most neurons of which fire never or always."""
    texts = []
    for row in rows:
        never, always, counts = row.layer.silent or 0.0, row.layer.saturated or 0.0, row.facts.counts
        # of a feature map many places have no input
        if counts is None or counts.ndim != 1 or row.facts.times < _ENOUGH:
            continue
        if is_extreme(row.layer.rate or 0.0) or never + always < _MOST:
            continue
        shares = [
            f"{part * len(counts):.0f} {how}"
            for part, how in ((never, "never fired"), (always, "fired at every step"))
            if part
        ]
        texts.append(f"of {len(counts)} neurons of {_named([row])} {' and '.join(shares)}")
    if not texts:
        return ""
    return (
        f"On this batch {listed(texts)}, which the mean of a layer hides: such neurons learn little. A batch "
        "normalisation before the neurons gives each of them its share"
    )


def _read_out(rows: Rows) -> str:
    """Integrators that divide their input by a long time constant."""
    rows = [row for row in rows if row.layer.rate is None and _divides(neuron_of(row.facts.module))]
    if not rows:
        return ""
    return (
        f"The input of {_named(rows)} is divided by tau, so that potentials are small and a loss of them learns "
        "slowly: decay_input=False takes the input as it is"
    )


def _divides(neuron: Optional[Neuron]) -> bool:
    tau = getattr(neuron, "tau", 0.0)
    return bool(getattr(neuron, "decay_input", False)) and isinstance(tau, float) and tau >= _LONG


def _reference(rows: Rows, device_type: str) -> str:
    """Neurons that run as operations of torch, though a kernel could compute them."""
    rows = [row for row in rows if row.layer.backend == REFERENCE]
    faster = next((name for name in automatic_order(device_type) if name != REFERENCE), "")
    plugin = {"cpu": "the plugin spikecore-numba", "cuda": "spikecore[cuda12] or spikecore[cuda13]"}
    if not rows or not (faster or device_type in plugin):
        return ""
    words = max((row.layer.words / row.layer.floor for row in rows if row.layer.words and row.layer.floor), default=0)
    moved = f", where {words:.0f} times the least possible is moved" if words > 2 else ""
    way = (
        f"backend {faster!r}, which is installed, computes all steps in one kernel"
        if faster
        else f"{plugin[device_type]} has kernels that compute all steps at once"
    )
    return f"{_named(rows)} ran step by step on the reference backend {REFERENCE!r}{moved}: {way}"


def _slower(rows: Rows, device_type: str) -> str:
    """Neurons of a CPU on a backend that was never measured faster there than numba."""
    rows = [row for row in rows if device_type == "cpu" and row.layer.backend in ("c", "opencl")]
    if not rows:
        return ""
    return (
        f"{_named(rows)} ran on {rows[0].layer.backend!r}. On a CPU 'numba', of the plugin spikecore-numba, "
        "was faster with every neuron and size that was measured; 'opencl' is for GPUs, and for CPUs without Numba"
    )


def _looped(rows: Rows) -> str:
    """Neurons that a loop of the network's own calls at each step."""
    rows = [row for row in rows if row.facts.step == "single" and row.facts.calls > 1 and row.layer.backend]
    if not rows:
        return ""
    return (
        f"{_named(rows)} took {rows[0].facts.calls} single steps in a loop of forward. A layer that feeds itself back, "
        "z = neuron(x_t + linear(z)), is sc.Recurrent(neuron, linear), which takes all steps. Unless the output of a "
        "later layer goes back into the loop, layers that take all steps, with step='multi', compute the same in one "
        "call"
    )


def _repeated(net: nn.Module, rows: Rows) -> str:
    """Layers that computed the same at every step, and the neurons that got that and can repeat it themselves."""
    repeated = [row for row in rows if row.layer.repeated]
    if not repeated:
        return ""
    steps, products = repeated[0].layer.steps, sum(row.layer.products for row in rows)
    share = sum(row.layer.products for row in repeated) / max(1, products)
    part = f", {100 * share:.0f} % of the multiplications of linear layers and convolutions" if share else ""
    neurons = [row for row in rows if row.facts.repeated and neuron_of(row.facts.module) is not None]
    way = f"put sc.encode.Constant({steps}) behind them, before what sees time, as dropout does"
    if neurons and not any(_sees_time(row.facts.module) for row in rows if row.facts.repeated):
        way = f"give {_named(neurons)} repeat={steps}, as in sc.LIF(repeat={steps})"
        if any(isinstance(module, Constant) for module in net.modules()):
            way = f"{way}, and leave out sc.encode.Constant({steps})"
    return f"{_named(repeated)} computed the same {steps} times{part}: give them one step, [B, ...], and {way}"


def _sees_time(module: nn.Module) -> bool:
    """True if a layer may give something else at each step in training, or joins steps by its dimension."""
    return isinstance(module, (*DROPOUTS, nn.RReLU, Stepped)) or hasattr(module, "dim")


def _fused(net: nn.Module, rows: Rows, device_type: str) -> str:
    """Batch normalisation that the kernel of a neuron can compute, too."""
    behind = {pair.neuron.module for pair in fusable(net).pairs}
    rows = [row for row in rows if row.facts.module in behind and _normalises(row, device_type)]
    if not rows:
        return ""
    follow = "follows" if len(rows) == 1 else "follow"
    brings = " (on a CPU that saves memory, and no time)" if device_type == "cpu" else ""
    return (
        f"{_named(rows)} {follow} a batch normalisation, which one kernel can compute as well, so that nothing "
        f"normalised is kept for backward{brings}: sc.fuse(net)"
    )


def _sparse(net: nn.Module, rows: Rows) -> str:
    """Linear layers of a CPU behind neurons with few spikes, which can add up what fired."""
    rows = [row for row in rows if row.facts.fired and _HARDLY <= row.facts.fired / row.facts.numbers_in <= _FEW]
    sizes = {row.facts.module: row.facts.numbers_in // row.facts.calls // row.facts.inputs[0].shape[-1] for row in rows}
    packed = adders(net, sizes, any(row.facts.saved for row in rows)) if rows else []
    rows = [row for row in rows if row.facts.module in packed]
    if not rows:
        return ""
    share = sum(row.facts.fired for row in rows) / sum(row.facts.numbers_in for row in rows)
    gets, adds = ("gets", "it adds") if len(rows) == 1 else ("get", "they add")
    return (
        f"{_named(rows)} {gets} spikes in {100 * share:.1f} % of the inputs: behind sc.layers.pack(net) {adds} up the "
        "weights of what fired, in place of a product with every input"
    )


def _channels_last(rows: Rows, device_type: str) -> str:
    """Convolutions of one dimension, which torch computes with the channels first, and normalisations that copy."""
    kinds = [(row, getattr(row.facts.module, "plain", type(row.facts.module))) for row in rows]
    copying = [row for row, kind in kinds if kind in (nn.Conv1d, nn.BatchNorm1d) and row.facts.copies]
    rows = [row for row, kind in kinds if kind is nn.Conv1d or row in copying]
    if not copying and (device_type != "cuda" or not rows):
        return ""
    return (
        f"{_named(rows)} computed with channels first, so that torch and the library of a GPU convert what goes in and "
        "out: sc.layers.channels_last(net) has convolutions of one dimension, and normalisations behind them, compute "
        "with channels last"
    )


def _normalises(row: Row, device_type: str) -> bool:
    """True if the kernel of a neuron takes a normalisation, too; one step repeated is normalised once."""
    neuron = row.facts.module
    resolved = neuron.bound.get(device_type) if isinstance(neuron, Neuron) and len(neuron.inputs) == 1 else None
    if resolved is None or row.layer.layout_in.startswith("one step repeated"):
        return False
    capable = resolved.backend.capabilities_on(device_type).normalisation
    return resolved.backend.name != REFERENCE and capable


def _named(rows: Rows) -> str:
    return listed([row.facts.title for row in rows])
