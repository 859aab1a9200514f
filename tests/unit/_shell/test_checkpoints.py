"""What is saved loads again, and what a neuron takes of a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc

INF = float("inf")
NAN = float("nan")
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


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

    @pytest.mark.parametrize(
        ("value", "learn", "strict"), [(0.0, ("tau",), True), (NAN, (), False), (-INF, ("tau",), False)]
    )
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
            sc.project(lif)
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

    @pytest.mark.parametrize(
        ("shape", "learn", "assign"), [((), ("tau",), False), ((1,), (), False), ((1,), ("tau",), True)]
    )
    def test_a_single_value_for_every_channel(self, shape, learn, assign):
        """A value that was one for all, in an old checkpoint, is that of each channel here; outside it is refused."""
        if assign and TORCH < (2, 1):
            pytest.skip("torch before 2.1 has no assign")
        options = {"assign": True} if assign else {}
        lif = sc.LIF(torch.full((3,), 2.0), learn=learn)
        lif.load_state_dict({"tau": torch.full(shape, 3.0)}, **options)
        assert lif.tau.tolist() == [3.0] * 3
        assert isinstance(lif.tau, nn.Parameter) == bool(learn)
        lif(drive(4, 2, 3))
        with torch.no_grad():
            lif.tau[0] = 4.0  # memory of its own for each
        assert lif.tau.tolist() == [4.0, 3.0, 3.0]
        with pytest.raises(RuntimeError, match=r"tau holds 0\.5, and tau of LIF must be at least 1"):
            lif.load_state_dict({"tau": torch.full(shape, 0.5)}, **options)
        if learn:
            with pytest.raises(RuntimeError, match=r"size mismatch for tau"):
                lif.load_state_dict({"tau": torch.full((2,), 3.0)}, **options)

    def test_one_learnt_value_takes_no_tensor(self):
        """Torch 2.0 would take the first of several values for a single one."""
        text = (
            r"tau has shape \[2\], and tau is one learnt value for all here; make the LIF with tau=torch.full\(\(2,\)"
        )
        with pytest.raises(RuntimeError, match=text):
            sc.LIF(2.0, learn=("tau",)).load_state_dict({"tau": torch.tensor([2.0, 3.0])})


def snntorch_state(**changes):
    """The entries of ``snntorch.Leaky(0.77)``, 1.0.0: what is not learnt there is a buffer."""
    values = {"threshold": 1.0, "graded_spikes_factor": 1.0, "reset_mechanism_val": 0, "beta": 0.77}
    return {f"lif1.{name}": torch.as_tensor(value) for name, value in {**values, **changes}.items()}


class TestOfSnnTorch:
    """Leaky takes what ``snntorch.Leaky`` saves."""

    def test_fixed_values(self):
        """Fixed beta and threshold become ours: numbers, or tensors where there is one for each channel."""
        net = nn.ModuleDict({"lif1": sc.Leaky(0.5)})
        result = net.load_state_dict(snntorch_state(threshold=torch.tensor([0.5, 0.7, 0.9])))
        assert (result.missing_keys, result.unexpected_keys) == ([], [])
        assert net["lif1"].beta == pytest.approx(0.77)
        assert isinstance(net["lif1"].beta, float)
        assert torch.equal(net["lif1"].threshold, torch.tensor([0.5, 0.7, 0.9]))
        x = drive(6, 2, 3)
        assert torch.equal(net["lif1"](x), sc.Leaky(net["lif1"].beta, threshold=torch.tensor([0.5, 0.7, 0.9]))(x))

    def test_learnt_values(self):
        """Where ours learns they are the start; whole numbers are numbers."""
        net = nn.ModuleDict({"lif1": sc.Leaky(0.5, learn=("beta",))})
        net.load_state_dict(snntorch_state(threshold=2))
        assert isinstance(net["lif1"].beta, nn.Parameter)
        assert net["lif1"].beta.item() == pytest.approx(0.77)
        assert net["lif1"].threshold == 2.0

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"reset_mechanism_val": 1}, r"lif1\.reset_mechanism_val is 1, which means reset='hard', not 'soft'"),
            ({"reset_mechanism_val": 2}, r"lif1\.reset_mechanism_val is 2, which means reset='none', not 'soft'"),
            ({"graded_spikes_factor": 3.0}, r"lif1\.graded_spikes_factor is 3\.0, and spikes are 1 here; multiply"),
            ({"beta": 1.03}, r"lif1\.beta holds 1\.03, and beta of Leaky must be in \[0, 1\]"),
        ],
    )
    def test_what_means_something_else(self, changes, text):
        """An entry that this neuron cannot be is refused, and nothing of it is loaded."""
        net = nn.ModuleDict({"lif1": sc.Leaky(0.5)})
        with pytest.raises(RuntimeError, match=text):
            net.load_state_dict(snntorch_state(**changes), strict=False)
        assert net["lif1"].beta == 0.5

    def test_unknown_entries(self):
        """What nobody knows is named, as by torch."""
        net = nn.ModuleDict({"lif1": sc.Leaky(0.5)})
        result = net.load_state_dict(snntorch_state(V=1.0), strict=False)
        assert result.unexpected_keys == ["lif1.V"]
        with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "lif1\.V"'):
            net.load_state_dict(snntorch_state(V=1.0))
