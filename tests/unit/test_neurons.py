"""Every neuron against its equations, written here by hand: potentials, spikes and gradients.

One step of each neuron stands below, from the papers and the peers, in plain arithmetic. It runs twice: with NumPy in
float64 for the values, and with torch and a step of this file's own for the gradients.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import spikecore as sc

T, N = 24, 60
RESETS = ("hard", "soft", "none")


# -- the equations


class Fire(torch.autograd.Function):
    """The step, with the derivative ``1 / (1 + (pi u)^2)``: arc tangent with alpha 2."""

    @staticmethod
    def forward(ctx, u, strict):
        """1 from zero on; above zero, if strict."""
        ctx.save_for_backward(u)
        return ((u > 0) if strict else (u >= 0)).to(u.dtype)

    @staticmethod
    def backward(ctx, grad):
        """The stand-in."""
        (u,) = ctx.saved_tensors
        return grad / (1 + (math.pi * u) ** 2), None


NUMPY = SimpleNamespace(
    exp=np.exp,
    relu=lambda a: np.maximum(a, 0),
    clip=lambda a: np.clip(a, 0, 1),
    fire=lambda u, strict=False: ((u > 0) if strict else (u >= 0)).astype(float),
    cut=lambda a: a,
)
TORCH = SimpleNamespace(
    exp=torch.exp,
    relu=torch.relu,
    clip=lambda a: torch.clamp(a, 0, 1),
    fire=lambda u, strict=False: Fire.apply(u, strict),
    cut=lambda a: a.detach(),
)


def after(o, c, h, z, threshold, v_reset):
    """The potential after a spike, in the arithmetic form whose derivative defines that of a reset."""
    z = o.cut(z) if c.get("detach_reset") else z
    if c.get("reset", "hard") == "hard":
        return z * v_reset + (1 - z) * h
    return h - z * threshold if c["reset"] == "soft" else h


def charge(c, x, v, tau, v_reset):
    """Leaky charge, SpikingJelly's two forms."""
    return v + (x - (v - v_reset)) / tau if c.get("decay_input", True) else v - (v - v_reset) / tau + x


def if_(o, c, p, x, s):
    """Integrate, and fire."""
    h = s["v"] + x
    z = o.fire(h - p.threshold)
    return z, {"v": after(o, c, h, z, p.threshold, p.v_reset)}


def lif(o, c, p, x, s):
    """Leaky charge."""
    h = charge(c, x, s["v"], p.tau, p.v_reset)
    z = o.fire(h - p.threshold)
    return z, {"v": after(o, c, h, z, p.threshold, p.v_reset)}


def plif(o, c, p, x, s):
    """Leaky charge with ``1/tau = sigmoid(w)``."""
    h = charge(c, x, s["v"], 1 + o.exp(-p.w), p.v_reset)
    z = o.fire(h - p.threshold)
    return z, {"v": after(o, c, h, z, p.threshold, p.v_reset)}


def klif(o, c, p, x, s):
    """A gain and a rectifier on the charge; scaled, the reset acts before the gain."""
    h = o.relu(p.k * charge(c, x, s["v"], p.tau, p.v_reset))
    z = o.fire(h - p.threshold)
    if c.get("scale_reset"):
        return z, {"v": after(o, c, h / p.k, z, p.threshold / p.k, p.v_reset)}
    return z, {"v": after(o, c, h, z, p.threshold, p.v_reset)}


def qif(o, c, p, x, s):
    """Quadratic charge."""
    v = s["v"]
    h = v + (x + p.a0 * (v - p.v_rest) * (v - p.v_c)) / p.tau
    z = o.fire(h - p.threshold)
    return z, {"v": after(o, c, h, z, p.threshold, p.v_reset)}


def eif(o, c, p, x, s):
    """Exponential charge."""
    v = s["v"]
    h = v + (x + p.v_rest - v + p.delta_t * o.exp((v - p.theta_rh) / p.delta_t)) / p.tau
    z = o.fire(h - p.threshold)
    return z, {"v": after(o, c, h, z, p.threshold, p.v_reset)}


def izhikevich(o, c, p, x, s):
    """Quadratic charge with a recovery current."""
    v, w = s["v"], s["w"]
    h = v + (x + p.a0 * (v - p.v_rest) * (v - p.v_c) - w) / p.tau
    z = o.fire(h - p.threshold)
    return z, {
        "v": after(o, c, h, z, p.threshold, p.v_reset),
        "w": w + (p.a * (h - p.v_rest) - w) / p.tau_w + p.b * z,  # this push keeps its gradient
    }


def synaptic(o, c, p, x, s):
    """The input charges a current, the current the potential."""
    i = p.alpha * s["i"] + x
    h = p.beta * s["v"] + i
    z = o.fire(h - p.threshold)
    return z, {"i": i, "v": after(o, c, h, z, p.threshold, p.v_reset)}


def alif(o, c, p, x, s):
    """A threshold that spikes raise."""
    h = charge(c, x, s["v"], p.tau, p.v_reset)
    raised = p.threshold + p.beta * s["a"]
    z = o.fire(h - raised)
    return z, {"v": after(o, c, h, z, raised, p.v_reset), "a": p.rho * s["a"] + z}


def li(o, c, p, x, s):
    """Leaky charge, no spike."""
    v = charge(c, x, s["v"], p.tau, p.v_rest)
    return v, {"v": v}


def leaky(o, c, p, x, s):
    """snnTorch: the reset found from the old potential, and with reset_delay=False what the spike adds to it."""
    v, b, how = s["v"], o.clip(p.beta), c["reset"]
    r = o.cut(o.fire(v - p.threshold, strict=True))
    u = {"soft": b * v + x - r * p.threshold, "hard": b * (1 - r) * v + x, "none": b * v + x}[how]
    z = o.fire(u - p.threshold, strict=True)
    if c.get("reset_delay", True) or how == "none":
        return z, {"v": u}
    late = (o.cut(z) if c.get("detach_reset") else z) - r
    return z, {"v": u - late * p.threshold if how == "soft" else u - late * u}


# -- the cases: every neuron, every configuration, parameters away from their defaults

MEMBRANE = {"threshold": 0.9, "v_reset": 0.15}


def membrane_cases(cls, step, params, configurations=({},)):
    """A case for each reset and each further configuration."""
    return [
        pytest.param(cls, step, {**params, **MEMBRANE}, {"reset": reset, **more}, id=f"{cls.__name__}-{reset}-{more}")
        for reset in RESETS
        for more in configurations
    ]


DECAY = ({"decay_input": True}, {"decay_input": False})
CASES = [
    *membrane_cases(sc.IF, if_, {}),
    *membrane_cases(sc.LIF, lif, {"tau": 1.7}, DECAY),
    *membrane_cases(sc.PLIF, plif, {"tau": 2.6}, DECAY),
    *membrane_cases(sc.KLIF, klif, {"tau": 1.7, "k": 1.3}, (*DECAY, {"scale_reset": True})),
    *membrane_cases(sc.QIF, qif, {"tau": 2.2, "v_c": 0.6, "a0": 0.7, "v_rest": -0.1}),
    *membrane_cases(sc.EIF, eif, {"tau": 2.2, "delta_t": 0.8, "theta_rh": 0.7, "v_rest": -0.1}),
    *membrane_cases(
        sc.Izhikevich,
        izhikevich,
        {"tau": 2.2, "v_c": 0.6, "a0": 0.7, "v_rest": -0.2, "w_rest": 0.05, "tau_w": 3.0, "a": 0.4, "b": 0.3},
    ),
    *membrane_cases(sc.Synaptic, synaptic, {"alpha": 0.4, "beta": 0.7}),
    *membrane_cases(sc.ALIF, alif, {"tau": 1.7, "rho": 0.8, "beta": 0.3}, DECAY),
    *(pytest.param(sc.LI, li, {"tau": 1.7, "v_rest": 0.2}, more, id=f"LI-{more}") for more in DECAY),
    *(
        pytest.param(
            sc.Leaky, leaky, {"beta": 0.85, "threshold": 0.9}, {"reset": r, "reset_delay": d}, id=f"Leaky-{r}-{d}"
        )
        for r in RESETS
        for d in (True, False)
    ),
]


def grads(outputs, wanted, cotangents=None):
    """Gradients, zeros where none arrives."""
    found = torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)
    return [torch.zeros_like(value) if grad is None else grad for value, grad in zip(wanted, found)]


def values(*shape, seed=0):
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drive(c=None, cls=None, seed=0):
    """Input under which every neuron here fires now and then: [T, N].

    Few steps where nothing holds back a nonlinear charge, which would grow without bound.
    """
    unbounded = cls in (sc.QIF, sc.EIF, sc.Izhikevich) and c["reset"] != "hard"
    return (1.1 * values(T, N, seed=seed) + 0.6)[: 4 if unbounded else T]


def named(value):
    """A neuron by its class, anything else not at all."""
    return type(value).__name__ if isinstance(value, sc.Neuron) else ""


def numbers(neuron):
    """The neuron's parameters as the equations take them."""
    named = {name: getattr(neuron, name) for name in neuron.params}
    return SimpleNamespace(**{n: v.item() if isinstance(v, torch.Tensor) else v for n, v in named.items()})


def rest(neuron, p, shape):
    """The initial state that the neuron declares."""
    start = {n: getattr(p, v) if isinstance(v, str) else v for n, v in neuron.states.items()}
    return {name: np.full(shape, value) for name, value in start.items()}


def loop(o, step, c, p, x, s):
    """All steps: outputs, the final state, and each state after each step."""
    outputs, seen = [], {name: [] for name in s}
    for now in x:
        out, s = step(o, c, p, now, s)
        outputs.append(out)
        for name in seen:
            seen[name].append(s[name])
    return outputs, s, seen


class TestValues:
    """Spikes and states."""

    @pytest.mark.parametrize(("cls", "step", "params", "c"), CASES)
    def test_equals_the_equations(self, cls, step, params, c):
        """Spikes equal exactly and every state after every step to 1e-12."""
        neuron = cls(**params, **c, learn=()).double()
        p, x = numbers(neuron), drive(c, cls)
        out, final, trace = neuron.run(x, record=tuple(neuron.states))
        expected, end, seen = loop(NUMPY, step, c, p, x.numpy(), rest(neuron, p, (N,)))
        if cls is sc.LI:
            np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12, atol=1e-12)
        else:
            np.testing.assert_array_equal(out.numpy(), expected)
            assert 0.02 < out.mean() < 0.98
        for name in neuron.states:
            np.testing.assert_allclose(trace[name].numpy(), seen[name], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(final[name].numpy(), end[name], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(("cls", "step", "params", "c"), CASES)
    def test_continues_from_a_state(self, cls, step, params, c):
        """Given a state, it goes on from there."""
        neuron = cls(**params, **c, learn=()).double()
        p, x = numbers(neuron), drive(c, cls, seed=1)
        state = {name: 0.4 * values(N, seed=i) for i, name in enumerate(neuron.states)}
        out, _ = neuron.run(x, state=state)
        expected, _, _ = loop(NUMPY, step, c, p, x.numpy(), {name: s.numpy() for name, s in state.items()})
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(("cls", "step", "params", "c"), CASES)
    def test_single_steps_equal_one_call(self, cls, step, params, c):
        """Step by step it gives what it gives at once, bit for bit."""
        x = drive(c, cls)
        once = cls(**params, **c)(x)
        single = cls(**params, **c, step="single")
        assert torch.equal(torch.stack([single(now) for now in x]), once)

    def test_what_it_starts_from(self):
        """At rest ``v`` is ``v_reset`` (``v_rest`` in LI, 0 in Leaky), ``w`` is ``w_rest``, and the rest is 0."""
        silent = torch.zeros(0, 2)
        starts = {
            sc.IF(v_reset=-0.5): {"v": -0.5},
            sc.LIF(v_reset=-0.5, reset="soft"): {"v": -0.5},
            sc.QIF(): {"v": -0.1},
            sc.EIF(): {"v": -0.1},
            sc.Izhikevich(w_rest=0.3): {"v": 0.0, "w": 0.3},
            sc.Synaptic(v_reset=0.2): {"i": 0.0, "v": 0.2},
            sc.ALIF(v_reset=0.2): {"v": 0.2, "a": 0.0},
            sc.LI(v_rest=0.7): {"v": 0.7},
            sc.Leaky(0.9): {"v": 0.0},
        }
        for neuron, start in starts.items():
            state = neuron.run(silent)[1]
            assert {name: value.tolist() for name, value in state.items()} == {
                name: torch.full((2,), value).tolist() for name, value in start.items()
            }

    def test_defaults(self):
        """The defaults are those of the peers."""
        membrane = {"threshold": 1.0, "v_reset": 0.0}
        assert vars(numbers(sc.IF())) == membrane
        assert vars(numbers(sc.LIF())) == {"tau": 2.0, **membrane}
        assert vars(numbers(sc.PLIF())) == {"w": 0.0, **membrane}
        assert vars(numbers(sc.KLIF())) == {"k": 1.0, "tau": 2.0, **membrane}
        assert vars(numbers(sc.QIF())) == {
            "tau": 2.0,
            "v_c": 0.8,
            "a0": 1.0,
            "v_rest": 0.0,
            **membrane,
            "v_reset": -0.1,
        }
        upstroke = {"delta_t": 1.0, "theta_rh": 0.8, "v_rest": 0.0}
        assert vars(numbers(sc.EIF())) == {"tau": 2.0, **upstroke, **membrane, "v_reset": -0.1}
        recovery = {"w_rest": 0.0, "tau_w": 2.0, "a": 0.0, "b": 0.0}
        quadratic = {"tau": 2.0, "v_c": 0.8, "a0": 1.0, "v_rest": -0.1}
        assert vars(numbers(sc.Izhikevich())) == {**quadratic, **recovery, **membrane}
        assert {neuron.reset for neuron in (sc.IF(), sc.LIF(), sc.PLIF(), sc.QIF(), sc.ALIF())} == {"hard"}
        assert (sc.LIF().decay_input, sc.PLIF().decay_input, sc.LI().decay_input) == (True, True, True)
        assert (sc.Leaky(0.9).reset, sc.Leaky(0.9).reset_delay, sc.Leaky(0.9).threshold) == ("soft", True, 1.0)
        assert not sc.LIF().detach_reset


class TestThreshold:
    """At the threshold itself, with numbers that are exact."""

    #: Neurons whose potential, from rest, is exactly 1 under this input.
    TIES = [
        (sc.IF(), 1.0),
        (sc.LIF(), 2.0),
        (sc.LIF(decay_input=False), 1.0),
        (sc.PLIF(), 2.0),
        (sc.PLIF(decay_input=False), 1.0),
        (sc.KLIF(), 2.0),
        (sc.QIF(v_reset=0.0), 2.0),
        (sc.EIF(v_reset=0.0, theta_rh=0.0), 1.0),
        (sc.Izhikevich(v_reset=0.0, v_rest=0.0), 2.0),
        (sc.Synaptic(), 1.0),
        (sc.ALIF(), 2.0),
    ]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize(("neuron", "x"), TIES, ids=named)
    def test_fires_at_it(self, neuron, x, dtype):
        """Every neuron but Leaky fires where the potential equals the threshold, and not just below."""
        inputs = torch.tensor([[x - 1 / 128, x, x + 1 / 64]], dtype=dtype)
        assert neuron(inputs).tolist() == [[0, 1, 1]]

    @pytest.mark.parametrize("reset", RESETS)
    def test_leaky_fires_above_it(self, reset):
        """Leaky does not fire at its threshold, only above; nor does it reset there."""
        above = float(np.nextafter(np.float32(1), np.float32(2)))
        x = torch.tensor([[1.0, above], [0.0, 0.0]])
        out, state = sc.Leaky(0.5, reset=reset).run(x)
        assert out[0].tolist() == [0, 1]
        assert state["v"][0] == 0.5
        assert state["v"][1] == {"hard": 0.0, "soft": above * 0.5 - 1, "none": above * 0.5}[reset]

    @pytest.mark.parametrize(
        ("neuron", "ties_fire", "charge", "reset"),
        [
            (sc.IF(), True, lambda v, x: v + x, lambda h: 0),
            (sc.IF(reset="soft"), True, lambda v, x: v + x, lambda h: h - 1),
            (sc.LIF(2.0), True, lambda v, x: v + (x - v) / 2, lambda h: 0),
            (sc.LIF(2.0, reset="soft"), True, lambda v, x: v + (x - v) / 2, lambda h: h - 1),
            (sc.LIF(2.0, decay_input=False), True, lambda v, x: v / 2 + x, lambda h: 0),
            (sc.Leaky(0.5, reset="hard", reset_delay=False), False, lambda v, x: v / 2 + x, lambda h: 0),
        ],
        ids=named,
    )
    def test_exact_inputs_give_exact_results(self, neuron, ties_fire, charge, reset):
        """On multiples of 1/4 float32 equals arithmetic with fractions, ties included, and ties do occur."""
        generator = torch.Generator().manual_seed(3)
        x = torch.randint(-4, 12, (8, 500), generator=generator) / 4
        out, state = neuron.run(x)
        ties = 0
        for n in range(x.shape[1]):
            v = Fraction(0)
            for t in range(x.shape[0]):
                h = charge(v, Fraction(x[t, n].item()))
                z = h >= 1 if ties_fire else h > 1
                ties += h == 1
                v = Fraction(reset(h)) if z else h
                assert out[t, n] == z
            assert Fraction(state["v"][n].item()) == v
        assert ties > 20

    def test_infinite_potential_is_reset(self):
        """A spike resets exactly even from infinity, where the arithmetic form would give NaN."""
        out, state = sc.IF().run(torch.tensor([[math.inf], [0.5]]))
        assert out.tolist() == [[1], [0]]
        assert state["v"].tolist() == [0.5]

    def test_nan_does_not_fire_and_stays(self):
        """A NaN in the input is seen in the state, and makes no spike."""
        out, state = sc.KLIF().run(torch.tensor([[math.nan], [9.0]]))
        assert out.tolist() == [[0], [0]]
        assert state["v"].isnan().all()


class TestGradients:
    """Against torch's own, through the equations written by hand."""

    @staticmethod
    def leaves(neuron, c, seed):
        """Input and initial state that want a gradient."""
        x = drive(c, type(neuron), seed=seed).requires_grad_()
        state = {name: (0.4 * values(N, seed=seed + 1 + i)).requires_grad_() for i, name in enumerate(neuron.states)}
        return x, state

    @pytest.mark.parametrize("detach_reset", [False, True])
    @pytest.mark.parametrize(("cls", "step", "params", "c"), CASES)
    def test_equals_hand_written_loop(self, cls, step, params, c, detach_reset):
        """Through outputs, recorded states and the final state, to input, initial state and every parameter: 1e-12."""
        c = {**c, "detach_reset": detach_reset}
        neuron = cls(**params, **c, learn=tuple(cls.params)).double()
        x, state = self.leaves(neuron, c, seed=4)
        learnt = dict(neuron.named_parameters())
        assert set(learnt) == set(cls.params)
        out, final, trace = neuron.run(x, state=state, record=tuple(state))
        expected, end, seen = loop(TORCH, step, c, SimpleNamespace(**learnt), x, state)
        mine = [out, *(final[name] for name in state), *(trace[name] for name in state)]
        theirs = [torch.stack(expected), *(end[name] for name in state), *(torch.stack(seen[n]) for n in state)]
        wanted = [x, *state.values(), *learnt.values()]
        cotangents = [values(*value.shape, seed=20 + i) for i, value in enumerate(mine)]
        found = grads(mine, wanted, cotangents)
        torch.testing.assert_close(found, grads(theirs, wanted, cotangents), rtol=1e-12, atol=1e-12)
        assert found[0].abs().max() > 0.1

    @pytest.mark.parametrize(("cls", "step", "params", "c"), CASES)
    def test_from_rest(self, cls, step, params, c):
        """The plain call, spikes only: the gradient reaches the parameters that the start at rest reads, too."""
        neuron = cls(**params, **c, learn=tuple(cls.params)).double()
        x, _ = self.leaves(neuron, c, seed=5)
        learnt = dict(neuron.named_parameters())
        start = {
            name: (learnt[value] if isinstance(value, str) else torch.tensor(value)).double().expand(N)
            for name, value in cls.states.items()
        }
        expected, _, _ = loop(TORCH, step, c, SimpleNamespace(**learnt), x, start)
        weights, wanted = values(*x.shape, seed=6), [x, *learnt.values()]
        found = grads((neuron(x) * weights).sum(), wanted)
        hand = grads((torch.stack(expected) * weights).sum(), wanted)
        torch.testing.assert_close(found, hand, rtol=1e-12, atol=1e-12)

    def test_default_learnt(self):
        """PLIF learns ``w`` and KLIF ``k`` unless told otherwise; the others learn nothing by themselves."""
        learnt = lambda neuron: [name for name, _ in neuron.named_parameters()]  # noqa: E731
        assert learnt(sc.PLIF()) == ["w"]
        assert learnt(sc.KLIF()) == ["k"]
        assert learnt(sc.KLIF(learn=("tau",))) == ["tau"]
        assert learnt(sc.PLIF(learn=())) == []
        others = [
            sc.IF(),
            sc.LIF(),
            sc.QIF(),
            sc.EIF(),
            sc.Izhikevich(),
            sc.Synaptic(),
            sc.ALIF(),
            sc.LI(),
            sc.Leaky(0.9),
        ]
        assert [learnt(neuron) for neuron in others] == [[]] * len(others)

    def test_detach_reset_changes_the_gradient_only(self):
        """With it spikes are the same and gradients are not."""
        x = drive().requires_grad_()
        plain, cut = sc.LIF(1.7), sc.LIF(1.7, detach_reset=True)
        assert torch.equal(plain(x), cut(x))
        assert not torch.allclose(*(torch.autograd.grad(neuron(x).sum(), x)[0] for neuron in (plain, cut)))

    def test_reset_without_spike_gradient(self):
        """Under a hard reset with detach_reset, what came before a spike gets no gradient from what comes after."""
        x = torch.tensor([[2.0], [0.3]], dtype=torch.float64, requires_grad=True)
        _, state = sc.IF(detach_reset=True).run(x)
        state["v"].sum().backward()
        assert x.grad.tolist() == [[0.0], [1.0]]


class TestPLIF:
    """The time constant through ``w``."""

    def test_w_stands_for_tau(self):
        """``w = -log(tau - 1)``, and ``tau`` reads it back, as a number and as a tensor."""
        assert sc.PLIF(3.0, learn=()).w == pytest.approx(-math.log(2), rel=1e-15)
        assert sc.PLIF(3.0, learn=()).tau == pytest.approx(3.0, rel=1e-15)
        torch.testing.assert_close(sc.PLIF(3.0).tau, torch.tensor(3.0))

    def test_equals_lif(self):
        """Not learning, it is the LIF of that time constant."""
        x = drive()
        out, state = sc.PLIF(3.0, learn=()).run(x)
        expected, end = sc.LIF(3.0).run(x)
        assert torch.equal(out, expected)
        torch.testing.assert_close(state, end, rtol=1e-12, atol=1e-12)

    def test_tau_per_channel(self):
        """A tensor gives each channel its own, and each learns its own."""
        neuron = sc.PLIF(torch.tensor([1.5, 2.0, 4.0]))
        assert neuron.w.shape == (3,)
        x = drive().reshape(T, N // 3, 3).float()
        columns = [sc.PLIF(tau)(x[..., i]) for i, tau in enumerate((1.5, 2.0, 4.0))]
        assert torch.equal(neuron(x), torch.stack(columns, dim=-1))
        neuron(x).sum().backward()
        assert neuron.w.grad.shape == (3,)

    @pytest.mark.parametrize("tau", [1.0, 0.5, torch.tensor([2.0, 1.0])])
    def test_tau_must_be_above_one(self, tau):
        """A sigmoid is below 1, so the time constant is above."""
        with pytest.raises(ValueError, match=r"^PLIF: tau=.* must be above 1, since 1/tau = sigmoid\(w\)$"):
            sc.PLIF(tau)


class TestLeaky:
    """What snnTorch 1.0 was seen to do."""

    def test_potential_that_fired_is_visible(self):
        """The reset acts one step later, after the decay for a soft one."""
        out, _, trace = sc.Leaky(0.5).run(torch.tensor([[1.5], [0.0], [0.0]]), record=("v",))
        assert out.flatten().tolist() == [1, 0, 0]
        assert trace["v"].flatten().tolist() == [1.5, -0.25, -0.125]

    def test_hard_reset_keeps_the_new_input(self):
        """Potential 2, input 0.3: the old potential goes, the input stays."""
        _, state = sc.Leaky(0.9, reset="hard").run(torch.tensor([[0.3]]), state={"v": torch.tensor([2.0])})
        assert state["v"].item() == pytest.approx(0.3)

    def test_immediate_reset_misses_a_spike_under_strong_drive(self):
        """Inputs 2.2 and 0.5: in the second step no spike, and a potential of 1.58, above threshold."""
        out, state = sc.Leaky(0.9, reset_delay=False).run(torch.tensor([[2.2], [0.5]]))
        assert out.flatten().tolist() == [1, 0]
        assert state["v"].item() == pytest.approx(1.58)

    def test_gradient_flows_through_an_immediate_reset(self):
        """dU/dI half a threshold above it is 1 - 0.2884 without delay, and 1 with."""
        for delay, expected in ((False, 1 - 1 / (1 + (math.pi / 2) ** 2)), (True, 1.0)):
            x = torch.tensor([[1.5]], requires_grad=True)
            sc.Leaky(0.9, reset_delay=delay).run(x)[1]["v"].sum().backward()
            assert x.grad.item() == pytest.approx(expected)

    @pytest.mark.parametrize(("beta", "acts_as", "grad"), [(1.5, 1.0, 0), (1.0, 1.0, 1), (0.0, 0.0, 1), (-0.2, 0.0, 0)])
    def test_beta_is_clamped(self, beta, acts_as, grad):
        """Without a range the equation holds the decay within 0..1; its gradient is 0 outside, not at the ends."""
        x = torch.full((3, 1), 0.25)
        neuron = sc.Leaky(beta, learn=("beta",), bounds=None)
        _, state = neuron.run(x)
        assert torch.equal(state["v"], sc.Leaky(acts_as).run(x)[1]["v"])
        state["v"].sum().backward()
        assert (neuron.beta.grad != 0).item() == bool(grad)


class TestReadOut:
    """LI does not fire."""

    def test_output_is_the_potential(self):
        """Its output is its state after every step."""
        out, state, trace = sc.LI(3.0).run(drive(), record=("v",))
        assert torch.equal(out, trace["v"])
        assert torch.equal(out[-1], state["v"])


class TestArguments:
    """A wrong argument is named."""

    @pytest.mark.parametrize("cls", [sc.LIF, sc.KLIF, sc.QIF, sc.EIF, sc.Izhikevich, sc.ALIF, sc.LI])
    @pytest.mark.parametrize("tau", [0, -1.5, torch.tensor([2.0, 0.0])])
    def test_time_constant_above_zero(self, cls, tau):
        """A time constant of zero or less; of a leak, of less than one step."""
        least = "above 0" if cls in (sc.QIF, sc.Izhikevich) else "at least 1"
        with pytest.raises(ValueError, match=f"^{cls.__name__}: tau=.* must be {least};"):
            cls(tau)

    @pytest.mark.parametrize(
        ("cls", "name"), [(sc.QIF, "a0"), (sc.EIF, "delta_t"), (sc.Izhikevich, "a0"), (sc.KLIF, "k")]
    )
    def test_scale_above_zero(self, cls, name):
        """Other scales of zero or less."""
        with pytest.raises(ValueError, match=f"^{cls.__name__}: {name}=0.0 must be above 0;"):
            cls(**{name: 0})

    @pytest.mark.parametrize(
        "make", [sc.IF, sc.LIF, sc.PLIF, sc.KLIF, sc.QIF, sc.EIF, sc.Izhikevich, sc.Synaptic, sc.ALIF]
    )
    @pytest.mark.parametrize("word", ["subtract", "zero", "Hard", "", None, 0.0])
    def test_reset_word(self, make, word):
        """A reset that is none of the three; of snnTorch's words it says which one is meant."""
        ours = {"subtract": "soft", "zero": "hard"}.get(word)
        meant = f"; what other libraries call {word!r} is reset={ours!r}" if ours else ""
        with pytest.raises(
            ValueError, match=f"^{make.__name__}: reset={word!r} must be one of 'hard', 'soft', 'none'{meant}$"
        ):
            make(reset=word)

    def test_reset_word_of_leaky(self):
        """The words are the same for Leaky."""
        with pytest.raises(ValueError, match="^Leaky: reset='subtract' must be one of 'hard', 'soft', 'none';"):
            sc.Leaky(0.9, reset="subtract")

    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (sc.LIF, "decay_input"),
            (sc.PLIF, "decay_input"),
            (sc.LI, "decay_input"),
            (sc.KLIF, "scale_reset"),
            (lambda **options: sc.Leaky(0.9, **options), "reset_delay"),
            (sc.IF, "detach_reset"),
        ],
    )
    @pytest.mark.parametrize("value", [1, "yes", None])
    def test_flags(self, make, name, value):
        """A switch takes True or False only."""
        with pytest.raises(TypeError, match=f": {name}={value!r} must be True or False$"):
            make(**{name: value})

    @pytest.mark.parametrize("value", ["2", None, True, [2.0], 2j])
    def test_no_number(self, value):
        """A parameter is a number or a tensor."""
        with pytest.raises(TypeError, match=r"^LIF: tau=.* must be a number or a floating-point tensor$"):
            sc.LIF(tau=value)
        with pytest.raises(TypeError, match=r"^IF: threshold=.* must be a number or a floating-point tensor$"):
            sc.IF(threshold=value)

    def test_whole_numbers_are_numbers(self):
        """``tau=2`` is ``tau=2.0``."""
        assert sc.LIF(tau=2, threshold=1).tau == 2.0

    def test_nan(self):
        """NaN is no parameter."""
        with pytest.raises(ValueError, match="^IF: threshold is NaN$"):
            sc.IF(threshold=math.nan)

    def test_positional_only_where_declared(self):
        """Beyond tau (beta for Leaky) arguments have names."""
        with pytest.raises(TypeError, match="positional argument"):
            sc.LIF(2.0, 1.0)
        with pytest.raises(TypeError, match="beta"):
            sc.Leaky()
