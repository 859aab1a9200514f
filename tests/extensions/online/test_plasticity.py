"""STDP and its form with rewards against pairs of spikes counted one by one, in one chunk and in many."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import TimeBatched
from spikecore_online import STDP

T, B, N, J = 23, 3, 5, 4
CHUNKS = [1, 7, T]


def spikes(seed=0):
    return (torch.rand(T, B, N, generator=torch.Generator().manual_seed(seed)) < 0.4).double()


def network(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(N, J), sc.LIF(2.0)).double()
    nn.init.uniform_(net[0].weight, 0.0, 1.5)  # so that it fires
    return net


def no_loss(outputs, targets):
    return outputs.sum()


def trained(net, rule, x, chunk, loss=no_loss, targets=None):
    """By how much the weights of the first layer grow."""
    before = net[0].weight.detach().clone()
    options = sc.OnlineOptions(rule=rule, chunk=chunk)
    step = sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 1.0), options=options)
    step(x, targets)
    return net[0].weight.detach() - before


def pairings(u, y, decay_pre, decay_post):
    """``[T, B, J, N]``: of every pair of spikes what the later one of them adds, by loops over the pairs."""
    gained, lost = torch.zeros(T, B, J, N, dtype=torch.float64), torch.zeros(T, B, J, N, dtype=torch.float64)
    for b in range(B):
        for i in range(N):
            for j in range(J):
                for before in u[:, b, i].nonzero().flatten().tolist():
                    for behind in y[:, b, j].nonzero().flatten().tolist():
                        if before <= behind:
                            gained[behind, b, j, i] += decay_pre ** (behind - before)
                        if behind <= before:
                            lost[before, b, j, i] += decay_post ** (before - behind)
    return gained, lost


def window(tau):
    return sc.LI(tau, decay_input=False)


@pytest.mark.parametrize("chunk", CHUNKS)
class TestPairs:
    def test_stdp_counts_every_pair(self, chunk):
        """With windows and amplitudes of its own, one of which depends on the weight."""
        net, x = network(), spikes()
        gained, lost = pairings(x, net(x).detach(), 1 - 1 / 5.0, 1 - 1 / 9.0)
        weight = net[0].weight.detach().clone()
        rule = STDP(window(5.0), window(9.0), potentiation=lambda w: 1.0 - w, depression=0.7)
        expected = (1.0 - weight) * gained.sum((0, 1)) - 0.7 * lost.sum((0, 1))
        assert gained.any()
        assert lost.any()
        torch.testing.assert_close(trained(net, rule, x, chunk), expected, rtol=1e-12, atol=1e-12)

    def test_its_name_is_its_defaults(self, chunk):
        x = spikes()
        torch.testing.assert_close(trained(network(), "stdp", x, chunk), trained(network(), STDP(), x, chunk))

    def test_rewards_weigh_the_pairs_of_their_chunk(self, chunk):
        """A reward for each sample at the end of each chunk, which is the negative of the loss."""
        net, x = network(), spikes()
        y = net(x).detach()
        gained, lost = pairings(x, y, 1 - 1 / 20.0, 1 - 1 / 20.0)
        expected = torch.zeros(J, N, dtype=torch.float64)
        for begin in range(0, T, chunk):
            part = slice(begin, begin + chunk)
            rewards = -(y[part].sum((0, 2)) - 1.5)
            expected += torch.einsum("b,tbji->ji", rewards, (gained - lost)[part])
        grown = trained(net, "rstdp", x, chunk, lambda outputs, targets: outputs.sum((0, 2)) - 1.5)
        torch.testing.assert_close(grown, expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("per_sample", [True, False])
    def test_rewards_reach_back_by_an_eligibility(self, chunk, per_sample):
        net, x, tau = network(), spikes(), 6.0
        y = net(x).detach()
        gained, lost = pairings(x, y, 1 - 1 / 20.0, 1 - 1 / 20.0)

        def loss(outputs, targets):
            each = outputs.sum((0, 2)) - 1.5
            return each if per_sample else each.sum()

        expected, trace = torch.zeros(J, N, dtype=torch.float64), torch.zeros(B, J, N, dtype=torch.float64)
        for t in range(T):
            trace = math.exp(-1 / tau) * trace + (gained - lost)[t] / tau
            if (t + 1) % chunk == 0 or t == T - 1:
                begin = t // chunk * chunk
                rewards = -loss(y[begin : t + 1], None)
                expected += (rewards.reshape(-1, 1, 1) * trace).sum(0)
        rule = STDP(reward=True, tau_eligibility=tau)
        torch.testing.assert_close(trained(net, rule, x, chunk, loss), expected, rtol=1e-12, atol=1e-12)

    def test_a_convolution_pairs_patches(self, chunk):
        """That of a linear layer whose inputs are the patches, summed over places; within TimeBatched."""
        torch.manual_seed(0)
        x = (torch.rand(T, B, 2, 8, generator=torch.Generator().manual_seed(1)) < 0.5).double()
        net = nn.Sequential(TimeBatched(nn.Conv1d(2, J, 3, stride=2, padding=1)), sc.LIF(1.5)).double()
        conv = net[0].module
        y = net(x).detach()
        before = conv.weight.detach().clone()
        step = sc.training_model(
            net, no_loss, torch.optim.SGD(net.parameters(), 1.0), options=sc.OnlineOptions(rule="stdp", chunk=chunk)
        )
        step(x)
        patches = nn.functional.pad(x, (1, 1)).unfold(-1, 3, 2)  # [T, B, 2, 4, 3]
        p, q = torch.zeros_like(patches[0]), torch.zeros_like(y[0])
        expected = torch.zeros_like(before)
        for u, z in zip(patches, y):
            p, q = p * (1 - 1 / 20.0) + u, q * (1 - 1 / 20.0) + z
            expected += torch.einsum("bjl,bilk->jik", z, p) - torch.einsum("bjl,bilk->jik", q, u)
        torch.testing.assert_close(conv.weight.detach() - before, expected, rtol=1e-12, atol=1e-12)

    def test_feedback_pairs_its_own_spikes(self, chunk):
        """The weights of ``Recurrent``: their input is the output of the step before."""
        torch.manual_seed(0)
        x = 2.0 * spikes(3)[..., :J]
        net = sc.Recurrent(sc.LIF(2.0), nn.Linear(J, J)).double()
        y = net(x).detach()
        before = net.linear.weight.detach().clone()
        step = sc.training_model(
            net, no_loss, torch.optim.SGD(net.parameters(), 1.0), options=sc.OnlineOptions(rule="stdp", chunk=chunk)
        )
        step(x)
        fed = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
        p, q = torch.zeros_like(y[0]), torch.zeros_like(y[0])
        expected = torch.zeros_like(before)
        for u, z in zip(fed, y):
            p, q = p * (1 - 1 / 20.0) + u, q * (1 - 1 / 20.0) + z
            expected += z.t() @ p - q.t() @ u
        assert expected.any()
        torch.testing.assert_close(net.linear.weight.detach() - before, expected, rtol=1e-12, atol=1e-12)


def test_any_equations_make_a_window():
    """Nearest neighbours: a spike sets the trace to 1, whatever was before."""

    class Nearest(sc.Neuron):
        states = {"p": 0.0}
        params = {"decay": 0.8}

        def dynamics(self, x, s, p):
            trace = sc.ops.where(x > 0.5, 1.0, p.decay * s.p)
            return trace, {"p": trace}

    net, x = network(), spikes()
    y = net(x).detach()
    expected = torch.zeros(J, N, dtype=torch.float64)
    for b in range(B):
        for i in range(N):
            for j in range(J):
                pre, post = x[:, b, i].nonzero().flatten().tolist(), y[:, b, j].nonzero().flatten().tolist()
                expected[j, i] += sum(0.8 ** (t - max(s for s in pre if s <= t)) for t in post if t >= min(pre))
                expected[j, i] -= sum(
                    0.8 ** (s - max(t for t in post if t <= s)) for s in pre if s >= min(post, default=T)
                )
    torch.testing.assert_close(trained(net, STDP(Nearest(), Nearest()), x, 5), expected, rtol=1e-12, atol=1e-12)


def test_traces_are_of_the_step():
    """They go on within ``feed``, are saved and loaded, and gone after a reset; the batch may then be another."""
    net, x = network(), spikes()
    expected = trained(network(), "stdp", x, T)
    before = net[0].weight.detach().clone()
    options = sc.OnlineOptions(rule="stdp")

    def made(of):
        return sc.training_model(of, no_loss, torch.optim.SGD(of.parameters(), 1.0), options=options)

    step = made(net)
    for x_t in x[:9]:
        step.feed(x_t)
    other = made(network(seed=5))
    other.load_state_dict(step.state_dict())
    for x_t in x[9:]:
        other.feed(x_t)
    other.update()
    torch.testing.assert_close(other.net[0].weight.detach() - before, expected, rtol=1e-12, atol=1e-12)
    assert other.traces
    sc.reset(other.net)
    other.feed(x[0, :1])


test_refused = refusals.table(__file__, globals())
