"""SequenceDropout drops the same neurons at every step of a sequence, and keeps its mask as long as that lasts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.context import COMPILES
from spikecore.layers import SequenceDropout, TimeBatched

T, B, C = 6, 4, 50


def seeded(**keywords):
    return SequenceDropout(0.3, generator=torch.Generator().manual_seed(0), **keywords)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_mask_for_all_steps(dtype):
    """y[t] = x[t] mask / (1 - p); each sample has its own; the next call draws anew, in eval() none does."""
    layer, x = seeded(), torch.rand(T, B, C).to(dtype) + 0.5
    first, second = layer(x), layer(x)
    assert first.dtype == dtype
    for y in (first, second):
        dropped = y == 0
        assert torch.equal(dropped, dropped[:1].expand_as(dropped))
        factor = torch.tensor(1 / 0.7, dtype=dtype)
        assert torch.equal(y[~dropped], (x * factor)[~dropped])
        assert 0.15 < dropped[0].float().mean() < 0.45
    assert not torch.equal(first[:, 0] == 0, first[:, 1] == 0)
    assert not torch.equal(first, second)
    assert layer.eval()(x) is x


def test_the_mask_stays_in_single_steps():
    """Until reset; the steps give what a call of all steps gives with the same numbers."""
    single, multi, x = seeded(step="single"), seeded(), torch.rand(T, B, C)
    assert torch.equal(torch.stack([single(step) for step in x]), multi(x))
    assert list(single.state) == ["mask"]
    before = single(x[0])
    sc.reset(single)
    assert not torch.equal(single(x[0]), before)
    with pytest.raises(ValueError, match=r"carried .* has mask of shape \[4, 50\].* has \[3, 50\].*call sc\.reset"):
        single(x[0, :3])


def test_the_mask_stays_where_state_is_carried():
    """Chunks of a sequence within carry_state have one mask, and a saved state has it, too."""
    net, x = nn.Sequential(seeded(), sc.LIF()), torch.rand(T, B, C)
    layer = net[0]
    with sc.carry_state(net):
        parts = torch.cat([layer(x[:2]), layer(x[2:])])
        assert torch.equal(parts == 0, (parts == 0)[:1].expand_as(parts))
        state = sc.get_state(layer)
        sc.reset(layer)
        assert not torch.equal(layer(x), parts)
        sc.set_state(layer, state)
        assert torch.equal(layer(x), parts)
    assert layer.state is None
    assert not torch.equal(layer(x), parts)


@pytest.mark.skipif(not COMPILES, reason="sc.checkpoint needs torch 2.6")
@pytest.mark.parametrize("carried", [False, True])
def test_checkpointed(carried):
    """A part that is computed again has the mask that it had."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(C, C), SequenceDropout(), sc.LIF(), nn.Linear(C, 3))
    x, gradients = torch.rand(T, B, C), []
    for checkpointed in (False, True):
        if checkpointed:
            net = sc.checkpoint(net, every=2)
        torch.manual_seed(1)
        net.zero_grad()
        if carried:
            with sc.carry_state(net):
                (net(x[:3]).sum() + net(x[3:]).sum()).backward()
        else:
            net(x).sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.skipif(
    not COMPILES,
    reason="before 2.3 torch does not say that it compiles",
)
def test_compiled():
    """Compiled code is as eager code in one graph; a generator that cannot be used there is refused."""
    torch.compiler.reset()
    x = torch.rand(T, B, C)
    dropped = torch.compile(SequenceDropout(0.3), backend="aot_eager")(x) == 0
    assert 0.15 < dropped.float().mean() < 0.45
    assert torch.equal(dropped, dropped[:1].expand_as(dropped))
    with pytest.raises(Exception, match=r"a compiled or exported graph cannot draw from a torch\.Generator"):
        torch.compile(seeded(), fullgraph=True, backend="aot_eager")(x)


test_refused = refusals.table(__file__, globals(), TimeBatched)
