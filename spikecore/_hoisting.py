"""``sc.hoist``: a constant encoder moved behind the layers that see no time, so that these compute once."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from itertools import takewhile
from typing import Any, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Type

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spikecore._base.errors import a_kind
from spikecore._pooling import CompactAvgPool2d, CompactMaxPool2d
from spikecore._shell.checks import shown
from spikecore._shell.in_turn import calls_as, in_turn
from spikecore._shell.norms import Deferred
from spikecore._shell.outside import outside
from spikecore.encode import Constant
from spikecore.layers import PackedConv2d, PackedLinear, TimeBatched, Voting
from spikecore.neuron import Neuron


def _of(*names: str) -> FrozenSet[Type[nn.Module]]:
    """The types of torch.nn of these names that this version of torch has."""
    return frozenset(getattr(nn, name) for name in names if hasattr(nn, name))


#: Layers to which ``[T, B, ...]`` is as ``[B, ...]``: of each number, and of the last dimensions.
_OF_ANY = _of(
    *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU"),
    *("LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign"),
    *("Tanh", "Tanhshrink", "Threshold", "Linear", "LayerNorm", "RMSNorm"),
) | {Voting, PackedLinear}
#: Layers of samples ``[B, ...]``, which stand within ``TimeBatched``; flattening, where it keeps the batch.
_OF_SAMPLES = (
    _of(
        *(f"{name}{n}d" for n in (1, 2, 3) for name in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")),
        *(f"{name}{n}d" for n in (1, 2, 3) for name in ("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "MaxPool")),
        *(f"{how}Pad{n}d" for n in (1, 2, 3) for how in ("Circular", "Constant", "Reflection", "Replication", "Zero")),
        *("LPPool1d", "LPPool2d", "GroupNorm", "LocalResponseNorm", "PReLU", "PixelShuffle", "PixelUnshuffle"),
        *("ChannelShuffle", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "Flatten", "Unflatten"),
    )
    | _OF_ANY
    | {PackedConv2d, CompactAvgPool2d, CompactMaxPool2d}
)


class _Place(NamedTuple):
    """A module where an ``nn.Sequential`` calls it."""

    parent: nn.Module
    name: str
    module: nn.Module


def hoist(net: nn.Module) -> nn.Module:
    """Move each :class:`spikecore.encode.Constant` of ``net`` behind the layers that see no time, which then compute
    once and not at every step; gives ``net`` back.

    In an ``nn.Sequential``, nested ones included::

        encode.Constant(8), TimeBatched(conv, norm), LIF(), ...
        nn.Identity(), nn.Sequential(conv, norm), LIF(repeat=8), ...  # after sc.hoist

    Layers that see no time are linear layers, activations and ``nn.LayerNorm``, as they are; ``TimeBatched`` of these,
    of convolutions, normalisation, pooling, padding and flattening; and ``nn.Flatten(2)``, which becomes
    ``nn.Flatten(1)``. Dropout is none, nor are subclasses, layers with ``inplace=True`` and modules of your own: the
    encoder stops before them. A neuron behind gets ``repeat=``. Before another module the encoder stands on, under a
    name of its own: names in ``state_dict`` stay, and so do the values that the network computes, but for one:
    batch normalisation in training takes its unbiased running variance from B samples instead of T * B equal ones.
    ``TimeBatched`` is replaced by an ``nn.Sequential``, so hooks that it has are lost. A second call changes nothing.

    In a ``forward`` of your own, give the layers ``x`` without time, and the neuron behind them ``repeat=T``.

    Raises TypeError for what is no module. Warns where there is no encoder that can be moved.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.hoist: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")
    if not move_encoders(net) and not any(isinstance(one, Neuron) and one.makes_time for one in net.modules()):
        warnings.warn(
            "sc.hoist(net) found no encode.Constant with a layer behind it that sees no time: it takes those that an "
            "nn.Sequential calls. In a forward of your own, give the layers x without time, and the neuron behind them "
            "repeat=T",
            stacklevel=outside(),
        )
    return net


def move_encoders(net: nn.Module) -> bool:
    """What :func:`hoist` does, without a warning; whether an encoder moved, or had moved before."""
    # a neuron that other places call, too, has inputs with time there
    places = Counter(module for _, module in net.named_modules(remove_duplicate=False))
    within = {part for module in net.modules() if in_turn(module) for part in module.children()}
    chains = [module for module in net.modules() if in_turn(module) and module not in within]
    moved = [_hoist_in(list(_parts(chain)), places) for chain in chains]
    return any(moved)


def _parts(chain: nn.Module) -> Iterator[_Place]:
    """What a chain calls one after the other, chains within it followed."""
    for name, module in chain._modules.items():
        if module is not None and in_turn(module):
            yield from _parts(module)
        elif module is not None:
            yield _Place(chain, name, module)


def _hoist_in(parts: List[_Place], places: Mapping[nn.Module, int]) -> bool:
    """Move the encoder of one chain; whether it moved, or stands behind such layers already."""
    found = next((k for k, place in enumerate(parts) if type(place.module) is Constant), None)
    if found is None:
        return False
    encoder: Any = parts[found].module
    behind = parts[found + 1 :]
    layers = [*takewhile(lambda place: _without_time(place.module) is not None, behind)]
    following = behind[len(layers)] if len(behind) > len(layers) else None
    takes = following is not None and _takes_repeat(following.module) and places[following.module] == 1
    if not (layers or takes):
        return found > 0 and _without_time(parts[found - 1].module) is not None
    setattr(parts[found].parent, parts[found].name, nn.Identity())
    for place in layers:
        setattr(place.parent, place.name, _without_time(place.module))
    if takes and following is not None:
        following.module.repeat = encoder.steps
    elif following is not None:
        _insert(following.parent, following.name, encoder)
    else:
        _insert(layers[-1].parent, None, encoder)
    return True


def _takes_repeat(module: nn.Module) -> bool:
    """Whether a neuron of one input can make the time steps of an encoder."""
    return isinstance(module, Neuron) and calls_as(module, Neuron) and len(module.inputs) == 1 and module.repeat is None


def _without_time(module: nn.Module) -> Optional[nn.Module]:
    """The layer that does to ``[B, ...]`` what this one does to every step of ``[T, B, ...]``, None if unknown."""
    kind = type_before_parametrizations(module)
    if kind is TimeBatched:
        inner: Any = module.module
        return nn.Sequential(OrderedDict(module=inner)) if _is_of_samples(inner) else None
    if kind is nn.Flatten:
        start, end = int(module.start_dim), int(module.end_dim)  # type: ignore[arg-type]  # numbers
        return nn.Flatten(start - 1, end if end < 0 else end - 1) if start > 0 else None
    return module if kind in _OF_ANY and not getattr(module, "inplace", False) else None


def _is_of_samples(module: nn.Module) -> bool:
    """Whether a layer treats the samples of ``[B, ...]`` alike, whatever their number."""
    if in_turn(module):
        return all(map(_is_of_samples, module.children()))
    if (
        isinstance(module, (nn.Flatten, nn.Unflatten))
        and int(getattr(module, "start_dim", getattr(module, "dim", 0))) < 1
    ):
        return False
    known = type_before_parametrizations(module) in _OF_SAMPLES or isinstance(module, Deferred)
    return known and not getattr(module, "inplace", False)


def _insert(chain: nn.Module, before: Optional[str], encoder: nn.Module) -> None:
    """Put an encoder in front of the part ``before`` of a chain, or at its end; the names of other parts stay."""
    name = "constant"
    while name in chain._modules:
        name += "_"
    parts = [*chain._modules.items()]
    chain._modules.clear()
    for own, part in parts:
        if own == before:
            chain.add_module(name, encoder)
        chain._modules[own] = part
    if before is None:
        chain.add_module(name, encoder)
