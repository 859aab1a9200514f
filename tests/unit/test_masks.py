"""Losses and metrics of padded sequences are those of each sequence alone, whatever the padding holds."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import spikecore as sc
from spikecore import losses, metrics
from spikecore._base.versions import COMPILES
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
]
SMOOTH = LOSSES
LOSSES = [*SMOOTH, losses.ce_temporal, partial(losses.mse_temporal, on_target=2)]
POOLED = [losses.ce_count, losses.ce_rate, partial(losses.mse_count, correct_rate=0.75, incorrect_rate=0.3)]
REGULARIZERS = [
    *(partial(losses.rate_regularizer, target=(0.35, 0.45), per=per) for per in ("neuron", "sample", "population")),
    partial(losses.rate_sparsity, strength=0.01),
]
METRICS = [partial(metrics.accuracy, by=by) for by in ("count", "first_spike")]
#: What stands at padded steps, which nothing may show.
PADDING = [0.0, 1.0, -1e30, float("inf"), float("-inf"), float("nan")]


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

    @pytest.mark.parametrize("loss", POOLED)
    def test_populations(self, loss):
        """With num_classes the wanted counts, too, are of the sequence's own steps."""
        pooled = partial(loss, num_classes=3)
        found = pooled(padded(sequences(), float("nan")), labels(3), mask=mask(), reduction="none")
        torch.testing.assert_close(found, alone(pooled, sequences(), 3))

    @pytest.mark.parametrize("loss", LOSSES)
    def test_class_weights(self, loss):
        """The weighted mean is over sequences, each with its class's weight, however long they are."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)
        w, each = weight[labels()], alone(loss, sequences())
        found = loss(padded(sequences(), float("inf")), labels(), mask=mask(), weight=weight)
        torch.testing.assert_close(found, (w * each).sum() / w.sum())

    @pytest.mark.parametrize("loss", LOSSES)
    def test_a_mask_of_real_steps_changes_nothing(self, loss):
        """All steps real: the loss without a mask."""
        x = torch.randn(T, B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        everything = torch.ones(T, B, dtype=torch.bool)
        torch.testing.assert_close(loss(x, labels(), mask=everything), loss(x, labels()))

    @pytest.mark.parametrize("loss", LOSSES)
    def test_padding_may_lie_between_steps(self, loss):
        """Steps that are left out in the middle are as if they had not been."""
        x = torch.randn(T, 1, C, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        real = torch.tensor([0, 1, 1, 0, 1, 0, 1]).bool()
        holed = x.clone()
        holed[~real] = float("nan")
        torch.testing.assert_close(loss(holed, labels()[:1], mask=real[:, None]), loss(x[real], labels()[:1]))

    @pytest.mark.parametrize("rate", [0.144, 0.21, 0.29, 1 / 3, 0.999])
    def test_wanted_counts_are_not_off_by_one_spike(self, rate):
        """Up to 200 steps: 0.21 of 100 steps of three neurons are 63 spikes, and not 62 as in float32."""
        lengths = list(range(1, 201))
        x, y = torch.zeros(200, 200, 3), torch.zeros(200, dtype=torch.int64)
        loss = partial(losses.mse_count, correct_rate=rate, num_classes=1, reduction="none")
        expected = torch.stack([loss(x[:length, :1], y[:1])[0] for length in lengths])
        assert torch.equal(loss(x, y, mask=mask_of(lengths, 200)), expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("loss", LOSSES)
    def test_half_precision(self, loss, dtype):
        """Computed in float32, whatever the padding is; the gradient has the dtype of the outputs."""
        x = padded(sequences(dtype), float("inf")).requires_grad_()
        found = loss(x, labels(), mask=mask())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, alone(loss, sequences(dtype)).mean())
        found.backward()
        assert x.grad.dtype == dtype
        assert x.grad.isfinite().all()


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

    @pytest.mark.parametrize("regularizer", REGULARIZERS)
    @pytest.mark.parametrize("value", PADDING)
    def test_nothing_flows_into_padding_from_a_regularizer(self, regularizer, value):
        """The gradient of a regulariser is 0 at padded steps, and finite at real ones."""
        x = padded(sequences(), value).requires_grad_()
        regularizer(x, mask=mask()).backward()
        assert torch.equal(x.grad[~mask()], torch.zeros_like(x.grad[~mask()]))
        assert x.grad[mask()].isfinite().all()
        assert x.grad[mask()].ne(0).any()

    @pytest.mark.parametrize("loss", SMOOTH)
    def test_finite_differences(self, loss):
        """The gradient is that of finite differences, weights and all."""
        weight = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0, 1.5], dtype=torch.float64)
        function = partial(loss, targets=labels(), weight=weight, mask=mask())
        assert torch.autograd.gradcheck(function, padded(sequences(), 0.3).requires_grad_())

    @pytest.mark.parametrize("regularizer", REGULARIZERS)
    def test_finite_differences_of_regularizers(self, regularizer):
        """Rates below, within and above the band have the gradient of finite differences."""
        x = padded([part.abs() for part in sequences()], 0.3).requires_grad_()
        assert torch.autograd.gradcheck(partial(regularizer, mask=mask()), x)


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

    def test_neurons_of_more_dimensions(self):
        """Spikes ``[T, B, ...]`` of any further dimensions have the rates of the flat ones."""
        x = padded(sequences(real=False), float("nan"))
        for regularizer in REGULARIZERS:
            torch.testing.assert_close(regularizer(x.reshape(T, B, 2, 3), mask=mask()), regularizer(x, mask=mask()))


class TestAccuracy:
    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("value", PADDING)
    @pytest.mark.parametrize("last", [True, False])
    @pytest.mark.parametrize("classes", [None, 3])
    def test_is_that_of_each_sequence_alone(self, metric, value, last, classes):
        """Nothing spikes at padded steps, whatever stands there."""
        parts = sequences(torch.float32, real=False)
        for y in range(classes or C):
            targets = torch.full((B,), y)
            expected = torch.stack([metric(part[:, None], targets[:1], num_classes=classes) for part in parts]).mean()
            found = metric(padded(parts, value, last), targets, num_classes=classes, mask=mask(last))
            torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.bfloat16, torch.float64])
    def test_any_dtype_of_spikes(self, metric, dtype):
        """As without a mask, spikes are of any dtype."""
        parts = sequences(torch.float32, real=False)
        x = padded(parts, 1.0)
        torch.testing.assert_close(
            metric(x.to(dtype), labels(), mask=mask()), metric(padded(parts), labels(), mask=mask())
        )


EVERY = [
    *((partial(loss, targets=torch.zeros(B, dtype=torch.int64)), "outputs") for loss in LOSSES),
    *((partial(metric, targets=torch.zeros(B, dtype=torch.int64)), "spikes") for metric in METRICS),
    *((regularizer, "spikes") for regularizer in REGULARIZERS),
]


class TestErrors:
    """A wrong mask is named, with what it is and what would be right."""

    @pytest.mark.parametrize(("function", "name"), EVERY)
    def test_a_wrong_mask(self, function, name):
        x = torch.rand(T, B, C)
        for wrong, error, text in (
            ([1, 2], TypeError, r"mask must be a bool tensor \[T, B\].* got list; .*mask_of\(lengths, T\) makes one"),
            (mask().float(), TypeError, r"mask must be torch\.bool, .*got torch\.float32; give mask != 0"),
            (mask()[0], ValueError, rf"mask must be \[T, B\], shape \(7, 5\) for {name} of .*got shape \(5,\)$"),
            (mask().T, ValueError, r"got shape \(5, 7\); it seems to be \[B, T\], give mask\.T"),
            (mask()[1:], ValueError, r"got shape \(6, 5\)$"),
        ):
            with pytest.raises(error, match=text):
                function(x, mask=wrong)

    @pytest.mark.parametrize(("function", "name"), EVERY)
    def test_a_sequence_without_a_real_step(self, function, name):
        """It has no mean and no rate: an error that says which, and how to leave it out."""
        x, wrong = torch.rand(T, B, C), mask()
        wrong[:, 1] = wrong[:, 3] = False
        text = rf"mask is False at every step of 2 of 5 sequences \(first: 1, 3\).*leave them out.*{name}\[:, keep\]"
        with pytest.raises(ValueError, match=text):
            function(x, mask=wrong)

    @pytest.mark.parametrize(("function", "name"), EVERY)
    def test_where_the_mask_is_not_read(self, function, name):
        """Under a transform of torch.func nothing is read: NaN instead, so that it is seen."""
        wrong = mask()
        wrong[:, 1] = False
        given = torch.rand(1, T, B, C)
        assert torch.func.vmap(lambda x: function(x, mask=wrong))(given).isnan().all()
        assert torch.func.vmap(lambda x: function(x, mask=mask()))(given).isfinite().all()

    @pytest.mark.parametrize(("function", "name"), EVERY)
    def test_nothing_is_read_on_another_device(self, function, name):
        """Meta tensors have no values to read."""
        if "targets" in function.keywords:
            function = partial(function, targets=torch.empty(B, device="meta", dtype=torch.int64))
        real = torch.empty(T, B, device="meta", dtype=torch.bool)
        assert function(torch.empty(T, B, C, device="meta"), mask=real).shape == ()


class TestMaskOf:
    @pytest.mark.parametrize("lengths", [LENGTHS, tuple(LENGTHS), torch.tensor(LENGTHS), torch.tensor(LENGTHS).short()])
    def test_is_true_up_to_the_length(self, lengths):
        """``mask[t, b] = t < lengths[b]``; T may be more than the longest."""
        found = mask_of(lengths, T)
        assert found.dtype == torch.bool
        assert torch.equal(found, mask())
        assert torch.equal(sc.functional.mask_of(lengths, T + 2)[T:], torch.zeros(2, B, dtype=torch.bool))

    @pytest.mark.parametrize("lengths", [np.array(LENGTHS), [np.int64(n) for n in LENGTHS], [*torch.tensor(LENGTHS)]])
    def test_integers_of_other_libraries(self, lengths):
        """As a collate function has them."""
        assert torch.equal(mask_of(lengths, T), mask())

    def test_more_steps_than_a_narrow_integer_holds(self):
        """Those of 300 as uint8 are 44, as which torch compares it."""
        kinds = [torch.uint8, torch.int8, *(getattr(torch, name) for name in ("uint16",) if hasattr(torch, name))]
        for dtype in kinds:
            assert mask_of(torch.tensor([100, 45], dtype=dtype), 300).sum(0).tolist() == [100, 45]

    def test_wrong_arguments_are_named(self):
        for wrong, text in (
            ([3, 8], r"lengths must be from 1 to T=7, got 8 at 1 \(1 are outside\)"),
            (torch.tensor([0, 3, -1]), r"from 1 to T=7, got 0 at 0 \(2 are outside\); leave out"),
            (torch.tensor([[3]]), r"lengths must be \[B\], one for each sequence, got shape \(1, 1\)"),
        ):
            with pytest.raises(ValueError, match=text):
                mask_of(wrong, T)
        for wrong, text in (
            (torch.tensor([3.0]), "lengths must be of an integer dtype such as torch.int64, got torch.float32"),
            (mask()[0], "integer dtype such as torch.int64, got torch.bool"),
            (5, r"lengths must be whole numbers of steps, got 5; give a list or a tensor \[B\]"),
            ({3: 4}, r"lengths must be whole numbers of steps, got \{3: 4\}; give a list"),
            ([True], r"lengths must be whole numbers of steps, got \[True\]; give a list"),
            ([3, 2.5], r"lengths must be whole numbers of steps, got \[3, 2\.5\]"),
        ):
            with pytest.raises(TypeError, match=text):
                mask_of(wrong, T)
        with pytest.raises(TypeError, match="T must be an int, the number of steps of the padded batch, got 7.0"):
            mask_of([3], 7.0)

    def test_nothing_is_read_on_another_device(self):
        assert mask_of(torch.empty(B, device="meta", dtype=torch.int64), T).shape == (T, B)


class TestTraining:
    def test_in_a_training_step(self):
        """Targets and mask as a tuple: the weights are those of steps on a longer padding."""
        weights = []
        for more in (0, 3):
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(C, 8), sc.LIF(), torch.nn.Linear(8, C), sc.LI(tau=2.0))
            step = sc.training_model(
                net, lambda out, y: losses.ce_rate(out, y[0], mask=y[1]), torch.optim.SGD(net.parameters(), 0.5)
            )
            x = torch.cat((3 * padded(sequences(torch.float32)), torch.full((more, B, C), 9.0)))
            for _ in range(3):
                step(x, (labels(), mask_of(LENGTHS, T + more)))
            weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        torch.testing.assert_close(*weights)

    @pytest.mark.skipif(
        not COMPILES,
        reason="before 2.3 torch does not say that it compiles: the mask is read, and the graph breaks there",
    )
    @pytest.mark.parametrize(("function", "name"), EVERY)
    def test_compiled(self, function, name):
        """torch.compile takes it as one graph, and gives the same value; an empty sequence is NaN there."""
        torch.compiler.reset()
        x, wrong = padded(sequences(torch.float32), float("nan")), mask()
        wrong[:, 1] = False
        compiled = torch.compile(lambda x, real: function(x, mask=real), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, mask()), function(x, mask=mask()))
        assert compiled(x, wrong).isnan()
