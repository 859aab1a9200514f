"""Learnt parameters anywhere that an optimiser may bring them: outputs, final states and gradients are finite.

Every neuron that spikecore has, and every learnt parameter of it at the ends of its range, beyond them and just inside.
An equation that divides by 0 there, or takes an infinite exponential, gives gradients that are NaN and a training that
is lost: EIF, EscapeNoise, SEAdLIF, Alpha and BRF did.
"""

from __future__ import annotations

import math

import pytest
import torch

import spikecore as sc

NEURONS = {**sc.neurons.MODELS, "EscapeNoise": sc.EscapeNoise}
CASES = [
    (name, reset)
    for name, cls in NEURONS.items()
    for reset in ("hard", "soft", "none")
    if reset == "hard" or "reset" in cls.configuration
]
#: The potential grows with its square, and nothing takes it back: no value of a parameter keeps it finite.
UNBOUNDED = [(name, reset) for name in ("QIF", "Izhikevich") for reset in ("soft", "none")]


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
    x = (2 * torch.randn(4, 2, 5, dtype=dtype, generator=generator)).requires_grad_()
    out, state = neuron.run(x)
    seen = {"output": out, **state}
    (out * torch.randn(out.shape, dtype=dtype, generator=generator)).sum().backward()
    seen["gradient of x"] = x.grad
    seen.update({f"gradient of {key}": value.grad for key, value in neuron.named_parameters()})
    return [key for key, value in seen.items() if value is not None and not bool(torch.isfinite(value).all())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "reset"), [case for case in CASES if case not in UNBOUNDED])
def test_everything_is_finite_at_the_ends_of_ranges(name, reset, dtype):
    """One parameter at a time, while all are learnt."""
    for parameter, held_to in made(name, reset).bounds.items():
        for value in places(held_to, dtype):
            neuron = made(name, reset).to(dtype)
            getattr(neuron, parameter).data.fill_(value)
            assert broken(neuron, dtype) == [], f"{parameter}={value}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reset", ["hard", "soft", "none"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.3001, 0.9, 1.0])
def test_alpha_whose_order_learning_broke(alpha, beta, reset, dtype):
    """Equal decays gave 0 / 0, and an order that was turned gave the potential the wrong sign."""
    neuron = sc.Alpha(0.9, 0.8, reset=reset, learn=("alpha", "beta")).to(dtype)
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


def test_an_upstroke_ends():
    """Far above the rheobase potential the exponential is that of 40; below, that of the equation."""
    neuron = sc.EIF(reset="none", threshold=1e30, delta_t=0.5)
    v = torch.tensor([[0.8 + 0.5 * 39.0, 0.8 + 0.5 * 41.0, 1e4]], dtype=torch.float64)
    _, after = neuron.run(torch.zeros(1, 1, 3, dtype=torch.float64), state={"v": v})
    wanted = v + (-v + 0.5 * torch.tensor([39.0, 40.0, 40.0], dtype=torch.float64).exp()) / 2
    torch.testing.assert_close(after["v"], wanted)


def test_a_tiny_divisor_that_is_learnt_is_outside():
    """Of a range above 0: its inverse square is infinite in float32, and 0 times that is NaN."""
    neuron = sc.EscapeNoise(delta=1e-25, learn=("delta",))
    sc.project(neuron)
    assert float(neuron.delta.detach()) == torch.finfo(torch.float32).eps
    circuit = sc.Lapicque(R=1e9, C=1e-12, time_step=1e-3, learn=("C",))
    sc.project(circuit)
    assert float(circuit.C.detach()) == float(torch.tensor(1e-12))
