"""A prepared network without its roundings, for formats of files: weights as they are computed with, and formats."""

from __future__ import annotations

import copy
from typing import Any, Dict, Tuple

from torch import nn
from torch.nn.utils import parametrize

from spikecore.quant._fixed import FixedPoint
from spikecore.quant._layers import OnGrid, round_input, round_output

#: Module by name -> what it is rounded to: lists ``[frac, low, high]``, the fractional bits of each output's weights,
#: and for a neuron the fields of its :class:`FixedPoint`.
Formats = Dict[str, Dict[str, Any]]


def plain(net: nn.Module) -> Tuple[nn.Module, Formats]:
    """A copy of a network in which weights are plain parameters on their grids, without hooks and formats of
    :func:`prepare`, and these formats. A network that was not prepared is given back as it is, with none.
    """
    formats: Formats = {}
    for name, module in net.named_modules():
        arithmetic = getattr(module, "arithmetic", None)
        if isinstance(arithmetic, FixedPoint):
            fields = ("word", "frac", "factors", "rounding")
            formats[name] = {field: getattr(arithmetic, field) for field in fields}
        elif isinstance(module, OnGrid) and name.endswith(("input_format", "output_format")):
            owner, _, what = name.rpartition(".")
            known = module.format
            formats.setdefault(owner, {})[what] = [known.frac, int(known.low), int(known.high)]
        elif isinstance(module, OnGrid) and "parametrizations." in name:
            owner, _, tensor = name.rpartition(".parametrizations.")
            formats.setdefault(owner, {})[f"{tensor.partition('.')[0]}_fracs"] = module.fracs
    return (_without(copy.deepcopy(net)), formats) if formats else (net, formats)


def _without(net: nn.Module) -> nn.Module:
    for name, module in [*net.named_modules()]:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in [*hooks.items()]:
                if hook in (round_input, round_output):
                    del hooks[key]
        for part in ("input_format", "output_format"):
            module._modules.pop(part, None)
        if parametrize.is_parametrized(module) and name and _on_grids(module):
            parent, _, last = name.rpartition(".")
            setattr(net.get_submodule(parent), last, _layer(module))
    return net


def _on_grids(module: Any) -> bool:
    return all(isinstance(part, OnGrid) for parts in module.parametrizations.values() for part in parts)


def _layer(module: Any) -> nn.Module:
    """The layer without parametrisations. Torch's function that removes them takes them from each copy, too."""
    kind: Any = parametrize.type_before_parametrizations(module)
    layer: nn.Module = kind.__new__(kind)
    values = {name: nn.Parameter(getattr(module, name).detach().clone()) for name in module.parametrizations}
    modules = {name: part for name, part in module._modules.items() if name != "parametrizations"}
    layer.__dict__.update({**vars(module), "_parameters": {**module._parameters, **values}, "_modules": modules})
    return layer
