"""A neuron that carries its state belongs to one place of a network; a second one is an error that names both."""

from __future__ import annotations

import contextlib
import gc
import re
import weakref

import pytest
import torch
from torch import nn

import spikecore as sc
from sequences import Backwards

T, B, C = 4, 2, 3


def shared(lif):
    return nn.Sequential(nn.Linear(C, C), lif, nn.Linear(C, C), lif)


#: What every message about two places begins with.
TWO_PLACES = (
    r"LIF carries its state(,| and) is (called at|in (the network|one (Sequential|list))) (twice, as|two places)"
)
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


class Using(nn.Module):
    """A module whose forward is a function of itself and the input."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.function(self, x)


def in_turn(net, x):
    for layer in net.layers:
        x = layer(x)
    return x


def by_index(net, x):
    for i in range(len(net.layers)):
        x = net.layers[i](x)
    return x


def of_dict(net, x):
    for layer in net.layers.values():
        x = layer(x)
    return x


def both(net, x):
    return net.lif(net.lif(x))


def through_helper(net, x):
    return both(net, x)


def stepwise(net, x):
    return torch.stack([net.block(x_t) for x_t in x])


def recursive(net, x):
    first = net.block(x[0])
    return first.unsqueeze(0) if len(x) == 1 else torch.cat([first.unsqueeze(0), recursive(net, x[1:])])


def with_breaks(net, x):
    out = []
    for x_t in x:
        out.append(net.block(x_t))
        torch._dynamo.graph_break()
    return torch.stack(out)


def branching(net, x):
    return torch.stack([net.block(x_t) for x_t in x] if net.training else [net.block(2 * x_t) for x_t in x])


def carrying(net, step):
    return sc.carry_state(net) if step == "multi" else contextlib.nullcontext()


def block(lif):
    return Using(lambda net, x: net.inner(net.fc(x)), inner=nn.Sequential(lif), fc=nn.Linear(C, C))


def named(**cases):
    return [pytest.param(case, id=name) for name, case in cases.items()]


MISUSES = named(
    block=lambda step: Using(lambda net, x: net.block(net.block(x)), block=block(sc.LIF(step=step))),
    helper=lambda step: Using(through_helper, lif=sc.LIF(step=step)),
    sequential=lambda step: nn.Sequential(*[sc.LIF(step=step)] * 2),
    nested=lambda step: nn.Sequential(nn.Linear(C, C), nn.Sequential(*[block(sc.LIF(step=step))] * 2)),
    list=lambda step: Using(in_turn, layers=nn.ModuleList([*[sc.LIF(step=step)] * 2, nn.Linear(C, C)])),
    index=lambda step: Using(by_index, layers=nn.ModuleList([*[sc.LIF(step=step)] * 2, nn.Linear(C, C)])),
    blocks=lambda step: Using(in_turn, layers=nn.ModuleList([*[block(sc.LIF(step=step))] * 2])),
    dict=lambda step: Using(of_dict, layers=nn.ModuleDict(dict.fromkeys("ab", sc.LIF(step=step)))),
    keys=lambda step: Using(
        lambda net, x: net.layers["b"](net.layers["a"](x)), layers=nn.ModuleDict(dict.fromkeys("ab", sc.LIF(step=step)))
    ),
    two_blocks=lambda step: Using(
        lambda net, x: net.b(net.a(x)), **(lambda lif: {"a": block(lif), "b": block(lif)})(sc.LIF(step=step))
    ),
)
FINE = named(
    recursion=lambda: Using(recursive, block=block(sc.LIF(step="single"))),
    loop=lambda: Using(stepwise, block=block(sc.LIF(step="single"))),
    breaks=lambda: Using(with_breaks, block=block(sc.LIF(step="single"))),
    branch=lambda: Using(branching, block=block(sc.LIF(step="single"))),
)


class Twice(nn.Module):
    """Calls one neuron at two places."""

    def __init__(self, step):
        super().__init__()
        self.lif = sc.LIF(step=step)

    def forward(self, x):
        hidden = self.lif(x)
        return self.lif(hidden)


def place(line):
    """The text of a place in ``Twice.forward``."""
    return re.escape(f"{__file__}:{Twice.forward.__code__.co_firstlineno + line}")


TWICE = rf"^LIF carries its state and is called at two places, {place(1)} and {place(2)}: .*neuron\.run\(x, state="


class TestRegistered:
    """One neuron under two names."""

    @pytest.mark.parametrize(
        "function",
        [
            sc.reset,
            sc.detach,
            lambda net: sc.carry_state(net).__enter__(),
            lambda net: sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 0.1)),
            sc.inference_model,
        ],
        ids=["reset", "detach", "carry_state", "training_model", "inference_model"],
    )
    def test_single_step(self, function):
        """Whatever is done to the network, both names are told."""
        net = shared(sc.LIF(step="single"))
        with pytest.raises(ValueError, match="^LIF carries its state and is in the network twice, as '1' and '3'"):
            function(net)

    def test_that_would_carry(self):
        """At rest one neuron may be used twice; carrying it may not."""
        net, x = shared(sc.LIF()), torch.rand(T, B, C)
        assert torch.equal(net(x), net(x))
        sc.reset(net)
        with pytest.raises(ValueError, match="'1' and '3'"), sc.carry_state(net):
            raise AssertionError("entered")

    def test_a_sequence_that_calls_it_once(self):
        """It holds the neuron under two names, and its own order has it once."""
        plain, net, x = sc.LIF(), Backwards(*shared(sc.LIF())[1::2]), torch.rand(T, B, C)
        with sc.carry_state(plain), sc.carry_state(net):
            assert torch.equal(torch.stack([net(x), net(x)]), torch.stack([plain(x), plain(x)]))

    def test_nested(self):
        """A block used twice has its neurons twice."""
        block = nn.Sequential(nn.Linear(C, C), sc.LIF())
        with pytest.raises(ValueError, match="'0.1' and '2.1'"), sc.carry_state(nn.Sequential(block, nn.ReLU(), block)):
            raise AssertionError("entered")

    def test_under_two_names_that_are_one_place(self):
        """A second name for convenience is no second place."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF()
                self.body = nn.Sequential(nn.Linear(C, C), self.lif)
                self.neurons = nn.ModuleList([self.lif])

            def forward(self, x):
                return self.body(x)

        net = Net()
        with sc.carry_state(net):
            net(torch.rand(T, B, C))
            net(torch.rand(T, B, C))


class TestCalled:
    """One neuron called at two places."""

    def test_single_step(self):
        """The second call of the first step is refused."""
        with pytest.raises(RuntimeError, match=TWICE):
            Twice("single")(torch.rand(B, C))

    def test_carried(self):
        """At rest it is right; carried it is refused."""
        net = Twice("multi")
        net(torch.rand(T, B, C))
        with sc.carry_state(net), pytest.raises(RuntimeError, match=TWICE):
            net(torch.rand(T, B, C))

    def test_through_a_block_and_a_helper(self):
        """The place is that of the user's forward, whatever lies between."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = nn.Sequential(nn.Linear(C, C), sc.LIF(step="single"))

            def run(self, x):
                return self.block(x)

            def forward(self, x):
                return self.run(self.run(x))

        with pytest.raises(RuntimeError, match="called at two places"):
            Net()(torch.rand(B, C))

    def test_a_script_calls_from_anywhere(self):
        """Outside a forward that contains it a neuron is called from any line, and from different functions."""
        lif, x = sc.LIF(step="single"), torch.rand(T, B, C)
        out = [lif(x[0])]
        out.append(lif(x[1]))

        def elsewhere(x_t):
            return lif(x_t)

        out.append(elsewhere(x[2]))
        out.append(elsewhere(x[3]))
        assert torch.equal(torch.stack(out), sc.LIF()(x))

    def test_a_branch(self):
        """Two calls of a network may take different branches."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def forward(self, x):
                if self.training:
                    return self.lif(x)
                return self.lif(2 * x)

        net, x = Net(), torch.rand(B, C)
        out = [net.train(training)(x) for training in (True, True, False, True, False, False)]
        whole = torch.stack([x, x, 2 * x, x, 2 * x, 2 * x])
        assert torch.equal(torch.stack(out), sc.LIF()(whole))

    def test_branches_that_both_run(self):
        """A second place is seen in whichever call it comes, after calls that took one of the two."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def forward(self, x):
                out = self.lif(x)
                return out if self.training else self.lif(out)

        net, x = Net(), torch.rand(B, C)
        for _ in range(3):
            net(x)
        with pytest.raises(RuntimeError, match=TWO_PLACES):
            net.eval()(x)

    @pytest.mark.parametrize("make", MISUSES)
    def test_every_way_is_seen(self, make):
        """Through blocks, helpers, containers and loops over them, in single steps and carried."""
        for step in ("single", "multi"):
            net, x = make(step), torch.rand(*((B, C) if step == "single" else (T, B, C)))
            if step == "multi":
                net(x)  # right at rest
            with pytest.raises((RuntimeError, ValueError), match=TWO_PLACES), carrying(net, step):
                net(x)

    @pytest.mark.skipif(TORCH < (2, 6), reason="torch.compile of neurons needs torch 2.6 here")
    @pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
    @pytest.mark.parametrize("function", [False, True], ids=["network", "function"])
    @pytest.mark.parametrize("make", MISUSES)
    def test_every_way_is_seen_compiled(self, make, function):
        """torch.compile, which looks at the source once, is told, too."""
        torch._dynamo.reset()
        net, x = make("single"), torch.rand(B, C)
        used = torch.compile((lambda x: net(x) * 2) if function else net, backend="eager")
        with pytest.raises(Exception, match=TWO_PLACES):
            used(x)

    @pytest.mark.skipif(TORCH < (2, 6), reason="torch.compile of neurons needs torch 2.6 here")
    @pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
    @pytest.mark.parametrize("make", FINE)
    def test_one_place_compiled(self, make):
        """A compiled loop is one place, with breaks in its graph as well, and so are calls and branches."""
        torch._dynamo.reset()
        net, x = make(), torch.rand(T, B, C)
        used = torch.compile(net, backend="eager")
        found = [used(x), used(x), used.eval()(x), used.train()(x)]
        sc.reset(net)
        for ours, reference in zip(found, [net(x), net(x), net.eval()(x), net.train()(x)]):
            torch.testing.assert_close(ours, reference)

    def test_a_list_that_is_not_run_in_turn(self):
        """A list may hold a neuron twice, from which each call of the network takes one."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                first, second = sc.LIF(step="single"), sc.LIF(3.0, step="single")
                self.of_task = nn.ModuleList([first, second, first])

            def forward(self, x, task):
                return self.of_task[task](x)

        net, x = Net(), torch.rand(T, B, C)
        sc.reset(net)
        out = [net(x_t, task) for x_t, task in zip(x, (0, 2, 0, 2))]
        assert torch.equal(torch.stack(out), sc.LIF()(x))

    def test_a_deep_call_again(self):
        """The same network called by itself, and later twice by another one."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def forward(self, x):
                return self.lif(x)

        class Outer(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def forward(self, x):
                return self.net(self.net(x))

        net, x = Net(), torch.rand(B, C)
        net(x)
        net(x)
        with pytest.raises(RuntimeError, match=TWO_PLACES):
            Outer(net)(x)

    def test_called_by_its_name(self):
        """Modules may be called past ``__call__``."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def forward(self, x):
                return self.lif.forward(self.lif.forward(x))

        with pytest.raises(RuntimeError, match=TWO_PLACES):
            Net().forward(torch.rand(B, C))

    @pytest.mark.parametrize("make", [one for one in FINE if one.id != "breaks"])  # of the compiler's graphs
    def test_nothing_is_kept(self, make):
        """What is noted of a call, and looked at on the stack, keeps nothing of it alive."""
        net, x = make(), torch.rand(T, B, C)
        with torch.no_grad():
            net(x)
        gone = weakref.ref(x)
        del x
        gc.collect()
        assert gone() is None


class TestTransforms:
    """``torch.func.vmap`` runs all examples as one call, whose state has a dimension that no later call knows."""

    @pytest.mark.parametrize("recurrent", [False, True])
    def test_no_state_of_vmap_is_kept(self, recurrent):
        """A neuron that carries its state raises, and stays as it was; with the state as an argument it works."""
        lif = sc.LIF(step="single", backend="torch")
        net = sc.Recurrent(sc.LIF(backend="torch"), nn.Identity(), step="single") if recurrent else lif
        x = torch.rand(T, B, C)
        with pytest.raises(
            RuntimeError, match=r"carries its state, which torch\.func\.vmap .*neuron\.run\(x, state=state"
        ):
            torch.func.vmap(net)(x[1])
        assert net.state is None
        stepwise = torch.func.vmap(lambda x_t, v: lif.run(x_t.unsqueeze(0), state={"v": v})[0].squeeze(0))
        lif(x[0])
        torch.testing.assert_close(stepwise(x[1], lif.state["v"]), lif(x[1]))

    def test_under_grad(self):
        """vmap inside grad is the same."""
        lif, x = sc.LI(step="single", backend="torch"), torch.rand(B, C)
        with pytest.raises(RuntimeError, match=r"^LI carries its state, which torch\.func\.vmap"):
            torch.func.grad(lambda x: torch.func.vmap(lif)(x).sum())(x)
        with pytest.raises(RuntimeError, match=r"^LI carries its state, which torch\.func\.vmap"):
            torch.func.vmap(torch.func.grad(lambda x: lif(x).sum()))(x)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (torch.Tensor.to_sparse, r"x has layout torch\.sparse_coo; give a dense tensor, e\.g\. x\.to_dense\(\)"),
        (torch.Tensor.to_mkldnn, r"x has layout torch\._mkldnn; give a dense tensor"),
        (lambda x: x[0].to_sparse_csr(), r"x has layout torch\.sparse_csr; give a dense tensor"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]]), r"x is a nested tensor; .*to_padded_tensor\(x, 0\.0\)"),
    ],
    ids=["sparse", "mkldnn", "csr", "nested"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested:UserWarning")
def test_only_dense_tensors(make, text, warm):
    """The first call and one after a dense one say the same."""
    lif, x = sc.LIF(), torch.rand(2, B, C)
    if warm:
        lif(x)
        lif(x[0])
    with pytest.raises(TypeError, match=f"^LIF: {text}"):
        lif(make(x))


@pytest.mark.skipif(TORCH < (2, 6), reason="torch.compile of neurons needs torch 2.6 here")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_reset_knows_of_no_other_network():
    """Each network that was reset since compiled the graph anew, since it stood in a table of all of them."""
    from torch._dynamo.testing import CompileCounter

    def made():
        def steps(self, x):
            sc.reset(self)
            return torch.stack([self.lif(now) for now in x])

        return Using(steps, lif=sc.LIF(step="single", backend="torch"))

    net, others, counter, x = made(), [made() for _ in range(3)], CompileCounter(), torch.rand(T, B, C)
    torch._dynamo.reset()
    used = torch.compile(net, backend=counter)
    with torch.no_grad():
        first = used(x)
        compiled = counter.frame_count
        for other in others:
            other(x)
            assert torch.equal(used(x), first)
        assert counter.frame_count == compiled
        assert torch.equal(net(x), first)
