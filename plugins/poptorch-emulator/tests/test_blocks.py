"""Blocks and stages: no effect on values, and PopTorch's checks of where they are put."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import refusals
from emulated_nets import Apply
from poptorch_emulator import Error, inferenceModel
from poptorch_emulator.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    PipelinedExecution,
    ShardedExecution,
    Stage,
    current,
    placing,
    removeBlocks,
)
from poptorch_emulator.options import Options


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def filled(accumulation=16, iterations=16):
    """Options with enough micro batches for any pipeline here."""
    options = Options().deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    return options


def placed(model, options, training=True):
    """The blocks that one call of the model meets."""
    with placing(options, training) as found:
        model(torch.ones(1, 3))
    return found


class TestBeginBlock:
    def test_is_noted_while_a_model_is_compiled(self):
        model, options = net(), filled()
        BeginBlock(model[1], user_id="second", ipu_id=1)
        assert placed(model, options) == {"second": 1}
        assert options.execution_strategy.placed == {"second": 1}
        assert current() is None

    def test_of_a_function(self):
        double = BeginBlock(lambda x: 2 * x, "double", 1)
        assert isinstance(double, nn.Module)
        assert placed(double, filled()) == {"double": 1}
        assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))

    def test_removed(self):
        model = net()
        model[1].register_forward_pre_hook(lambda module, inputs: None)
        BeginBlock(model[1], "second", 1)
        removeBlocks(model)
        assert placed(model, filled()) == {}
        assert len(model[1]._forward_pre_hooks) == 1
        BeginBlock(model[1], "second", 1)
        with pytest.raises(AssertionError, match=r"module must be an nn\.Module"):
            removeBlocks(None)


class TestBlock:
    def test_as_a_statement(self):
        def forward(x):
            with Block("first", 0):
                x = 2 * x
            with Block("second", 1):
                return x + 1

        assert placed(forward, filled()) == {"first": 0, "second": 1}
        assert torch.equal(forward(torch.ones(1)), torch.full((1,), 3.0))

    def test_as_a_decorator(self):
        @BlockFunction("decoder", ipu_id=1)
        def decode(x):
            return 2 * x

        assert decode.__name__ == "decode"
        assert placed(decode, filled()) == {"decoder": 1}

    def test_without_an_id(self):
        """Blocks without an ID are numbered; a layer keeps its number when it is called again."""
        model = net()
        for number, layer in enumerate(model):
            BeginBlock(layer, ipu_id=number)

        def forward(x):
            Block.useAutoId()
            model(x)
            model(x)
            Block.start(ipu_id=1)

        options = filled().setExecutionStrategy(ShardedExecution())
        assert placed(forward, options) == {"0": 0, "1": 1, "2": 1}


class TestStrategies:
    def test_stages_are_numbered_in_order(self):
        strategy = PipelinedExecution("a", Stage("b", "c").ipu(0), ["d"])
        assert [strategy.stage(block)._stage_id for block in "abcd"] == [0, 1, 1, 2]
        assert strategy.stage("b").blocks == ("b", "c")

    def test_the_ipu_of_a_stage_goes_before_that_of_a_block(self):
        options = filled().setExecutionStrategy(PipelinedExecution(Stage("a").ipu(1), "b"))

        def forward(x):
            Block.start("a", 0)
            Block.start("b")

        assert placed(forward, options) == {"a": 1, "b": 1}


class TestPipelines:
    """A pipeline must be filled, and an IPU comes in powers of two."""

    def model(self, *ipus):
        def forward(x):
            for number, ipu in enumerate(ipus):
                Block.start(str(number), ipu)

        return forward

    @pytest.mark.parametrize(
        ("ipus", "options", "says"),
        [
            (
                (0, 1),
                filled(accumulation=2),
                r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(3\) when "
                r"using poptorch\.PipelinedExecution\. .* a model with 2 pipeline stages .* an additional 1 stages",
            ),
            ((1,), filled(accumulation=2), r"number of pipeline stages \(3\)"),  # computation begins on IPU 0
            ((0, 1, 0, 1), filled(accumulation=6), r"number of pipeline stages \(7\)"),  # going back is a stage more
            (
                (0, 1, 2),
                filled(),
                "specifies the use of 3 IPUs, however PopTorch must reserve a minimum of 4 in order to",
            ),
            ((0, 1), filled().replicationFactor(3), "specifies the use of 6 IPUs"),
            ((0, 1), filled().replicationFactor(64), r"Too many IPUs requested \(128\)\. Experiments that need more "),
        ],
    )
    def test_refused(self, ipus, options, says):
        with pytest.raises(Error, match=says):
            placed(self.model(*ipus), options)

    def test_taken(self):
        placed(self.model(0, 1), filled(accumulation=3))
        placed(self.model(0, 1), filled(1, 1).setExecutionStrategy(ShardedExecution()))
        placed(self.model(0, 1, 2), filled().autoRoundNumIPUs())

    def test_inference_needs_iterations(self):
        with pytest.raises(
            Error, match=r"deviceIterations must be greater than or equal to the number of pipeline stages \(2\)"
        ):
            placed(self.model(0, 1), filled(1, 1), training=False)


class TestEnded:
    """Operations after a ``with`` block are in none."""

    def test_between(self):
        """Between two blocks as well; within an outer one, too, for the inner one ends both."""

        def forward(x):
            with Block("outer", ipu_id=0):
                with Block("inner", ipu_id=0):
                    x = x + 1
                return torch.tanh(x)

        with pytest.raises(Error, match=r"No active Block, all the ops must belong to a Block[\s\S]*tanh came after"):
            inferenceModel(Apply(forward))(torch.ones(6, 3))

    def test_before_and_dead(self):
        """Before the first block there is IPU 0, and what nothing depends on is in no program."""

        def forward(x):
            x = x + 1
            with Block("all", ipu_id=0):
                x = x * 2
            torch.exp(x)
            return x

        assert torch.equal(inferenceModel(Apply(forward))(torch.ones(6, 3)), torch.full((6, 3), 4.0))

    def test_begun_again(self):
        """A layer that begins a block does so after a ``with``, and its block goes on."""
        layer = BeginBlock(nn.Identity(), "layer", ipu_id=0)

        def forward(x):
            with Block("first", ipu_id=0):
                x = x + 1
            return layer(x) * 2

        assert torch.equal(inferenceModel(Apply(forward))(torch.ones(6, 3)), torch.full((6, 3), 4.0))


test_refused = refusals.table(__file__, globals())
