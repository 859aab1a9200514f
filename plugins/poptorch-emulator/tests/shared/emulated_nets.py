"""Networks and executors for the tests of the emulator's poptorch.trainingModel and inferenceModel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emulator as poptorch


class Net(nn.Module):
    """A small network that returns its outputs and its loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 5)
        self.b = nn.Linear(5, 3)

    def forward(self, x, t=None):
        y = self.b(F.relu(self.a(x)))
        return y if t is None else (y, F.cross_entropy(y, t))


class Apply(nn.Module):
    """A function of a tensor as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
T = torch.tensor([0, 1, 2, 0, 1, 2])


def trainer(net, options=None, lr=0.1):
    return poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=lr))


class Host:
    """The host's copy of the weights, read past the wrapper, which would look at the device first."""

    def __init__(self, net):
        self.parameters = list(net.parameters())

    def __call__(self):
        with torch._C.DisableTorchFunctionSubclass():
            return [parameter.detach().clone() for parameter in self.parameters]
