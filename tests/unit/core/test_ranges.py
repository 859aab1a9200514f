"""Ranges of parameters: checked where a value is given, and equations of the program where it is learnt."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.core.ranges import Interval

NAN = float("nan")
EPS = torch.finfo(torch.float32).eps


def drive(*shape, seed=0):
    """Inputs in float32 that make neurons fire."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2


def pushed(neuron, name, by):
    """The neuron after SGD has moved one learnt parameter by ``by`` against its gradient of 1."""
    parameter = getattr(neuron, name)
    parameter.grad = torch.full_like(parameter, -by)
    torch.optim.SGD([parameter], lr=1.0).step()
    return neuron


#: A neuron, one of its parameters, a value outside, and the nearest value inside.
OUTSIDE = [
    (sc.LIF, {}, "tau", -0.29, 1.0),
    (sc.LIF, {"v_reset": -65.0, "threshold": -50.0}, "threshold", -70.0, -65.0),
    (sc.KLIF, {}, "k", 0.0, EPS),
    (sc.Leaky, {"beta": 0.9}, "beta", 1.03, 1.0),
    (sc.Synaptic, {}, "alpha", 1.5, 1.0),
    (sc.TCLIF, {}, "gamma", -0.5, 0.0),
    (sc.SEAdLIF, {}, "tau_u", -1.0, EPS),
    (sc.SEAdLIF, {}, "b", 2.25, 2.0),
    (sc.BRF, {}, "omega", -1.0, 0.0),
    (sc.Alpha, {}, "beta", -0.25, 2.0**-10),
    (sc.Lapicque, {}, "R", 0.0, EPS),
    (sc.ALIF, {}, "rho", 1.25, 1.0),
    (sc.EIF, {}, "delta_t", 0.0, EPS),
    (sc.Izhikevich, {}, "tau_w", 0.5, 1.0),
]


class TestDeclared:
    """Declarations of the neurons and of users' classes."""

    @pytest.mark.parametrize(("build", "options", "name", "value", "nearest"), OUTSIDE)
    def test_a_value_outside(self, build, options, name, value, nearest):
        """Refused where it is given, with range and way out; learnt, a call computes with the nearest value inside."""
        way_out = (
            rf"must be (in|above|at least) .*; bounds=\{{'{name}': \(low, high\)\}} sets another range, bounds=None"
        )
        for wrong in (value, torch.tensor([1.5, value])):
            with pytest.raises(ValueError, match=rf"^{build.__name__}: {name}=.*{way_out}"):
                build(**{**options, name: wrong})
            with pytest.raises(ValueError, match=rf"^{build.__name__}: {name}=.*{way_out}"):
                setattr(build(**options), name, wrong)
        neuron = build(**options, learn=(name,))
        with pytest.raises(ValueError, match=way_out):
            setattr(neuron, name, value)
        parameter = getattr(neuron, name)
        with torch.no_grad():
            parameter.fill_(value)
        out = neuron(drive(4, 2, 3))
        assert parameter.item() == pytest.approx(value)
        assert torch.equal(out, build(**{**options, name: nearest})(drive(4, 2, 3)))
        sc.functional.project(neuron)
        assert getattr(neuron, name) is parameter
        assert parameter.item() == nearest
        assert torch.equal(out, neuron(drive(4, 2, 3)))

    def test_own_neuron(self):
        """A class declares pairs, with None for no end, and its bases' ranges hold unless it replaces or lifts them."""

        class Base(sc.Neuron):
            states = {"v": 0.0}
            params = {"tau": 2.0, "gain": 0.5, "width": 1.0, "free": 0.0}
            bounds = {"tau": (1.0, 9), "gain": (None, 1.0)}
            positive = ("width",)

            def dynamics(self, x, s, p):
                v = s.v + (x * p.gain - s.v) / p.tau + p.free / p.width
                return v, {"v": v}

        class Derived(Base):
            bounds = {"tau": None, "free": (-1, 1)}

        of_both = {"gain": Interval(high=1.0), "width": Interval(0.0, open=True)}
        assert Base().bounds == {"tau": Interval(1.0, 9.0), **of_both}
        assert Derived().bounds == {**of_both, "free": Interval(-1.0, 1.0)}
        for text, values in (
            (r"tau=9\.5 must be in \[1, 9\]", {"tau": 9.5}),
            (r"gain=1\.5 must be at most 1", {"gain": 1.5}),
            (r"width=0\.0 must be above 0", {"width": 0.0}),
        ):
            with pytest.raises(ValueError, match=f"^Base: {text};"):
                Base(**values)
        assert Derived(tau=-3.0).tau == -3.0


class TestInstance:
    """``bounds=`` of one neuron."""

    def test_replaces_those_it_names(self):
        """A dict replaces the ranges of the parameters it names and no others."""
        lif = sc.LIF(2.0, bounds={"tau": (1, 10)}, learn=("tau", "threshold"))
        sc.functional.project(pushed(pushed(lif, "tau", 100.0), "threshold", -100.0))
        assert (lif.tau.item(), lif.threshold.item()) == (10.0, 0.0)
        with pytest.raises(ValueError, match=r"^LIF: tau=11\.0 must be in \[1, 10\]"):
            sc.LIF(11.0, bounds={"tau": (1, 10)})
        assert sc.LIF(-1.0, bounds={"tau": None}).tau == -1.0

    def test_none_lifts_all(self):
        """Without ranges nothing is refused and nothing moved."""
        lif = sc.LIF(2.0, bounds=None, learn=("tau",))
        assert torch.equal(pushed(lif, "tau", -3.0)(drive(3, 2)), sc.LIF(-1.0, bounds=None)(drive(3, 2)))
        sc.functional.project(lif)
        assert lif.tau.item() == -1.0
        assert sc.LIF(-1.0, threshold=-1.0, bounds=None).bounds == {}

    def test_set_later(self):
        """Ranges may be set at any time, as a whole; what is outside then is named, and nothing changes."""
        lif = sc.LIF(2.0, learn=("tau",))
        lif.bounds = {"tau": (1.5, None)}
        assert torch.equal(pushed(lif, "tau", -1.0)(drive(3, 2)), sc.LIF(1.5)(drive(3, 2)))
        sc.functional.project(lif)
        assert lif.tau.item() == 1.5
        with pytest.raises(ValueError, match=r"^LIF: tau=.* must be at least 3"):
            lif.bounds = {"tau": (3.0, None)}
        with pytest.raises(TypeError, match="does not support item assignment"):
            lif.bounds["tau"] = (9.0, 1.0)
        assert lif.bounds == {"tau": Interval(1.5), "threshold": Interval(0.0)}
        lif.bounds = None
        lif.tau = -1.0
        assert lif.program == sc.LIF().program


class TestFollowing:
    """The range of a threshold is that of ``v_reset`` as it is now."""

    @pytest.mark.parametrize("options", [{}, {"learn": ("threshold",)}])
    def test_one_after_the_other(self, options):
        """``v_reset`` and then the threshold, there and back; the other order says which comes first."""
        lif = sc.LIF(**options)
        with pytest.raises(ValueError, match=r"^LIF: threshold=-50\.0 must be at least 0 \(v_reset where that is belo"):
            lif.threshold = -50.0
        lif.v_reset = -65.0
        assert lif.bounds["threshold"] == Interval(-65.0)
        lif.threshold = -50.0
        with pytest.raises(ValueError, match=r"^LIF: threshold=-70\.0 must be at least -65"):
            lif.threshold = -70.0
        with pytest.raises(ValueError, match=r"^LIF: v_reset cannot be set to this value first; LIF: threshold=.*-50"):
            lif.v_reset = 0.0
        assert lif.v_reset == -65.0
        lif.threshold = 1.0
        lif.v_reset = 0.0
        assert lif.bounds["threshold"] == Interval(0.0)

    @pytest.mark.parametrize(
        "made", [{"learn": ("threshold",)}, {"threshold": torch.ones(2), "v_reset": torch.zeros(2)}]
    )
    def test_loaded_together(self, made):
        """A checkpoint with both is taken as it is; with one of them it must fit what there is."""
        lif = sc.LIF(**made)
        lif.load_state_dict({"threshold": torch.tensor(-50.0), "v_reset": torch.tensor(-65.0)}, strict=False)
        assert torch.as_tensor(lif.threshold).unique().tolist() == [-50.0]
        assert lif.bounds["threshold"] == Interval(-65.0)
        with pytest.raises(RuntimeError, match=r"threshold is not in the checkpoint, and does not fit the rest of it"):
            lif.load_state_dict({"v_reset": torch.tensor(0.0)}, strict=False)
        assert torch.as_tensor(lif.v_reset).unique().tolist() == [-65.0]
        with pytest.raises(RuntimeError, match=r"threshold holds -70, and threshold of LIF must be at least -65"):
            lif.load_state_dict({"threshold": torch.tensor(-70.0)}, strict=False)


class TestLearnt:
    """Inside nothing changes; outside a call computes with the nearest value inside, with derivative 1."""

    def test_a_decay_above_1_is_not_stuck(self):
        """One that was pushed to 1.03 counts as 1 and has the gradient of 1, so that it can come back."""
        neuron = pushed(sc.ALIF(rho=0.99, learn=("rho",)), "rho", 0.04)
        grads = []
        for _ in range(2):
            _, state = neuron.run(drive(6, 2, 3))
            grads += torch.autograd.grad(sum(value.sum() for value in state.values()), neuron.rho)
            sc.functional.project(neuron)
        assert neuron.rho.item() == 1.0
        assert grads[0] != 0
        assert torch.equal(*grads)

    def test_a_step_of_training_leaves_parameters_inside(self):
        """A parameter that left its range is at its end after the step, before any other call."""
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF(1.2, learn=("tau",)), sc.KLIF())
        optimizer = torch.optim.SGD(net.parameters(), 1.0)
        step = sc.training_model(net, lambda out, _: out.sum() + 5 * net[1].tau + 5 * net[2].k, optimizer)
        step(drive(4, 2, 3), torch.zeros(2))
        assert (net[1].tau.item(), net[2].k.item()) == (1.0, EPS)


class TestTransformed:
    """Under transforms, traces and compilation a program has its ranges."""

    def test_functional_call(self):
        """The tensor that stands in for a parameter is not written to, and its gradient is that of the value inside."""
        x, lif = drive(6, 2, 3), sc.LI(2.0, learn=("tau",))
        tau = torch.tensor(0.25, requires_grad=True)
        out = torch.func.functional_call(lif, {"tau": tau}, x)
        (got,) = torch.autograd.grad(out.sum(), tau)
        inside = sc.LI(1.0, learn=("tau",))
        (want,) = torch.autograd.grad(inside(x).sum(), inside.tau)
        assert torch.equal(out, inside(x))
        assert torch.equal(got, want)
        assert (tau.item(), lif.tau.item()) == (0.25, 2.0)


test_refused = refusals.table(__file__, globals())
