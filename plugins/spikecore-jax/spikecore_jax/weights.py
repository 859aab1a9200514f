"""Weights of a network of PyTorch as arrays of JAX and back, by a file of safetensors or directly.

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
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, Union

import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc

Moved = Callable[[Any, Tensor], Tensor]
#: Of one library, for each entry of a layer: its name there, how its dimensions are moved, and how they are moved back.
Entries = Mapping[str, Tuple[str, Moved, Moved]]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
#: The layers of the table, neurons apart, as exactly these classes: a class derived of one may compute something else.
KNOWN = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, nn.Embedding, *NORMS, nn.LayerNorm)


def _same(layer: Any, value: Tensor) -> Tensor:
    return value


def _transposed(layer: Any, value: Tensor) -> Tensor:
    return value.T


def _channels_last(layer: Any, value: Tensor) -> Tensor:
    return value.movedim((1, 0), (-2, -1))


def _channels_first(layer: Any, value: Tensor) -> Tensor:
    return value.movedim((-2, -1), (1, 0))


def _turned(value: Tensor) -> Tensor:
    return value.flip(*range(2, value.ndim))


def _turned_last(layer: Any, value: Tensor) -> Tensor:
    return _turned(value).movedim((0, 1), (-2, -1))


def _last_turned(layer: Any, value: Tensor) -> Tensor:
    return _turned(value.movedim((-2, -1), (0, 1)))


def _swapped(layer: Any, value: Tensor) -> Tensor:
    """``[a, b/g, *k]`` as ``[b, a/g, *k]``, turned round: the same both ways."""
    a, part, g = *value.shape[:2], layer.groups
    by_group = _turned(value).reshape(g, a // g, part, *value.shape[2:])
    return by_group.transpose(1, 2).reshape(g * part, a // g, *value.shape[2:])


def _with_ones(layer: Any, value: Tensor) -> Tensor:
    return value.reshape(-1, *[1] * len(layer.kernel_size))


def _without_ones(layer: Any, value: Tensor) -> Tensor:
    return value.reshape(-1)


_BIAS: Entries = {"bias": ("bias", _same, _same)}
_SCALE: Entries = {"weight": ("scale", _same, _same), **_BIAS}
_NORM: Entries = {**_SCALE, "running_mean": ("mean", _same, _same), "running_var": ("var", _same, _same)}
_LAST: Entries = {"weight": ("kernel", _channels_last, _channels_first), **_BIAS}
_TURNED: Entries = {"weight": ("kernel", _turned_last, _last_turned), **_BIAS}
_KEPT: Entries = {name: (name, _same, _same) for name in ("weight", "bias", "running_mean", "running_var")}
_ONES: Entries = {"weight": ("weight", _same, _same), "bias": ("bias", _with_ones, _without_ones)}
_SWAPPED: Entries = {**_ONES, "weight": ("weight", _swapped, _swapped)}
_TABLES: Mapping[str, Mapping[type, Entries]] = {
    "flax": {
        nn.Linear: {"weight": ("kernel", _transposed, _transposed), **_BIAS},
        **dict.fromkeys(CONVOLUTIONS, _LAST),
        **dict.fromkeys(TRANSPOSED, _TURNED),
        nn.Embedding: {"weight": ("embedding", _same, _same)},
        **dict.fromkeys(NORMS, _NORM),
        nn.LayerNorm: _SCALE,
    },
    "equinox": {
        **dict.fromkeys(KNOWN, _KEPT),
        **dict.fromkeys(CONVOLUTIONS, _ONES),
        **dict.fromkeys(TRANSPOSED, _SWAPPED),
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
    """Weights of :func:`load`, of a ``state_dict``; None for that of ``net``."""
    state = net.state_dict() if state is None else state
    found: Dict[str, Any] = {}
    for key, ours, layer, own, there, _ in _pairs(net, names, library):
        if key not in state:
            raise KeyError(f"there is no {key!r}; the file has {', '.join(sorted(state))}")
        if state[key].shape != own.shape:
            raise ValueError(f"{key!r} has shape {list(state[key].shape)}, in the network {list(own.shape)}")
        found[ours] = _array(there(layer, state[key].detach()))
    return found


def state_dict(
    arrays: Mapping[str, Any], net: nn.Module, names: Mapping[str, str], library: str = "flax"
) -> Dict[str, Tensor]:
    """The way back: the entries of PyTorch for ``net.load_state_dict(found, strict=False)``, of arrays with the names
    that :func:`load` gives them.

    Raises what :func:`load` raises, of ``arrays``.
    """
    found: Dict[str, Tensor] = {}
    for key, ours, layer, own, there, back in _pairs(net, names, library):
        if ours not in arrays:
            raise KeyError(f"there is no {ours!r}; arrays has {', '.join(sorted(arrays))}")
        value, shape = jnp.asarray(arrays[ours]), there(layer, torch.empty_like(own, device="meta")).shape
        if value.shape != tuple(shape):
            raise ValueError(f"{ours!r} has shape {list(value.shape)}, in the network {list(shape)}")
        found[key] = back(layer, _tensor(value)).contiguous()
    return found


def _pairs(
    net: nn.Module, names: Mapping[str, str], library: str
) -> Iterator[Tuple[str, str, nn.Module, Tensor, Moved, Moved]]:
    """Of each entry: its name in PyTorch and in JAX, its layer, its value in the network, how it is moved and back."""
    if library not in _TABLES:
        raise ValueError(f"library={library!r} must be one of {', '.join(map(repr, _TABLES))}")
    layers = dict(net.named_modules())
    for name, ours in names.items():
        if name not in layers:
            raise KeyError(f"names has {name!r}, which is no layer; the network has {', '.join(filter(None, layers))}")
        layer = layers[name]
        own = layer.state_dict()
        for entry, (theirs, there, back) in _entries(name, layer, library).items():
            if entry in own:
                key = f"{name}.{entry}" if name else entry
                yield key, f"{ours}.{theirs}", layer, own[entry], there, back


def _entries(name: str, layer: nn.Module, library: str) -> Entries:
    """The entries of a layer that cross over."""
    if isinstance(layer, sc.Neuron):
        inside = "learnt." if library == "equinox" else ""
        learnt = [one for one, _ in layer.named_parameters(recurse=False) if one in layer.program.params]
        return {one: (f"{inside}{one}", _same, _same) for one in learnt}
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


def _tensor(value: Any) -> Tensor:
    if value.dtype == jnp.bfloat16:
        return torch.from_numpy(np.array(value, np.float32)).bfloat16()
    return torch.from_numpy(np.array(value))
