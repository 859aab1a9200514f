"""torch's checkpointing with checkpoint_contexts gives the numbers of the plain run: at rest, carried, stepwise."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore.testing._loopback import installed

T, B, C = 8, 3, 5
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(TORCH < (2, 6), reason="checkpoint_contexts needs torch 2.6")


def _host():
    """The text of the CUDA kernels, built for the CPU."""
    from spikecore_cupy.host import HostBackend, reason

    if reason() is not None:
        pytest.skip(str(reason()))
    return installed(HostBackend, devices=("cpu",))


@pytest.fixture(autouse=True, params=["torch", pytest.param("cupy_host", marks=pytest.mark.kernels)])
def _backend(request):
    """Every test on the reference, and on the kernels that the cupy backend writes."""
    with contextlib.ExitStack() as stack:
        if request.param != "torch":
            stack.enter_context(_host())
        stack.enter_context(sc.use_backend(request.param))
        yield


class Net(nn.Module):
    """Two layers of neurons, one of them with feedback. Single steps are looped over here, from rest or carried."""

    def __init__(self, step="multi", fresh=False, recurrent=True):
        super().__init__()
        torch.manual_seed(0)
        self.step, self.fresh = step, fresh
        self.fc = nn.Linear(C, C)
        self.first = sc.LIF(1.6, threshold=0.4, learn=("tau",), step=step)
        self.last = sc.Recurrent(sc.LI(3.0), nn.Linear(C, C), step=step) if recurrent else sc.LI(3.0, step=step)

    def block(self, x):
        return self.last(self.first(self.fc(x)))

    def forward(self, x):
        if self.fresh:
            sc.reset(self)
        return self.block(x) if self.step == "multi" else torch.stack([self.block(x_t) for x_t in x])


def inputs(steps=T):
    return torch.randn(steps, B, C, generator=torch.Generator().manual_seed(1)).add(0.4).requires_grad_()


def plain(net, function, x):
    return function(x)


def region(net, function, x):
    """A call of ``net`` within ``function``, which is computed again in backward."""
    return checkpoint(function, x, use_reentrant=False, context_fn=sc.parallel.checkpoint_contexts(net))


def states(net):
    return [value.detach().clone() for m in sc.functional.stateful_modules(net) for value in (m.state or {}).values()]


def at_once(call, net, x):
    return [call(net, net, x)]


def chunks(call, net, x):
    """Each chunk goes on from the one before; backward comes after the block."""
    with sc.carry_state(net):
        return [call(net, net, chunk) for chunk in x.split(3)]


def chunks_within(call, net, x):
    """As above, and a first backward pass within the block, whose graph is kept."""
    with sc.carry_state(net):
        outputs = [call(net, net, chunk) for chunk in x.split(3)]
        sum(output.sum() for output in outputs).backward(retain_graph=True)
    net.zero_grad()
    x.grad = None
    return outputs


def truncated(call, net, x):
    """Backward after each chunk; the gradient ends between them."""
    outputs = []
    with sc.carry_state(net):
        for chunk in x.split(3):
            outputs.append(call(net, net, chunk))
            outputs[-1].square().sum().backward(retain_graph=True)
            sc.detach(net)
    return outputs


def block_inside(call, net, x):
    """carry_state within the region, around chunks of its own, in a block outside."""

    def inside(part):
        with sc.carry_state(net):
            return torch.cat([net(chunk) for chunk in part.split(2)])

    with sc.carry_state(net):
        return [net(x[:2]), call(net, inside, x)]


def nested(call, net, x):
    """A region within a region."""
    with sc.carry_state(net):
        return [net(x[:2]), call(net, lambda part: net.fc(call(net, net, part)), x[2:])]


def steps(call, net, x):
    """A region for each step of a network of single-step neurons."""
    return [torch.stack([call(net, net.block, x_t) for x_t in x])]


def outcome(make, run, call):
    """Everything that a run gives: outputs, gradients of input and weights, states before and after backward."""
    net, x = make(), inputs()
    outputs = run(call, net, x)
    before = states(net)
    sum((output * torch.linspace(0.5, 1.5, C)).sum() for output in outputs).backward()
    gradients = [x.grad, *[parameter.grad for parameter in net.parameters()]]
    return [*[output.detach() for output in outputs], *gradients, *before, *states(net)]


def same(found, expected):
    assert len(found) == len(expected)
    assert any(value.abs().sum() > 0 for value in expected)
    for ours, reference in zip(found, expected):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize(
    ("run", "step", "fresh"),
    [
        (at_once, "multi", False),
        (at_once, "single", False),
        (at_once, "single", True),  # with sc.reset within the region
        (chunks, "multi", False),
        (chunks_within, "multi", False),
        (truncated, "multi", False),
        (block_inside, "multi", False),
        (nested, "multi", False),
        (nested, "single", False),
        (steps, "single", False),
    ],
)
def test_the_plain_run(run, step, fresh):
    """Outputs, gradients and states are those without regions, bit for bit."""
    make = partial(Net, step, fresh)
    same(outcome(make, run, region), outcome(make, run, plain))


def test_grad_of_some():
    """``torch.autograd.grad``, twice, over one graph of several regions."""
    found = []
    for call in (region, plain):
        net, x = Net(), inputs()
        outputs = chunks(call, net, x)
        wanted = [x, net.fc.weight, net.first.tau]
        first = torch.autograd.grad(outputs[-1].sum(), wanted, retain_graph=True)
        found.append([*first, *torch.autograd.grad(sum(o.sum() for o in outputs), wanted)])
    same(*found)


def test_backward_leaves_the_neurons_alone():
    """A recomputation, one that torch stops early included, writes nothing to the neurons."""
    net, x = Net("single"), inputs()
    out = region(net, net, x)
    kept = ("_state", "_calls", "_carrying")
    before = [[vars(m)[name] for name in kept] for m in sc.functional.stateful_modules(net)]
    out.sum().backward()
    after = [[vars(m)[name] for name in kept] for m in sc.functional.stateful_modules(net)]
    assert all(a is b for one, other in zip(before, after) for a, b in zip(one, other))


def test_saved_values_unpacked_outside_backward():
    """To show a saved tensor torch computes its region again outside any backward pass: from its own beginning."""
    net, x = Net("single", recurrent=False), inputs()
    outputs = [region(net, lambda part: net(part).tanh(), x) for _ in range(2)]
    end = states(net)
    assert torch.equal(outputs[0].grad_fn._saved_result, outputs[0].detach())
    same(states(net), end)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.parametrize("order", [(plain, plain, region, region, plain, region), (region, plain, region, plain)])
def test_a_compiled_network(order, compiler):
    """What was compiled outside a region is used within one and in its recomputation, and the reverse."""

    def run(compiled, call_of, net, x):
        torch._dynamo.reset()
        used = torch.compile(net.block, backend=compiler) if compiled else net.block
        return [call_of(call)(net, used, x_t) for call, x_t in zip(order, x)]

    found = outcome(partial(Net, "single"), partial(run, True), lambda call: call)
    expected = outcome(partial(Net, "single"), partial(run, False), lambda _: plain)
    for ours, reference in zip(found, expected):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    """Without gradients a region is a call, and state goes on from one to the next."""
    net, expected, x = Net(), Net(), inputs()
    with mode(), sc.carry_state(net), sc.carry_state(expected):
        for chunk in x.split(3):
            assert torch.equal(region(net, net, chunk), expected(chunk))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_at_rest_torch_needs_nothing(use_reentrant):
    """A network that carries nothing has the same gradients within torch's own regions, of either kind."""

    def torchs(net, function, x):
        return checkpoint(function, x, use_reentrant=use_reentrant)

    same(outcome(Net, at_once, torchs), outcome(Net, at_once, plain))


def test_no_network():
    """What holds no state to begin with is no network."""
    with pytest.raises(TypeError, match="give the network"):
        sc.parallel.checkpoint_contexts([nn.ReLU()])
