"""What a training step says of a loss that knows no time, and of a batch that is taken for time."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spikecore as sc

LOSSES = [nn.CrossEntropyLoss(), nn.NLLLoss(), nn.MultiMarginLoss(), F.cross_entropy, F.nll_loss]


def _name(loss: Any) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))


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
        said = rf"^loss={_name(loss)} knows no time, and got outputs \[T, B, C\] = \[{steps}, 16, 3\] for .*ce_count"
        with pytest.raises(ValueError, match=said) as caught:
            _step(_mlp(), loss)(torch.rand(steps, 16, 5), _labels(16))
        assert caught.value.__cause__ is not None

    def test_the_way_out_works(self) -> None:
        step = _step(_mlp(), lambda outputs, targets: F.cross_entropy(outputs.mean(0), targets))
        assert step(torch.rand(4, 16, 5), _labels(16))[1].isfinite()

    @pytest.mark.filterwarnings("ignore:Using a target size")  # before its error, torch warns of the same
    @pytest.mark.parametrize(
        ("loss", "targets", "said"),
        [
            (nn.MSELoss(), torch.rand(2, 2), "size of tensor"),
            (nn.CrossEntropyLoss(), _labels(7), "target batch_size"),
            (nn.CrossEntropyLoss(), torch.rand(4, 2, 3), "target size"),
        ],
        ids=["another loss", "another batch", "probabilities"],
    )
    def test_other_errors_stay_torchs(self, loss: Any, targets: Tensor, said: str) -> None:
        step = _step(_mlp(), loss)
        with pytest.raises((RuntimeError, ValueError), match=said) as caught:
            step(torch.rand(4, 16, 5), targets)
        assert "knows no time" not in str(caught.value)


class _Mean(nn.Module):
    """The mean over time, of ``[T, B, C]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


def _images() -> nn.Sequential:
    first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2))
    return nn.Sequential(first, sc.LIF(), nn.Flatten(), nn.Linear(8, 3))


TAKEN = {
    "linear": (_mlp, (16, 5)),
    "images": (_images, (16, 1, 6, 6)),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), _mlp()), (16, 1, 5)),
    "recurrent": (lambda: nn.Sequential(nn.Linear(5, 3), sc.Recurrent(sc.LIF(), nn.Linear(3, 3))), (16, 5)),
    "normalised": (lambda: sc.fuse(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), sc.LIF())), (16, 5)),
    "in a wrapper": (lambda: torch.compile(_mlp(), backend="eager"), (16, 5)),
}
RIGHT = {
    "a mean over time": (lambda: nn.Sequential(sc.encode.Constant(4), _mlp(), _Mean()), (16, 5)),
    "time in a forward": (lambda: nn.Sequential(nn.Unflatten(0, (1, 16)), _mlp(), _Mean()), (16, 5)),
    "one step a call": (lambda: nn.Sequential(nn.Linear(5, 3), sc.LIF(step="single")), (16, 5)),
    "no neuron": (lambda: nn.Sequential(nn.Linear(5, 3)), (16, 5)),
    "one sample": (_mlp, (1, 5)),
}


class TestABatchAsTime:
    @pytest.mark.parametrize(("made", "shape"), TAKEN.values(), ids=TAKEN.keys())
    def test_it_is_said_once_at_the_users_line(self, made: Callable[[], nn.Module], shape: Tuple[int, ...]) -> None:
        step = _step(made(), nn.CrossEntropyLoss())
        with pytest.warns(UserWarning, match=rf"dimension 0 of inputs \[{', '.join(map(str, shape))}\]") as caught:
            step(torch.rand(shape), _labels(shape[0]))
        assert [one.filename for one in caught] == [__file__]
        assert "each of the 16 targets" in str(caught[0].message)
        step(torch.rand(shape), _labels(shape[0]))  # a second warning would be an error

    @pytest.mark.parametrize(("made", "shape"), RIGHT.values(), ids=RIGHT.keys())
    def test_nothing_is_said_of_right_ones(self, made: Callable[[], nn.Module], shape: Tuple[int, ...]) -> None:
        _step(made(), nn.CrossEntropyLoss())(torch.rand(shape), _labels(shape[0]))

    def test_a_value_for_each_step_is_right(self) -> None:
        """One sequence, and what its outputs should be."""
        _step(_mlp(), nn.MSELoss())(torch.rand(16, 5), torch.rand(16, 3))
        _step(_mlp(), lambda outputs, targets: F.mse_loss(outputs[:, 0], targets))(torch.rand(16, 5), torch.rand(16))

    def test_chunks_of_a_sequence_are_right(self) -> None:
        net = nn.Sequential(nn.Linear(5, 3), sc.LIF())
        step = _step(net, nn.CrossEntropyLoss())
        with sc.carry_state(net):
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

    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(16), nn.InstanceNorm1d(16), nn.GroupNorm(4, 16)], ids=_name)
    def test_sizes_that_fit_by_chance_are_warned_of(self, layer: nn.Module) -> None:
        net = nn.Sequential(sc.encode.Constant(4), layer, sc.LIF(), nn.Linear(5, 3))
        kind = type(layer).__name__
        with pytest.warns(UserWarning, match=rf"^1 \({kind}\) takes dimension 1 of \[T, B, C\], which is the batch"):
            _step(net, sc.losses.ce_count)(torch.rand(16, 5), _labels(16))

    def test_within_time_batched_nothing_is_said(self) -> None:
        layers = [sc.encode.Constant(4), nn.Linear(5, 16), sc.layers.TimeBatched(nn.BatchNorm1d(16)), sc.LIF()]
        _step(nn.Sequential(nn.BatchNorm1d(5), *layers), sc.losses.ce_count)(torch.rand(16, 5), _labels(16))
