"""Folding a batch normalisation into the layer before it, and the conditions for it."""

from __future__ import annotations

import copy
import math
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from spikecore.graph._calls import CONVOLUTIONS, NORMS, Call, Graph, Refused, is_parametrised

#: Call -> the shape of its value.
Shapes = Mapping[Call, Tuple[int, ...]]
#: Functions and methods that exchange dimensions.
_EXCHANGES = ("permute", "swapaxes", "transpose")
_WHAT = "a normalisation behind it cannot be folded into it"


def norm_source(graph: Graph, norm: Call, shapes: Shapes, kinds: Tuple[type, ...] = (nn.Linear, *CONVOLUTIONS)) -> Call:
    """The call of the layer that a batch normalisation can be folded into.

    That is so where all of this holds of every call of the normalisation; where it does not, :class:`Refused` names the
    layer:

    - the normalisation is torch's own, in ``eval()`` with running statistics;
    - it reads the output of one of ``kinds``, of the same layer in each call, with nothing between them but identities
      and changes of shape, and dimension 1 of what it reads are the features of that layer;
    - nothing else reads these values, the layer is called for this normalisation alone, and nothing else uses the
      tensors of both.

    shapes: the shapes of values for an example, by :func:`values`.
    """
    graph.check_plain(norm, NORMS, "cannot be folded into the layer before it")
    graph.check_owner(norm, "cannot be folded into the layer before it")
    if norm.module.running_mean is None or norm.module.training:
        way_out = "call .eval(), and keep track_running_stats=True"
        raise Refused(norm.title, "normalises by the statistics of a batch", way_out)
    pairs = [(call, _source(graph, call, shapes, kinds)) for call in graph.calls_of(norm.module)]
    source = next(source for call, source in pairs if call is norm)
    for call, other in pairs:
        if other.module is not source.module:
            why = f"is called behind {source.title} and behind {other.title}, and is folded into one layer"
            raise Refused(call.title, why, "make a normalisation for each layer")
    others = [call for call in graph.calls_of(source.module) if call not in [source for _, source in pairs]]
    if others:
        why = f"is called {len(others)} times without {norm.title} behind it, and {_WHAT}"
        raise Refused(source.title, why, "make a layer for each call (copy.deepcopy)")
    graph.check_owner(source, _WHAT)
    return source


def _source(graph: Graph, norm: Call, shapes: Shapes, kinds: Tuple[type, ...]) -> Call:
    """The call of a layer that a call of a normalisation reads, and nothing else."""
    between: List[Call] = []
    value = norm.source
    while value is not None and (value.is_nothing or value.is_reshape or value.function in _EXCHANGES):
        between.insert(0, value)
        value = value.source
    names = ", ".join(kind.__name__ for kind in kinds)
    if value is None or value.module is None or not isinstance(value.module, kinds):
        what = "no layer" if value is None else value.title
        way_out = "put it right behind such a layer"
        raise Refused(norm.title, f"reads {what}, and is folded into one of {names}", way_out)
    graph.check_plain(value, kinds, _WHAT)
    for reader in [*between, norm]:
        graph.check_reader(value, reader, _WHAT, reader.source)
    shape: Any = shapes[norm.source]  # type: ignore[index]  # it has one
    axis = 1 if shape[1] == 1 else feature_axis(value, between, shapes)
    if axis != 1 or norm.module.num_features != shapes[value][_axis_of(value, shapes)]:
        place = "none of its dimensions" if axis is None else f"dimension {axis}"
        raise Refused(
            norm.title,
            f"normalises dimension 1 of {list(shape)}, and the features of {value.title} are {place}",
            "normalise the features: .flatten(0, 1) of time and batch, or .transpose(1, 2), before it",
        )
    return value


def _axis_of(layer: Call, shapes: Shapes) -> int:
    """The dimension of a layer's output that holds its features."""
    dims = {nn.Conv1d: 2, nn.Conv2d: 3, nn.Conv3d: 4}
    behind = next((n for kind, n in dims.items() if isinstance(layer.module, kind)), 1)
    return len(shapes[layer]) - behind


def feature_axis(layer: Call, between: Sequence[Call], shapes: Shapes) -> Optional[int]:
    """The dimension that holds the features of a layer behind some changes of shape; None where none does.

    A change of shape keeps a dimension where the numbers of elements before and behind it stay the same. One that
    exchanges dimensions moves it.
    """
    axis, shape = _axis_of(layer, shapes), shapes[layer]
    for call in between:
        if call.function in _EXCHANGES:
            axis, shape = _order(call, len(shape)).index(axis), shapes[call]
            continue
        before, behind = math.prod(shape[:axis]), shapes[call]
        fitting = [n for n, size in enumerate(behind) if size == shape[axis] and math.prod(behind[:n]) == before]
        if not fitting:
            return None
        axis, shape = fitting[0], behind
    return axis


def _order(call: Call, ndim: int) -> List[int]:
    """Of each dimension of what exchanges dimensions, the one that it was before."""
    numbers: List[Any] = []
    for argument in (*call.args[1:], *call.kwargs.values()):
        numbers += argument if isinstance(argument, (tuple, list)) else [argument]
    order = [*range(ndim)]
    if call.function == "permute":
        return [order[number] for number in numbers]
    first, second = numbers
    order[first], order[second] = order[second], order[first]
    return order


def folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """A copy of a linear layer or convolution with the batch normalisation behind it, by its running statistics."""
    norm = copy.deepcopy(norm).eval()
    for name, value in (("weight", 1.0), ("bias", 0.0)):
        if getattr(norm, name) is None:  # torch folds none of these into a linear layer
            setattr(norm, name, nn.Parameter(torch.full_like(norm.running_var, value)))  # type: ignore[arg-type]
    fuse: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
    return fuse(computed(layer).eval(), norm)  # type: ignore[no-any-return]  # a layer of the same type


def computed(module: nn.Module) -> nn.Module:
    """A copy of a module with the values that its parametrisations compute now as parameters, and without these.

    Torch's function that removes them takes them from each copy, too.
    """
    if not is_parametrised(module):
        return copy.deepcopy(module)
    parametrised: Any = module
    kind: Any = parametrize.type_before_parametrizations(module)
    plain: nn.Module = kind.__new__(kind)
    values = {name: nn.Parameter(getattr(module, name).detach()) for name in parametrised.parametrizations}
    parts = {name: part for name, part in module._modules.items() if name != "parametrizations"}
    plain.__dict__.update({**vars(module), "_parameters": {**module._parameters, **values}, "_modules": parts})
    return copy.deepcopy(plain)
