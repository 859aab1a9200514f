"""snnTorch 1.0's Synaptic, Alpha, Lapicque and RSynaptic, and ours: the same bits, and gradients to rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.peers

T, B, C = 15, 8, 24
#: Our name of a reset -> theirs.
RESETS = {"soft": "subtract", "hard": "zero", "none": "none"}
#: The class of theirs, ours, parameters shared by all neurons, and those with one value for each channel.
CHANNELS = torch.linspace(0.3, 0.95, C)
KINDS = {
    "Synaptic": (
        sc.SynapticLeaky,
        {"alpha": 0.6, "beta": 0.7, "threshold": 0.9},
        {"alpha": CHANNELS, "beta": CHANNELS},
    ),
    "Alpha": (sc.Alpha, {"alpha": 0.8, "beta": 0.6, "threshold": 0.3}, {"alpha": CHANNELS, "beta": CHANNELS - 0.25}),
    "Lapicque": (sc.Lapicque, {"beta": 0.6, "threshold": 0.6}, {}),
    "Lapicque of R and C": (sc.Lapicque, {"R": 1.3, "C": 1.7, "time_step": 0.6, "threshold": 0.5}, {}),
    "Lapicque of beta and R": (sc.Lapicque, {"beta": 0.6, "R": 2.3, "threshold": 0.5}, {}),
    "Lapicque of beta and C": (sc.Lapicque, {"beta": 0.6, "C": 1.7, "threshold": 0.4}, {}),
}
CASES = [
    pytest.param(
        kind, channels, reset, delay, id=f"{kind}{'-channels' * channels}-{reset}{'' if delay else '-at once'}"
    )
    for kind, (_, _, by_channel) in KINDS.items()
    for channels in ((False, True) if by_channel else (False,))
    for reset in RESETS
    for delay in ((True, False) if kind == "Synaptic" else (True,))
]


def pair(kind, channels, reset, delay):
    """Our neuron and theirs, learning what theirs can learn."""
    import snntorch

    ours, shared, by_channel = KINDS[kind]
    values = {**shared, **by_channel} if channels else shared
    delayed = {"reset_delay": delay} if kind == "Synaptic" else {}
    learn = (
        ("alpha", "beta", "threshold")
        if kind == "Synaptic"
        else ("beta", "threshold")
        if kind == "Alpha"
        else ("threshold",)
    )
    # theirs raises TypeError when alpha of Alpha is to be learnt
    given = {f"learn_{name}": True for name in learn}
    mine = ours(**values, reset=reset, **delayed, learn=learn, bounds=None, backend="torch")
    return mine, getattr(snntorch, kind.split()[0])(**values, **delayed, **given, reset_mechanism=RESETS[reset])


def run_theirs(neuron, x):
    """Spikes, and the states in their order, step by step from rest."""
    state, steps = neuron.reset_mem(), []
    state = state if isinstance(state, tuple) else (state,)
    for now in x:
        steps.append(neuron(now, *state))
        state = steps[-1][-len(state) :]
    return tuple(map(torch.stack, zip(*steps)))


def drive(seed=0, scale=1.0):
    """Input ``[T, B, C]``."""
    x = torch.rand(T, B, C, generator=torch.Generator().manual_seed(seed)) * 1.7 - 0.4
    return (x * scale).requires_grad_()


def gradients(values, wanted):
    """Gradients of a random linear function of all values."""
    random = torch.Generator().manual_seed(7)
    return torch.autograd.grad(sum((v * torch.randn(v.shape, generator=random)).sum() for v in values), wanted)


@pytest.mark.parametrize(("kind", "channels", "reset", "delay"), CASES)
def test_is_identical(kind, channels, reset, delay):
    """Spikes and every state are equal to the bit, with resets that happen, and gradients agree to rounding."""
    mine, peer = pair(kind, channels, reset, delay)
    x = drive(scale=0.4 if reset == "none" and not kind.startswith("Lapicque") else 1.0)
    want = run_theirs(peer, x)
    spikes, _, trace = mine.run(x, record=tuple(mine.states))
    got = (spikes, *trace.values())
    assert 0.03 <= spikes.mean() <= 0.9
    assert len(got) == len(want)
    for ours, theirs in zip(got, want):
        assert torch.equal(ours, theirs)
    names = [name for name, _ in mine.named_parameters()]
    found = gradients(got, [x, *mine.parameters()])
    asked = gradients(want, [x, *(getattr(peer, name) for name in names)])
    for name, ours, theirs in zip(("x", *names), found, asked):
        limit = 2e-5 * max(1.0, theirs.abs().max().item(), 0.0 if name == "x" else found[0].abs().sum().item() / C)
        assert (ours - theirs).abs().max() <= limit, name


@pytest.mark.parametrize("kind", ["Synaptic", "Alpha"])
def test_reset_tells_them_apart(kind):
    """What the resets of these cases do is seen in the spikes: none are like another's."""
    x = drive()
    spikes = [pair(kind, False, reset, True)[0](x) for reset in RESETS]
    assert (spikes[0] != spikes[1]).float().mean() > 0.01
    assert (spikes[1] != spikes[2]).float().mean() > 0.01


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("kind", ["RSynaptic", "RLeaky"])
def test_recurrent(kind, reset):
    """On weights and inputs that leave no rounding, Recurrent is RSynaptic, and RLeaky with alpha 0: the same bits."""
    import snntorch

    random = torch.Generator().manual_seed(3)
    weight, bias = ((torch.randint(-9, 10, shape, generator=random) / 64) for shape in ((C, C), (C,)))
    alpha = {"alpha": 0.5} if kind == "RSynaptic" else {}
    peer = getattr(snntorch, kind)(**alpha, beta=0.5, linear_features=C, reset_mechanism=RESETS[reset])
    inner = sc.SynapticLeaky(alpha.get("alpha", 0.0), 0.5, reset=reset, backend="torch")
    mine = sc.Recurrent(inner, nn.Linear(C, C))
    for linear in (peer.recurrent, mine.linear):
        linear.weight.data.copy_(weight)
        linear.bias.data.copy_(bias)
    x = ((drive() * 16).round() / 16).detach()[:8]
    spikes, _, trace = mine.run(x, record=("v",))
    want = run_theirs(peer, x)
    assert 0.1 <= spikes.mean() <= 0.8
    assert torch.equal(spikes, want[0])
    assert torch.equal(trace["v"], want[-1])
