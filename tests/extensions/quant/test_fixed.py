"""Neurons in fixed point: their bits are those of integers, and they learn."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Dict, List

import numpy as np
import pytest
import torch

import refusals
import spikecore as sc
from integers import TABLES, WIDE, Integers, IntegersBackend, fixed_model, half_even, results
from ready import needs_backend
from spikecore.lang import Node
from spikecore.neurons import MODELS, example
from spikecore.testing import installed
from spikecore.testing.random_programs import check_many


def drive(seed: int, steps: int = 25, count: int = 4) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((steps, count)) * 2).astype(np.float32)


def check_bits(neuron: Any, x: np.ndarray, backend: str = "torch") -> None:
    """Outputs and states are those of integers, and each value is within the format that the analysis gives it."""
    dtype = sc.quant.fixed_point_of(neuron).dtype
    formats = sc.quant.analyse(neuron.program, dtype=dtype)
    found = results(neuron, torch.tensor(x, dtype=dtype), backend)
    values = {name: float(torch.as_tensor(value).detach()) for name, value in neuron.named_values().items()}
    oracle = Integers(neuron.program, values, np.float64 if dtype == torch.float64 else np.float32)
    expected, states = oracle.run([x], formats)
    for got, want in zip(found, [*expected, *states]):
        np.testing.assert_array_equal(got.double().numpy(), want)


@pytest.mark.parametrize("how", [{"word": 16}, {"word": 12}, {"word": 8, "rounding": "floor"}], ids=str)
@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in (*TABLES, "CobaLIF") and not example(name).vectors]
)
def test_every_neuron_has_the_bits_of_integers(name: str, how: Dict[str, Any]) -> None:
    if name in WIDE and how["word"] == 16:
        how = {**how, "dtype": torch.float64}
    check_bits(sc.quant.fixed(example(name), **how), drive(1))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_near_its_function(name: str) -> None:
    x = drive(2)
    neuron = fixed_model(name)
    check_bits(neuron, x)
    plain, table = (n(torch.tensor(x)).mean() for n in (example(name), neuron))
    assert abs(plain - table) < 0.05


def test_random_programs_have_the_bits_of_integers() -> None:
    """Integers as a backend pass what the conformance suite asks of every backend."""
    with installed(IntegersBackend):
        check_many("integers", 40, fixed=True)


# -- the equations by hand, in integers of 16 bits with 12 fractional ones; 1 / tau is 128 / 256


def saturated(n: int) -> int:
    return min(max(n, -(1 << 15)), (1 << 15) - 1)


def read(x: float) -> int:
    return saturated(round(float(x) * 4096))


def times(n: int, factor: int, bits: int) -> int:
    """A saturated number times a factor with so many fractional bits."""
    return half_even(saturated(n) * factor, bits)


def lif(xs: Any, factor: int = 128, bits: int = 8) -> List[float]:
    v, spikes = 0, []
    for x in xs:
        h = v + times(read(x) - v, factor, bits)
        z = h >= 4096
        v = saturated(0 if z else h)
        spikes.append(float(z))
    return spikes


def integrate(xs: Any) -> List[float]:
    v, spikes = 0, []
    for x in xs:
        h = v + read(x)
        v, z = (0, 1.0) if h >= 4096 else (saturated(h), 0.0)
        spikes.append(z)
    return spikes


def alif(xs: Any) -> List[float]:
    v = a = 0
    spikes = []
    for x in xs:
        h = v + times(read(x) - v, 128, 8)
        z = h >= 4096 + times(a, 205, 10)  # 0.2 is 204.8 / 1024
        v = saturated(0 if z else h)
        a = saturated(times(a, 230, 8) + 4096 * z)  # 0.9 is 230.4 / 256
        spikes.append(float(z))
    return spikes


def synaptic(xs: Any) -> List[float]:
    i = v = 0
    spikes = []
    for x in xs:
        i = times(i, 128, 8) + read(x)
        h = times(v, 192, 8) + i
        z = h >= 4096
        i, v = saturated(i), saturated(0 if z else h)
        spikes.append(float(z))
    return spikes


def soft(xs: Any) -> List[float]:
    """Leaky integrate and fire, reset by subtraction one step later."""
    v, spikes = 0, []
    for x in xs:
        reset = v > 4096
        v = saturated(times(v, 230, 8) + read(x) - 4096 * reset)
        spikes.append(float(v > 4096))
    return spikes


BY_HAND = {
    "LIF": (lambda: sc.LIF(2.0), lif),
    "LIF of tau 10": (lambda: sc.LIF(10.0), lambda xs: lif(xs, 205, 11)),  # 0.1 is 204.8 / 2048
    "IF": (sc.IF, integrate),
    "ALIF": (sc.ALIF, alif),
    "Synaptic": (lambda: sc.Synaptic(0.5, 0.75), synaptic),
    "Leaky": (lambda: sc.Leaky(0.9), soft),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_neurons_compute_what_a_loop_of_integers_does(name: str) -> None:
    make, loop = BY_HAND[name]
    x = drive(3, steps=200) + 0.5
    spikes = sc.quant.fixed(make(), word=16, frac=12)(torch.tensor(x)).numpy()
    expected = np.array([loop(column) for column in x.T]).T
    assert 0.02 < expected.mean() < 0.98
    np.testing.assert_array_equal(spikes, expected)


# -- derivatives


def test_gradients_pass_a_rounding_and_stop_at_a_saturation() -> None:
    x = torch.tensor([[0.3, -0.7, 1e3], [0.1, 0.45, 1e3], [0.9, 0.0, 0.1]], dtype=torch.float64, requires_grad=True)
    outputs = [neuron(x)[-1].sum() for neuron in (sc.quant.fixed(sc.LI(2.0), word=16, frac=12), sc.LI(2.0))]
    fixed, plain = (torch.autograd.grad(output, x)[0] for output in outputs)
    torch.testing.assert_close(fixed[:, :2], plain[:, :2], rtol=0, atol=0)
    assert fixed[:, 2].tolist() == [0.0, 0.0, 0.5]


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_fixed_neuron_learns_under_the_names_it_had(backend: str) -> None:
    if backend == "numba":
        needs_backend("numba")
    plain = sc.LIF(3.0, learn=("tau",), threshold=0.5, backend=backend)
    neuron = sc.quant.fixed(plain)
    neuron.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(neuron.parameters(), lr=0.1)
    neuron(torch.rand(8, 5)).sum().backward()
    assert neuron.tau.grad.abs() > 0
    optimizer.step()
    assert neuron.tau != plain.tau == 3.0
    assert not plain.transforms


# -- the neuron as before


def test_copies_and_single_steps_have_the_same_bits() -> None:
    neuron = sc.quant.fixed(sc.ALIF(), word=12)
    x = torch.tensor(drive(4))
    expected = neuron(x)
    for other in (copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
        assert torch.equal(other(x), expected)
        assert other.program == neuron.program
    single = sc.quant.fixed(sc.ALIF(step="single"), word=12)
    assert torch.equal(torch.stack([single(value) for value in x]), expected)
    sc.reset(single)
    assert torch.equal(single(x[0]), expected[0])
    assert "FixedPoint(word=12" in repr(neuron)


def test_named_values_are_those_of_the_integers() -> None:
    """The potential before a reset: where no spike is, it is the state behind the step."""
    neuron = sc.quant.fixed(sc.LIF(2.0), word=16, frac=12)
    spikes, _, trace = neuron.run(torch.tensor(drive(6)), record=("h", "v"))
    assert 0 < spikes.mean() < 1
    assert torch.equal(torch.where(spikes > 0, 0.0, trace["h"]), trace["v"])
    assert (trace["h"] * 2**12).frac().eq(0).all()


def test_another_value_of_a_parameter_counts_at_once() -> None:
    neuron, x = sc.quant.fixed(sc.LIF(2.0), word=16, frac=12), torch.tensor(drive(5))
    neuron.threshold = 0.5
    expected = np.array([[float(h >= 0.5) for h in row] for row in neuron.run(x[:1])[0].numpy()])
    assert neuron(x[:1]).sum() == expected.sum()
    assert neuron(x).sum() > sc.quant.fixed(sc.LIF(2.0), word=16, frac=12)(x).sum()


class Constants(sc.Neuron):
    """A spike of parameters alone, a state that falls slowly, and a product of constants."""

    states = {"v": 0.5}
    params = {"a": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        x = sc.ops.select(self.spike(p.a / 2.0 - 0.5), x, 0.0)
        v = sc.ops.maximum(sc.ops.maximum(x, s.v) / 3.0, s.v - 0.001)
        return 0.7 * v / 0.3, {"v": v}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coefficients_and_ranges_of_any_kind_have_the_bits_of_integers(dtype: torch.dtype) -> None:
    neuron = sc.quant.fixed(Constants(), dtype=dtype)
    v = Node("state", (), "v")
    assert sc.quant.analyse(neuron.program, dtype=dtype)[v].low == 0  # it never falls below
    check_bits(neuron, drive(6))


# -- grids follow the values of parameters

CHANGES = {
    "a number": (lambda value: sc.LIF(tau=value), 20.0, 2.0),
    "a tensor": (lambda value: sc.LIF(tau=value), torch.tensor([20.0] * 4), torch.tensor([2.0, 3.0, 20.0, 300.0])),
    "a tensor for a number": (lambda value: sc.LIF(tau=value), 20.0, torch.tensor(2.0)),
    "a learnt one": (lambda value: sc.LIF(tau=value, learn=("tau",)), 20.0, 2.0),
    "a decay": (lambda value: sc.Leaky(beta=value), 0.4, 0.95),
    "a threshold": (lambda value: sc.LIF(threshold=value), 0.5, 7.5),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("way", ["set", "loaded"])
def test_a_parameter_that_changes_gets_new_grids(name: str, way: str) -> None:
    make, before, after = CHANGES[name]
    neuron, other, x = sc.quant.fixed(make(before), frac=12), make(after), torch.tensor(drive(7)) * 3.0
    (changed,) = [name for name in ("tau", "beta", "threshold") if name in other.params and other.params[name] != 0][:1]
    changed = "threshold" if name == "a threshold" else changed
    neuron(x)
    if way == "set":
        setattr(neuron, changed, after)
    else:
        neuron.load_state_dict({changed: torch.as_tensor(after)}, strict=False)
    assert torch.equal(neuron(x), sc.quant.fixed(make(after), frac=12)(x))
    if isinstance(after, float):
        check_bits(neuron, drive(7) * 3)


def test_a_smaller_time_constant_fires_as_often_as_that_of_a_new_neuron() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 2, 4) * 6
    neuron = sc.quant.fixed(sc.LIF(tau=20.0))
    neuron.tau = 2.0
    assert neuron(x).sum() == 22  # 2 with the grid of 1 / 20
    read_out = sc.quant.fixed(sc.LI(tau=4.0))
    read_out.tau = 1.0
    assert read_out(torch.full((2, 1), 0.5)).flatten().tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (50.0, r"threshold is 50, beyond the range \[-8, 7.99976\]"),
        (1e-6, "threshold is 1e-06, and rounds to 0 in multiples of 0.000244141.*take more fractional bits"),
        (torch.tensor([1.0, 50.0]), "threshold is 50, beyond the range"),
        (torch.tensor([1.0, float("nan")]), "threshold"),
    ],
    ids=str,
)
def test_a_value_that_the_word_does_not_hold_is_refused(value: Any, text: str) -> None:
    neuron = sc.quant.fixed(sc.LIF(threshold=torch.ones(2)), frac=12)
    before = sc.quant.fixed_point_of(neuron)
    with pytest.raises(ValueError, match=text):
        neuron.threshold = value
    with pytest.raises(RuntimeError, match=text):
        neuron.load_state_dict({"threshold": torch.as_tensor(value)}, strict=False)
    assert neuron.threshold.tolist() == [1.0, 1.0]
    assert sc.quant.fixed_point_of(neuron) == before


def test_a_learnt_parameter_has_a_range_that_its_grids_hold() -> None:
    neuron, x = sc.quant.fixed(sc.LIF(tau=20.0, learn=("tau",))), torch.tensor(drive(8)) * 9
    assert (neuron.bounds["tau"].low, neuron.bounds["tau"].high) == (10.0, 40.0)
    at_its_end = copy.deepcopy(neuron)
    at_its_end.tau.data.fill_(10.0)
    neuron.tau.data.fill_(2.0)  # as an optimiser would
    spikes = neuron(x)
    assert torch.equal(spikes, at_its_end(x))
    assert spikes.sum() > sc.quant.fixed(sc.LIF(tau=20.0))(x).sum()
    assert torch.autograd.grad(spikes.sum(), neuron.tau)[0] != 0  # so that it can come back
    sc.functional.project(neuron)
    assert neuron.tau == 10.0
    wide = sc.quant.fixed(sc.LIF(tau=20.0, learn=("tau",), bounds={"tau": (2.0, 100.0)}))
    assert (wide.bounds["tau"].low, wide.bounds["tau"].high) == (2.0, 100.0)
    neuron.bounds = {"tau": (2.0, 100.0)}
    assert dict(neuron.bounds) == dict(wide.bounds)
    for each in (wide, neuron):
        each.tau.data.fill_(2.0)
    assert torch.equal(wide(x), neuron(x))
    assert neuron(x).sum() > spikes.sum()


class Quotient(sc.Neuron):
    params = {"a": 1.0, "b": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return x * p.a / p.b, {}


def test_a_quotient_of_two_parameters_of_channels_does_not_saturate() -> None:
    """It is largest where one is largest and the other least."""
    neuron = sc.quant.fixed(Quotient(a=torch.tensor([1.0, 6.0]), b=torch.tensor([2.0, 1.0])), frac=8)
    assert neuron(torch.ones(1, 1, 2)).tolist() == [[[0.5, 6.0]]]


# -- errors


def parametrised() -> sc.Neuron:
    neuron = sc.LIF(tau=3.0, learn=("tau",))
    torch.nn.utils.parametrize.register_parametrization(neuron, "tau", torch.nn.Softplus())
    return neuron


class Ratio(sc.Neuron):
    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = x / (abs(s.v) + 1.0)
        return v, {"v": v}


class Phase(sc.Neuron):
    """Phase of an oscillator."""

    states = {"phase": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        phase = sc.ops.remainder(s.phase + x, 1.0)
        return self.spike(phase - 0.5), {"phase": phase}


test_refused = refusals.table(__file__, globals())
