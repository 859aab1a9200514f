"""Networks of the field, each an ``nn.Sequential`` of spikecore's layers: VGG, ResNet-19, SEW-ResNet, MS-ResNet,
Spikformer, QKFormer, spike-driven transformer, U-Net.

:func:`load` gives small ones with trained weights: ``sc.models.load("mnist")``.

Rules of this module:

- A network takes ``[T, B, C, H, W]``, or, with ``steps=T``, images ``[B, C, H, W]`` that ``sc.encode.Constant``
  repeats. It gives ``[T, B, classes]``, the values of a linear read-out at each step, and the U-Net
  ``[T, B, classes, H, W]``; the papers average them over time: ``out.mean(0)``.
- ``neuron`` makes a neuron and ``norm`` the normalisation of so many channels; each network says its defaults.
- Weights begin as in the authors' programs where these say so, and as torch makes them elsewhere.
- It is built of parts that :func:`spikecore.fuse`, :func:`spikecore.set_step`, :func:`spikecore.checkpoint`,
  :class:`spikecore.parallel.Pipeline` and ``torch.compile`` take. Its names in ``state_dict`` are its own, not the
  authors'.
"""

from __future__ import annotations

from spikecore_models._resnet import ms_resnet, resnet19, sew_resnet
from spikecore_models._trained import Trained, load, trained
from spikecore_models._transformers import (
    SpikeDrivenSelfAttention,
    TokenQKAttention,
    qkformer,
    spike_driven_transformer,
    spikformer,
)
from spikecore_models._unet import spiking_unet
from spikecore_models._vgg import vgg

__all__ = [
    "SpikeDrivenSelfAttention",
    "TokenQKAttention",
    "Trained",
    "load",
    "ms_resnet",
    "qkformer",
    "resnet19",
    "sew_resnet",
    "spike_driven_transformer",
    "spikformer",
    "spiking_unet",
    "trained",
    "vgg",
]
__dir__ = __all__.copy
