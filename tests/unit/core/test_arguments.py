"""Wrong arguments of a neuron, of its class, of its calls and of attributes set later are refused by name."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import spikecore as sc
from spikecore._base import misnamed
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
MEANT = (
    r"a call gives the output alone, and out, state = run\(x\) the state, too; "
    r"a state is given as run\(x, state=state\) for x \[T, \.\.\.\], of one time step run\(x\[t : t \+ 1\], "
)
NO_TENSOR = r"; give a tensor, torch\.from_numpy\(x\)\.float\(\)$"
#: A wrong definition, argument or call, its error, and the words; each names the argument, its value, and the way out.
REFUSED = [
    # classes
    (lambda: mine(dynamics=lambda self, x, s, p: (x * self.boost, {}))(ONE), sc.lang.TraceError,
     r"^Mine\.dynamics: 'Mine' object has no attribute 'boost'"),
    (lambda: mine(states={"v": 0.0}, dynamics=lambda self, x, s, p: (x + self.v, {}))(ONE), sc.lang.TraceError,
     r"^Mine\.dynamics: 'Mine' object .* 'v' \(states are s\.NAME, "),
    (lambda: mine()(ONE), NotImplementedError, r"^Mine must define dynamics\(self, x, s, p\)$"),
    (lambda: mine(forward=lambda self, x: x), TypeError,
     r"^Mine defines forward, .*; write one time step as dynamics\(self, x, s"),
    (lambda: mine(dynamics=lambda self, x, s: (x, {})), TypeError,
     r"^Mine\.dynamics must take self, x, s, p: the input, the states and"),
    # keywords
    (lambda: sc.LIF(thresold=1.0), TypeError,
     r"^LIF has no parameter 'thresold'; did you mean 'threshold'\? Parameters: tau, decay_input, threshold, reset, "
     "v_reset; every neuron takes: surrogate, detach_reset, gradient, learn, channel_dim, step, repeat, backend, "
     "bounds$"),
    (lambda: sc.KLIF(decay_inputs=True), TypeError,
     r"^KLIF has no parameter 'decay_inputs'; did you mean 'decay_input'\?"),
    (lambda: Pair(zzz=1.0), TypeError, r"^Pair has no parameter 'zzz'; Parameters: none;"),
    (lambda: sc.LI(threshold=1.0), TypeError, r"^LI has no parameter 'threshold'; Parameters: tau"),
    (lambda: sc.LIF(init_tau=2.0, v_threshold=1.0), TypeError,
     "LIF has no parameter 'init_tau', 'v_threshold'; what other libraries call 'init_tau' is tau; what other "
     "libraries call 'v_threshold' is threshold. Parameters: tau, decay_input, threshold, reset, v_reset; every"),
    (lambda: sc.PLIF(init_tau=2.0), TypeError, r"'init_tau' is tau\. Parameters: tau, decay_input, "),
    (lambda: sc.Leaky(0.9, unknown=1), TypeError, r"Parameters: beta, threshold, reset, reset_delay; every"),
    (lambda: setattr(sc.Recurrent(sc.Leaky(0.9), nn.Identity()), "beta", 0.5), AttributeError,
     r"would change nothing; its neuron has it: module\.neuron\.beta\. "),
    # values
    (lambda: sc.Leaky(128), ValueError, r"^Leaky: beta=128.0 must be in \[0, 1\] \(what stays in a step; neurons"),
    *[(lambda value=value: sc.LIF(learn=value), TypeError,
       rf"^LIF: learn={value!r} must be a tuple of parameter names, such as learn=\(") for value in ("tau", None)],
    (lambda: sc.LIF(learn=("tau", "beta")), ValueError,
     "^LIF: learn names 'beta', which is no parameter; parameters: tau, thres"),
    (lambda: sc.LIF(backend=1), TypeError, "^backend must be a backend's name, 'auto' or None, got"),
    (lambda: sc.set_backend(sc.LIF(), 1), TypeError, r"^backend=.* must be a backend's name, 'auto' or None$"),
    (lambda: sc.LIF(backend="tpu"), UnknownBackend, r"^unknown backend 'tpu' \(from argument\); .*Known: .*torch"),
    (lambda: setattr(sc.LIF(), "backend", "gpu"), UnknownBackend, "that is a device"),
    *[(lambda value=value: sc.LIF(reset=value), ValueError,
       rf"reset='{value}' must be one of .* call '{value}' is reset='{ours}'$")
      for value, ours in (("subtract", "soft"), ("zero", "hard"))],
    (lambda: sc.LIF(step="m"), ValueError, r"step='m' must be .*; what other libraries call 'm' is step='multi'$"),
    (lambda: sc.LIF(v_reset=None), TypeError, r"v_reset=None .*; for a reset by subtraction write reset='soft'$"),
    # records
    (lambda: sc.LIF().run(ONE, record="v"), TypeError,
     r"^LIF: record='v' must be a tuple of state names; write record=\('v',\)$"),
    (lambda: sc.LIF().run(ONE, record=None), TypeError,
     r"^LIF: record=None must be a tuple of state names, \(\) for none$"),
    (lambda: sc.ALIF().run(ONE, record=("v", "u")), ValueError,
     "^ALIF: record names 'u', which is no state; states: v, a$"),
    (lambda: Pair().run(ONE, ONE, record=("v",)), ValueError,
     "^Pair: record names 'v', which is no state; states: none$"),
    # inputs
    *[(lambda dtype=dtype: sc.LIF()(X.to(dtype)), TypeError,
       rf"^LIF: x has dtype {dtype}; give floating-point input, e\.g\. x\.float\(\)$")
      for dtype in (torch.int64, torch.bool, torch.complex64)],
    *[(lambda step=step, value=value: sc.LIF(step=step)(value), TypeError, f"^LIF: x is a {type(value).__name__}{text}")
      for step in ("multi", "single")
      for value, text in (([1.0], "; give a tensor$"), (None, "; give a tensor$"), (X.numpy(), NO_TENSOR))],
    (lambda: sc.LIF()(torch.tensor(1.0)), ValueError,
     r"^LIF: x has no dimensions; a multi-step call takes \[T, \*N\], T time"),
    (lambda: sc.LIF()(X, X), TypeError, rf"^LIF takes 1 input \(x\), got 2; {MEANT}state=state\)$"),
    (sc.LIF(), TypeError, r"^LIF takes 1 input \(x\), got 0;"),
    (lambda: Pair().run(X), TypeError, r"^Pair takes 2 inputs \(x, gate\), got 1;"),
    (lambda: Pair()(X, X[:, :1]), ValueError,
     r"^Pair: gate has shape \[2, 1\] and x has \[2, 2\]; all inputs have one"),
    (lambda: Pair()(X, X.to("meta")), ValueError, "^Pair: gate is on meta and x is on cpu; move one of them$"),
    # states
    *[(lambda state=state: sc.ALIF().run(torch.zeros(3, 2), state=state), error, f"^ALIF: {text}")
      for state, error, text in (
          (torch.zeros(2), TypeError, "state is a Tensor; give a dict with v, a, or None for rest"),
          ({**PAIR, "b": ONE}, ValueError, r"state has \['a', 'b', 'v'\]; give a value for each"),
          ({**PAIR, "v": 0.0}, TypeError, "state has v=0.0; give a floating-point tensor"),
          ({**PAIR, "a": torch.zeros(1)}, ValueError,
           r"state has a of shape \[1\], one time step of the input has \[2\]; give it that shape"),
          ({**PAIR, "v": PAIR["v"].to("meta")}, ValueError,
           "state has v on meta, the input is on cpu; give it that shape and the input's device"),
      )],
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_wrong_is_said(call, error, text):
    """A wrong class, keyword, value, record, input or state."""
    with pytest.raises(error, match=text):
        call()


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

    def test_a_failed_call_changes_nothing(self):
        """After an error the neuron carries what it carried."""
        lif = sc.LIF(step="single")
        lif(torch.ones(2))
        for wrong in (torch.ones(2, dtype=torch.int64), torch.ones(3), "x"):
            with pytest.raises((TypeError, ValueError)):
                lif(wrong)
        assert lif.state["v"].tolist() == [0.5, 0.5]
