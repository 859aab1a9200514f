"""The networks that are trained, each a function of what stands where the neurons go.

Inputs are ``[B, ...]``, and up to the first neuron everything is computed once, since it is the same at every step: a
neuron of spikecore repeats its input, and an encoder does for any other. All but the neuron is the same for every
implementation, ReLU included. With ``steps=None`` the input has time.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Callable, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.layers import SEWBlock, SpikingSelfAttention, Tokens
from spikecore_bench import kinds
from spikecore_bench.network import Activation, Network, beginning


def fully_connected(steps: int, neuron: Activation) -> nn.Module:
    """784-1000-10, the usual first network of tutorials."""
    return nn.Sequential(*beginning(steps, nn.Linear(784, 1000), neuron()), nn.Linear(1000, 10), neuron())


def digits(steps: int, neuron: Activation) -> nn.Module:
    """The network of ``examples/digits.py``: two convolutions on 8x8 images."""
    return nn.Sequential(
        *beginning(steps, nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24)), neuron()),
        sc.layers.TimeBatched(nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48)),
        neuron(),
        sc.layers.TimeBatched(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48 * 4 * 4, 10)),
        neuron(),
    )


def cifar10(
    steps: Optional[int], neuron: Activation, width: int = 256, image: Tuple[int, ...] = (3, 32, 32), classes: int = 10
) -> nn.Sequential:
    """Six 3x3 convolutions of ``width`` channels on images ``[C, H, W]``, halved after every second one."""
    layers: List[nn.Module] = []
    channels, height, columns = image
    for _ in range(3):
        for pool in (False, True):
            pooled = (nn.MaxPool2d(2),) if pool else ()
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            convolved = nn.Sequential(convolution, *pooled, nn.BatchNorm2d(width))
            layers += beginning(None if layers else steps, convolved, neuron())
            channels = width
    read_out = sc.layers.TimeBatched(
        nn.Flatten(), nn.Linear(width * (height // 8) * (columns // 8), classes, bias=False)
    )
    return nn.Sequential(*layers, read_out, neuron())


def sew_resnet18(
    steps: Optional[int], neuron: Activation, image: Tuple[int, ...] = (3, 224, 224), classes: int = 1000
) -> nn.Sequential:
    """SEW-ResNet18 with ADD; the read-out is linear. Images below 64 pixels are not made smaller by the first layer."""
    small = image[1] < 64
    size, stride = (3, 1) if small else (7, 2)
    convolution = nn.Conv2d(image[0], 64, size, stride, size // 2, bias=False)
    layers = beginning(steps, nn.Sequential(convolution, nn.BatchNorm2d(64)), neuron())
    if not small:
        layers.append(sc.layers.TimeBatched(nn.MaxPool2d(3, 2, 1)))
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [SEWBlock(channels, out, neuron, stride=stride), SEWBlock(out, out, neuron)]
        channels = out
    read_out = sc.layers.TimeBatched(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    return nn.Sequential(*layers, read_out)


def vgg(steps: int, neuron: Activation, image: Tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Sequential:
    """Eight 3x3 convolutions with batch normalisation, halved by four average poolings; the read-out is linear."""
    return sc.models.vgg(9, steps=steps, in_channels=image[0], size=image[1:], classes=classes, neuron=neuron)


def resnet19(steps: int, neuron: Activation, image: Tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Sequential:
    """ResNet-19 with tdBN (Zheng et al., 2021); the read-out is linear."""
    return sc.models.resnet19(steps=steps, in_channels=image[0], classes=classes, neuron=neuron, norm=sc.layers.tdbn)


class AttentionBlock(nn.Module):
    """Spiking self-attention and a hidden layer of four times the width, each added (Zhou et al., 2023).

    Batch and tokens are one dimension, so that a layer is linear, normalises, and a neuron follows, as in any network.
    """

    def __init__(self, channels: int, heads: int, tokens: int, neuron: Activation) -> None:
        super().__init__()
        self.tokens = tokens
        self.attention = SpikingSelfAttention(channels, heads, neuron, bias=False)
        self.hidden = nn.Sequential(_linear(channels, 4 * channels, neuron), _linear(4 * channels, channels, neuron))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B N, C] -> [T, B N, C]``."""
        x = x + self.attention(x.unflatten(1, (-1, self.tokens))).flatten(1, 2)
        y: Tensor = x + self.hidden(x)
        return y


def attention(
    steps: int, neuron: Activation, image: Tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 384
) -> nn.Sequential:
    """Four blocks of spiking attention with eight heads on patches of 4x4 pixels."""
    tokens = (image[1] // 4) * (image[2] // 4)
    patches = nn.Sequential(nn.Conv2d(image[0], width, 4, 4), nn.BatchNorm2d(width))
    layers = [*beginning(steps, patches, neuron()), nn.Sequential(Tokens(), nn.Flatten(1, 2))]
    layers += [AttentionBlock(width, 8, tokens, neuron) for _ in range(4)]
    return nn.Sequential(*layers, Mean(tokens), nn.Linear(width, classes))


def spikformer_ti(steps: int, neuron: Activation) -> nn.Sequential:
    """Spikformer-Ti of SpikingJelly: four blocks of width 256 with eight heads, patches of 16x16 pixels."""
    return sc.models.spikformer(
        4,
        256,
        heads=8,
        patch=16,
        steps=steps,
        classes=1000,
        neuron=neuron,
        attention_neuron=neuron,
        qkv_bias=False,
    )


class JellySpikformer(nn.Module):
    """SpikingJelly's own ``spikformer_ti``, at rest at the start of each call."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.net = import_module("spikingjelly.activation_based.model.spikformer").spikformer_ti(T=steps)
        self.reset = import_module("spikingjelly.activation_based.functional").reset_net

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 3, 224, 224] -> [T, B, 1000]``."""
        self.reset(self.net)
        scores: Tensor = self.net(x)
        return scores


def with_triton_neurons(make: Callable[[int], nn.Module], device: torch.device, steps: int) -> nn.Module:
    """A network of SpikingJelly whose neurons take bfloat16 and keep states in it, as Triton kernels.

    Without that request its modules compute inputs in 16 bits step by step in plain torch.
    """
    prepare = import_module("spikingjelly.activation_based.precision").prepare_model_for_precision
    net = make(steps).to(device)
    prepare(net, device, {"mode": "bf16", "neuron_storage": "bf16"})
    return net


class Mean(nn.Module):
    """The mean over tokens: ``[T, B N, C] -> [T, B, C]``."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass; see the class."""
        means: Tensor = x.unflatten(1, (-1, self.tokens)).mean(2)
        return means


def _linear(channels: int, out: int, neuron: Activation) -> nn.Module:
    """A linear layer of tokens ``[T, B N, C]``, batch normalisation and a neuron."""
    return nn.Sequential(sc.layers.TimeBatched(nn.Linear(channels, out, bias=False), nn.BatchNorm1d(out)), neuron())


_CIFAR10 = ("six 256-channel convolutions, 32x32", cifar10, 8, 32, 1, (3, 32, 32), 10)
_SEW = ("SEW-ResNet18, 224x224", sew_resnet18, 4)
_VGG = ("eight convolutions of 64 to 512 channels, four average poolings, 32x32", vgg)
_ATTENTION = ("four blocks of spiking attention, 384 wide, 64 tokens", attention)
_WIDE = ("four blocks of spiking attention, 512 wide, 64 tokens", partial(attention, width=512))
_RESNET19 = ("ResNet-19 with tdBN, 32x32", resnet19)
_SPIKFORMER = ("Spikformer-Ti, four blocks, 256 wide, 224x224", spikformer_ti, 4)
_CIFAR = ((3, 32, 32), 10)
_IMAGENET = ((3, 224, 224), 1000, torch.bfloat16)

NETWORKS: Mapping[str, Network] = {
    one.name: one
    for one in (
        Network("fc", "784-1000-10", fully_connected, 25, 128, 128, (784,), 10),
        Network("fc-tf32", "784-1000-10", fully_connected, 25, 128, 128, (784,), 10, tf32=True),
        Network("cifar10", *_CIFAR10),
        Network("cifar10-bf16", *_CIFAR10, torch.bfloat16),
        Network("vgg-t4", *_VGG, 4, 128, 1, *_CIFAR, torch.bfloat16),
        Network("vgg-t6", *_VGG, 6, 64, 1, *_CIFAR, torch.bfloat16),
        Network("attention", *_ATTENTION, 4, 128, 1, *_CIFAR, torch.bfloat16),
        Network("attention-512", *_WIDE, 4, 128, 1, *_CIFAR, torch.bfloat16),
        Network("resnet19-t4", *_RESNET19, 4, 64, 1, *_CIFAR, torch.bfloat16),
        Network("resnet19-t4-b32", *_RESNET19, 4, 32, 1, *_CIFAR, torch.bfloat16),
        Network("resnet19-t6", *_RESNET19, 6, 32, 1, *_CIFAR, torch.bfloat16),
        Network("resnet19-t6-b64", *_RESNET19, 6, 64, 1, *_CIFAR, torch.bfloat16),
        Network("resnet19-f32", *_RESNET19, 5, 50, 1, *_CIFAR),
        Network("resnet19-f32-t4", *_RESNET19, 4, 64, 1, *_CIFAR),
        Network("resnet19-f32-t4-b32", *_RESNET19, 4, 32, 1, *_CIFAR),
        Network("resnet19-f32-t6", *_RESNET19, 6, 32, 1, *_CIFAR),
        Network("resnet19-f32-t6-b64", *_RESNET19, 6, 64, 1, *_CIFAR),
        Network("sew18-b32", *_SEW, 32, 1, *_IMAGENET),
        Network("sew18-b112", *_SEW, 112, 2, *_IMAGENET),
        Network("spikformer-ti-b8", *_SPIKFORMER, 8, 1, *_IMAGENET, of_spikingjelly=JellySpikformer),
        Network("spikformer-ti-b96", *_SPIKFORMER, 96, 1, *_IMAGENET, of_spikingjelly=JellySpikformer),
        *kinds.KINDS,
    )
}

#: The networks of the examples, at their sizes.
EXAMPLES: Tuple[Network, ...] = (
    Network("digits", "examples/digits.py: two convolutions, 8x8", digits, 8, 64, 64, (1, 8, 8), 10),
    Network("mnist", "examples/mnist_ipu.py: 784-1000-10", fully_connected, 25, 128, 128, (784,), 10),
)
