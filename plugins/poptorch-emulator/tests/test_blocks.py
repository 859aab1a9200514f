"""Blocks and stages: no effect on values, and PopTorch's checks of where they are put."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from poptorch_emulator._blocks import (
    AutoStage,
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
from poptorch_emulator._errors import Error
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
    def test_changes_no_value(self):
        model, reference = net(), net()
        assert BeginBlock(model[1], "second", 1) is model[1]
        assert torch.equal(model(torch.ones(1, 3)), reference(torch.ones(1, 3)))
        assert type(model[1]) is nn.Linear
        assert current() is None

    def test_is_noted_while_a_model_is_compiled(self):
        model, options = net(), filled()
        BeginBlock(model[1], user_id="second", ipu_id=1)
        assert placed(model, options) == {"second": 1}
        assert options.execution_strategy.placed == {"second": 1}
        assert current() is None

    def test_twice(self):
        model = net()
        BeginBlock(model[1], ipu_id=1)
        with pytest.raises(Error, match=r"module has already been assigned to a block\."):
            BeginBlock(model[1], ipu_id=0)

    def test_of_what_cannot_be_called(self):
        with pytest.raises(Error, match=r"module is not an instance of torch\.nn\.Module or function\."):
            BeginBlock(3)

    def test_of_a_function(self):
        double = BeginBlock(lambda x: 2 * x, "double", 1)
        assert isinstance(double, nn.Module)
        assert placed(double, filled()) == {"double": 1}
        assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))

    def test_copies_have_it_too(self):
        model = net()
        BeginBlock(model[1], "second", 1)
        assert placed(copy.deepcopy(model), filled()) == {"second": 1}

    def test_says_so(self):
        model = net()
        BeginBlock(model[1], "second", 1)
        (hook,) = model[1]._forward_pre_hooks.values()
        assert repr(hook) == "BeginBlock(user_id=second, ipu_id=1)"

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

    def test_started_by_hand(self):
        assert placed(lambda x: Block.start("a", 1), filled()) == {"a": 1}

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

    @pytest.mark.parametrize("ipu", [-1, 1.0, "1", True])
    def test_on_no_ipu(self, ipu):
        with pytest.raises(Error, match="The IPU of block a must be a number of 0 or above"):
            placed(lambda x: Block.start("a", ipu), filled())

    def test_by_default_needs_an_ipu(self):
        with pytest.raises(
            AssertionError, match="AutoStage.SameAsIpu was selected but no IPU was specified for block a"
        ):
            placed(lambda x: Block.start("a"), filled())

    def test_an_error_ends_the_record(self):
        with pytest.raises(ZeroDivisionError), placing(filled(), True):
            raise ZeroDivisionError
        assert current() is None


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

    def test_every_block_a_stage(self):
        options = filled().setExecutionStrategy(PipelinedExecution(AutoStage.AutoIncrement))
        assert placed(lambda x: Block.start("a"), options) == {"a": 1}

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: Stage(1), r"Block IDs are supposed to be strings but got \(1,\)"),
            (lambda: Stage("a").ipu("0"), "ipu must be an int"),
            (lambda: PipelinedExecution("a", ["a"]), "a associated with more than one stage"),
            (lambda: PipelinedExecution(3), "a stage is a poptorch.Stage, a block ID or a list of them, got 3"),
            (lambda: PipelinedExecution("a").stage("b"), "Unknown block b"),
        ],
    )
    def test_arguments(self, make, says):
        with pytest.raises(AssertionError, match=says):
            make()

    def test_a_block_that_is_in_no_stage(self):
        options = filled().setExecutionStrategy(PipelinedExecution("a"))
        with pytest.raises(AssertionError, match=r"Unknown Block 'b' list of expected Blocks: \['a'\]"):
            placed(lambda x: Block.start("b", 0), options)


class TestPipelines:
    """A pipeline must be filled, and an IPU comes in powers of two."""

    def model(self, *ipus):
        def forward(x):
            for number, ipu in enumerate(ipus):
                Block.start(str(number), ipu)

        return forward

    @pytest.mark.parametrize(("accumulation", "training"), [(3, True), (1, False)])
    def test_that_are_filled(self, accumulation, training):
        placed(self.model(0, 1), filled(accumulation, 2), training)

    def test_training_needs_accumulation(self):
        with pytest.raises(
            Error,
            match=r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(3\) when "
            r"using poptorch\.PipelinedExecution\. .* a model with 2 pipeline stages .* an additional 1 stages",
        ):
            placed(self.model(0, 1), filled(accumulation=2))

    def test_inference_needs_iterations(self):
        with pytest.raises(
            Error, match=r"deviceIterations must be greater than or equal to the number of pipeline stages \(2\)"
        ):
            placed(self.model(0, 1), filled(1, 1), training=False)

    def test_computation_begins_on_ipu_0(self):
        """So one block, on IPU 1, makes two stages."""
        with pytest.raises(Error, match=r"number of pipeline stages \(3\)"):
            placed(self.model(1), filled(accumulation=2))

    def test_going_back_is_a_stage_more(self):
        """A layer that is called once per time step changes the IPU each time."""
        with pytest.raises(Error, match=r"number of pipeline stages \(7\)"):
            placed(self.model(0, 1, 0, 1), filled(accumulation=6))

    def test_shards_need_neither(self):
        placed(self.model(0, 1), filled(1, 1).setExecutionStrategy(ShardedExecution()))

    def test_powers_of_two(self):
        with pytest.raises(
            Error, match="specifies the use of 3 IPUs, however PopTorch must reserve a minimum of 4 in order to allow"
        ):
            placed(self.model(0, 1, 2), filled())
        placed(self.model(0, 1, 2), filled().autoRoundNumIPUs())
        with pytest.raises(Error, match="specifies the use of 6 IPUs"):
            placed(self.model(0, 1), filled().replicationFactor(3))

    def test_the_most_ipus(self):
        with pytest.raises(Error, match=r"Too many IPUs requested \(128\)\. Experiments that need more than 64"):
            placed(self.model(0, 1), filled().replicationFactor(64))

    def test_without_blocks_nothing_is_asked_for(self):
        assert placed(net(), Options()) == {}
