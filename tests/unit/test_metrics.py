"""Metrics agree with loops over samples and steps, and with scikit-learn; a place of dense outputs is a sample."""

from __future__ import annotations

from typing import List

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor

import refusals
import spikecore as sc
from spikecore import losses
from spikecore.functional import mask_of
from spikecore.metrics import accuracy, accuracy_over_time, confusion, latency, sparsity

T, B, C = 6, 40, 4
LENGTHS = [1 + b % T for b in range(B)]
BY = ["count", "first_spike", "max_membrane", "mean_membrane"]
#: Losses of classes; of each the least that it needs.
LOSSES = [getattr(losses, name) for name in losses.__all__ if not name.startswith("rate_")]


def outputs(by: str = "count", seed: int = 0) -> Tensor:
    """``[T, B, C]`` with many equal scores."""
    generator = torch.Generator().manual_seed(seed)
    if by in ("count", "first_spike"):
        return (torch.rand(T, B, C, generator=generator) < 0.3).float()
    return torch.randint(-3, 4, (T, B, C), generator=generator).float()


def labels(shape: tuple = (B,), seed: int = 1) -> Tensor:
    return torch.randint(0, C, shape, generator=torch.Generator().manual_seed(seed))


def order(x: np.ndarray, by: str, classes: int = C) -> List[int]:
    """Classes of one sample ``[steps, C]``, the predicted one first, the first of equals before the others.

    Neighbours are pooled where there are fewer classes than neurons.
    """
    x = x.reshape(len(x), classes, -1).sum(-1)
    if by == "count":
        scores = [-x[:, c].sum() for c in range(classes)]
    elif by == "first_spike":
        scores = [next((t for t, value in enumerate(x[:, c]) if value), T) for c in range(classes)]
    elif by == "max_membrane":
        scores = [-max(x[:, c]) for c in range(classes)]
    else:
        scores = [-x[:, c].mean() for c in range(classes)]
    return sorted(range(classes), key=lambda c: scores[c])


@pytest.mark.parametrize("lengths", [[T] * B, LENGTHS])
@pytest.mark.parametrize("by", BY)
class TestLoops:
    """Each metric is what its first line says, by loops."""

    def test_top(self, by: str, lengths: List[int]) -> None:
        x, y, mask = outputs(by), labels(), mask_of(lengths, T)
        y[:3] = torch.tensor([-7, C, 300])
        padded = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
        orders = [order(x[:length, b].numpy(), by) for b, length in enumerate(lengths)]
        for top in range(1, C + 1):
            expected = np.mean([int(y[b]) in orders[b][:top] for b in range(B)])
            assert accuracy(padded, y, by=by, top=top, mask=mask).item() == pytest.approx(expected)
        pooled = [order(x[:length, b].numpy(), by, 2)[0] == y[b] for b, length in enumerate(lengths)]
        assert accuracy(padded, y, by=by, num_classes=2, mask=mask).item() == pytest.approx(np.mean(pooled))

    def test_over_time_and_latency(self, by: str, lengths: List[int]) -> None:
        x, y, mask = outputs(by), labels(), mask_of(lengths, T)
        padded = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
        # predicted[b][t]: by the first t + 1 steps, or all that there are
        predicted = [
            [order(x[: min(t + 1, length), b].numpy(), by)[0] for t in range(T)] for b, length in enumerate(lengths)
        ]
        expected = [np.mean([predicted[b][t] == y[b] for b in range(B)]) for t in range(T)]
        np.testing.assert_allclose(accuracy_over_time(padded, y, by=by, mask=mask).numpy(), expected, rtol=1e-6)
        steps = [next(t + 1 for t in range(T) if len(set(row[t:])) == 1) for row in predicted]
        assert latency(padded, y, by=by, mask=mask).tolist() == steps

    def test_confusion(self, by: str, lengths: List[int]) -> None:
        x, y, mask = outputs(by), labels(), mask_of(lengths, T)
        predicted = [order(x[:length, b].numpy(), by)[0] for b, length in enumerate(lengths)]
        y[:2], y[2] = 255, -1
        expected = confusion_matrix(y[3:], predicted[3:], labels=range(C))
        assert confusion(x, y, by=by, mask=mask, ignore_index=255).tolist() == expected.tolist()


def test_membranes_are_not_counted() -> None:
    """The maximum decided in training, and a sum of potentials was compared with the targets."""
    membrane, y = outputs() - 0.5, labels()
    with pytest.raises(ValueError, match="by='count' counts spikes, and spikes has negative values.*'max_membrane'"):
        accuracy(membrane, y)
    assert accuracy(outputs() * 0.5, y) == accuracy(outputs(), y)  # graded spikes
    assert torch.func.vmap(lambda x: accuracy(x, y))(membrane.unsqueeze(0)).isnan().all()  # nothing may be read


@pytest.mark.parametrize("by", BY)
def test_samples_without_a_label_are_left_out(by: str) -> None:
    """They counted as wrong; the losses leave them out. They need no real step, and what they hold does not matter."""
    x, y = outputs(), labels()
    y[::3] = -100
    real = torch.ones(T, B, dtype=torch.bool)
    real[:, 0] = False
    x[:, 3] = float("nan")
    wanted = accuracy(x[:, y >= 0], y[y >= 0], by=by)
    assert torch.equal(accuracy(x, y, by=by, mask=real, ignore_index=-100), wanted)
    assert torch.equal(accuracy(x, y, by=by, ignore_index=-100), wanted)
    assert torch.equal(accuracy(x, y, by=by, ignore_index=-1), accuracy(x, y, by=by))
    assert accuracy(x, torch.full_like(y, 2), by=by, ignore_index=2).isnan()
    with pytest.raises(ValueError, match="mask is False at every step of 1 of 40 sequences"):
        accuracy(x, y, by=by, mask=real)


def test_sparsity_counts_zeros() -> None:
    x, mask = outputs().reshape(T, B, 2, 2), mask_of(LENGTHS, T)
    assert sparsity(x).item() == pytest.approx((x == 0).double().mean().item())
    padded = x.masked_fill(~mask[..., None, None], float("nan"))
    assert sparsity(padded, mask=mask).item() == pytest.approx((x[mask] == 0).double().mean().item())
    assert sparsity(x.bool()) == sparsity(x)


def dense(by: str = "count") -> Tensor:
    """``[T, 5, C, 2, 4]``: the 40 samples as places."""
    return outputs(by).reshape(T, 5, 2, 4, C).permute(0, 1, 4, 2, 3)


class TestDense:
    """Outputs of places are those of as many samples."""

    @pytest.mark.parametrize("by", BY)
    def test_metrics(self, by: str) -> None:
        lengths = [2, 6, 3, 4, 6]
        mask, places = mask_of(lengths, T), mask_of([length for length in lengths for _ in range(8)], T)
        y, keywords = labels((5, 2, 4)), {"by": by, "ignore_index": 2}
        for metric in (accuracy, accuracy_over_time, confusion):
            found = metric(dense(by), y, mask=mask, **keywords)
            assert torch.equal(found, metric(outputs(by), y.flatten(), mask=places, **keywords))
        steps = latency(dense(by), y, by=by, mask=mask)
        assert torch.equal(steps, latency(outputs(by), y.flatten(), by=by, mask=places).reshape(5, 2, 4))

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("reduction", ["mean", "sample_mean", "sum", "none"])
    def test_losses(self, loss: object, reduction: str) -> None:
        mask, places = mask_of([2, 6, 3, 4, 6], T), mask_of([n for n in (2, 6, 3, 4, 6) for _ in range(8)], T)
        y, x = labels((5, 2, 4)), dense().double().requires_grad_()
        keywords = {"reduction": reduction, "ignore_index": 2, "weight": torch.tensor([0.5, 2.0, 1.0, 3.0]).double()}
        found = loss(x, y, mask=mask, **keywords)
        flat = outputs().double().requires_grad_()
        expected = loss(flat, y.flatten(), mask=places, **keywords)
        torch.testing.assert_close(found, expected.reshape(y.shape if reduction == "none" else ()))
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad.permute(0, 1, 3, 4, 2).reshape(flat.shape), flat.grad)


def test_the_predictions_of_a_training_step_can_be_metrics() -> None:
    """A network of places trains, and learns them."""
    torch.manual_seed(0)
    x = torch.rand(8, 1, 6, 6)
    y = (x[:, 0] > 0.5).long()
    net = torch.nn.Sequential(
        sc.encode.Constant(T), sc.layers.TimeBatched(torch.nn.Conv2d(1, 2, 1)), sc.LIF(tau=2.0, threshold=0.5)
    )
    step = sc.training_model(net, losses.ce_count, torch.optim.Adam(net.parameters(), 0.1))
    for _ in range(60):
        out, _ = step(x, y)
    assert out.shape == (T, 8, 2, 6, 6)
    assert accuracy(out, y) > 0.9
    assert confusion(out, y).sum() == y.numel()


test_refused = refusals.table(__file__, globals())
