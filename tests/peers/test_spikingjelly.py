"""SpikingJelly 2.0 and spikecore compute the same spikes, potentials and gradients, neuron by neuron.

SpikingJelly's nodes run as modules on the CPU, so that their own states and step modes count. Behind them is, in
float64 and for most surrogates, its reference under autograd; in float32, for the seven surrogates that its kernels
know, a registered operator with a backward pass written by hand. Both are compared.

Defaults are not: SpikingJelly's surrogate is Sigmoid(4), ours ATan(2).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import spikecore as sc
from spikecore import surrogate

pytestmark = pytest.mark.peers

T, N = 12, 300
#: dtype -> the largest difference that is allowed, in units of the scale that `error` names.
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
#: Seeds, and whether theirs runs step by step or the whole sequence at once.
RUNS = ((0, "s"), (1, "m"))


@pytest.fixture(scope="module")
def jelly():
    """SpikingJelly. Imported here, so that the tests are collected without it and fail when run without it."""
    from spikingjelly.activation_based import neuron, surrogate

    return SimpleNamespace(neuron=neuron, surrogate=surrogate)


def error(got, want, scale=None):
    """The largest difference, relative to ``scale``: by default the largest size of an element wanted."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert torch.isfinite(got).all()
    if torch.equal(got, want):
        return 0.0
    return ((got - want).abs().max() / (want.abs().max() if scale is None else scale)).item()


# -- neurons

TAU = {"tau": 2.3}
KEPT = {"tau": 2.3, "decay_input": False}
QUADRATIC = {"tau": 2.3, "v_c": 1.4, "a0": 0.6, "v_rest": 0.05}
RECOVERY = {"v_rest": 0.05, "w_rest": 0.1, "tau_w": 1.7, "a": 0.3, "b": 0.2}
#: id -> (ours, its keywords, name of theirs, its keywords, lowest and highest input)
NEURONS = {
    "IF": (sc.IF, {}, "IFNode", {}, (-0.5, 1.2)),
    "LIF": (sc.LIF, TAU, "LIFNode", TAU, (-1.0, 3.0)),
    "LIF-input-kept": (sc.LIF, KEPT, "LIFNode", KEPT, (-0.5, 1.3)),
    "PLIF": (sc.PLIF, TAU, "ParametricLIFNode", {"init_tau": 2.3}, (-1.0, 3.0)),
    "PLIF-input-kept": (sc.PLIF, KEPT, "ParametricLIFNode", {"init_tau": 2.3, "decay_input": False}, (-0.5, 1.3)),
    "KLIF": (sc.KLIF, TAU, "KLIFNode", TAU, (-1.0, 3.0)),
    "KLIF-scaled": (sc.KLIF, {**TAU, "scale_reset": True}, "KLIFNode", {**TAU, "scale_reset": True}, (-1.0, 3.0)),
    "QIF": (sc.QIF, QUADRATIC, "QIFNode", QUADRATIC, (-0.5, 3.0)),
    "EIF": (
        *(sc.EIF, {"tau": 2.3, "delta_t": 0.9, "theta_rh": 1.2, "v_rest": 0.05}),
        *("EIFNode", {"tau": 2.3, "delta_T": 0.9, "theta_rh": 1.2, "v_rest": 0.05}),
        (-1.0, 2.0),
    ),
    "Izhikevich": (
        *(sc.Izhikevich, {**QUADRATIC, **RECOVERY}, "IzhikevichNode", {**QUADRATIC, **RECOVERY}),
        (-0.5, 3.5),
    ),
    "Synaptic": (
        *(sc.Synaptic, {"alpha": 0.45, "beta": 0.8}, "CUBALIFNode", {"c_decay": 0.45, "v_decay": 0.8}),
        (-0.6, 0.9),
    ),
    "TernaryLIF": (sc.TernaryLIF, TAU, "TernaryLIFNode", TAU, (-4.0, 5.0)),
    "TernaryLIF-input-kept": (sc.TernaryLIF, KEPT, "TernaryLIFNode", KEPT, (-1.5, 2.0)),
}
#: id -> (our reset, our v_reset, theirs). Theirs calls a soft reset ``v_reset=None``, and then leaks towards 0.
RESETS = {"hard": ("hard", 0.0, 0.0), "hard-below": ("hard", -0.15, -0.15), "soft": ("soft", 0.0, None)}
THRESHOLD = 0.9
#: Not 1, where a reset before the gain and one after it are the same.
GAIN = 1.1
#: Our name of a state -> theirs, where it differs.
THEIR_STATE = {"i": "c"}


def ours(case, reset, detach_reset=False, *, dtype=torch.float64, spike=None, **changes):
    """Our neuron of a row of the table."""
    build, keywords, *_ = NEURONS[case]
    reset, v_reset, _ = RESETS.get(reset, (reset, 0.0, None))
    settings = {"threshold": THRESHOLD, "reset": reset, "v_reset": v_reset, "detach_reset": detach_reset}
    neuron = build(**{**keywords, **settings, **changes}, surrogate=spike or surrogate.ATan(2.0), backend="torch")
    if isinstance(neuron, sc.KLIF):
        neuron.k.data.fill_(GAIN)
    return neuron.to(dtype)


def theirs(jelly, case, reset, detach_reset=False, *, dtype=torch.float64, spike=None, **changes):
    """Their node of the same row."""
    _, _, name, keywords, _ = NEURONS[case]
    settings = {"v_threshold": THRESHOLD, "v_reset": RESETS[reset][-1]}
    spike = spike or jelly.surrogate.ATan(2.0)
    node = getattr(jelly.neuron, name)(**{**keywords, **settings, **changes}, surrogate_function=spike)
    node.detach_reset = detach_reset  # which CUBALIFNode takes no argument for
    if hasattr(node, "k"):
        node.k.data.fill_(GAIN)
    return node.to(dtype)


def leaf(value, dtype):
    """A tensor to find the gradient of."""
    return value.to(dtype).requires_grad_()


def drive(case, seed, names, dtype=torch.float64):
    """Random input ``[T, N]`` and initial states."""
    low, high = NEURONS[case][-1]
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(T, N, generator=random, dtype=torch.float64) * (high - low) + low
    state = {name: torch.rand(N, generator=random, dtype=torch.float64) * 0.5 for name in names}
    return leaf(x, dtype), {name: leaf(value, dtype) for name, value in state.items()}


def run_theirs(node, x, state, names, mode):
    """``(spikes, final state, trace)``, as ours. In step mode "m" theirs records ``v`` alone."""
    attribute = {name: THEIR_STATE.get(name, name) for name in names}
    node.reset()
    node.step_mode, node.store_v_seq = mode, mode == "m"
    for name, value in (state or {}).items():
        setattr(node, attribute[name], value)
    if mode == "m":
        spikes = node(x)
        trace = {"v": node.v_seq}
    else:
        steps = [(node(now), *(getattr(node, attribute[name]) for name in names)) for now in x]
        spikes, *traces = map(torch.stack, zip(*steps))
        trace = dict(zip(names, traces))
    return spikes, {name: getattr(node, attribute[name]) for name in names}, trace


def gradients(result, recorded, wanted, seed):
    """Gradients of a random linear function of the spikes, the final state and the recorded traces."""
    spikes, final, trace = result
    random = torch.Generator().manual_seed(1000 + seed)
    values = [spikes, *final.values(), *(trace[name] for name in recorded)]
    weights = [torch.randn(value.shape, generator=random, dtype=torch.float64).to(value) for value in values]
    return torch.autograd.grad(sum((value * weight).sum() for value, weight in zip(values, weights)), wanted)


def learnt(module):
    """Its parameters by name."""
    return dict(module.named_parameters())


@DTYPES
@pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("case", NEURONS)
def test_neuron_agrees(jelly, case, reset, detach_reset, dtype):
    """Spikes and potentials are identical and all gradients agree, from rest and from any state.

    But for the potential after a soft reset of ``h / k``: theirs finds ``threshold / k`` as ``(1 / k) threshold``.
    """
    limit = TOLERANCE[dtype] if case.endswith("scaled") and reset == "soft" else 0.0
    for seed, mode in RUNS:
        mine = ours(case, reset, detach_reset, dtype=dtype)
        peer = theirs(jelly, case, reset, detach_reset, dtype=dtype)
        names = tuple(mine.states)
        assert list(learnt(mine)) == list(learnt(peer))
        x, start = drive(case, seed, names, dtype)
        for state in (None, start):
            result, wanted = mine.run(x, state=state, record=names), run_theirs(peer, x, state, names, mode)
            assert torch.equal(result[0], wanted[0])
            for got, want in zip(result[1:], wanted[1:]):
                for name, value in want.items():
                    assert error(got[name], value) <= limit, f"{name} differs"
        got = gradients(result, wanted[2], [x, *start.values(), *mine.parameters()], seed)
        want = gradients(wanted, wanted[2], [x, *start.values(), *peer.parameters()], seed)
        for name, mine_grad, their_grad in zip(("x", *names, *learnt(mine)), got, want):
            # the gradient of a shared parameter is a sum, far smaller than its terms
            scale = mine_grad.abs().max().clamp(min=100.0) if mine_grad.ndim == 0 else None
            assert error(mine_grad, their_grad, scale) <= TOLERANCE[dtype], f"gradient of {name} differs"


# -- surrogates

#: ours -> (theirs, the parameters of both, in the same order)
SURROGATES = {
    "ATan": ("ATan", [(2.0,), (0.7,), (5.0,)]),
    "Sigmoid": ("Sigmoid", [(4.0,), (1.0,), (25.0,)]),
    "SuperSpike": ("SuperSpike", [(1.0,), (3.0,)]),
    "PiecewiseQuadratic": ("PiecewiseQuadratic", [(1.0,), (0.7,), (3.0,)]),
    "PiecewiseExp": ("PiecewiseExp", [(1.0,), (4.3,)]),
    "SoftSign": ("SoftSign", [(2.0,), (0.7,), (5.0,)]),
    "Erf": ("Erf", [(2.0,), (0.7,)]),
    "Rectangular": ("Rect", [(1.0,), (0.7,), (3.0,)]),
    "PiecewiseLeakyReLU": ("PiecewiseLeakyReLU", [(1.0, 0.01), (0.3, 0.0), (2.5, 0.1)]),
    "NonzeroSignLogAbs": ("NonzeroSignLogAbs", [(1.0,), (0.3,), (3.0,)]),
    "SquarewaveFourier": ("SquarewaveFourierSeries", [(2, 8.0), (3, 5.0), (4, 8.0)]),
    "S2NN": ("S2NN", [(4.0, 1.0), (1.0, 0.5)]),
    "QPseudoSpike": ("QPseudoSpike", [(2.0,), (1.5,), (4.0,)]),
    "LeakyKReLU": ("LeakyKReLU", [(0.0, 1.0), (0.1, 0.7)]),
    "FakeNumericalGradient": ("FakeNumericalGradient", [(0.3,), (2.0,)]),
    "LogTailedReLU": ("LogTailedReLU", [(0.0,), (0.1,)]),
    "StraightThrough": ("DeterministicPass", [()]),
}
SURROGATE_CASES = [
    pytest.param(name, values, id="-".join(map(str, (name, *values))))
    for name, (_, rows) in SURROGATES.items()
    for values in rows
]


def grid(parameters, dtype):
    """Small values, both zeros, the bounds that follow from the parameters and their neighbours, and the tails."""
    bounds = {1.0, *parameters, *(1.0 / p for p in parameters if p), *(0.5 / p for p in parameters if p)}
    near = torch.tensor(sorted(bounds), dtype=dtype)
    beside = [torch.nextafter(near, torch.full_like(near, end)) for end in (-1e9, 1e9)]
    tails = 10.0 ** torch.arange(1, 31, dtype=dtype)
    half = torch.cat([torch.zeros(1, dtype=dtype), torch.linspace(0.001, 5.0, 700, dtype=dtype), near, *beside, tails])
    return torch.cat([-half, half]).requires_grad_()


@DTYPES
@pytest.mark.parametrize(("name", "parameters"), SURROGATE_CASES)
def test_surrogate_agrees(jelly, name, parameters, dtype):
    """The derivative is finite everywhere and is theirs at zero, at bounds and at the tails; so is the step."""
    peer = getattr(jelly.surrogate, SURROGATES[name][0])(*parameters)
    u = grid(parameters, dtype)
    steps = [sc.ops.spike(u, getattr(surrogate, name)(*parameters)), peer(u)]
    got, want = (torch.autograd.grad(step.sum(), u)[0] for step in steps)
    assert torch.equal(*steps)
    assert torch.isfinite(got).all()
    compared = torch.ones_like(u, dtype=torch.bool)
    if name == "FakeNumericalGradient":
        # theirs takes the sign of -0.0 as 1 and then divides by it: minus infinity
        compared = ~((u == 0.0) & torch.signbit(u))
        assert torch.equal(want[~compared], torch.full_like(want[~compared], -float("inf")))
        assert torch.equal(got[~compared], torch.full_like(got[~compared], parameters[0]))
    elif name == "SquarewaveFourier":
        # the phase, rounded, gets less exact the larger it is; ours stays within one period, theirs does not
        compared = u.abs() <= parameters[1] / 2
    assert error(got[compared], want[compared]) <= TOLERANCE[dtype]


# -- neurons of single papers


def test_glif_is_gated_lif_node_of_equal_conductances(jelly):
    """Spikes are equal to the bit, and gradients of all parameters to rounding."""
    names = {name: name for name in ("alpha", "beta", "gamma", "tau")}
    names.update(leak="linear_decay", threshold="v_threshold", drop="v_subreset")
    node = jelly.neuron.GatedLIFNode(T, inplane=5, surrogate_function=jelly.surrogate.ATan(2.0))
    for gate, value in (("alpha", 0.4), ("beta", -0.3), ("gamma", 0.2)):  # which theirs draws from a global generator
        getattr(node, gate).data.copy_(torch.linspace(-1.0, value, 5))
    given = {f"w_{mine}": getattr(node, peer).detach().clone() for mine, peer in names.items()}
    neuron = sc.GLIF(**given, w_conductance=torch.zeros(5), backend="torch")
    x = (2.0 * torch.rand(T, 4, 5, 3, 3, generator=torch.Generator().manual_seed(0)) - 0.7).requires_grad_()
    got, want = neuron(x), node(x)
    assert 0.1 <= got.mean() <= 0.6
    assert torch.equal(got, want)
    weights = torch.randn(got.shape, generator=torch.Generator().manual_seed(1))
    mine = torch.autograd.grad((got * weights).sum(), [x, *(getattr(neuron, f"w_{name}") for name in names)])
    peer = torch.autograd.grad((want * weights).sum(), [x, *(getattr(node, name) for name in names.values())])
    for ours_, theirs_ in zip(mine, peer):
        assert (ours_ - theirs_).abs().max() <= 1e-5 * max(1.0, theirs_.abs().max().item())


@DTYPES
@pytest.mark.parametrize(
    ("ours", "theirs", "keywords"),
    [(sc.layers.PSN, "PSN", {}), (sc.layers.SlidingPSN, "SlidingPSN", {"step_mode": "m"})],
)
def test_parallel_spiking_neurons(jelly, ours, theirs, keywords, dtype):
    """PSN and sliding PSN load theirs, and give their spikes and gradients."""
    torch.manual_seed(0)
    there = getattr(jelly.neuron, theirs)(T, **keywords).to(dtype)
    here = ours(T).to(dtype)
    with torch.no_grad():
        there.weight += 0.1 * torch.randn_like(there.weight)
    here.load_state_dict(there.state_dict())
    x = (2 * torch.randn(T, 4, 5, dtype=dtype)).requires_grad_()
    cotangent = torch.randn(T, 4, 5, dtype=dtype)
    spikes, want = here(x), there(x)
    assert torch.equal(spikes, want)
    assert 0.05 < want.mean() < 0.95
    grads = torch.autograd.grad((spikes * cotangent).sum(), (x, here.weight, here.bias))
    for got, expected in zip(grads, torch.autograd.grad((want * cotangent).sum(), (x, there.weight, there.bias))):
        assert error(got, expected) <= TOLERANCE[dtype]
