"""Training steps whose state is saved and loaded, and comparisons of such states."""

from __future__ import annotations

import copy

import torch
from torch import nn

import spikecore as sc


def everything(step):
    """All that a step holds, as a flat list of what can be compared."""
    state = step.state_dict()
    optimizer = state["optimizer"]
    found = [*state["net"].values(), *(v for one in optimizer["state"].values() for v in one.values())]
    found += [value for group in optimizer["param_groups"] for value in group.values()]
    found += [module.tau for module in step.net if isinstance(module, sc.LIF)]
    return copy.deepcopy([*found, state.get("scaler")])


def same(a, b):
    """Whether two such lists are equal to the bit."""
    pairs = list(zip(a, b))
    return len(a) == len(b) and all(torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in pairs)


def without(state, *path):
    """A copy of a state that lacks one entry."""
    state = copy.deepcopy(state)
    held = state
    for key in path[:-1]:
        held = held[key]
    del held[path[-1]]
    return state


def trained(build, seed=0, steps=2):
    """A step with two groups of parameters, one of them without a gradient."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), sc.LIF(), nn.Linear(6, 3), sc.LIF())
    net.register_parameter("unused", nn.Parameter(torch.ones(2)))
    optimizer = build([{"params": net[0].parameters()}, {"params": [*net[2].parameters(), net.unused]}])
    step = sc.training_model(net, sc.losses.ce_count, optimizer)
    for i in range(steps):
        generator = torch.Generator().manual_seed(10 * seed + i)
        step(torch.rand(5, 2, 4, generator=generator) * 4, torch.tensor([0, 1]))
    return step
