"""What one call does: a neuron begins at rest, for any layout, number of steps, dtype and configuration."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch._dynamo.testing
from torch import nn

import spikecore as sc
from shell_nets import Block, grads, network, neurons, values
from spikecore.backend import UnknownBackend

T, B, C = 10, 3, 4


class TestMultiStep:
    """A call on a sequence."""

    def test_every_call_starts_at_rest(self):
        """The same input gives the same output, however often and whatever came between."""
        net, x = Block(), values(T, B, C)
        first = net(x)
        net(values(T + 3, B + 1, C, seed=1))
        assert torch.equal(net(x), first)
        assert all(neuron.state is None for neuron in neurons(net))

    def test_forgotten_reset_cannot_go_backward_twice(self):
        """Without any reset, training steps one after the other each have their own graph, and equal gradients."""
        net, x = network(), values(T, B, C).requires_grad_()
        first, second = grads(net, x), grads(net, x)
        torch.testing.assert_close(first, second, rtol=0, atol=0)

    def test_keeps_no_graph_alive(self):
        """After a call, dropping its output frees the graph; carried state holds it to the end of the block."""
        net = network()

        def call():
            x = values(T, B, C).requires_grad_()
            net(x)
            gc.collect()
            return weakref.ref(x)

        assert call()() is None
        with sc.carry_state(net):
            held = call()
            assert held() is not None
        gc.collect()
        assert held() is None

    @pytest.mark.parametrize("steps", [0, 1, 2, 16, 17, 40])
    def test_any_number_of_steps(self, steps):
        """No step, one, and more give outputs of that many steps, the first ones the same."""
        lif, x = sc.LIF(1.7), values(40, B)
        out, state, trace = lif.run(x[:steps], record=("v",))
        assert out.shape == trace["v"].shape == (steps, B)
        assert torch.equal(out, lif(x)[:steps])
        assert torch.equal(state["v"], trace["v"][-1] if steps else torch.zeros(B, dtype=torch.float64))

    @pytest.mark.parametrize("shape", [(T, 0), (T, 2, 0), (0, 0), (0,)])
    def test_nothing_in_nothing_out(self, shape):
        """No neurons, or no steps, give an empty result that still goes backward where there are steps."""
        x = torch.zeros(shape, requires_grad=True)
        out, state = sc.LIF(learn=("tau",)).run(x)
        assert out.shape == shape
        assert state["v"].shape == shape[1:]
        if shape[0]:
            out.sum().backward()
            assert x.grad.shape == shape

    def test_one_neuron_without_dimensions(self):
        """Input [T] is one neuron over time."""
        x = values(T)
        out, state, trace = sc.LIF(1.7).run(x, record=("v",))
        assert out.shape == trace["v"].shape == (T,)
        assert state["v"].shape == ()
        assert torch.equal(out, sc.LIF(1.7)(x.unsqueeze(1)).squeeze(1))
        single = sc.LIF(1.7, step="single")
        assert torch.equal(torch.stack([single(now) for now in x]), out)

    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x,
            lambda x: x.contiguous(memory_format=torch.channels_last_3d).transpose(0, 1),
            lambda x: x.transpose(0, 2),
            lambda x: x.flip(0)[::2],
            lambda x: x[:1].expand(T, -1, -1, -1, -1),
            lambda x: x[..., :1].expand(-1, -1, -1, -1, 3),
            lambda x: x.permute(4, 3, 2, 1, 0)[1:, ..., 1:],
        ],
        ids=[
            "as is",
            "channels last",
            "transposed",
            "every second",
            "expanded in time",
            "expanded in space",
            "permuted",
        ],
    )
    def test_any_layout(self, view):
        """Whatever the strides, values and gradients are those of a contiguous copy."""
        base = values(4, 3, 4, 2, 3).requires_grad_()
        lif, found, expected = sc.LIF(1.7), view(base), view(base).contiguous()
        assert torch.equal(lif(found), lif(expected))
        weights = values(*found.shape, seed=1)
        pair = [torch.autograd.grad((lif(x) * weights).sum(), base)[0] for x in (found, expected)]
        torch.testing.assert_close(*pair, rtol=1e-14, atol=1e-14)

    def test_input_is_left_alone(self):
        """A call writes neither to its input nor to a given state."""
        x, state = values(T, B), {"v": values(B, seed=1)}
        kept = copy.deepcopy((x, state))
        sc.LIF().run(x, state=state, record=("v",))
        torch.testing.assert_close((x, state), kept, rtol=0, atol=0)

    def test_eval_changes_no_gradient(self):
        """In eval mode values and gradients are those of train mode."""
        net, x = network(), values(T, B, C).requires_grad_()
        expected = grads(net.train(), x)
        torch.testing.assert_close(grads(net.eval(), x), expected, rtol=0, atol=0)
        assert torch.equal(net.eval()(x), net.train()(x))

    def test_without_grad(self):
        """Under no_grad and in inference mode values are the same, without a graph; training goes on afterwards."""
        net, x = network(), values(T, B, C).requires_grad_()
        expected = net(x)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                out = net(x)
            assert not out.requires_grad
            assert torch.equal(out, expected)
        assert net(x).requires_grad


class TestRun:
    """The functional core."""

    def test_reads_and_writes_nothing(self):
        """It takes no notice of what the neuron carries, and leaves none."""
        x, single = values(T, B), sc.LIF(1.7, step="single")
        single(x[0])
        kept = single.state["v"].clone()
        out, _ = single.run(x)
        assert torch.equal(out, sc.LIF(1.7)(x))
        assert torch.equal(single.state["v"], kept)
        multi = sc.LIF(1.7)
        with sc.carry_state(multi):
            multi.run(x)
            assert multi.state is None

    def test_continues_from_its_state(self):
        """Two runs, the state handed over, equal one."""
        x, lif = values(T, B), sc.Izhikevich(a=0.3, b=0.2)
        out, state = lif.run(x)
        first, middle = lif.run(x[:4])
        second, end = lif.run(x[4:], state=middle)
        assert torch.equal(torch.cat([first, second]), out)
        torch.testing.assert_close(end, state, rtol=0, atol=0)
        assert list(end) == ["v", "w"]

    def test_state_in_any_order_and_dtype(self):
        """A state is by name, and taken in any floating dtype."""
        x, neuron = values(T, B, dtype=torch.float32), sc.Izhikevich(a=0.3)
        v, w = values(B, seed=1), values(B, seed=2)
        expected, _ = neuron.run(x, state={"v": v.float(), "w": w.float()})
        assert torch.equal(neuron.run(x, state={"w": w, "v": v})[0], expected)

    def test_record(self):
        """``record`` gives the named states after every step, in the order asked for."""
        x, neuron = values(T, B), sc.Izhikevich(a=0.3, b=0.2)
        out, _, trace = neuron.run(x, record=("w", "v"))
        assert list(trace) == ["w", "v"]
        for t in range(T):
            _, after = neuron.run(x[: t + 1])
            torch.testing.assert_close({n: trace[n][t] for n in trace}, after, rtol=0, atol=0)
        assert torch.equal(out, neuron(x))
        assert list(neuron.run(x, record=["v"])[2]) == ["v"]
        assert len(neuron.run(x, record=())) == 2

    def test_gradient_is_that_of_finite_differences(self):
        """Between spikes, where everything is smooth, gradients to input, state and parameters pass gradcheck."""
        surrogate = sc.surrogate.Rectangular()  # no gradient far from the threshold
        neuron = sc.Izhikevich(threshold=100.0, a=0.3, learn=("tau", "v_c"), surrogate=surrogate).double()
        x, v, w = (0.1 * values(*shape, seed=i) for i, shape in enumerate([(5, 2), (2,), (2,)]))

        def function(x, v, w, *_):
            _, state, trace = neuron.run(x, state={"v": v, "w": w}, record=("v",))
            return state["v"], state["w"], trace["v"]

        wanted = [value.requires_grad_() for value in (x, v, w)]
        assert torch.autograd.gradcheck(function, (*wanted, neuron.tau, neuron.v_c))


class TestDtypes:
    """Arithmetic is float32, or float64 for float64; outputs have the input's dtype."""

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtypes(self, dtype):
        """Output, input gradient: the input's. State, trace: float32 or float64."""
        compute = torch.float64 if dtype == torch.float64 else torch.float32
        x = values(T, B, dtype=dtype).requires_grad_()
        out, state, trace = sc.LIF(1.7).run(x, record=("v",))
        assert (out.dtype, state["v"].dtype, trace["v"].dtype) == (dtype, compute, compute)
        out.sum().backward()
        assert x.grad.dtype == dtype
        single = sc.LIF(1.7, step="single")
        assert single(x[0]).dtype == dtype
        assert single.state["v"].dtype == compute
        assert sc.LIF(1.7).run(x[:0], record=("v",))[2]["v"].dtype == compute

    def test_one_neuron_takes_all_dtypes(self):
        """Calls in different dtypes do not get in each other's way."""
        lif = sc.LIF(1.7)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float32):
            x = values(T, B, dtype=dtype)
            out, state = lif.run(x)
            expected, end = sc.LIF(1.7).run(x)
            assert out.dtype == dtype
            torch.testing.assert_close((out, state), (expected, end), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_input_is_computed_in_float32(self, dtype):
        """Values and gradients are those of float32 on the same numbers, rounded once, at the border."""
        x = values(T, B, dtype=dtype)
        half, full = x.clone().requires_grad_(), x.float().requires_grad_()
        neuron = sc.LI(1.7)
        a, b = neuron(half), neuron(full)
        assert torch.equal(a, b.to(dtype))
        weights = values(T, B, seed=1, dtype=dtype)
        (a * weights).sum().backward()
        (b * weights.float()).sum().backward()
        assert torch.equal(half.grad, full.grad.to(dtype))

    def test_half_parameters_are_computed_in_float32(self):
        """A parameter in half precision is a rounded number, no more."""
        x = values(T, B, dtype=torch.float32)
        tau = torch.tensor(1.7).half()
        assert torch.equal(sc.LI(tau)(x), sc.LI(tau.float())(x))

    def test_a_half_net_runs_and_learns(self):
        """``net.half()`` on half input works forward and backward, parameter gradients in half."""
        net = network(dtype=torch.bfloat16)
        out = net(values(T, B, C, dtype=torch.bfloat16))
        out.sum().backward()
        assert net[1].tau.grad.dtype == out.dtype == torch.bfloat16

    def test_autocast(self):
        """Under autocast spikes have the layer's dtype, and state stays float32."""
        net = network("single", dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(values(B, C, dtype=torch.float32))
        assert out.dtype == torch.bfloat16
        assert net[1].state["v"].dtype == torch.float32
        out.sum().backward()
        assert net[0].weight.grad.dtype == torch.float32

    def test_dtype_may_change_between_steps(self):
        """Carried state follows the precision of the input."""
        lif = sc.LI(step="single")
        lif(torch.ones(2))
        assert lif(torch.ones(2, dtype=torch.float64)).tolist() == [0.75, 0.75]
        assert lif.state["v"].dtype == torch.float64


class TestConfiguration:
    """Attributes changed after use, and what a neuron says of itself."""

    x = values(T, B).requires_grad_()

    def result(self, neuron):
        """Spikes and input gradient."""
        out = neuron(self.x)
        return out, torch.autograd.grad(out.sum(), self.x)[0]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("surrogate", sc.surrogate.Sigmoid(alpha=1.0)),
            ("detach_reset", True),
            ("reset", "soft"),
            ("decay_input", False),
            ("tau", 3.0),
            ("tau", torch.tensor(3.0)),
            ("tau", torch.tensor([1.5, 2.5, 3.5])),
            ("tau", nn.Parameter(torch.tensor(3.0))),
            ("threshold", 0.5),
        ],
    )
    def test_change_takes_effect(self, name, value):
        """Set after a call, an attribute gives what it gives when set at construction."""
        lif = sc.LIF(1.7)
        before = self.result(lif)
        setattr(lif, name, value)
        after = self.result(lif)
        torch.testing.assert_close(after, self.result(sc.LIF(**{"tau": 1.7, name: value})), rtol=0, atol=0)
        assert not all(torch.equal(a, b) for a, b in zip(before, after))

    def test_training_in_place_takes_effect(self):
        """So does a parameter that an optimizer, or anybody, changes in place."""
        lif = sc.LIF(1.7, learn=("tau",)).double()
        lif(self.x)
        with torch.no_grad():
            lif.tau.fill_(3.0)
        assert torch.equal(lif(self.x), sc.LIF(3.0)(self.x))

    def test_repr_shows_choice_and_bound_backend(self):
        """Before a call the choice; after it also the backend that was bound, per device."""
        assert repr(sc.LIF(backend="torch")).endswith("backend=torch)")
        lif = sc.LIF()
        assert lif.extra_repr().endswith(", backend=auto")
        lif = sc.LIF(backend="torch")
        lif(self.x)
        lif(self.x.to("meta"))
        assert lif.extra_repr().endswith(", backend=torch (torch on cpu, torch on meta)")

    def test_repr_shows_parameters(self):
        """Numbers, learnt ones, tensors by shape, the reset, the surrogate, and what is not as usual."""
        text = repr(
            sc.LIF(2.5, threshold=torch.ones(4), learn=("tau",), reset="soft", detach_reset=True, step="single")
        )
        expected = "LIF(tau=2.5 (learnt), threshold=tensor[4], v_reset=0, reset='soft', decay_input=True, "
        assert text.startswith(expected + "surrogate=ATan(alpha=2.0), detach_reset=True, step='single', backend=")
        assert "reset_delay=False" in repr(sc.Leaky(0.9, reset_delay=False))

    def test_set_backend(self):
        """sc.set_backend asks in every neuron of the net, nested ones too; an unknown name is refused at once."""
        net = Block()
        net(self.x)
        sc.set_backend(net, "torch")
        assert [neuron.extra_repr().endswith("backend=torch from set_backend()") for neuron in neurons(net)] == [
            True
        ] * 3
        net(self.x)
        with pytest.raises(
            UnknownBackend, match=r"unknown backend 'troch' \(from set_backend\(\)\); did you mean 'torch'\?"
        ):
            sc.set_backend(net, "troch")
        assert all("backend=torch from set_backend() (torch on cpu)" in repr(neuron) for neuron in neurons(net))
        sc.set_backend(net, None)
        assert all(neuron.extra_repr().endswith("backend=auto") for neuron in neurons(net))
