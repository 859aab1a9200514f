"""Accuracy by counts and by first spikes, against loops in NumPy; ties and silence have one meaning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikecore.metrics import accuracy

T, B, C = 9, 40, 6


def spikes(rate=0.15, seed=0):
    """Sparse spike trains ``[T, B, C]``: some neurons are silent, some tie."""
    return (torch.rand(T, B, C, generator=torch.Generator().manual_seed(seed)) < rate).float()


def labels(classes=C, seed=1):
    """Class indices ``[B]``."""
    return torch.randint(0, classes, (B,), generator=torch.Generator().manual_seed(seed))


def by_hand(x, y, by, classes):
    """The accuracy, in loops; a group of neurons spikes when one of them does."""
    group, right = x.shape[2] // classes, 0
    for b in range(x.shape[1]):
        scores = []
        for c in range(classes):
            train = x[:, b, c * group : (c + 1) * group]
            times = [t for t in range(x.shape[0]) if train[t].any()]
            scores.append(-train.sum() if by == "count" else (times[0] if times else x.shape[0]))
        right += scores.index(min(scores)) == y[b]
    return right / x.shape[1]


@pytest.mark.parametrize("by", ["count", "first_spike"])
@pytest.mark.parametrize("classes", [None, 1, 2, 3, 6])
def test_accuracy_is_the_fraction_right(by, classes):
    """The fraction of samples whose class has most spikes, or spikes first, populations pooled."""
    x, y = spikes(), labels(classes or C)
    found = accuracy(x, y, by=by, num_classes=classes)
    assert found.item() == pytest.approx(by_hand(x.numpy(), y.numpy(), by, classes or C))
    assert 0 < found.item() <= 1


@pytest.mark.parametrize("by", ["count", "first_spike"])
def test_result_is_a_float32_scalar_without_gradient(by):
    """The result is 0-d float32 whatever the dtype of the spikes, and counts are the default."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int32, torch.uint8):
        found = accuracy(spikes().to(dtype).requires_grad_(dtype.is_floating_point), labels(), by=by)
        assert (found.shape, found.dtype, found.requires_grad) == ((), torch.float32, False)
        torch.testing.assert_close(found, accuracy(spikes(), labels(), by=by))
    torch.testing.assert_close(accuracy(spikes(), labels()), accuracy(spikes(), labels(), by="count"))


@pytest.mark.parametrize("by", ["count", "first_spike"])
def test_first_index_wins_ties(by):
    """Of classes with the same count, or the same first step, the first is predicted."""
    x = torch.zeros(3, 1, 4)
    x[1, 0, 1:3] = 1.0
    predicted = [accuracy(x, torch.tensor([c]), by=by).item() for c in range(4)]
    assert predicted == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("by", ["count", "first_spike"])
def test_silent_sample_is_class_zero(by):
    """A sample without a spike ties everywhere, so its class is 0."""
    assert accuracy(torch.zeros(T, 2, C), torch.tensor([0, 1]), by=by) == 0.5


def test_silent_neuron_comes_after_the_last_step():
    """A neuron that first spikes at the last step is earlier than a silent one."""
    x = torch.zeros(T, 1, C)
    x[T - 1, 0, 4] = 1.0
    assert accuracy(x, torch.tensor([4]), by="first_spike") == 1.0


def test_counts_in_half_precision_do_not_tie():
    """257 spikes beat 256 in bfloat16, which cannot tell the two numbers apart."""
    x = torch.zeros(300, 1, 2, dtype=torch.bfloat16)
    x[:256, 0, 0] = 1.0
    x[:257, 0, 1] = 1.0
    assert accuracy(x, torch.tensor([1])) == 1.0


def test_first_spike_ignores_how_large_it_is():
    """A graded spike counts as a spike, whatever its size or sign."""
    x = torch.zeros(3, 1, 3)
    x[1, 0, 2] = -0.5
    x[2, 0, 0] = 7.0
    assert accuracy(x, torch.tensor([2]), by="first_spike") == 1.0


@pytest.mark.parametrize("by", ["count", "first_spike"])
def test_nothing_is_read_on_the_host(by):
    """Accuracy runs on meta tensors, which have no values to read, and stays on their device."""
    targets = torch.empty(B, device="meta", dtype=torch.int64)
    assert accuracy(torch.empty(T, B, C, device="meta"), targets, by=by, num_classes=3).device.type == "meta"


@pytest.mark.parametrize("by", ["count", "first_spike"])
def test_samples_without_a_label_are_left_out(by):
    """They counted as wrong; the losses leave them out. They need no real step, and what they hold does not matter."""
    x, y = spikes(), labels()
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


def test_wrong_arguments_are_named():
    """Each wrong argument is an error with its name, its value and what would be right."""
    with pytest.raises(ValueError, match=r"spikes must be \[T, B, C\].*got shape \(40, 6\)"):
        accuracy(torch.zeros(B, C), labels())
    with pytest.raises(
        ValueError, match=r"targets must be one class index per sample, shape \(40,\).*got shape \(3,\)"
    ):
        accuracy(spikes(), labels()[:3])
    with pytest.raises(TypeError, match=r"targets must be integer.*got torch\.float32"):
        accuracy(spikes(), labels().float())
    with pytest.raises(TypeError, match="spikes must be a tensor, got ndarray"):
        accuracy(np.zeros((T, B, C)), labels())
    with pytest.raises(ValueError, match="by must be 'count' or 'first_spike', got 'rate'"):
        accuracy(spikes(), labels(), by="rate")
    for by in ("count", "first_spike"):
        with pytest.raises(ValueError, match="num_classes must divide the number of output neurons, 6, got 4"):
            accuracy(spikes(), labels(), by=by, num_classes=4)
