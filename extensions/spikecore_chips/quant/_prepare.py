"""A network in fixed point: its norms folded, its weights and activations on grids, its neurons fixed; and its report.

``prepare`` reads the network (:func:`spikecore.graph.read`), folds its normalisations, and computes the calls on the
calibration data for the ranges of what layers and neurons read.
"""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore import unfuse
from spikecore.core.modules import has_own_inputs, in_mode, outside, replace_modules, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.core.parameters import adopt
from spikecore.encode import Encoder
from spikecore.graph import (
    Call,
    Graph,
    NotFollowed,
    Refused,
    computed_by,
    folded,
    is_parametrised,
    norm_source,
    read,
    readers_of,
)
from spikecore.layers import Delay, NormNeuron
from spikecore.neurons import Recurrent
from spikecore.words import shown
from spikecore_chips.quant._analysis import SIGNIFICAND, Format, Inexact
from spikecore_chips.quant._calibration import MEANS, WINDOWS, Inputs, Run, evaluating, fires, first_run
from spikecore_chips.quant._fixed import fixed, fixed_point_of
from spikecore_chips.quant._layers import (
    FINEST,
    LAYERS,
    LearntGrid,
    OnGrid,
    best_frac,
    biases_of,
    grid_of,
    has_quantiser,
    integers_of,
    largest,
    quantise_layer,
    quantised_weight,
    round_input,
    round_output,
    weight_of,
)
from spikecore_chips.quant._rewriting import ThresholdIsZero

#: Ranges of weights -> their grids.
RANGES: Dict[str, Type[OnGrid]] = {kind.ranges: kind for kind in (OnGrid, LearntGrid)}


class Weighted(NamedTuple):
    """A layer with a weight on a grid, where it is in a network."""

    name: str
    #: The ``nn.Linear`` or convolution that has the weight.
    layer: nn.Module
    #: The module that is called: the layer, or the ``Delay`` or ``Recurrent`` around it.
    called: nn.Module


def weighted(net: nn.Module) -> List[Weighted]:
    """The layers of a network that have weights, those within ``Recurrent`` and ``Delay`` too."""
    return [
        Weighted(inner, part, module)
        for name, module in outside(net, (Delay, Recurrent))
        for inner, part in module.named_modules(prefix=name)
        if isinstance(part, LAYERS) and (part is module or isinstance(module, (Delay, Recurrent)))
    ]


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
      the sums (with ``ranges="learnt"``, on that of the first ranges). A layer that has a quantiser already
      (torch.ao's fake quantisation, brevitas, a parametrisation that gives such integers of 8 bits) keeps it. Another
      parametrisation, such as ``weight_norm``, stays, and the weight is rounded behind it.
    - What a layer reads, where it is not a neuron's spikes, is rounded to ``activations`` bits, and what it
      writes, where it is not read by a neuron alone, to ``word`` bits on one grid, so that sums are exact. Ranges are
      those of the calibration run.
    - Neurons compute as :func:`spikecore_chips.quant.fixed` says; one that is fixed already stays.

    Sums of a layer's products are below the significand of ``dtype``, so that they are exact in any order, on every
    backend; integers of 8 bits are exact in TF32 and bfloat16 as well. Within autocast to 16 bits they are not.

    net: a network of linear layers, convolutions, normalisation, pooling and neurons, with any ``forward`` that
        :func:`spikecore.graph.read` follows. It is left as it is.
    x: an input of the network, or a tuple of them: a batch of the training data.
    weights: bits of a weight, 2 to 8. activations: bits of what a layer reads, 2 to 8.
    per_channel: one power of two for each output channel, or one for all.
    ranges: "data", powers of two that the weights decide once, or "learnt", which training may change: parameters
        ``frac`` of the parametrisations, for which a larger learning rate than that of the weights is usual.
    word, frac, rounding, factors, dtype: as of :func:`spikecore_chips.quant.fixed`; ``frac=None`` chooses that of each
        neuron from the calibration run.

    Raises TypeError for what is no network, ValueError for a wrong argument, a ``forward`` that cannot be followed, a
    normalisation that cannot be folded (its layer has another reader or another call, shares its weight, has a forward
    of its own or features along another dimension), subclasses and hooks that change what a layer computes, a
    mean that floats round, a module with parameters that is none of these, and :class:`Inexact` where sums need more
    bits than dtype has.
    """
    _check(net, weights, activations)
    if ranges not in RANGES:
        raise ValueError(f"sc.quant.prepare: ranges={shown(ranges)} must be one of {', '.join(map(repr, RANGES))}")
    try:
        new = unfuse(copy.deepcopy(unwrapped(net))).to(dtype)
    except RuntimeError as error:  # of weight_norm and pruning, whose weights have a graph
        raise ValueError(
            f"sc.quant.prepare: net cannot be copied ({error}); remove pruning or weight_norm first"
        ) from error
    _refuse_modules(new)
    try:
        _fold(new, first_run("sc.quant.prepare", new, x, dtype))
        run = Run(new, x, dtype)
        _refuse_others(new, run.graph)
    except (NotFollowed, Refused) as error:
        raise ValueError(f"sc.quant.prepare: {error}") from error
    _refuse_infinite(new)
    written = _written(new, run)
    written_frac = _written_frac(written, run, word)
    _refuse_means(new, run)
    for place in weighted(new):
        # what comes back within Recurrent is added to what another layer wrote
        finest = written_frac + SIGNIFICAND[dtype] - 1 - word if isinstance(place.called, Recurrent) else FINEST
        _quantise(place, run, (weights, activations), per_channel, finest, RANGES[ranges])
    for first in run.graph.inputs:
        _share_input(first, run, activations)
    for place in written:
        _round_output(place, word, written_frac)
    for name, neuron in [*new.named_modules()]:
        if isinstance(neuron, Neuron) and fixed_point_of(neuron) is None:
            options: Any = {"rounding": rounding, "factors": factors, "dtype": dtype}
            with _of(name):
                replaced = _fixed(new, neuron, run, (word, frac), options)
            adopt(neuron, dict(replaced.bounds))
            neuron.transforms = replaced.transforms
    prove(new, run, dtype)
    return new


def _check(net: Any, weights: Any, activations: Any) -> None:
    if not isinstance(net, nn.Module) or isinstance(net, Neuron):
        way_out = "for a neuron alone there is sc.quant.fixed" if isinstance(net, Neuron) else "give the network itself"
        raise TypeError(f"sc.quant.prepare: net={shown(net)} is no network; {way_out}")
    for name, value in (("weights", weights), ("activations", activations)):
        if not isinstance(value, int) or not 2 <= value <= 8:
            raise ValueError(f"sc.quant.prepare: {name}={shown(value)} must be a whole number of bits from 2 to 8")


@contextmanager
def _of(name: str) -> Iterator[None]:
    """Say in errors what they are of."""
    try:
        yield
    except ValueError as error:
        raise type(error)(f"sc.quant.prepare: {name}: {error}") from None


def _fold(net: nn.Module, run: Run) -> None:
    """Fold each batch normalisation into the layer whose output it reads; first all conditions, then all changes."""
    calls = [call for call in run.graph.calls if isinstance(call.module, _BatchNorm)]
    norms = [*{call.module: call for call in calls}.values()]
    with evaluating(net):
        sources = [norm_source(run.graph, norm, run.shapes, (*LAYERS, Delay)) for norm in norms]
    layers = [source.module.linear if isinstance(source.module, Delay) else source.module for source in sources]
    for source, layer in zip(sources, layers):
        if quantised_weight(layer) is not None or is_parametrised(layer):
            why = "has a quantiser or a parametrisation, and a normalisation behind it cannot be folded into it"
            raise Refused(source.title, why, "fold it before the quantiser is there (torch.nn.utils.fusion)")
    _check_in_training(net, run, norms, sources)
    for norm, layer in zip(norms, layers):
        both = folded(layer, norm.module)
        layer.weight, layer.bias = both.weight, both.bias
        replace_modules(net, {norm.module: nn.Identity()})


def _check_in_training(net: nn.Module, run: Run, norms: Sequence[Call], sources: Sequence[Call]) -> None:
    """Refuse a layer that something else reads in ``train()``, such as a second output of a forward."""
    try:
        with in_mode(net, True):
            graph = read(net, inputs=[torch.empty(run.shapes[x]) for x in run.graph.inputs])
    except NotFollowed:  # such as drop-path: the readers in eval() are all that is known
        return
    for norm, source in zip(norms, sources):
        readers = [reader for call in graph.calls_of(source.module) for reader in readers_of(call)]
        others = [reader.title for reader in readers if reader.module is not norm.module]
        if others:
            why = f"is read by {others[0]} in train(), and {norm.title} cannot be folded into it"
            raise Refused(source.title, why, "compute the value twice: a copy of the layer (copy.deepcopy)")


def _refuse_modules(net: nn.Module) -> None:
    for name, module in net.named_modules():
        if isinstance(module, NormNeuron):
            raise ValueError(
                f"sc.quant.prepare: {name} is a NormNeuron, whose normalisation cannot be folded; write the "
                "normalisation behind the layer, and let sc.fuse make NormNeurons"
            )
        if isinstance(module, Delay) and not isinstance(module.linear, nn.Linear):
            raise ValueError(
                f"sc.quant.prepare: {name} delays {type(module.linear).__name__}, and there is fixed point for delays "
                "of nn.Linear; leave it out of what is prepared"
            )
        if isinstance(module, Recurrent) and module.several:
            raise ValueError(
                f"sc.quant.prepare: {name} feeds back through a list of modules, or to several inputs; its sums are "
                "not known, so give Recurrent one module into one input"
            )


def _refuse_others(net: nn.Module, graph: Graph) -> None:
    for call in graph.calls:
        part: Any = call.module
        if isinstance(part, LAYERS) and call.layer not in LAYERS and not has_quantiser(part):
            why = "is a subclass with a forward of its own, whose sums and roundings are not known"
            raise Refused(call.title, why, "take the layer itself, and a parametrisation of its weight")
        holds = call.module is not None and any(True for _ in call.module.children())
        if call.is_hooked and (holds or has_own_inputs(call.module)):
            raise Refused(call.title, "has hooks, or a forward of its own, that change what it reads", "remove them")
        if call.kind == "attribute" and graph.tensors[call.name] is not None:
            owners = [other for other in graph.uses(graph.tensors[call.name]) if other is not call]
            if any(isinstance(other.module, (*LAYERS, Delay)) for other in owners):
                raise Refused(
                    call.readers[0].title if call.readers else call.title,
                    f"reads {call.name!r} itself, and is rounded by the layer that has it alone",
                    "call the layer, or a copy of it",
                )
    for name, module in net.named_modules():
        known = isinstance(module, (*LAYERS, Neuron, Delay))
        within = module.__class__.__module__.startswith("torch.nn.utils.parametrize") or "parametrizations." in name
        if not known and not within and any(True for _ in module.parameters(recurse=False)):
            raise ValueError(
                f"sc.quant.prepare: {name} is a {type(module).__name__} with parameters, which has no fixed point; "
                "there are linear layers, convolutions, batch normalisation behind them, and neurons"
            )


def _refuse_infinite(net: nn.Module) -> None:
    """Refuse weights and biases that are not finite, as a normalisation that was folded may have made them."""
    for place in weighted(net):
        for what, value in (("weight", weight_of(place.layer)), ("bias", place.layer.bias)):
            with _of(f"{place.name}: its {what}"):
                largest(value if isinstance(value, Tensor) else torch.zeros(()))


def _refuse_means(net: nn.Module, run: Run) -> None:
    """Refuse poolings that divide integers by what is no power of two: floats round such a mean."""
    for name, module in net.named_modules():
        if not isinstance(module, MEANS) or module not in run.seen:
            continue
        pool: Any = module
        counts = run.seen[module].ratios
        if isinstance(module, tuple(WINDOWS)):
            (dimensions,) = (number for kind, number in WINDOWS.items() if isinstance(module, kind))
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
    place: Weighted, run: Run, of_each: Tuple[int, int], per_channel: bool, finest: int, kind: Type[OnGrid]
) -> None:
    """Put the weight of one layer on a grid, and what it reads, with so many bits of each."""
    bits, activations = of_each
    seen, called = run.seen.get(place.called), place.called
    if seen is None:
        raise ValueError(f"sc.quant.prepare: {place.name} is not called, and has no ranges; call it, or remove it")
    back = isinstance(called, Recurrent)
    # what reads an input of the network has one grid: an exported program is given integers
    first = next((readers for readers in map(run.first_readers, run.graph.inputs) if called in readers), [called])
    inputs = [x for module in first for x in run.seen[module].inputs]
    numbers = torch.cat(seen.outputs if back else inputs)
    of_neurons = fires(called) if back else run.fires(called)
    spikes = of_neurons and bool(((numbers == 0) | (numbers == 1)).all())
    with _of(f"what {place.name} reads"):
        grid = grid_of(numbers, activations)
    if spikes:
        grid = OnGrid(torch.ones_like(grid.scale), 0, 1)
    elif back and not (max(grid.fracs) <= 0 and torch.equal(grid(numbers), numbers)):
        raise ValueError(f"sc.quant.prepare: {place.name}: what comes back is no whole number, as spikes are")
    _attach(place.layer, "spikes" if spikes or back else "input", grid, called)
    with _of(place.name):
        quantise_layer(place.layer, bits, per_channel, max(grid.fracs), finest, kind)


def _written(net: nn.Module, run: Run) -> List[Weighted]:
    """The layers whose outputs something else than a neuron reads."""
    places = [place for place in weighted(net) if not isinstance(place.called, Recurrent)]
    return [place for place in places if place.called in run.seen and run.is_read(place.called)]


def _written_frac(written: Sequence[Weighted], run: Run, word: int) -> int:
    """The fractional bits of what these layers write: one grid, so that sums of such values are exact."""
    fracs = [word - 2]
    for place in written:
        with _of(f"what {place.name} writes"):
            fracs.append(best_frac(torch.cat(run.seen[place.called].outputs), word))
    return min(fracs)


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


def _share_input(x: Call, run: Run, activations: int) -> None:
    """Round an input of the network alike for all that reads it, unless neurons, which round it, and encoders do."""
    layers, readers, numbers = run.first_readers(x), readers_of(x), run.inputs[x].double()
    if all(isinstance(reader.module, (Neuron, Encoder)) for reader in readers):
        return
    grids = [module._modules.get("input_format") for module in layers]
    with _of(f"the input {x.name!r}"):
        grid = next((grid for grid in grids if isinstance(grid, OnGrid)), None) or grid_of(numbers, activations)
    for reader in readers:
        if reader.module in layers:
            continue
        module: Any = reader.module
        reads = [computed_by(call.source) is x for call in (run.graph.calls_of(module) if module is not None else [])]
        if reads and all(reads):
            _attach(module, "input", copy.deepcopy(grid), module)
        elif not (any(reads) and isinstance(module, Neuron)) and not torch.equal(grid(numbers), numbers):
            raise ValueError(
                f"sc.quant.prepare: {reader.title} reads the input of the network in floats, and fixed point has "
                f"{grid}; give inputs that are on such a grid, such as spikes, or put a layer in front of the network"
            )


def input_format(place: Weighted) -> Optional[Format]:
    """The format of what a layer of a prepared network reads; None in one that was not prepared."""
    for owner in (place.layer, place.called):
        grid = owner._modules.get("input_format")
        if isinstance(grid, OnGrid):
            return grid.format
    return None


def _fixed(
    net: nn.Module, neuron: Neuron, run: Run, bits: Tuple[int, Optional[int]], options: Mapping[str, Any]
) -> Neuron:
    """The neuron in fixed point. Without fractional bits, it has those that fit what it read and held, and with which
    nothing else saturates in it; more where a threshold would be 0.
    """
    word, frac = bits
    outer = [module for module in net.modules() if isinstance(module, Recurrent) and module.neuron is neuron]
    seen = run.seen.get(outer[0] if outer else neuron)
    values = [] if seen is None else [*seen.inputs, *seen.states]
    if frac is not None or not values:
        return fixed(neuron, word, frac, **options)
    frac = best_frac(torch.cat(values), word)
    most = max((largest(value) for values in seen.saturating for value in values), default=0.0) if seen else 0.0
    frac = min(frac, word - 1 - math.frexp(most)[1]) if most else frac
    least: Any = fixed_point_of(fixed(neuron, word, None, dtype=torch.float64))
    frac = min(frac, least.frac + 2)
    while True:
        try:
            return fixed(neuron, word, frac, **options)
        except ThresholdIsZero:
            frac += 1


def _largest_sum(place: Weighted, written: Any) -> int:
    """The largest sum of a layer's products, its bias and what another layer wrote, as an integer on the finest grid of
    these.
    """
    with _of(place.name):
        integers, fracs = integers_of(place.layer, 8)
        biases = biases_of(place.layer)
    read: Any = input_format(place)
    most = max(abs(int(read.low)), abs(int(read.high)))
    # of each output: pairs of an integer and its fractional bits
    rows = [int(row) * most for row in integers.abs().flatten(1).sum(1)]
    sums = [[(row, frac + int(read.frac or 0))] if row else [] for row, frac in zip(rows, fracs)]
    for terms, (bias, frac) in zip(sums, biases):
        terms += [(abs(bias), frac)] if bias else []
    if isinstance(written, OnGrid):
        for terms in sums:
            terms.append((max(-written.low, written.high), written.fracs[0]))
    return max(_added(terms) for terms in sums)


def _added(terms: Sequence[Tuple[int, int]]) -> int:
    """The sum of numbers ``n * 2**-frac``, as an integer on the finest grid of them."""
    finest = max((frac for _, frac in terms), default=0)
    return sum(n << (finest - frac) for n, frac in terms)


def prove(net: nn.Module, run: Run, dtype: torch.dtype) -> List[int]:
    """The largest sum of each layer; raises where the dtype does not hold it. What comes back in ``Recurrent`` is added
    to what another layer wrote.
    """
    sums, bits = [], SIGNIFICAND[dtype]
    for place in weighted(net):
        sources = run.seen[place.called].sources if isinstance(place.called, Recurrent) else []
        grids = [source.module._modules.get("output_format") for source in sources if source and source.module]
        grids += [place.called._modules.get("input_format")] if sources else []  # of an input of the network
        most = _largest_sum(place, next((grid for grid in grids if isinstance(grid, OnGrid)), None))
        if most >= 1 << bits:
            raise Inexact(
                f"sc.quant.prepare: {place.name}: sums of its products reach {most}, which needs {most.bit_length()} "
                f"bits, and {str(dtype).replace('torch.', '')} holds {bits}: take fewer bits of activations= or "
                "weights=, or dtype=torch.float64"
            )
        sums.append(most)
    return sums
