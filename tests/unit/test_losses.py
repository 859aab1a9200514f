"""Losses agree with NumPy written by hand, torch's weighting and finite differences; wrong input is named."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from spikecore import losses

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
    """What each loss is, sample by sample."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_equals_its_equation(self, loss):
        """The loss of each sample is the equation of the docstring, computed in NumPy."""
        outputs = membrane() if "membrane" in loss.__name__ else spikes()
        found = loss(outputs, labels(), reduction="none")
        np.testing.assert_allclose(found.numpy(), by_hand(loss.__name__, outputs, labels()), rtol=1e-12)

    @pytest.mark.parametrize("loss", POOLED)
    @pytest.mark.parametrize("classes", [1, 2, 3, 6])
    def test_pools_populations_of_neighbours(self, loss, classes):
        """With num_classes=K, class k is the sum of neurons k*C/K to (k+1)*C/K - 1."""
        found = loss(spikes(), labels(classes), num_classes=classes, reduction="none")
        np.testing.assert_allclose(
            found.numpy(), by_hand(loss.__name__, spikes(), labels(classes), pooled=classes), rtol=1e-12, atol=1e-12
        )

    def test_mse_count_aims_at_rates(self):
        """Wanted counts are whole numbers of spikes, T times the rate rounded down, for both kinds of class."""
        found = losses.mse_count(spikes(), labels(), correct_rate=0.8, incorrect_rate=0.2, reduction="none")
        expected = by_hand("mse_count", spikes(), labels(), on=0.8, off=0.2)  # 5 and 1 spikes of 7 steps
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)

    def test_mse_count_aims_at_rates_of_populations(self):
        """A population of g neurons is wanted to spike T * g * rate times."""
        found = losses.mse_count(
            spikes(), labels(3), correct_rate=0.75, incorrect_rate=0.25, num_classes=3, reduction="none"
        )
        expected = by_hand("mse_count", spikes(), labels(3), pooled=3, on=0.75, off=0.25)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)

    def test_mse_count_is_not_off_by_one_spike(self):
        """0.29 of 100 steps is 29 spikes, although the product in floating point is a little less."""
        outputs = torch.zeros(100, 1, 1)
        outputs[:29] = 1.0
        assert losses.mse_count(outputs, torch.tensor([0]), correct_rate=0.29) == 0.0

    def test_mse_membrane_aims_at_two_potentials(self):
        """on_target is for the right class, off_target for the others."""
        found = losses.mse_membrane(membrane(), labels(), on_target=1.5, off_target=-0.5, reduction="none")
        np.testing.assert_allclose(
            found.numpy(), by_hand("mse_membrane", membrane(), labels(), on=1.5, off=-0.5), rtol=1e-12
        )

    @pytest.mark.parametrize(
        ("loss", "expected"),
        [
            (losses.ce_count, 1.347188),
            (losses.ce_rate, 1.084270),
            (losses.ce_max_membrane, 0.706720),
            (partial(losses.mse_count, correct_rate=0.75, incorrect_rate=0.25), 17 / 24),
            (losses.mse_membrane, 9 / 24),
        ],
    )
    def test_known_numbers(self, loss, expected):
        """Numbers worked out on paper (and what snnTorch 1.0 gives) for 4 steps, 2 samples and 3 classes."""
        outputs = torch.zeros(4, 2, 3)
        outputs[:, 0, 0] = 1.0  # sample 0: class 0 at all 4 steps, class 1 at 2; its target is 1
        outputs[:2, 0, 1] = 1.0
        outputs[0, 1, 2] = 1.0  # sample 1: class 2 once; its target is 2
        found = loss(outputs, torch.tensor([1, 2]))
        assert found.item() == pytest.approx(expected, abs=2e-6)

    def test_log_softmax_of_large_counts_is_finite(self):
        """A thousand spikes more for a wrong class are a loss of a thousand, not infinity."""
        outputs = torch.zeros(1000, 1, 2)
        outputs[:, 0, 1] = 1.0
        assert losses.ce_count(outputs, torch.tensor([0])).item() == pytest.approx(1000.0)


class TestReduction:
    """How samples combine."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_mean_and_sum_are_of_the_samples(self, loss):
        """Mean and sum combine what "none" returns, to a 0-d tensor; the mean is the default."""
        each = loss(membrane(), labels(), reduction="none")
        mean, total = loss(membrane(), labels()), loss(membrane(), labels(), reduction="sum")
        assert each.shape == (B,)
        assert mean.shape == total.shape == ()
        torch.testing.assert_close(mean, each.mean())
        torch.testing.assert_close(total, each.sum())

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_weighted_mean_divides_by_the_weights(self, loss):
        """With class weights the mean is sum(w l) / sum(w), "sum" and "none" have w l."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 0.0], dtype=torch.float64)
        each, w = loss(membrane(), labels(), reduction="none"), weight[labels()]
        torch.testing.assert_close(loss(membrane(), labels(), weight=weight), (w * each).sum() / w.sum())
        torch.testing.assert_close(loss(membrane(), labels(), weight=weight, reduction="sum"), (w * each).sum())
        torch.testing.assert_close(loss(membrane(), labels(), weight=weight, reduction="none"), w * each)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_weighting_is_that_of_torch(self, reduction):
        """ce_count is torch's cross entropy of the counts, weights included."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)
        found = losses.ce_count(spikes(), labels(), weight=weight, reduction=reduction)
        torch.testing.assert_close(
            found, F.cross_entropy(spikes().sum(0), labels(), weight=weight, reduction=reduction)
        )

    def test_weight_has_an_entry_per_pooled_class(self):
        """With populations, weights are those of the classes, and the dtype of the weights does not matter."""
        weight = torch.tensor([1.0, 2.0, 4.0])
        found = losses.ce_count(spikes(), labels(3), num_classes=3, weight=weight)
        pooled = spikes().sum(0).reshape(B, 3, 2).sum(-1)
        torch.testing.assert_close(found, F.cross_entropy(pooled, labels(3), weight=weight.double()))


class TestDtypes:
    """What goes in and what comes out."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
    def test_any_integer_target(self, loss, dtype):
        """The integer type of the targets does not matter."""
        torch.testing.assert_close(loss(membrane(), labels().to(dtype)), loss(membrane(), labels()))

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_half_precision_is_computed_in_float32(self, loss, dtype):
        """The loss of half-precision outputs is that of the same values in float32; the gradient has their dtype."""
        outputs = membrane().to(dtype).requires_grad_()
        found = loss(outputs, labels())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, loss(outputs.detach().float(), labels()))
        found.backward()
        assert outputs.grad.dtype == dtype

    def test_counts_in_bfloat16_are_exact(self):
        """300 spikes in bfloat16 are 300, although bfloat16 itself has no such number beside 298 and 302."""
        outputs = torch.zeros(401, 1, 1, dtype=torch.bfloat16)
        outputs[:301] = 1.0
        assert losses.mse_count(outputs, torch.tensor([0])).item() == pytest.approx(100**2 / 401)


class TestGradients:
    """Derivatives against finite differences in float64."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_gradient_is_exact(self, loss, reduction):
        """The gradient with respect to the outputs is that of finite differences, weights and all."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)
        function = partial(loss, targets=labels(), weight=weight, reduction=reduction)
        assert torch.autograd.gradcheck(function, membrane().requires_grad_())

    @pytest.mark.parametrize("loss", POOLED)
    def test_gradient_through_populations_is_exact(self, loss):
        """All neurons of a population get the gradient of their class."""
        assert torch.autograd.gradcheck(partial(loss, targets=labels(3), num_classes=3), membrane().requires_grad_())

    @pytest.mark.parametrize("per", ["neuron", "sample", "population"])
    def test_gradient_of_the_regularizer_is_exact(self, per):
        """Rates below, within and above the band have the gradient of finite differences."""
        rates = membrane().abs().requires_grad_()
        assert torch.autograd.gradcheck(partial(losses.rate_regularizer, target=(0.7, 0.9), per=per), rates)

    def test_max_membrane_reaches_one_step(self):
        """The gradient of ce_max_membrane is at the step of the maximum and at no other."""
        outputs = membrane().requires_grad_()
        losses.ce_max_membrane(outputs, labels()).backward()
        assert torch.equal((outputs.grad != 0).sum(0), torch.ones(B, C, dtype=torch.int64))
        assert torch.equal(outputs.grad.abs().argmax(0), outputs.argmax(0))


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

    def test_one_number_is_a_point(self):
        """target=r costs (rate - r)^2, on either side, per neuron unless said otherwise."""
        rate = spikes().numpy().mean(axis=(0, 1))
        found = losses.rate_regularizer(spikes(), target=0.4)
        assert found.item() == pytest.approx(((rate - 0.4) ** 2).mean(), rel=1e-12)

    def test_inside_the_band_is_free(self):
        """Rates within the band, bounds included, cost nothing and have no gradient."""
        x = torch.tensor([[[1.0, 0.0, 1.0]], [[0.0, 1.0, 1.0]]], requires_grad=True)
        cost = losses.rate_regularizer(x, target=(0.5, 1.0))
        cost.backward()
        assert cost == 0.0
        assert torch.equal(x.grad, torch.zeros_like(x))

    def test_silent_neurons_are_pulled_up(self):
        """A silent neuron has a gradient that asks for spikes at every step."""
        x = torch.zeros(4, 2, 3, requires_grad=True)
        losses.rate_regularizer(x, target=(0.1, 0.5)).backward()
        assert (x.grad < 0).all()

    def test_sparsity_counts_spikes(self):
        """rate_sparsity is strength times the number of spikes, and each step has the same gradient, silent or not."""
        x = spikes().requires_grad_()
        cost = losses.rate_sparsity(x, strength=0.01)
        cost.backward()
        assert cost.shape == ()
        assert cost.item() == pytest.approx(0.01 * x.detach().numpy().sum())
        torch.testing.assert_close(x.grad, torch.full_like(x, 0.01))


class TestGraphs:
    """What compilers of the loss need."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_nothing_is_read_on_the_host(self, loss):
        """A loss runs on meta tensors, which have no values to read."""
        outputs, targets = torch.empty(T, B, C, device="meta"), torch.empty(B, device="meta", dtype=torch.int64)
        weight = torch.ones(C)
        assert loss(outputs, targets, weight=weight).shape == ()

    @pytest.mark.parametrize("regularizer", [partial(losses.rate_regularizer, target=0.1), losses.rate_sparsity])
    def test_no_regularizer_reads_on_the_host(self, regularizer):
        """A regulariser runs on meta tensors, which have no values to read."""
        assert regularizer(torch.empty(T, B, C, device="meta")).shape == ()

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_no_built_in_loss_is_called(self, loss, monkeypatch):
        """PopTorch would start the backward pass at a built-in loss, so none is called."""

        def refuse(*args, **kwargs):
            raise AssertionError("a built-in loss was called")

        for name in ("cross_entropy", "nll_loss", "mse_loss"):
            monkeypatch.setattr(F, name, refuse)
        assert loss(membrane(), labels()).isfinite()


class TestErrors:
    """A wrong argument is named, with its value and what would be right."""

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    @pytest.mark.parametrize(
        ("outputs", "targets", "error", "text"),
        [
            (torch.zeros(B, C), torch.zeros(B).long(), ValueError, r"outputs must be \[T, B, C\].* got shape \(5, 6\)"),
            (torch.zeros(0, B, C), torch.zeros(B).long(), ValueError, r"at least one time step.*\(0, 5, 6\)"),
            (torch.zeros(T, B, C).long(), torch.zeros(B).long(), TypeError, "outputs must be floating.*torch.int64"),
            ([0.0], torch.zeros(B).long(), TypeError, "outputs must be a tensor, got list"),
            (
                torch.zeros(T, B, C),
                torch.zeros(B + 1).long(),
                ValueError,
                r"targets must be .*\(5,\).* got shape \(6,\)",
            ),
            (torch.zeros(T, B, C), torch.zeros(B, C).long(), ValueError, r"one class index per sample.*\(5, 6\)$"),
            (torch.zeros(T, B, C), torch.zeros(B), TypeError, "targets must be integer.*got torch.float32"),
            (torch.zeros(T, B, C), torch.zeros(B).bool(), TypeError, "targets must be integer.*got torch.bool"),
            (torch.zeros(T, B, C), 3, TypeError, "targets must be a tensor, got int"),
        ],
    )
    def test_outputs_and_targets(self, loss, outputs, targets, error, text):
        """Shapes and dtypes of both are checked."""
        with pytest.raises(error, match=text):
            loss(outputs, targets)

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_keywords(self, loss):
        """Reduction and weight are checked."""
        with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', 'none', got 'avg'"):
            loss(spikes(), labels(), reduction="avg")
        with pytest.raises(ValueError, match=r"weight must have shape \(6,\), one factor per class, got \(5,\)"):
            loss(spikes(), labels(), weight=torch.ones(5))
        with pytest.raises(TypeError, match="weight must be a tensor, one factor per class, got list"):
            loss(spikes(), labels(), weight=[1.0] * C)

    @pytest.mark.parametrize("loss", POOLED)
    def test_population(self, loss):
        """num_classes is an integer that divides the number of neurons."""
        for wrong in (4, 0, -3, 7):
            with pytest.raises(
                ValueError, match=f"num_classes must divide the number of output neurons, 6, got {wrong}"
            ):
                loss(spikes(), labels(), num_classes=wrong)
        for wrong in (2.0, True):
            with pytest.raises(TypeError, match=f"num_classes must be an int or None, got {wrong}"):
                loss(spikes(), labels(), num_classes=wrong)

    @pytest.mark.parametrize("loss", CLASS_LOSSES)
    def test_target_out_of_range(self, loss):
        """A class that does not exist is torch's index error, never a silent number."""
        for wrong in (C, -1):
            with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
                loss(spikes(), torch.full((B,), wrong))

    @pytest.mark.parametrize("name", ["correct_rate", "incorrect_rate"])
    def test_rates_of_mse_count(self, name):
        """The rates of mse_count are numbers from 0 to 1."""
        for wrong in (1.5, -0.1, float("nan")):
            with pytest.raises(ValueError, match=f"{name} must be between 0 and 1 spikes per step, got {wrong}"):
                losses.mse_count(spikes(), labels(), **{name: wrong})
        with pytest.raises(TypeError, match=f"{name} must be a number, got 'high'"):
            losses.mse_count(spikes(), labels(), **{name: "high"})

    def test_regularizers(self):
        """Spikes, band and per of the regularisers are checked."""
        for regularizer in (partial(losses.rate_regularizer, target=0.1), losses.rate_sparsity):
            with pytest.raises(ValueError, match=r"spikes must be \[T, B, \.\.\.\].*got shape \(5, 6\)"):
                regularizer(torch.zeros(B, C))
            with pytest.raises(TypeError, match=r"spikes must be floating point, got torch\.bool"):
                regularizer(torch.zeros(T, B, C, dtype=torch.bool))
            with pytest.raises(TypeError, match="spikes must be a tensor, got NoneType"):
                regularizer(None)
        for wrong in (-0.1, (0.5, 0.2), float("inf"), float("nan")):
            with pytest.raises(ValueError, match="target must have 0 <= lower <= upper, in spikes per step, got "):
                losses.rate_regularizer(spikes(), target=wrong)
        for wrong in ("low", (0.1,), (0.1, None)):
            with pytest.raises(TypeError, match=r"target must be a rate or a pair \(lower, upper\) of rates, got "):
                losses.rate_regularizer(spikes(), target=wrong)
        with pytest.raises(ValueError, match="per must be one of 'neuron', 'sample', 'population', got 'layer'"):
            losses.rate_regularizer(spikes(), target=0.1, per="layer")
