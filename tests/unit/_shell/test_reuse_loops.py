"""A loop or a recursion is one place of a network; one over layers that share a neuron is warned of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, C = 4, 2, 3


#: What every message about two places begins with.
TWO_PLACES = (
    r"LIF carries its state(,| and) is (called at|in (the network|one (Sequential|list))) (twice, as|two places)"
)


class Twice(nn.Module):
    """Calls one neuron at two places."""

    def __init__(self, step):
        super().__init__()
        self.lif = sc.LIF(step=step)

    def forward(self, x):
        hidden = self.lif(x)
        return self.lif(hidden)


class TestOnePlace:
    """What is one place: no call there is a second one."""

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

    @pytest.mark.parametrize("how", ["forward", "call", "function", "helper", "closure"])
    def test_a_recursion(self, how):
        """Steps by recursion are one place, as a loop is, however the network comes back to it."""

        def helped(net, x, t):
            return net.forward(x, t)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lif = sc.LIF(step="single")

            def step(self, x, t):
                out = [self.lif(x[t])]
                return out if t + 1 == len(x) else out + self.step(x, t + 1)

            def forward(self, x, t=0):
                if how == "function":
                    return self.step(x, t)

                def inner(t):
                    out = [self.lif(x[t])]
                    return out if t + 1 == len(x) else out + inner(t + 1)

                if how == "closure":
                    return inner(t)
                out = [self.lif(x[t])]
                if t + 1 == len(x):
                    return out
                if how == "helper":
                    return out + helped(self, x, t + 1)
                return out + (self.forward(x, t + 1) if how == "forward" else self(x, t + 1))

        net, x = Net(), torch.rand(T, B, C)
        for _ in range(2):
            assert torch.equal(torch.stack(net(x)), sc.LIF()(x))
            sc.reset(net)

    def test_a_recursion_over_two_blocks(self):
        """Blocks of one class within each other, which share a neuron, are two places."""

        class Block(nn.Module):
            def __init__(self, lif, within=None):
                super().__init__()
                self.lif, self.within = lif, within

            def forward(self, x):
                x = self.lif(x)
                return x if self.within is None else self.within(x)

        lif = sc.LIF(step="single")
        with pytest.raises(RuntimeError, match=TWO_PLACES):
            Block(lif, Block(lif))(torch.rand(B, C))

    def test_a_burn_in(self):
        """First steps without gradients in a loop of their own: the message says how one loop does it rightly."""

        class Net(nn.Module):
            def __init__(self, one_loop):
                super().__init__()
                self.lif, self.one_loop = sc.LIF(step="single"), one_loop

            def forward(self, x):
                if self.one_loop:
                    out = []
                    for t, x_t in enumerate(x):
                        with torch.set_grad_enabled(t >= 2):
                            out.append(self.lif(x_t))
                    return torch.stack(out)
                with torch.no_grad():
                    for x_t in x[:2]:
                        self.lif(x_t)
                return torch.stack([self.lif(x_t) for x_t in x[2:]])

        x = torch.rand(T, B, C)
        told = (
            r"if these are steps of one sequence, call it in one loop \(steps without gradients: for t, x_t in "
            r"enumerate\(x\): with torch\.set_grad_enabled\(t >= first\):\); or call it at one place"
        )
        with pytest.raises(RuntimeError, match=told):
            Net(False)(x)
        assert torch.equal(Net(True)(x), sc.LIF()(x))
        with pytest.raises(RuntimeError, match="steps of one sequence, call it in one loop; or"):
            Twice("single")(x[0])

    @pytest.mark.parametrize("how", ["loop", "enumerate", "helper"])
    def test_layers_that_share_an_activation(self, how, recwarn):
        """A loop over layers with one neuron for all is warned of, once, at the line that calls the neuron."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(C, C) for _ in range(3)])
                self.act = sc.LIF(step="single")

            def through(self, layer, x):
                return self.act(layer(x))

            def forward(self, x):
                for _, layer in enumerate(self.layers):
                    x = self.through(layer, x) if how == "helper" else self.act(layer(x))
                return x

        net = Net()
        for _ in range(3):
            net(torch.rand(B, C))
            sc.reset(net)
        (told,) = recwarn
        assert str(told.message) == (
            "LIF carries its state and is called for one 'layer' after the other: each goes on from the state that the "
            "one before left. Make a neuron for each of these modules; or, if they are for the steps of one sequence, "
            "take them by index, with no variable 'layer', which is not warned of"
        )
        assert told.filename == __file__

    def test_modules_at_hand_that_stay(self):
        """Loops over time, also around layers with neurons of their own, and modules by index, are fine."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(C, C) for _ in range(T)])
                self.acts = nn.ModuleList([sc.LIF(step="single") for _ in range(T)])
                self.act = sc.LIF(step="single")

            def forward(self, x):
                out = []
                for t, x_t in enumerate(x):
                    for layer, act in zip(self.layers, self.acts):
                        x_t = act(layer(x_t))
                    out.append(self.act(self.layers[t](x_t)))
                return torch.stack(out)

        net = Net()
        for _ in range(2):
            net(torch.rand(T, B, C))  # warnings are errors
