"""Networks of several programs, each a function of what makes a neuron.

With ``steps`` the input is ``[B, ...]``: up to the first neuron everything is computed once, since it is the same at
every step, and that neuron repeats it. With ``steps=None`` the input has time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, List, Optional, Tuple

from torch import nn

import spikecore as sc


def cifar10(
    steps: Optional[int], neuron: Callable[[], sc.Neuron], width: int, image: Tuple[int, ...], classes: int
) -> nn.Sequential:
    """Six 3x3 convolutions of ``width`` channels on images ``[C, H, W]``, halved after every second one."""
    layers: List[nn.Module] = []
    channels, height, columns = image
    for _ in range(3):
        for pool in (False, True):
            pooled = (nn.MaxPool2d(2),) if pool else ()
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            convolved = nn.Sequential(convolution, *pooled, nn.BatchNorm2d(width))
            layers += _beginning(None if layers else steps, convolved, neuron())
            channels = width
    numbers = width * (height // 8) * (columns // 8)
    return nn.Sequential(
        *layers, sc.layers.TimeBatched(nn.Flatten(), nn.Linear(numbers, classes, bias=False)), neuron()
    )


def sew_resnet18(
    steps: Optional[int], neuron: Callable[[], sc.Neuron], image: Tuple[int, ...], classes: int
) -> nn.Sequential:
    """SEW-ResNet18 with ADD for small images, which the first layer leaves as large; the read-out is linear."""
    convolution = nn.Conv2d(image[0], 64, 3, padding=1, bias=False)
    layers = _beginning(steps, nn.Sequential(convolution, nn.BatchNorm2d(64)), neuron())
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [sc.layers.SEWBlock(channels, out, neuron, stride=stride), sc.layers.SEWBlock(out, out, neuron)]
        channels = out
    read_out = sc.layers.TimeBatched(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    return nn.Sequential(*layers, read_out)


def _beginning(steps: Optional[int], layers: nn.Module, neuron: sc.Neuron) -> List[nn.Module]:
    """Layers and the neuron behind them. Parameters have the same names behind an encoder, where the input has time."""
    if steps is None:
        return [sc.layers.TimeBatched(layers), neuron]
    neuron.repeat = steps
    return [nn.Identity(), nn.Sequential(OrderedDict([("module", layers)])), neuron]
