"""What a training step says of a loss that knows no time, and of a batch that is taken for time."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spikecore as sc

LOSSES = [
    nn.CrossEntropyLoss(),
    nn.NLLLoss(),
    nn.MultiMarginLoss(),
    F.cross_entropy,
    functools.partial(F.nll_loss, reduction="sum"),
]


def _name(loss: Any) -> str:
    return str(getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss over time, with the name of one of torch's."""
    raise ValueError("a check of my own")


class CrossEntropyLoss(nn.Module):
    """The same as a module."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Never one."""
        return cross_entropy(outputs, targets)


def _step(net: nn.Module, loss: Any, **more: Any) -> sc.TrainingStep:
    return sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 0.1), **more)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), sc.LIF(), nn.Linear(8, 3), sc.LI())


def _labels(size: int) -> Tensor:
    return torch.randint(3, (size,))


class TestALossWithoutTime:
    @pytest.mark.parametrize("loss", LOSSES, ids=_name)
    @pytest.mark.parametrize("steps", [4, 16, 3])
    def test_the_way_out_is_said(self, loss: Any, steps: int) -> None:
        said = rf"^loss={_name(loss)} takes outputs \[B, C\], .*got \[T, B, C\] = \[{steps}, 16, 3\] for .*ce_count"
        with pytest.raises(ValueError, match=said) as caught:
            _step(_mlp(), loss)(torch.rand(steps, 16, 5), _labels(16))
        assert caught.value.__cause__ is not None

    @pytest.mark.filterwarnings("ignore:Using a target size")  # before its error, torch warns of the same
    @pytest.mark.parametrize(
        ("loss", "shape", "said"),
        [
            (nn.MSELoss(), (2, 2), "size of tensor"),
            (nn.CrossEntropyLoss(), (7,), "target batch_size"),
            (nn.CrossEntropyLoss(), (4, 2, 3), "target size"),
            (cross_entropy, (16,), "of my own"),
            (CrossEntropyLoss(), (16,), "of my own"),
        ],
        ids=["another loss", "another batch", "probabilities", "a user's function", "a user's module"],
    )
    def test_other_errors_stay_as_they_are(self, loss: Any, shape: Tuple[int, ...], said: str) -> None:
        step = _step(_mlp(), loss)
        targets = _labels(*shape) if len(shape) == 1 else torch.rand(shape)
        with pytest.raises((RuntimeError, ValueError), match=said) as caught:
            step(torch.rand(4, 16, 5), targets)
        assert "without time" not in str(caught.value)

    @pytest.mark.parametrize(("x", "y"), [((4, 16, 2, 5), (16,)), ((4, 16, 5), (16, 1))], ids=["outputs", "targets"])
    def test_of_other_dimensions_nothing_is_said(self, x: Tuple[int, ...], y: Tuple[int, ...]) -> None:
        step = _step(_mlp(), nn.CrossEntropyLoss())
        with pytest.raises((RuntimeError, ValueError)) as caught:
            step(torch.rand(x), torch.zeros(y, dtype=torch.int64))
        assert "without time" not in str(caught.value)


class _Mean(nn.Module):
    """The mean over time, of ``[T, B, C]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


def _images() -> nn.Sequential:
    first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2))
    return nn.Sequential(first, sc.LIF(), nn.Flatten(), nn.Linear(8, 3))


def _many() -> nn.Sequential:
    """Layers of each number, or of the last dimension."""
    layers = [nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(5), nn.ConstantPad1d(1, 0.0), nn.Linear(7, 3)]
    return nn.Sequential(*layers, sc.LIF(), nn.Identity())


TAKEN = {
    "linear": (_mlp, (16, 5), ""),
    "images": (
        _images,
        (16, 1, 6, 6),
        r" and 0.0 \(Conv2d\), 0.1 \(BatchNorm2d\), 0.2 \(MaxPool2d\), 2 \(Flatten\) into",
    ),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), _mlp()), (16, 1, 5), r" and 0 \(Flatten\) into"),
    "recurrent": (lambda: nn.Sequential(nn.Linear(5, 3), sc.Recurrent(sc.LIF(), nn.Linear(3, 3))), (16, 5), ""),
    "normalised": (
        lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), sc.LIF()),
        (16, 5),
        r" and 1 \(BatchNorm1d\) into",
    ),
    "many": (_many, (16, 5), ""),
    "in a wrapper": (lambda: torch.compile(_mlp(), backend="eager"), (16, 5), ""),
}
RIGHT = {
    "a mean over time": (lambda: nn.Sequential(sc.encode.Constant(4), _mlp(), _Mean()), (16, 5)),
    "a mean over as many steps as samples": (lambda: nn.Sequential(_mlp(), _Mean()), (16, 16, 5)),
    "time in a forward": (lambda: nn.Sequential(nn.Unflatten(0, (1, 16)), _mlp(), _Mean()), (16, 5)),
    "one step a call": (lambda: nn.Sequential(nn.Linear(5, 3), sc.LIF(step="single")), (16, 5)),
    "no neuron": (lambda: nn.Sequential(nn.Linear(5, 3)), (16, 5)),
    "one sample": (_mlp, (1, 5)),
}


class TestABatchAsTime:
    """Inputs ``[B, ...]`` without an encoder."""

    @pytest.mark.parametrize(("made", "shape", "within"), TAKEN.values(), ids=TAKEN.keys())
    def test_it_is_said_once(self, made: Callable[[], nn.Module], shape: Tuple[int, ...], within: str) -> None:
        net = made()
        step = _step(net, nn.CrossEntropyLoss())
        sizes = ", ".join(map(str, shape))
        said = rf"dimension 0 of inputs \[{sizes}\] .* each of the 16 targets .* in front of the network{within}"
        with pytest.warns(UserWarning, match=said) as caught:
            step(torch.rand(shape), _labels(16))
        assert len(caught) == 1
        assert "TimeBatched" in str(caught[0].message) or not within
        step(torch.rand(shape), _labels(16))  # a second warning would be an error

    @pytest.mark.parametrize(("made", "shape"), RIGHT.values(), ids=RIGHT.keys())
    def test_nothing_is_said_of_right_ones(self, made: Callable[[], nn.Module], shape: Tuple[int, ...]) -> None:
        _step(made(), nn.CrossEntropyLoss())(torch.rand(shape), _labels(shape[0]))

    @pytest.mark.parametrize(
        ("loss", "targets"),
        [
            (nn.MSELoss(), torch.zeros(16, 3)),
            (nn.CrossEntropyLoss(), torch.full((16, 3), 1 / 3)),
            (lambda outputs, targets: (outputs.sum(1) - targets).square().mean(), torch.zeros(16, dtype=torch.int64)),
            (lambda outputs, targets: F.cross_entropy(outputs.mean(0, True), targets), torch.tensor([1])),
        ],
        ids=["values", "probabilities", "numbers of each step", "one target"],
    )
    def test_one_sequence_is_right(self, loss: Any, targets: Tensor) -> None:
        """With what its outputs should be at each step, and with one target."""
        _step(_mlp(), loss)(torch.rand(16, 5), targets)

    def test_where_a_warning_is_an_error_the_step_is_whole(self) -> None:
        """Weights were updated, and the next step is one without it."""
        net = _mlp()
        before = copy.deepcopy(net.state_dict())
        step = _step(net, nn.CrossEntropyLoss())
        with pytest.raises(UserWarning, match="dimension 0 of inputs"):
            step(torch.rand(16, 5), _labels(16))
        assert not torch.equal(net.state_dict()["2.bias"], before["2.bias"])
        step(torch.rand(16, 5), _labels(16))


class TestLayersWithoutTime:
    """Layers of torch that get ``[T, B, ...]``."""

    @pytest.mark.parametrize(
        ("first", "shape", "names"),
        [
            ([nn.Conv2d(1, 2, 3), sc.LIF(), nn.Flatten()], (4, 16, 1, 6, 6), r"0 \(Conv2d\), 2 \(Flatten\)"),
            ([sc.LIF(), nn.Flatten(), nn.Linear(9, 3)], (4, 16, 3, 3), r"1 \(Flatten\)"),
            ([nn.Linear(5, 3), nn.BatchNorm1d(3), sc.LIF()], (4, 16, 5), r"1 \(BatchNorm1d\)"),
            ([nn.Sequential(nn.AvgPool2d(2), sc.LIF())], (4, 16, 1, 6, 6), r"0.0 \(AvgPool2d\)"),
        ],
        ids=["convolution", "flatten", "normalisation", "pooling"],
    )
    def test_the_error_names_them(self, first: List[nn.Module], shape: Tuple[int, ...], names: str) -> None:
        step = _step(nn.Sequential(*first, nn.Linear(3, 3)), sc.losses.ce_count)
        with pytest.raises(ValueError, match=rf"Beside neurons over time, {names} take .*TimeBatched") as caught:
            step(torch.rand(shape), _labels(16))
        assert str(caught.value).startswith(str(caught.value.__cause__))

    def test_with_an_encoder(self) -> None:
        """What stands in front of it takes the batch as it is."""
        net = nn.Sequential(nn.Conv1d(1, 2, 2), sc.encode.Constant(4), nn.BatchNorm1d(2), sc.LIF(), nn.Linear(4, 3))
        step = _step(net, sc.losses.ce_count)
        with pytest.raises(ValueError, match=r"Beside neurons over time, 2 \(BatchNorm1d\) take"):
            step(torch.rand(16, 1, 5), _labels(16))

    @pytest.mark.parametrize(
        "net",
        [
            nn.Sequential(nn.Linear(5, 3), sc.LIF(), nn.Linear(4, 3)),
            nn.Sequential(nn.Conv2d(1, 2, 3)),
            nn.Sequential(sc.layers.TimeBatched(nn.Conv2d(1, 2, 3)), sc.LIF()),
        ],
        ids=["linear", "no neuron", "wrapped"],
    )
    def test_other_errors_stay_torchs(self, net: nn.Module) -> None:
        step = _step(net, sc.losses.ce_count)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            step(torch.rand(4, 16, 5), _labels(16))
        assert "Beside neurons" not in str(caught.value)

    @pytest.mark.parametrize(
        "error",
        [RuntimeError("a fault of a machine"), NotImplementedError("expected 4D"), KeyError("expected 4D")],
        ids=repr,
    )
    def test_errors_of_another_kind_stay_as_they_are(self, error: Exception) -> None:
        class Raises(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                raise error

        step = _step(nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), Raises(), sc.LIF()), sc.losses.ce_count)
        with pytest.raises(type(error)) as caught:
            step(torch.rand(4, 16, 5), _labels(16))
        assert caught.value is error

    def test_channels_of_one_sequence_are_right(self) -> None:
        """Of ``[T, C, L]``, without a batch."""
        net = nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3), sc.LIF())
        _step(net, nn.MSELoss())(torch.rand(8, 3, 5), torch.rand(8, 3, 5))

    def test_within_time_batched_nothing_is_said(self) -> None:
        layers = [sc.encode.Constant(4), nn.Linear(5, 16), sc.layers.TimeBatched(nn.BatchNorm1d(16)), sc.LIF()]
        _step(nn.Sequential(nn.BatchNorm1d(5), *layers), sc.losses.ce_count)(torch.rand(16, 5), _labels(16))
