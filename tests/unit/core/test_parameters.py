"""Parameters of a neuron: numbers and tensors, one per channel or per neuron, learnt or not, saved and loaded."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc

T, B, C = 8, 3, 4


def values(*shape, seed=0):
    """Normal values around 0.5 in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


class TestKinds:
    """The tensor that a value becomes."""

    def test_number_tensor_and_learnt(self):
        """A number stays a float, a tensor is a buffer, a learnt one a Parameter."""
        neuron = sc.LIF(2, threshold=torch.tensor([1.0, 2.0]), v_reset=0.5, learn=("v_reset",))
        assert isinstance(neuron.tau, float)
        assert list(dict(neuron.named_buffers())) == ["threshold"]
        assert list(dict(neuron.named_parameters())) == ["v_reset"]
        assert isinstance(neuron.v_reset, nn.Parameter)
        assert (neuron.v_reset.shape, neuron.v_reset.dtype) == ((), torch.float32)

    @pytest.mark.parametrize("learn", [(), ["tau"]])
    def test_parameter_given_directly(self, learn):
        """An nn.Parameter is taken as it is, and learns, named in ``learn`` or not."""
        tau = nn.Parameter(torch.tensor([1.5, 2.5]))
        neuron = sc.LIF(tau, learn=learn)
        assert neuron.tau is tau
        neuron(values(T, B, 2)).sum().backward()
        assert tau.grad.shape == (2,)

    def test_shared_between_neurons(self):
        """One Parameter in two neurons is one, gets both gradients, and is learnt once."""
        tau, x = nn.Parameter(torch.tensor(1.7).double()), values(T, B)
        net = nn.Sequential(sc.LIF(tau), sc.LIF(tau, decay_input=False))
        assert len(list(net.parameters())) == 1
        (found,) = torch.autograd.grad(net(x).sum(), tau)
        apart = [nn.Parameter(tau.detach().clone()) for _ in range(2)]
        both = nn.Sequential(sc.LIF(apart[0]), sc.LIF(apart[1], decay_input=False))
        torch.testing.assert_close(found, sum(torch.autograd.grad(both(x).sum(), apart)))
        twin = copy.deepcopy(net)
        assert twin[0].tau is twin[1].tau


class TestMoving:
    """state_dict, ``.to()``, copies, and setting."""

    def test_tensor_set_over_a_number(self):
        """A tensor set where a number was becomes a buffer, moves along, and is saved."""
        lif = sc.LIF()
        lif.tau = torch.tensor([1.5, 2.5])
        assert list(lif.state_dict()) == ["tau"]
        assert lif.double().tau.dtype == torch.float64
        lif.tau = torch.tensor([3.0, 4.0])
        assert lif.state_dict()["tau"].tolist() == [3.0, 4.0]


def test_a_tensor_in_the_place_of_a_learnt_parameter_says_what_to_give() -> None:
    """A number fills it, an nn.Parameter replaces it."""
    neuron = sc.LIF(2.0, learn=("tau",))
    with pytest.raises(TypeError, match=r"LIF: tau is learnt, and a tensor cannot take its place; give a number"):
        neuron.tau = torch.tensor(3.0)
    neuron.tau = 3.0
    assert neuron.tau.item() == 3.0


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


test_refused = refusals.table(__file__, globals())
