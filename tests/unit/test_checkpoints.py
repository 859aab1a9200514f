"""What is saved loads again, and what a neuron takes of a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc

INF = float("inf")
NAN = float("nan")


def drive(*shape):
    """Inputs in float32 that make neurons fire."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 2


class TestSaved:
    """``state_dict`` and ``load_state_dict``."""

    def test_what_is_saved_loads_again(self):
        """Saving right after a step that left the range saves the value inside, which loads."""
        net = nn.Sequential(nn.Linear(2, 2), sc.LIF(2.0, learn=("tau",)))
        optimizer = torch.optim.SGD(net.parameters(), 1.0)
        net[1].tau.grad = torch.tensor(5.0)
        optimizer.step()
        state = net.state_dict()
        assert state["1.tau"].item() == 1.0
        net.load_state_dict(state)

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("learn", [("tau",), ()])
    @pytest.mark.parametrize("value", [0.0, -1.0, NAN, -INF])
    def test_value_outside_is_refused(self, value, learn, strict):
        """The error has key, value, range and way out, and of the neuron nothing is loaded."""
        net = nn.Sequential(sc.LIF(torch.tensor([2.0, 3.0]), threshold=torch.tensor(1.0), learn=learn))
        state = {"0.tau": torch.tensor([1.5, value]), "0.threshold": torch.tensor(0.5)}
        shown = f"{value:g}"
        text = (
            rf"0\.tau holds {shown}, and tau of LIF must be at least 1; to load it all the same, set bounds=None on "
            r"the neuron, or bounds=\{'tau': \(low, high\)\} for another range"
        )
        with pytest.raises(RuntimeError, match=text):
            net.load_state_dict(state, strict=strict)
        assert net[0].tau.tolist() == [2.0, 3.0]
        assert net[0].threshold.item() == 1.0
        net[0].bounds = None
        net.load_state_dict(state)
        assert torch.equal(net[0].tau, state["0.tau"]) or value != value

    def test_checkpoint_from_before_ranges(self):
        """Keys and shapes are what they were, and values inside arrive to the bit."""
        lif = sc.LIF(torch.full((3,), 2.0), learn=("tau", "threshold"))
        old = {"tau": torch.tensor([1.0, 1.1, 9.9]), "threshold": torch.tensor(0.3)}
        lif.load_state_dict(old)
        lif(drive(4, 2, 3))
        assert all(torch.equal(value, old[name]) for name, value in lif.state_dict().items())
        assert list(lif.state_dict()) == list(old)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_rounded_ends(self, dtype):
        """An end of a range that a 16-bit type rounds outwards is saved and loads into any precision."""
        lif = sc.Leaky(0.9, bounds={"beta": (0.1, 0.9)}, learn=("beta",))
        half = copy.deepcopy(lif).to(dtype)
        for by in (-5.0, 5.0):
            with torch.no_grad():
                half.beta.add_(by)
            lif.load_state_dict(half.state_dict())
            number = sc.Leaky(0.5, bounds={"beta": (0.1, 0.9)})
            number.load_state_dict({"beta": half.state_dict()["beta"]}, strict=False)
            lif(drive(3, 2))
            assert 0.1 <= number.beta <= 0.9
            assert lif.beta.item() == pytest.approx(number.beta, abs=1e-7)

    def test_a_number_takes_a_value(self):
        """A single value stays a number, several become a tensor; both are checked."""
        lif = sc.LIF(2.0)
        lif.load_state_dict({"tau": torch.tensor(3.0), "threshold": torch.tensor([1, 2])})
        assert lif.tau == 3.0
        assert isinstance(lif.tau, float)
        assert lif.threshold.tolist() == [1.0, 2.0]
        assert lif(drive(4, 3, 2)).shape == (4, 3, 2)
        lif.load_state_dict({"threshold": torch.tensor([3.0, 4.0, 5.0])}, strict=False)
        assert lif.threshold.tolist() == [3.0, 4.0, 5.0]
        with pytest.raises(RuntimeError, match=r"tau holds 0\.5, and tau of LIF must be at least 1"):
            lif.load_state_dict({"tau": torch.tensor(0.5)}, strict=False)
        with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "tua"'):
            sc.LIF(2.0).load_state_dict({"tua": torch.tensor(3.0)})

    def test_one_learnt_value_takes_no_tensor(self):
        """Torch 2.0 would take the first of several values for a single one."""
        text = (
            r"tau has shape \[2\], and tau is one learnt value for all here; make the LIF with tau=torch.full\(\(2,\)"
        )
        with pytest.raises(RuntimeError, match=text):
            sc.LIF(2.0, learn=("tau",)).load_state_dict({"tau": torch.tensor([2.0, 3.0])})
