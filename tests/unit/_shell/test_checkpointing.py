"""Activation checkpointing gives the numbers of the plain run: at rest, carried and single-step, both ways of torch."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import spikecore as sc
from spikecore._shell import recompute
from spikecore.testing._loopback import installed

T, B, C = 8, 3, 5
BOTH = pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])


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


def plain(function, *args, **_):
    return function(*args)


def way(reentrant):
    return partial(checkpoint, use_reentrant=reentrant)


def states(net):
    return [value.detach().clone() for m in sc.functional.stateful_modules(net) for value in (m.state or {}).values()]


def outcome(make, run):
    """Everything that a run gives: outputs, final states, gradients of input and weights, and states after backward."""
    net, x = make(), inputs()
    outputs, end = run(net, x)
    if any(output.requires_grad for output in outputs):
        sum((output * torch.linspace(0.5, 1.5, C)).sum() for output in outputs).backward()
    return [*[o.detach() for o in outputs], *end, x.grad, *[p.grad for p in net.parameters()]], states(net)


def same(found, expected):
    (found, found_after), (expected, expected_after) = found, expected
    assert len(found) == len(expected)
    assert all(value is not None for value in expected)
    assert any(value.abs().sum() > 0 for value in expected)
    for ours, reference in zip((*found, *found_after), (*expected, *expected_after)):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


@BOTH
@pytest.mark.parametrize("fresh", [False, True], ids=["goes-on", "reset"])
@pytest.mark.parametrize("step", ["multi", "single"])
def test_one_region(step, fresh, reentrant):
    """A whole sequence in one region, at rest or looped over in single steps, with or without a reset inside."""

    def run(call, net, x):
        return [call(net, x)], states(net)

    make = partial(Net, step, fresh)
    same(outcome(make, partial(run, way(reentrant))), outcome(make, partial(run, plain)))


def carried(call, net, x, detach=False, inside=True):
    """Chunks that go on from each other, each in its region; backward may come after the block."""
    with contextlib.ExitStack() as stack:
        block = stack.enter_context(contextlib.ExitStack())
        block.enter_context(sc.carry_state(net))
        outputs = []
        for chunk in x.split(3):
            outputs.append(call(net, chunk))
            if detach:
                sc.detach(net)
        end = states(net)
        if inside:
            sum(o.sum() for o in outputs).backward(retain_graph=True)
            net.zero_grad()
            x.grad = None
    return outputs, end


@pytest.mark.parametrize("inside", [False, True], ids=["after", "retained"])
def test_carried_through_regions(inside):
    """Gradients reach through the carried state from region to region, also after the block, and a second time."""
    same(
        outcome(Net, partial(carried, way(False), inside=inside)), outcome(Net, partial(carried, plain, inside=inside))
    )


@BOTH
@pytest.mark.parametrize("inside", [False, True], ids=["after", "retained"])
def test_carried_and_detached(reentrant, inside):
    """Truncated backpropagation: the state goes on, the gradient ends between the regions."""
    run = partial(carried, detach=True, inside=inside)
    same(outcome(Net, partial(run, way(reentrant))), outcome(Net, partial(run, plain)))


@BOTH
def test_chunk_after_chunk(reentrant):
    """Backward at once after every chunk: each region began with another state."""

    def run(call, net, x):
        outputs = []
        with sc.carry_state(net):
            for chunk in x.split(3):
                outputs.append(call(net, chunk))
                (outputs[-1] ** 2).sum().backward()
                sc.detach(net)
            end = states(net)
        return [o.detach() for o in outputs], end

    same(outcome(Net, partial(run, way(reentrant))), outcome(Net, partial(run, plain)))


def test_every_single_step_is_a_region():
    """A region for each step, all of them in one backward pass."""

    def run(call, net, x):
        return [torch.stack([call(net.block, x_t) for x_t in x])], states(net)

    make = partial(Net, "single")
    same(outcome(make, partial(run, way(False))), outcome(make, partial(run, plain)))


@BOTH
def test_block_of_carried_state_inside(reentrant):
    """``carry_state`` entered inside the region, around chunks of its own; nested in an outer one as well."""

    def chunks(net, x):
        with sc.carry_state(net):
            return torch.cat([net(chunk) for chunk in x.split(2)])

    def run(call, nested, net, x):
        with sc.carry_state(net) if nested else contextlib.nullcontext():
            head = [net(x[:2])] if nested else []
            if nested:
                sc.detach(net)
            outputs = [*head, call(chunks, net, x)]
            end = states(net)
        return outputs, end

    for nested in (False, True):
        same(outcome(Net, partial(run, way(reentrant), nested)), outcome(Net, partial(run, plain, nested)))


@pytest.mark.parametrize("outer", [False, True], ids=["in-hooks", "in-reentrant"])
@pytest.mark.parametrize("inner", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("step", ["multi", "single"])
def test_nested_regions(outer, inner, step):
    """A region within a region; the state is carried into the outer one."""
    if not outer and not hasattr(torch.utils.checkpoint, "_CheckpointFrame"):
        pytest.skip("before torch 2.1 no region may lie in one with use_reentrant=False")

    def run(outer, inner, net, x):
        with sc.carry_state(net):
            net(x[:2])
            sc.detach(net)
            out = outer(lambda a: net.fc(inner(net, a)), x[2:])
            end = states(net)
        return [out], end

    make = partial(Net, step)
    same(outcome(make, partial(run, way(outer), way(inner))), outcome(make, partial(run, plain, plain)))


@BOTH
def test_sequential(reentrant):
    """``checkpoint_sequential`` over layers that carry."""

    def make():
        torch.manual_seed(0)
        layers = [nn.Linear(C, C), sc.LIF(1.6, threshold=0.4), nn.Linear(C, C), sc.LI(3.0), nn.Linear(C, C), sc.LI()]
        return nn.Sequential(*layers)

    def run(segments, net, x):
        outputs = []
        with sc.carry_state(net):
            for chunk in x.split(4):
                if segments:
                    outputs.append(checkpoint_sequential(net, segments, chunk, use_reentrant=reentrant))
                else:
                    outputs.append(net(chunk))
                sc.detach(net)
            end = states(net)
        return outputs, end

    for segments in (2, 3):
        same(outcome(make, partial(run, segments)), outcome(make, partial(run, 0)))


def test_grad_of_some():
    """``torch.autograd.grad``, twice, over one graph of several regions."""
    found = []
    for call in (way(False), plain):
        net, x = Net(), inputs()
        outputs, _ = carried(call, net, x, inside=False)
        wanted = [x, net.fc.weight, net.first.tau]
        first = torch.autograd.grad(outputs[-1].sum(), wanted, retain_graph=True)
        found.append([*first, *torch.autograd.grad(sum(o.sum() for o in outputs), wanted)])
    for ours, reference in zip(*found):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


def test_state_read_in_a_region():
    """A region that reads the carried state of a neuron outside computes with what it was."""

    def run(call, net, x):
        with sc.carry_state(net):
            net(x[:4])
            out = call(lambda a: net.fc(a) * net.first.state["v"] * net.last.state["feedback"], x[4:])
            net(x[:4])
            end = states(net)
        return [out], end

    same(outcome(Net, partial(run, way(False))), outcome(Net, partial(run, plain)))


@BOTH
def test_backward_leaves_the_state_alone(reentrant):
    """A recomputation, one that torch stops early included, does not write the neuron's state."""
    net, x = Net("single"), inputs()
    out = way(reentrant)(net, x)
    before = [id(m.state) for m in sc.functional.stateful_modules(net)]
    out.sum().backward()
    assert [id(m.state) for m in sc.functional.stateful_modules(net)] == before


@BOTH
def test_a_recomputation_keeps_nothing(reentrant):
    """What a recomputation computes is gone after it, while outputs and network live on."""
    net, x, seen = Net(recurrent=False), inputs(), []

    def region(x):
        hidden = net.fc(x) * 1.0
        seen.append(weakref.ref(hidden))
        return net.last(net.first(hidden))

    with sc.carry_state(net):
        net(x[:2])
        sc.detach(net)
        out = checkpoint(region, x, use_reentrant=reentrant)
        out.sum().backward()
        gc.collect()
        assert len(seen) == 2
        assert seen[1]() is None


def test_saved_values_unpacked_outside_backward():
    """To show a saved tensor torch computes its region again outside any backward pass: from its own beginning."""
    net, x = Net("single", recurrent=False), inputs()
    before = [checkpoint(lambda a: net(a).tanh(), x, use_reentrant=False) for _ in range(2)]
    end = states(net)
    torch.testing.assert_close(before[0].grad_fn._saved_result, before[0].detach())
    for value, reference in zip(states(net), end):
        assert torch.equal(value, reference)


@BOTH
@pytest.mark.skipif(not hasattr(torch.library, "register_autograd"), reason="torch.compile needs torch 2.4 here")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("step", ["multi", "single"])
def test_a_compiled_network(reentrant, step):
    """A compiled network in a region is computed again from its own beginning, too."""

    def run(call, compiled, net, x):
        torch._dynamo.reset()
        used = torch.compile(net, backend="eager") if compiled else net
        with sc.carry_state(net):
            net(x[:2])
            sc.detach(net)
            out = call(used, x)
            sc.detach(net)
            used(x[:2])
            end = states(net)
        return [out], end

    make = partial(Net, step)
    same(outcome(make, partial(run, way(reentrant), True)), outcome(make, partial(run, plain, False)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@BOTH
def test_without_gradients(reentrant, mode):
    """Without gradients a checkpoint is a call, and state goes on from one to the next."""
    net, expected, x = Net(), Net(), inputs()
    with mode(), sc.carry_state(net), sc.carry_state(expected):
        for chunk in x.split(3):
            assert torch.equal(checkpoint(net, chunk, use_reentrant=reentrant), expected(chunk))


ASKS = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="before torch 2.2 one cannot ask for hooks, so every call reads the stack",
)


@ASKS
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_asks_nothing(mode, monkeypatch):
    """Outside regions a call without gradients does not read the stack, whose depth it would pay for."""
    monkeypatch.setattr(recompute, "_around", lambda: pytest.fail("the stack was read"))
    lif = sc.LIF(step="single")
    with mode():
        for x in inputs():
            lif(x)


class TestRefused:
    """What cannot be right raises, and says what to do."""

    LOST = r"^LIF goes on from a state whose gradient cannot pass .*use_reentrant=False, or call sc\.detach\(net\)"
    UNKNOWN = r"^LIF carries its state and is called during a backward pass.*neuron\.run\(x, state=state\)"

    def test_gradient_between_reentrant_regions(self):
        """A state made in one region is not taken in the next without a detach."""
        net, x = Net(), inputs()
        with sc.carry_state(net):
            checkpoint(net, x[:4], use_reentrant=True)
            with pytest.raises(RuntimeError, match=self.LOST):
                checkpoint(net, x[4:], use_reentrant=True)
            with pytest.raises(RuntimeError, match=self.LOST):
                net(x[4:])
            with torch.no_grad():
                net(x[4:])
            sc.detach(net)
            net(x[4:])

    def test_gradient_into_a_reentrant_region(self):
        """A state with a graph is not taken into a region that would drop it."""
        net, x = Net("single"), inputs()
        net(x[:4])
        with pytest.raises(RuntimeError, match=self.LOST):
            checkpoint(net, x[4:], use_reentrant=True)

    def test_gradient_between_reentrant_regions_in_a_region(self):
        """As above, where the regions lie in another one and come to light in its recomputation."""
        net, x = Net(recurrent=False), inputs()

        def both(x):
            return sum(checkpoint(net, part, use_reentrant=True).sum() for part in x.split(4))

        with sc.carry_state(net):
            loss = checkpoint(both, x, use_reentrant=True)
            with pytest.raises(RuntimeError, match=self.LOST):
                loss.backward()

    def test_another_library_computes_again(self):
        """A recomputation that is not torch's is refused, also when the block of carried state has ended."""

        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, function, x):
                ctx.function = function
                ctx.save_for_backward(x)
                with torch.no_grad():
                    return function(x)

            @staticmethod
            def backward(ctx, grad):
                x = ctx.saved_tensors[0].detach().requires_grad_()
                with torch.enable_grad():
                    out = ctx.function(x)
                torch.autograd.backward(out, grad)
                return None, x.grad

        lif, x = sc.LIF(), inputs()
        with sc.carry_state(lif):
            out = Again.apply(lif, x)
            end = states(lif)
            with pytest.raises(RuntimeError, match=self.UNKNOWN):
                out.sum().backward(retain_graph=True)
            assert torch.equal(states(lif)[0], end[0])
        with pytest.raises(RuntimeError, match=self.UNKNOWN):
            out.sum().backward()
        fresh, x = sc.LIF(), inputs()
        Again.apply(fresh, x).sum().backward()
        expected = torch.autograd.grad(fresh(x).sum(), x)[0]
        torch.testing.assert_close(x.grad, expected)

    @ASKS
    def test_inference_mode_in_a_reentrant_region(self):
        """torch hides the region from what runs in inference mode within it."""
        lif, x = sc.LIF(step="single"), inputs()[0].detach().requires_grad_()

        def watched(x):
            with torch.inference_mode():
                lif(x)
            return x * 2

        out = checkpoint(watched, x, use_reentrant=True)
        with pytest.raises(RuntimeError, match=self.UNKNOWN):
            out.sum().backward()

    @BOTH
    def test_a_region_that_is_not_recognised(self, reentrant, monkeypatch):
        """Where torch hides its regions, a recomputation is refused."""
        lif, x = sc.LIF(step="single"), inputs()[0].detach().requires_grad_()
        monkeypatch.setattr(recompute, "_CHECKPOINT", {})
        out = checkpoint(lif, x, use_reentrant=reentrant)
        with pytest.raises(RuntimeError, match=self.UNKNOWN):
            out.sum().backward()

    def test_carried_later(self):
        """At rest when it ran first, carried when it runs again."""
        lif, x = sc.LIF(), inputs()
        out = checkpoint(lif, x, use_reentrant=False)
        with sc.carry_state(lif), pytest.raises(RuntimeError, match=self.UNKNOWN):
            out.sum().backward()

    def test_state_changed_in_place(self):
        """A state that was overwritten cannot be begun with again."""
        lif, x = sc.LIF(), inputs()
        with sc.carry_state(lif):
            lif(x[:2])
            sc.detach(lif)
            out = checkpoint(lif, x, use_reentrant=False)
            lif(x)
            out.sum().backward()  # a state that was replaced is no matter
        lif = sc.LIF(step="single")
        lif(x[0])
        sc.detach(lif)
        start = lif.state["v"]
        out = checkpoint(lif, x[1], use_reentrant=False)
        start.zero_()
        with pytest.raises(RuntimeError, match=r"^LIF: the carried state 'v' was changed in place"):
            out.sum().backward()


def test_no_warning():
    """Nothing of this warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome(Net, partial(carried, way(False), inside=False))
