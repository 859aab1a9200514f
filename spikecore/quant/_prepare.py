"""A network in fixed point: its norms folded, its weights and activations on grids, its neurons fixed; and its report.

``prepare`` runs the network twice on the calibration data, with hooks that it removes: first to see which layer each
batch normalisation follows, and then for the ranges of what layers and neurons read. Two modules are connected where
one reads the memory that the other wrote.
"""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from spikecore._shell.checks import shown
from spikecore._transforms import unfuse
from spikecore.functional import reset
from spikecore.lang.render import on_one_line
from spikecore.layers import Delay, NormNeuron
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent
from spikecore.quant._analysis import SIGNIFICAND, Format, Inexact, analyse
from spikecore.quant._fixed import FixedPoint, fixed
from spikecore.quant._layers import (
    FINEST,
    LAYERS,
    LearntGrid,
    OnGrid,
    best_frac,
    biases_of,
    bits_of,
    grid_of,
    integers_of,
    quantise_layer,
    quantised_weight,
    round_input,
    round_output,
)

Inputs = Union[Tensor, Tuple[Tensor, ...]]
#: Ranges of weights -> their grids.
RANGES: Dict[str, Type[OnGrid]] = {"data": OnGrid, "learnt": LearntGrid}
#: Poolings that divide, and the dimensions of their windows.
_WINDOWS = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
_MEANS = (*_WINDOWS, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
#: Values of a tensor that a range is chosen from.
_SAMPLE = 1 << 18


@dataclass
class _Seen:
    """What hooks saw of a module in a calibration run."""

    inputs: List[Tensor] = field(default_factory=list)
    outputs: List[Tensor] = field(default_factory=list)
    states: List[Tensor] = field(default_factory=list)
    #: The module that wrote the memory of its input, if one with a weight or a neuron did.
    source: Optional[nn.Module] = None
    #: Whether something else than a neuron reads its output.
    is_read: bool = True
    #: Of a pooling, the sizes of its last input along each dimension, as multiples of those of its output.
    ratios: Tuple[float, ...] = ()


class _Run:
    """What a network's layers and neurons read and write in one call, in ``eval()``."""

    def __init__(self, net: nn.Module, x: Inputs, dtype: torch.dtype) -> None:
        self.seen: Dict[nn.Module, _Seen] = {}
        #: Address of memory -> what wrote it, and torch's count of the writings.
        self._writers: Dict[int, Tuple[nn.Module, int]] = {}
        #: What was read and written, so that no memory is used twice.
        self._alive: List[Any] = []
        with _hooks(net, self._see), _evaluating(net), torch.no_grad():
            self.output = net(*_inputs(x, dtype))
            reset(net)

    def _see(self, module: nn.Module, args: Tuple[Any, ...], output: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        seen = self.seen.setdefault(module, _Seen())
        self._alive.append((args, output))
        source, version = self._writers.get(_memory(args[0]), (None, 0))
        if _writings(args[0]) != version:  # something was added in place
            source = None
        seen.source = source or seen.source
        if isinstance(module, (Neuron, Recurrent)):
            seen.inputs += [_sampled(value) for value in args if isinstance(value, Tensor)]
            seen.states += _states(module, args)
            if source is not None and isinstance(module, Neuron):  # Recurrent adds to it
                self.seen[source].is_read = False
        else:
            seen.inputs.append(_sampled(args[0]))
        seen.outputs.append(_sampled(output))
        seen.ratios = tuple(a / b for a, b in zip(args[0].shape, output.shape))
        if isinstance(module, (*LAYERS, Delay, Neuron, Recurrent)):
            self._writers[_memory(output)] = module, _writings(output)


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _writings(value: Tensor) -> int:
    """How often a tensor's memory was written to in place; torch does not count that of ``inference_mode``."""
    return 0 if value.is_inference() else value._version


def _sampled(value: Tensor) -> Tensor:
    """Values of a tensor, evenly spread, with the least and the greatest among them."""
    flat = value.detach().flatten()
    some = flat[:: max(1, flat.numel() // _SAMPLE)]
    return torch.cat([some, flat.min().reshape(1), flat.max().reshape(1)]) if flat.numel() else flat


def _states(module: Any, args: Tuple[Any, ...]) -> List[Tensor]:
    neuron: Any = module.neuron if isinstance(module, Recurrent) else module
    names = tuple(neuron.states)
    if not names:
        return []
    if module.step == "single":
        # the hook comes after the call, which left its state
        return [_sampled(module.state[name]) for name in names if name in (module.state or {})]
    return [_sampled(value) for value in module.run(*args, record=names)[2].values()]


@contextmanager
def _hooks(net: nn.Module, see: Callable[..., None]) -> Iterator[None]:
    inside = {part for module in net.modules() if isinstance(module, (Recurrent, Delay)) for part in module.children()}
    kinds = (*LAYERS, *_MEANS, _BatchNorm, Neuron, Recurrent, Delay)
    handles = [
        module.register_forward_hook(see)
        for module in net.modules()
        if isinstance(module, kinds) and module not in inside
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    training = {module: module.training for module in net.modules()}
    net.eval()
    reset(net)
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def _inputs(x: Inputs, dtype: torch.dtype) -> Tuple[Tensor, ...]:
    values = x if isinstance(x, tuple) else (x,)
    return tuple([value.to(dtype) if value.is_floating_point() else value for value in values])


class Weighted(NamedTuple):
    """A layer with a weight on a grid, where it is in a network."""

    name: str
    #: The ``nn.Linear`` or convolution that has the weight.
    layer: nn.Module
    #: The module that is called: the layer, or the ``Delay`` or ``Recurrent`` around it.
    called: nn.Module


def weighted(net: nn.Module) -> List[Weighted]:
    """The layers of a network that have weights, those within ``Recurrent`` and ``Delay`` too."""
    around: Dict[nn.Module, nn.Module] = {}
    for module in net.modules():
        for part in module.children() if isinstance(module, (Delay, Recurrent)) else ():
            around[part] = around.get(module, module)
    names = {module: name for name, module in net.named_modules()}
    return [Weighted(names[part], part, around.get(part, part)) for part in net.modules() if isinstance(part, LAYERS)]


def prepare(
    net: nn.Module,
    x: Inputs,
    weights: int = 8,
    *,
    word: int = 16,
    frac: Optional[int] = None,
    activations: int = 8,
    per_channel: bool = True,
    ranges: str = "data",
    rounding: str = "nearest",
    factors: Optional[int] = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A copy of a network in fixed point, which trains and runs on every backend as the network does.

    ::

        quantised = sc.quant.prepare(net, images)  # a trained network, and inputs for the ranges
        ...  # train it further, with a smaller learning rate
        print(sc.quant.report(quantised, images))

    - Batch normalisation is folded into the layer before it, with its running statistics.
    - Weights of linear layers and convolutions, those of ``Recurrent`` and ``Delay`` too, are integers of ``weights``
      bits times a power of two, by a parametrisation: gradients pass the rounding unchanged. Biases are on the grid of
      the sums (with ``ranges="learnt"``, on that of the first ranges). A layer that has a quantiser already (a
      parametrisation, torch.ao's fake quantisation, brevitas) keeps it; its weight must be on such a grid. Its bias is
      rounded as every other.
    - What a layer reads, where it is not a neuron's spikes, is rounded to ``activations`` bits, and what it
      writes, where it is not read by a neuron alone, to ``word`` bits on one grid, so that sums are exact. Ranges are
      those of the calibration run.
    - Neurons compute as :func:`spikecore.quant.fixed` says; one that is fixed already stays.

    Sums of a layer's products are below the significand of ``dtype``, so that they are exact in any order, on every
    backend; integers of 8 bits are exact in TF32 and bfloat16 as well. Within autocast to 16 bits they are not.

    net: a network of linear layers, convolutions, normalisation, pooling and neurons, whatever its ``forward`` does
        with them. It is left as it is.
    x: an input of the network, or a tuple of them: a batch of the training data.
    weights: bits of a weight, 2 to 8. activations: bits of what a layer reads, 2 to 8.
    per_channel: one power of two for each output channel, or one for all.
    ranges: "data", powers of two that the weights decide once, or "learnt", which training may change: parameters
        ``frac`` of the parametrisations, for which a larger learning rate than that of the weights is usual.
    word, frac, rounding, factors, dtype: as of :func:`spikecore.quant.fixed`; ``frac=None`` chooses that of each
        neuron from the calibration run.

    Raises TypeError for what is no network, ValueError for a wrong argument, a normalisation that follows no layer, a
    mean that floats round, a module with parameters that is none of these, and :class:`Inexact` where sums need more
    bits than dtype has.
    """
    _check(net, weights, activations)
    if ranges not in RANGES:
        raise ValueError(f"sc.quant.prepare: ranges={shown(ranges)} must be one of {', '.join(map(repr, RANGES))}")
    new = unfuse(copy.deepcopy(net)).to(dtype)
    _refuse_norm_neurons(new)
    _fold(new, _Run(new, x, dtype))
    _refuse_others(new)
    run = _Run(new, x, dtype)
    written = _written(new, run)
    written_frac = _written_frac(written, run, word)
    _refuse_means(new, run)
    for place in weighted(new):
        # what comes back within Recurrent is added to what another layer wrote
        finest = written_frac + SIGNIFICAND[dtype] - 1 - word if isinstance(place.called, Recurrent) else FINEST
        _quantise(place, run, (weights, activations), per_channel, finest, RANGES[ranges])
    for place in written:
        _round_output(place, word, written_frac)
    for name, neuron in [*new.named_modules()]:
        if isinstance(neuron, Neuron) and neuron.arithmetic is None:
            options: Any = {"rounding": rounding, "factors": factors, "dtype": dtype}
            try:
                chosen = _frac(new, neuron, run, word) if frac is None else frac
                neuron.arithmetic = fixed(neuron, word, chosen, **options).arithmetic
            except ValueError as error:
                raise type(error)(f"sc.quant.prepare: {name}: {error}") from None
    _prove(new, run, dtype)
    return new


def _check(net: Any, weights: Any, activations: Any) -> None:
    if not isinstance(net, nn.Module) or isinstance(net, Neuron):
        way_out = "for a neuron alone there is sc.quant.fixed" if isinstance(net, Neuron) else "give the network itself"
        raise TypeError(f"sc.quant.prepare: net={shown(net)} is no network; {way_out}")
    for name, value in (("weights", weights), ("activations", activations)):
        if not isinstance(value, int) or not 2 <= value <= 8:
            raise ValueError(f"sc.quant.prepare: {name}={shown(value)} must be a whole number of bits from 2 to 8")


def _fold(net: nn.Module, run: _Run) -> None:
    """Fold each batch normalisation into the layer whose output it reads."""
    for name, norm in [*net.named_modules()]:
        if not isinstance(norm, _BatchNorm):
            continue
        source = run.seen[norm].source if norm in run.seen else None
        layer: Any = source.linear if isinstance(source, Delay) else source
        if not isinstance(layer, LAYERS) or norm.running_var is None or quantised_weight(layer) is not None:
            raise ValueError(
                f"sc.quant.prepare: {name}: a {type(norm).__name__} is folded into the layer before it, and there is "
                "no plain linear layer or convolution whose output it reads, or it has no running statistics"
            )
        norm_: Any = norm
        scale = torch.rsqrt(norm_.running_var + norm_.eps) * (1.0 if norm_.weight is None else norm_.weight)
        shift = -norm_.running_mean * scale + (0.0 if norm_.bias is None else norm_.bias)
        with torch.no_grad():
            layer.weight.mul_(scale.reshape(-1, *[1] * (layer.weight.ndim - 1)))
            bias = shift if layer.bias is None else layer.bias * scale + shift
            layer.bias = nn.Parameter(bias.detach().clone())
        parent, _, attribute = name.rpartition(".")
        setattr(net.get_submodule(parent), attribute, nn.Identity())


def _refuse_norm_neurons(net: nn.Module) -> None:
    for name, module in net.named_modules():
        if isinstance(module, NormNeuron):
            raise ValueError(
                f"sc.quant.prepare: {name} is a NormNeuron, whose normalisation cannot be folded; write the "
                "normalisation behind the layer, and let sc.fuse make NormNeurons"
            )


def _refuse_others(net: nn.Module) -> None:
    for name, module in net.named_modules():
        known = isinstance(module, (*LAYERS, Neuron, Delay))
        within = module.__class__.__module__.startswith("torch.nn.utils.parametrize") or "parametrizations" in name
        if not known and not within and any(True for _ in module.parameters(recurse=False)):
            raise ValueError(
                f"sc.quant.prepare: {name} is a {type(module).__name__} with parameters, which has no fixed point; "
                "there are linear layers, convolutions, batch normalisation behind them, and neurons"
            )


def _refuse_means(net: nn.Module, run: _Run) -> None:
    """Refuse poolings that divide integers by what is no power of two: floats round such a mean."""
    for name, module in net.named_modules():
        if not isinstance(module, _MEANS) or module not in run.seen:
            continue
        pool: Any = module
        counts = run.seen[module].ratios
        if isinstance(module, tuple(_WINDOWS)):
            (dimensions,) = (number for kind, number in _WINDOWS.items() if isinstance(module, kind))
            size = pool.kernel_size
            count = math.prod(size) if isinstance(size, tuple) else size**dimensions
            counts = (getattr(pool, "divisor_override", None) or count,)
        uneven = getattr(pool, "ceil_mode", False) or not getattr(pool, "count_include_pad", True)
        if uneven or any(math.frexp(count)[0] != 0.5 for count in counts):
            raise ValueError(
                f"sc.quant.prepare: {name}: {module} divides by what is no power of two, and floats round such a mean; "
                "take windows of 2, 4, 8, ... numbers, count_include_pad=True and ceil_mode=False, or "
                "sc.nir.SumPool2d, and divide the weights of the next layer"
            )


def _quantise(
    place: Weighted, run: _Run, of_each: Tuple[int, int], per_channel: bool, finest: int, kind: Type[OnGrid]
) -> None:
    """Put the weight of one layer on a grid, and what it reads, with so many bits of each."""
    bits, activations = of_each
    seen, called = run.seen.get(place.called), place.called
    if seen is None:
        raise ValueError(f"sc.quant.prepare: {place.name} was not called with the calibration data")
    back = isinstance(called, Recurrent)
    read = torch.cat(seen.outputs if back else seen.inputs)
    spikes = _fires(called if back else seen.source) and bool(((read == 0) | (read == 1)).all())
    grid = grid_of(read, activations)
    if spikes:
        grid = OnGrid(torch.ones_like(grid.scale), 0, 1)
    elif back and not (max(grid.fracs) <= 0 and torch.equal(grid(read), read)):
        raise ValueError(f"sc.quant.prepare: {place.name}: what comes back is no whole number, as spikes are")
    _attach(place.layer, "spikes" if spikes or back else "input", grid, called)
    bits = bits if quantised_weight(place.layer) is None else 8
    try:
        quantise_layer(place.layer, bits, per_channel, max(grid.fracs), finest, kind)
    except ValueError as error:
        raise ValueError(f"sc.quant.prepare: {place.name}: {error}") from None


def _fires(module: Optional[nn.Module]) -> bool:
    """Whether a module's output is spikes."""
    neuron: Any = module.neuron if isinstance(module, Recurrent) else module
    number = (module.output or 0) if isinstance(module, Recurrent) else 0
    return isinstance(neuron, Neuron) and neuron.program.outputs[number].op == "spike"


def _written(net: nn.Module, run: _Run) -> List[Weighted]:
    """The layers whose outputs something else than a neuron reads."""
    places = [place for place in weighted(net) if not isinstance(place.called, Recurrent)]
    return [place for place in places if place.called in run.seen and run.seen[place.called].is_read]


def _written_frac(written: Sequence[Weighted], run: _Run, word: int) -> int:
    """The fractional bits of what these layers write: one grid, so that sums of such values are exact."""
    return min([word - 2, *(best_frac(torch.cat(run.seen[place.called].outputs), word) for place in written)])


def _round_output(place: Weighted, word: int, frac: int) -> None:
    """Put what a layer writes on a grid."""
    weight: Any = place.layer.weight
    scale = torch.tensor(2.0**frac, device=weight.device)
    _attach(place.layer, "output", OnGrid(scale, -(1 << (word - 1)), (1 << (word - 1)) - 1), place.called)


def _attach(layer: nn.Module, what: str, grid: OnGrid, called: nn.Module) -> None:
    """Give a module the format of what it reads or writes; spikes are on their grid as they are."""
    owner = layer if what == "spikes" else called
    owner.add_module("output_format" if what == "output" else "input_format", grid)
    if what == "input":
        owner.register_forward_pre_hook(round_input)
    elif what == "output":
        owner.register_forward_hook(round_output)


def input_format(place: Weighted) -> Optional[Format]:
    """What a layer of a prepared network reads; None in one that was not prepared."""
    for owner in (place.layer, place.called):
        grid = owner._modules.get("input_format")
        if isinstance(grid, OnGrid):
            return grid.format
    return None


def _frac(net: nn.Module, neuron: Neuron, run: _Run, word: int) -> Optional[int]:
    """The fractional bits that fit what a neuron read and held."""
    outer = [module for module in net.modules() if isinstance(module, Recurrent) and module.neuron is neuron]
    seen = run.seen.get(outer[0] if outer else neuron)
    values = [] if seen is None else [*seen.inputs, *seen.states]
    if not values:
        return None
    chosen = best_frac(torch.cat(values), word)
    least = fixed(neuron, word, None, dtype=torch.float64).arithmetic
    return min(chosen, least.frac + 2) if isinstance(least, FixedPoint) else chosen


def _largest_sum(place: Weighted, written: Any) -> int:
    """The largest sum of a layer's products, its bias and what another layer wrote, as an integer on the finest grid of
    these.
    """
    try:
        integers, fracs = integers_of(place.layer, 8)
        biases = biases_of(place.layer)
    except ValueError as error:
        raise ValueError(f"sc.quant.prepare: {place.name}: {error}") from None
    read: Any = input_format(place)
    largest = max(abs(int(read.low)), abs(int(read.high)))
    # of each output: pairs of an integer and its fractional bits
    rows = [int(row) * largest for row in integers.abs().flatten(1).sum(1)]
    sums = [[(row, frac + int(read.frac or 0))] if row else [] for row, frac in zip(rows, fracs)]
    for terms, (bias, frac) in zip(sums, biases):
        terms += [(abs(bias), frac)] if bias else []
    if isinstance(written, OnGrid):
        for terms in sums:
            terms.append((-written.low, written.fracs[0]))
    return max(_added(terms) for terms in sums)


def _added(terms: Sequence[Tuple[int, int]]) -> int:
    """The sum of numbers ``n * 2**-frac``, as an integer on the finest grid of them."""
    finest = max((frac for _, frac in terms), default=0)
    return sum(n << (finest - frac) for n, frac in terms)


def _prove(net: nn.Module, run: _Run, dtype: torch.dtype) -> List[int]:
    """The largest sum of each layer; raises where the dtype does not hold it. What comes back in ``Recurrent`` is added
    to what another layer wrote.
    """
    sums, bits = [], SIGNIFICAND[dtype]
    for place in weighted(net):
        source = run.seen[place.called].source if isinstance(place.called, Recurrent) else None
        most = _largest_sum(place, source and source._modules.get("output_format"))
        if most >= 1 << bits:
            raise Inexact(
                f"sc.quant.prepare: {place.name}: sums of its products reach {most}, which needs {most.bit_length()} "
                f"bits, and {str(dtype).replace('torch.', '')} holds {bits}: take fewer bits of activations= or "
                "weights=, or dtype=torch.float64"
            )
        sums.append(most)
    return sums


# -- report


@dataclass(frozen=True)
class Row:
    """One layer or neuron of a report.

    kind: "weights" or "neuron". format: of a layer's weights, or of a neuron's inputs and states. bits: those that the
    largest value needs. saturated: the part of weights, or of inputs and states, at an end of the range.
    """

    name: str
    kind: str
    format: str
    reads: str
    bits: int
    saturated: float


@dataclass(frozen=True)
class Report:
    """What :func:`report` says: a row for each layer and neuron, and how often the float network decides the same."""

    rows: Tuple[Row, ...]
    #: The part of outputs whose highest entry is that of ``beside``; None without one.
    agreement: Optional[float]

    def __str__(self) -> str:
        head = f"{'name':20} {'kind':8} {'format':26} {'reads':22} {'bits':>4} {'saturated':>9}"
        lines = [
            f"{row.name:20} {row.kind:8} {row.format:26} {row.reads:22} {row.bits:4} {row.saturated:9.2%}"
            for row in self.rows
        ]
        return "\n".join(
            [head, *map(on_one_line, lines), *([] if self.agreement is None else [f"agreement {self.agreement:.2%}"])]
        )


def report(net: nn.Module, x: Inputs, beside: Optional[nn.Module] = None) -> Report:
    """The formats of a prepared network, the bits that its largest values need, and how much saturates on inputs x.

    beside: the network in floats; the report then has the part of its decisions, the highest of the last dimension
    (summed over time, where the outputs have it), that the prepared network makes too.

    Raises ValueError for a network that was not prepared, and :class:`Inexact` where weights that were trained since
    need more bits than the arithmetic holds.
    """
    _refuse_unprepared(net)
    dtypes = [module.arithmetic.dtype for module in net.modules() if _is_fixed(module)]
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    run = _Run(net, x, dtype)
    rows = [_weights_row(place, most) for place, most in zip(weighted(net), _prove(net, run, dtype))]
    for name, module in net.named_modules():
        if isinstance(module, (Neuron, Recurrent)) and module in run.seen:
            neuron: Any = module.neuron if isinstance(module, Recurrent) else module
            if _is_fixed(neuron):
                rows.append(_neuron_row(name, neuron, run.seen[module]))
    if beside is None:
        return Report(tuple(rows), None)
    with _evaluating(beside), torch.no_grad():
        expected = beside(*_inputs(x, next((value.dtype for value in beside.parameters()), torch.float32)))
    return Report(tuple(rows), float((_decided(run.output) == _decided(expected)).double().mean()))


def _refuse_unprepared(net: nn.Module) -> None:
    floats = [(place.name, place.layer) for place in weighted(net) if input_format(place) is None]
    floats += [(name, part) for name, part in net.named_modules() if isinstance(part, Neuron) and not _is_fixed(part)]
    if floats:
        name, module = floats[0]
        raise ValueError(
            f"sc.quant.report: {name or 'net'}, a {type(module).__name__}, computes in floats: the network was not "
            "prepared. Report on what sc.quant.prepare(net, x) returns"
        )


def _is_fixed(module: nn.Module) -> bool:
    return isinstance(module, Neuron) and isinstance(module.arithmetic, FixedPoint)


def _decided(outputs: Tensor) -> Tensor:
    return (outputs.double().sum(0) if outputs.ndim > 2 else outputs).argmax(-1)


def _weights_row(place: Weighted, most: int) -> Row:
    integers, fracs = integers_of(place.layer, 8)
    grid = place.layer.parametrizations.weight[0] if parametrize.is_parametrized(place.layer, "weight") else None  # type: ignore[union-attr,index]
    saturated = 0.0
    if isinstance(grid, OnGrid):
        exact = grid.integers(place.layer.weight)  # type: ignore[arg-type]  # a tensor
        saturated = float(((exact == grid.low) | (exact == grid.high)).double().mean())
    bits = bits_of(integers)
    text = f"int{bits} / 2^{min(fracs)}" + (f"..{max(fracs)}" if len(set(fracs)) > 1 else "")
    return Row(place.name, "weights", text, str(input_format(place)), most.bit_length(), saturated)


def _neuron_row(name: str, neuron: Any, seen: _Seen) -> Row:
    how: FixedPoint = neuron.arithmetic
    low, high = how.format.ends
    values = torch.cat([value.double() for value in [*seen.inputs, *seen.states]])
    known = analyse(neuron.program, dtype=how.dtype)
    bits = max(value.bits for node, value in known.items() if not value.is_float and node.args)
    saturated = float(((values <= low) | (values >= high)).double().mean())
    return Row(name, "neuron", f"int{how.word} / 2^{how.frac}", ", ".join(neuron.states), bits, saturated)
