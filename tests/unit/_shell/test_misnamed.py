"""A name that no neuron has is an error that says which one is meant, as an attribute and as a keyword."""

from __future__ import annotations

import abc
import copy
import pickle
import re
from typing import Optional

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import spikecore as sc

NAMES = [
    ("tua", "did you mean 'tau'?"),
    ("treshold", "did you mean 'threshold'?"),
    ("surogate", "did you mean 'surrogate'?"),
    ("v_threshold", "what other libraries call 'v_threshold' is threshold."),
    ("surrogate_function", "is surrogate, such as sc.surrogate.FastSigmoid"),
    ("spike_grad", "is surrogate, such as sc.surrogate.FastSigmoid"),
    ("reset_mechanism", "is reset, 'soft' (by subtraction), 'hard' or 'none'."),
    ("step_mode", "is step, 'multi' or 'single'."),
    ("store_v_seq", "neuron.run(x, record=('v',))"),
    ("init_hidden", "is step='single', which carries state until sc.reset(net)."),
    ("graded_spikes_factor", "is a product: factor * neuron(x)."),
    ("learn_beta", "is learn=('beta',)."),
    ("mem", "is a state: see neuron.state"),
    ("init_tau", "is tau."),
    ("inhibition", "is no option here: among the spikes keep that of"),
    ("state_quant", "is no option here: round the states in a dynamics of your own"),
]


class Own(sc.Neuron):
    """A neuron with attributes of its own, set before and after those of the base, and declared in the class."""

    states = {"v": 0.0}
    params = {"tau": 2.0}
    label: Optional[str]
    gain = 1.0

    def __init__(self, **options):
        self.early = 1
        super().__init__(**options)
        self.late = 2
        self._configure()

    def _configure(self):
        self.later = 3

    @property
    def rate(self):
        return self._rate

    @rate.setter
    def rate(self, value):
        self._rate = value

    def dynamics(self, x, s, p):
        self.traced = True
        v = s.v + x / p.tau * self.gain
        return v, {"v": v}


@pytest.mark.parametrize(("name", "meant"), NAMES)
def test_an_attribute(name, meant):
    """Setting it would change nothing, so it raises and names what is meant."""
    lif = sc.LIF()
    with pytest.raises(AttributeError, match=rf"^LIF has no attribute '{name}'.*{re.escape(meant)}"):
        setattr(lif, name, 3)
    assert not hasattr(lif, name)


@pytest.mark.parametrize(("name", "meant"), NAMES)
def test_a_keyword(name, meant):
    """The same names in the constructor."""
    with pytest.raises(
        TypeError,
        match=rf"^Leaky has no parameter '{name}'.*{re.escape(meant)}"
        if name not in ("tua", "init_tau")
        else rf"^Leaky has no parameter '{name}'",
    ):
        sc.Leaky(0.9, **{name: 3})


def test_a_name_of_another_neuron():
    """A parameter or a setting that other neurons have: they are named."""
    with pytest.raises(
        AttributeError, match=r"^LIF has no attribute 'beta'.*; sc\.ALIF, .*sc\.Leaky, .*sc\.Synaptic.* have it\. There"
    ):
        sc.LIF().beta = 0.9
    with pytest.raises(
        AttributeError, match=r"^IF has no attribute 'reset_delay'.*; (did you mean 'reset'\\?|sc\.Leaky has it)"
    ):
        sc.IF().reset_delay = False
    with pytest.raises(
        TypeError,
        match=r"^LIF has no parameter 'beta'; sc\.ALIF, .*sc\.Leaky, .*sc\.Synaptic.* have it\. Parameters: tau",
    ):
        sc.LIF(beta=0.9)


def test_values_of_other_libraries():
    """A value that has another name here, as a keyword and as an attribute."""
    for value, ours in (("subtract", "soft"), ("zero", "hard")):
        with pytest.raises(ValueError, match=rf"reset='{value}' must be one of .* call '{value}' is reset='{ours}'$"):
            sc.LIF(reset=value)
    with pytest.raises(ValueError, match=r"step='m' must be .*; what other libraries call 'm' is step='multi'$"):
        sc.LIF(step="m")
    with pytest.raises(TypeError, match=r"v_reset=None must be .*; for a reset by subtraction write reset='soft'$"):
        sc.LIF(v_reset=None)
    with pytest.raises(TypeError, match=r"v_reset=None must be .*; for a reset by subtraction write reset='soft'$"):
        sc.LIF().v_reset = None


def test_a_tensor_under_a_name_that_means_something():
    """The name of a state, or another library's, is refused whatever the value."""
    lif = sc.LIF()
    for name in ("v", "mem", "v_threshold"):
        with pytest.raises(AttributeError, match=f"^LIF has no attribute '{name}'"):
            setattr(lif, name, torch.zeros(1))


class TestFree:
    """What goes on being possible."""

    def test_the_classes_own(self):
        """What a subclass sets or declares is its own, in a copy as well."""
        neuron = Own()
        neuron.program  # noqa: B018  # dynamics sets an attribute, on what it is traced with
        for one in (neuron, copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
            one.early, one.late, one.later, one.label, one.gain, one.rate = range(6)
            assert (one.early, one.late, one.later, one.label, one.gain, one.rate) == tuple(range(6))
            one.latest = 1
            one.tua = 3.0

    def test_other_bases(self):
        """A neuron may be abstract, and its constructor may be inherited or absent."""

        class Abstract(Own, abc.ABC):
            def __init__(self):
                super().__init__()
                self.most = 4

        assert Abstract().most == 4

    def test_private_names(self):
        """A name with an underscore is anyone's."""
        lif = sc.LIF()
        lif._label = "first"
        assert lif._label == "first"

    def test_tensors_parameters_and_modules(self):
        """They are part of the network, and torch registers them."""
        lif = sc.LIF()
        lif.gate, lif.scale, lif.mask = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), torch.ones(1)
        lif.register_buffer("more", torch.ones(1))
        lif.more = torch.zeros(1)
        assert {"gate", "scale"} <= {name.split(".")[0] for name, _ in lif.named_parameters()}

    def test_what_there_is(self):
        """Every attribute that a neuron has, and methods, can be set."""
        lif = sc.LIF(learn=("tau",))
        lif.tau, lif.reset, lif.detach_reset, lif.training = 3.0, "soft", True, False
        lif.backend = "torch"
        lif.forward = lambda x: x
        assert lif(1) == 1

    def test_torch_sets_its_own(self):
        """Parametrisations, hooks, quantisation and wrappers of torch work."""
        lif = sc.LIF(learn=("tau",))
        parametrize.register_parametrization(lif, "tau", nn.Softplus(), unsafe=True)
        lif(torch.rand(2, 3))
        lif.register_forward_hook(lambda *a: None)
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF())
        torch.ao.quantization.propagate_qconfig_(net, {"": torch.ao.quantization.default_qconfig})
        assert net[1].qconfig is not None
        torch.func.functional_call(net, dict(net.named_parameters()), torch.rand(2, 1, 3))

    @pytest.mark.parametrize(
        "name", ["qconfig", "name", "label", "i", "f", "type", "np", "ds_id", "ds_grads_remaining", "layer_idx"]
    )
    def test_frameworks(self, name):
        """Names that frameworks and their users set on any module, None among the values, and delete."""
        for value in (None, 3, "lif1"):
            lif = sc.LIF()
            setattr(lif, name, value)
            assert getattr(lif, name) == value
            delattr(lif, name)
            assert name not in vars(lif)
        lif.train()
        assert lif(torch.rand(2, 3)).shape == (2, 3)

    def test_a_state_stays_one(self):
        """A name of a framework that is a state here is refused."""
        with pytest.raises(AttributeError, match="^Synaptic has no attribute 'i'.*it is a state"):
            sc.Synaptic().i = 3

    def test_other_names(self):
        """A name that is close to none of ours is as free as in every module."""
        lif = sc.LIF()
        lif.offload_index = 3
        assert lif.offload_index == 3

    def test_hooks_around_forward(self):
        """What accelerate does: it keeps forward, puts one of its own in its place, and takes it away again."""
        lif, x = sc.LIF(), torch.rand(3, 4)
        want = lif(x)
        lif._hf_hook, lif._old_forward = object(), lif.forward
        lif.forward = lambda *args: lif._old_forward(*args) + 1.0
        assert torch.equal(lif(x), want + 1.0)
        lif.forward = lif._old_forward
        delattr(lif, "_hf_hook")
        delattr(lif, "_old_forward")
        assert torch.equal(lif(x), want)

    @pytest.mark.filterwarnings("ignore")  # torch.ao.quantization is deprecated in favour of a package of its own
    def test_quantization(self):
        """prepare and convert leave a neuron as it is, and None keeps a module out."""
        net = nn.Sequential(nn.Linear(3, 3), sc.Leaky(0.9), nn.Linear(3, 2), sc.LIF())
        net.eval()
        net.qconfig = torch.ao.quantization.default_qconfig
        net[1].qconfig = None
        prepared = torch.ao.quantization.prepare(net)
        x = torch.rand(4, 2, 3)
        assert prepared(x).shape == (4, 2, 2)
        converted = torch.ao.quantization.convert(prepared)
        assert isinstance(converted[1], sc.Leaky)
        assert isinstance(converted[3], sc.LIF)

    def test_fx(self):
        """A network traced with neurons as leaves computes the same."""

        class Tracer(torch.fx.Tracer):
            def is_leaf_module(self, module, name):
                return isinstance(module, sc.Neuron) or super().is_leaf_module(module, name)

        net = nn.Sequential(nn.Linear(3, 3), sc.LIF())
        traced = torch.fx.GraphModule(net, Tracer().trace(net))
        x = torch.rand(4, 2, 3)
        assert torch.equal(traced(x), net(x))

    @pytest.mark.filterwarnings("ignore")  # of a process group on one CPU
    def test_distributed(self):
        """DistributedDataParallel of one process trains a neuron."""
        from torch import distributed

        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), sc.LIF(learn=("tau",))))
            net(torch.rand(4, 2, 3) * 3).sum().backward()
            assert net.module[1].tau.grad is not None
            # before the group: its last owner joins a thread that may want the GIL, which hung a whole run
            del net
        finally:
            distributed.destroy_process_group()
