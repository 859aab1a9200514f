"""The four of the fifty probes whose models have neurons, by number; the others are the emulator's own tests."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc
import spikecore_ipu

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


class Blocks(nn.Module):
    """A linear layer and a neuron in a ``with`` block."""

    def __init__(self, after):
        super().__init__()
        self.fc, self.lif, self.after = nn.Linear(2, 2), sc.LIF(backend="ipu"), after

    def forward(self, x):
        with poptorch.Block("all", ipu_id=0):
            out = self.lif(self.fc(x.expand(3, *x.shape)))
        return out + 1 if self.after else out


def test_1_an_operation_after_a_block() -> None:
    """What comes after a ``with`` block is in none: PopTorch's error."""
    with pytest.raises(poptorch.Error, match="No active Block, all the ops must"):
        poptorch.inferenceModel(Blocks(after=True))(X)


def test_2_a_loss_after_a_block() -> None:
    """``training_model`` puts the loss into the last block."""
    net = Blocks(after=False)
    step = sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), lr=0.1), backend="ipu")
    assert bool(step(X, torch.tensor([0, 1]))[1].isfinite())


class Recorded(Blocks):
    """A neuron that is called by ``run``."""

    def forward(self, x):
        return self.lif.run(self.fc(x.expand(3, *x.shape)), record=("v",))[2]["v"]


def test_3_a_stage_at_a_neuron_that_is_run() -> None:
    """``.run()`` begins the stage as a call does."""
    net = spikecore_ipu.pipeline(Recorded(after=False), {"lif": 1})
    predict = sc.inference_model(net, backend="ipu", options=poptorch.Options().deviceIterations(2))
    predict(X)
    assert predict.executor.options.execution_strategy.placed == {"lif": 1}


def test_12_an_expanded_parameter_of_a_neuron() -> None:
    """PopTorch would read memory that is not the parameter's: refused where a neuron is wrapped by hand."""
    neuron = sc.LIF(tau=torch.tensor(2.0).expand(3), backend="ipu")
    with pytest.raises(poptorch.Error, match="PopTorch copies memory as if it were contiguous"):
        poptorch.inferenceModel(neuron)(torch.ones(1, 2, 3))
