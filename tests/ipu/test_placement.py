"""Blocks that end, losses in the last one, and pipeline stages that must begin."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc
import spikecore_ipu


class Blocks(nn.Module):
    """Two layers, each in a ``with`` block, on IPU 0 and 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.lif1 = nn.Linear(3, 4), sc.LIF(threshold=0.1, backend="ipu")
        self.fc2, self.lif2 = nn.Linear(4, 2), sc.LIF(threshold=0.1, backend="ipu")

    def forward(self, x):
        with poptorch.Block("first", ipu_id=0):
            x = self.lif1(self.fc1(x.expand(4, *x.shape)))
        with poptorch.Block("second", ipu_id=1):
            return self.lif2(self.fc2(x))


def batch(size=6):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(size, 3, generator=generator), torch.arange(size) % 2


def options(strategy=None):
    chosen = poptorch.Options()
    chosen.Training.gradientAccumulation(3)
    if strategy is not None:
        chosen.setExecutionStrategy(strategy)
    return chosen


def trained(net, **keywords):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return sc.training_model(net, sc.losses.ce_count, optimizer, backend="ipu", **keywords)


class TestLoss:
    """``training_model`` puts the loss into the last block."""

    @pytest.mark.parametrize(
        "strategy",
        [
            None,
            poptorch.ShardedExecution(),
            poptorch.PipelinedExecution(poptorch.Stage("first"), poptorch.Stage("second").ipu(1)),
        ],
        ids=["default", "sharded", "listed"],
    )
    def test_trains(self, strategy):
        """A network of ``with`` blocks trains as it does on one IPU, under each strategy."""
        net, plain = Blocks(), Blocks()
        _, loss = trained(net, options=options(strategy))(*batch())
        total = sc.losses.ce_count(plain.lif2(plain.fc2(plain.lif1(plain.fc1(batch()[0].expand(4, 6, 3))))), batch()[1])
        total.backward()
        with torch.no_grad():
            for ours, theirs in zip(net.parameters(), plain.parameters()):
                torch.testing.assert_close(ours.detach(), theirs - 0.1 * theirs.grad)
        assert loss.shape == ()

    def test_block_without_an_id(self):
        """One that is numbered by PopTorch is gone on in, and not another begun."""

        class Numbered(Blocks):
            def forward(self, x):
                with poptorch.Block():
                    return self.lif1(self.fc1(x.expand(3, *x.shape)))

        chosen = options(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
        net = Numbered()
        net.fc2.requires_grad_(False)
        step = trained(net, options=chosen)
        step(*batch())
        assert step.executor.options.execution_strategy.placed == {"0": 1}

    def test_where_the_loss_is(self):
        """It is on the last block's IPU: no further stage."""
        chosen = options()
        step = trained(Blocks(), options=chosen)
        step(*batch())
        assert step.executor.options.execution_strategy.placed == {"first": 0, "second": 1}

    def test_loss_with_a_block(self):
        """A loss function with a block of its own keeps it, identity loss included."""
        net = Blocks()

        def loss(out, y):
            with poptorch.Block("loss", ipu_id=1):
                return sc.losses.ce_count(out, y)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = sc.training_model(net, loss, optimizer, backend="ipu", options=options())
        step(*batch())
        assert step.executor.options.execution_strategy.placed["loss"] == 1


class Staged(nn.Module):
    """A neuron that is called, or that is run, and a layer that forward does not reach."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.lif, self.never = nn.Linear(3, 2), sc.LIF(backend="ipu"), nn.Linear(2, 2)
        self.runs = False

    def forward(self, x):
        x = self.fc(x.expand(4, *x.shape))
        return self.lif.run(x)[0] if self.runs else self.lif(x)


class TestStages:
    """Every stage that ``pipeline`` names begins."""

    def test_run(self):
        """A neuron that is called begins its stage; PopTorch does not see ``run``, and the error says what does."""
        net, run = (spikecore_ipu.pipeline(Staged(), {"lif": 1}) for _ in range(2))
        run.runs = True
        for each in (net, run):
            each.never.requires_grad_(False)
        step = trained(net, options=options())
        step(*batch())
        assert step.executor.options.execution_strategy.placed == {"lif": 1}
        with pytest.raises(ValueError, match=r"stages 'lif' were not reached.*around neuron.run.*poptorch.Block"):
            trained(run, options=options())(*batch())

    def test_never_called(self):
        """One that forward never reaches is an error that names it, in training and inference."""
        net = spikecore_ipu.pipeline(Staged(), {"never": 1})
        net.never.requires_grad_(False)
        with pytest.raises(ValueError, match=r"stages 'never' were not reached.*modules that forward calls"):
            trained(net, options=options())(*batch())
        with pytest.raises(ValueError, match="'never' were not reached"):
            sc.inference_model(net, backend="ipu")(batch()[0])

    def test_taken_away(self):
        """``removeBlocks`` takes the stage away, and with it the error."""
        net = spikecore_ipu.pipeline(Staged(), {"never": 1})
        poptorch.removeBlocks(net)
        assert sc.inference_model(net, backend="ipu")(batch()[0]).shape == (4, 6, 2)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
    def test_copies(self, copied):
        """A copy has the stages, and they begin."""
        net = copied(spikecore_ipu.pipeline(Staged(), {"lif": 1}))
        predict = sc.inference_model(net, backend="ipu", options=poptorch.Options().deviceIterations(2))
        predict(batch()[0])
        assert predict.executor.options.execution_strategy.placed == {"lif": 1}
