"""Formats of a prepared network as data, for files: taken off a network, and put on again with the same bits."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore.core import parameters
from spikecore.core.neuron import Neuron
from spikecore.graph import computed
from spikecore.words import shown
from spikecore_chips.quant._fixed import fixed, fixed_point_of, in_floats, unpacked
from spikecore_chips.quant._layers import LAYERS, LearntGrid, OnGrid, round_input, round_output

#: Module by name -> its formats. Those of a layer are grids, "weight" and "bias", "input" and "output", which say
#: ``fracs``, ``low``, ``high``, ``bits``, ``ranges``, and of the last two whether the layer ``rounds``. Those of a
#: neuron are the fields of its :class:`FixedPoint`.
Formats = Dict[str, Dict[str, Any]]

_KINDS = {kind.ranges: kind for kind in (OnGrid, LearntGrid)}
_HOOKS = {"input": round_input, "output": round_output}
#: Limits of what a file says: of a number of bits, and of segments of a table.
_BITS, _SEGMENTS = 54, 1 << 16


def plain(net: nn.Module) -> Tuple[nn.Module, Formats]:
    """A copy of a network in which weights are plain parameters on their grids, without hooks and formats of
    :func:`prepare`, and these formats. A network that was not prepared is given back as it is, with none.
    """
    formats: Formats = {}
    for name, module in net.named_modules():
        how = fixed_point_of(module)
        owner, _, what = name.rpartition(".")
        if how is not None:
            formats[name] = unpacked(how.stored(), {})
        elif isinstance(module, OnGrid) and what in ("input_format", "output_format"):
            side = what[: -len("_format")]
            hooks: Any = net.get_submodule(owner)
            rounds = _HOOKS[side] in (*hooks._forward_pre_hooks.values(), *hooks._forward_hooks.values())
            formats.setdefault(owner, {})[side] = {**_said(module), "rounds": rounds}
        elif isinstance(module, OnGrid) and "parametrizations." in name:
            owner, _, tensor = name.rpartition("parametrizations.")
            formats.setdefault(owner[:-1], {})[tensor.partition(".")[0]] = _said(module)
    return (_without(copy.deepcopy(net)), formats) if formats else (net, formats)


def _said(grid: OnGrid) -> Dict[str, Any]:
    return {"fracs": grid.fracs, "low": grid.low, "high": grid.high, "bits": grid.bits, "ranges": grid.ranges}


def _without(net: nn.Module) -> nn.Module:
    for name, module in [*net.named_modules()]:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in [*hooks.items()]:
                if hook in (round_input, round_output):
                    del hooks[key]
        for part in ("input_format", "output_format"):
            module._modules.pop(part, None)
        if fixed_point_of(module) is not None:
            in_floats(module)
        chains: Any = module.parametrizations.values() if parametrize.is_parametrized(module) and name else ()
        if any(isinstance(chain[-1], OnGrid) for chain in chains):
            parent, _, last = name.rpartition(".")
            setattr(net.get_submodule(parent), last, computed(module))
    return net


def restored(net: nn.Module, formats: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    """A copy of a network with these formats: that of which :func:`plain` made both, with the same bits.

    ::

        loaded = sc.nir.load("net.nir")
        integers = sc.quant.restored(loaded, loaded.formats)

    Its weights start where they are on their grids: what training had between and beyond the numbers of a grid, and
    parts of learnt fractional bits, are not in the formats.

    net: a network in floats with the weights and neurons of the prepared one, of :func:`plain` or loaded from a file.
    formats: those of :func:`plain`, or ``formats`` of a loaded network. They may be a stranger's.

    Raises ValueError, naming the module, for a format of a module that is not there, that is none, or that the weights
    do not have.
    """
    new = copy.deepcopy(net)
    for name, of_module in formats.items():
        try:
            module: Any = new.get_submodule(str(name))
            if isinstance(module, Neuron):
                _restore_neuron(module, of_module)
            else:
                for what, said in of_module.items():
                    _restore_grid(module, what, said)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(
                f"sc.quant.restored: {shown(name)}: {kind}{error}; formats must be those of sc.quant.plain, and the "
                "network the one that it gave"
            ) from error
    return new


def _restore_neuron(neuron: Neuron, said: Mapping[str, Any]) -> None:
    """Give a neuron the fixed point of these fields."""
    dtype = {str(each): each for each in (torch.float32, torch.float64)}[said["dtype"]]
    tables = {str(op): (float(low), float(high), _whole(size, _SEGMENTS)) for op, (low, high, size) in said["tables"]}
    bits: List[int] = [_whole(said[field], _BITS) for field in ("word", "frac", "factors")]
    options: Any = {"rounding": said["rounding"], "tables": tables, "dtype": dtype}
    how: Any = fixed_point_of(fixed(neuron, *bits[:2], factors=bits[2], **options))
    values = {name: (float(low), float(high)) for name, (low, high) in said["values"].items()}
    if set(values) != {name for name, _ in how.values}:
        raise ValueError(f"its values are of {', '.join(values)}, and the neuron has {', '.join(dict(how.values))}")
    current = parameters.current(neuron)
    how = type(how)(**{**vars(how), "values": tuple(values.items())})
    how, ranges = how.following(neuron, current, parameters.ranges_with(neuron, current), how.stored())
    parameters.adopt(neuron, ranges)
    neuron.transforms = (*neuron.transforms, how)


def _restore_grid(layer: nn.Module, what: str, said: Mapping[str, Any]) -> None:
    """Give a layer the grid of its weight or bias, or of what it reads or writes."""
    fracs = [_whole(frac, _BITS) for frac in said["fracs"]]
    low, high = (_whole(said[end], 1 << 24) for end in ("low", "high"))
    if low > high or not fracs:
        raise ValueError(f"its grid of {what} goes from {low} to {high}, with {len(fracs)} fractional bits")
    scale = torch.tensor([2.0**frac for frac in fracs])
    kind = _KINDS[said["ranges"]]
    if what in _HOOKS:
        grid = kind(scale[0], low, high, _whole(said["bits"], _BITS))
        layer.add_module(f"{what}_format", grid)
        if said["rounds"] and what == "input":
            layer.register_forward_pre_hook(round_input)
        elif said["rounds"]:
            layer.register_forward_hook(round_output)
        return
    if what not in ("weight", "bias") or not isinstance(layer, LAYERS):
        raise ValueError(f"{type(layer).__name__} has no format of {shown(what)}")
    before: Any = getattr(layer, what)
    if not isinstance(before, Tensor) or len(fracs) not in (1, len(before)):
        raise ValueError(f"its {what} has not the {len(fracs)} channels of its format")
    scale = scale.reshape(-1, *[1] * (before.ndim - 1)).to(before.device)
    grid = kind(scale, low, high, _whole(said["bits"], _BITS))
    if not torch.equal(grid(before.detach()), before.detach()):
        raise ValueError(f"its {what} is not on the grid of its format")
    parametrize.register_parametrization(layer, what, grid)


def _whole(value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > most:
        raise ValueError(f"{shown(value)} must be a whole number of size {most} or less")
    return value
