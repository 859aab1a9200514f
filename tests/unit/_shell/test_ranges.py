"""Ranges of parameters: declared, and checked where a value is given."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._shell.ranges import Interval

INF = float("inf")
NAN = float("nan")


def drive(*shape, seed=0):
    """Inputs in float32 that make neurons fire."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2


def pushed(neuron, name, by, **options):
    """The neuron after SGD has moved one learnt parameter by ``by`` against its gradient of 1."""
    parameter = getattr(neuron, name)
    optimizer = torch.optim.SGD([parameter], lr=1.0, **options)
    parameter.grad = torch.full_like(parameter, -by)
    optimizer.step()
    return neuron


#: Of every neuron: which parameter, a value outside, and the nearest value inside.
EPS = torch.finfo(torch.float32).eps
OUTSIDE = [
    (sc.IF, {}, "threshold", -0.5, 0.0),
    (sc.LIF, {}, "tau", 0.15, 1.0),
    (sc.LIF, {}, "tau", -0.29, 1.0),
    (sc.LIF, {}, "tau", -INF, 1.0),
    (sc.LIF, {}, "threshold", -0.5, 0.0),
    (sc.LIF, {"v_reset": -65.0, "threshold": -50.0}, "threshold", -70.0, -65.0),
    (sc.PLIF, {}, "threshold", -0.5, 0.0),
    (sc.KLIF, {}, "tau", 0.5, 1.0),
    (sc.KLIF, {}, "k", 0.0, EPS),
    (sc.KLIF, {}, "k", -3.0, EPS),
    (sc.Leaky, {"beta": 0.9}, "beta", 1.03, 1.0),
    (sc.Leaky, {"beta": 0.9}, "beta", -0.1, 0.0),
    (sc.Leaky, {"beta": 0.9}, "threshold", -0.1, 0.0),
    (sc.Synaptic, {}, "alpha", 1.5, 1.0),
    (sc.CLIF, {}, "tau", 0.5, 1.0),
    (sc.CLIF, {}, "threshold", -0.5, 0.0),
    (sc.TCLIF, {}, "gamma", -0.5, 0.0),
    (sc.SEAdLIF, {}, "tau_u", -1.0, EPS),
    (sc.SEAdLIF, {}, "tau_w", 0.0, EPS),
    (sc.SEAdLIF, {}, "a", 1.25, 1.0),
    (sc.SEAdLIF, {}, "b", 2.25, 2.0),
    (sc.SEAdLIF, {}, "threshold", -0.5, 0.0),
    (sc.BRF, {}, "omega", -1.0, 0.0),
    (sc.BRF, {}, "b", -1.0, 0.0),
    (sc.BRF, {}, "dt", -1.0, EPS),
    (sc.BRF, {}, "gamma", 1.25, 1.0),
    (sc.BRF, {}, "threshold", -0.5, 0.0),
    (sc.TernaryLIF, {}, "threshold", 0.0, EPS),
    (sc.SynapticLeaky, {}, "alpha", 1.5, 1.0),
    (sc.SynapticLeaky, {}, "beta", -0.5, 0.0),
    (sc.SynapticLeaky, {}, "threshold", -0.5, 0.0),
    (sc.Alpha, {"beta": 0.3}, "alpha", 1.25, 1.0),
    (sc.Alpha, {}, "beta", -0.25, 2.0**-10),
    (sc.Alpha, {}, "threshold", -0.5, 0.0),
    (sc.Lapicque, {}, "R", 0.0, EPS),
    (sc.Lapicque, {}, "C", -1.0, EPS),
    (sc.Lapicque, {}, "time_step", -1.0, EPS),
    (sc.Lapicque, {}, "threshold", -0.5, 0.0),
    (sc.Synaptic, {}, "beta", -0.5, 0.0),
    (sc.ALIF, {}, "tau", 0.5, 1.0),
    (sc.ALIF, {}, "rho", 1.25, 1.0),
    (sc.ALIF, {}, "beta", -0.25, 0.0),
    (sc.LI, {}, "tau", 0.5, 1.0),
    (sc.QIF, {}, "tau", -1.0, EPS),
    (sc.QIF, {}, "a0", 0.0, EPS),
    (sc.EIF, {}, "tau", 0.5, 1.0),
    (sc.EIF, {}, "delta_t", 0.0, EPS),
    (sc.Izhikevich, {}, "tau", -1.0, EPS),
    (sc.Izhikevich, {}, "a0", 0.0, EPS),
    (sc.Izhikevich, {}, "tau_w", 0.5, 1.0),
]


class TestDeclared:
    """What the neurons and users' classes declare."""

    @pytest.mark.parametrize(("build", "given", "name", "value", "nearest"), OUTSIDE)
    def test_value_outside_is_refused_where_it_is_given(self, build, given, name, value, nearest):
        """At construction, as a number, a tensor or a Parameter, and when it is set: with range and way out."""
        way_out = (
            rf"must be (in|above|at least) .*; bounds=\{{'{name}': \(low, high\)\}} sets another range, bounds=None"
        )
        for wrong in (value, torch.tensor([1.5, value]), nn.Parameter(torch.tensor([1.5, value]))):
            with pytest.raises(ValueError, match=rf"^{build.__name__}: {name}=.*{way_out}"):
                build(**{**given, name: wrong})
            with pytest.raises(ValueError, match=rf"^{build.__name__}: {name}=.*{way_out}"):
                setattr(build(**given), name, wrong)
            assert build(**{**given, name: wrong}, bounds=None)(drive(3, 1, 2)).shape == (3, 1, 2)
        learnt = build(**given, learn=(name,))
        with pytest.raises(ValueError, match=way_out):
            setattr(learnt, name, value)
        with pytest.raises(ValueError, match=way_out):
            setattr(learnt, name, torch.tensor(NAN))

    @pytest.mark.parametrize(("build", "given", "name", "value", "nearest"), [row for row in OUTSIDE if row[3] > -INF])
    def test_learnt_value_outside(self, build, given, name, value, nearest):
        """A call computes with the nearest value inside, and leaves the parameter as an optimiser left it."""
        neuron = build(**given, learn=(name,))
        parameter = getattr(neuron, name)
        with torch.no_grad():
            parameter.fill_(value)
        out = neuron(drive(4, 2, 3))
        assert parameter.item() == pytest.approx(value)
        fixed = build(**{**given, name: nearest})
        assert torch.equal(out, fixed(drive(4, 2, 3)))
        sc.project(neuron)
        assert getattr(neuron, name) is parameter
        assert parameter.item() == nearest
        assert torch.equal(out, neuron(drive(4, 2, 3)))

    def test_ends_are_inside(self):
        """The ends of a closed range are values like others."""
        sc.LIF(1.0, threshold=0.0)
        sc.Leaky(0.0)
        sc.Leaky(1.0)
        sc.LIF(tau=INF)
        sc.EIF(threshold=-50.0)

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

        assert Base().bounds == {
            "tau": Interval(1.0, 9.0),
            "gain": Interval(high=1.0),
            "width": Interval(0.0, open=True),
        }
        assert Derived().bounds == {
            "gain": Interval(high=1.0),
            "width": Interval(0.0, open=True),
            "free": Interval(-1.0, 1.0),
        }
        for text, values in (
            (r"tau=9\.5 must be in \[1, 9\]", {"tau": 9.5}),
            (r"gain=1\.5 must be at most 1", {"gain": 1.5}),
            (r"width=0\.0 must be above 0", {"width": 0.0}),
        ):
            with pytest.raises(ValueError, match=f"^Base: {text};"):
                Base(**values)
        assert Derived(tau=-3.0).tau == -3.0
        assert pushed(Base(learn=("gain",)), "gain", 2.0)(drive(2, 3)).shape == (2, 3)

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ({"bounds": {"tua": (0, 1)}}, r"bounds has 'tua', which is no parameter; parameters: tau"),
            ({"positive": ("tua",)}, r"positive has 'tua', which is no parameter; parameters: tau"),
            ({"positive": "tau"}, r"positive='tau' must hold names; for one name write \('tau',\)"),
            ({"bounds": ("tau",)}, r"bounds=\('tau',\) must be a dict of parameter: \(low, high\)"),
            ({"bounds": {"tau": 1.0}}, r"bounds has 'tau': 1\.0; give \(low, high\), each a number or None, or None"),
            ({"bounds": {"tau": ("a", 1)}}, r"bounds has 'tau': \('a', 1\); give \(low, high\)"),
        ],
    )
    def test_wrong_declaration(self, body, text):
        """A range that cannot be is an error of the class."""
        with pytest.raises(TypeError, match=text):
            type("Wrong", (sc.Neuron,), {"params": {"tau": 1.0}, **body})

    @pytest.mark.parametrize("pair", [(2.0, 1.0), (1.0, 1.0), (NAN, 1.0)])
    def test_empty_range(self, pair):
        """A range without two numbers in it is refused."""
        with pytest.raises(ValueError, match=r"LIF: bounds has 'tau': .*; the low end must be below the high end"):
            sc.LIF(bounds={"tau": pair})


class TestInstance:
    """``bounds=`` of one neuron."""

    def test_replaces_those_it_names(self):
        """A dict replaces the ranges of the parameters it names and no others."""
        lif = sc.LIF(2.0, bounds={"tau": (1, 10)}, learn=("tau", "threshold"))
        sc.project(pushed(pushed(lif, "tau", 100.0), "threshold", -100.0))
        assert (lif.tau.item(), lif.threshold.item()) == (10.0, 0.0)
        with pytest.raises(ValueError, match=r"^LIF: tau=11\.0 must be in \[1, 10\]"):
            sc.LIF(11.0, bounds={"tau": (1, 10)})
        assert sc.LIF(-1.0, bounds={"tau": None}).tau == -1.0

    def test_none_lifts_all(self):
        """Without ranges nothing is refused and nothing moved."""
        lif = sc.LIF(2.0, bounds=None, learn=("tau",))
        assert torch.equal(pushed(lif, "tau", -3.0)(drive(3, 2)), sc.LIF(-1.0, bounds=None)(drive(3, 2)))
        sc.project(lif)
        assert lif.tau.item() == -1.0
        assert sc.LIF(-1.0, threshold=-1.0, bounds=None).bounds == {}

    def test_set_later(self):
        """Ranges may be set at any time; what is outside then is named, and nothing changes."""
        lif = sc.LIF(2.0, learn=("tau",))
        key = lif.program.key
        lif.bounds = {"tau": (1.5, None)}
        assert lif.program.key != key
        assert torch.equal(pushed(lif, "tau", -1.0)(drive(3, 2)), sc.LIF(1.5)(drive(3, 2)))
        sc.project(lif)
        assert lif.tau.item() == 1.5
        with pytest.raises(ValueError, match=r"^LIF: tau=.* must be at least 3"):
            lif.bounds = {"tau": (3.0, None)}
        assert lif.bounds["tau"] == Interval(1.5)
        lif.bounds = None
        lif.tau = -1.0
        assert lif.program.key == sc.LIF().program.key

    @pytest.mark.parametrize(
        ("bounds", "error", "text"),
        [
            (
                {"tua": (1, 2)},
                ValueError,
                r"^LIF: bounds names 'tua', which is no parameter; parameters: tau, threshold",
            ),
            (("tau", 1), TypeError, r"^LIF: bounds=\('tau', 1\) must be a dict of parameter: \(low, high\), or None"),
            ({"tau": (1, 2, 3)}, TypeError, r"^LIF: bounds has 'tau': \(1, 2, 3\); give \(low, high\)"),
        ],
    )
    def test_wrong(self, bounds, error, text):
        """What is no range is named."""
        with pytest.raises(error, match=text):
            sc.LIF(bounds=bounds)

    def test_only_as_a_whole(self):
        """What shows the ranges cannot be changed past the checks."""
        lif = sc.LIF(2.0, bounds={"tau": (1.5, None)})
        with pytest.raises(TypeError, match="does not support item assignment"):
            lif.bounds["tau"] = (9.0, 1.0)
        with pytest.raises(TypeError, match="does not support item deletion"):
            del lif.bounds["tau"]
        assert not hasattr(lif.bounds, "update")
        assert lif.bounds == {"tau": Interval(1.5), "threshold": Interval(0.0)}
        lif.bounds = lif.bounds
        assert lif.bounds == {"tau": Interval(1.5), "threshold": Interval(0.0)}


class TestFollowing:
    """The range of a threshold is that of ``v_reset`` as it is now."""

    def test_one_after_the_other(self):
        """``v_reset`` and then the threshold, there and back; the other order says which comes first."""
        for lif in (sc.LIF(), sc.LIF(threshold=torch.ones(3), v_reset=torch.zeros(3)), sc.LIF(learn=("threshold",))):
            with pytest.raises(
                ValueError, match=r"^LIF: threshold=-50\.0 must be at least 0 \(v_reset where that is below"
            ):
                lif.threshold = -50.0
            lif.v_reset = -65.0
            assert lif.bounds["threshold"] == Interval(-65.0)
            lif.threshold = -50.0
            with pytest.raises(ValueError, match=r"^LIF: threshold=-70\.0 must be at least -65"):
                lif.threshold = -70.0
            with pytest.raises(
                ValueError, match=r"^LIF: v_reset cannot be set to this value first; LIF: threshold=.*-50"
            ):
                lif.v_reset = 0.0
            assert torch.as_tensor(lif.v_reset).min() == -65.0
            assert lif.bounds["threshold"] == Interval(-65.0)
            lif.threshold = 1.0
            lif.v_reset = 0.0
            assert lif.bounds["threshold"] == Interval(0.0)

    def test_given_ranges_stay(self):
        """A range that the neuron was given follows nothing, in a copy as well; None stays none."""
        for lif in (sc.LIF(bounds={"threshold": (0.5, None)}), sc.LIF(bounds=None)):
            for one in (lif, copy.deepcopy(lif), pickle.loads(pickle.dumps(lif))):
                before = dict(one.bounds)
                one.v_reset = -65.0
                assert one.bounds == before
        lif = copy.deepcopy(sc.LIF())
        lif.v_reset = -65.0
        lif.threshold = -50.0

    @pytest.mark.parametrize("names", [("threshold", "v_reset"), ("v_reset", "threshold")])
    @pytest.mark.parametrize(
        "made", [{}, {"learn": ("threshold",)}, {"threshold": torch.ones(2), "v_reset": torch.zeros(2)}]
    )
    def test_loaded_together(self, made, names):
        """A checkpoint with both is taken as it is, in either order; with one of them it must fit what there is."""
        values = {"threshold": torch.tensor(-50.0), "v_reset": torch.tensor(-65.0)}
        lif = sc.LIF(**made)
        lif.load_state_dict({name: values[name] for name in names}, strict=False)
        assert torch.as_tensor(lif.threshold).unique().tolist() == [-50.0]
        assert lif.bounds["threshold"] == Interval(-65.0)
        with pytest.raises(
            RuntimeError, match=r"threshold is not in the checkpoint, and does not fit the rest of it: LIF: th"
        ):
            lif.load_state_dict({"v_reset": torch.tensor(0.0)}, strict=False)
        assert torch.as_tensor(lif.v_reset).unique().tolist() == [-65.0]
        with pytest.raises(RuntimeError, match=r"threshold holds -70, and threshold of LIF must be at least -65"):
            lif.load_state_dict({"threshold": torch.tensor(-70.0)}, strict=False)

    def test_a_learnt_one(self):
        """Of a learnt ``v_reset`` below 0 every threshold is saved and loads, wherever it moved."""
        lif = sc.LIF(threshold=-50.0, v_reset=-65.0, learn=("threshold", "v_reset"))
        for by in (-30.0, 30.0):
            state = copy.deepcopy(pushed(lif, "v_reset", by).state_dict())
            sc.LIF(threshold=-50.0, v_reset=-65.0, learn=("threshold", "v_reset")).load_state_dict(state)
            lif.load_state_dict(state)
        assert "threshold" not in lif.bounds or lif.bounds["threshold"].low == -INF


class TestTensorsThatAreNotLearnt:
    """A tensor that is not learnt is checked where it is set."""

    def test_changed_in_place(self):
        """It is used as it is: a look at every call would be one that nobody asked for."""
        lif = sc.LIF(torch.full((3,), 2.0))
        lif.tau.fill_(0.5)
        assert torch.equal(lif(drive(4, 2, 3)), sc.LIF(0.5, bounds=None)(drive(4, 2, 3)))

    def test_made_in_inference_mode(self):
        """A tensor that has no versions can be called with."""
        with torch.inference_mode():
            lif = sc.LIF(torch.full((3,), 2.0))
            lif(drive(4, 2, 3))
            lif(drive(4, 2, 3))
