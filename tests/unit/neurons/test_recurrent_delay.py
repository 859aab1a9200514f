"""Recurrent with a Delay: outputs that come back several steps later, against loops written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from arctan import spike

T, B, C, LONGEST = 9, 2, 4, 3
PER = ("connection", "input")


def drawn(*shape, seed=0, dtype=torch.float64):
    """Normal values around 0.5."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).add(0.5).to(dtype)


def made(per="connection", neuron=None, dtype=torch.float64, longest=LONGEST, learn=("delay", "sigma"), **options):
    """Feedback with delays, always the same."""
    torch.manual_seed(0)
    width = {"sigma": 0.9} if learn else {}
    drawn_by = torch.Generator().manual_seed(3)
    delay = sc.Delay(nn.Linear(C, C, dtype=dtype), longest, per=per, learn=learn, generator=drawn_by, **width)
    return sc.Recurrent(neuron or sc.LIF(1.7, backend="torch"), delay, **options)


def by_hand(x, weight, bias, delay, sigma, tau=1.7):
    """LIF whose outputs come back, one connection and lag after the other; ``sigma`` None for rounded delays."""
    delay = delay.expand(C, C)
    outputs, v = [], torch.zeros_like(x[0])
    for t in range(len(x)):
        back = []
        for o in range(C):
            total = bias[o].expand(x.shape[1])
            for j in range(C):
                share = [(delay[o, j].round() == k).to(x.dtype) for k in range(LONGEST + 1)]
                if sigma is not None:
                    share = [torch.exp(-((k - delay[o, j]) ** 2) / (2 * sigma**2)) for k in range(LONGEST + 1)]
                for k in range(LONGEST + 1):
                    if t - 1 - k >= 0:
                        total = total + weight[o, j] * share[k] / sum(share) * outputs[t - 1 - k][:, j]
            back.append(total)
        h = v + (x[t] + torch.stack(back, -1) - v) / tau
        y = spike(h - 1)
        v = (1 - y) * h
        outputs.append(y)
    return torch.stack(outputs)


class TestValues:
    """Against the loop."""

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    def test_outputs_and_gradients(self, per, training):
        """Of the input, weight, bias, positions and width; of the first two in eval mode."""
        net, x = made(per).train(training), drawn(T, B, C).requires_grad_()
        delay = net.linear
        wanted = [x, delay.linear.weight, delay.linear.bias, delay.delay, delay.sigma][: 5 if training else 3]
        want = by_hand(x, *delay.linear.parameters(), delay.delay, delay.sigma if training else None)
        out = net(x)
        assert torch.equal(out, want)
        assert 0.1 < out.mean() < 0.9
        cotangent = drawn(T, B, C, seed=1)
        found = torch.autograd.grad(out, wanted, cotangent)
        torch.testing.assert_close(found, torch.autograd.grad(want, wanted, cotangent), rtol=1e-10, atol=1e-12)
        assert all(grad.abs().max() > 0 for grad in found)

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("batch", [1, LONGEST + 2])
    def test_inference(self, per, batch):
        """Without gradients few samples are looked up."""
        net, x = made(per).eval(), drawn(T, batch, C)
        want = by_hand(x, *net.linear.linear.parameters(), net.linear.delay, None)
        with torch.no_grad():
            assert torch.equal(net(x), want)
            with sc.carry_state(net):
                assert torch.equal(torch.cat([net(part) for part in x.split((2, 1, 6))]), want)


class TestState:
    """The last outputs, beside the neuron's state."""

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("sizes", [(4, 5), (2, 0, 7)])
    def test_parts_are_one_run(self, per, training, sizes):
        """Outputs, states and gradients, with parts shorter and longer than the longest delay."""
        net, x = made(per, sc.ALIF(backend="torch")).train(training), drawn(T, B, C).requires_grad_()
        whole, end = net.run(x)
        state, parts = None, []
        for part in x.split(sizes):
            out, state = net.run(part, state=state)
            parts.append(out)
        assert list(state) == ["v", "a", "feedback", "past"]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
        torch.testing.assert_close(state, end, rtol=1e-12, atol=1e-12)
        cotangent = drawn(T, B, C, seed=1)
        (found,) = torch.autograd.grad(torch.cat(parts), x, cotangent)
        torch.testing.assert_close(found, torch.autograd.grad(whole, x, cotangent)[0], rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("per", PER)
    def test_single_steps_and_carried_state(self, per):
        """Are one call; reset and the end of the block put zeros before the next."""
        net, single, x = made(per), made(per, step="single"), drawn(T, B, C)
        want = net(x)
        for _ in range(2):
            assert torch.equal(torch.stack([single(now) for now in x]), want)
            sc.reset(single)
            with sc.carry_state(net):
                assert torch.equal(torch.cat([net(part) for part in x.split(4)]), want)
        assert torch.equal(net(x), want)
        assert net.state is None


class TestSaid:
    """Warnings and errors."""

    def test_one_call_or_a_loop(self):
        """One call of whole delays of neurons; of others a loop, which says why."""
        net, x = made(), drawn(T, B, C)
        net(x)
        assert net.looped == "linear is Delay with a delay for each connection, and one call takes one for each neuron"
        with pytest.raises(sc.backend.Unsupported, match=r"in one call \(fused=True\): linear is Delay"):
            made(fused=True)(x)
        net = made("input")
        net(x)
        assert net.looped == "linear is Delay that learns its delays, and one call takes whole ones, as in eval()"
        for whole in (net.eval(), made("input", learn=(), fused=True)):
            whole(x)
            assert whole.looped == ""


test_refused = refusals.table(__file__, globals())
