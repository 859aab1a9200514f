"""Weight decay: the groups of an optimiser, and what the first step says without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import PSN, TEBN, NormNeuron, TimeBatched

#: Torch 2.0 warns of each lazy module.
pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")


class Own(nn.Module):
    """A module with a parameter of each kind, and the weight of another one."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.tied, self.mixing, self.gain = weight, nn.Parameter(torch.rand(3, 3)), nn.Parameter(torch.rand(3))


def network() -> nn.Sequential:
    """Layers with parameters of all kinds; the neurons of 1 and 13 share theirs."""
    tau = nn.Parameter(torch.full((6, 6), 2.0))
    linear = nn.Linear(6, 6)
    net = nn.Sequential(
        linear,
        sc.LIF(tau, learn=("threshold",)),
        TimeBatched(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.LayerNorm((2, 4, 4))),
        NormNeuron(nn.BatchNorm1d(6), sc.PLIF()),
        sc.Delay(nn.Linear(6, 6), 4),
        sc.Recurrent(sc.GLIF(), nn.Linear(6, 6, bias=False)),
        TEBN(6, 4, dims=1),
        PSN(4),
        sc.encode.Population(2, 3),
        Own(linear.weight),
        nn.MultiheadAttention(4, 2),
        sc.layers.SpikingGRU(3, 4),
        nn.Embedding(5, 3),
        sc.LIF(tau),
    )
    net[4].linear.weight.requires_grad_(False)
    return net


DECAY = """
0.weight 2.module.0.weight 4.linear.weight 5.linear.weight 7.weight 9.mixing 10.in_proj_weight
10.out_proj.weight 12.weight
""".split()


def test_weights_decay_and_nothing_else() -> None:
    """Each parameter is in one group, in the order of the network; options are of both."""
    net = network()
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    decay, none = sc.functional.parameter_groups(net, weight_decay=0.1, lr=0.5)
    gates = [name for name in names.values() if name.startswith("11.") and "weight" in name]
    assert [names[id(each)] for each in decay["params"]] == sorted([*DECAY, *gates], key=list(names.values()).index)
    assert {*map(id, decay["params"]), *map(id, none["params"])} == {*names}
    assert len(decay["params"]) + len(none["params"]) == len(names)
    assert [(group["weight_decay"], group["lr"]) for group in (decay, none)] == [(0.1, 0.5), (0.0, 0.5)]


def test_a_shared_parameter_does_not_decay_if_a_neuron_has_it() -> None:
    """Whichever comes first."""
    layer = nn.Linear(4, 4, bias=False)
    for net in (
        nn.ModuleList([layer, sc.LIF(layer.weight, bounds=None)]),
        nn.ModuleList([sc.LIF(layer.weight, bounds=None), layer]),
    ):
        decay, none = sc.functional.parameter_groups(net)
        assert decay["params"] == []
        assert [each is layer.weight for each in none["params"]] == [True]


def test_an_optimiser_takes_them() -> None:
    """A learnt time constant without a gradient stays; a weight shrinks."""
    net = nn.Sequential(nn.Linear(2, 2), sc.LIF(20.0, learn=("tau",)))
    optimizer: Any = torch.optim.AdamW(sc.functional.parameter_groups(net, 0.5, lr=0.1))
    before = net[0].weight.detach().clone()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert net[1].tau.item() == 20.0
    assert torch.allclose(net[0].weight, before * 0.95)


def first_step(optimizer_of: Any, *layers: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(5, 6), *layers)
    step = sc.training_model(net, sc.losses.ce_max_membrane, optimizer_of(net))
    for _ in range(2):
        step(torch.rand(4, 8, 5), torch.randint(0, 3, (8,)))


def test_the_first_step_says_what_decays() -> None:
    """Once, with the names of a few; nothing where neurons learn nothing, or are left out."""
    layers = [sc.LIF(learn=("tau", "threshold")), sc.Delay(nn.Linear(6, 3), 2), sc.LI(learn=["tau"])]
    said = (
        r"^AdamW decays 1\.tau, 1\.threshold, 2\.delay and 1 more: weight_decay=0\.01 pulls these towards 0, .* "
        r"sc\.functional\.parameter_groups\(net, weight_decay=\.\.\.\)"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        first_step(lambda net: torch.optim.AdamW(net.parameters(), 1e-3), *layers)
    assert len(caught) == 1
    first_step(lambda net: torch.optim.AdamW(sc.functional.parameter_groups(net), 1e-3), *layers)
    first_step(lambda net: torch.optim.Adam(net.parameters(), 1e-3), *layers)
    first_step(lambda net: torch.optim.AdamW(net.parameters(), 1e-3), sc.LIF(), nn.Linear(6, 3), sc.LI())


test_refused = refusals.table(__file__, globals())
