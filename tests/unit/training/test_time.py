"""What a training step says of a loss that knows no time, and of a batch that is taken for time."""

from __future__ import annotations

from typing import Any, Callable, Tuple

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
