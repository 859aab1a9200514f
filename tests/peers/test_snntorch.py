"""snnTorch 1.0 and spikecore compute the same: Leaky bit for bit, RLeaky, surrogates, losses, accuracy and encoders.

snnTorch makes spikes in float32 whatever the dtype, and what flows back through a spike is float32 with them. In
float64 its neurons therefore run with a spike function that keeps the dtype, ours; its own surrogates are compared
besides.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore import encode, losses, metrics, surrogate

pytestmark = pytest.mark.peers

T, B, C = 12, 8, 30
SEEDS = (0, 1)
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


def uniform(shape, low, high, seed, dtype=torch.float64):
    """Random numbers to find the gradient of."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn * (high - low) + low).to(dtype).requires_grad_()


def gradients(values, wanted, seed):
    """Gradients of a random linear function of some values."""
    random = torch.Generator().manual_seed(1000 + seed)
    weights = [torch.randn(value.shape, generator=random, dtype=torch.float64).to(value) for value in values]
    return torch.autograd.grad(sum((value * weight).sum() for value, weight in zip(values, weights)), wanted)


def run_theirs(neuron, x, *state):
    """Spikes and potentials of a neuron of theirs, step by step; without a state from rest."""
    rest = neuron.reset_mem()
    state = state or (rest if isinstance(rest, tuple) else (rest,))
    steps = []
    for now in x:
        steps.append(neuron(now, *state))
        state = steps[-1][-len(state) :]
    return tuple(map(torch.stack, zip(*steps)))


def contributions(neuron, x, v, seed):
    """What the neurons add to the gradient of a parameter they share, by parameter; their sizes summed.

    The sum itself may be far smaller, so that its rounding errors say nothing relative to it.
    """
    names = [name for name, _ in neuron.named_parameters()]
    each = copy.deepcopy(neuron)
    for name in names:
        setattr(each, name, nn.Parameter(getattr(neuron, name).detach().expand(B, C).clone()))
    spikes, _, trace = each.run(x, state={"v": v}, record=("v",))
    by_name = gradients((spikes, trace["v"]), [getattr(each, name) for name in names], seed)
    return {name: gradient.abs().sum() for name, gradient in zip(names, by_name)}


# -- Leaky

#: Their name of a surrogate -> ours, and their argument.
SPIKES = {
    "atan": (surrogate.ATan(2.0), [2.0]),
    "fast_sigmoid": (surrogate.FastSigmoid(25.0), [25.0]),
    "sigmoid": (surrogate.Sigmoid(5.0), [5.0]),
    "straight_through_estimator": (surrogate.StraightThrough(), []),
}
#: beta and threshold: shared by all, or one per channel. beta is clamped to [0, 1].
PARAMETERS = {
    "shared": (0.85, 0.9),
    "above-1": (1.3, 0.9),
    "below-0": (-0.2, 0.6),
    "channels": (
        [-0.25, 0.0, *(i / (C - 4) for i in range(1, C - 4)), 1.0, 1.0, 1.25],
        [0.5 + i / C for i in range(C)],
    ),
}
LEAKY = pytest.mark.parametrize("values", PARAMETERS)


def ours(values, reset, delay, dtype=torch.float64, spike="atan"):
    """Our Leaky, both parameters learnt."""
    beta, threshold = (torch.tensor(value, dtype=dtype) for value in PARAMETERS[values])
    settings = {
        "threshold": threshold,
        "reset": reset,
        "reset_delay": delay,
        "learn": ("beta", "threshold"),
        "bounds": None,
    }
    return sc.Leaky(beta, **settings, surrogate=SPIKES[spike][0], backend="torch")


def theirs(snn, values, reset, delay, dtype=torch.float64, spike="atan"):
    """Their Leaky, likewise; in float64 with a spike of ours, which stays float64."""
    beta, threshold = (torch.tensor(value, dtype=dtype) for value in PARAMETERS[values])
    settings = {"threshold": threshold, "reset_mechanism": RESETS[reset], "reset_delay": delay}
    return snn.Leaky(beta, **settings, learn_beta=True, learn_threshold=True, spike_grad=their_spike(snn, spike, dtype))


def their_spike(snn, name, dtype):
    """A spike function for their neurons."""
    spike, arguments = SPIKES[name]
    if dtype == torch.float32:
        return getattr(snn.surrogate, name)(*arguments)
    return lambda u: sc.ops.spike(u, spike, strict=True)


def drive(seed, dtype=torch.float64):
    """Random input ``[T, B, C]`` and initial potentials, some of them above the threshold."""
    return uniform((T, B, C), -0.5, 1.1, seed, dtype), uniform((B, C), 0.0, 1.5, 100 + seed, dtype)


@LEAKY
@DELAYS
@pytest.mark.parametrize("reset", ["soft", "hard"])
def test_input_puts_leaky_to_the_test(reset, delay, values):
    """10 to 60 % of steps spike, and without the reset there are other spikes, wherever there is memory to reset."""
    for seed in SEEDS:
        x, v = drive(seed)
        spikes, free = (ours(values, kind, delay).run(x, state={"v": v})[0] for kind in (reset, "none"))
        assert 0.1 <= spikes.mean() <= 0.6
        if values != "below-0":
            assert (spikes != free).double().mean() > 0.1


@LEAKY
@DELAYS
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize(
    ("spike", "dtype"),
    [*((name, torch.float32) for name in SPIKES), ("atan", torch.float64)],
    ids=lambda value: str(value).replace("torch.", ""),
)
def test_leaky_is_identical(snn, spike, reset, delay, values, dtype):
    """Spikes and potentials are equal to the bit, from rest and from any state, and all gradients agree."""
    mine, peer = ours(values, reset, delay, dtype, spike), theirs(snn, values, reset, delay, dtype, spike)
    for seed in SEEDS:
        x, v = drive(seed, dtype)
        for start in ((), (v,)):
            wanted = run_theirs(peer, x, *start)
            spikes, _, trace = mine.run(x, state={"v": start[0]} if start else None, record=("v",))
            assert torch.equal(spikes, wanted[0])
            assert torch.equal(trace["v"], wanted[1])
        got = gradients((spikes, trace["v"]), [x, v, mine.beta, mine.threshold], seed)
        want = gradients(wanted, [x, v, peer.beta, peer.threshold], seed)
        scale = contributions(mine, x, v, seed)
        for name, mine_grad, their_grad in zip(("x", "v", "beta", "threshold"), got, want):
            shared = scale[name] if mine_grad.ndim == 0 else None
            assert error(mine_grad, their_grad, shared) <= TOLERANCE[dtype], f"gradient of {name} differs"


@DELAYS
@pytest.mark.parametrize("reset", RESETS)
def test_leaky_is_identical_beside_float32_spikes(snn, reset, delay):
    """With a surrogate of its own theirs spikes in float32 for float64 input; values and potentials are still equal.

    The threshold is exact in float32, which theirs subtracts it in.
    """
    beta, settings = torch.tensor(PARAMETERS["channels"][0], dtype=torch.float64), {"threshold": 0.875}
    mine = sc.Leaky(beta, **settings, reset=reset, reset_delay=delay, bounds=None, backend="torch")
    x, v = drive(0)
    spikes, _, trace = mine.run(x, state={"v": v}, record=("v",))
    peer = snn.Leaky(beta, **settings, reset_mechanism=RESETS[reset], reset_delay=delay)
    wanted, potentials = run_theirs(peer, x, v)
    assert (spikes.dtype, wanted.dtype) == (torch.float64, torch.float32)
    assert torch.equal(spikes, wanted.double())
    assert torch.equal(trace["v"], potentials)


@DTYPES
@DELAYS
@pytest.mark.parametrize("reset", RESETS)
def test_leaky_at_the_threshold_does_not_spike_in_either(snn, reset, delay, dtype):
    """On exact inputs, with ties, neither spikes where the potential equals the threshold."""
    x = torch.randint(-2, 5, (T, B, C), generator=torch.Generator().manual_seed(0)).to(dtype) / 4
    settings = {"reset_mechanism": RESETS[reset], "reset_delay": delay, "spike_grad": their_spike(snn, "atan", dtype)}
    wanted, potentials = run_theirs(snn.Leaky(0.5, threshold=1.0, **settings), x)
    leaky = sc.Leaky(0.5, threshold=1.0, reset=reset, reset_delay=delay, backend="torch")
    spikes, _, trace = leaky.run(x, record=("v",))
    assert torch.equal(spikes, wanted)
    assert torch.equal(trace["v"], potentials)
    ties = trace["v"] == 1.0
    assert ties.double().mean() > 0.01
    assert not spikes[ties].any()


# -- RLeaky


class Gain(nn.Module):
    """Feedback from each neuron to itself, RLeaky's ``all_to_all=False``."""

    def __init__(self, V):
        super().__init__()
        self.V = nn.Parameter(V)

    def forward(self, x):
        return x * self.V


class ZeroedLeaky(sc.Leaky):
    """RLeaky's delayed "zero" reset: the input and the feedback of the step go too, where Leaky's keeps them."""

    def dynamics(self, x, s, p):
        r = sc.ops.detach(self.spike(s.v - p.threshold, strict=True))
        u = p.beta * s.v + x
        u = u - r * u
        return self.spike(u - p.threshold, strict=True), {"v": u}


def recurrent(snn, feedback, reset, delay, dtype, neuron=sc.Leaky):
    """Our recurrent neuron and theirs, with equal weights, and their feedback's parameters in the same order.

    Weights are multiples of 1/64 and beta is 1/2: in float32 too, everything is exact, and the order of a sum is free.
    """
    random = torch.Generator().manual_seed(5)
    weight, bias = ((torch.randint(-20, 21, shape, generator=random) / 64).to(dtype) for shape in ((C, C), (C,)))
    settings = {"reset_mechanism": RESETS[reset], "reset_delay": delay, "spike_grad": their_spike(snn, "atan", dtype)}
    if feedback == "linear":
        peer = snn.RLeaky(0.5, linear_features=C, **settings).to(dtype)
        module = nn.Linear(C, C, dtype=dtype)
        for target in (peer.recurrent, module):
            target.weight.data.copy_(weight / 4)
            target.bias.data.copy_(bias)
    else:
        peer = snn.RLeaky(0.5, V=bias.clone(), all_to_all=False, **settings)
        module = Gain(bias.clone())
    leaky = neuron(0.5, threshold=1.0, reset=reset, reset_delay=delay, backend="torch")
    return sc.Recurrent(leaky, module), peer


#: reset, delay, and which neuron of ours fed back is RLeaky
RECURRENT = [
    ("soft", True, sc.Leaky),
    ("soft", False, sc.Leaky),
    ("none", True, sc.Leaky),
    ("hard", False, sc.Leaky),
    ("hard", True, ZeroedLeaky),
]


@DTYPES
@pytest.mark.parametrize("feedback", ["linear", "gain"])
@pytest.mark.parametrize(("reset", "delay", "neuron"), RECURRENT)
def test_recurrent_leaky_is_rleaky(snn, reset, delay, neuron, feedback, dtype):
    """Spikes and potentials are equal to the bit on exact inputs, and gradients agree, the feedback's included."""
    mine, peer = recurrent(snn, feedback, reset, delay, dtype, neuron)
    for seed in SEEDS:
        x = ((uniform((T, B, C), -0.5, 1.3, seed) * 64).round() / 64).detach().to(dtype).requires_grad_()
        spikes, _, trace = mine.run(x, record=("v",))
        wanted, potentials = run_theirs(peer, x)
        assert 0.1 <= spikes.mean() <= 0.6
        assert torch.equal(spikes, wanted)
        assert torch.equal(trace["v"], potentials)
        got = gradients((spikes, trace["v"]), [x, *mine.linear.parameters()], seed)
        want = gradients((wanted, potentials), [x, *peer.recurrent.parameters()], seed)
        for mine_grad, their_grad in zip(got, want):
            assert error(mine_grad, their_grad) <= TOLERANCE[dtype]


def test_recurrent_leaky_keeps_the_input_that_rleaky_zeroes(snn):
    """With a delayed zero reset they differ: the step after a spike theirs is at 0, ours at its input and feedback."""
    mine, peer = recurrent(snn, "gain", "hard", True, torch.float64)
    x, _ = drive(0)
    spikes, _, trace = mine.run(x, record=("v",))
    wanted, potentials = run_theirs(peer, x)
    assert not torch.equal(spikes, wanted)
    assert not potentials[1:][wanted[:-1].bool()].any()
    fed, fired = x[1:] + mine.linear(spikes[:-1]), spikes[:-1].bool()
    assert torch.equal(trace["v"][1:][fired], fed[fired])


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


def spike_trains(seed=0, rate=0.4):
    """Spikes ``[T, B, C]``."""
    return (uniform((T, B, C), 0.0, 1.0, seed) < rate).float()


def labels(classes, seed=1):
    """Class indices ``[B]``."""
    return torch.randint(0, classes, (B,), generator=torch.Generator().manual_seed(seed))


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
    outputs = spike_trains() if spiking else uniform((T, B, C), -1.0, 1.5, 0).detach().float()
    outputs.requires_grad_()
    targets = labels(keywords.get("num_classes", C))
    got = mine(outputs, targets, **keywords)
    want = getattr(snn.functional, name)(**keywords, **population)(outputs, targets).squeeze()
    assert error(got, want) <= TOLERANCE[torch.float32]
    by_outputs = [torch.autograd.grad(loss, outputs)[0] for loss in (got, want)]
    assert error(*by_outputs) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("seed", SEEDS)
def test_accuracy_agrees(snn, seed):
    """The accuracy by spike count is theirs, ties and populations included; by first spike, where all spike in time."""
    spikes, pooled = spike_trains(seed, rate=0.2), {"num_classes": CLASSES}
    guesses = spikes.sum(0).argmax(-1), spikes.reshape(T, B, CLASSES, -1).sum((0, -1)).argmax(-1)
    for keywords, guess in zip(({}, pooled), guesses):
        targets = torch.where(torch.arange(B) % 2 == 0, guess, labels(keywords.get("num_classes", C), seed))
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
    x = torch.cat([uniform((200,), 0.0, 1.0, 0).detach().float(), torch.tensor([0.0, 1.0, threshold])])
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
    x, steps = uniform((B, C), 0.0, 1.0, 0).detach().float(), 4000
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
