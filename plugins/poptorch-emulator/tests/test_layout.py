"""Weights that do not lie contiguously, or in the memory of others, are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch


class Module(nn.Module):
    """One parameter or buffer, ``w``, which is added to the input."""

    def __init__(self, w, parameter=True):
        super().__init__()
        if parameter:
            self.w = nn.Parameter(w)
        else:
            self.register_buffer("w", w)

    def forward(self, x):
        return x + self.w


def values(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


LAYOUTS = {
    "transposed": lambda: values(3, 2).t(),
    "expanded": lambda: values(1, 3).expand(2, 3),
    "sliced": lambda: values(2, 6)[:, 1:4],
    "stepped": lambda: values(2, 6)[:, ::2],
    "channels last": lambda: values(1, 2, 3, 2).to(memory_format=torch.channels_last),
}


@pytest.mark.usefixtures("several_devices")
@pytest.mark.parametrize("parameter", [True, False], ids=["parameter", "buffer"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_refused(layout, parameter):
    """PopTorch would read foreign or permuted memory. The error names the tensor, its strides and the way out."""
    net = Module(LAYOUTS[layout](), parameter)
    x = torch.ones(1, *net.w.shape[1:])
    expected = net(x)
    with pytest.raises(poptorch.Error, match=r"w of shape \[.*\] has strides \[.*w.data = w.data.contiguous\(\)"):
        poptorch.inferenceModel(net)(x)
    net.w.data = net.w.data.contiguous()
    assert torch.equal(poptorch.inferenceModel(net)(x), expected)


def test_moved_after_compilation():
    """A weight that loses its layout after compilation is refused where it is copied."""
    net = Module(values(2, 3))
    executor = poptorch.inferenceModel(net)
    executor(torch.zeros(1, 3))
    net.w.data = values(3, 2).t()
    with pytest.raises(poptorch.Error, match="has strides"):
        executor.copyWeightsToDevice()


def test_two_parameters_in_one_memory():
    """PopTorch would train each for itself, and the last one stays."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 2))
            self.row = nn.Parameter(self.w.detach()[1])

        def forward(self, x):
            return poptorch.identity_loss(x @ self.w + self.row, "sum")

    with pytest.raises(poptorch.Error, match="w and row are two tensors in the same memory"):
        poptorch.trainingModel(Net()).compile(torch.ones(1, 2))
