"""Changes of a recurrent layer between two calls of one signature: the later call sees it."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import spikecore as sc

STEPS, BATCH, WIDTH = 7, 3, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


#: Each of them changes what a call gives, or how it is computed.
CHANGES: Dict[str, Callable[[Any], Any]] = {
    "the weight, in place": lambda net: net.linear.weight.data.mul_(-2.0),
    "another weight": lambda net: setattr(net.linear, "weight", nn.Parameter(net.linear.weight.detach() * 3.0)),
    "a linear without a bias": lambda net: setattr(net, "linear", nn.Linear(WIDTH, WIDTH, bias=False).double()),
    "a number of the neuron": lambda net: setattr(net.neuron, "v_reset", -0.5),
    "the reset": lambda net: setattr(net.neuron, "reset", "soft"),
    "detach": lambda net: setattr(net, "detach", True),
    "a frozen matrix": lambda net: net.linear.requires_grad_(False),
    "a hook": lambda net: net.linear.register_forward_hook(lambda module, args, out: out * 2.0),
    "a parametrisation": lambda net: parametrize.register_parametrization(net.linear, "weight", nn.Tanh()),
}


def results(net: Any, given: Optional[Dict[str, Tensor]]) -> List[Optional[Tensor]]:
    """Outputs, final states and all gradients of a call, from a given state or from rest."""
    net.zero_grad()
    x = (drawn(STEPS, BATCH, WIDTH) * 2).requires_grad_()
    out, state = net.run(x, state=given)
    torch.autograd.backward([out, state["v"]], [drawn(*out.shape, seed=1), drawn(*state["v"].shape, seed=2)])
    alone = net(x.detach())
    return [out.detach(), state["v"].detach(), alone.detach(), x.grad, *[p.grad for p in net.parameters()]]


def check_change(backend: str, change: str, **options: Any) -> None:
    """Calls before a change leave nothing behind: the call after it is that of a loop over the steps."""
    torch.manual_seed(3)
    net = sc.Recurrent(sc.LIF(2.0, backend=backend, **options), nn.Linear(WIDTH, WIDTH)).double()
    state = {"v": drawn(BATCH, WIDTH, seed=4), "feedback": (drawn(BATCH, WIDTH, seed=5) > 0).double()}
    before = [results(net, given) for _ in range(3) for given in (None, state)]
    assert net.looped == ""
    assert all(torch.equal(a, b) for a, b in zip(before[0], before[4]))  # type: ignore[arg-type]  # all are there
    CHANGES[change](net)
    looped = copy.deepcopy(net)
    looped.fused = False
    for given in (None, state):
        for ours, its in zip(results(net, given), results(looped, given)):
            assert (ours is None) == (its is None)
            if ours is not None and its is not None:
                torch.testing.assert_close(ours, its, rtol=1e-11, atol=1e-13)
