"""Losses agree with NumPy written by hand, torch's weighting and finite differences."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import get_type_hints

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import refusals
from spikecore import losses
from spikecore.functional import mask_of

T, B, C = 7, 5, 6
CLASS_LOSSES = [losses.ce_count, losses.ce_rate, losses.ce_max_membrane, losses.mse_count, losses.mse_membrane]
POOLED = [losses.ce_count, losses.ce_rate, losses.mse_count]


def spikes(seed=0, rate=0.4):
    """Spike trains ``[T, B, C]``."""
    drawn = torch.rand(T, B, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn < rate).double()


def membrane(seed=1):
    """Membrane potentials ``[T, B, C]``, no two alike."""
    return torch.randn(T, B, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(classes=C, seed=2):
    """Class indices ``[B]``."""
    return torch.randint(0, classes, (B,), generator=torch.Generator().manual_seed(seed))


def cross_entropy(logits, label):
    """Of one sample, by its definition."""
    return -np.log(np.exp(logits[label]) / np.exp(logits).sum())


def by_hand(name, outputs, targets, pooled=None, on=1.0, off=0.0):
    """One loss per sample, in loops over samples, steps and classes."""
    x, y = outputs.numpy(), targets.numpy()
    group = x.shape[2] // (pooled or x.shape[2])
    x = np.stack([x[:, :, c * group : (c + 1) * group].sum(2) for c in range(x.shape[2] // group)], axis=2)
    steps, batch, classes = x.shape
    found = np.zeros(batch)
    for b in range(batch):
        if name == "ce_count":
            found[b] = cross_entropy(sum(x[t, b] for t in range(steps)), y[b])
        elif name == "ce_rate":
            found[b] = sum(cross_entropy(x[t, b], y[b]) for t in range(steps)) / steps
        elif name == "ce_max_membrane":
            found[b] = cross_entropy(x[:, b].max(0), y[b])
        elif name == "mse_count":
            wanted = [int(steps * group * (on if c == y[b] else off)) for c in range(classes)]
            found[b] = sum((x[:, b, c].sum() - wanted[c]) ** 2 for c in range(classes)) / classes / steps
        elif name == "mse_membrane":
            wanted = [on if c == y[b] else off for c in range(classes)]
            found[b] = sum((x[t, b, c] - wanted[c]) ** 2 for t in range(steps) for c in range(classes))
            found[b] /= classes * steps
    return found


class TestValues:
    """Value of each loss, sample by sample."""

    @pytest.mark.parametrize(
        ("loss", "keywords"),
        [
            *((loss, {}) for loss in CLASS_LOSSES),
            *((loss, {"pooled": classes}) for loss in POOLED for classes in (1, 3)),
            (losses.mse_count, {"pooled": 3, "on": 0.75, "off": 0.25}),
            (losses.mse_membrane, {"on": 1.5, "off": -0.5}),
        ],
    )
    def test_equals_its_equation(self, loss, keywords):
        """The loss of each sample is the equation of the docstring, computed in NumPy, also of pooled neighbours."""
        outputs, targets = membrane() if "membrane" in loss.__name__ else spikes(), labels(keywords.get("pooled", C))
        names = {"pooled": "num_classes", "on": "correct_rate", "off": "incorrect_rate"}
        if loss is losses.mse_membrane:
            names.update(on="on_target", off="off_target")
        found = loss(outputs, targets, reduction="none", **{names[key]: value for key, value in keywords.items()})
        expected = by_hand(loss.__name__, outputs, targets, **keywords)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)

    def test_mse_count_is_not_off_by_one_spike(self):
        """0.29 of 100 steps is 29 spikes, although the product in floating point is a little less."""
        outputs = torch.zeros(100, 1, 1)
        outputs[:29] = 1.0
        assert losses.mse_count(outputs, torch.tensor([0]), correct_rate=0.29) == 0.0


class TestReduction:
    """Combination of samples."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_weighted_mean_divides_by_the_weights(self, loss):
        """With class weights the mean is sum(w l) / sum(w), "sum" and "none" have w l."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 0.0], dtype=torch.float64)
        each, w = loss(membrane(), labels(), reduction="none"), weight[labels()]
        torch.testing.assert_close(loss(membrane(), labels(), weight=weight), (w * each).sum() / w.sum())
        torch.testing.assert_close(loss(membrane(), labels(), weight=weight, reduction="sum"), (w * each).sum())
        torch.testing.assert_close(loss(membrane(), labels(), weight=weight, reduction="none"), w * each)
        torch.testing.assert_close(
            loss(membrane(), labels(), weight=weight, reduction="sample_mean"), (w * each).mean()
        )


class TestDtypes:
    """Dtypes of inputs and results."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_half_precision_is_computed_in_float32(self, loss):
        """The loss of half-precision outputs is that of the same values in float32; the gradient has their dtype."""
        outputs = membrane().to(torch.bfloat16).requires_grad_()
        found = loss(outputs, labels())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, loss(outputs.detach().float(), labels()))
        found.backward()
        assert outputs.grad.dtype == torch.bfloat16


class TestGradients:
    """Derivatives against finite differences in float64."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_gradient_is_exact(self, loss):
        """The gradient with respect to the outputs is that of finite differences, weights and all."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)
        function = partial(loss, targets=labels()[:2], weight=weight)
        assert torch.autograd.gradcheck(function, membrane()[:3, :2].clone().requires_grad_())

    @pytest.mark.parametrize("per", ["neuron", "sample", "population"])
    def test_gradient_of_the_regularizer_is_exact(self, per):
        """Rates below, within and above the band have the gradient of finite differences."""
        rates = membrane()[:3, :3].abs().requires_grad_()
        assert torch.autograd.gradcheck(partial(losses.rate_regularizer, target=(0.7, 0.9), per=per), rates)


class TestRegularizers:
    """Penalties on how much is spiked."""

    @pytest.mark.parametrize(("per", "axes"), [("neuron", (0, 1)), ("sample", (0,)), ("population", (0, 2, 3))])
    def test_band_penalises_the_squared_distance(self, per, axes):
        """Rates outside the band cost the square of their distance to it, averaged over the rates."""
        x = spikes().reshape(T, B, 2, 3)
        rate = x.numpy().mean(axis=axes)
        outside = np.where(rate < 0.35, 0.35 - rate, np.where(rate > 0.45, rate - 0.45, 0.0))
        found = losses.rate_regularizer(x, target=(0.35, 0.45), per=per, strength=3.0)
        assert found.shape == ()
        assert found.item() == pytest.approx(3.0 * (outside**2).mean(), rel=1e-12)

    def test_sparsity_counts_spikes(self):
        """rate_sparsity is strength times the number of spikes, and each step has the same gradient, silent or not."""
        x = spikes().requires_grad_()
        cost = losses.rate_sparsity(x, strength=0.01)
        cost.backward()
        assert cost.shape == ()
        assert cost.item() == pytest.approx(0.01 * x.detach().numpy().sum())
        torch.testing.assert_close(x.grad, torch.full_like(x, 0.01))


class TestErrors:
    """A wrong argument is named, with its value and what would be right."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    @pytest.mark.parametrize("wrong", [-100, C])
    def test_target_out_of_range(self, loss, wrong):
        """The text says which classes there are, and how samples are left out."""
        targets = labels().index_fill(0, torch.tensor([1]), wrong)
        text = rf"targets has {wrong}, out of range: the classes are 0 to 5; ignore_index={wrong} leaves samples"
        with pytest.raises(IndexError, match=text):
            loss(spikes(), targets)
        assert torch.isfinite(loss(spikes(), targets, ignore_index=wrong))


SMOOTHED = [losses.ce_count, losses.ce_rate, losses.ce_max_membrane, losses.ce_temporal, losses.first_spike]
EVERY = [*SMOOTHED, losses.mse_count, losses.mse_membrane, losses.mse_temporal]
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)


def rectified(seed=0):
    """Numbers of which a part is 0, ``[T, B, C]``."""
    x = torch.randn(T, B, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.relu()


def classes():
    return torch.tensor([3, 1, 0, 5, 1])


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("ignore_index", [None, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ce_count_is_torchs_cross_entropy(smoothing, ignore_index, reduction, weight):
    """Of the counts, with every combination of what both take."""
    keywords = {"label_smoothing": smoothing, "weight": weight, "reduction": reduction}
    found = losses.ce_count(rectified(), classes(), ignore_index=ignore_index, **keywords)
    index = -100 if ignore_index is None else ignore_index
    torch.testing.assert_close(found, F.cross_entropy(rectified().sum(0), classes(), ignore_index=index, **keywords))


@pytest.mark.parametrize("loss", SMOOTHED)
def test_smoothing_mixes_the_losses_of_all_classes(loss):
    """``(1 - s) l(y) + s mean_c l(c)``, whatever the loss is of."""
    each = torch.stack([loss(rectified(), torch.full((B,), c), reduction="none") for c in range(C)])
    expected = 0.8 * each[classes(), torch.arange(B)] + 0.2 * each.mean(0)
    torch.testing.assert_close(loss(rectified(), classes(), label_smoothing=0.2, reduction="none"), expected)


@pytest.mark.parametrize("loss", EVERY)
@pytest.mark.parametrize("ignored", [255, 0])
def test_ignored_samples_are_as_if_they_were_not_there(loss, ignored):
    """Mean, sum and gradient are those of the other samples, whatever the outputs of the ignored ones are.

    One of the ignored has no real step, which is an error for any other.
    """
    y, keep = classes(), torch.tensor([True, False, True, True, False])
    y[keep] = torch.tensor([3, 2, 5])
    y[~keep] = ignored
    mask = mask_of([4, 3, 7, 2, 6], T)
    mask[:, 1] = False
    x = rectified()
    x[:, ~keep] = float("nan")
    x.requires_grad_()
    for reduction in ("mean", "sum"):
        keywords = {"weight": WEIGHT, "reduction": reduction}
        found = loss(x, y, ignore_index=ignored, mask=mask, **keywords)
        alone = rectified()[:, keep].requires_grad_()
        expected = loss(alone, y[keep], mask=mask[:, keep], **keywords)
        torch.testing.assert_close(found, expected)
        gradient, wanted = (torch.autograd.grad(value, of)[0] for value, of in ((found, x), (expected, alone)))
        torch.testing.assert_close(gradient[:, keep], wanted)
        assert torch.equal(gradient[:, ~keep], torch.zeros_like(gradient[:, ~keep]))
    each = loss(x, y, ignore_index=ignored, mask=mask, weight=WEIGHT, reduction="none")
    assert torch.equal(each[~keep], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("loss", SMOOTHED[:3])
def test_gradient_of_all_keywords_is_exact(loss):
    """Finite differences, of smoothed labels, weights, a mask and ignored samples at once."""
    x = rectified() + torch.rand(T, B, C, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    keywords = {"label_smoothing": 0.1, "weight": WEIGHT, "ignore_index": 1, "mask": mask_of([4, 3, 7, 2, 6], T)}
    assert torch.autograd.gradcheck(partial(loss, targets=classes(), **keywords), x.requires_grad_())


LONG, SAMPLES, NEURONS = 9, 6, 4
LENGTHS = [9, 4, 6, 1, 9, 5]


def trains(seed=0, rate=0.15):
    """Spike trains ``[T, B, C]``; at this rate some neurons never spike, and some do so often."""
    drawn = torch.rand(LONG, SAMPLES, NEURONS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn < rate).double()


def neurons_of(seed=2):
    return torch.randint(0, NEURONS, (SAMPLES,), generator=torch.Generator().manual_seed(seed))


def times_of(train, count):
    """Times of the first spikes of one neuron, from its train; the last step for each that is missing."""
    found = [t for t, value in enumerate(train) if value != 0][:count]
    return found + [len(train) - 1] * (count - len(found))


def distance(time, wanted, length, tolerance):
    wanted = length + wanted if wanted < 0 else wanted
    return 0.0 if abs(time - wanted) < tolerance else ((time - wanted) / length) ** 2


def ce_by_hand(x, y, lengths, inverse):
    """One loss per sample, and its gradient with respect to the spikes."""
    each, gradient = np.zeros(SAMPLES), np.zeros_like(x)
    for b, length in enumerate(lengths):
        t = np.array([times_of(x[:length, b, c], 1)[0] for c in range(NEURONS)], dtype=float)
        g, slope = (-t, -np.ones(NEURONS)) if inverse == "negate" else (1 / (t + 1), -1 / (t + 1) ** 2)
        p = np.exp(g) / np.exp(g).sum()
        each[b] = -np.log(p[y[b]])
        for c in range(NEURONS):
            gradient[int(t[c]), b, c] = (p[c] - (c == y[b])) * slope[c] * -1.0
    return each, gradient


def first_by_hand(x, y, lengths, tau, early, tau_early):
    """``first_spike`` of each sample and its derivative, by loops."""
    each, gradient = np.zeros(len(lengths)), np.zeros_like(x)
    for b, length in enumerate(lengths):
        times = [times_of(x[:length, b, c], 1)[0] for c in range(NEURONS)]
        odds = np.exp([-time / tau for time in times])
        odds /= odds.sum()
        scale = length if tau_early is None else tau_early
        each[b] = -np.log(odds[y[b]]) + early * (np.exp(times[y[b]] / scale) - 1)
        for c, time in enumerate(times):
            to_time = ((c == y[b]) - odds[c]) / tau
            if c == y[b]:
                to_time += early / scale * np.exp(time / scale)
            gradient[time, b, c] -= to_time
    return each, gradient


def mse_by_hand(x, y, lengths, on, off, tolerance):
    each, gradient = np.zeros(SAMPLES), np.zeros_like(x)
    for b, length in enumerate(lengths):
        for c in range(NEURONS):
            for k, time in enumerate(times_of(x[:length, b, c], len(on))):
                wanted = on[k] if c == y[b] else off[k]
                each[b] += distance(time, wanted, length, tolerance) / NEURONS / len(on)
                wanted = length + wanted if wanted < 0 else wanted
                if abs(time - wanted) >= tolerance:
                    gradient[time, b, c] += -2 * (time - wanted) / length**2 / NEURONS / len(on)
    return each, gradient


def padded(lengths):
    """Spikes with NaN behind the ends, and the mask; without one where all have all steps."""
    x, mask = trains(), mask_of(lengths, LONG)
    return (x, None) if mask.all() else (x.masked_fill(~mask.unsqueeze(-1), float("nan")), mask)


@pytest.mark.parametrize("lengths", [[LONG] * SAMPLES, LENGTHS])
class TestSpikeTimes:
    @pytest.mark.parametrize("inverse", ["negate", "reciprocal"])
    def test_ce_temporal(self, lengths, inverse):
        """Values and gradients are those of the loop, for sequences of one length and of several."""
        x, mask = padded(lengths)
        x.requires_grad_()
        found = losses.ce_temporal(x, neurons_of(), inverse=inverse, mask=mask, reduction="none")
        expected, gradient = ce_by_hand(trains().numpy(), neurons_of().numpy(), lengths, inverse)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
        found.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize(("early", "tau_early"), [(0.0, None), (0.3, None), (0.3, 2.5)])
    def test_first_spike(self, lengths, early, tau_early):
        """Values and gradients are those of the loop, with and without the term of early spikes."""
        x, mask = padded(lengths)
        x.requires_grad_()
        keywords = {"tau": 1.7, "early": early, "tau_early": tau_early, "mask": mask, "reduction": "none"}
        found = losses.first_spike(x, neurons_of(), **keywords)
        expected, gradient = first_by_hand(trains().numpy(), neurons_of().numpy(), lengths, 1.7, early, tau_early)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
        found.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("tolerance", [0, 2])
    @pytest.mark.parametrize(("on", "off"), [((0,), (-1,)), ((1, 3), (-3, -1))])
    def test_mse_temporal(self, lengths, on, off, tolerance):
        """Values and gradients are those of the loop, for one spike and for several."""
        x, mask = padded(lengths)
        if min(lengths) == 1 and min(on + off) < -1:
            lengths, mask = [max(3, length) for length in lengths], None
            mask = mask_of(lengths, LONG)
            x = trains().masked_fill(~mask.unsqueeze(-1), float("nan"))
        x.requires_grad_()
        keywords = {"tolerance": tolerance, "mask": mask, "reduction": "none"}
        found = losses.mse_temporal(x, neurons_of(), on_target=on, off_target=off, **keywords)
        expected, gradient = mse_by_hand(trains().numpy(), neurons_of().numpy(), lengths, on, off, tolerance)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
        found.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)

    def test_wanted_times_are_given(self, lengths):
        """target_is_time: a time for each neuron, or for each of its first spikes; -1 is the last step."""
        x, mask = padded(lengths)
        wanted = torch.randint(-1, LONG, (2, SAMPLES, NEURONS), generator=torch.Generator().manual_seed(3))
        for given in (wanted[0], wanted, wanted.float()):
            each = np.zeros(SAMPLES)
            targets = given.reshape(-1, SAMPLES, NEURONS)
            for b, length in enumerate(lengths):
                for c in range(NEURONS):
                    times = times_of(trains().numpy()[:length, b, c], len(targets))
                    each[b] += sum(distance(t, float(m), length, 0) for t, m in zip(times, targets[:, b, c]))
            found = losses.mse_temporal(x, given, target_is_time=True, mask=mask, reduction="none")
            np.testing.assert_allclose(found.numpy(), each / NEURONS / len(targets), rtol=1e-12)
            mean = losses.mse_temporal(x, given, target_is_time=True, mask=mask)
            torch.testing.assert_close(mean, found.mean())


test_refused = refusals.table(__file__, globals())


def test_losses_of_classes_have_their_arguments_as_type_hints():
    """Those of the signature, which tools read by ``typing.get_type_hints``."""
    for loss in (losses.ce_count, losses.mse_membrane, losses.first_spike):
        hints = get_type_hints(loss, vars(losses))
        assert list(hints) == [*signature(loss).parameters, "return"]
        assert hints["targets"] is hints["return"] is torch.Tensor
