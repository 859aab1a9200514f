"""A network that torch.compile compiled gives the numbers of the plain run in and outside checkpointed regions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore._shell.state import keep

T, B, C = 6, 3, 5
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

pytestmark = [
    pytest.mark.skipif(TORCH < (2, 4), reason="torch.compile needs torch 2.4 here"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),  # the compiler's own
]


@pytest.fixture(autouse=True)
def _fresh():
    """What an earlier test compiled is gone."""
    torch._dynamo.reset()


def network(step):
    """Layers of neurons, one of them with feedback, beside layers of torch."""
    torch.manual_seed(0)
    last = sc.Recurrent(sc.LI(3.0, backend="torch"), nn.Linear(C, C), step=step)
    first = sc.LIF(1.6, threshold=0.4, learn=("tau",), step=step, backend="torch")
    return nn.Sequential(nn.Linear(C, C), first, nn.Linear(C, C), last)


def one(step):
    """A neuron by itself."""
    return sc.LI(5.0, learn=("tau",), step=step, backend="torch")


def states(net):
    return [value.detach().clone() for m in sc.functional.stateful_modules(net) for value in (m.state or {}).values()]


def outcome(make, step, compiled, regions, detach=False):
    """Outputs, states and gradients of a run: ``regions`` says which of its calls are checkpointed, and how."""
    net = make(step)
    used = compiled(net)
    x = torch.randn(2 * len(regions), B, C, generator=torch.Generator().manual_seed(1)).add(0.4).requires_grad_()
    parts = x.unbind(0) if step == "single" else x.split(2)
    with sc.carry_state(net):
        outputs = []
        for part, region in zip(parts, regions):
            outputs.append(used(part) if region is None else checkpoint(used, part, use_reentrant=region))
            if detach:
                sc.detach(net)
        end = states(net)
        sum((output * (i + torch.linspace(0.5, 1.5, C))).sum() for i, output in enumerate(outputs)).backward()
        after = states(net)
    return [*[o.detach() for o in outputs], x.grad, *[p.grad for p in net.parameters()], *end, *after]


def same(found, expected):
    assert len(found) == len(expected)
    for ours, reference in zip(found, expected):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


def as_function(net):
    """A function that calls the network, compiled."""
    return torch.compile(lambda x: net(x) * 2, backend="aot_eager")


ORDERS = {"outside-first": (None, None, False, False, None, False), "inside-first": (False, None, False, None, None)}


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("step", ["multi", "single"])
@pytest.mark.parametrize("make", [network, one])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_in_and_outside_regions(make, step, compiler, order):
    """What was compiled outside a region is not used in one, nor in its recomputation, and the reverse."""
    regions = ORDERS[order]
    found = outcome(make, step, partial(torch.compile, backend=compiler), regions)
    same(found, outcome(make, step, lambda net: net, [None] * len(regions)))


@pytest.mark.parametrize("step", ["multi", "single"])
def test_a_compiled_function(step):
    """The same for a function that calls the network."""
    regions = ORDERS["outside-first"]
    expected = outcome(network, step, lambda net: lambda x: net(x) * 2, [None] * len(regions))
    same(outcome(network, step, as_function, regions), expected)


@pytest.mark.parametrize("step", ["multi", "single"])
def test_both_ways(step):
    """Regions with use_reentrant=True among the others, where the gradient ends between the calls."""
    regions = (None, True, False, True, None, True)
    found = outcome(network, step, partial(torch.compile, backend="aot_eager"), regions, detach=True)
    same(found, outcome(network, step, lambda net: net, [None] * len(regions), detach=True))


def test_inductor():
    """With the compiler that is torch's default."""
    regions = ORDERS["outside-first"]
    found = outcome(one, "single", torch.compile, regions)
    same(found, outcome(one, "single", lambda net: net, [None] * len(regions)))


def test_without_gradients_first():
    """A graph made without gradients is not used where a region with use_reentrant=True runs first."""
    found = []
    for compiled in (partial(torch.compile, backend="eager"), lambda net: net):
        net = one("single")
        used = compiled(net)
        x = torch.rand(T, B, C, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.no_grad():
            used(x[0])
            used(x[1])
        outputs = []
        for part in x[2:]:
            outputs.append(checkpoint(used, part, use_reentrant=True))
            sc.detach(net)
        sum((output * i).sum() for i, output in enumerate(outputs)).backward()
        found.append([x.grad, net.tau.grad, *states(net)])
    same(*found)


def test_a_reset_in_a_compiled_function():
    """A compiled function that begins at rest by itself leaves the state alone when it is computed again."""
    found = []
    for compiled in (partial(torch.compile, backend="eager"), lambda function: function):
        net = one("single")

        def sequence(x, net=net):
            keep(net, None)
            return torch.stack([net(x_t) for x_t in x])

        used = compiled(sequence)
        x = torch.rand(T, B, C, generator=torch.Generator().manual_seed(1)).requires_grad_()
        used(x)
        out = checkpoint(used, x, use_reentrant=False)
        last = used(2 * x)
        end = states(net)
        (out.sum() + last.sum()).backward()
        found.append([out.detach(), x.grad, net.tau.grad, *end, *states(net)])
    same(*found)


def test_a_gradient_that_a_region_lost():
    """A compiled call that goes on from a region with use_reentrant=True says that its gradient is lost."""
    net, x = one("single"), torch.rand(T, B, C).requires_grad_()
    used = torch.compile(net, backend="eager")
    used(x[0])
    sc.detach(net)
    checkpoint(used, x[1], use_reentrant=True)
    with pytest.raises(RuntimeError, match=r"^LI goes on from a state whose gradient cannot pass"):
        used(x[2])


def test_one_graph_outside_regions():
    """Outside regions nothing is compiled again, and the whole network is one graph."""
    net, x = network("single"), torch.rand(T, B, C)
    counter = torch._dynamo.testing.CompileCounter()
    used = torch.compile(net, backend=counter, fullgraph=True)
    for _ in range(2):
        for part in x:
            used(part)
        checkpoint(lambda a: a * 2, x, use_reentrant=False)
    assert counter.frame_count <= 2, "at rest, and going on"


def test_without_a_guard(monkeypatch):
    """Where torch takes no guard, a neuron that continues is left to eager mode, and right."""
    monkeypatch.delattr(torch._C._dynamo.guards, "RootGuardManager")
    regions = ORDERS["outside-first"]
    found = outcome(one, "single", partial(torch.compile, backend="eager"), regions)
    same(found, outcome(one, "single", lambda net: net, [None] * len(regions)))
