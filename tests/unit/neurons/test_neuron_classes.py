"""Particular behaviour of each neuron of the library, at the bounds of its parameters too, and neurons of one's own."""

from __future__ import annotations

import inspect
import math
import textwrap

import pytest
import torch

import refusals
import spikecore as sc
from spikecore.neurons import MODELS, example


def values(*shape, seed=0):
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(value):
    """A neuron by its class, anything else not at all."""
    return type(value).__name__ if isinstance(value, sc.Neuron) else ""


class TestDefaults:
    """Those of the peers; the equations themselves are the conformance suite's."""

    def test_learnt(self):
        """PLIF learns ``w``, KLIF ``k``, GLIF all, TCLIF and DHLIF two; the others learn nothing by themselves."""
        learnt = {name: [key for key, _ in example(name).named_parameters()] for name in MODELS}
        two = {"TCLIF": ["c1", "c2"], "DHLIF": ["w_branch", "w_soma"]}
        own = {"PLIF": ["w"], "KLIF": ["k"], "GLIF": list(sc.GLIF.params), **two}
        assert learnt == {name: own.get(name, []) for name in MODELS}
        assert [key for key, _ in sc.KLIF(learn=("tau",)).named_parameters()] == ["tau"]


NEURONS = {**sc.neurons.MODELS, "EscapeNoise": sc.stochastic.EscapeNoise}
CASES = [
    (name, reset)
    for name, cls in NEURONS.items()
    for reset in ("hard", "soft")
    if reset == "hard" or "reset" in cls.configuration
]
#: The potential grows with its square, and nothing takes it back: no value of a parameter keeps it finite.
UNBOUNDED = [(name, reset) for name in ("QIF", "Izhikevich") for reset in ("soft",)]


def made(name, reset):
    cls = NEURONS[name]
    options = {"reset": reset} if "reset" in cls.configuration else {}
    if cls is sc.Leaky:
        options["beta"] = cls.params["beta"]
    return cls(learn=tuple(cls.params), **options)


def places(held_to, dtype):
    """Values at the ends of a range, beyond them, and just inside."""
    eps = torch.finfo(dtype).eps
    low, high = held_to.low, held_to.high
    found = []
    if math.isfinite(low):
        found += [low, low - 1.0, low - 1e9, low + eps * max(1.0, abs(low)), low + 1e-3]
        found += [low + torch.finfo(dtype).tiny, low + 1e-25]
    if math.isfinite(high):
        found += [high, high + 1.0, high + 1e9, high - eps * max(1.0, abs(high)), high - 1e-3]
    return found


def broken(neuron, dtype):
    """The names of what is not finite after a call forward and backward."""
    generator = torch.Generator().manual_seed(3)
    # few steps: where R C is far below the time step, a step of Lapicque overshoots by a factor of 8e6, as it says
    each = () if neuron.inputs == ("x",) else (len(neuron.inputs),)
    x = (2 * torch.randn(4, 2, 5, *each, dtype=dtype, generator=generator)).requires_grad_()
    out, state = neuron.run(*(x.unbind(-1) if neuron.inputs == ("e", "i") else (x,)))
    seen = {"output": out, **state}
    (out * torch.randn(out.shape, dtype=dtype, generator=generator)).sum().backward()
    seen["gradient of x"] = x.grad
    seen.update({f"gradient of {key}": value.grad for key, value in neuron.named_parameters()})
    return [key for key, value in seen.items() if value is not None and not bool(torch.isfinite(value).all())]


@pytest.mark.parametrize(("name", "reset"), [case for case in CASES if case not in UNBOUNDED])
def test_everything_is_finite_at_the_ends_of_ranges(name, reset):
    """One parameter at a time, while all are learnt."""
    dtype = torch.float32
    for parameter, held_to in made(name, reset).bounds.items():
        for value in places(held_to, dtype):
            neuron = made(name, reset).to(dtype)
            getattr(neuron, parameter).data.fill_(value)
            assert broken(neuron, dtype) == [], f"{parameter}={value}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.3, 0.3), (0.3, 0.3001), (0.3, 0.9), (1.0, 1.0)])
def test_alpha_whose_order_learning_broke(alpha, beta, dtype):
    """Equal decays gave 0 / 0, and an order that was turned gave the potential the wrong sign."""
    neuron = sc.Alpha(0.9, 0.8, learn=("alpha", "beta")).to(dtype)
    neuron.alpha.data.fill_(alpha)
    neuron.beta.data.fill_(beta)
    assert broken(neuron, dtype) == []
    alone = torch.zeros(4, 1, 1, dtype=dtype)
    alone[0] = 1e-3
    assert bool((neuron.run(alone, record=("v",))[2]["v"] >= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_frequency_of_brf_that_learning_raised(dtype):
    """The root of a negative number was NaN, and at 1 / dt its derivative infinite; above, it is the highest one."""
    outputs = []
    for omega in (100.0, 100.1, 1e4):
        neuron = sc.BRF(learn=("omega", "b", "dt"), b=0.0).to(dtype)
        neuron.omega.data.fill_(omega)
        assert broken(neuron, dtype) == []
        outputs.append(neuron.run(torch.ones(6, 1, 1, dtype=dtype))[1]["v"])
    assert torch.equal(outputs[0], outputs[2])
    neuron = sc.BRF(learn=("dt",), omega=10.0).to(dtype)
    neuron.dt.data.fill_(0.2)
    assert broken(neuron, dtype) == []


T, B, C = 12, 5, 7


#: What the docstring of Neuron shows: LIF with an adaptive threshold.
SHOWN = {"sc": sc}
exec(textwrap.dedent(inspect.getdoc(sc.Neuron).partition("::\n\n")[2].partition("\n\nArguments")[0]), SHOWN)
AdaptiveLIF = SHOWN["AdaptiveLIF"]


class TestDetachReset:
    """Of a custom neuron with two states."""

    def test_detach_reset_reaches_every_state(self):
        """Unless it says otherwise, no next state of a custom neuron passes the spike's gradient."""
        x = values(T, B, C).requires_grad_()
        _, state = AdaptiveLIF(detach_reset=True).run(x)
        assert torch.autograd.grad(state["a"].sum() + x.sum(), x)[0].unique().tolist() == [1.0]

    def test_reset_states_narrow_it(self):
        """With ``reset_states`` only those named are cut."""

        class Narrow(AdaptiveLIF):
            reset_states = ("v",)

        x = (values(T, B, C) + 1).requires_grad_()
        _, state = Narrow(detach_reset=True).run(x)
        assert torch.autograd.grad(state["a"].sum(), x)[0].abs().max() > 0


class OwnName(sc.Neuron):
    """Reads its time constant from itself instead of from ``p``."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / self.tau
        z = self.spike(h - 0.6)
        return z, {"v": sc.ops.select(z, 0.0, h)}


def test_a_parameter_read_from_self_is_the_parameter():
    """In dynamics ``self.tau`` means ``p.tau``: a later value takes effect, and it can be learnt."""
    neuron, x = OwnName(), torch.rand(6, 4) * 2
    assert neuron.program.params[0] == "tau"
    neuron(x)
    neuron.tau = 20.0
    assert torch.equal(neuron(x), OwnName(tau=20.0)(x))
    learnt = OwnName(learn=("tau",))
    learnt(x).sum().backward()
    assert learnt.tau.grad is not None


SIGNED = {**MODELS, "EscapeNoise": sc.stochastic.EscapeNoise}


@pytest.mark.parametrize("name", SIGNED)
def test_a_signature_has_every_argument_by_name(name):
    """With defaults, which the constructor takes; a neuron's own parameters are among them, and no ``**options``."""
    kind = SIGNED[name]
    arguments = inspect.signature(kind).parameters
    assert {*inspect.signature(sc.Neuron).parameters} < {*arguments}
    assert {*kind.params} - {*arguments} == ({"w"} if name == "PLIF" else set())  # w follows from tau
    assert all(each.kind is not each.VAR_KEYWORD for each in arguments.values())
    required = {each: kind.params[each] for each, argument in arguments.items() if argument.default is argument.empty}
    neuron = kind(**{each: required.get(each, argument.default) for each, argument in arguments.items()})
    plain = kind(**required)
    assert (neuron.extra_repr(), str(neuron.program)) == (plain.extra_repr(), str(plain.program))


def test_the_signature_of_a_neuron_of_ones_own():
    """Declared parameters come through ``**options``; a call of a neuron has the signature of ``forward``."""

    class Gated(sc.LIF):
        params = {"gate": 0.5, **sc.LIF.params}

        def __init__(self, width, **options):
            super().__init__(**options)
            self.width = width

    start = "(width, *, tau=2.0, decay_input=True, threshold=1.0, reset='hard', v_reset=0.0, gate=0.5, surrogate=None, "
    assert str(inspect.signature(Gated)).startswith(start)
    assert str(inspect.signature(Gated)).endswith("bounds={})")
    assert "tau" not in inspect.signature(Gated(3)).parameters


test_refused = refusals.table(__file__, globals())
