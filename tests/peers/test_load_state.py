"""The checkpoints that ``tests/extensions/convert`` loads are what snnTorch and SpikingJelly write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.peers

FILES = Path(__file__).parents[1] / "extensions" / "convert" / "files"
T, B = 6, 3


def of_snntorch():
    """A network with single and several fixed values, learnt ones and feedback, and its spikes."""
    import snntorch as snn

    torch.manual_seed(0)
    parts = {
        "fc1": nn.Linear(6, 5),
        "lif1": snn.Leaky(beta=torch.linspace(0.5, 0.9, 5), threshold=0.8),
        "fc2": nn.Linear(5, 4),
        "lif2": snn.RLeaky(beta=0.7, linear_features=4, learn_beta=True, threshold=torch.linspace(0.6, 0.9, 4)),
        "lif3": snn.RLeaky(beta=0.9, all_to_all=False, V=0.5),
        "lif4": snn.Leaky(beta=0.6, reset_mechanism="zero"),
    }
    net = nn.ModuleDict(parts)
    x = torch.rand(T, B, 6, generator=torch.Generator().manual_seed(1)) * 6
    spikes, mem1, (spk2, mem2), (spk3, mem3), mem4 = [], None, (None, None), (None, None), None
    for now in x:
        spk, mem1 = net["lif1"](net["fc1"](now), mem1)
        spk2, mem2 = net["lif2"](net["fc2"](spk) * 4, spk2, mem2)
        spk3, mem3 = net["lif3"](spk2, spk3, mem3)
        spk4, mem4 = net["lif4"](spk3, mem4)
        spikes.append(torch.cat([spk, spk2, spk3, spk4], 1))
    return {"state_dict": net.state_dict(), "x": x, "spikes": torch.stack(spikes).detach()}


def of_spikingjelly():
    """Layers by themselves and in a container, and neurons that learn; as DataParallel saves them."""
    from spikingjelly.activation_based import functional, layer, neuron

    torch.manual_seed(0)
    net = nn.Sequential(
        *(layer.Conv2d(1, 2, 3), layer.BatchNorm2d(2), neuron.ParametricLIFNode(init_tau=3.0)),
        *(layer.SeqToANNContainer(nn.Conv2d(2, 2, 3), nn.Flatten()), neuron.KLIFNode(tau=1.5)),
        *(layer.Linear(18, 4), neuron.IFNode()),
    )
    functional.set_step_mode(net, "m")
    net[2].w.data.fill_(0.3)
    net[4].k.data.fill_(1.7)
    for layer_with_weight, factor in ((net[0], 3.0), (net[3][0], 6.0), (net[5], 6.0)):
        layer_with_weight.weight.data.mul_(factor)
    x = torch.rand(T, B, 1, 7, 7, generator=torch.Generator().manual_seed(1)) * 4
    spikes = net.eval()(x).detach()
    state = {f"module.{key}": value for key, value in net.state_dict().items()}
    return {"net": state, "x": x, "spikes": spikes}


MADE = {"snntorch.pt": of_snntorch, "spikingjelly.pt": of_spikingjelly}


def write():
    """``python -c "import sys; sys.path.insert(0, 'tests/peers'); import test_load_state as t; t.write()"``."""
    FILES.mkdir(exist_ok=True)
    for name, make in MADE.items():
        torch.save(make(), FILES / name)


@pytest.mark.parametrize("name", MADE)
def test_the_file_is_what_the_other_library_writes(name):
    """Entries and values, and the spikes that it has with them."""
    held, made = torch.load(FILES / name, weights_only=True), MADE[name]()
    (state,) = (key for key in made if key not in ("x", "spikes"))
    assert list(held[state]) == list(made[state])
    for key, value in made[state].items():
        torch.testing.assert_close(held[state][key], value)
    assert torch.equal(held["spikes"], made["spikes"])
    assert 0.05 < held["spikes"].mean() < 0.8
