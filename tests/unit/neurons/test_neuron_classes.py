"""What is particular to each neuron of the library: thresholds, parametrizations, resets, read-out, arguments."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import spikecore as sc

T, N = 24, 60
RESETS = ("hard", "soft", "none")


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
        (sc.TCLIF(), 2.0),
        (sc.TernaryLIF(), 2.0),
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
        "make",
        [kind for kind in vars(sc).values() if isinstance(kind, type) and issubclass(kind, sc.neurons.Membrane)],
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

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("device", "cuda", r"net\.to\(device\)"),
            ("dtype", torch.float16, r"the output has the dtype of the input"),
            ("compile", True, r"torch\.compile\(net\), or compile=True in sc\.TrainingOptions or"),
        ],
    )
    def test_options_of_layers_of_torch(self, name, value, said):
        """Where a neuron computes, in which dtype, and what compiles it is no option of the neuron."""
        with pytest.raises(TypeError, match=f"^LIF has no parameter '{name}'; .*{said}"):
            sc.LIF(**{name: value})

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
