"""A neuron that carries its state belongs to one place of a network; a second one is an error that names both."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, C = 4, 2, 3


def shared(lif):
    return nn.Sequential(nn.Linear(C, C), lif, nn.Linear(C, C), lif)


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

    @pytest.mark.parametrize("container", [nn.Sequential, lambda *m: nn.ModuleList(m)], ids=["Sequential", "list"])
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
    def test_single_step(self, function, container):
        """Whatever is done to the network, both names are told."""
        lif = sc.LIF(step="single")
        net = container(nn.Linear(C, C), lif, nn.Linear(C, C), lif)
        with pytest.raises(ValueError, match="^LIF carries its state and is in the network twice, as '1' and '3'"):
            function(net)

    def test_that_would_carry(self):
        """At rest one neuron may be used twice; carrying it may not."""
        net, x = shared(sc.LIF()), torch.rand(T, B, C)
        assert torch.equal(net(x), net(x))
        sc.reset(net)
        with pytest.raises(ValueError, match="'1' and '3'"), sc.carry_state(net):
            raise AssertionError("entered")

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

    def test_one_place(self):
        """A loop is one place, and so is the same call of every chunk."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def forward(self, x):
                return torch.stack([self.lif(x_t) for x_t in x])

        net, x = Net(), torch.rand(T, B, C)
        expected = sc.LIF()(x)
        assert torch.equal(torch.cat([net(x[:2]), net(x[2:])]), expected)

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

    def test_a_reset_begins_anew(self):
        """After a reset another place may be the one."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def forward(self, x, first):
                if first:
                    return self.lif(x)
                return self.lif(2 * x)

        net, x = Net(), torch.rand(B, C)
        for first in (True, False):
            net(x, first)
            net(x, first)
            sc.reset(net)
        net(x, True)
        with pytest.raises(RuntimeError, match="called at two places"):
            net(x, False)


class TestFreedGraph:
    """A forgotten detach or reset."""

    WAY_OUT = (
        r"^(LIF|LI|Recurrent) goes on from the state .* a second time\)\. Call sc\.detach\(net\).*sc\.reset\(net\)"
    )

    @pytest.mark.parametrize(
        "make",
        [lambda: sc.LIF(step="single"), lambda: sc.Recurrent(sc.LIF(), nn.Linear(C, C), step="single")],
        ids=["LIF", "Recurrent"],
    )
    def test_says_what_to_call(self, make):
        """The second backward names the neuron, and what was forgotten."""
        net, x = make(), torch.rand(T, B, C, requires_grad=True)
        for x_t in x[:2]:
            out = net(x_t)
        out.sum().backward()
        late = net(x[2])
        net(x[3])
        with pytest.raises(RuntimeError, match=self.WAY_OUT):
            late.sum().backward()

    def test_carried(self):
        """Chunks without a detach."""
        lif, x = sc.LIF(), torch.rand(T, B, C, requires_grad=True)
        with sc.carry_state(lif):
            lif(x[:2]).sum().backward()
            with pytest.raises(RuntimeError, match=self.WAY_OUT):
                lif(x[2:]).sum().backward()

    def test_a_graph_that_is_kept(self):
        """With ``retain_graph`` gradients go through."""
        lif, x = sc.LIF(), torch.rand(T, B, C, requires_grad=True)
        with sc.carry_state(lif):
            first = lif(x[:2]).sum()
            first.backward(retain_graph=True)
            lif(x[2:]).sum().backward()
        whole = torch.autograd.grad(lif(x).sum(), x)[0]
        torch.testing.assert_close(x.grad, whole)

    def test_never_backward_again(self):
        """A call after backward that never goes backward itself is not disturbed."""
        lif, x = sc.LIF(step="single"), torch.rand(2, B, C, requires_grad=True)
        lif(x[0]).sum().backward()
        out = lif(x[1])
        assert torch.equal(out, sc.LIF()(x)[1])


class OnTwo(nn.DataParallel):
    """``nn.DataParallel`` over two devices that are the CPU: its own forward, without the copies to devices."""

    def __init__(self, net, **options):
        super().__init__(net)
        self.device_ids, self.src_device_obj, self.output_device = [0, 1], torch.device("cpu"), 0
        self.dim = options.get("dim", 0)

    def scatter(self, inputs, kwargs, device_ids):
        return tuple((part,) for part in inputs[0].chunk(2, self.dim)), tuple({} for _ in device_ids)

    def replicate(self, module, device_ids):
        copies = []
        for _ in device_ids:
            found = {one: one._replicate_for_data_parallel() for one in module.modules()}
            for one, replica in found.items():
                for name, child in one._modules.items():
                    replica._modules[name] = found[child]
                for name, value in one._parameters.items():
                    setattr(replica, name, value.detach())
            copies.append(found[module])
        return copies

    def parallel_apply(self, replicas, inputs, kwargs):
        return [replica(*given) for replica, given in zip(replicas, inputs)]

    def gather(self, outputs, output_device):
        return torch.cat(outputs, self.dim)


class TestDataParallel:
    """``nn.DataParallel`` splits the first dimension and forgets its replicas."""

    def net(self, **options):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(C, C), sc.LIF(threshold=0.2, **options))

    def test_time_is_not_split(self):
        """Along dimension 0 it raises."""
        with pytest.raises(RuntimeError, match=r"^LIF is in an nn\.DataParallel.*nn\.DataParallel\(net, dim=1\)"):
            OnTwo(self.net())(torch.rand(T, 4, C))

    def test_a_step_is_refused_at_once(self):
        """``training_model`` and ``inference_model`` say so before the first batch."""
        net = OnTwo(self.net())
        with pytest.raises(ValueError, match=r"nn\.DataParallel\(net, dim=1\)"):
            sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 0.1))
        with pytest.raises(ValueError, match=r"nn\.DataParallel\(net, dim=1\)"):
            sc.inference_model(net)
        sc.inference_model(OnTwo(self.net(), dim=1))

    def test_the_batch_is_split(self):
        """Along dimension 1 it is right."""
        net, x = self.net(), torch.rand(T, 4, C)
        assert torch.equal(OnTwo(net, dim=1)(x), net(x))

    @pytest.mark.parametrize("dim", [0, 1])
    def test_no_state_is_lost(self, dim):
        """A neuron that carries its state raises, whatever is split."""
        with pytest.raises(RuntimeError, match=r"^LIF carries its state, and nn\.DataParallel forgets .*Distributed"):
            OnTwo(self.net(step="single"), dim=dim)(torch.rand(4, C))
        net = self.net()
        with sc.carry_state(net), pytest.raises(RuntimeError, match="^LIF carries its state"):
            OnTwo(net, dim=dim)(torch.rand(T, 4, C))

    def test_a_network_without_neurons(self):
        """Other networks are as they were."""
        net, x = nn.Sequential(nn.Linear(C, C)), torch.rand(4, C)
        torch.testing.assert_close(OnTwo(net)(x), net(x))


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
