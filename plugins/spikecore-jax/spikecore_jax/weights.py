"""Weights of a network of PyTorch as arrays of JAX, by a file of safetensors or directly.

What differs between the libraries is the order of dimensions:

=========================== ====================== ============================= ===========================
layer                       PyTorch                Flax NNX                      Equinox
=========================== ====================== ============================= ===========================
linear                      ``weight [out, in]``   ``kernel [in, out]``          ``weight [out, in]``
convolution, 2 dimensions   ``weight [o, i, h, w]`` ``kernel [h, w, i, o]``      ``weight [o, i, h, w]``
bias                        ``bias [out]``         ``bias [out]``                ``bias [out]``, conv ``[o, 1, 1]``
neuron, learnt              ``tau``                ``tau``                       ``learnt['tau']``
=========================== ====================== ============================= ===========================
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Dict, Mapping, Union

import jax.numpy as jnp
import torch

#: For each number of dimensions of a weight, where Flax has PyTorch's dimensions.
_FLAX = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}


def load(path: Union[str, PathLike[str]], names: Mapping[str, str], flax: bool = True) -> Dict[str, Any]:
    """The arrays of a file of safetensors that PyTorch's names stand for, by the names that they get.

    names: PyTorch's name of each array -> its name in JAX, such as ``{"0.weight": "hidden.kernel"}``. flax: whether
    weights of two and more dimensions get Flax's order; False keeps PyTorch's, which is Equinox's, too.

    Raises ``KeyError`` for a name that the file does not have.
    """
    from safetensors.torch import load_file

    return renamed(load_file(path), names, flax)


def renamed(state: Mapping[str, Any], names: Mapping[str, str], flax: bool = True) -> Dict[str, Any]:
    """As :func:`load`, of a ``state_dict``."""
    found = {}
    for theirs, ours in names.items():
        if theirs not in state:
            raise KeyError(f"there is no {theirs!r}; the network has {', '.join(sorted(state))}")
        value = state[theirs].detach()
        value = value.to(torch.float64 if value.dtype == torch.float64 else torch.float32).cpu()
        moved = flax and theirs.rpartition(".")[2] == "weight" and value.ndim in _FLAX
        found[ours] = jnp.asarray((value.permute(_FLAX[value.ndim]) if moved else value).contiguous().numpy())
    return found
