"""Recurrent with a Delay: outputs that come back several steps later, against loops written by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._base.versions import COMPILES

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


class Fires(torch.autograd.Function):
    """The spike of LIF with its default surrogate."""

    @staticmethod
    def forward(ctx, u):
        """1 where u is not negative."""
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        """ATan(2)."""
        return grad / (1 + (torch.pi * ctx.saved_tensors[0]) ** 2)


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
        y = Fires.apply(h - 1)
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
    @pytest.mark.parametrize("batch", [1, LONGEST + 1, LONGEST + 2])
    def test_inference(self, per, batch):
        """Without gradients few samples are looked up."""
        net, x = made(per).eval(), drawn(T, batch, C)
        want = by_hand(x, *net.linear.linear.parameters(), net.linear.delay, None)
        with torch.no_grad():
            assert torch.equal(net(x), want)
            with sc.carry_state(net):
                assert torch.equal(torch.cat([net(part) for part in x.split((2, 1, 6))]), want)

    @pytest.mark.parametrize("per", PER)
    def test_gradients_by_finite_differences(self, per):
        """Through a neuron that does not fire, whose output is smooth in everything."""
        net, x = made(per, sc.LI(1.5, backend="torch")), drawn(5, 1, C).requires_grad_()
        names = ["linear.delay", "linear.sigma", "linear.linear.weight", "linear.linear.bias"]
        values = [net.get_parameter(name).detach().clone().requires_grad_() for name in names]

        def function(x, *values):
            return torch.func.functional_call(net, dict(zip(names, values)), (x,))

        assert torch.autograd.gradcheck(function, (x, *values))

    @pytest.mark.parametrize("per", PER)
    def test_a_delay_is_one_more_step(self, per):
        """A spike at step 1 comes back at step 1 + d + 1."""
        net = made(per, sc.LI(1.0), learn=())
        net.linear.delay = 2.0
        nn.init.eye_(net.linear.linear.weight)
        nn.init.zeros_(net.linear.linear.bias)
        x = torch.zeros(T, 1, C, dtype=torch.float64)
        x[1, 0, 2] = 1.0
        assert net(x)[:, 0, 2].tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0]

    def test_delays_of_zero_are_plain_feedback(self):
        """The bits of the loop without delays."""
        net, x = made(learn=()), drawn(T, B, C)
        net.linear.delay = 0.0
        torch.testing.assert_close(net(x), sc.Recurrent(net.neuron, net.linear.linear)(x), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("per", PER)
    def test_dtypes(self, dtype, per):
        """Outputs and what is kept of them have the input's dtype."""
        net, x = made(per, sc.LIF(), dtype), drawn(T, B, C, dtype=dtype).requires_grad_()
        net.linear.delay = 1.0
        out, state = net.run(x)
        assert (out.dtype, state["past"].dtype, state["v"].dtype) == (dtype, dtype, torch.float32)
        out.sum().backward()
        assert x.grad.dtype == dtype

    @pytest.mark.parametrize("per", PER)
    def test_autocast(self, per):
        """Products are 16-bit; sums over the lags are not, so that many small parts are not lost."""
        net, x = made(per, dtype=torch.float32, longest=200), torch.full((250, 1, C), 3.0)
        nn.init.constant_(net.linear.linear.weight, 1 / 64)
        nn.init.zeros_(net.linear.linear.bias)
        net.linear.sigma = 1000.0
        net.neuron = sc.LI(1.0)
        with torch.autocast("cpu", torch.bfloat16):
            found = net(x) - x
            with sc.carry_state(net):
                parts = torch.cat([net(part) - part for part in x.split((40, 210))])
        want = net(x) - x
        torch.testing.assert_close(found, want, rtol=0.01, atol=1e-4)
        torch.testing.assert_close(parts, want, rtol=0.01, atol=1e-4)


class TestState:
    """The last outputs, beside the neuron's state."""

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("sizes", [(4, 5), (1, 1, 7), (2, 0, 7), (1,) * T])
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

    def test_truncated(self):
        """After detach gradients end, and values go on."""
        net, x = made(step="single"), drawn(T, B, C).requires_grad_()
        outs = []
        for now in x:
            outs.append(net(now))
            sc.detach(net)
        assert torch.equal(torch.stack(outs), made()(x))
        (grad,) = torch.autograd.grad(outs[-1].sum(), x)
        assert grad[:-1].abs().max() == 0

    def test_no_steps(self):
        """The state stays, and is zero at rest."""
        net, x = made(), drawn(T, B, C)
        none, state = net.run(x[:0])
        assert none.shape == (0, B, C)
        assert torch.equal(state["past"], torch.zeros(B, C, LONGEST, dtype=torch.float64))
        _, state = net.run(x)
        _, same = net.run(x[:0], state=state)
        torch.testing.assert_close(same, state, rtol=0, atol=0)

    def test_backends_agree(self):
        """The loop over calls of another backend gives the same spikes."""
        net, x = made(), drawn(T, B, C)
        want = net(x)
        net.neuron.backend = "auto"
        assert torch.equal(net(x), want)


class TestSaid:
    """What is told, and what is refused."""

    def test_it_is_a_loop(self):
        """And says why."""
        net, x = made(), drawn(T, B, C)
        net(x)
        assert net.looped == "linear is Delay, and a loop keeps what outputs send to later steps"
        with pytest.raises(sc.Unsupported, match=r"in one call \(fused=True\): linear is Delay"):
            made(fused=True)(x)

    def test_refused(self):
        """Delays that the loop would not see, names that clash, states without a past."""
        delay = sc.Delay(nn.Linear(C, C), 3)
        with pytest.raises(ValueError, match="linear is Sequential with a Delay in it, which would take"):
            sc.Recurrent(sc.LIF(), nn.Sequential(delay, nn.Tanh()))
        with pytest.raises(ValueError, match="linear has step='single'; give the step mode to Recurrent"):
            sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(C, C), 3, step="single"))

        class Other(sc.Delay):
            def forward(self, x):
                return 2 * super().forward(x)

        with pytest.raises(TypeError, match="Other has a forward of its own, which would not be called"):
            sc.Recurrent(sc.LIF(), Other(nn.Linear(C, C), 3))

        class Past(sc.Neuron):
            states = {"past": 0.0}

            def dynamics(self, x, s, p):
                return x, {"past": x}

        with pytest.raises(ValueError, match="Past has a state 'past', as earlier outputs are called"):
            sc.Recurrent(Past(), delay)
        net = made()
        with pytest.raises(ValueError, match=r"Recurrent: state has \['feedback', 'v'\]; give past of the Delay"):
            net.run(drawn(T, B, C), state={"v": drawn(B, C), "feedback": drawn(B, C)})
        with pytest.raises(ValueError, match=r"Recurrent: linear gives shape \[2, 3\], one time step of the input has"):
            sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(C, 3), 3))(drawn(T, B, C, dtype=torch.float32))

    def test_a_linear_that_is_set_later_is_checked_as_well(self):
        """A container would call its Delay with a step, whose batch the Delay takes for time."""
        net = sc.Recurrent(sc.LIF(), nn.Linear(C, C))
        with pytest.raises(ValueError, match="linear is Sequential with a Delay in it, which would take the steps one"):
            net.linear = nn.Sequential(sc.Delay(nn.Linear(C, C), 3))
        with pytest.raises(ValueError, match="linear has step='single'; give the step mode to Recurrent"):
            net.linear = sc.Delay(nn.Linear(C, C), 3, step="single")

    @pytest.mark.parametrize(
        "watch",
        [
            lambda delay: delay.register_forward_hook(lambda *_: None),
            lambda delay: delay.register_full_backward_hook(lambda *_: None),
            lambda delay: delay.register_full_backward_pre_hook(lambda *_: None),
            lambda delay: setattr(delay, "forward", lambda x: x),
        ],
        ids=["forward", "backward", "before backward", "replaced"],
    )
    def test_what_watches_the_delay_is_refused(self, watch):
        net = made()
        watch(net.linear)
        with pytest.raises(RuntimeError, match="its Delay has hooks or a forward of its own, which nothing would call"):
            net(drawn(T, B, C))

    @pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
    def test_compiled_whole(self):
        """In one graph."""
        net, x = made(dtype=torch.float32), drawn(4, B, C, dtype=torch.float32)
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), net(x))

    def test_memory_for_backward(self):
        """Grows by a few steps per step, not by one for every lag."""
        net, sizes = made(longest=50, dtype=torch.float32), []
        for steps in (10, 20):
            kept = {}

            def keep(value, kept=kept):
                storage = value.untyped_storage()
                kept[storage.data_ptr()] = storage.nbytes()
                return value

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
                out = net(drawn(steps, B, C, dtype=torch.float32))
            sizes.append(sum(kept.values()))
            assert out.requires_grad
        per_step = (sizes[1] - sizes[0]) / 10 / (4 * B * C)
        assert per_step < 25


def test_numbers_are_whole():
    """Rounded delays give equal sums in any order where weights are multiples of a power of two."""
    net, x = made(learn=()), drawn(30, 3, C)
    with torch.no_grad():
        weight = np.round(net.linear.linear.weight.numpy() * 16) / 16
        net.linear.linear.weight.copy_(torch.from_numpy(weight))
        net.linear.linear.bias.zero_()
    single = made(learn=(), step="single")
    single.load_state_dict(net.state_dict())
    assert torch.equal(torch.stack([single(now) for now in x]), net(x))
