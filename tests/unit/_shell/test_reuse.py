"""A neuron that carries its state belongs to one place of a network: a second one is found by names and by counts."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import spikecore as sc
from sequences import Backwards

T, B, C = 4, 2, 3


def shared(lif):
    return nn.Sequential(nn.Linear(C, C), lif, nn.Linear(C, C), lif)


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


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


class Net(nn.Module):
    """Two neurons, the first of which may be called at two places."""

    def __init__(self, twice=True, step="single"):
        super().__init__()
        self.lif, self.last, self.twice = sc.LIF(step=step), sc.LI(step=step), twice

    def forward(self, x):
        hidden = self.lif(x)
        return self.last(self.lif(hidden) if self.twice else hidden)


COUNT = "LIF carries its state and was called 6 times since the last reset"


class TestCalled:
    """One neuron called at two places is called twice as often as the others: a warning where the counts end."""

    TWICE = f"^{COUNT}, and other neurons of the network 3 times"

    def ways(self):
        """Reset, the end of carried state, and a training step, after three steps or chunks."""

        def reset(twice):
            net = Net(twice)
            for x in torch.rand(3, B, C):
                net(x)
            sc.reset(net)

        def carried(twice):
            net = Net(twice, step="multi")
            with sc.carry_state(net):
                for x in torch.rand(3, T, B, C):
                    net(x)

        def step(twice):
            class Loop(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc, self.net = nn.Linear(C, C), Net(twice)

                def forward(self, x):
                    return torch.stack([self.net(self.fc(x_t)) for x_t in x])

            net = Loop()
            made = sc.training_model(net, sc.losses.ce_max_membrane, torch.optim.SGD(net.parameters(), 0.1))
            made(torch.rand(3, B, C), torch.zeros(B, dtype=torch.long))

        return reset, carried, step

    @pytest.mark.parametrize("way", [0, 1, 2], ids=["reset", "carry_state", "training_model"])
    def test_two_places(self, way):
        """The neuron, both counts and the ways out are in the warning; at one place there is none."""
        run = self.ways()[way]
        with pytest.warns(RuntimeWarning, match=self.TWICE + ".*make a neuron for each place.*checkpoint_contexts"):
            run(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(False)

    def test_counts_begin_again(self):
        """A reset ends the count; so do calls at rest, of which none is counted."""
        net = Net(step="multi")
        for x in torch.rand(3, T, B, C):
            net(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sc.reset(net)
        net = Net()
        for x in torch.rand(3, B, C):
            net(x)
        with pytest.warns(RuntimeWarning, match=self.TWICE):
            sc.reset(net)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sc.reset(net)

    def test_a_region_that_torch_runs_again(self):
        """A part of a network in torch's checkpointing, without its contexts, is called more often; with them not."""
        for contexts in (False, True):
            net = Net(twice=False)
            options = {"context_fn": sc.parallel.checkpoint_contexts(net.lif)} if contexts else {}
            for x in torch.rand(3, B, C, requires_grad=True).unbind():
                net.last(torch.utils.checkpoint.checkpoint(net.lif, x, use_reentrant=False, **options)).sum().backward()
                sc.detach(net)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                sc.reset(net)
            assert (
                [str(warning.message)[:40] for warning in caught] == []
                if contexts
                else ["LIF carries its state and was called 6 t"]
            )


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

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lif = sc.LIF(step="single", backend="torch")

        def forward(self, x):
            sc.reset(self)
            return torch.stack([self.lif(now) for now in x])

    net, others, counter, x = Steps(), [Steps() for _ in range(3)], CompileCounter(), torch.rand(T, B, C)
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
