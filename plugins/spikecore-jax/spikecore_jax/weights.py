"""Weights of a network of PyTorch as arrays of JAX, by a file of safetensors or directly.

The libraries differ in names and in the order of dimensions. ``k`` are the sizes of a kernel, ``g`` is ``groups``:

=================== =========================== ================================= ===================================
layer of PyTorch    PyTorch                     Flax NNX                          Equinox
=================== =========================== ================================= ===================================
Linear              ``weight [out, in]``        ``kernel [in, out]``              ``weight [out, in]``
Conv1d, 2d, 3d      ``weight [out, in/g, *k]``  ``kernel [*k, in/g, out]``        ``weight [out, in/g, *k]``
ConvTranspose1d,    ``weight [in, out/g, *k]``  ``kernel [*k, in, out]``,         ``weight [out, in/g, *k]``,
2d, 3d                                          turned round along k; g is 1      turned round along k
Embedding           ``weight [n, size]``        ``embedding [n, size]``           ``weight [n, size]``
BatchNorm1d, 2d, 3d ``weight [C]``              ``scale [C]``                     ``weight [C]``
..                  ``running_mean [C]``        ``mean [C]``                      ``running_mean [C]``: see below
..                  ``running_var [C]``         ``var [C]``                       ``running_var [C]``: see below
LayerNorm           ``weight [*sizes]``         ``scale [size]``, one dimension   ``weight [*sizes]``
all of these        ``bias [out]``              ``bias [out]``                    ``bias [out]``; of convolutions
                                                                                  ``[out, 1, ...]``
spikecore.Neuron    ``tau``, learnt             ``tau``                           ``learnt.tau``
=================== =========================== ================================= ===================================

What is not in the file has to be given to the layers of JAX:

- Flax's convolutions take ``[B, *sizes, C]``. They pad as ``SAME`` unless ``padding=((p, p), ...)`` is given. A
  transposed convolution of PyTorch with ``padding=p`` and ``output_padding=o`` has ``q = dilation (k - 1) - p`` and
  ``padding=((q, q + o), ...)`` in Flax; Equinox takes PyTorch's numbers.
- PyTorch's ``eps`` is 1e-5; Flax's ``LayerNorm`` has 1e-6 unless it is told. PyTorch's ``momentum`` is ``1 - momentum``
  there and in Equinox. ``num_batches_tracked`` has no place in either and is left out.
- Equinox keeps the running statistics of ``BatchNorm`` beside the module, in its ``State``. With ``mode="batch"`` it
  divides them by ``1 - momentum ** counter``, which many calls make 1::

    statistics = arrays["norm.running_mean"], arrays["norm.running_var"]
    state = state.set(norm.ema_state_index, statistics).set(norm.ema_first_time_index, jnp.asarray(False))
    state = state.set(norm.batch_state_index, statistics).set(norm.batch_counter, jnp.asarray(10**6))  # mode="batch"

- Of a neuron, what is learnt crosses over. All else of it is in its own definition: ``function(neuron)`` takes it from
  there. A state that a neuron carries is no weight: give it to a call.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

import jax.numpy as jnp
import torch
from torch import Tensor, nn

import spikecore as sc

Moved = Callable[[Any, Tensor], Tensor]
#: Of one library, for each entry of a layer: its name there, and how its dimensions are moved.
Entries = Mapping[str, Tuple[str, Moved]]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
#: The layers of the table, neurons apart, as exactly these classes: a class derived of one may compute something else.
KNOWN = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, nn.Embedding, *NORMS, nn.LayerNorm)


def _same(layer: Any, value: Tensor) -> Tensor:
    return value


def _channels_last(layer: Any, value: Tensor) -> Tensor:
    return value.movedim((1, 0), (-2, -1))


def _turned_last(layer: Any, value: Tensor) -> Tensor:
    return value.flip(*range(2, value.ndim)).movedim((0, 1), (-2, -1))


def _turned_first(layer: Any, value: Tensor) -> Tensor:
    inputs, outputs, g = *value.shape[:2], layer.groups
    by_group = value.flip(*range(2, value.ndim)).reshape(g, inputs // g, outputs, *value.shape[2:])
    return by_group.transpose(1, 2).reshape(g * outputs, inputs // g, *value.shape[2:])


def _with_ones(layer: Any, value: Tensor) -> Tensor:
    return value.reshape(-1, *[1] * len(layer.kernel_size))


_BIAS: Entries = {"bias": ("bias", _same)}
_SCALE: Entries = {"weight": ("scale", _same), **_BIAS}
_STATISTICS: Entries = {"running_mean": ("mean", _same), "running_var": ("var", _same)}
_LAST: Entries = {"weight": ("kernel", _channels_last), **_BIAS}
_TURNED_LAST: Entries = {"weight": ("kernel", _turned_last), **_BIAS}
_NORM: Entries = {**_SCALE, **_STATISTICS}
_KEPT: Entries = {name: (name, _same) for name in ("weight", "bias", "running_mean", "running_var")}
_WITH_ONES: Entries = {"weight": ("weight", _same), "bias": ("bias", _with_ones)}
_TURNED_FIRST: Entries = {**_WITH_ONES, "weight": ("weight", _turned_first)}
_TABLES: Mapping[str, Mapping[type, Entries]] = {
    "flax": {
        nn.Linear: {"weight": ("kernel", lambda layer, value: value.T), **_BIAS},
        **dict.fromkeys(CONVOLUTIONS, _LAST),
        **dict.fromkeys(TRANSPOSED, _TURNED_LAST),
        nn.Embedding: {"weight": ("embedding", _same)},
        **dict.fromkeys(NORMS, _NORM),
        nn.LayerNorm: _SCALE,
    },
    "equinox": {
        **dict.fromkeys(KNOWN, _KEPT),
        **dict.fromkeys(CONVOLUTIONS, _WITH_ONES),
        **dict.fromkeys(TRANSPOSED, _TURNED_FIRST),
    },
}


def load(
    path: Union[str, PathLike[str]], net: nn.Module, names: Mapping[str, str], library: str = "flax"
) -> Dict[str, Any]:
    """The arrays of a file of safetensors that holds ``net.state_dict()``, by their names in JAX.

    net: the network of PyTorch that the file was saved of, whose layers say what its entries are; its own weights are
    not read, so that it may be on the device ``meta``. names: the layers that cross over, by PyTorch's name of each ->
    its name in JAX, such as ``{"0": "hidden"}``, which gives ``hidden.kernel`` and ``hidden.bias``. library: ``"flax"``
    or ``"equinox"``; the table of this module says what they call an array, and which dimensions it has. Arrays keep
    their dtype, where JAX has it.

    Raises ``KeyError`` for a layer that the network does not have and for an entry that the file does not have,
    ``TypeError`` for a layer that is not in the table, ``ValueError`` for one that the other library does not have in
    this form and for an entry of another shape than the network's.
    """
    from safetensors.torch import load_file

    return converted(net, names, library, load_file(path))


def converted(
    net: nn.Module, names: Mapping[str, str], library: str = "flax", state: Optional[Mapping[str, Tensor]] = None
) -> Dict[str, Any]:
    """As :func:`load`, of a ``state_dict``; None for that of ``net``."""
    if library not in _TABLES:
        raise ValueError(f"library={library!r} must be one of {', '.join(map(repr, _TABLES))}")
    state, layers = net.state_dict() if state is None else state, dict(net.named_modules())
    found: Dict[str, Any] = {}
    for name, ours in names.items():
        if name not in layers:
            raise KeyError(f"names has {name!r}, which is no layer; the network has {', '.join(filter(None, layers))}")
        layer = layers[name]
        for entry, (theirs, moved) in _entries(name, layer, library).items():
            own = layer.state_dict().get(entry)
            if own is None:
                continue
            key = f"{name}.{entry}" if name else entry
            if key not in state:
                raise KeyError(f"there is no {key!r}; the file has {', '.join(sorted(state))}")
            if state[key].shape != own.shape:
                raise ValueError(f"{key!r} has shape {list(state[key].shape)}, in the network {list(own.shape)}")
            found[f"{ours}.{theirs}"] = _array(moved(layer, state[key].detach()))
    return found


def _entries(name: str, layer: nn.Module, library: str) -> Entries:
    """What crosses over of a layer."""
    if isinstance(layer, sc.Neuron):
        inside = "learnt." if library == "equinox" else ""
        learnt = [one for one, _ in layer.named_parameters(recurse=False) if one in layer.program.params]
        return {one: (f"{inside}{one}", _same) for one in learnt}
    if type(layer) not in KNOWN:
        inner = ", ".join(f"{name}.{one}" for one, _ in layer.named_children())
        raise TypeError(
            f"{name!r} is {type(layer).__module__}.{type(layer).__name__}, of which no layer of {library} is known: "
            + (f"name the layers within it, {inner}, or move" if inner else "move")
            + " its arrays yourself"
        )
    if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
        raise ValueError(f"{name!r} is an Embedding with max_norm={layer.max_norm}, which JAX's libraries do not have")
    if getattr(layer, "padding_mode", "zeros") != "zeros" and library == "flax":
        raise ValueError(f"{name!r} has padding_mode={layer.padding_mode!r}; pad before the convolution in Flax")
    if library == "flax" and isinstance(layer, TRANSPOSED) and layer.groups > 1:
        raise ValueError(f"{name!r} is {type(layer).__name__} with groups={layer.groups}, and Flax's has no groups")
    if library == "flax" and isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) > 1:
        shape = list(layer.normalized_shape)
        raise ValueError(f"{name!r} is LayerNorm over {shape}, and Flax's scale has one dimension")
    return _TABLES[library][type(layer)]


def _array(value: Tensor) -> Any:
    value = value.cpu().contiguous()
    if value.dtype == torch.bfloat16:  # NumPy has none
        return jnp.asarray(value.float().numpy(), jnp.bfloat16)
    return jnp.asarray(value.numpy())
