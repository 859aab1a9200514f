"""Every neuron against its equations, written here by hand: potentials, spikes and gradients.

One step of each neuron stands below, from the papers and the peers, in plain arithmetic. It runs twice: with NumPy in
float64 for the values, and with torch and a step of this file's own for the gradients.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import field_equations as field
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
    log=np.log,
    sigmoid=lambda a: 1 / (1 + np.exp(-a)),
    relu=lambda a: np.maximum(a, 0),
    clip=lambda a: np.clip(a, 0, 1),
    fire=lambda u, strict=False: ((u > 0) if strict else (u >= 0)).astype(float),
    cut=lambda a: a,
)
TORCH = SimpleNamespace(
    exp=torch.exp,
    log=torch.log,
    sigmoid=torch.sigmoid,
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
    *membrane_cases(sc.TernaryLIF, field.ternary_lif, {"tau": 1.7}, DECAY),
    *membrane_cases(sc.TCLIF, field.tclif, {"c1": 0.4, "c2": -0.3, "gamma": 0.4}),
    *(
        pytest.param(cls, step, params, {}, id=cls.__name__)
        for cls, step, params in (
            (sc.CLIF, field.clif, {"tau": 1.7, "threshold": 0.9}),
            (sc.GLIF, field.glif, {name: 0.3 * i - 1.0 for i, name in enumerate(sc.GLIF.params)}),
            (
                sc.SEAdLIF,
                field.seadlif,
                {"tau_u": 3.1, "tau_w": 7.3, "a": 0.4, "b": 0.7, "q": 1.5, "threshold": 0.3},
            ),
            (sc.BRF, field.brf, {"omega": 1.7, "b": 0.4, "dt": 0.5, "gamma": 0.8, "threshold": 0.4}),
        )
    ),
    *(
        pytest.param(cls, step, params, {"reset": reset}, id=f"{cls.__name__}-{reset}")
        for cls, step, params in (
            (sc.Alpha, field.alpha, {"alpha": 0.85, "beta": 0.6, "threshold": 0.5}),
            (sc.Lapicque, field.lapicque, {"R": 1.4, "C": 0.9, "time_step": 0.7, "threshold": 0.9}),
        )
        for reset in RESETS
    ),
    *(
        pytest.param(
            sc.SynapticLeaky,
            field.synaptic_leaky,
            {"alpha": 0.4, "beta": 0.7, "threshold": 0.9},
            {"reset": r, "reset_delay": d},
            id=f"SynapticLeaky-{r}-{d}",
        )
        for r in RESETS
        for d in (True, False)
    ),
    *(
        pytest.param(
            sc.Leaky, leaky, {"beta": 0.85, "threshold": 0.9}, {"reset": r, "reset_delay": d}, id=f"Leaky-{r}-{d}"
        )
        for r in RESETS
        for d in (True, False)
    ),
]


def grads(outputs, wanted, cotangents=None):
    """Gradients, zeros where none arrives; a state that is a detached spike has none to give."""
    if cotangents is not None:
        outputs, cotangents = zip(*((out, one) for out, one in zip(outputs, cotangents) if out.requires_grad))
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
            assert 0.02 < out.abs().mean() < 0.98
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
            sc.SynapticLeaky(): {"i": 0.0, "v": 0.0},
            sc.Alpha(): {"i_exc": 0.0, "i_inh": 0.0, "v": 0.0},
            sc.Lapicque(): {"v": 0.0},
            sc.CLIF(): {"v": 0.0, "m": 0.0},
            sc.GLIF(): {"v": 0.0, "z": 0.0},
            sc.TCLIF(v_reset=0.2): {"d": 0.0, "v": 0.2},
            sc.SEAdLIF(): {"v": 0.0, "w": 0.0},
            sc.BRF(): {"v": 0.0, "y": 0.0, "q": 0.0},
            sc.TernaryLIF(v_reset=0.2): {"v": 0.2},
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
        assert learnt(sc.GLIF()) == list(sc.GLIF.params)
        assert learnt(sc.TCLIF()) == ["c1", "c2"]
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
            sc.SynapticLeaky(),
            sc.Alpha(),
            sc.Lapicque(),
            sc.CLIF(),
            sc.SEAdLIF(),
            sc.BRF(),
            sc.TernaryLIF(),
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
