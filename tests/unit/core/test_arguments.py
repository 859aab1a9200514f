"""Wrong arguments of a neuron, of its class, of its calls and of attributes set later are refused by name."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import refusals
import spikecore as sc
from places import page
from spikecore.backend import UnknownBackend

T, B, C = 10, 3, 4


class Pair(sc.Neuron):
    """Two inputs, no state."""

    inputs = ("x", "gate")

    def dynamics(self, x, s, p):
        return x.x + x.gate, {}


def mine(**attributes):
    """A neuron whose class has these attributes."""
    return type("Mine", (sc.Neuron,), attributes)()


X, ONE, PAIR = torch.zeros(2, 2), torch.zeros(1, 1), {n: torch.zeros(2) for n in "va"}


class TestSetLater:
    """Configuration is checked whenever it is set, not in constructors only."""

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("reset", "bogus", "LIF: reset='bogus' must be one of 'hard', 'soft', 'none'"),
            ("step", "x", "LIF: step='x' must be 'multi'"),
            ("detach_reset", None, "LIF: detach_reset=None must be True or False"),
            ("surrogate", "ATan", "LIF: surrogate='ATan' must be a spikecore.Surrogate"),
            ("channel_dim", 1.0, "LIF: channel_dim=1.0 must be a whole number"),
            ("tau", "2", "LIF: tau='2' must be a number or a floating-point tensor"),
            ("tau", 0.9, "LIF: tau=0.9 must be at least 1 (in time steps; what stays in a step is beta of sc.Leaky)"),
            ("tau", [2.0, 3.0], "LIF: tau=[2.0, 3.0] must be a number or a floating-point tensor; give torch.tensor("),
            ("v_reset", None, "LIF: v_reset=None must be a number"),
        ],
    )
    def test_a_wrong_value_is_refused(self, name, value, text):
        """The sentence is the constructor's, and the old value stays."""
        lif = sc.LIF()
        before = getattr(lif, name)
        for give in (lambda: setattr(lif, name, value), lambda: sc.LIF(**{name: value})):
            with pytest.raises((TypeError, ValueError)) as caught:
                give()
            assert str(caught.value).startswith(text)
        assert getattr(lif, name) == before

    def test_a_number_fills_a_tensor(self):
        """A number set on a learnt or tensor parameter fills it in place; the optimiser's object stays."""
        lif = sc.LIF(torch.full((C,), 2.0), threshold=torch.ones(C), learn=("tau",))
        parameter = lif.tau
        lif.tau, lif.threshold = 3.0, 0.5
        assert lif.tau is parameter
        assert lif.tau.tolist() == [3.0] * C
        assert lif.threshold.tolist() == [0.5] * C


class TestNames:
    """A keyword that no neuron has says which one is meant; attributes are free, as of every module."""

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("treshold", "did you mean 'threshold'?"),
            ("v_threshold", "what other libraries call 'v_threshold' is threshold."),
            ("spike_grad", "is surrogate, such as sc.surrogate.FastSigmoid"),
            ("reset_mechanism", "is reset, 'soft' (by subtraction), 'hard' or 'none'."),
            ("step_mode", "is step, 'multi' or 'single'."),
            ("store_v_seq", "neuron.run(x, record=('v',))"),
            ("init_hidden", "is step='single', which carries state until sc.reset(net)."),
            ("learn_beta", "is learn=('beta',)."),
            ("mem", "is a state: see neuron.state"),
            ("inhibition", "is no option here: among the spikes keep that of"),
        ],
    )
    def test_meant(self, name, meant):
        """Passed as a keyword."""
        with pytest.raises(TypeError, match=rf"^Leaky has no parameter '{name}'.*{re.escape(meant)}"):
            sc.Leaky(0.9, **{name: 3})

    def test_every_name_of_another_library_leads_to_one_of_ours(self):
        """``sc.losses.mse_count`` in a hint is there."""
        for path in re.findall(r"sc\.([\w.]*\w)", page("spikecore/_base/misnamed.py")):
            functools.reduce(getattr, path.split("."), sc)

    def test_the_decay_of_a_leaky_neuron(self):
        """``beta`` of snnTorch leads to ``sc.Leaky`` and to ``tau``, which computes the same."""
        meant = re.escape(
            "; what other libraries call 'beta' is beta of sc.Leaky, or tau = 1 / (1 - beta) of sc.LIF(tau, "
            "decay_input=False). "
        )
        with pytest.raises(TypeError, match=rf"^LIF has no parameter 'beta'{meant}Parameters: tau"):
            sc.LIF(beta=0.9)
        x = torch.linspace(0.0, 0.5, 24, dtype=torch.float64).view(8, 3)
        leaky, lif = (
            neuron.run(x, record=("v",))[2]["v"]
            for neuron in (sc.Leaky(0.75, threshold=9.0), sc.LIF(1 / (1 - 0.75), decay_input=False, threshold=9.0))
        )
        torch.testing.assert_close(lif, leaky)

    def test_torch_sets_its_own(self):
        """Parameters, modules, buffers, parametrisations, hooks and quantisation of torch work."""
        lif = sc.LIF(learn=("tau",))
        lif.add_module("gate", nn.Linear(1, 1))
        lif.register_parameter("scale", nn.Parameter(torch.ones(1)))
        lif.mask = torch.ones(1)
        assert {"gate", "scale"} <= {name.split(".")[0] for name, _ in lif.named_parameters()}
        parametrize.register_parametrization(lif, "tau", nn.Softplus(), unsafe=True)
        lif(torch.rand(2, 3))
        lif.register_forward_hook(lambda *a: None)
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF())
        torch.ao.quantization.propagate_qconfig_(net, {"": torch.ao.quantization.default_qconfig})
        assert net[1].qconfig is not None
        torch.func.functional_call(net, dict(net.named_parameters()), torch.rand(2, 1, 3))


def test_the_module_of_a_recurrent_may_be_set():
    """Of a list each Feedback has its own."""
    linear = nn.Linear(3, 3)
    one, several = (sc.Recurrent(sc.LIF(), of) for of in (nn.Identity(), [sc.layers.Feedback(nn.Identity())]))
    one.linear = several.feedbacks[0].module = linear
    x = torch.rand(4, 2, 3)
    assert torch.equal(one(x), several(x))
    with pytest.raises(ValueError, match=r"each Feedback has its module; set it there, net\.feedbacks\[0\]\.module"):
        several.linear = linear


class TestCalls:
    """Inputs, records and states that do not fit."""

    @pytest.mark.parametrize("warm", [False, True])
    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (torch.Tensor.to_sparse, r"x has layout torch\.sparse_coo; give a dense tensor, e\.g\. x\.to_dense\(\)"),
            (torch.Tensor.to_mkldnn, r"x has layout torch\._mkldnn; give a dense tensor"),
            (lambda x: torch.nested.nested_tensor([*x]), r"x is a nested tensor; .*to_padded_tensor\(x, 0\.0\)"),
        ],
        ids=["sparse", "mkldnn", "nested"],
    )
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
    def test_only_dense_tensors(self, make, text, warm):
        """The first call and one after a dense one say the same."""
        lif, x = sc.LIF(), torch.rand(2, B, C)
        if warm:
            lif(x)
            lif(x)
        with pytest.raises(TypeError, match=f"^LIF: {text}"):
            lif(make(x))

    def test_a_failed_call_changes_nothing(self):
        """After an error the neuron carries what it carried."""
        lif = sc.LIF(step="single")
        lif(torch.ones(2))
        for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(3), "x"):
            with pytest.raises((TypeError, ValueError)):
                lif(wrong)
        assert lif.state["v"].tolist() == [0.5, 0.5]


test_refused = refusals.table(__file__, globals(), UnknownBackend)
