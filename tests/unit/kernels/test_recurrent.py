"""Feedback through a matrix on kernel backends that know nothing of it; its values are those of the suite."""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
from torch import nn

import spikecore as sc
from kernel_loop import Loop, bound
from spikecore.testing import installed


def net_of(neuron: Any) -> Any:
    """A recurrent layer, always the same, in one call."""
    torch.manual_seed(4)
    return sc.Recurrent(neuron, nn.Linear(4, 4), fused=True)


def test_what_is_kept_for_backward() -> None:
    """Inputs of the neuron at each step, and states after every root of the steps; the input itself is not."""
    kept: List[Tuple[int, ...]] = []
    net = net_of(sc.ALIF())
    bound(net.neuron, Loop())
    x = torch.randn(400, 2, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        out = net(x)
    # u and the output; v and a after 20, 40, ..., 380 steps; v, a and the last output before the first; weight, bias
    assert sorted(kept) == sorted([(400, 2, 4)] * 2 + [(19, 2, 4)] * 2 + [(2, 4)] * 3 + [(4, 4), (4,)])
    out.sum().backward()
    kept.clear()
    net.linear.requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        net(x)
    assert kept.count((400, 2, 4)) == 1


def test_backward_within_autocast() -> None:
    """Of a call that was computed without: its products have the dtypes of that call."""
    x, found = torch.randn(6, 3, 4), []
    for inside in (False, True):
        with installed(Loop) as name:
            net = net_of(sc.LIF(1.7, backend=name))
            torch.manual_seed(3)
            state = {key: torch.rand(3, 4).requires_grad_() for key in ("v", "feedback")}
            out = net.run(x, state=state)[0]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                found.append(torch.autograd.grad(out.sum(), [*net.parameters(), *state.values()]))
    for plain, within in zip(*found):
        assert torch.equal(plain, within)
