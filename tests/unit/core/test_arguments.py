"""Wrong arguments of a neuron, of its class, of its calls and of attributes set later are refused by name."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import spikecore as sc
from shell_nets import values
from spikecore._base import misnamed
from spikecore.backend import UnknownBackend

T, B, C = 10, 3, 4


class Pair(sc.Neuron):
    """Two inputs, no state."""

    inputs = ("x", "gate")

    def dynamics(self, x, s, p):
        return x.x + x.gate, {}


class TestDeclaration:
    """A class that cannot be right is refused where it is written."""

    @pytest.mark.parametrize(
        ("attributes", "text"),
        [
            ({"states": "v"}, r"Mine\.states='v' must hold names; for one name write \('v',\)"),
            ({"states": {"my v": 0.0}}, r"Mine\.states has 'my v', which is no usable name; use a plain identifier"),
            ({"params": {"lambda": 1.0}}, r"Mine\.params has 'lambda', which is no usable name"),
            ({"states": {"v": None}}, r"Mine\.states has 'v' start at None; give a number or the name of a parameter"),
            ({"params": {"step": 1.0}}, r"Mine\.params has 'step', which every neuron uses already; choose another"),
            ({"params": {"gain": 1.0}, "gain": property(id)}, r"Mine\.params has 'gain', which the class has"),
            (
                {"states": {"v": 0.0}, "params": {"v": 1.0}},
                r"Mine has 'v' more than once among inputs, states and params; rename one",
            ),
            ({"states": {"v": 0.0}, "reset_states": ("u",)}, r"Mine\.reset_states=\('u',\) must be a tuple of names"),
        ],
    )
    def test_refused(self, attributes, text):
        """Names that are no names, or taken; values that are no values; a single name where names belong."""
        with pytest.raises(TypeError, match=f"^{text}"):
            type("Mine", (sc.Neuron,), attributes)

    def test_missing_attribute(self):
        """A missing attribute in ``dynamics`` is said by its own name, not as a missing program."""
        cls = type("Mine", (sc.Neuron,), {"dynamics": lambda self, x, s, p: (x * self.boost, {})})
        with pytest.raises(sc.lang.TraceError, match=r"^Mine\.dynamics: 'Mine' object has no attribute 'boost'"):
            cls()(torch.zeros(1, 1))

    def test_without_dynamics(self):
        """A class that forgot its equations."""
        with pytest.raises(NotImplementedError, match=r"^Mine must define dynamics\(self, x, s, p\)$"):
            type("Mine", (sc.Neuron,), {})()(torch.zeros(1, 1))
        with pytest.raises(TypeError, match=r"^Mine defines forward, .*; write one time step as dynamics\(self, x, s"):
            type("Mine", (sc.Neuron,), {"forward": lambda self, x: x})()

    def test_dynamics_with_other_arguments(self):
        """Said where the class is written."""
        with pytest.raises(TypeError, match=r"^Mine\.dynamics must take self, x, s, p: the input, the states and"):
            type("Mine", (sc.Neuron,), {"dynamics": lambda self, x, s: (x, {})})


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


class TestConstructor:
    """Each error names the argument, its value, and what would be right."""

    def test_unknown_keyword(self):
        """A keyword that no neuron has: the close one, and all there are."""
        message = (
            r"^LIF has no parameter 'thresold'; did you mean 'threshold'\? Parameters: tau, decay_input, threshold, "
            "reset, v_reset; every neuron takes: surrogate, detach_reset, gradient, learn, channel_dim, step, repeat, "
            "backend, bounds$"
        )
        with pytest.raises(TypeError, match=message):
            sc.LIF(thresold=1.0)
        with pytest.raises(TypeError, match=r"^KLIF has no parameter 'decay_inputs'; did you mean 'decay_input'\?"):
            sc.KLIF(decay_inputs=True)
        with pytest.raises(TypeError, match=r"^Pair has no parameter 'zzz'; Parameters: none;"):
            Pair(zzz=1.0)
        with pytest.raises(TypeError, match=r"^LI has no parameter 'threshold'; Parameters: tau"):
            sc.LI(threshold=1.0)

    def test_a_size_as_a_decay(self):
        """Of a neuron whose first argument has a range."""
        text = r"^Leaky: beta=128.0 must be in \[0, 1\] \(what stays in a step; neurons have no size\)"
        with pytest.raises(ValueError, match=text):
            sc.Leaky(128)

    @pytest.mark.parametrize("value", ["tau", None])
    def test_learn(self, value):
        """A name alone, no names, and a name that is no parameter."""
        text = rf"^LIF: learn={value!r} must be a tuple of parameter names, such as learn=\("
        with pytest.raises(TypeError, match=text):
            sc.LIF(learn=value)
        with pytest.raises(ValueError, match="^LIF: learn names 'beta', which is no parameter; parameters: tau, thres"):
            sc.LIF(learn=("tau", "beta"))

    def test_backend(self):
        """A backend is asked for by name, and an unknown name is refused at once, with who asked."""
        with pytest.raises(TypeError, match="^backend must be a backend's name, 'auto' or None, got"):
            sc.LIF(backend=1)
        with pytest.raises(TypeError, match=r"^backend=.* must be a backend's name, 'auto' or None$"):
            sc.set_backend(sc.LIF(), 1)
        with pytest.raises(UnknownBackend, match=r"^unknown backend 'tpu' \(from argument\); .*Known: .*torch"):
            sc.LIF(backend="tpu")
        with pytest.raises(UnknownBackend, match="that is a device"):
            sc.LIF().backend = "gpu"


class TestNames:
    """A name that no neuron has says which one is meant, as an attribute and as a keyword; other names are free."""

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
        """Setting it would change nothing, so it raises, whatever the value."""
        lif = sc.LIF()
        # a tensor under a name that only looks like one of ours is a buffer
        for value in (3, *[torch.zeros(1)] * ("did you mean" not in meant)):
            with pytest.raises(AttributeError, match=rf"^LIF has no attribute '{name}'.*{re.escape(meant)}"):
                setattr(lif, name, value)
        assert not hasattr(lif, name)
        with pytest.raises(TypeError, match=rf"^Leaky has no parameter '{name}'.*{re.escape(meant)}"):
            sc.Leaky(0.9, **{name: 3})

    @pytest.mark.parametrize(
        ("asked", "text"),
        [
            (lambda: sc.RLeaky, "module 'spikecore' has no attribute 'RLeaky'; what other libraries call 'RLeaky' is"),
            (lambda: sc.Lif, "module 'spikecore' has no attribute 'Lif'; did you mean 'LIF'?"),
            (lambda: sc.LIFNode, "is sc.LIF(surrogate=sc.surrogate.Sigmoid(4.0))"),
            (lambda: sc.mse_count_loss, "what other libraries call 'mse_count_loss' is sc.losses.mse_count"),
            (lambda: sc.utils, "what other libraries call 'utils' is in sc itself: sc.reset(net)"),
            (
                lambda: sc.GatedLIFNode,
                "is in no class here: write its equations as dynamics of a subclass of sc.Neuron",
            ),
            (lambda: sc.LIFRecurrentCell, "is sc.Recurrent(sc.LIF(), nn.Linear(C, C))"),
            (lambda: sc.train, "is sc.training_model(net, loss, optimizer), which makes one step a call"),
        ],
    )
    def test_missing(self, asked, text):
        """A class, a function or a module that another library has, or that is misspelt."""
        with pytest.raises(AttributeError, match=re.escape(text)):
            asked()

    def test_every_name_of_another_library_leads_to_one_of_ours(self):
        """``sc.losses.mse_count`` in a hint is there."""
        for text in (*misnamed.PEERS.values(), *misnamed.NAMES.values()):
            for path in re.findall(r"sc\.([\w.]*\w)", text):
                functools.reduce(getattr, path.split("."), sc)

    def test_a_state_of_self_in_dynamics(self):
        """``self.v`` for ``s.v``."""
        cls = type("Mine", (sc.Neuron,), {"states": {"v": 0.0}, "dynamics": lambda self, x, s, p: (x + self.v, {})})
        with pytest.raises(sc.lang.TraceError, match=r"^Mine\.dynamics: 'Mine' object .* 'v' \(states are s\.NAME, "):
            cls()(torch.zeros(1, 1))

    def test_the_decay_of_a_leaky_neuron(self):
        """``beta`` of snnTorch, given or set, leads to ``sc.Leaky`` and to ``tau``, which computes the same."""
        meant = re.escape(
            "; what other libraries call 'beta' is beta of sc.Leaky, or tau = 1 / (1 - beta) of sc.LIF(tau, "
            "decay_input=False). "
        )
        with pytest.raises(AttributeError, match=rf"^LIF has no attribute 'beta', .*{meant}There are: tau"):
            sc.LIF().beta = 0.9
        with pytest.raises(TypeError, match=rf"^LIF has no parameter 'beta'{meant}Parameters: tau"):
            sc.LIF(beta=0.9)
        x = torch.linspace(0.0, 0.5, 24, dtype=torch.float64).view(8, 3)
        leaky, lif = (
            neuron.run(x, record=("v",))[2]["v"]
            for neuron in (sc.Leaky(0.75, threshold=9.0), sc.LIF(1 / (1 - 0.75), decay_input=False, threshold=9.0))
        )
        torch.testing.assert_close(lif, leaky)

    def test_all_unknown_keywords_are_named(self):
        """With all arguments that there are, those that are no parameters of the program among them."""
        text = (
            "LIF has no parameter 'init_tau', 'v_threshold'; what other libraries call 'init_tau' is tau; what other "
            "libraries call 'v_threshold' is threshold. Parameters: tau, decay_input, threshold, reset, v_reset; every"
        )
        with pytest.raises(TypeError, match=re.escape(text)):
            sc.LIF(init_tau=2.0, v_threshold=1.0)
        with pytest.raises(TypeError, match=r"'init_tau' is tau\. Parameters: tau, decay_input, "):
            sc.PLIF(init_tau=2.0)
        with pytest.raises(TypeError, match=r"Parameters: beta, threshold, reset, reset_delay; every"):
            sc.Leaky(0.9, unknown=1)

    @pytest.mark.parametrize(("theirs", "ours"), [("mem", "v"), ("syn", "i")])
    def test_states_of_snntorch(self, theirs, ours):
        """Where a state is recorded or given."""
        neuron, x = sc.SynapticLeaky(0.9, 0.8), torch.zeros(2, 3)
        text = f"what other libraries call '{theirs}' is '{ours}'$"
        with pytest.raises(ValueError, match=text):
            neuron.run(x, record=(theirs,))
        with pytest.raises(ValueError, match=text):
            neuron.run(x, state={theirs: x[0]})
        with pytest.raises(ValueError, match=text), sc.monitor(neuron, record=(theirs,)):
            pass

    def test_surrogates_of_other_libraries(self):
        """An object of a class of SpikingJelly, a function that snnTorch makes, and a name."""

        def inner(x):
            return x

        inner.__qualname__ = "fast_sigmoid.<locals>.inner"
        for value, ours in (
            (inner, "FastSigmoid(slope)"),
            (type("Sigmoid", (nn.Module,), {})(), "Sigmoid"),
            (type("Rect", (nn.Module,), {})(), "Rectangular(alpha)"),
            ("atan", "ATan(alpha)"),
        ):
            with pytest.raises(TypeError, match=re.escape(f"is sc.surrogate.{ours}") + "$"):
                sc.LIF(surrogate=value)
        with pytest.raises(TypeError, match=r"write derivative\(self, u\)$"):
            sc.LIF(surrogate=print)

    def test_a_name_of_the_neuron_within(self):
        """Of a Recurrent, when it is set; reading it is among the missing ones."""
        with pytest.raises(AttributeError, match=r"would change nothing; its neuron has it: module\.neuron\.beta\. "):
            sc.Recurrent(sc.Leaky(0.9), nn.Identity()).beta = 0.5

    def test_values_of_other_libraries(self):
        """A value that has another name here."""
        for value, ours in (("subtract", "soft"), ("zero", "hard")):
            text = rf"reset='{value}' must be one of .* call '{value}' is reset='{ours}'$"
            with pytest.raises(ValueError, match=text):
                sc.LIF(reset=value)
        with pytest.raises(ValueError, match=r"step='m' must be .*; what other libraries call 'm' is step='multi'$"):
            sc.LIF(step="m")
        with pytest.raises(TypeError, match=r"v_reset=None must be .*; for a reset by subtraction write reset='soft'$"):
            sc.LIF(v_reset=None)

    def test_torch_sets_its_own(self):
        """Parameters, modules, buffers, parametrisations, hooks and quantisation of torch work."""
        lif = sc.LIF(learn=("tau",))
        lif.gate, lif.scale, lif.mask = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), torch.ones(1)
        assert {"gate", "scale"} <= {name.split(".")[0] for name, _ in lif.named_parameters()}
        parametrize.register_parametrization(lif, "tau", nn.Softplus(), unsafe=True)
        lif(torch.rand(2, 3))
        lif.register_forward_hook(lambda *a: None)
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF())
        torch.ao.quantization.propagate_qconfig_(net, {"": torch.ao.quantization.default_qconfig})
        assert net[1].qconfig is not None
        torch.func.functional_call(net, dict(net.named_parameters()), torch.rand(2, 1, 3))


class TestCalls:
    """Inputs, records and states that do not fit."""

    def test_record(self):
        """A name alone, no names, and a name that is no state."""
        x = torch.zeros(1, 1)
        with pytest.raises(TypeError, match=r"^LIF: record='v' must be a tuple of state names; write record=\('v',\)$"):
            sc.LIF().run(x, record="v")
        with pytest.raises(TypeError, match=r"^LIF: record=None must be a tuple of state names, \(\) for none$"):
            sc.LIF().run(x, record=None)
        with pytest.raises(ValueError, match="^ALIF: record names 'u', which is no state; states: v, a$"):
            sc.ALIF().run(x, record=("v", "u"))
        with pytest.raises(ValueError, match="^Pair: record names 'v', which is no state; states: none$"):
            Pair().run(x, x, record=("v",))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
    def test_input_dtype(self, dtype):
        """Input that is not floating-point, with the conversion to write."""
        message = rf"^LIF: x has dtype {dtype}; give floating-point input, e\.g\. x\.float\(\)$"
        with pytest.raises(TypeError, match=message):
            sc.LIF()(torch.zeros(2, 2, dtype=dtype))

    @pytest.mark.parametrize("step", ["multi", "single"])
    @pytest.mark.parametrize("value", [[1.0], None, values(2).numpy()])
    def test_input_type(self, value, step):
        """Input that is no tensor."""
        way = "" if value is None or isinstance(value, list) else r", torch\.from_numpy\(x\)\.float\(\)"
        with pytest.raises(TypeError, match=f"^LIF: x is a {type(value).__name__}; give a tensor{way}$"):
            sc.LIF(step=step)(value)

    @pytest.mark.parametrize(
        "module",
        [sc.LIF(), sc.Recurrent(sc.LIF(), torch.nn.Linear(3, 3)), sc.layers.TimeBatched(torch.nn.Linear(3, 3))],
    )
    def test_packed_sequences(self, module):
        """The error names what pads them, and the mask."""
        packed = torch.nn.utils.rnn.pack_sequence([torch.rand(4, 3), torch.rand(2, 3)])
        with pytest.raises(TypeError, match=r"x is a PackedSequence; .*pad_sequence .* sc\.functional\.mask_of"):
            module(packed)

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

    def test_inputs(self):
        """No time, another number, two shapes, two devices; a state beside the input is what one meant."""
        x = torch.zeros(2, 2)
        with pytest.raises(ValueError, match=r"^LIF: x has no dimensions; a multi-step call takes \[T, \*N\], T time"):
            sc.LIF()(torch.tensor(1.0))
        meant = (
            r"a call gives the output alone, and out, state = run\(x\) the state, too; "
            r"a state is given as run\(x, state=state\) for x \[T, \.\.\.\], of one time step run\(x\[t : t \+ 1\], "
        )
        with pytest.raises(TypeError, match=rf"^LIF takes 1 input \(x\), got 2; {meant}state=state\)$"):
            sc.LIF()(x, x)
        with pytest.raises(TypeError, match=r"^LIF takes 1 input \(x\), got 0;"):
            sc.LIF()()
        with pytest.raises(TypeError, match=r"^Pair takes 2 inputs \(x, gate\), got 1;"):
            Pair().run(x)
        with pytest.raises(ValueError, match=r"^Pair: gate has shape \[2, 1\] and x has \[2, 2\]; all inputs have one"):
            Pair()(x, torch.zeros(2, 1))
        with pytest.raises(ValueError, match="^Pair: gate is on meta and x is on cpu; move one of them$"):
            Pair()(x, torch.zeros(2, 2, device="meta"))

    @pytest.mark.parametrize(
        ("state", "error", "text"),
        [
            (torch.zeros(2), TypeError, "state is a Tensor; give a dict with v, a, or None for rest"),
            ({n: torch.zeros(2) for n in "vab"}, ValueError, r"state has \['a', 'b', 'v'\]; give a value for each"),
            ({"v": 0.0, "a": torch.zeros(2)}, TypeError, "state has v=0.0; give a floating-point tensor"),
            (
                {"v": torch.zeros(2), "a": torch.zeros(1)},
                ValueError,
                r"state has a of shape \[1\], one time step of the input has \[2\]; give it that shape",
            ),
            (
                {"v": torch.zeros(2, device="meta"), "a": torch.zeros(2)},
                ValueError,
                "state has v on meta, the input is on cpu; give it that shape and the input's device",
            ),
        ],
    )
    def test_state(self, state, error, text):
        """A state of a wrong kind, with wrong names, of a wrong shape, on a wrong device."""
        with pytest.raises(error, match=f"^ALIF: {text}"):
            sc.ALIF().run(torch.zeros(3, 2), state=state)

    def test_a_failed_call_changes_nothing(self):
        """After an error the neuron carries what it carried."""
        lif = sc.LIF(step="single")
        lif(torch.ones(2))
        for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(3), "x"):
            with pytest.raises((TypeError, ValueError)):
                lif(wrong)
        assert lif.state["v"].tolist() == [0.5, 0.5]
