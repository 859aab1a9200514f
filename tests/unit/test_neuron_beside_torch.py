"""Neurons under torch's own machinery: checkpoint, threads, torch.func, parametrizations, compile, hooks, copies."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from shell_nets import grads, network, values
from spikecore_torch.backend import TorchBackend

T, B, C = 10, 3, 4
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


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
        with pytest.raises(RuntimeError, match="Softplus does not implement right_inverse"):
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
