"""Wrong arguments of a neuron, of its calls and of attributes set later are refused by name."""

from __future__ import annotations

import re

import pytest
import torch
import torch._dynamo.testing
from torch import nn

import spikecore as sc
from shell_nets import values
from spikecore.backend import UnknownBackend

T, B, C = 10, 3, 4


class Pair(sc.Neuron):
    """Two inputs, no state."""

    inputs = ("x", "gate")

    def dynamics(self, x, s, p):
        """The sum."""
        return x.x + x.gate, {}


class TestSetLater:
    """Configuration is checked whenever it is set, not in constructors only."""

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("reset", "bogus", "LIF: reset='bogus' must be one of 'hard', 'soft', 'none'"),
            ("step", "x", "LIF: step='x' must be 'multi'"),
            ("decay_input", 1, "LIF: decay_input=1 must be True or False"),
            ("detach_reset", None, "LIF: detach_reset=None must be True or False"),
            ("surrogate", "ATan", "LIF: surrogate='ATan' must be a spikecore.surrogate.Surrogate"),
            ("channel_dim", 1.0, "LIF: channel_dim=1.0 must be a whole number"),
            ("tau", "2", "LIF: tau='2' must be a number or a floating-point tensor"),
        ],
    )
    def test_a_wrong_value_is_refused(self, name, value, text):
        """The sentence is the constructor's, and the old value stays."""
        lif = sc.LIF()
        before = getattr(lif, name)
        with pytest.raises((TypeError, ValueError)) as caught:
            setattr(lif, name, value)
        assert str(caught.value).startswith(text)
        assert getattr(lif, name) == before

    @pytest.mark.parametrize("value", [0.0, -1.0, torch.tensor([1.0, 0.0])])
    def test_a_time_constant_stays_in_its_range(self, value):
        """What the constructor refuses, an assignment refuses, too."""
        with pytest.raises(ValueError, match="LIF: tau=.* must be at least 1"):
            sc.LIF().tau = value

    def test_a_number_fills_a_tensor(self):
        """A number set on a learnt or tensor parameter fills it in place; the optimiser's object stays."""
        lif = sc.LIF(torch.full((C,), 2.0), threshold=torch.ones(C), learn=("tau",))
        held = lif.tau
        lif.tau, lif.threshold = 3.0, 0.5
        assert lif.tau is held
        assert lif.tau.tolist() == [3.0] * C
        assert lif.threshold.tolist() == [0.5] * C

    def test_the_backend_is_an_attribute(self):
        """Read, it is what was asked for; set, it asks; an unknown name is refused at once."""
        lif = sc.LIF(backend="torch")
        lif.backend = None
        assert lif.backend is None
        with pytest.raises(sc.UnknownBackend, match="that is a device"):
            lif.backend = "gpu"

    def test_a_surrogate_in_use_never_changes(self):
        """A surrogate with plain attributes cannot be changed behind the program; a new one takes effect."""

        class Plain(sc.Surrogate):
            def __init__(self, k):
                self.k = k

            def derivative(self, u):
                return self.k / (1.0 + u * u)

        first = Plain(1.0)
        lif, x = sc.LIF(surrogate=first), values(3, B).requires_grad_()
        (before,) = torch.autograd.grad(lif(x)[0].sum(), x)
        with pytest.raises(AttributeError, match=r"Plain.k cannot change, .*: neuron.surrogate = \.\.\."):
            first.k = 2.0
        lif.surrogate = Plain(2.0)
        (after,) = torch.autograd.grad(lif(x)[0].sum(), x)
        torch.testing.assert_close(after, 2 * before)

    def test_a_misspelt_keyword_is_recognised(self):
        """The hint knows parameters and configuration of the class and its bases."""
        with pytest.raises(TypeError, match=r"LIF has no parameter 'resett'; did you mean 'reset'\?"):
            sc.LIF(resett="soft")
        with pytest.raises(TypeError, match=r"KLIF has no parameter 'decay_inputs'; did you mean 'decay_input'\?"):
            sc.KLIF(decay_inputs=True)


class TestWrongArguments:
    """Each is an error that names the argument, its value, and what would be right."""

    @pytest.mark.parametrize("step", ["Multi", None, 1])
    def test_step(self, step):
        """A step mode that is none."""
        message = rf"^LIF: step={step!r} must be 'multi' \(input \[T, \*N\]\) or 'single' \(input \[\*N\]\)$"
        with pytest.raises(ValueError, match=message):
            sc.LIF(step=step)

    def test_unknown_keyword(self):
        """A keyword that no neuron has: the close one, and all there are."""
        message = (
            r"^LIF has no parameter 'thresold'; did you mean 'threshold'\? Parameters: tau, threshold, v_reset; "
            "every neuron takes: surrogate, detach_reset, learn, channel_dim, step, repeat, backend, bounds$"
        )
        with pytest.raises(TypeError, match=message):
            sc.LIF(thresold=1.0)
        with pytest.raises(TypeError, match=r"^IF has no parameter 'surogate'; did you mean 'surrogate'\?"):
            sc.IF(surogate=sc.surrogate.ATan())
        with pytest.raises(TypeError, match=r"^IF has no parameter 'zzz'; Parameters: threshold, v_reset;"):
            sc.IF(zzz=1.0)
        with pytest.raises(TypeError, match=r"^Pair has no parameter 'zzz'; Parameters: none;"):
            Pair(zzz=1.0)
        others = r"sc\.ALIF, .*sc\.LIF, .*have it\."
        with pytest.raises(TypeError, match=rf"^Pair has no parameter 'tau'; {others} Parameters: none;"):
            Pair(tau=1.0)
        with pytest.raises(TypeError, match=r"^LI has no parameter 'threshold'; (.*) have it\.") as caught:
            sc.LI(threshold=1.0)
        named = re.findall(r"sc\.(\w+)", str(caught.value).partition(" have it.")[0])
        assert {"IF", "LIF"} < {*named}
        assert [name for name in named if not hasattr(sc, name)] == []

    @pytest.mark.parametrize("value", ["1", 1.0, None, True])
    def test_channel_dim(self, value):
        """A dimension is a whole number."""
        with pytest.raises(TypeError, match=f"^LIF: channel_dim={value!r} must be a whole number$"):
            sc.LIF(channel_dim=value)

    @pytest.mark.parametrize("value", ["tau", None, True, 1])
    def test_learn_is_a_tuple(self, value):
        """A name alone, or no names."""
        with pytest.raises(
            TypeError, match=rf"^LIF: learn={value!r} must be a tuple of parameter names, such as learn=\("
        ):
            sc.LIF(learn=value)

    def test_learn_names_parameters(self):
        """A name that is no parameter, with those there are."""
        with pytest.raises(
            ValueError, match="^LIF: learn names 'beta', which is no parameter; parameters: tau, thresho"
        ):
            sc.LIF(learn=("tau", "beta"))

    @pytest.mark.parametrize("value", [1, True, object])
    def test_backend(self, value):
        """A backend is asked for by name."""
        with pytest.raises(TypeError, match="^backend must be a backend's name, 'auto' or None, got"):
            sc.LIF(backend=value)
        with pytest.raises(TypeError, match=r"^backend=.* must be a backend's name, 'auto' or None$"):
            sc.set_backend(sc.LIF(), value)

    @pytest.mark.parametrize("name", ["", " "])
    def test_an_empty_backend(self, name):
        """Names nobody, and is no way to ask for none: with argument, value, who asked, and the way out."""
        net = nn.Sequential(sc.LIF(backend="torch"))
        text = r"{}='{}' \(from {}\) is no backend's name; None leaves the choice to context, environment and auto"
        for argument, source, give in (
            ("backend", "argument", lambda: sc.LIF(backend=name)),
            ("backend", r"set_backend\(\)", lambda: sc.set_backend(net, name)),
            ("name", r"use_backend\(\)", lambda: sc.use_backend(name)),
            ("backend", r"inference_model\(\)", lambda: sc.inference_model(net, backend=name)),
        ):
            with pytest.raises(UnknownBackend, match=text.format(argument, name, source)):
                give()
        assert net[0].backend == "torch"

    def test_unknown_backend(self):
        """A name nobody has is refused when it is given, with who asked."""
        with pytest.raises(UnknownBackend, match=r"^unknown backend 'tpu' \(from argument\); .*Known: .*torch"):
            sc.LIF(backend="tpu")

    def test_record_is_a_tuple(self):
        """A name alone, or no names."""
        with pytest.raises(TypeError, match=r"^LIF: record='v' must be a tuple of state names; write record=\('v',\)$"):
            sc.LIF().run(torch.zeros(1, 1), record="v")
        for value in (None, True, 1):
            with pytest.raises(
                TypeError, match=rf"^LIF: record={value} must be a tuple of state names, \(\) for none$"
            ):
                sc.LIF().run(torch.zeros(1, 1), record=value)

    def test_record_names_states(self):
        """A name that is no state, with those there are."""
        with pytest.raises(ValueError, match="^ALIF: record names 'u', which is no state; states: v, a$"):
            sc.ALIF().run(torch.zeros(1, 1), record=("v", "u"))
        with pytest.raises(ValueError, match="^Pair: record names 'v', which is no state; states: none$"):
            Pair().run(torch.zeros(1, 1), torch.zeros(1, 1), record=("v",))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.complex64])
    def test_input_dtype(self, dtype):
        """Input that is not floating-point, with the conversion to write."""
        message = rf"^LIF: x has dtype {dtype}; give floating-point input, e\.g\. x\.float\(\)$"
        with pytest.raises(TypeError, match=message):
            sc.LIF()(torch.zeros(2, 2, dtype=dtype))

    @pytest.mark.parametrize("step", ["multi", "single"])
    @pytest.mark.parametrize("value", [[1.0], 1.0, None, values(2).numpy()])
    def test_input_type(self, value, step):
        """Input that is no tensor."""
        with pytest.raises(TypeError, match=f"^LIF: x is a {type(value).__name__}; give a tensor$"):
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

    def test_input_without_time(self):
        """A multi-step call needs time."""
        with pytest.raises(
            ValueError, match=r"^LIF: x has no dimensions; a multi-step call takes \[T, \*N\], T time steps"
        ):
            sc.LIF()(torch.tensor(1.0))

    def test_number_of_inputs(self):
        """Too many, or too few; a state beside the input is what one meant."""
        x = torch.zeros(2, 2)
        meant = (
            r"a state is given as run\(x, state=state\) for x \[T, \.\.\.\], of one time step run\(x\[t : t \+ 1\], "
        )
        with pytest.raises(TypeError, match=rf"^LIF takes 1 input \(x\), got 2; {meant}state=state\)$"):
            sc.LIF()(x, x)
        with pytest.raises(TypeError, match=r"^LIF takes 1 input \(x\), got 0;"):
            sc.LIF()()
        with pytest.raises(TypeError, match=r"^Pair takes 2 inputs \(x, gate\), got 1;"):
            Pair().run(x)

    def test_inputs_of_two_shapes(self):
        """Inputs are not broadcast against each other."""
        message = r"^Pair: gate has shape \[2, 1\] and x has \[2, 3\]; all inputs have one shape$"
        with pytest.raises(ValueError, match=message):
            Pair()(torch.zeros(2, 3), torch.zeros(2, 1))

    def test_inputs_on_two_devices(self):
        """Nor moved."""
        with pytest.raises(ValueError, match="^Pair: gate is on meta and x is on cpu; move one of them$"):
            Pair()(torch.zeros(2), torch.zeros(2, device="meta"))

    def test_parameter_on_another_device(self):
        """A neuron that was not moved, with the call that moves it."""
        message = r"^LIF: tau is on cpu and the input is on meta; move the neuron with \.to\('meta'\)$"
        with pytest.raises(ValueError, match=message):
            sc.LIF(learn=("tau",))(torch.zeros(2, 2, device="meta"))

    @pytest.mark.parametrize(
        ("state", "error", "text"),
        [
            (torch.zeros(2), TypeError, "state is a Tensor; give a dict with v, a, or None for rest"),
            ((1, 2), TypeError, "state is a tuple; give a dict with v, a, or None for rest"),
            ({"v": torch.zeros(2)}, ValueError, r"state has \['v'\]; give a value for each of v, a and no other"),
            ({}, ValueError, r"state has \[\]; give a value for each of v, a"),
            ({n: torch.zeros(2) for n in "vab"}, ValueError, r"state has \['a', 'b', 'v'\]; give a value for each"),
            ({"v": 0.0, "a": torch.zeros(2)}, TypeError, "state has v=0.0; give a floating-point tensor"),
            (
                {"v": torch.zeros(2, 99).long(), "a": None},
                TypeError,
                r"state has v=tensor.{60,80}\.\.\.; give a floating",
            ),
            ({"v": torch.zeros(2), "a": None}, TypeError, "state has a=None; give a floating-point tensor"),
            (
                {"v": torch.zeros(2).int(), "a": torch.zeros(2)},
                TypeError,
                r"state has v=.*; give a floating-point tensor",
            ),
            (
                {"v": torch.zeros(2), "a": torch.zeros(1)},
                ValueError,
                r"state has a of shape \[1\], one time step of the input has \[2\]; give it one time step's shape",
            ),
            (
                {"v": torch.zeros(3, 2), "a": torch.zeros(2)},
                ValueError,
                r"state has v of shape \[3, 2\], one time step of the input has \[2\]",
            ),
            (
                {"v": torch.zeros(2, device="meta"), "a": torch.zeros(2)},
                ValueError,
                "state has v on meta, the input is on cpu; give it one time step's shape and the input's device",
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
