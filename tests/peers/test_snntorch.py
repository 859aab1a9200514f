"""snnTorch 1.0 and spikecore compute the same: Leaky bit for bit, surrogates, losses, accuracy and encoders.

Its other neurons are compared in the rows of the guide (``test_guide.py``).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import spikecore as sc
from spikecore import encode, losses, metrics, surrogate

pytestmark = pytest.mark.peers

T, B, C = 12, 8, 30
#: dtype -> the largest difference that is allowed, in units of the scale that `error` names.
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
DELAYS = pytest.mark.parametrize("delay", [True, False], ids=["delayed", "at-once"])
#: Our name of a reset -> theirs.
RESETS = {"soft": "subtract", "hard": "zero", "none": "none"}


@pytest.fixture(scope="module")
def snn():
    """snnTorch. Imported here, so that the tests are collected without it and fail when run without it."""
    import snntorch
    from snntorch import functional, spikegen, surrogate

    return SimpleNamespace(
        Leaky=snntorch.Leaky, RLeaky=snntorch.RLeaky, surrogate=surrogate, functional=functional, spikegen=spikegen
    )


def error(got, want, scale=None):
    """The largest difference, relative to ``scale``: by default the largest size of an element wanted."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert torch.isfinite(got).all()
    if torch.equal(got, want):
        return 0.0
    return ((got - want).abs().max() / (want.abs().max() if scale is None else scale)).item()


def uniform(shape, low, high, seed, dtype=torch.float32):
    """Random numbers to find the gradient of."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn * (high - low) + low).to(dtype).requires_grad_()


def run_theirs(neuron, x, *state):
    """Spikes and potentials of a neuron of theirs, step by step; without a state from rest."""
    rest = neuron.reset_mem()
    state = state or (rest if isinstance(rest, tuple) else (rest,))
    steps = []
    for now in x:
        steps.append(neuron(now, *state))
        state = steps[-1][-len(state) :]
    return tuple(map(torch.stack, zip(*steps)))


# -- Leaky


# -- Leaky


@DELAYS
@pytest.mark.parametrize("reset", RESETS)
def test_leaky_is_identical(snn, reset, delay):
    """With one beta and threshold per channel, beta beyond [0, 1] too: spikes, potentials and gradients."""
    beta = torch.tensor([-0.25, 0.0, *(i / (C - 4) for i in range(1, C - 4)), 1.0, 1.0, 1.25])
    threshold = torch.tensor([0.5 + i / C for i in range(C)])
    settings = {"reset": reset, "reset_delay": delay, "learn": ("beta", "threshold"), "bounds": None}
    mine = sc.Leaky(beta, threshold=threshold, **settings, backend="torch")
    settings = {"reset_mechanism": RESETS[reset], "reset_delay": delay, "learn_beta": True, "learn_threshold": True}
    peer = snn.Leaky(beta, threshold=threshold, **settings)
    x, v = uniform((T, B, C), -0.5, 1.1, 0), uniform((B, C), 0.0, 1.5, 100)
    for start in ((), (v,)):
        wanted = run_theirs(peer, x, *start)
        spikes, _, trace = mine.run(x, state={"v": start[0]} if start else None, record=("v",))
        assert torch.equal(spikes, wanted[0])
        assert torch.equal(trace["v"], wanted[1])
    assert 0.1 <= spikes.mean() <= 0.7
    random = torch.Generator().manual_seed(7)
    weights = [torch.randn(value.shape, generator=random) for value in wanted]
    by_both = (
        torch.autograd.grad(sum((value * weight).sum() for value, weight in zip(values, weights)), [x, v, *parameters])
        for values, parameters in (
            ((spikes, trace["v"]), (mine.beta, mine.threshold)),
            (wanted, (peer.beta, peer.threshold)),
        )
    )
    for got, want in zip(*by_both):
        assert error(got, want) <= TOLERANCE[torch.float32]


@DELAYS
@pytest.mark.parametrize("reset", RESETS)
def test_leaky_at_the_threshold_does_not_spike_in_either(snn, reset, delay):
    """On exact inputs, with ties, neither spikes where the potential equals the threshold."""
    x = torch.randint(-2, 5, (T, B, C), generator=torch.Generator().manual_seed(0)) / 4
    wanted, potentials = run_theirs(snn.Leaky(0.5, reset_mechanism=RESETS[reset], reset_delay=delay), x)
    leaky = sc.Leaky(0.5, threshold=1.0, reset=reset, reset_delay=delay, backend="torch")
    spikes, _, trace = leaky.run(x, record=("v",))
    assert torch.equal(spikes, wanted)
    assert torch.equal(trace["v"], potentials)
    ties = trace["v"] == 1.0
    assert ties.double().mean() > 0.01
    assert not spikes[ties].any()


# -- surrogates


SURROGATES = [
    *(("atan", surrogate.ATan(alpha), [alpha]) for alpha in (2.0, 0.7, 5.0)),
    *(("fast_sigmoid", surrogate.FastSigmoid(slope), [slope]) for slope in (25.0, 1.0, 100.0)),
    *(("sigmoid", surrogate.Sigmoid(slope), [slope]) for slope in (25.0, 1.0)),
    ("straight_through_estimator", surrogate.StraightThrough(), []),
]


@DTYPES
@pytest.mark.parametrize(("name", "mine", "arguments"), SURROGATES, ids=lambda value: str(value).replace(".", "_"))
def test_surrogate_agrees(snn, name, mine, arguments, dtype):
    """The derivative is theirs at zero and at the tails, and finite even where their sigmoid divides inf by inf."""
    tails = 10.0 ** torch.arange(1, 31, dtype=dtype)
    half = torch.cat([torch.zeros(1, dtype=dtype), torch.linspace(0.001, 5.0, 700, dtype=dtype), tails])
    u = torch.cat([-half, half]).requires_grad_()
    steps = [sc.ops.spike(u, mine, strict=True), getattr(snn.surrogate, name)(*arguments)(u)]
    got, want = (torch.autograd.grad(step.sum(), u)[0] for step in steps)
    assert torch.equal(steps[0], steps[1].to(dtype))
    assert torch.isfinite(got).all()
    compared = torch.ones_like(u, dtype=torch.bool)
    if name == "sigmoid":
        compared = torch.isfinite(arguments[0] * torch.exp(-arguments[0] * u))
        assert want[~compared].isnan().all()
        assert (got[~compared] < 1e-30).all()
    assert error(got[compared], want[compared]) <= TOLERANCE[dtype]


# -- losses, accuracy, encoders

CLASSES = 5


def spike_trains(rate=0.4):
    """Spikes ``[T, B, C]``."""
    return (uniform((T, B, C), 0.0, 1.0, 0) < rate).float()


def labels(classes):
    """Class indices ``[B]``."""
    return torch.randint(0, classes, (B,), generator=torch.Generator().manual_seed(1))


POOLED = {"num_classes": CLASSES}
#: ours, theirs, keywords of both, whether it is about spikes
LOSSES = [
    (losses.ce_count, "ce_count_loss", {}, True),
    (losses.ce_count, "ce_count_loss", POOLED, True),
    (losses.ce_rate, "ce_rate_loss", {}, True),
    (losses.ce_max_membrane, "ce_max_membrane_loss", {}, False),
    (losses.mse_count, "mse_count_loss", {}, True),
    (losses.mse_count, "mse_count_loss", {"correct_rate": 0.75, "incorrect_rate": 0.25}, True),
    (losses.mse_count, "mse_count_loss", {"correct_rate": 0.75, "incorrect_rate": 0.25, **POOLED}, True),
    (losses.mse_membrane, "mse_membrane_loss", {}, False),
    (losses.mse_membrane, "mse_membrane_loss", {"on_target": 1.5, "off_target": 0.25}, False),  # below 0 theirs takes 0
    (losses.ce_temporal, "ce_temporal_loss", {}, True),
    (losses.ce_temporal, "ce_temporal_loss", {"inverse": "reciprocal"}, True),
    (losses.mse_temporal, "mse_temporal_loss", {"off_target": T - 1}, True),  # theirs takes 0 for -1, its default
    (losses.mse_temporal, "mse_temporal_loss", {"on_target": 2, "off_target": 5, "tolerance": 2}, True),
]


@pytest.mark.parametrize(("mine", "name", "keywords", "spiking"), LOSSES)
def test_loss_agrees(snn, mine, name, keywords, spiking):
    """Value and gradient of a loss without weights are theirs, which sum up in float32."""
    population = {"population_code": True} if "num_classes" in keywords else {}
    outputs = spike_trains() if spiking else uniform((T, B, C), -1.0, 1.5, 0).detach()
    outputs.requires_grad_()
    targets = labels(keywords.get("num_classes", C))
    got = mine(outputs, targets, **keywords)
    want = getattr(snn.functional, name)(**keywords, **population)(outputs, targets).squeeze()
    assert error(got, want) <= TOLERANCE[torch.float32]
    by_outputs = [torch.autograd.grad(loss, outputs)[0] for loss in (got, want)]
    assert error(*by_outputs) <= TOLERANCE[torch.float32]


def test_accuracy_agrees(snn):
    """The accuracy by spike count is theirs, ties and populations included; by first spike, where all spike in time."""
    spikes, pooled = spike_trains(rate=0.2), {"num_classes": CLASSES}
    guesses = spikes.sum(0).argmax(-1), spikes.reshape(T, B, CLASSES, -1).sum((0, -1)).argmax(-1)
    for keywords, guess in zip(({}, pooled), guesses):
        targets = torch.where(torch.arange(B) % 2 == 0, guess, labels(keywords.get("num_classes", C)))
        population = {"population_code": True, **keywords} if keywords else {}
        want = snn.functional.accuracy_rate(spikes, targets, **population)
        assert 0.5 <= want < 1.0
        assert metrics.accuracy(spikes, targets, **keywords).item() == want
    spikes[-2] = 1.0  # to snnTorch, no spike at all is one at the last step
    first = spikes.argmax(0).argmin(-1)
    targets = torch.where(torch.arange(B) % 2 == 0, first, (first + 1) % C)
    assert metrics.accuracy(spikes, targets, by="first_spike").item() == 0.5
    assert snn.functional.accuracy_temporal(spikes, targets) == 0.5


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("tau", "threshold"), [(1.0, 0.01), (5.0, 0.2)])
def test_latency_agrees(snn, tau, threshold, linear, normalize, clip):
    """The spike times are theirs, both ends of the range and the threshold included; late ones are left out."""
    x = torch.cat([uniform((200,), 0.0, 1.0, 0).detach(), torch.tensor([0.0, 1.0, threshold])])
    keywords = {"threshold": threshold, "tau": tau, "normalize": normalize, "linear": linear, "clip": clip}
    got, want = encode.Latency(T, **keywords)(x), snn.spikegen.latency(x, num_steps=T, bypass=True, **keywords)
    assert got.sum(0).mean() > 0.5
    assert torch.equal(got, want)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("off_spikes", [False, True])
def test_delta_agrees(snn, off_spikes, padding):
    """The spikes are theirs; a change of just the threshold is one."""
    x = torch.randint(-4, 5, (T, B, C), generator=torch.Generator().manual_seed(0)) / 4
    got = encode.Delta(0.5, off_spikes=off_spikes, padding=padding)(x)
    assert ((x[1:] - x[:-1]) == 0.5).any()
    assert torch.equal(got, snn.spikegen.delta(x, threshold=0.5, off_spike=off_spikes, padding=padding))


@pytest.mark.parametrize(("gain", "offset"), [(1.0, 0.0), (1.5, -0.25)])
def test_poisson_agrees(snn, monkeypatch, gain, offset):
    """The probabilities are theirs: equal spikes from equal uniform numbers, equal rates within 5 sigma without."""
    x, steps = uniform((B, C), 0.0, 1.0, 0).detach(), 4000
    probability = (x * gain + offset).clamp(0.0, 1.0)
    settings = {"gain": gain, "offset": offset}
    rates = [
        encode.Poisson(steps, **settings, generator=torch.Generator().manual_seed(0))(x).mean(0),
        snn.spikegen.rate(x, num_steps=steps, **settings).mean(0),
    ]
    sigma = (probability * (1.0 - probability) / steps).sqrt()
    for rate in rates:
        assert ((rate - probability).abs() <= 5.0 * sigma).all()
    random = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch, "bernoulli", lambda p: (torch.rand(p.shape, generator=random) < p).float())
    got = encode.Poisson(T, **settings, generator=torch.Generator().manual_seed(1))(x)
    assert torch.equal(got, snn.spikegen.rate(x, num_steps=T, **settings))
