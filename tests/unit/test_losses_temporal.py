"""Losses of spike times agree with loops over samples, neurons and steps; their gradient is -1 at the spikes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from spikecore import losses
from spikecore._base.versions import COMPILES
from spikecore.functional import mask_of

T, B, C = 9, 6, 4
LENGTHS = [9, 4, 6, 1, 9, 5]


def spikes(seed=0, rate=0.15):
    """Spike trains ``[T, B, C]``; at this rate some neurons never spike, and some do so often."""
    drawn = torch.rand(T, B, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn < rate).double()


def labels(seed=2):
    return torch.randint(0, C, (B,), generator=torch.Generator().manual_seed(seed))


def times_of(train, count):
    """Times of the first spikes of one neuron, from its train; the last step for each that is missing."""
    found = [t for t, value in enumerate(train) if value != 0][:count]
    return found + [len(train) - 1] * (count - len(found))


def distance(time, wanted, length, tolerance):
    wanted = length + wanted if wanted < 0 else wanted
    return 0.0 if abs(time - wanted) < tolerance else ((time - wanted) / length) ** 2


def ce_by_hand(x, y, lengths, inverse):
    """One loss per sample, and its gradient with respect to the spikes."""
    each, gradient = np.zeros(B), np.zeros_like(x)
    for b, length in enumerate(lengths):
        t = np.array([times_of(x[:length, b, c], 1)[0] for c in range(C)], dtype=float)
        g, slope = (-t, -np.ones(C)) if inverse == "negate" else (1 / (t + 1), -1 / (t + 1) ** 2)
        p = np.exp(g) / np.exp(g).sum()
        each[b] = -np.log(p[y[b]])
        for c in range(C):
            gradient[int(t[c]), b, c] = (p[c] - (c == y[b])) * slope[c] * -1.0
    return each, gradient


def mse_by_hand(x, y, lengths, on, off, tolerance):
    each, gradient = np.zeros(B), np.zeros_like(x)
    for b, length in enumerate(lengths):
        for c in range(C):
            for k, time in enumerate(times_of(x[:length, b, c], len(on))):
                wanted = on[k] if c == y[b] else off[k]
                each[b] += distance(time, wanted, length, tolerance) / C / len(on)
                wanted = length + wanted if wanted < 0 else wanted
                if abs(time - wanted) >= tolerance:
                    gradient[time, b, c] += -2 * (time - wanted) / length**2 / C / len(on)
    return each, gradient


def padded(lengths):
    """Spikes with NaN behind the ends, and the mask; without one where all have all steps."""
    x, mask = spikes(), mask_of(lengths, T)
    return (x, None) if mask.all() else (x.masked_fill(~mask.unsqueeze(-1), float("nan")), mask)


@pytest.mark.parametrize("lengths", [[T] * B, LENGTHS])
class TestValues:
    @pytest.mark.parametrize("inverse", ["negate", "reciprocal"])
    def test_ce_temporal(self, lengths, inverse):
        """Values and gradients are those of the loop, for sequences of one length and of several."""
        x, mask = padded(lengths)
        x.requires_grad_()
        found = losses.ce_temporal(x, labels(), inverse=inverse, mask=mask, reduction="none")
        expected, gradient = ce_by_hand(spikes().numpy(), labels().numpy(), lengths, inverse)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
        found.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("tolerance", [0, 2])
    @pytest.mark.parametrize(("on", "off"), [((0,), (-1,)), ((2,), (30,)), ((1, 3), (-3, -1)), ((0, 1, 2), (5, 5, 5))])
    def test_mse_temporal(self, lengths, on, off, tolerance):
        """Values and gradients are those of the loop, for one spike and for several."""
        x, mask = padded(lengths)
        if min(lengths) == 1 and min(on + off) < -1:
            lengths, mask = [max(3, length) for length in lengths], None
            mask = mask_of(lengths, T)
            x = spikes().masked_fill(~mask.unsqueeze(-1), float("nan"))
        x.requires_grad_()
        keywords = {"tolerance": tolerance, "mask": mask, "reduction": "none"}
        found = losses.mse_temporal(x, labels(), on_target=on, off_target=off, **keywords)
        expected, gradient = mse_by_hand(spikes().numpy(), labels().numpy(), lengths, on, off, tolerance)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
        found.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), gradient, rtol=1e-12, atol=1e-15)

    def test_wanted_times_are_given(self, lengths):
        """target_is_time: a time for each neuron, or for each of its first spikes; -1 is the last step."""
        x, mask = padded(lengths)
        wanted = torch.randint(-1, T, (2, B, C), generator=torch.Generator().manual_seed(3))
        for given in (wanted[0], wanted, wanted.float()):
            each = np.zeros(B)
            targets = given.reshape(-1, B, C)
            for b, length in enumerate(lengths):
                for c in range(C):
                    times = times_of(spikes().numpy()[:length, b, c], len(targets))
                    each[b] += sum(distance(t, float(m), length, 0) for t, m in zip(times, targets[:, b, c]))
            found = losses.mse_temporal(x, given, target_is_time=True, mask=mask, reduction="none")
            np.testing.assert_allclose(found.numpy(), each / C / len(targets), rtol=1e-12)
            mean = losses.mse_temporal(x, given, target_is_time=True, mask=mask)
            torch.testing.assert_close(mean, found.mean())


LOSSES = [losses.ce_temporal, partial(losses.mse_temporal, on_target=(0, 2), off_target=(-3, -1))]


@pytest.mark.parametrize("loss", LOSSES)
class TestAsOthers:
    """What every loss of the module does."""

    def test_reductions_and_weights(self, loss):
        """The mean is torch's weighted one."""
        weight = torch.tensor([0.5, 2.0, 0.0, 3.0], dtype=torch.float64)
        each, w = loss(spikes(), labels(), reduction="none"), weight[labels()]
        torch.testing.assert_close(loss(spikes(), labels()), each.mean())
        torch.testing.assert_close(loss(spikes(), labels(), reduction="sum"), each.sum())
        torch.testing.assert_close(loss(spikes(), labels(), weight=weight), (w * each).sum() / w.sum())

    def test_padding_may_lie_anywhere(self, loss):
        """Steps are counted among the real ones."""
        real = torch.tensor([0, 1, 1, 0, 1, 0, 1, 1, 0]).bool()
        holed = spikes().masked_fill(~real.reshape(-1, 1, 1), float("nan"))
        found = loss(holed, labels(), mask=real.unsqueeze(1).expand(T, B))
        torch.testing.assert_close(found, loss(spikes()[real], labels()))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_half_precision(self, loss, dtype):
        """Computed in float32; 300 is no number of bfloat16, and a time all the same."""
        outputs = torch.zeros(400, 1, 2, dtype=dtype)
        outputs[301:, 0, 0] = 1.0
        outputs.requires_grad_()
        found = loss(outputs, torch.tensor([1]))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, loss(outputs.detach().float(), torch.tensor([1])))
        found.backward()
        assert outputs.grad.dtype == dtype
        assert outputs.grad[301, 0, 0] != 0

    def test_nothing_is_read_on_the_host(self, loss):
        """It runs on meta tensors, which have no values to read."""
        y = torch.empty(B, device="meta", dtype=torch.int64)
        assert loss(torch.empty(T, B, C, device="meta"), y, weight=torch.ones(C)).shape == ()

    @pytest.mark.skipif(
        not COMPILES,
        reason="before 2.3 torch does not say that it compiles, and the graph breaks",
    )
    def test_compiled(self, loss):
        """torch.compile takes it as one graph."""
        torch.compiler.reset()
        x = spikes().float().requires_grad_()
        found = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, labels())
        torch.testing.assert_close(found, loss(x, labels()))
        torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in (found, loss(x, labels()))))


def test_errors_name_the_argument():
    x, y = spikes(), labels()
    for keywords, error, text in (
        ({"on_target": -10}, ValueError, r"on_target must be a time .* down to -T = -9, got -10"),
        ({"off_target": float("nan")}, ValueError, r"off_target must be a time from 0 on.* got nan"),
        ({"on_target": "early"}, TypeError, "on_target must be a number of steps or a sequence of them, got 'early'"),
        ({"on_target": (1, 2)}, ValueError, "on_target and off_target must have as many times, got 2 and 1"),
        ({"tolerance": -1}, ValueError, "tolerance must be a number of steps, 0 or more, got -1"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of 'mean', 'sum', 'none', got 'avg'"),
        ({"target_is_time": True}, ValueError, r"one spike time per sample and neuron, shape \(6, 4\).*got shape \(6,"),
    ):
        with pytest.raises(error, match=text):
            losses.mse_temporal(x, y, **keywords)
    times = torch.zeros(B, C)
    with pytest.raises(ValueError, match="weight and ignore_index are about classes; with target_is_time=True"):
        losses.mse_temporal(x, times, target_is_time=True, weight=torch.ones(C))
    with pytest.raises(TypeError, match=r"targets must be spike times, numbers of steps, got torch\.bool"):
        losses.mse_temporal(x, times.bool(), target_is_time=True)
    with pytest.raises(ValueError, match="reduction must be one of .* got 'avg'"):
        losses.mse_temporal(x, times, target_is_time=True, reduction="avg")
    with pytest.raises(ValueError, match="inverse must be one of 'negate', 'reciprocal', got 'no'"):
        losses.ce_temporal(x, y, inverse="no")
