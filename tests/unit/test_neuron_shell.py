"""What a call does and what stays between calls: rest, state, carrying, copies, dtypes, layouts, errors."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore.backend import UnknownBackend
from spikecore_torch.backend import TorchBackend

T, B, C = 10, 3, 4
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def values(*shape, seed=0, dtype=torch.float64):
    """Normal values, now and then above threshold."""
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .mul(1.5)
        .add(0.7)
        .to(dtype)
    )


class Block(nn.Module):
    """A neuron two levels down, beside one in a list and one in a dict."""

    def __init__(self, step="multi"):
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(nn.Identity(), sc.LIF(1.7, step=step)))
        self.listed = nn.ModuleList([sc.Synaptic(step=step)])
        self.named = nn.ModuleDict({"last": sc.ALIF(step=step)})

    def forward(self, x):
        """All three, one after the other."""
        return self.named["last"](2 * self.listed[0](2 * self.inner(x)))


def neurons(net):
    """The neurons of a net."""
    return [module for module in net.modules() if isinstance(module, sc.Neuron)]


def network(step="multi", dtype=torch.float64):
    """Two layers of neurons that learn, always with the same weights."""
    torch.manual_seed(0)
    layers = [nn.Linear(C, 6), sc.LIF(1.7, learn=("tau",), step=step), nn.Linear(6, 2), sc.Leaky(0.9, step=step)]
    return nn.Sequential(*layers).to(dtype)


def grads(net, x):
    """Gradients of the summed output to input and parameters."""
    return torch.autograd.grad(net(x).sum(), [x, *net.parameters()])


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


class TestSingleStep:
    """A call on one step."""

    def test_carries_until_reset(self):
        """Calls in a row equal one multi-step call, and after sc.reset again."""
        x, net = values(T, B, C), Block(step="single")
        expected = Block()(x)
        for _ in range(2):
            assert torch.equal(torch.stack([net(now) for now in x]), expected)
            sc.reset(net)

    def test_gradient_flows_through_carried_state(self):
        """Without sc.detach, backpropagation reaches all steps since the last reset."""
        x = values(T, B, C).requires_grad_()
        net = network(step="single")
        stepwise = torch.autograd.grad(torch.stack([net(now) for now in x]).sum(), [x, *net.parameters()])
        torch.testing.assert_close(stepwise, grads(network(), x), rtol=1e-12, atol=1e-12)

    def test_state_is_readable(self):
        """``state`` has the values that the next call continues from; None at rest."""
        lif = sc.LIF(step="single")
        assert lif.state is None
        lif(torch.tensor([1.0, 5.0]))
        assert lif.state["v"].tolist() == [0.5, 0.0]

    def test_step_can_be_changed(self):
        """A neuron follows a change of its ``step``; back in multi-step mode what it carried plays no part."""
        x, neuron = values(T, B), sc.LI(1.7)
        expected = neuron(x)
        neuron.step = "single"
        assert torch.equal(torch.stack([neuron(now) for now in x]), expected)
        neuron.step = "multi"
        assert torch.equal(neuron(x), expected)
        with sc.carry_state(neuron):
            assert torch.equal(neuron(x), expected)


def partial_set_backend(net):
    sc.set_backend(net, "torch")


class TestResetAndDetach:
    """sc.reset and sc.detach."""

    def test_reset_reaches_this_net_only(self):
        """Every neuron inside, however nested, and none outside."""
        net, other = Block(step="single"), Block(step="single")
        both = nn.ModuleList([net, other])
        for one in both:
            one(values(B, C))
        sc.reset(net)
        assert [neuron.state is None for neuron in neurons(both)] == [True] * 3 + [False] * 3
        sc.reset(both)
        assert all(neuron.state is None for neuron in neurons(both))

    def test_reset_takes_a_neuron(self):
        """A neuron is a net of one."""
        lif = sc.LIF(step="single")
        lif(torch.ones(1))
        sc.reset(lif)
        assert lif.state is None

    def test_detach_keeps_values_and_cuts_the_graph(self):
        """In this net only: the values stay, gradient stops."""
        net, other = network("single"), network("single")
        x = values(B, C).requires_grad_()
        for one in (net, other):
            one(x)
        before = [neuron.state["v"].clone() for neuron in neurons(net)]
        sc.detach(net)
        assert not any(neuron.state["v"].requires_grad for neuron in neurons(net))
        assert all(neuron.state["v"].requires_grad for neuron in neurons(other))
        assert all(torch.equal(neuron.state["v"], v) for neuron, v in zip(neurons(net), before))

    @pytest.mark.parametrize("function", [sc.reset, sc.detach, lambda net: sc.carry_state(net).__enter__()])
    @pytest.mark.parametrize("net", [None, "net", [sc.LIF()], sc.LIF])
    def test_no_module(self, function, net):
        """Anything but a module is named."""
        with pytest.raises(TypeError, match=r"^net=.* is a \w+; give the network or neuron itself \(an nn\.Module\)$"):
            function(net)

    def test_net_without_neurons(self):
        """A net without neurons is the wrong one, or another library's: a warning names it, at the caller's line."""
        net = nn.Linear(1, 1)
        for function in (sc.reset, sc.detach, lambda net: sc.carry_state(net).__enter__(), partial_set_backend):
            with pytest.warns(UserWarning, match=r"^sc\.\w+: net=Linear\(.* has no spikecore neuron") as seen:
                function(net)
            assert [warning.filename for warning in seen] == [__file__]


class TestCarryState:
    """``with sc.carry_state(net)``."""

    def test_equals_one_long_call(self):
        """Chunks in a row, of any lengths, equal the whole."""
        net, x = Block(), values(T, B, C)
        with sc.carry_state(net):
            parts = [net(chunk) for chunk in x.split([1, 0, 5, 4])]
        assert torch.equal(torch.cat(parts), net(x))

    def test_gradient_flows_across_calls(self):
        """Backpropagation goes through the chunks to the first."""
        net, x = network(), values(T, B, C).requires_grad_()
        with sc.carry_state(net):
            out = torch.cat([net(chunk) for chunk in x.split(4)])
        found = torch.autograd.grad(out.sum(), [x, *net.parameters()])
        torch.testing.assert_close(found, grads(net, x), rtol=1e-12, atol=1e-12)

    def test_truncated_backpropagation(self):
        """With sc.detach between chunks each has its own backward pass, from the state as a constant."""
        net, x = network(), values(T, B, C)
        first, second = (chunk.clone().requires_grad_() for chunk in x.split(5))
        with sc.carry_state(net):
            net(first).sum().backward()
            sc.detach(net)
            net(second).sum().backward()
        hand = network()
        with torch.no_grad():
            middle = hand[0](first)
            spikes, lif_state = hand[1].run(middle)
            _, leaky_state = hand[3].run(hand[2](spikes))
        again = second.detach().requires_grad_()
        spikes, _ = hand[1].run(hand[0](again), state=lif_state)
        hand[3].run(hand[2](spikes), state=leaky_state)[0].sum().backward()
        torch.testing.assert_close(second.grad, again.grad, rtol=1e-12, atol=1e-12)

    def test_starts_at_rest_and_leaves_nothing(self):
        """The first call in a block starts at rest, and after it so does every call."""
        net, x = Block(), values(T, B, C)
        expected = net(x)
        for _ in range(2):
            with sc.carry_state(net):
                assert torch.equal(net(x), expected)
                assert all(neuron.state is not None for neuron in neurons(net))
            assert all(neuron.state is None for neuron in neurons(net))
        assert torch.equal(net(x), expected)

    def test_blocks_nest(self):
        """The outermost block counts: an inner one, of the net or of a part, neither resets nor ends it."""
        net, x = Block(), values(T, B, C)
        with sc.carry_state(net):
            first = net(x[:3])
            with sc.carry_state(net.inner), sc.carry_state(net):
                second = net(x[3:6])
            third = net(x[6:])
        assert torch.equal(torch.cat([first, second, third]), net(x))

    def test_of_a_part(self):
        """Around a part, the rest of the net still starts at rest."""
        net, x = nn.Sequential(sc.LIF(1.7), sc.LIF(1.7)), values(T, B) + 1
        with sc.carry_state(net[0]):
            parts = torch.cat([net(chunk) for chunk in x.split(5)])
        expected = torch.cat([net[1](chunk) for chunk in net[0](x).split(5)])
        assert torch.equal(parts, expected)

    def test_exception_inside(self):
        """An exception ends the block as leaving it does."""
        net, x = Block(), values(T, B, C)
        expected = net(x)

        def fail():
            with sc.carry_state(net):
                net(x)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert not any(neuron.continues or neuron.state for neuron in neurons(net))
        assert torch.equal(net(x), expected)

    def test_reset_inside(self):
        """sc.reset starts a new sequence, and a new batch shape, within the block."""
        net, x = Block(), values(T, B, C)
        with sc.carry_state(net):
            net(x)
            sc.reset(net)
            assert torch.equal(net(x[:, :1]), Block()(x[:, :1]))

    def test_single_step_neurons_keep_theirs(self):
        """What a single-step neuron carries is neither cleared nor dropped by a block."""
        lif = sc.LIF(step="single")
        lif(torch.tensor([1.0]))
        with sc.carry_state(lif):
            lif(torch.tensor([1.0]))
        assert lif.state["v"].tolist() == [0.75]

    def test_copy_made_inside_is_not_inside(self):
        """A copy taken in the block starts at rest, in the block and after."""
        lif, x = sc.LIF(1.7), values(T, B)
        expected = lif(x)
        with sc.carry_state(lif):
            lif(x)
            for twin in (copy.deepcopy(lif), pickle.loads(pickle.dumps(lif))):
                assert twin.state is None
                assert not twin.continues
                assert torch.equal(twin(x), expected)
                assert torch.equal(twin(x), expected)

    def test_changed_batch(self):
        """Another batch shape on carried state is an error that says sc.reset; the state stays as it was."""
        for net, shape in ((sc.LIF(), (T, 2)), (sc.LIF(step="single"), (2,))):
            with sc.carry_state(net):
                net(values(*shape))
                kept = net.state["v"].clone()
                message = (
                    r"^LIF: the state carried from the last call has v of shape \[2\], one time step of the input has "
                    r"\[3\]; call sc\.reset\(net\) between sequences of different batches$"
                )
                with pytest.raises(ValueError, match=message):
                    net(values(*shape[:-1], 3))
                assert torch.equal(net.state["v"], kept)
                sc.reset(net)
                assert net(values(*shape[:-1], 3)).shape[-1] == 3

    def test_changed_device(self):
        """So is another device."""
        lif = sc.LIF(step="single")
        lif(torch.zeros(2))
        with pytest.raises(
            ValueError, match=r"carried from the last call has v on cpu, the input is on meta; call sc\.reset"
        ):
            lif(torch.zeros(2, device="meta"))


class TestPlaces:
    """Where state is, and what it survives."""

    def stateful(self):
        """A single-step net with state."""
        net = network(step="single")
        net(values(B, C).requires_grad_())
        return net

    def test_is_no_buffer_and_in_no_state_dict(self):
        """state_dict and buffers have what is learnt or given, never state."""
        net = self.stateful()
        assert sorted(net.state_dict()) == ["0.bias", "0.weight", "1.tau", "2.bias", "2.weight"]
        assert list(net.buffers()) == []
        assert list(sc.LIF(step="single").state_dict()) == []

    def test_loading_leaves_it_alone(self):
        """load_state_dict changes parameters only."""
        net = self.stateful()
        before = net[1].state["v"].clone()
        net.load_state_dict(network().state_dict())
        assert torch.equal(net[1].state["v"], before)

    @pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
    def test_survives_copies(self, how):
        """A copy has the values without the graph, goes on alike, and is independent."""
        net = self.stateful()
        if how == "deepcopy":
            twin = copy.deepcopy(net)
        elif how == "pickle":
            twin = pickle.loads(pickle.dumps(net))
        else:
            file = io.BytesIO()
            torch.save(net, file)
            file.seek(0)
            options = {} if torch.__version__ < "2.1" else {"weights_only": False}
            twin = torch.load(file, **options)
        for mine, theirs in zip(neurons(net), neurons(twin)):
            assert torch.equal(mine.state["v"], theirs.state["v"])
            assert mine.state["v"].requires_grad
            assert not theirs.state["v"].requires_grad
        x = values(B, C, seed=1)
        assert torch.equal(net(x), twin(x))
        sc.reset(twin)
        assert net[1].state is not None
        assert repr(twin[1]) == repr(net[1])

    def test_copy_of_a_used_neuron_computes(self):
        """Bound backends and compiled programs are found anew in a copy."""
        lif, x = (
            sc.LIF(1.7, surrogate=sc.surrogate.Erf(), detach_reset=True, channel_dim=-1, backend="torch"),
            values(T, B),
        )
        expected = lif(x)
        twin = pickle.loads(pickle.dumps(lif))
        assert torch.equal(twin(x), expected)
        assert twin.extra_repr() == lif.extra_repr()
        assert twin.channel_dim == -1

    def test_moves_with_the_net(self):
        """``.to(device)`` takes the state along."""
        lif = sc.LIF(torch.tensor(1.7), step="single")
        lif(torch.ones(2))
        lif.to("meta")
        assert lif.state["v"].device.type == "meta"
        assert lif(torch.ones(2, device="meta")).device.type == "meta"

    @pytest.mark.parametrize("convert", [lambda n: n.half(), lambda n: n.to(torch.bfloat16), lambda n: n.double()])
    def test_keeps_its_dtype_and_every_bit(self, convert):
        """Turning the parameters into another dtype leaves the state's as it is, and its values exact."""
        lif = sc.LIF(1.7, learn=("tau",), step="single")
        lif(torch.full((2,), 1 / 3))
        before = lif.state["v"]
        convert(lif)
        assert lif.tau.dtype != torch.float32
        assert lif.state["v"].dtype == torch.float32
        assert torch.equal(lif.state["v"], before)

    def test_moving_keeps_the_graph(self):
        """A conversion between two steps does not cut backpropagation."""
        neuron, x = sc.LI(step="single"), torch.ones(2, requires_grad=True)
        neuron(x)
        neuron.half()
        neuron.state["v"].sum().backward()
        assert x.grad.tolist() == [0.5, 0.5]


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


class TestTogetherWithTorch:
    """What PyTorch does around modules."""

    def test_checkpoint(self):
        """Under torch.utils.checkpoint gradients are the same."""
        net, x = network(), values(T, B, C).requires_grad_()
        found = torch.autograd.grad(checkpoint(net, x, use_reentrant=False).sum(), [x, *net.parameters()])
        torch.testing.assert_close(found, grads(net, x), rtol=0, atol=0)

    def test_threads(self):
        """One neuron called from many threads at once, the first time for all of them, gives each its own result."""
        lif = sc.LIF(1.7)
        xs = [values(T + i % 3, B, seed=i).requires_grad_() for i in range(12)]
        expected = [torch.autograd.grad(sc.LIF(1.7)(x).sum(), x)[0] for x in xs]
        found, barrier = [None] * len(xs), threading.Barrier(len(xs))

        def work(i):
            barrier.wait()
            found[i] = torch.autograd.grad(lif(xs[i]).sum(), xs[i])[0]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    def test_functional_transforms(self):
        """torch.func: grad equals backward, vmap over the batch equals the batch, both together too."""
        lif, x = sc.LIF(1.7), values(T, B, C)

        def loss(x):
            return (lif(x) * torch.arange(T).view(T, *[1] * (x.ndim - 1))).sum()

        wanted = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(wanted), wanted)
        assert torch.equal(torch.func.vmap(lif, in_dims=1, out_dims=1)(x), lif(x))
        torch.testing.assert_close(torch.func.grad(loss)(x), expected)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss), in_dims=1, out_dims=1)(x), expected)

    def test_functional_call(self):
        """torch.func.functional_call runs it with other parameters, with a gradient to them."""
        lif, x, tau = sc.LIF(1.7, learn=("tau",)), values(T, B), torch.tensor(3.0, requires_grad=True)
        out = torch.func.functional_call(lif, {"tau": tau}, (x,))
        assert torch.equal(out, sc.LIF(3.0)(x))
        out.sum().backward()
        assert tau.grad != 0
        assert lif.tau.grad is None

    def test_parametrization(self):
        """torch.nn.utils.parametrize keeps a time constant above zero, and learns through it."""
        lif, x = sc.LIF(3.0, learn=("tau",)), values(T, B)
        nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus(), unsafe=True)
        lif(x).sum().backward()
        assert lif.parametrizations.tau.original.grad != 0
        assert torch.equal(lif(x), sc.LIF(nn.functional.softplus(torch.tensor(3.0)))(x))

    def test_second_derivative(self):
        """The gradient has a gradient: that of the surrogate, as in a loop by hand, to input and parameters."""

        class Bell(torch.autograd.Function):
            @staticmethod
            def forward(ctx, u):
                ctx.save_for_backward(u)
                return (u >= 0).to(u.dtype)

            @staticmethod
            def backward(ctx, grad):
                (u,) = ctx.saved_tensors
                return grad * 2 / torch.pi**0.5 * torch.exp(-4 * u * u)

        def by_hand(x):
            v, out = torch.zeros(B, dtype=x.dtype), []
            for now in x:
                h = v + (now - v) / lif.tau
                z = Bell.apply(h - 1)
                v = h * (1 - z)
                out.append(z)
            return torch.stack(out)

        lif = sc.LIF(1.7, surrogate=sc.surrogate.Erf(), learn=("tau",)).double()
        x = values(5, B).requires_grad_()

        def second(net):
            first = torch.autograd.grad(net(x).sum(), [x, lif.tau], create_graph=True)
            return torch.autograd.grad(sum(grad.square().sum() for grad in first), [x, lif.tau])

        torch.testing.assert_close(second(lif), second(by_hand), rtol=1e-11, atol=1e-11)

    def test_second_derivative_is_that_of_finite_differences(self):
        """For one step, where no reset follows, it passes gradgradcheck."""
        lif = sc.LIF(1.7, surrogate=sc.surrogate.Erf())
        assert torch.autograd.gradgradcheck(lif, values(1, 6).requires_grad_())

    # torch.compile makes an object of every autograd.Function it meets, of which torch itself warns
    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compile_after_a_call(self, backend):
        """Called once before, a net compiles in one graph; values and gradients are the same.

        Old versions of torch break the graph, and compile what lies between.
        """
        net, x = nn.Sequential(sc.LIF(1.7, learn=("tau",)), sc.Leaky(0.9)), values(3, B, dtype=torch.float32)
        x.requires_grad_()
        expected = grads(net, x)
        fullgraph = TORCH >= (2, 6)
        torch._dynamo.reset()
        compiled = torch.compile(net, backend=backend, fullgraph=fullgraph)
        assert torch.equal(compiled(x), net(x))
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), [x, *net.parameters()]), expected)

    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
    @pytest.mark.skipif(TORCH < (2, 6), reason="older versions of Dynamo cannot look through a neuron in one graph")
    def test_compile_cold(self):
        """A net that was never called compiles in one graph; a later change of a neuron's definition is seen."""
        net, x = nn.Sequential(sc.LIF(1.7, learn=("tau",))), values(3, B, dtype=torch.float32)
        torch._dynamo.reset()
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        found = torch.autograd.grad(compiled(x).sum(), net.parameters())
        torch.testing.assert_close(found, torch.autograd.grad(net(x).sum(), net.parameters()))
        net[0].reset = "soft"
        assert torch.equal(compiled(x), net(x))
        assert not torch.equal(net(x), sc.LIF(1.7)(x))

    def test_no_steps_are_differentiable(self):
        """The output of a call without steps has a graph, and an empty gradient."""
        x = values(0, B).requires_grad_()
        sc.LIF()(x).sum().backward()
        assert x.grad.shape == (0, B)

    def test_meta_device(self):
        """Shapes and dtypes can be had without computing."""
        net = network().to("meta")
        out = net(torch.empty(T, B, C, dtype=torch.float64, device="meta"))
        assert (out.shape, out.device.type) == ((T, B, 2), "meta")

    def test_hooks_and_train_mode(self):
        """Forward hooks and train() and eval() work as on any module, and a change of mode compiles nothing anew."""
        lif, seen = sc.LIF(), []
        lif.register_forward_hook(lambda module, args, out: seen.append(out.shape))
        lif(values(T, B))
        program = lif.program
        lif.eval()
        lif(values(T, B))
        assert seen == [(T, B)] * 2
        assert lif.program is program


class Pair(sc.Neuron):
    """Two inputs, no state."""

    inputs = ("x", "gate")

    def dynamics(self, x, s, p):
        """The sum."""
        return x.x + x.gate, {}


class TestSetLater:
    """Configuration is checked whenever it is set, not in constructors only."""

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("reset", "bogus", "LIF: reset='bogus' must be one of 'hard', 'soft', 'none'"),
            ("step", "x", "LIF: step='x' must be 'multi'"),
            ("decay_input", 1, "LIF: decay_input=1 must be True or False"),
            ("detach_reset", None, "LIF: detach_reset=None must be True or False"),
            ("surrogate", "ATan", "LIF: surrogate='ATan' must be a spikecore.surrogate.Surrogate"),
            ("channel_dim", 1.0, "LIF: channel_dim=1.0 must be a whole number"),
            ("tau", "2", "LIF: tau='2' must be a number or a floating-point tensor"),
        ],
    )
    def test_a_wrong_value_is_refused(self, name, value, text):
        """The sentence is the constructor's, and the old value stays."""
        lif = sc.LIF()
        before = getattr(lif, name)
        with pytest.raises((TypeError, ValueError)) as caught:
            setattr(lif, name, value)
        assert str(caught.value).startswith(text)
        assert getattr(lif, name) == before

    @pytest.mark.parametrize("value", [0.0, -1.0, torch.tensor([1.0, 0.0])])
    def test_a_time_constant_stays_in_its_range(self, value):
        """What the constructor refuses, an assignment refuses, too."""
        with pytest.raises(ValueError, match="LIF: tau=.* must be at least 1"):
            sc.LIF().tau = value

    def test_a_number_fills_a_tensor(self):
        """A number set on a learnt or tensor parameter fills it in place; the optimiser's object stays."""
        lif = sc.LIF(torch.full((C,), 2.0), threshold=torch.ones(C), learn=("tau",))
        held = lif.tau
        lif.tau, lif.threshold = 3.0, 0.5
        assert lif.tau is held
        assert lif.tau.tolist() == [3.0] * C
        assert lif.threshold.tolist() == [0.5] * C

    def test_the_backend_is_an_attribute(self):
        """Read, it is what was asked for; set, it asks; an unknown name is refused at once."""
        lif = sc.LIF(backend="torch")
        lif.backend = None
        assert lif.backend is None
        with pytest.raises(sc.UnknownBackend, match="that is a device"):
            lif.backend = "gpu"

    def test_a_surrogate_in_use_never_changes(self):
        """A surrogate with plain attributes cannot be changed behind the program; a new one takes effect."""

        class Plain(sc.Surrogate):
            def __init__(self, k):
                self.k = k

            def derivative(self, u):
                return self.k / (1.0 + u * u)

        first = Plain(1.0)
        lif, x = sc.LIF(surrogate=first), values(3, B).requires_grad_()
        (before,) = torch.autograd.grad(lif(x)[0].sum(), x)
        with pytest.raises(AttributeError, match=r"Plain.k cannot change, .*: neuron.surrogate = \.\.\."):
            first.k = 2.0
        lif.surrogate = Plain(2.0)
        (after,) = torch.autograd.grad(lif(x)[0].sum(), x)
        torch.testing.assert_close(after, 2 * before)

    def test_a_misspelt_keyword_is_recognised(self):
        """The hint knows parameters and configuration of the class and its bases."""
        with pytest.raises(TypeError, match=r"LIF has no parameter 'resett'; did you mean 'reset'\?"):
            sc.LIF(resett="soft")
        with pytest.raises(TypeError, match=r"KLIF has no parameter 'decay_inputs'; did you mean 'decay_input'\?"):
            sc.KLIF(decay_inputs=True)


class TestWrongArguments:
    """Each is an error that names the argument, its value, and what would be right."""

    @pytest.mark.parametrize("step", ["Multi", None, 1])
    def test_step(self, step):
        """A step mode that is none."""
        message = rf"^LIF: step={step!r} must be 'multi' \(input \[T, \*N\]\) or 'single' \(input \[\*N\]\)$"
        with pytest.raises(ValueError, match=message):
            sc.LIF(step=step)

    def test_unknown_keyword(self):
        """A keyword that no neuron has: the close one, and all there are."""
        message = (
            r"^LIF has no parameter 'thresold'; did you mean 'threshold'\? Parameters: tau, threshold, v_reset; "
            "every neuron takes: surrogate, detach_reset, learn, channel_dim, step, backend, bounds$"
        )
        with pytest.raises(TypeError, match=message):
            sc.LIF(thresold=1.0)
        with pytest.raises(TypeError, match=r"^IF has no parameter 'surogate'; did you mean 'surrogate'\?"):
            sc.IF(surogate=sc.surrogate.ATan())
        with pytest.raises(TypeError, match=r"^IF has no parameter 'zzz'; Parameters: threshold, v_reset;"):
            sc.IF(zzz=1.0)
        with pytest.raises(TypeError, match=r"^Pair has no parameter 'tau'; Parameters: none;"):
            Pair(tau=1.0)

    @pytest.mark.parametrize("value", ["1", 1.0, None, True])
    def test_channel_dim(self, value):
        """A dimension is a whole number."""
        with pytest.raises(TypeError, match=f"^LIF: channel_dim={value!r} must be a whole number$"):
            sc.LIF(channel_dim=value)

    @pytest.mark.parametrize("value", ["tau", None, True, 1])
    def test_learn_is_a_tuple(self, value):
        """A name alone, or no names."""
        with pytest.raises(
            TypeError, match=rf"^LIF: learn={value!r} must be a tuple of parameter names, such as learn=\("
        ):
            sc.LIF(learn=value)

    def test_learn_names_parameters(self):
        """A name that is no parameter, with those there are."""
        with pytest.raises(
            ValueError, match="^LIF: learn names 'beta', which is no parameter; parameters: tau, thresho"
        ):
            sc.LIF(learn=("tau", "beta"))

    @pytest.mark.parametrize("value", [1, True, object])
    def test_backend(self, value):
        """A backend is asked for by name."""
        with pytest.raises(TypeError, match="^backend must be a backend's name, 'auto' or None, got"):
            sc.LIF(backend=value)
        with pytest.raises(TypeError, match=r"^backend=.* must be a backend's name, 'auto' or None$"):
            sc.set_backend(sc.LIF(), value)

    @pytest.mark.parametrize("name", ["", " "])
    def test_an_empty_backend(self, name):
        """Names nobody, and is no way to ask for none: with argument, value, who asked, and the way out."""
        net = nn.Sequential(sc.LIF(backend="torch"))
        text = r"{}='{}' \(from {}\) is no backend's name; None leaves the choice to context, environment and auto"
        for argument, source, give in (
            ("backend", "argument", lambda: sc.LIF(backend=name)),
            ("backend", r"set_backend\(\)", lambda: sc.set_backend(net, name)),
            ("name", r"use_backend\(\)", lambda: sc.use_backend(name)),
            ("backend", r"inference_model\(\)", lambda: sc.inference_model(net, backend=name)),
        ):
            with pytest.raises(UnknownBackend, match=text.format(argument, name, source)):
                give()
        assert net[0].backend == "torch"

    def test_unknown_backend(self):
        """A name nobody has is refused when it is given, with who asked."""
        with pytest.raises(UnknownBackend, match=r"^unknown backend 'tpu' \(from argument\); .*Known: .*torch"):
            sc.LIF(backend="tpu")

    def test_record_is_a_tuple(self):
        """A name alone, or no names."""
        with pytest.raises(TypeError, match=r"^LIF: record='v' must be a tuple of state names; write record=\('v',\)$"):
            sc.LIF().run(torch.zeros(1, 1), record="v")
        for value in (None, True, 1):
            with pytest.raises(
                TypeError, match=rf"^LIF: record={value} must be a tuple of state names, \(\) for none$"
            ):
                sc.LIF().run(torch.zeros(1, 1), record=value)

    def test_record_names_states(self):
        """A name that is no state, with those there are."""
        with pytest.raises(ValueError, match="^ALIF: record names 'u', which is no state; states: v, a$"):
            sc.ALIF().run(torch.zeros(1, 1), record=("v", "u"))
        with pytest.raises(ValueError, match="^Pair: record names 'v', which is no state; states: none$"):
            Pair().run(torch.zeros(1, 1), torch.zeros(1, 1), record=("v",))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.complex64])
    def test_input_dtype(self, dtype):
        """Input that is not floating-point, with the conversion to write."""
        message = rf"^LIF: x has dtype {dtype}; give floating-point input, e\.g\. x\.float\(\)$"
        with pytest.raises(TypeError, match=message):
            sc.LIF()(torch.zeros(2, 2, dtype=dtype))

    @pytest.mark.parametrize("step", ["multi", "single"])
    @pytest.mark.parametrize("value", [[1.0], 1.0, None, values(2).numpy()])
    def test_input_type(self, value, step):
        """Input that is no tensor."""
        with pytest.raises(TypeError, match=f"^LIF: x is a {type(value).__name__}; give a tensor$"):
            sc.LIF(step=step)(value)

    def test_input_without_time(self):
        """A multi-step call needs time."""
        with pytest.raises(
            ValueError, match=r"^LIF: x has no dimensions; a multi-step call takes \[T, \*N\], T time steps"
        ):
            sc.LIF()(torch.tensor(1.0))

    def test_number_of_inputs(self):
        """Too many, or too few; a state beside the input is what one meant."""
        x = torch.zeros(2, 2)
        with pytest.raises(
            TypeError, match=r"^LIF takes 1 input \(x\), got 2; a state is given as run\(\.\.\., state=\.\.\.\)$"
        ):
            sc.LIF()(x, x)
        with pytest.raises(TypeError, match=r"^LIF takes 1 input \(x\), got 0;"):
            sc.LIF()()
        with pytest.raises(TypeError, match=r"^Pair takes 2 inputs \(x, gate\), got 1;"):
            Pair().run(x)

    def test_inputs_of_two_shapes(self):
        """Inputs are not broadcast against each other."""
        message = r"^Pair: gate has shape \[2, 1\] and x has \[2, 3\]; all inputs have one shape$"
        with pytest.raises(ValueError, match=message):
            Pair()(torch.zeros(2, 3), torch.zeros(2, 1))

    def test_inputs_on_two_devices(self):
        """Nor moved."""
        with pytest.raises(ValueError, match="^Pair: gate is on meta and x is on cpu; move one of them$"):
            Pair()(torch.zeros(2), torch.zeros(2, device="meta"))

    def test_parameter_on_another_device(self):
        """A neuron that was not moved, with the call that moves it."""
        message = r"^LIF: tau is on cpu and the input is on meta; move the neuron with \.to\('meta'\)$"
        with pytest.raises(ValueError, match=message):
            sc.LIF(learn=("tau",))(torch.zeros(2, 2, device="meta"))

    @pytest.mark.parametrize(
        ("state", "error", "text"),
        [
            (torch.zeros(2), TypeError, "state is a Tensor; give a dict with v, a, or None for rest"),
            ((1, 2), TypeError, "state is a tuple; give a dict with v, a, or None for rest"),
            ({"v": torch.zeros(2)}, ValueError, r"state has \['v'\]; give a value for each of v, a and no other"),
            ({}, ValueError, r"state has \[\]; give a value for each of v, a"),
            ({n: torch.zeros(2) for n in "vab"}, ValueError, r"state has \['a', 'b', 'v'\]; give a value for each"),
            ({"v": 0.0, "a": torch.zeros(2)}, TypeError, "state has v=0.0; give a floating-point tensor"),
            (
                {"v": torch.zeros(2, 99).long(), "a": None},
                TypeError,
                r"state has v=tensor.{60,80}\.\.\.; give a floating",
            ),
            ({"v": torch.zeros(2), "a": None}, TypeError, "state has a=None; give a floating-point tensor"),
            (
                {"v": torch.zeros(2).int(), "a": torch.zeros(2)},
                TypeError,
                r"state has v=.*; give a floating-point tensor",
            ),
            (
                {"v": torch.zeros(2), "a": torch.zeros(1)},
                ValueError,
                r"state has a of shape \[1\], one time step of the input has \[2\]; give it one time step's shape",
            ),
            (
                {"v": torch.zeros(3, 2), "a": torch.zeros(2)},
                ValueError,
                r"state has v of shape \[3, 2\], one time step of the input has \[2\]",
            ),
            (
                {"v": torch.zeros(2, device="meta"), "a": torch.zeros(2)},
                ValueError,
                "state has v on meta, the input is on cpu; give it one time step's shape and the input's device",
            ),
        ],
    )
    def test_state(self, state, error, text):
        """A state of a wrong kind, with wrong names, of a wrong shape, on a wrong device."""
        with pytest.raises(error, match=f"^ALIF: {text}"):
            sc.ALIF().run(torch.zeros(3, 2), state=state)

    def test_a_failed_call_changes_nothing(self):
        """After an error the neuron carries what it carried."""
        lif = sc.LIF(step="single")
        lif(torch.ones(2))
        for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(3), "x"):
            with pytest.raises((TypeError, ValueError)):
                lif(wrong)
        assert lif.state["v"].tolist() == [0.5, 0.5]


class Choosing(sc.Neuron):
    """Uses one of two parameters, so that two of a kind have different programs."""

    states = {"v": 0.0}
    params = {"a": 1.0, "b": 10.0}

    def __init__(self, which, **options):
        super().__init__(**options)
        self.which = which

    def dynamics(self, x, s, p):
        v = x * (p.a if self.which == "a" else p.b)
        return v, {"v": v}


class TestDerived:
    """What is derived from a definition belongs to it and to nothing else."""

    @pytest.mark.skipif(TORCH < (2, 6), reason="older versions of Dynamo cannot look through a neuron in one graph")
    @pytest.mark.parametrize("warm", [True, False])
    def test_compiled_neurons_do_not_mix(self, warm):
        """Two neurons of one class, each compiled by itself, read each its own parameter."""
        torch._dynamo.reset()
        x = torch.rand(3, 4)
        for which, factor in (("a", 1.0), ("b", 10.0)):
            neuron = Choosing(which)
            if warm:
                neuron(x)
            assert torch.equal(torch.compile(neuron, backend="eager", fullgraph=True)(x), x * factor)

    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
    @pytest.mark.skipif(TORCH < (2, 6), reason="older versions of Dynamo cannot look through a neuron in one graph")
    def test_warm_neurons_of_one_program_compile_once(self):
        """Twenty equal layers compiled one by one share one compilation."""
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        x = torch.rand(3, 4)
        for _ in range(20):
            lif = sc.LIF()
            lif(x)
            torch.compile(lif, backend=counter, fullgraph=True)(x)
        assert counter.frame_count == 1

    def test_threads_with_different_calls(self, monkeypatch):
        """Threads that meet a new neuron with different dtypes at once each get their own runner, now and later."""
        compile_ = TorchBackend.compile

        def slow(self, program, spec):
            barrier.wait(timeout=10)
            return compile_(self, program, spec)

        monkeypatch.setattr(TorchBackend, "compile", slow)
        monkeypatch.setattr(TorchBackend, "runner", lambda self, program, spec: self.compile(program, spec))
        dtypes = (torch.float32, torch.float64)
        for _ in range(5):
            lif, barrier = sc.IF(), threading.Barrier(2)
            with ThreadPoolExecutor(2) as pool:
                seen = list(pool.map(lambda dtype, lif=lif: lif(torch.rand(3, 2, dtype=dtype)).dtype, dtypes))
            assert seen == list(dtypes)
            assert [lif(torch.rand(3, 2, dtype=dtype)).dtype for dtype in dtypes] == list(dtypes)

    def test_a_hook_may_keep_what_it_sees(self):
        """An attribute that the definition cannot have read leaves the program alone; one that it read renews it."""
        neuron, x = Choosing("a"), torch.rand(3, 4)
        neuron.register_forward_hook(lambda module, args, out: setattr(module, "last", out))
        neuron(x)
        program = neuron.program
        neuron(x)
        assert neuron.program is program
        neuron.which = "b"
        assert torch.equal(neuron(x), x * 10.0)

    def test_nothing_of_it_is_saved(self):
        """A checkpoint's metadata are those of any module, however often the neuron changed."""
        lif = sc.LIF()
        lif.reset = "soft"
        assert lif.state_dict()._metadata == nn.Identity().state_dict()._metadata

    def test_a_used_parametrized_neuron_is_copied(self):
        """deepcopy of a neuron whose parameter is parametrized works after a call, and the copy computes the same."""
        lif, x = sc.LIF(learn=("tau",)), torch.rand(3, 4)
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus())
        expected = lif(x)
        assert torch.equal(copy.deepcopy(lif)(x), expected)

    def test_a_parametrized_neuron_with_state_is_copied(self):
        """The copy has the values of a single-step state without its graph, and the original keeps its own."""
        lif, x = sc.LIF(learn=("tau",), step="single", threshold=0.4), values(3, B, C).requires_grad_()
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus())
        lif(x[0])
        made = copy.deepcopy(nn.Sequential(lif))[0]
        assert not made.state["v"].requires_grad
        assert lif.state["v"].requires_grad
        assert made.parametrizations.tau.original is not lif.parametrizations.tau.original
        for x_t in x[1:]:
            assert torch.equal(made(x_t), lif(x_t))
        with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
            pickle.dumps(lif)

    def test_a_parametrized_parameter_is_set(self):
        """A number or a tensor goes through right_inverse, as for any module of torch; without one it raises."""

        class Exp(nn.Module):
            def forward(self, x):
                return x.exp()

            def right_inverse(self, value):
                return value.log()

        lif, x = sc.LIF(learn=("tau",)), values(T, B, C, dtype=torch.float32)
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", Exp())
        for value in (3.0, torch.tensor(4.0)):
            lif.tau = value
            torch.testing.assert_close(lif.tau.detach(), torch.tensor(float(value)))
            assert torch.equal(lif(x), sc.LIF(tau=lif.tau.detach())(x))
        with pytest.raises(ValueError, match="tau=0.5 must be at least 1"):
            lif.tau = 0.5
        lif = sc.LIF(learn=("tau",))
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus())
        with pytest.raises(
            RuntimeError, match=r"LIF: tau is .* Softplus, .*set neuron\.parametrizations\.tau\.original"
        ):
            lif.tau = 3.0


class Last(sc.Neuron):
    """Its states are its input, a parameter and a constant."""

    states = {"last": 0.0, "held": 0.0, "one": 0.0}
    params = {"c": 2.0}

    def dynamics(self, x, s, p):
        return s.last, {"last": x, "held": p.c, "one": 1.0}


class TestResultsAreTheirOwn:
    """No result of a call shares memory with its arguments."""

    def test_a_state_that_is_the_input(self):
        """A buffer that is filled again for the next step does not change the state of the last one."""
        neuron, buffer, seen = Last(step="single"), torch.zeros(2), []
        for value in (1.0, 2.0, 3.0):
            buffer.fill_(value)
            seen.append(neuron(buffer)[0].item())
        assert seen == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_states_are_dense_and_free(self, steps):
        """Final states can be written to: they are neither a parameter, nor an argument, nor one number spread out."""
        neuron = Last(c=torch.full((B,), 5.0), channel_dim=-1)
        state = {name: torch.zeros(2, B) for name in neuron.states}
        _, end = neuron.run(torch.rand(steps, 2, B), state=state)
        for value in end.values():
            assert value.is_contiguous()
            value.add_(1.0)
        assert neuron.c.tolist() == [5.0] * B
        assert all(value.abs().sum() == 0 for value in state.values())
        assert end["one"].tolist() == ([[2.0] * B] * 2 if steps else [[1.0] * B] * 2)
