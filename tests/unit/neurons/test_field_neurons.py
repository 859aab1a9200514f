"""What is particular to the neurons of other packages and of papers: arguments that are refused, limits, symmetries."""

from __future__ import annotations

import math

import pytest
import torch

import spikecore as sc


def drive(*shape, seed=0):
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestArguments:
    """What makes no sense together is refused where it is given."""

    @pytest.mark.parametrize("beta", [0.9, 0.95, torch.tensor([0.5, 0.9])])
    def test_alpha_is_above_beta(self, beta):
        """The potential of Alpha is the difference of its currents, in this order."""
        with pytest.raises(ValueError, match=r"^Alpha: beta=.* must be below alpha=0\.9, by a 1024th of it or more: "):
            sc.Alpha(0.9, beta)
        assert sc.Alpha(0.9, beta, bounds=None)(torch.zeros(2, 1, 2)).shape == (2, 1, 2)

    def test_brf_has_a_damping_for_its_frequency(self):
        """Above 1 / dt the square root has no value."""
        with pytest.raises(ValueError, match=r"^BRF: omega=101\.0 must be at most 1 / dt, with dt=0\.01: above, it"):
            sc.BRF(101.0)
        with pytest.raises(ValueError, match=r"^BRF: omega=tensor\(.* must be at most 1 / dt"):
            sc.BRF(torch.tensor([1.0, 300.0]))
        sc.BRF(100.0)

    def test_lapicque_takes_two_of_three(self):
        """beta follows from R and C; a part that nothing or everything remains of has no circuit."""
        with pytest.raises(ValueError, match=r"^Lapicque: beta=0\.5 follows from R=1\.0 and C=2\.0; give two of the"):
            sc.Lapicque(0.5, R=1.0, C=2.0)
        for beta in (0.0, 1.0, -0.5, torch.tensor([0.5, 1.5])):
            with pytest.raises(ValueError, match=r"^Lapicque: beta=.* must be between 0 and 1, both excluded$"):
                sc.Lapicque(beta)


class TestLapicque:
    """The circuit that a decay stands for."""

    def test_beta_is_that_of_the_circuit(self):
        """R C = time_step / log(1 / beta), whichever of R and C is given."""
        for given in ({}, {"R": 2.5}, {"C": 0.7}, {"R": 3.0, "time_step": 0.1}):
            neuron = sc.Lapicque(0.8, **given)
            product = neuron.R * neuron.C
            assert product == pytest.approx(given.get("time_step", 1.0) / math.log(1 / 0.8), rel=1e-6)
            assert all(getattr(neuron, name) == value for name, value in given.items())

    def test_beta_of_each_channel(self):
        """A tensor gives each channel its own capacity."""
        neuron = sc.Lapicque(torch.tensor([0.5, 0.9]))
        assert neuron.C.shape == (2,)
        x = drive(6, 3, 2).float()
        columns = [sc.Lapicque(beta)(x[..., i]) for i, beta in enumerate((0.5, 0.9))]
        assert torch.equal(neuron(x), torch.stack(columns, dim=-1))

    def test_is_the_euler_step_of_the_circuit(self):
        """With a small step the potential follows v(t) = I R (1 - exp(-t / (R C)))."""
        neuron = sc.Lapicque(R=2.0, C=0.5, time_step=1e-3, threshold=100.0)
        _, _, trace = neuron.run(torch.full((1000, 1), 3.0, dtype=torch.float64), record=("v",))
        t = torch.arange(1, 1001, dtype=torch.float64) * 1e-3
        torch.testing.assert_close(trace["v"][:, 0], 6.0 * (1 - torch.exp(-t)), rtol=0, atol=6.0 * 1e-3)


class TestLimits:
    """Neurons that are others where a parameter has an extreme value."""

    @pytest.mark.parametrize("reset", ["soft", "none"])
    @pytest.mark.parametrize("reset_delay", [True, False])
    def test_synaptic_leaky_without_a_current_is_leaky(self, reset, reset_delay):
        """With alpha = 0 the current is the input."""
        x = drive(20, 40) + 0.3
        mine, leaky = (
            neuron(x)
            for neuron in (
                sc.SynapticLeaky(0.0, 0.8, reset=reset, reset_delay=reset_delay),
                sc.Leaky(0.8, reset=reset, reset_delay=reset_delay),
            )
        )
        assert 0.05 < mine.mean() < 0.9
        assert torch.equal(mine, leaky)

    def test_glif_of_open_gates_is_lif(self):
        """All gates at 1, and a threshold of a half: an exponential leak and a reset of what remains, a step later."""
        gates = {"w_alpha": 40.0, "w_beta": 40.0, "w_gamma": 40.0, "w_conductance": 40.0, "w_tau": 0.0}
        x = drive(20, 40) + 0.3
        assert torch.equal(sc.GLIF(**gates)(x), sc.LIF(2.0, decay_input=False, threshold=0.5)(x))

    def test_ternary_is_odd(self):
        """The negative of an input gives the negative of the spikes."""
        x = 2 * drive(20, 40)
        for reset in ("hard", "soft", "none"):
            out = sc.TernaryLIF(reset=reset)(x)
            assert set(out.unique().tolist()) == {-1.0, 0.0, 1.0}
            assert torch.equal(sc.TernaryLIF(reset=reset)(-x), -out)

    def test_ternary_of_no_leak_integrates(self):
        """tau = inf without decay of the input: SpikingJelly's TernaryIFNode."""
        x = torch.tensor([[0.75, -0.75], [0.5, -0.5], [0.25, -0.25]])
        out, state = sc.TernaryLIF(math.inf, decay_input=False, reset="soft").run(x)
        assert out.tolist() == [[0, 0], [1, -1], [0, 0]]
        assert state["v"].tolist() == [0.5, -0.5]


class TestBRF:
    """The boundary that the neuron is balanced at."""

    def test_amplitude_stays_at_the_boundary(self):
        """With no further damping a free oscillation neither grows nor decays: its energy stays for 2000 steps."""
        neuron = sc.BRF(8.0, 0.0, threshold=1e9)
        start = {"v": torch.ones(1).double(), "y": torch.zeros(1).double(), "q": torch.zeros(1).double()}
        _, state = neuron.run(torch.zeros(2000, 1, dtype=torch.float64), state=start)
        assert (state["v"] ** 2 + state["y"] ** 2).item() == pytest.approx(1.0, abs=1e-9)

    def test_spike_raises_the_threshold(self):
        """After a spike the same potential fires no more, until q has decayed."""
        start = {name: torch.zeros(1).double() for name in ("v", "y", "q")}
        start["v"] += 1.5
        neuron = sc.BRF(0.0, 0.0)
        out, _, trace = neuron.run(torch.zeros(3, 1, dtype=torch.float64), state=start, record=("q",))
        assert out[:, 0].tolist() == [1, 0, 0]
        assert trace["q"][:, 0].tolist() == pytest.approx([1.0, 0.9, 0.81])


def test_seadlif_resets_without_a_gradient():
    """The new potential gives no gradient to the spike that reset it, with or without detach_reset."""
    x = torch.full((1, 1), 40.0, dtype=torch.float64, requires_grad=True)
    for detach_reset in (False, True):
        out, state = sc.SEAdLIF(detach_reset=detach_reset).run(x)
        assert out.item() == 1
        assert torch.autograd.grad(state["v"].sum(), x, allow_unused=True)[0] in (None, 0.0)
