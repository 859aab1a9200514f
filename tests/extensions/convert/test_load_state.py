"""``sc.load_weights`` on files of snnTorch 1.0 and SpikingJelly 2.0 (``tests/peers/test_load_state.py`` wrote them)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Dict

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc

FILES = Path(__file__).parent / "files"
SNNTORCH, SPIKINGJELLY = FILES / "snntorch.pt", FILES / "spikingjelly.pt"
TimeBatched = sc.layers.TimeBatched


class Gain(nn.Module):
    """Feedback from each neuron to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.V = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.V


def leaky_net() -> nn.ModuleDict:
    """The network of the first file, with other numbers."""
    fed = sc.Leaky(0.1, threshold=torch.ones(4), learn=("beta",))
    parts: Dict[str, nn.Module] = {
        "fc1": nn.Linear(6, 5),
        "lif1": sc.Leaky(0.1),
        "fc2": nn.Linear(5, 4),
        "lif2": sc.Recurrent(fed, nn.Linear(4, 4)),
        "lif3": sc.Recurrent(sc.Leaky(0.1), Gain()),
        "lif4": sc.Leaky(0.1, reset="hard"),
    }
    return nn.ModuleDict(parts)


def leaky_spikes(net: nn.ModuleDict, x: Tensor) -> Tensor:
    first = net["lif1"](net["fc1"](x))
    second = net["lif2"](net["fc2"](first) * 4)
    third = net["lif3"](second)
    return torch.cat([first, second, third, net["lif4"](third)], 2)


def plif_net(*, grouped: bool = False) -> nn.Module:
    """The network of the second file; grouped: layers in other groups, so that names differ."""
    folded = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)]
    first = [TimeBatched(*folded)] if grouped else [TimeBatched(part) for part in folded]
    sigmoid = sc.surrogate.Sigmoid(4.0)
    last = [sc.PLIF(surrogate=sigmoid), TimeBatched(nn.Conv2d(2, 2, 3), nn.Flatten()), sc.KLIF(1.5, surrogate=sigmoid)]
    return nn.Sequential(*first, *last, nn.Linear(18, 4), sc.IF()).eval()


def read(path: Path) -> Any:
    return torch.load(str(path), weights_only=True)


def test_a_checkpoint_of_snntorch_gives_its_spikes() -> None:
    """Fixed and learnt values, single and several, with feedback through a layer and through single weights."""
    net, held = leaky_net(), read(SNNTORCH)
    result = sc.load_weights(net, SNNTORCH)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert torch.equal(leaky_spikes(net, held["x"]), held["spikes"])
    lif4: Any = net["lif4"]
    assert lif4.beta == pytest.approx(0.6)
    assert isinstance(lif4.beta, float)


@pytest.mark.parametrize("grouped", [False, True], ids=["by name", "by order"])
def test_a_checkpoint_of_spikingjelly_gives_its_spikes(grouped: bool) -> None:
    """A prefix of DataParallel, layers in TimeBatched with and without a container there."""
    net, held = plif_net(grouped=grouped), read(SPIKINGJELLY)
    result = sc.load_weights(net, str(SPIKINGJELLY), order=grouped)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert torch.equal(net(held["x"]), held["spikes"])


def test_what_does_not_fit_changes_nothing() -> None:
    """Another reset than the neuron's, a missing entry, another shape: by name, and the network is as it was."""
    held = read(SNNTORCH)["state_dict"]
    for change, text in (
        ({"lif4.reset_mechanism_val": torch.tensor(0)}, "lif4.reset_mechanism_val is 0, which means reset='soft', not"),
        ({"fc2.weight": torch.zeros(2, 2)}, "size mismatch for fc2.weight"),
        ({"fc9.weight": torch.zeros(2, 2)}, 'Unexpected key.*"fc9.weight"'),
        ({"lif1.graded_spikes_factor": torch.tensor(2.0)}, "lif1.graded_spikes_factor is 2.0, and spikes are 1 here"),
    ):
        net = leaky_net()
        before, first = copy.deepcopy(net.state_dict()), net["lif1"].beta
        with pytest.raises(RuntimeError, match=text):
            sc.load_weights(net, {**held, **change})
        assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
        assert net["lif1"].beta == first == 0.1


def test_strict_false_reports() -> None:
    """Keys are reported as load_state_dict does, by the names of here."""
    held = read(SPIKINGJELLY)["net"]
    del held["module.3.0.bias"]
    result = sc.load_weights(plif_net(), {**held, "module.other": torch.zeros(1)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["3.module.0.bias"], ["other"])


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """A file that is not there, and one with more than tensors."""
    net = leaky_net()
    with pytest.raises(FileNotFoundError, match="No such file"):
        sc.load_weights(net, tmp_path / "none.pt")
    other = tmp_path / "other.pt"
    torch.save({"net": net.state_dict(), "arguments": Path("a")}, str(other))
    with pytest.raises(ValueError, match="holds more than tensors.*\n?.*"):
        sc.load_weights(net, other)


def test_two_entries_of_one_name_are_refused() -> None:
    """One of them was lost, the last one in the file counted."""
    net, weight = nn.Sequential(TimeBatched(nn.Linear(2, 3))), torch.rand(3, 2)
    before = copy.deepcopy(net.state_dict())
    text = "sc.load_weights: '0.weight' and '0.0.weight' of the checkpoint are both '0.module.weight', in net the same"
    with pytest.raises(ValueError, match=text):
        sc.load_weights(net, {"0.weight": weight, "0.0.weight": weight + 1, "0.bias": torch.zeros(3)})
    text = "'0.bias' and '_orig_mod.0.bias' of the checkpoint are both '0.bias', without its wrappers the same"
    with pytest.raises(ValueError, match=text):
        sc.load_weights(net, {"0.weight": weight, "0.bias": torch.zeros(3), "_orig_mod.0.bias": torch.ones(3)})
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_safetensors_load(tmp_path: Path) -> None:
    """By their suffix."""
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors is in the extra train").save_file
    held = read(SPIKINGJELLY)
    save_file({key: value.contiguous() for key, value in held["net"].items()}, str(tmp_path / "net.safetensors"))
    net = plif_net()
    sc.load_weights(net, tmp_path / "net.safetensors")
    assert torch.equal(net(held["x"]), held["spikes"])


@pytest.mark.parametrize("order", [False, True])
def test_fixed_neurons_load_into_neurons_that_learn(order: bool) -> None:
    """``strict=False``: what the checkpoint has not stays as it was, in order as by name."""
    net = nn.Sequential(nn.Linear(3, 2), sc.PLIF(), nn.Linear(2, 2), sc.PLIF())
    fixed = nn.Sequential(nn.Linear(3, 2), sc.LIF(), nn.Linear(2, 2), sc.LIF()).state_dict()
    result = sc.load_weights(net, fixed, order=order, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["1.w", "3.w"], [])
    assert all(torch.equal(net.state_dict()[key], value) for key, value in fixed.items())


test_refused = refusals.table(__file__, globals())
