"""``sc.layers.pack`` and ``sc.layers.unpack``: layers that keep spikes as bits, where a network gives them spikes."""

from __future__ import annotations

import math
import operator
import warnings
from collections import Counter, defaultdict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type

import torch
from torch import nn

from spikecore._base.bits import BYTE, Whole, added, averaged, joined, multiplied
from spikecore.context import COMPILES, require_compiler
from spikecore.core.checks import check_network
from spikecore.core.modules import calls_as, pair, replace_modules
from spikecore.core.neuron import Neuron
from spikecore.graph import Call, Graph, computed_by, read_parts
from spikecore.lang.node import largest_count
from spikecore.layers._blocks import Tokens
from spikecore.layers._channels_last import ChannelsLastConv1d
from spikecore.layers._norm_neuron import NormNeuron
from spikecore.layers._packed import (
    MANY,
    PackedConv1d,
    PackedConv2d,
    PackedConv3d,
    PackedLinear,
    adds_rows,
    as_kind,
    lay,
)

#: Torch's layers, and those that take their place.
_PACKED: Mapping[Type[nn.Module], Type[nn.Module]] = {
    nn.Linear: PackedLinear,
    nn.Conv1d: PackedConv1d,
    ChannelsLastConv1d: PackedConv1d,
    nn.Conv2d: PackedConv2d,
    nn.Conv3d: PackedConv3d,
}
#: Layers that give some of the numbers that they get, or 0, as often as may be.
_KEEPING = (nn.Identity, nn.Flatten, nn.Unflatten, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, Tokens)
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")


def pack(net: nn.Module, in_order: bool = False) -> nn.Module:
    """Put :class:`spikecore.layers.PackedLinear` and ``PackedConv2d`` into ``net`` behind neurons; gives ``net`` back.

    In the place of a linear layer or a convolution (``nn.Linear``, ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``,
    ``sc.layers.ChannelsLastConv1d``) that gets spikes in all of its calls. Known are the outputs of
    spiking neurons, followed through the network and every ``forward`` that :func:`spikecore.graph.read` can follow:
    through identities, changes of shape, slices, maximum pooling, average pooling of windows of 2, 4, 8 and so on, and
    sums and products of spikes, which take two, four or eight bits. Elsewhere write
    :class:`spikecore.layers.PackedLinear` and ``PackedConv2d`` yourself. A ``NormNeuron`` that adds spikes before its
    neuron keeps these as bits, too.

    Parameters and hooks stay the same objects, so that an optimiser goes on, and ``state_dict()`` has the same keys.
    Left as they are: subclasses, layers with a parametrisation, and those that are in the network twice. A part of the
    network that is called alone afterwards must be given what it gets in the network. :func:`unpack` undoes it.

    On a CPU with spikecore-numba weights of the linear layers are laid by input (``weight.t()`` is contiguous), since
    what fired adds columns of them. Shapes and values are the same. On a CPU an optimiser of torch with
    ``fused=True`` and a state from before would mix up weights: pack before its first step.

    in_order: if true, outputs of linear layers are sums in the order of the inputs, so that single steps have the bits
        of a sequence: as of :class:`spikecore.layers.PackedLinear`.

    Raises TypeError for what is no module, and :class:`spikecore.backend.Unsupported` for torch before 2.6. Warns where
    there is no such layer, and says why.
    """
    check_network("sc.pack", net)
    require_compiler("packing spikes as bits")
    layers, reasons = _packable(net)
    packed = {module: spikes for module, spikes in layers.items() if type(module) in _PACKED}
    replace_modules(net, {module: as_kind(module, _PACKED[type(module)], spikes) for module, spikes in packed.items()})
    for layer in layers.keys() - packed.keys():
        layer.shortcut_spikes = tuple(layers[layer])  # type: ignore[assignment]  # plain numbers, for torch.compile
    for linear in [layer for layer in net.modules() if type(layer) is PackedLinear]:
        linear.in_order |= in_order
        if adds_rows(linear.weight, MANY):
            lay(linear.weight, by_input=True)
    if not layers and not is_packed(net):
        why = f": {'; '.join(reasons[:2])}" if reasons else ""
        warnings.warn(
            f"sc.layers.pack(net) found no linear layer or convolution behind a spiking neuron{why}. Where you know an "
            "input to be spikes, write sc.layers.PackedLinear or sc.layers.PackedConv2d",
            RuntimeWarning,
            stacklevel=2,
        )
    return net


def unpack(net: nn.Module) -> nn.Module:
    """Put the plain layers back in the place of packed ones, wherever they came from; gives ``net``.

    Raises TypeError for what is no module.
    """
    check_network("sc.unpack", net)
    packed: List[Any] = [module for module in net.modules() if type(module) in _PACKED.values()]
    replace_modules(net, {old: as_kind(old, old.plain) for old in packed})
    for linear in [module for module in packed if type(module) is PackedLinear]:
        lay(linear.weight, by_input=False)
    for module in net.modules():
        vars(module).pop("shortcut_spikes", None)
    return net


def is_packed(net: nn.Module) -> bool:
    """Tell whether some layer keeps its input as bits."""
    return any(isinstance(module, tuple(_PACKED.values())) for module in net.modules())


def packable(net: nn.Module) -> Dict[nn.Module, Whole]:
    """The layers that :func:`pack` changes, and what goes into each: for a ``NormNeuron``, as its shortcut."""
    return _packable(net)[0]


def adders(net: nn.Module, rows: Mapping[nn.Module, int], training: bool) -> List[nn.Module]:
    """The linear layers that :func:`pack` changes and that then may add up what fired, of inputs of so many rows."""
    linear = [layer for layer in packable(net) if type(layer) is nn.Linear and layer in rows] if COMPILES else []
    return [layer for layer in linear if adds_rows(layer.weight, rows[layer], training)]


def _packable(net: nn.Module) -> Tuple[Dict[nn.Module, Whole], List[str]]:
    """The same, and why others are not packed."""
    places = Counter(module for _, module in net.named_modules(remove_duplicate=False))
    parts = read_parts(net)
    layers: Dict[nn.Module, Whole] = {}
    reasons = [str(error) for error in parts.reasons.values()]
    inputs: Dict[nn.Module, Set[Optional[Whole]]] = defaultdict(set)
    titles: Dict[nn.Module, str] = {}
    for graph in parts.graphs:
        spikes = whole_numbers(graph)
        # torch lets nobody change what a function of autograd gives
        changed = {computed_by(call.source) for call in graph.calls if call.is_in_place}
        for call in graph.calls:
            for value in _keepable(call):
                inputs[call.module].add(None if call in changed else spikes.get(value))
                titles[call.module] = call.title
    for module, wholes in inputs.items():
        known = wholes.pop() if len(wholes) == 1 else None
        if places[module] > 1:
            reasons.append(f"{titles[module]} is in the network {places[module]} times: make a layer for each place")
        elif known is None:
            reasons.append(f"{titles[module]} gets what is not known to be spikes, or its output is changed in place")
        else:
            layers[module] = known
    return layers, reasons


def _keepable(call: Call) -> Sequence[Any]:
    """The values that a call can keep as bits; None among them is one that is not known."""
    if type(call.module) in _PACKED and not call.is_hooked:
        return call.args or (None,)
    return call.args[1:] if isinstance(call.module, NormNeuron) and call.module.shortcut == "before" else ()


# -- packing a value: what a graph says that it holds


def whole_numbers(graph: Graph) -> Dict[Call, Whole]:
    """The values of a graph that are whole numbers of a known size, and this size."""
    known: Dict[Call, Whole] = {}
    for call in graph.calls:
        args = call.args[0] if call.is_join else call.args
        whole = _of_call(call, [known.get(value) if isinstance(value, Call) else None for value in args])
        if whole is not None:
            known[call] = whole
    return known


def _of_call(call: Call, args: Sequence[Optional[Whole]]) -> Optional[Whole]:
    """The size of the value of a call, by those of its arguments."""
    if call.module is not None:
        return None if call.is_hooked else _of_layer(call, args)
    if call.kind not in ("function", "method"):
        return None
    if call.is_join:
        return joined(args)
    if call.summands:
        return added(*args)
    if call.target in _PRODUCTS and len(args) == 2 and not call.kwargs:
        return multiplied(*args)
    if call.target is operator.sub and call.args[0] == 1:
        return args[1] if args[1] == Whole(1) else None  # 1 - z is 0 or 1 where z is
    return args[0] if call.is_move and args else None


def _of_layer(call: Call, args: Sequence[Optional[Whole]]) -> Optional[Whole]:
    """The size of what a layer gives. One says by ``output_of`` which of its parts is the neuron that gives it."""
    module: Any = call.module
    layer: Any = None if isinstance(module, Neuron) else call.layer
    neuron = getattr(module, layer.output_of) if hasattr(layer, "output_of") else module
    if calls_as(neuron, Neuron):
        outputs = neuron.program.outputs
        largest = largest_count(outputs[0]) if len(outputs) == 1 else None
        spikes = Whole(largest) if largest and largest <= BYTE else None
        adds = isinstance(module, NormNeuron) and module.shortcut == "after" and len(args) > 1
        return added(spikes, args[1]) if adds else spikes
    if layer is None or not args:
        return None
    if issubclass(layer, nn.AvgPool2d):
        return _averaged(module, args[0])
    return args[0] if issubclass(layer, _KEEPING) else None


def _averaged(pool: Any, known: Optional[Whole]) -> Optional[Whole]:
    """Of average pooling, where every window is divided by its size."""
    pads = pair(pool.padding) != (0, 0) and not pool.count_include_pad
    exact = not pads and not pool.ceil_mode and pool.divisor_override is None
    return averaged(known, math.prod(pair(pool.kernel_size))) if exact else None
