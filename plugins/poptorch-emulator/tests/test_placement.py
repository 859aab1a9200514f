"""Blocks that end: what comes after one is in none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch

ENDED = r"No active Block, all the ops must belong to a Block[\s\S]*aten::{} came after"
X = torch.rand(6, 3, generator=torch.Generator().manual_seed(1))


class TestEnded:
    """What comes after a ``with`` block is in none."""

    def test_between(self):
        """Between two blocks as well; within an outer one, too, for the inner one ends both."""

        class Between(nn.Module):
            def forward(self, x):
                with poptorch.Block("outer", ipu_id=0):
                    with poptorch.Block("inner", ipu_id=0):
                        x = x + 1
                    return torch.tanh(x)

        with pytest.raises(poptorch.Error, match=ENDED.format("tanh")):
            poptorch.inferenceModel(Between())(X)

    def test_before_and_dead(self):
        """Before the first block there is IPU 0, and what nothing depends on is in no program."""

        class Fine(nn.Module):
            def forward(self, x):
                x = x + 1
                with poptorch.Block("all", ipu_id=0):
                    x = x * 2
                torch.exp(x)
                return x

        assert torch.equal(poptorch.inferenceModel(Fine())(X), (X + 1) * 2)

    def test_begun_again(self):
        """A layer that begins a block does so after a ``with``, and its block goes on."""

        class Layers(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = poptorch.BeginBlock(nn.Identity(), "layer", ipu_id=0)

            def forward(self, x):
                with poptorch.Block("first", ipu_id=0):
                    x = x + 1
                return self.layer(x) * 2

        assert torch.equal(poptorch.inferenceModel(Layers())(X), (X + 1) * 2)
