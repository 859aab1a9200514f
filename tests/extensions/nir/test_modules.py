"""The modules that graphs are loaded as, by themselves: no file and no package nir."""

from __future__ import annotations

import re

import pytest
import torch

import spikecore as sc
from spikecore.graph import read, run
from spikecore_nir import NIRLI, NIRLIF, NIRCubaLI, NIRCubaLIF
from spikecore_nir.modules import INPUT, Network, Unit

NEURONS = {
    "NIRLI": lambda: NIRLI(decay=0.7, gain=0.5, v_leak=0.1),
    "NIRLIF": lambda: NIRLIF(decay=0.7, gain=0.5, v_leak=0.1, threshold=0.4, v_reset=-0.2),
    "NIRLIF soft": lambda: NIRLIF(decay=0.7, gain=0.5, threshold=0.4, reset="soft", strict=False),
    "NIRLIF many": lambda: NIRLIF(decay=0.7, gain=0.9, threshold=0.4, reset="soft", many=True),
    "NIRLIF late": lambda: NIRLIF(decay=0.7, threshold=0.4, reset_delay=True, v_reset=0.1),
    "NIRLIF late soft": lambda: NIRLIF(decay=0.7, threshold=0.4, reset_delay=True, reset="soft"),
    "NIRCubaLI": lambda: NIRCubaLI(syn_decay=0.6, syn_gain=0.4, decay=0.7, gain=0.5, v_leak=0.1),
    "NIRCubaLIF": lambda: NIRCubaLIF(syn_decay=0.6, syn_gain=0.9, decay=0.7, gain=0.5, threshold=0.4, v_reset=-0.1),
}


def _by_hand(n, x):
    """One plain loop for every neuron, with a spike function whose derivative is the surrogate."""

    def fire(u):
        return sc.ops.spike(u, n.surrogate, getattr(n, "strict", True))

    i, v, out = torch.zeros_like(x[0]), n.v_leak.expand_as(x[0]), []
    for now in x:
        if hasattr(n, "syn_decay"):
            i = i * n.syn_decay + n.syn_gain * now
            now = i
        if not hasattr(n, "threshold"):
            v = n.v_leak + (v - n.v_leak) * n.decay + n.gain * now
            out.append(v)
            continue
        r = fire(v - n.threshold).detach() if n.reset_delay else torch.zeros_like(v)
        before = r * n.v_reset + (1 - r) * v if n.reset == "hard" else v
        h = n.v_leak + (before - n.v_leak) * n.decay + n.gain * now
        if n.reset == "soft":
            h = h - r * n.threshold
        z = fire(h - n.threshold)
        if n.many:
            z = z * (h.detach() / n.threshold).floor().clamp(min=1)
        out.append(z)
        if n.reset_delay:
            v = h
        else:
            v = h - z * n.threshold if n.reset == "soft" else z * n.v_reset + (1 - z) * h
    return torch.stack(out)


@pytest.mark.parametrize("name", NEURONS)
def test_neurons_against_a_loop(name: str) -> None:
    """Outputs and gradients, the parameters' too, in float64."""
    neuron = NEURONS[name]()
    learnt = type(neuron)(
        **{each: getattr(neuron, each) for each in neuron.params},
        **{each: getattr(neuron, each) for each in ("reset", "reset_delay", "strict", "many") if hasattr(neuron, each)},
        learn=tuple(neuron.params),
    ).double()
    x = 2 * torch.rand(20, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    found = []
    for compute in (learnt, lambda given: _by_hand(learnt, given)):
        leaf = x.clone().requires_grad_()
        y = compute(leaf)
        weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
        parts = [leaf, *learnt.parameters()]
        found.append([y, *torch.autograd.grad((y * weights).sum(), parts, allow_unused=True)])
    assert found[0][0].unique().numel() > 1
    for got, want in zip(*found):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_streaming_through_a_delay() -> None:
    """Carried in single steps and over blocks, reset, and refused for another batch."""
    x, delay = torch.randn(7, 2, 3), sc.nir.DelaySteps(torch.tensor([0, 1, 3]))
    want = torch.stack([torch.cat([torch.zeros(d, 2), x[: 7 - d, :, i]]) for i, d in enumerate((0, 1, 3))], -1)
    assert torch.equal(delay(x), want)
    with sc.carry_state(delay):
        assert torch.equal(torch.cat([delay(x[:2]), delay(x[2:])]), want)
    single = sc.nir.DelaySteps([0, 1, 3], step="single")
    assert torch.equal(torch.stack([single(step) for step in x]), want)
    with pytest.raises(ValueError, match=r"the state carried from the last call \[2, 3\]; call sc.reset\(net\)"):
        single(x[0, :1])
    sc.reset(single)
    assert torch.equal(single(x[0]), want[0])
    for steps, kind, words in (
        (torch.ones(2), TypeError, "steps has dtype torch.float32; give whole numbers of time steps"),
        ([1, -2], ValueError, "steps has -2; a delay must be 0 or above"),
    ):
        with pytest.raises(kind, match=re.escape(words)):
            sc.nir.DelaySteps(steps)
    with pytest.raises(ValueError, match=re.escape("x of shape [7, 2, 4] must end with the shape of steps, [3]")):
        delay(torch.zeros(7, 2, 4))


def test_a_loaded_network_can_be_read() -> None:
    """Its layers are calls, those of one step with time and batch as one dimension."""
    conv, flat, linear = torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 8)
    units = [Unit("conv", conv, (INPUT,)), Unit("a.flat", flat, ("conv",)), Unit("a.fc", linear, ("a.flat",))]
    net = Network([*units, Unit("lif", NIRLIF(decay=0.7), ("a.flat", "a.fc"))], ("lif", "a.fc")).eval()
    graph, x = read(net), torch.rand(4, 3, 1, 4, 4)
    assert [call.name for call in graph.calls if call.module is not None] == ["conv", "a.flat", "a.fc", "lif"]
    assert [call.is_folded for call in graph.calls if call.module is not None] == [True, True, False, False]
    output, shapes = run(graph, x)
    assert torch.equal(output, net(x))
    assert shapes[graph.calls_of(linear)[0]] == (4, 3, 8)
