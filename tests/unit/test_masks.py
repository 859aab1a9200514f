"""Losses and metrics of padded sequences are those of each sequence alone, whatever the padding holds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import refusals
import spikecore as sc
from spikecore import losses, metrics
from spikecore.functional import mask_of

LENGTHS = [3, 7, 1, 5, 7]
T, B, C = max(LENGTHS), len(LENGTHS), 6
LOSSES = [
    losses.ce_count,
    losses.ce_rate,
    losses.ce_max_membrane,
    losses.mse_count,
    partial(losses.mse_count, correct_rate=0.29, incorrect_rate=0.15),
    partial(losses.mse_membrane, on_target=1.5, off_target=-0.5),
    losses.ce_temporal,
    partial(losses.first_spike, tau=2.0, early=0.1),
    partial(losses.mse_temporal, on_target=2),
]
METRICS = [partial(metrics.accuracy, by=by) for by in ("count", "first_spike", "max_membrane", "mean_membrane")]
#: What stands at padded steps, which nothing may show.
PADDING = [1.0, float("nan")]


def sequences(dtype=torch.float64, real=True):
    """Outputs of sequences of different lengths, ``[T_b, C]`` each; ``real``: numbers, no two alike, else spikes."""
    drawn = torch.randn(sum(LENGTHS), C, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return list((drawn if real else (drawn > 0.3).double()).to(dtype).split(LENGTHS))


def labels(classes=C):
    return torch.randint(0, classes, (B,), generator=torch.Generator().manual_seed(2))


def padded(parts, value=0.0, last=True):
    """The sequences side by side, ``[T, B, C]``, with ``value`` behind their ends, or before their beginnings."""
    if last:
        return pad_sequence(parts, padding_value=value)
    return pad_sequence([part.flip(0) for part in parts], padding_value=value).flip(0)


def mask(last=True):
    real = torch.zeros(T, B, dtype=torch.bool)
    for b, length in enumerate(LENGTHS):
        real[:length, b] = True
    return real if last else real.flip(0)


def alone(loss, parts, classes=C):
    """The loss of each sequence without padding, by itself."""
    return torch.stack(
        [loss(part.unsqueeze(1), y[None], reduction="none")[0] for part, y in zip(parts, labels(classes))]
    )


class TestLosses:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("value", PADDING)
    @pytest.mark.parametrize("last", [True, False])
    def test_each_sequence_has_the_loss_that_it_has_alone(self, loss, value, last):
        """Per sample and as mean and sum, with padding of any value behind or before the sequences."""
        expected = alone(loss, sequences())
        x = padded(sequences(), value, last)
        torch.testing.assert_close(loss(x, labels(), mask=mask(last), reduction="none"), expected)
        torch.testing.assert_close(loss(x, labels(), mask=mask(last)), expected.mean())
        torch.testing.assert_close(loss(x, labels(), mask=mask(last), reduction="sum"), expected.sum())

    @pytest.mark.parametrize("rate", [0.21, 1 / 3])
    def test_wanted_counts_are_not_off_by_one_spike(self, rate):
        """Up to 200 steps: 0.21 of 100 steps of three neurons are 63 spikes, and not 62 as in float32."""
        lengths = list(range(1, 201))
        x, y = torch.zeros(200, 200, 3), torch.zeros(200, dtype=torch.int64)
        loss = partial(losses.mse_count, correct_rate=rate, num_classes=1, reduction="none")
        expected = torch.stack([loss(x[:length, :1], y[:1])[0] for length in lengths])
        assert torch.equal(loss(x, y, mask=mask_of(lengths, 200)), expected)


class TestGradients:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("value", PADDING)
    def test_nothing_flows_into_padding(self, loss, value):
        """At padded steps the gradient is 0, even of NaN; at real ones it is that of the sequence alone."""
        x = padded(sequences(), value).requires_grad_()
        loss(x, labels(), mask=mask(), reduction="sum").backward()
        parts = [part.requires_grad_() for part in sequences()]
        alone(loss, parts).sum().backward()
        torch.testing.assert_close(x.grad, padded([part.grad for part in parts]))
        assert torch.equal(x.grad[~mask()], torch.zeros_like(x.grad[~mask()]))
        assert x.grad[mask()].ne(0).any()


class TestRegularizers:
    @pytest.mark.parametrize("value", PADDING)
    @pytest.mark.parametrize("last", [True, False])
    def test_rates_are_of_real_steps(self, value, last):
        """A neuron's rate is over all real steps of all sequences; a sample's and a population's over its own."""
        parts = sequences(real=False)
        x = padded(parts, value, last)
        all_steps = torch.cat(parts).unsqueeze(1)  # one sequence of them all
        for per, oracle in (
            ("neuron", losses.rate_regularizer(all_steps, target=0.4)),
            *(
                (
                    per,
                    torch.stack([losses.rate_regularizer(part[:, None], target=0.4, per=per) for part in parts]).mean(),
                )
                for per in ("sample", "population")
            ),
        ):
            found = losses.rate_regularizer(x, target=0.4, per=per, mask=mask(last))
            torch.testing.assert_close(found, oracle)
        torch.testing.assert_close(
            losses.rate_sparsity(x, strength=0.01, mask=mask(last)), 0.01 * torch.cat(parts).sum()
        )


class TestAccuracy:
    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("value", PADDING)
    @pytest.mark.parametrize("last", [True, False])
    def test_is_that_of_each_sequence_alone(self, metric, value, last):
        """Nothing spikes at padded steps, whatever stands there."""
        parts = sequences(torch.float32, real=False)
        for y in range(3):
            targets = torch.full((B,), y)
            expected = torch.stack([metric(part[:, None], targets[:1], num_classes=3) for part in parts]).mean()
            found = metric(padded(parts, value, last), targets, num_classes=3, mask=mask(last))
            torch.testing.assert_close(found, expected)


class TestMaskOf:
    @pytest.mark.parametrize("lengths", [LENGTHS, torch.tensor(LENGTHS)])
    def test_is_true_up_to_the_length(self, lengths):
        """``mask[t, b] = t < lengths[b]``; T may be more than the longest."""
        found = mask_of(lengths, T)
        assert found.dtype == torch.bool
        assert torch.equal(found, mask())
        assert torch.equal(sc.functional.mask_of(lengths, T + 2)[T:], torch.zeros(2, B, dtype=torch.bool))


test_refused = refusals.table(__file__, globals())
