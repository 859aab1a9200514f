"""One number that is not finite, at six places of two networks: explain and monitor say where it began."""

from __future__ import annotations

from typing import Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

NAN = float("nan")
STEPS, BATCH = 5, 4


class Between(nn.Module):
    """A layer of a user's own, which gives NaN for one number at time step 2."""

    def __init__(self) -> None:
        super().__init__()
        self.spoils = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.spoils:
            return x
        at = torch.zeros_like(x)
        at[(2,) + (1,) * (x.ndim - 1)] = 1.0
        return x + (at - 1.0).sqrt().nan_to_num() + torch.where(at == 1.0, (-at).sqrt(), torch.zeros_like(at))


def dense() -> nn.Sequential:
    """Linear layers and LIF."""
    return nn.Sequential(nn.Linear(6, 16), Between(), sc.LIF(learn=("tau",)), nn.Linear(16, 3), sc.LIF())


def recurrent() -> nn.Sequential:
    """Neurons that hear themselves, read out by a potential."""
    return nn.Sequential(
        nn.Linear(6, 16), Between(), sc.Recurrent(sc.LIF(learn=("tau",)), nn.Linear(16, 16)), nn.Linear(16, 3), sc.LI()
    )


NETWORKS: Dict[str, Callable[[], nn.Sequential]] = {"dense": dense, "recurrent": recurrent}
#: Of each network: first layer with weights, last one, first neuron; and what the neuron's layer is.
NAMES = {"dense": ("0", "3", "2", "2 (LIF)"), "recurrent": ("0", "3", "2.neuron", "2 (Recurrent)")}
PLACES = ("input", "first weight", "last bias", "tau", "a layer's output", "overflow")


def planted(network: str, place: str) -> Tuple[nn.Sequential, Tensor]:
    """A network and its batch, with something that is not finite."""
    torch.manual_seed(0)
    net = NETWORKS[network]()
    first, last, neuron, _ = NAMES[network]
    x = 3 * torch.rand(STEPS, BATCH, 6)
    with torch.no_grad():
        if place == "input":
            x[(3,) + (0,) * (x.ndim - 1)] = NAN
        elif place == "first weight":
            net.get_submodule(first).weight.view(-1)[5] = NAN
        elif place == "last bias":
            net.get_submodule(last).bias[1] = NAN
        elif place == "tau":
            net.get_submodule(neuron).tau.fill_(NAN)
        elif place == "overflow":
            net.get_submodule(first).weight.fill_(3e38)
            x += 2
        elif place == "a layer's output":
            next(module for module in net if isinstance(module, Between)).spoils = True
    return net, x


def begins(network: str, place: str) -> str:
    """Beginning of the text, behind its first words."""
    first, last, neuron, _ = NAMES[network]
    return {
        "input": "NaN begins in the input: x has 1 NaN among 120 numbers, the first at index [3, 0, 0], time step 3.",
        "first weight": f"NaN begins in a parameter: {first}.weight has 1 NaN among",
        "last bias": f"NaN begins in a parameter: {last}.bias has 1 NaN among 3 numbers, the first at index [1].",
        "tau": f"NaN begins in a parameter: {neuron}.tau has the value NaN.",
        "a layer's output": "NaN begins in the output of 1 (Between), whose input is finite: it has 1 NaN among",
        "overflow": f"an infinity begins in the output of {first} (Linear), whose input is finite: it has",
    }[place]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("network", NETWORKS)
def test_explain_says_where_it_began(network: str, place: str) -> None:
    """First of all advice, with the layer and the time step; and nothing is said of silent layers."""
    net, x = planted(network, place)
    found = sc.explain(net, x)
    assert found.advice[0].startswith(f"Numbers are not finite: {begins(network, place)}")
    assert not any("never fired" in text or "larger" in text for text in found.advice)
    if place == "a layer's output":
        assert "time step 2." in found.advice[0]
        assert f"It reaches {NAMES[network][3]}, time step 2" in found.advice[0]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("network", NETWORKS)
def test_monitor_says_what_has_it_since_when(network: str, place: str) -> None:
    """The second call has it: rates of such a layer are not shown as those of silent neurons."""
    net, x = planted(network, place)
    clean, good = planted(network, "none")
    with sc.monitor(net) as seen:
        if place in ("input", "a layer's output"):
            between = next(module for module in net if isinstance(module, Between))
            between.spoils = False
            net(good)
            between.spoils = place != "input"
        net(x)
    call = 2 if place in ("input", "a layer's output") else 1
    layer = seen[NAMES[network][3].split()[0]] if place != "last bias" else seen.layers[-1]
    step = {"input": 3, "a layer's output": 2}.get(place, 0)
    what = "an infinity" if place == "overflow" else "NaN"
    expected = f"its input has {what}, from time step {step} of call {call} on"
    if place == "tau":  # of parameters sc.explain tells
        assert layer.not_finite == ""
        return
    assert layer.not_finite == expected
    assert f"{layer.name} ({layer.kind}): {layer.not_finite}" in str(seen)
    assert "names the layer where it began" in str(seen)
    if layer.rate is not None:
        assert str(seen).count("not finite  not finite") >= 1
    with sc.monitor(clean) as fine:
        clean(good)
    assert "not finite" not in str(fine)
    assert [each.not_finite for each in fine.layers] == ["", ""]


@pytest.mark.parametrize(
    ("tensor", "value", "text"),
    [
        (
            "1.norm.running_var",
            NAN,
            "NaN begins in a buffer: 1.norm.running_var has 1 NaN among 8 numbers, the first at",
        ),
        ("2.linear.weight", float("inf"), "an infinity begins in a parameter: 2.linear.weight has 1 infinity among 64"),
    ],
)
def test_weights_and_statistics_are_named(tensor: str, value: float, text: str) -> None:
    """Of a normalisation that a neuron takes over, and of a feedback, whose neurons hide it."""
    norm = sc.layers.NormNeuron(nn.BatchNorm1d(8), sc.LIF())
    net = nn.Sequential(nn.Linear(6, 8), norm, sc.Recurrent(sc.LIF(), nn.Linear(8, 8)))
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    state[tensor].data.view(-1)[3] = value
    # as many steps as the weight has rows, which are no steps
    found = sc.explain(net, torch.rand(8, BATCH, 6), training=True).advice[0]
    assert found.startswith(f"Numbers are not finite: {text}")
    assert "time step" not in found.partition("]")[2].partition(".")[0]


class Masked(nn.Module):
    """Scores of which one is masked."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def test_what_is_infinite_on_purpose_is_no_cause() -> None:
    """A threshold that is never reached, and a masked input; what comes of them is named where it begins."""
    x = torch.rand(STEPS, BATCH, 6)
    x[1, 0, 2] = -float("inf")
    net = nn.Sequential(nn.Identity(), Masked(), sc.LIF(threshold=float("inf")))
    assert not any("not finite" in text for text in sc.explain(net, x).advice)
    silent = sc.IF(threshold=100.0, reset="none", backend="torch")  # its potential is infinite, and was given that
    assert not any("not finite" in text for text in sc.explain(silent, x).advice)
    text = sc.explain(sc.LIF(backend="torch"), x).advice[0]
    assert "NaN begins in LIF, whose input has infinities and no NaN: its state 'v' has 3 NaN" in text
    spoiling = nn.Sequential(nn.Identity(), nn.Linear(6, 3), sc.LIF(threshold=float("inf")))
    nn.init.zeros_(spoiling[1].weight)
    text = sc.explain(spoiling, x).advice[0]
    assert "NaN begins in the output of 1 (Linear), whose input has infinities and no NaN: it has 3 NaN" in text
    assert "It reaches 2 (LIF), time step 1." in text
    step = sc.training_model(
        spoiling,
        lambda y, _: y.sum() / 0.0,
        torch.optim.SGD(spoiling.parameters(), 0.1),
        options=sc.TrainingOptions(clip_norm=1.0),
    )
    with pytest.raises(FloatingPointError) as raised:
        step(x, torch.zeros(BATCH))
    assert "the input has" not in str(raised.value)
    assert "threshold' has" not in str(raised.value)
