"""E1, E2 and E8: what is frozen at the first call, and what later calls are compared with."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import refusals

END = (
    "\nThis error occurred because the inputs passed at runtime don't match the inputs used to compile the model.\nTo "
    "recompile the model for the new inputs create a new inferenceModel / trainingModel wrapper or call destroy() on "
    "the curent one and try again."
)


def ones(*shape, **kwargs):
    return torch.ones(*shape, **kwargs)


def _types(name, expected, got):
    return f"Type mismatch for {name}: expected {expected} but got {got}."


class Model(nn.Module):
    """Counts its runs, and takes anything."""

    def __init__(self):
        super().__init__()
        self.runs = []

    def forward(self, x, scale=2, other=None, *, more=None):
        self.runs.append(x.shape)
        y = x * scale if scale > 1 else -x
        for extra in (other, more):
            if isinstance(extra, (tuple, list)):
                y = y + sum(extra)
            elif isinstance(extra, dict):
                y = y + sum(extra.values())
            elif extra is not None:
                y = y + extra
        return y


class Variadic(nn.Module):
    def forward(self, *xs, **named):
        return sum(xs) + sum(named.values())


class TestFrozen:
    """E1: forward runs once, on the micro batch."""

    def test_once(self):
        """Python code of forward runs at the first call, and never again."""
        model = Model()
        runs = model.runs
        seen = []
        model.register_forward_hook(lambda *_: seen.append(1))
        executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(2))
        x = torch.arange(8.0).view(4, 2)
        assert torch.equal(executor(x), 2 * x)
        assert torch.equal(executor(x + 1), 2 * (x + 1))
        assert runs == [torch.Size([2, 2])]
        assert seen == [1]

    def test_branches_and_numbers(self):
        """Attributes that forward read are compiled in."""

        class Net(nn.Module):
            factor = 2

            def forward(self, x):
                return x * self.factor if self.training else x

        net = Net()
        executor = poptorch.inferenceModel(net)
        assert executor(ones(1)).item() == 2
        net.factor = 3
        net.eval()
        assert executor(ones(1)).item() == 2

    @pytest.mark.usefixtures("several_devices")
    def test_random_numbers_of_the_device(self):
        """The device draws anew, repeatably by the seed, and leaves the host's generator alone."""

        class Net(nn.Module):
            def forward(self, x):
                return x * torch.rand_like(x)

        first, second = (poptorch.inferenceModel(Net(), poptorch.Options().randomSeed(3)) for _ in range(2))
        state = torch.get_rng_state()
        drawn = [first(ones(4)) for _ in range(2)]
        assert not torch.equal(drawn[0], drawn[1])
        assert torch.equal(second(ones(4)), drawn[0])
        assert torch.equal(torch.get_rng_state(), state)


class TestParsing:
    """Arguments as they are matched with forward."""

    def test_defaults_and_names(self):
        """Defaults are filled in, and a parameter may be given by name."""
        executor = poptorch.inferenceModel(Model())
        assert torch.equal(executor(ones(2)), ones(2) * 2)
        assert torch.equal(executor(x=ones(2), scale=2), ones(2) * 2)

    def test_variadic(self):
        """Any number of arguments, if forward takes them."""
        executor = poptorch.inferenceModel(Variadic())
        assert torch.equal(executor(ones(1), ones(1), a=ones(1)), ones(1) * 3)
        with pytest.raises(poptorch.Error, match=re.escape("expected torch.Size([1]) but got torch.Size([2])")):
            executor(ones(1), ones(2), a=ones(1))
        with pytest.raises(poptorch.Error, match="Keys mismatch for named arguments: Unexpected arguments: b"):
            executor(ones(1), ones(1), a=ones(1), b=ones(1))

    def test_not_contiguous(self, caplog):
        """A tensor that is not contiguous is made so, with a warning."""
        with caplog.at_level(logging.WARNING, "poptorch"):
            poptorch.inferenceModel(Model())(torch.ones(3, 2).t())
        assert "At least one input tensor is not contiguous" in caplog.text

    def test_requires_grad(self, caplog):
        """An input is detached, with a warning."""
        with caplog.at_level(logging.WARNING, "poptorch"):
            result = poptorch.inferenceModel(Model())(torch.ones(2, requires_grad=True))
        assert "Input tensor has requires_grad=True set. This tensor will be detached" in caplog.text
        assert not result.requires_grad


class TestComparison:
    """E2: a later call is as the first was."""

    @pytest.mark.parametrize(
        ("first", "later", "text"),
        [
            ((ones(1),), (ones(2),), "Shape mismatch for x: expected torch.Size([1]) but got torch.Size([2])."),
            ((ones(2),), (ones(2).long(),), "Data type mismatch for x: expected torch.float32 but got torch.int64."),
            ((ones(2), 5), (ones(2), 3), "Value mismatch for scale: expected 5 but got 3."),
            ((ones(2), 2, (ones(2),)), (ones(2), 2, [ones(2)]), _types("other", tuple, list)),
            ((ones(2),), (nn.Parameter(ones(2)),), _types("x", torch.Tensor, nn.Parameter)),
            (
                (ones(2), 2, (ones(2), ones(2))),
                (ones(2), 2, (ones(2), ones(3))),
                "Shape mismatch for other[1]: expected torch.Size([2]) but got torch.Size([3]).",
            ),
            (
                (ones(2), 2, (ones(2), ones(2))),
                (ones(2), 2, (ones(2),)),
                "Length mismatch for other: expected 2 elements but got 1.",
            ),
            (
                (ones(2), 2, {"a": ones(2), "c": ones(2)}),
                (ones(2), 2, {"a": ones(2), "b": ones(2)}),
                "Keys mismatch for other: Unexpected arguments: b. Missing arguments: c.",
            ),
            (
                (ones(2), 2, {"a": ones(2)}),
                (ones(2), 2, {"a": ones(2).int()}),
                "Data type mismatch for other[a]: expected torch.float32 but got torch.int32.",
            ),
            ((ones(2), 2, [1, 2]), (ones(2), 2, [1, 3]), "Value mismatch for other: expected [1, 2] but got [1, 3]."),
        ],
    )
    def test_texts(self, first, later, text):
        """A difference is named, with PopTorch's text."""
        executor = poptorch.inferenceModel(Model())
        executor(*first)
        with pytest.raises(poptorch.Error) as caught:
            executor(*later)
        assert str(caught.value).endswith(text + END)
        executor(*first)

    def test_order_of_keys(self):
        """A later call may have keywords, and the keys of a nested dictionary, in another order."""

        class Net(nn.Module):
            def forward(self, nested, *, a, b):
                return nested[0]["a"] / nested[0]["b"] + a - b

        executor = poptorch.inferenceModel(Net())
        for x, y in ((1.0, 2.0), (6.0, 3.0)):
            a, b = torch.tensor([x]), torch.tensor([y])
            assert executor([{"a": a, "b": b}], a=a, b=b).item() == x / y + x - y
            assert executor([{"b": b, "a": a}], b=b, a=a).item() == x / y + x - y

    def test_number(self):
        """The number of positional arguments stays that of the first call."""
        executor = poptorch.inferenceModel(Variadic())
        executor(ones(1), ones(1))
        with pytest.raises(poptorch.Error) as caught:
            executor(ones(1))
        text = "Number of positional arguments mismatch: expected 2 arguments but got 1."
        assert str(caught.value).endswith(text + END)


class TestBatch:
    """E8: the batch is cut into equal micro batches."""

    def test_not_divisible(self):
        options = poptorch.Options().deviceIterations(2)
        options.Training.gradientAccumulation(3)
        options.replicationFactor(2)
        model = Model()
        model.weight = nn.Parameter(ones(1))
        executor = poptorch.trainingModel(model, options)
        with pytest.raises(AssertionError) as caught:
            executor(ones(13, 2))
        assert (
            "Invalid batch dimension: In the input torch.Size([13, 2]), the batch dimension (13) must be a multiple of "
            "Options.deviceIterations(2) * (Options.replicationFactor(2) / "
            "Options.inputReplicaGrouping.input_group_size(1)) * Options.Training.gradientAccumulation(3) = 12"
        ) in str(caught.value)

    def test_no_dimension(self):
        """A tensor without dimensions is a batch of 1."""
        assert poptorch.inferenceModel(Model())(torch.tensor(1.0)).item() == 2
        with pytest.raises(AssertionError, match=r"the batch dimension \(1\) must be a multiple"):
            poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(2))(torch.tensor(1.0))


test_refused = refusals.table(__file__, globals())
