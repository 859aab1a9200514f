"""``ignore_index`` and ``label_smoothing`` of losses mean what they mean in torch, with masks and weights as well."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from spikecore import losses
from spikecore.functional import mask_of

T, B, C = 7, 5, 6
SMOOTHED = [losses.ce_count, losses.ce_rate, losses.ce_max_membrane, losses.ce_temporal]
EVERY = [*SMOOTHED, losses.mse_count, losses.mse_membrane, losses.mse_temporal]
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)


def outputs(seed=0):
    """Numbers of which a part is 0, ``[T, B, C]``."""
    x = torch.randn(T, B, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.relu()


def labels():
    return torch.tensor([3, 1, 0, 5, 1])


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [None, 1, 0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_ce_count_is_torchs_cross_entropy(smoothing, ignore_index, reduction, weight):
    """Of the counts, with every combination of what both take."""
    keywords = {"label_smoothing": smoothing, "weight": weight, "reduction": reduction}
    found = losses.ce_count(outputs(), labels(), ignore_index=ignore_index, **keywords)
    index = -100 if ignore_index is None else ignore_index
    torch.testing.assert_close(found, F.cross_entropy(outputs().sum(0), labels(), ignore_index=index, **keywords))


@pytest.mark.parametrize("loss", SMOOTHED)
def test_smoothing_mixes_the_losses_of_all_classes(loss):
    """``(1 - s) l(y) + s mean_c l(c)``, whatever the loss is of."""
    each = torch.stack([loss(outputs(), torch.full((B,), c), reduction="none") for c in range(C)])
    expected = 0.8 * each[labels(), torch.arange(B)] + 0.2 * each.mean(0)
    torch.testing.assert_close(loss(outputs(), labels(), label_smoothing=0.2, reduction="none"), expected)


@pytest.mark.parametrize("loss", EVERY)
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ignored", [-100, 255, 0])
def test_ignored_samples_are_as_if_they_were_not_there(loss, weight, masked, ignored):
    """Mean, sum and gradient are those of the other samples, whatever the outputs of the ignored ones are.

    One of the ignored has no real step, which is an error for any other.
    """
    y, keep = labels(), torch.tensor([True, False, True, True, False])
    y[keep] = torch.tensor([3, 2, 5])
    y[~keep] = ignored
    mask = mask_of([4, 3, 7, 2, 6], T) if masked else None
    if mask is not None:
        mask[:, 1] = False
    x = outputs()
    x[:, ~keep] = float("nan")
    x.requires_grad_()
    for reduction in ("mean", "sum"):
        keywords = {"weight": weight, "reduction": reduction}
        found = loss(x, y, ignore_index=ignored, mask=mask, **keywords)
        alone = outputs()[:, keep].requires_grad_()
        expected = loss(alone, y[keep], mask=None if mask is None else mask[:, keep], **keywords)
        torch.testing.assert_close(found, expected)
        gradient, wanted = (torch.autograd.grad(value, of)[0] for value, of in ((found, x), (expected, alone)))
        torch.testing.assert_close(gradient[:, keep], wanted)
        assert torch.equal(gradient[:, ~keep], torch.zeros_like(gradient[:, ~keep]))
    each = loss(x, y, ignore_index=ignored, mask=mask, weight=weight, reduction="none")
    assert torch.equal(each[~keep], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("loss", EVERY)
def test_all_ignored(loss):
    """The mean of no samples is NaN, as torch's; their sum is 0."""
    y = torch.full((B,), -1)
    assert loss(outputs(), y, ignore_index=-1).isnan()
    assert loss(outputs(), y, ignore_index=-1, reduction="sum") == 0


@pytest.mark.parametrize("loss", EVERY)
def test_small_integers_are_compared_as_numbers(loss):
    """Of uint8 labels, as files of images have them, 156 is not -100."""
    x = torch.rand(T, 2, 200, generator=torch.Generator().manual_seed(0))
    found = [loss(x, torch.tensor([156, 3], dtype=dtype), ignore_index=-100) for dtype in (torch.uint8, torch.int64)]
    assert torch.equal(*found)


@pytest.mark.parametrize("loss", SMOOTHED[:3])
def test_gradient_is_exact(loss):
    """Finite differences, of smoothed labels, weights, a mask and ignored samples at once."""
    x = outputs() + torch.rand(T, B, C, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    keywords = {"label_smoothing": 0.1, "weight": WEIGHT, "ignore_index": 1, "mask": mask_of([4, 3, 7, 2, 6], T)}
    assert torch.autograd.gradcheck(partial(loss, targets=labels(), **keywords), x.requires_grad_())


@pytest.mark.parametrize("loss", EVERY)
def test_nothing_is_read_on_the_host(loss):
    """It runs on meta tensors, which have no values to read."""
    keywords = {"label_smoothing": 0.1} if loss in SMOOTHED else {}
    y = torch.empty(B, device="meta", dtype=torch.int64)
    found = loss(torch.empty(T, B, C, device="meta"), y, ignore_index=-1, weight=torch.ones(C), **keywords)
    assert found.shape == ()


@pytest.mark.parametrize("loss", EVERY)
def test_wrong_arguments_are_named(loss):
    for wrong in (1.0, True):
        with pytest.raises(TypeError, match=f"ignore_index must be an int or None, got {wrong}"):
            loss(outputs(), labels(), ignore_index=wrong)
    with pytest.raises(IndexError, match=r"targets has 9, out of range: .* 0 to 5; ignore_index=9 leaves samples"):
        loss(outputs(), labels() + torch.tensor([0, 0, 9, 0, 0]), ignore_index=1)
    if loss in SMOOTHED:
        for wrong in (1.5, -0.1, float("nan")):
            with pytest.raises(ValueError, match=f"label_smoothing must be from 0 to 1, got {wrong}"):
                loss(outputs(), labels(), label_smoothing=wrong)
        with pytest.raises(TypeError, match="label_smoothing must be a number, got 'some'"):
            loss(outputs(), labels(), label_smoothing="some")
