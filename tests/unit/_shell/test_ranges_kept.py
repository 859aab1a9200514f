"""Ranges of learnt parameters are equations of the program, whatever calls it, and change nothing inside of them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc

INF = float("inf")
NAN = float("nan")
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def drive(*shape, seed=0):
    """Inputs in float32 that make neurons fire."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2


def pushed(neuron, name, by, **options):
    """The neuron after SGD has moved one learnt parameter by ``by`` against its gradient of 1."""
    parameter = getattr(neuron, name)
    optimizer = torch.optim.SGD([parameter], lr=1.0, **options)
    parameter.grad = torch.full_like(parameter, -by)
    optimizer.step()
    return neuron


#: Of every neuron: which parameter, a value outside, and the nearest value inside.
EPS = torch.finfo(torch.float32).eps


class TestKept:
    """Inside nothing changes; outside a call computes with the nearest value inside, with derivative 1."""

    def test_values_and_gradients_inside_are_those_without_ranges(self):
        """Three optimiser steps inside the range are equal to the bit, values and gradients."""
        nets = [
            sc.LIF(torch.linspace(1.5, 4, 3), learn=("tau", "threshold"), **free) for free in ({}, {"bounds": None})
        ]
        optimizers = [torch.optim.Adam(net.parameters(), 0.01) for net in nets]
        for seed in range(3):
            for net, optimizer in zip(nets, optimizers):
                optimizer.zero_grad()
                net(drive(8, 2, 3, seed=seed)).sum().backward()
                optimizer.step()
            for one, other in zip(nets[0].parameters(), nets[1].parameters()):
                assert torch.equal(one, other)
                assert torch.equal(one.grad, other.grad)

    def test_sgd_that_drives_tau_away(self):
        """SGD that took tau from 1.2 to 0.15 and -0.29 leaves it at 1, where the neuron still fires and learns."""
        x, lif = torch.full((16, 1, 8), 1.5), sc.LIF(1.2, learn=("tau",))
        optimizer, seen = torch.optim.SGD(lif.parameters(), lr=0.5), []
        for _ in range(6):
            optimizer.zero_grad()
            spikes, _, trace = lif.run(x, record=("v",))
            seen.append(lif.tau.item())
            assert spikes.sum() > 0
            (-trace["v"].mean() + 2 * lif.tau).backward()
            optimizer.step()
            assert torch.isfinite(lif.tau.grad)
            if len(seen) < 6:
                sc.project(lif)
        assert lif.tau.item() < 1.0
        assert seen[0] == pytest.approx(1.2)
        assert seen[1:] == [1.0] * 5

    @pytest.mark.parametrize(
        ("neuron", "name"),
        [(sc.ALIF(rho=0.99, learn=("rho",)), "rho"), (sc.Leaky(0.99, learn=("beta",)), "beta")],
        ids=["rho", "beta"],
    )
    def test_decay_above_1_is_not_stuck(self, neuron, name):
        """A decay that was pushed to 1.03 counts as 1 and has the gradient of 1, so that it can come back."""
        pushed(neuron, name, 0.04)
        decay = getattr(neuron, name)
        assert decay.item() == pytest.approx(1.03)
        decay.grad = None
        grads = []
        for _ in range(2):
            _, state = neuron.run(drive(6, 2, 3))
            grads += torch.autograd.grad(sum(value.sum() for value in state.values()), decay)
            sc.project(neuron)
        assert decay.item() == 1.0
        assert grads[0] != 0
        assert torch.equal(*grads)

    @pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
    def test_every_optimiser(self, options):
        """Fused updates, which raise no version of the parameter, are seen as well."""
        if options.get("fused") and "fused" not in torch.optim.SGD.__init__.__code__.co_varnames:
            pytest.skip("torch before 2.3 has no fused SGD")
        lif = sc.LIF(2.0, learn=("tau",))
        lif(drive(3, 2))
        assert torch.equal(pushed(lif, "tau", -5.0, **options)(drive(3, 2)), sc.LIF(1.0)(drive(3, 2)))
        sc.project(lif)
        assert lif.tau.item() == 1.0

    @pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_shapes_and_dtypes(self, shape, dtype):
        """Of a tensor, the values outside move and the others stay, in every precision."""
        values = torch.linspace(-0.5, 1.5, 6).to(dtype)[: max(1, torch.Size(shape).numel())].reshape(shape)
        neuron = sc.KLIF(k=torch.ones(shape, dtype=dtype), learn=("k", "tau"), bounds={"tau": None}).to(dtype)
        with torch.no_grad():
            neuron.k.copy_(values)
        out = neuron(drive(3, 2, 3).to(dtype))
        assert torch.equal(neuron.k, values)
        sc.project(neuron)
        eps = torch.finfo(dtype).eps
        assert neuron.k.dtype == dtype
        assert torch.equal(neuron.k, torch.where(values > 0, values, torch.full_like(values, eps)))
        assert torch.equal(out, neuron(drive(3, 2, 3).to(dtype)))

    def test_nan_stays(self):
        """A NaN is not hidden behind a bound."""
        for name in ("k", "tau"):
            neuron = sc.KLIF(learn=(name,))
            with torch.no_grad():
                getattr(neuron, name).fill_(NAN)
            sc.project(neuron)
            assert neuron.run(drive(3, 2))[1]["v"].isnan().all()
            assert getattr(neuron, name).isnan()

    def test_graph_in_flight(self):
        """Calls between a forward and its backward pass, in training or without gradients, leave its gradient."""
        x, lif = drive(6, 2, 3), sc.LIF(1.2, learn=("tau",))
        (wanted,) = torch.autograd.grad(lif(x).sum(), lif.tau)
        out = lif(x).sum() + lif.tau**2
        with torch.no_grad():
            lif(x)
        lif(x)
        lif.state_dict()
        out.backward()
        torch.testing.assert_close(lif.tau.grad, wanted + 2 * lif.tau.detach())

    def test_other_calls(self):
        """Single steps, Recurrent, no_grad, inference mode, frozen and assigned parameters are in range, too."""
        x = drive(4, 2, 3)
        single, at_the_end = sc.LIF(2.0, learn=("tau",), step="single"), sc.LIF(1.0, step="single")
        single(x[0])
        sc.reset(single)
        assert torch.equal(pushed(single, "tau", -5.0)(x[0]), at_the_end(x[0]))
        assert torch.equal(single(x[1]), at_the_end(x[1]))
        linear = nn.Linear(3, 3)
        recurrent = sc.Recurrent(pushed(sc.LIF(2.0, learn=("tau",)), "tau", -5.0), linear)
        assert torch.equal(recurrent(x), sc.Recurrent(sc.LIF(1.0), linear)(x))
        wanted = sc.LIF(1.0)(x)
        frozen = pushed(sc.LIF(2.0, learn=("tau",)), "tau", -5.0)
        frozen.tau.requires_grad_(False)
        with torch.no_grad():
            assert torch.equal(frozen(x), wanted)
        assigned = sc.LIF(2.0)
        assigned(x)
        assigned.tau = nn.Parameter(torch.tensor(3.0))
        with torch.inference_mode():
            assert torch.equal(pushed(assigned, "tau", -5.0)(x), wanted)
        assigned.tau = 1.5
        del assigned.tau
        assigned.tau = 1.5
        assert "tau_in_range" not in str(assigned.program)

    def test_made_in_inference_mode(self):
        """A neuron made in inference mode runs anywhere."""
        with torch.inference_mode():
            lif = sc.LIF(2.0, learn=("tau",))
        with torch.no_grad():
            assert torch.equal(lif(drive(4, 2)), sc.LIF(2.0)(drive(4, 2)))

    def test_shared(self):
        """A Parameter of two neurons ends in what their ranges have in common."""
        tau = nn.Parameter(torch.tensor(4.0))
        net = nn.Sequential(sc.LIF(tau), sc.LIF(tau, bounds={"tau": (3.0, 5.0)}))
        for by, end in ((-9.0, 3.0), (9.0, 5.0)):
            pushed(net[0], "tau", by)
            sc.project(net)
            assert tau.item() == end

    def test_copies(self):
        """Copies have the ranges, and parameters of their own to keep in them."""
        lif = sc.LIF(2.0, bounds={"tau": (1.5, 3.0)}, learn=("tau",))
        for twin in (copy.deepcopy(lif), pickle.loads(pickle.dumps(lif))):
            assert torch.equal(pushed(twin, "tau", -5.0)(drive(3, 2)), sc.LIF(1.5)(drive(3, 2)))
            sc.project(twin)
            assert twin.tau.item() == 1.5
        assert lif.tau.item() == 2.0

    def test_where_a_state_begins(self):
        """A parameter that states begin at is in range there, too, with gradients and without."""
        x, bounds = drive(6, 2, 3), {"v_reset": (-0.5, 0.25)}
        for backend in ("torch", None):
            lif = pushed(sc.LIF(learn=("v_reset",), bounds=bounds, backend=backend), "v_reset", -3.0)
            at_the_end = sc.LIF(v_reset=-0.5, learn=("v_reset",), bounds=bounds, backend=backend)
            grads = []
            for neuron in (lif, at_the_end):
                _, state = neuron.run(x)
                grads += torch.autograd.grad(state["v"].sum(), neuron.v_reset)
            assert torch.equal(*grads)
            with torch.no_grad():
                assert torch.equal(lif(x), at_the_end(x))

    def test_width_of_a_surrogate(self):
        """What a surrogate reads of a learnt parameter is in range, too."""

        class Wide(sc.Neuron):
            states = {"v": 0.0}
            params = {"tau": 2.0}
            bounds = {"tau": (1.0, None)}

            def dynamics(self, x, s, p):
                v = s.v + (x - s.v) / p.tau
                return self.spike(v - 1.0, surrogate=sc.surrogate.ATan(alpha=1.0 / self.tau)), {"v": v}

        x, grads = drive(6, 2, 3).requires_grad_(), []
        for neuron in (pushed(Wide(learn=("tau",)), "tau", -1.5), Wide(tau=1.0)):
            grads += torch.autograd.grad(neuron(x).sum(), x)
        assert torch.equal(*grads)


class TestTransformed:
    """Under transforms, traces and compilation a program has its ranges."""

    @pytest.mark.parametrize("v_reset", [-0.5, torch.tensor([-0.25, 0.5])])
    def test_functional_call_without_ends(self, v_reset):
        """A threshold above a ``v_reset`` that is learnt below 0 has no range: torch, which clamps to one end at least,
        raised, and so did torch.compile, which calls the neuron in this way.
        """
        lif, x = sc.LIF(learn=("threshold", "v_reset"), v_reset=v_reset), drive(6, 3, 2)
        given = {name: value.detach().clone().requires_grad_() for name, value in lif.named_parameters()}
        found = torch.func.functional_call(lif, given, (x,))
        expected = lif(x)
        assert torch.equal(found, expected)
        grads = torch.autograd.grad(found.sum(), list(given.values()))
        for one, other in zip(grads, torch.autograd.grad(expected.sum(), [getattr(lif, name) for name in given])):
            assert torch.equal(one, other)

    def test_functional_call(self):
        """The tensor that stands in for a parameter is not written to, and its gradient is that of the value inside."""
        x, lif = drive(6, 2, 3), sc.LI(2.0, learn=("tau",))
        tau = torch.tensor(0.25, requires_grad=True)
        out = torch.func.functional_call(lif, {"tau": tau}, x)
        (got,) = torch.autograd.grad(out.sum(), tau)
        inside = sc.LI(1.0, learn=("tau",))
        (want,) = torch.autograd.grad(inside(x).sum(), inside.tau)
        assert torch.equal(out, inside(x))
        assert torch.equal(got, want)
        assert (tau.item(), lif.tau.item()) == (0.25, 2.0)

    @pytest.mark.parametrize("value", [-INF, INF, NAN])
    def test_what_is_not_finite(self, value):
        """A learnt value that is not finite gives NaN, so that it is seen."""
        out = torch.func.functional_call(sc.LI(2.0, learn=("tau",)), {"tau": torch.tensor(value)}, drive(6, 2, 3))
        assert out.isnan().all()

    def test_torch_func(self):
        """``grad``, ``vmap`` and ``grad`` of the input alone work, inside the range to the bit of autograd."""
        x, lif = drive(6, 2, 3), sc.LI(2.5, learn=("tau",), backend="torch")

        def loss(tau):
            return torch.func.functional_call(lif, {"tau": tau}, (x,)).sum()

        (want,) = torch.autograd.grad(lif(x).sum(), lif.tau)
        torch.testing.assert_close(torch.func.grad(loss)(torch.tensor(2.5)), want)
        taus = torch.tensor([-1.0, 1.0, 2.5])
        values = torch.func.vmap(loss)(taus)
        torch.testing.assert_close(values, torch.stack([sc.LI(t)(x).sum() for t in (1.0, 1.0, 2.5)]))
        pushed(lif, "tau", -9.0)
        by_x = torch.func.grad(lambda value: lif(value).sum())(x)
        assert lif.tau.item() == -6.5
        plain = x.clone().requires_grad_()
        torch.testing.assert_close(by_x, torch.autograd.grad(sc.LI(1.0)(plain).sum(), plain)[0])

    def test_parametrised(self):
        """A parametrisation of torch's own decides alone what the parameter is."""
        lif = sc.LI(2.0, learn=("tau",), bounds={"tau": (1.0, 4.0)})
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus(), unsafe=True)
        with torch.no_grad():
            lif.parametrizations.tau.original.fill_(8.0)
        assert torch.equal(lif(drive(4, 2)), sc.LI(nn.functional.softplus(torch.tensor(8.0)))(drive(4, 2)))

    @pytest.mark.filterwarnings("ignore")  # torch warns of what it takes for constants, and of jit itself
    def test_traced(self):
        """A traced program holds the range, and changes no parameter."""
        lif = pushed(sc.LI(2.0, learn=("tau",), backend="torch"), "tau", -9.0)
        with torch.no_grad():
            traced = torch.jit.trace(lif, drive(4, 2))
            lif.tau.fill_(-7.0)
            assert torch.equal(traced(drive(4, 2)), sc.LI(1.0)(drive(4, 2)))
        assert lif.tau.item() == -7.0

    @pytest.mark.skipif(TORCH < (2, 6), reason="the reference compiles from torch 2.6 on")
    # torch.compile makes an object of every autograd.Function it meets, of which torch itself warns
    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
    def test_compiled(self):
        """A compiled network computes with values inside, whatever the loop does; ``sc.project`` brings them in."""
        nets = [nn.Sequential(sc.LIF(1.2, learn=("tau",), backend="torch"), sc.KLIF(backend="torch")) for _ in range(2)]
        compiled = torch.compile(nets[1], fullgraph=True, backend="aot_eager")
        x, optimizers = drive(4, 2, 3), [torch.optim.SGD(net.parameters(), 0.3) for net in nets]
        for step in range(4):
            for net, call, optimizer in zip(nets, (nets[0], compiled), optimizers):
                optimizer.zero_grad()
                before = (
                    3 * net[0].tau ** 2 + 3 * net[1].k ** 2
                )  # of the graph before the calls, which must not break it
                out, again = call(x), call(x)
                (out.sum() + again.sum() + before).backward()
                optimizer.step()
                if step < 2:
                    sc.project(net)
            for one, other in zip(*(net.parameters() for net in nets)):
                assert torch.equal(one.grad, other.grad) or step > 2
        assert nets[1][0].tau.item() < 1.0
        assert torch.equal(compiled(x), nn.Sequential(sc.LIF(1.0), sc.KLIF(k=EPS))(x))
        assert nets[1].state_dict()["0.tau"].item() == 1.0


class TestTraining:
    """``training_model``."""

    def test_step_leaves_parameters_inside(self):
        """After a step a parameter that left its range is at its end, before any other call."""
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF(1.2, learn=("tau",)), sc.KLIF())
        optimizer = torch.optim.SGD(net.parameters(), 1.0)
        step = sc.training_model(net, lambda out, _: out.sum() + 5 * net[1].tau + 5 * net[2].k, optimizer)
        step(drive(4, 2, 3), torch.zeros(2))
        assert (net[1].tau.item(), net[2].k.item()) == (1.0, EPS)

    def test_step_loads_all_or_nothing(self):
        """A checkpoint of a step with a value outside is refused before anything of it is loaded."""
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF(2.0, learn=("tau",)))
        step = sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 1.0))
        state = copy.deepcopy(step.state_dict())
        before = copy.deepcopy(net.state_dict())
        state["net"]["0.weight"].zero_()
        state["net"]["1.tau"].fill_(-0.29)
        with pytest.raises(
            RuntimeError, match=r"loading state_dict for Sequential:\n\t1\.tau holds -0\.29, and tau of"
        ):
            step.load_state_dict(state)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())

    @pytest.mark.skipif(TORCH < (2, 6), reason="before torch 2.6 fully_shard is private")
    @pytest.mark.filterwarnings("ignore")  # of a process group on one CPU
    def test_sharded(self):
        """Under fully_shard calls compute with values inside, and what is saved is inside."""
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            net = nn.Sequential(nn.Linear(6, 6), sc.LI(torch.full((6,), 1.2), learn=("tau",)))
            fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
            optimizer = torch.optim.SGD([net[1].tau], 1.0)
            for _ in range(2):
                optimizer.zero_grad()
                out = net(drive(4, 2, 6))
                (-out.sum()).backward()
                net[1].tau.grad.mul_(0.0).add_(1.0)
                optimizer.step()
            weight, bias = (value.full_tensor() for value in (net[0].weight, net[0].bias))
            assert torch.equal(out, sc.LI(1.0)(nn.functional.linear(drive(4, 2, 6), weight, bias)))
            state = net.state_dict()
            assert state["1.tau"].full_tensor().tolist() == [1.0] * 6
            net.load_state_dict(state)
        finally:
            distributed.destroy_process_group()
