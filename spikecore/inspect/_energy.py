"""``sc.energy``: operations of a network's forward pass, counted in the tensors that torch gets, and what they cost."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spikecore.backend import Unsupported
from spikecore.batches import flattened, run_network, tree_map
from spikecore.core.modules import makes_time, time_makers
from spikecore.core.neuron import Neuron
from spikecore.dtypes import has_float64
from spikecore.functional import mask_of, stateful_modules, to_rest
from spikecore.inspect._explain import copied, cuda_devices
from spikecore.inspect._monitor import Layer, monitor
from spikecore.inspect._report import Report, Table, dimension_of_time, input_as_read, scaled
from spikecore.inspect._traffic import (
    SRAM_45NM,
    Arithmetic,
    Form,
    Hardware,
    Traffic,
    Work,
    cost,
    forms,
    layer_traffic,
    neuron_traffic,
    shares,
)
from spikecore.inspect.record import Call, neuron_of, neurons_of, record, stateful_of
from spikecore.layers import Delay, NormNeuron
from spikecore.losses import Steps
from spikecore.neurons import Recurrent


@dataclass(frozen=True)
class Operations:
    """Operations of one layer per sample, over all time steps: means over the batch.

    ``macs``: multiply-accumulates, products of two numbers of which neither is a spike. ``acs``: accumulates, additions
    for spikes and in average pooling. ``products``, ``sums``: those that the layer has for whatever input, of products
    and of average pooling. ``energy``, ``twin``: picojoules of this layer and of its ReLU twin.
    """

    name: str
    kind: str
    macs: float
    acs: float
    products: float
    sums: float
    energy: float
    twin: float

    def cells(self) -> Tuple[str, ...]:
        """The first cells of the row of a table."""
        there, done = self.products + self.sums, self.macs + self.acs
        part = f"{100 * done / (there or 1):.1f} %" if self.kind else ""
        return (
            self.name or "(net)",
            self.kind,
            _amount(self.macs),
            _amount(self.acs),
            part,
            _joules(self.energy),
            _joules(self.twin),
        )


@dataclass(frozen=True)
class Energy(Report):
    """Result of :func:`spikecore.energy`. ``str()`` gives a table; notebooks show the same.

    ``layers``: an :class:`Operations` for each layer that computes products or sums. ``samples``, ``steps``: B and T.
    ``e_mac``, ``e_ac``: picojoules of an operation. ``timed``: whether the input had the steps, so that the twin takes
    each of them, too. ``read``: what the dimensions of the input were taken for. ``silent``: layers of neurons that
    gave no spike. ``traffic``: a :class:`Traffic` for each of these layers and for each layer of neurons, in the order
    of the network. ``hardware``: the costs.
    """

    layers: Tuple[Operations, ...]
    samples: int
    steps: int
    e_mac: float
    e_ac: float
    timed: bool = False
    read: str = ""
    silent: Tuple[str, ...] = ()
    traffic: Tuple[Traffic, ...] = ()
    hardware: Hardware = SRAM_45NM

    @property
    def macs(self) -> float:
        """Multiply-accumulates of all layers, per sample."""
        return math.fsum(layer.macs for layer in self.layers)

    @property
    def acs(self) -> float:
        """Accumulates of all layers, per sample."""
        return math.fsum(layer.acs for layer in self.layers)

    @property
    def energy(self) -> float:
        """Picojoules per sample."""
        return math.fsum(layer.energy for layer in self.layers)

    @property
    def twin(self) -> float:
        """Picojoules per sample of the ReLU twin: the same layers on numbers that are not 0, once, or at each step
        of an input that has time.
        """
        return math.fsum(layer.twin for layer in self.layers)

    @property
    def forms(self) -> Tuple[Form, ...]:
        """Operations and memory of the network with and without sparsity, and of its ReLU twin, in 32 and 8 bits."""
        return forms(self.hardware, self.traffic)

    @property
    def break_even(self) -> Optional[float]:
        """The share of products, of layers behind spikes, at which the network takes as much as its quantised twin:
        below it less. None where no layer gets spikes.
        """
        parts = shares(self.hardware, self.traffic)
        return None if parts is None else parts[1]

    def _table(self) -> Table:
        computed = {(layer.name, layer.kind): layer for layer in self.layers}
        rows = []
        for row in self.traffic:
            layer = computed[row.name, row.kind] if row.dense.macs + row.dense.acs else None
            left = (row.name or "(net)", row.kind, *[""] * 5) if layer is None else layer.cells()
            memory = cost(self.hardware, self.hardware.full, row.sparse, row.sizes)[1]
            rows.append((*left, _amount(row.sparse.words), _joules(memory)))
        words = math.fsum(row.sparse.words for row in self.traffic)
        whole = Operations("all", "", self.macs, self.acs, 0, 0, self.energy, self.twin).cells()
        rows.append((*whole, _amount(words), _joules(self.forms[0].memory)))
        return Table(_HEADINGS, rows, 2, [*self._legend(), *self._sums(), _LEFT_OUT], title=self._title())

    def _legend(self) -> List[str]:
        how = f"at each of the {self.steps} steps of the input" if self.timed else "once, without time steps"
        return [
            f"per sample, mean of {self.samples}, over {self.steps} time steps; {self.e_mac:g} pJ a MAC, {self.e_ac:g} "
            "pJ an AC; computed: MACs and ACs of all that the layer has, above 100 % where spikes are multiples",
            f"ReLU twin: the same layers {how}, every product a MAC",
            f"words, memory: what the MACs and ACs, states and spikes read and write; {self.hardware.name}",
        ]

    def _sums(self) -> List[str]:
        """Lines about each form, and where the network is as good as its twin."""
        lines = [f"{'':31}{'operations':>12}{'memory':>12}{'together':>12}"]
        for form in self.forms:
            cells = [_joules(value).rjust(12) for value in (form.operations, form.memory, form.energy)]
            lines.append(f"{f'{_FORMS[form.name]}, {form.bits} bits':31}{''.join(cells)}")
        parts = shares(self.hardware, self.traffic)
        if parts is not None:
            share, even = (f"{100 * value:.1f} %" for value in parts)
            lines.append(
                f"break-even with the ReLU twin in {self.hardware.quantised.bits} bits: {even} of the products behind "
                f"spikes; computed are {share}"
            )
        return ["", *lines, ""]

    def _title(self) -> str:
        """Reading of the input, behind what makes the numbers worthless."""
        unread = ", ".join([row.name or "(net)" for row in self.layers if row.products and not row.macs + row.acs])
        texts = [f"{', '.join(self.silent)} gave no spike"] if self.silent else []
        texts += [f"every input of {unread} was 0"] if unread else []
        warning = (
            f"{', and '.join(texts)}: before you compare energies, see why by sc.explain(net, x). " if texts else ""
        )
        return f"{warning}{self.read}"


_HEADINGS = ("layer", "kind", "MACs", "ACs", "computed", "energy", "ReLU twin", "words", "memory")
_FORMS = {"sparse": "network, what is not 0", "dense": "network, every product", "twin": "ReLU twin"}
_LEFT_OUT = (
    "left out: arithmetic within neurons, biases, normalisation, maximum pooling, shortcuts, addresses and routing of "
    "spikes, reuse in caches and registers, what enters and leaves the chip, clock and leakage"
)


def energy(
    net: nn.Module,
    x: Any,
    *,
    hardware: Hardware = SRAM_45NM,
    e_mac: Optional[float] = None,
    e_ac: Optional[float] = None,
    mask: Optional[Tensor] = None,
) -> Energy:
    """Run ``net`` once on ``x``, count the operations that its numbers ask for, and estimate the energy that they take.

    ::

        E = e_mac * MACs + e_ac * ACs                        of the network, per sample
        E_twin = e_mac * products + e_ac * sums              of its ReLU twin: the same layers once, or at each step

        print(sc.energy(net, images))

    Counted are the products of ``nn.Linear``, of convolutions (dilated, grouped, strided and transposed ones, too) and
    of matrices anywhere in the network (attention, ``torch.einsum``), and the additions of average pooling, from the
    very tensors that torch computes with. A product whose input is 0 is not counted, and one that padding would make
    is none. An input of spikes counts an accumulate (AC) for each product that is left, any other input a
    multiply-accumulate (MAC): so a first layer that gets an image is MACs, and one that gets events is ACs, without
    being told. Spikes are 0 and multiples of one number by whole numbers up to 4: the scale of average pooling, of a
    threshold or of dropout is folded into the weights behind it, and a multiple of m counts m accumulates. So a layer
    behind neurons that give several spikes in a step, or behind added spikes, may have more accumulates than products,
    and ``computed`` in its row of the table is then above 100 %. Weights are parameters, buffers, and what is computed
    from them alone. Of a product of two tensors that are none both factors must not be 0.

    Not counted: the computation of weights; batch normalisation, which is folded into the layer before it; biases;
    maximum pooling, additions of shortcuts, and other functions of each number; and what neurons compute within a step.
    A layer that is computed once for all steps (behind ``sc.encode.Constant``) is counted once. The twin of a network
    whose input has time, ``[T, B, ...]`` or ``[B, T, ...]``, computes all at each step, otherwise once.

    ``traffic`` has the words that each layer moves through memory, by the equations of E. Lemaire et al., "An
    analytical estimation of spiking neural networks energy efficiency", ICONIP 2022. Where only what is not 0 is
    computed, an accumulate reads a weight, and reads and writes a sum; each spike is read once; at each step neurons
    read and write their states, and write their spikes. Of multiply-accumulates, and where every product is computed,
    sums stay in registers. ``forms`` has both, and the twin, in 32 bits and in 8. It is an estimate to compare with,
    not of any chip: the table ends with what it leaves out.

    net: a network, with or without neurons; it runs in eval mode, without gradients, from rest, and is afterwards as it
        was. What wraps it (``torch.compile``, ``DistributedDataParallel``) is left out.
    x: a batch, as for ``training_model``: ``[T, B, ...]``, or ``[B, ...]`` where an encoder makes time, where neurons
        take single steps, and without neurons; ``[B, T, ...]`` where the network itself puts time first. Neurons in
        single steps are called as the network calls them: one that takes one step counts one step, one whose
        ``forward`` loops over ``[T, B, ...]`` counts T.
    hardware: costs of operations and of memory, each with its source. By default those of 45 nm at 0.9 V of M.
        Horowitz, "Computing's energy problem (and what we can do about it)", IEEE Solid-State Circuits Conference
        (ISSCC), 2014, pp. 10-14, Figure 1.1.9, doi:10.1109/ISSCC.2014.6757323: in 32-bit floating point 3.7 pJ a
        multiplication and 0.9 pJ an addition, in integers 0.2 pJ (8 bits) and 0.1 pJ (32), and 64 bits of SRAM 10 pJ
        (8 KiB), 20 (32 KiB) and 100 (1 MiB).
    e_mac, e_ac: picojoules of an operation in place of those of ``hardware.full``.
    mask: bool ``[T, B]`` of padded sequences ``[T, B, ...]``, True at real steps, which come first
        (:func:`spikecore.functional.mask_of`): these alone are computed, of the network and of its twin, in a run for
        each length.

    Raises TypeError for a ``net`` that is no module and an ``x`` without tensors, ValueError for energies that are no
    finite numbers of 0 or more and for a mask that does not fit, :class:`spikecore.backend.Unsupported` for a layer
    whose products torch computes unseen (its fused attention, ``nn.LSTM`` on some devices), and what the network
    raises.
    """
    for name, value in (("e_mac", e_mac), ("e_ac", e_ac)):
        number = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < math.inf
        if not (value is None or number):
            raise ValueError(f"{name}={value!r} must be picojoules of an operation, a number of 0 or more")
    if not isinstance(hardware, Hardware):
        raise TypeError(f"hardware={hardware!r} must be a spikecore.inspect.Hardware")
    full = hardware.full
    mac, ac = (full.mac if e_mac is None else float(e_mac), full.ac if e_ac is None else float(e_ac))
    if (mac, ac) != (full.mac, full.ac):
        hardware = replace(hardware, full=Arithmetic(full.bits, mac, ac, "given"))
    net, inputs, tensors = copied(net, x)
    net.eval()
    parts = [inputs] if mask is None else _by_length(inputs, tensors, mask)
    firing, counting = neurons_of(net), _Counting(net)
    # their run() calls no module
    running = [pair for pair in net.named_modules() if isinstance(pair[1], (Delay, Recurrent))]
    for _, module in running:
        if isinstance(module, Recurrent):
            module.fused = False  # products within a kernel are not seen
    with torch.no_grad(), torch.random.fork_rng(cuda_devices(tensors)), ExitStack() as stack:
        layers = stack.enter_context(monitor(net)).layers if firing else ()
        tells: Any = {"begins": counting.begin, "operation": counting.operation}
        stack.enter_context(record(net, layers=net.named_modules(), neurons=running, **tells))
        for part in parts:
            to_rest(stateful_modules(net), carried=True)
            run_network(net, part)
    called, shape = [layer for layer in layers if layer.calls], tensors[0].shape
    if mask is None:
        steps = max((layer.steps for layer in called), default=1)
        samples = _samples(net, tensors[0], steps, called)
        time = None if makes_time(net) else dimension_of_time(shape, steps, samples)
    else:
        (steps, samples), time = mask.shape, 0
    rows, moved = [], []
    for (name, kind), totals in counting.totals.items():
        # the twin computes once what is computed once for all steps, and so the rest, if the input has no time
        work = _works(totals, samples, steps, steps if time is None else 1)
        products, sums = (totals[0][each] / samples for each in ("products", "sums"))
        costs = [mac * each.macs + ac * each.acs for each in (work[0], work[2])]
        rows.append(Operations(name, kind, *work[0][:2], products, sums, *costs))
        moved.append(layer_traffic(name, kind, *work, counting.weights[name, kind]))
    for layer in called:
        states = len(neuron_of(net.get_submodule(layer.name)).program.states)
        outputs = sum(call.outputs for call in layer.calls) / samples
        spikes = outputs if layer.rate is None else layer.rate * outputs
        moved.append(neuron_traffic(layer.name, layer.kind, states, outputs, spikes, layer.neurons))
    places = {name: place for place, (name, _) in enumerate(net.named_modules())}
    moved.sort(key=lambda row: places[row.name])
    read = input_as_read(shape, steps, time)
    if mask is not None:
        read = f"{read}, of which {int(mask.sum()) / samples:g} steps of a sample are real"
    silent = tuple(layer.name or "(net)" for layer in called if layer.rate == 0)
    return Energy(tuple(rows), samples, steps, mac, ac, time is not None, read, silent, tuple(moved), hardware)


def _works(totals: _Totals, samples: int, steps: int, often: int) -> Tuple[Work, Work, Work, Tuple[float, float]]:
    """Work of a layer, of its every product, and of its twin, and the sizes of its inputs and outputs in a step.

    The twin does once what the layer does ``often`` times.
    """
    every, once = [{name: count / samples for name, count in each.items()} for each in totals]
    twin = {name: (value - once.get(name, 0)) / often + once.get(name, 0) for name, value in every.items()}
    products, sums, macs, acs = (every[name] for name in _COUNTS)
    spikes = acs and not macs
    operations = (0.0, sums + products) if spikes else (products, sums)
    whole = Work(*operations, every["reads"], products, outputs=every["outputs"])
    other = Work(twin["products"], twin["sums"], twin["reads"], twin["products"], outputs=twin["outputs"])
    numbers, outputs = (every[name] / (1 if once.get(name) else steps) for name in ("numbers", "outputs"))
    return Work(macs, acs, every["inputs"]), whole, other, (numbers, outputs)


def _by_length(inputs: Any, tensors: Sequence[Tensor], mask: Tensor) -> List[Any]:
    """The inputs without padding: a batch for each length."""
    for tensor in tensors:
        Steps("x", tensor, mask)  # raises where the mask does not fit
    lengths = mask.sum(0)
    if not torch.equal(mask, mask_of(lengths, len(mask)).to(mask.device)):
        raise ValueError("mask must be True at the first steps of each sequence, as that of sc.functional.mask_of")
    parts = []
    for length in lengths.unique().tolist():
        of_length = (lengths == length).nonzero().flatten().to(tensors[0].device)
        parts.append(tree_map(partial(_cut, length=length, samples=of_length), inputs))
    return parts


def _cut(value: Tensor, length: int, samples: Tensor) -> Tensor:
    return value[:length, samples]


def _samples(net: nn.Module, x: Tensor, steps: int, called: Sequence[Layer]) -> int:
    """The size of the batch: of ``[T, B, ...]`` the second dimension, of an input without time the first."""
    if x.ndim < 2 or makes_time(net) or x.shape[0] != steps:
        return max(1, x.shape[0]) if x.ndim else 1
    multi = any(isinstance(module, (Neuron, Recurrent)) and module.step == "multi" for module in net.modules())
    if not multi and steps == 1:
        return 1
    # of as many samples as steps, the neurons say which: they have the batch, or the batch and its tokens in one
    sizes = {call.batch for layer in called for call in layer.calls}
    for which in (lambda size: size in sizes, lambda size: all(size and batch % size == 0 for batch in sizes)):
        first, second = which(x.shape[0]), which(x.shape[1])
        if first != second:
            return int(x.shape[0] if first else max(1, x.shape[1]))
    return max(1, x.shape[1])


def _amount(count: float) -> str:
    rest = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return scaled(count, (("G", 1e9), ("M", 1e6), ("k", 1e3)), rest)


def _joules(picojoules: float) -> str:
    rest = f"{picojoules:.2f} pJ" if picojoules else "0"
    return scaled(picojoules, (("mJ", 1e9), ("uJ", 1e6), ("nJ", 1e3)), rest)


# -- counting

#: Spikes are at most so many times one number.
_MOST = 4
#: Operations that hold products of their own.
_UNSEEN = frozenset(("_trilinear", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_sparse_addmm", "_sparse_mm"))
_POOLS = tuple(getattr(nn, f"AdaptiveAvgPool{n}d") for n in (1, 2, 3))

_COUNTS = ("products", "sums", "macs", "acs")
#: All products, all sums of pooling, multiply-accumulates and accumulates.
_Counts = Tuple[int, int, int, int]
#: Counts of a layer by name, and those of what was computed once for all steps.
_Totals = Tuple[Dict[str, int], Dict[str, int]]


class _Counting:
    """Counts of what the modules of a network compute."""

    def __init__(self, net: nn.Module) -> None:
        #: Of a layer, by name and class.
        self.totals: Dict[Tuple[str, str], _Totals] = {}
        #: Its weights.
        self.weights: Dict[Tuple[str, str], int] = {}
        #: Tensors that are weights, or computed from weights alone.
        self._weights: Any = WeakTensorKeyDictionary(dict.fromkeys((*net.parameters(), *net.buffers()), True))
        #: Modules that make time, and a flag for time: layers before the first of these compute once for all steps.
        self._makers = time_makers(net)
        self._timed = not self._makers
        self._module: Any = None

    def begin(self, call: Call) -> None:
        """Note that a layer begins."""
        self._timed = self._timed or call.layer in self._makers or stateful_of(call.layer) in self._makers

    def operation(self, call: Optional[Call], func: Any, arguments: Tuple[Any, Any], out: Any) -> None:
        """Count an operation of torch."""
        args, results = arguments[0], flattened(out)
        # a weight that is scaled or filled by a number is still one
        read = [value for value in flattened(arguments) if value.ndim or value in self._weights]
        if read and all(value in self._weights for value in read):
            self._weights.update(dict.fromkeys(results, True))
            return
        for written in (*results, *[value._base for value in results if value._base is not None]):
            self._weights.pop(written, None)  # written in place, or a part of it, such as a row of a buffer
        # what a neuron computes within a step is no synapse
        if call is None or isinstance(call.layer, (Neuron, NormNeuron)):
            return
        name, self._module = (
            func.overloadpacket.__name__.rstrip("_") if hasattr(func, "overloadpacket") else "",
            call.layer,
        )
        if name in _UNSEEN or ("attention" in name and not name.endswith("_math")):
            raise Unsupported(
                f"sc.energy: layer {call.name!r} calls torch's {name}, whose products cannot be seen; write "
                "them out: of attention q @ k.transpose(-2, -1), and its product with v"
            )
        rule = _RULES.get(name)
        if rule is not None and (name != "mean" or isinstance(call.layer, _POOLS) or _pools(args)):
            counts, key = rule(self, args), (call.name, type(call.layer).__name__)
            numbers = {**dict(zip(_COUNTS, counts)), **self._words(name, args, results, counts)}
            for total in self.totals.setdefault(key, ({}, {}))[: 1 if self._timed else 2]:
                total.update({which: total.get(which, 0) + number for which, number in numbers.items()})
            factors = [value for value in args if isinstance(value, Tensor) and value.ndim > 1]
            weights = [value.numel() // self.lags(value) for value in factors if value in self._weights]
            self.weights[key] = max([self.weights.get(key, 0), *weights])

    def _words(self, name: str, args: Tuple[Any, ...], results: Sequence[Tensor], counts: _Counts) -> Dict[str, int]:
        """Inputs other than 0, all of them, those that are read for every product, and outputs."""
        values = [value for value in args[:3] if isinstance(value, Tensor) and value not in self._weights]
        if name in ("addmm", "baddbmm", "addbmm", "addmv"):
            values = [value for value in values if value is not args[0]]
        numbers = sum(value.numel() for value in values)
        return {
            "inputs": sum(int((value != 0).sum()) for value in values),
            "numbers": numbers,
            "reads": sum(counts[:2]) if "conv" in name or "pool" in name or name == "mean" else numbers,
            "outputs": sum(value.numel() for value in results),
        }

    def counts_of(self, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor, bool]:
        """Counts of the numbers of both sides of products, and True if one side is spikes."""
        left, right = self._spikes(a), self._spikes(b)
        if left is not None and right is not None and left.numel() and right.numel():
            # that of smaller multiples says how often the numbers of the other are added
            left, right = (None, right) if float(left.max()) > float(right.max()) else (left, None)
        spikes = left is not None or right is not None
        return self._counts(a) if left is None else left, self._counts(b) if right is None else right, spikes

    def _counts(self, value: Tensor) -> Tensor:
        """1 for each number that is not 0, and for every weight."""
        return torch.ones_like(_wide(value)) if value in self._weights else _wide(value != 0)

    def _spikes(self, value: Tensor) -> Optional[Tensor]:
        """Number of spikes that each number stands for; None for a tensor of other numbers."""
        size = _wide(value.detach()).abs()
        if value in self._weights or not bool(torch.isfinite(size).all()):
            return None
        most = float(size.max()) if size.numel() else 0.0
        if most == 0.0:
            return size
        least = float(size[size > 0].min())
        if most > (_MOST + 0.5) * least:
            return None
        times = size / least
        # a scale is rounded in the dtype of the numbers
        rounding = 8 * torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0
        return times.round() if bool(((times - times.round()).abs() <= rounding * times).all()) else None

    def lags(self, weight: Tensor) -> int:
        """Number of weights that a connection has among these: a :class:`spikecore.Delay` may be computed with one for
        each number of steps, of which one is not 0.
        """
        inside = [way.module for way in self._module.ways] if isinstance(self._module, Recurrent) else [self._module]
        for module in inside:
            own = getattr(getattr(module, "linear", None), "weight", weight).numel()
            if isinstance(module, Delay) and weight.numel() == own * (module.max_delay + 1):
                return module.max_delay + 1
        return 1


def _pools(mean: Tuple[Any, ...]) -> bool:
    """True if arguments of ``mean`` are those of ``F.adaptive_avg_pool2d(x, 1)``, or 3d; no other mean is pooling."""
    return mean[1:] in (([-1, -2], True), ([-1, -2, -3], True))


def _wide(x: Tensor) -> Tensor:
    """In float64, whose sums of counts are exact: on the CPU if the device has none."""
    return (x if has_float64(x.device.type) else x.cpu()).double()


def _multiplied(products: int, computed: Tensor, spikes: bool) -> _Counts:
    number = int(computed.sum().round())
    return (products, 0, 0, number) if spikes else (products, 0, number, 0)


def _product(of: _Counting, a: Tensor, b: Tensor) -> _Counts:
    """``[..., m, k] @ [..., k, n]``."""
    left, right, spikes = of.counts_of(a, b)
    products = a.numel() * b.shape[-1]
    return _multiplied(products // of.lags(b) if b.ndim == 2 else products, left.sum(-2) * right.sum(-1), spikes)


def _convolution(of: _Counting, args: Any) -> _Counts:
    x, weight, _, stride, padding, dilation, transposed, extra, groups = args[:9]
    inputs, weights, spikes = of.counts_of(x, weight)
    # a product for each output channel of a group: one channel of their sums has as many
    each = weight.shape[1] if transposed else weight.shape[0] // groups
    summed = weights.sum(1, keepdim=True) if transposed else weights.unflatten(0, (groups, each)).sum(1)
    how = (None, stride, padding, dilation, transposed, extra, groups)
    every = torch.convolution(torch.ones_like(inputs[:1]), torch.full_like(summed, each), *how).sum()
    products = int(every.round()) * x.shape[0] // of.lags(weight)
    return _multiplied(products, torch.convolution(inputs, summed, *how), spikes)


def _pooled(of: _Counting, args: Any) -> _Counts:
    """Average pooling: an addition for each number in a window."""
    x, window = args[:2]
    stride, padding, up = (list(args[2:5]) + [[], 0, False][len(args[2:5]) :])[:3]
    pool: Any = F.avg_pool3d if len(window) == 3 else F.avg_pool2d
    counts = _wide(x != 0)
    parts = (torch.ones_like(counts), counts)
    sums = [pool(part, window, stride or None, padding, up, True, 1).sum() for part in parts]
    return 0, int(sums[0].round()), 0, int(sums[1].round())


def _pooled_to_size(of: _Counting, args: Any) -> _Counts:
    x, sizes = args[:2]
    counts = _wide(x != 0)
    windows = torch.ones((), dtype=torch.float64, device=counts.device)
    for length, size in zip(x.shape[-len(sizes) :], sizes):
        line = torch.zeros(length, dtype=torch.float64, device=counts.device)
        for place in range(size):
            line[place * length // size : -(-(place + 1) * length // size)] += 1
        windows = windows.unsqueeze(-1) * line
    return 0, int((torch.ones_like(counts) * windows).sum()), 0, int((counts * windows).sum())


_RULES: Dict[str, Callable[[_Counting, Any], _Counts]] = {
    **dict.fromkeys(("mm", "bmm"), lambda of, args: _product(of, args[0], args[1])),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm"), lambda of, args: _product(of, args[1], args[2])),
    "linear": lambda of, args: _product(of, args[0], args[1].t()),
    "mv": lambda of, args: _product(of, args[0], args[1].unsqueeze(-1)),
    "addmv": lambda of, args: _product(of, args[1], args[2].unsqueeze(-1)),
    "dot": lambda of, args: _product(of, args[0].unsqueeze(0), args[1].unsqueeze(-1)),
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), _pooled),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _pooled_to_size),
    "mean": lambda of, args: (0, args[0].numel(), 0, int(_wide(args[0] != 0).sum())),
}
