"""Ranges of parameters: declared, checked where a value is given, kept while it is learnt."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.ranges import Interval

INF = float("inf")
NAN = float("nan")
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


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

    @pytest.mark.parametrize(("build", "given", "name", "value", "nearest"), OUTSIDE)
    def test_learnt_value_comes_back(self, build, given, name, value, nearest):
        """What an optimiser moved outside is the nearest value inside, at the next call and for good."""
        neuron = build(**given, learn=(name,))
        parameter = getattr(neuron, name)
        with torch.no_grad():
            parameter.fill_(value)
        out = neuron(drive(4, 2, 3))
        assert getattr(neuron, name) is parameter
        assert parameter.item() == nearest
        fixed = build(**{**given, name: nearest})
        assert torch.equal(out, fixed(drive(4, 2, 3)))

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
        pushed(pushed(lif, "tau", 100.0), "threshold", -100.0)(drive(3, 2))
        assert (lif.tau.item(), lif.threshold.item()) == (10.0, 0.0)
        with pytest.raises(ValueError, match=r"^LIF: tau=11\.0 must be in \[1, 10\]"):
            sc.LIF(11.0, bounds={"tau": (1, 10)})
        assert sc.LIF(-1.0, bounds={"tau": None}).tau == -1.0

    def test_none_lifts_all(self):
        """Without ranges nothing is refused and nothing moved."""
        lif = sc.LIF(2.0, bounds=None, learn=("tau",))
        pushed(lif, "tau", -3.0)(drive(3, 2))
        assert lif.tau.item() == -1.0
        assert sc.LIF(-1.0, threshold=-1.0, bounds=None).bounds == {}

    def test_set_later(self):
        """Ranges may be set at any time; what is outside then is named, and nothing changes."""
        lif = sc.LIF(2.0, learn=("tau",))
        key = lif.program.key
        lif.bounds = {"tau": (1.5, None)}
        pushed(lif, "tau", -1.0)(drive(3, 2))
        assert lif.tau.item() == 1.5
        with pytest.raises(ValueError, match=r"^LIF: tau=.* must be at least 3"):
            lif.bounds = {"tau": (3.0, None)}
        assert lif.bounds["tau"] == Interval(1.5)
        lif.bounds = None
        lif.tau = -1.0
        assert lif.program.key == key

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
        """What shows the ranges cannot be changed past the checks, and says how they are."""
        lif = sc.LIF(2.0, bounds={"tau": (1.5, None)})
        with pytest.raises(TypeError, match=r"changed as a whole, .*: neuron\.bounds = \{'tau': \(low, high\)\}"):
            lif.bounds["tau"] = (9.0, 1.0)
        with pytest.raises(TypeError, match=r"changed as a whole: neuron\.bounds = \{'tau': None\} lifts a range"):
            del lif.bounds["tau"]
        assert not hasattr(lif.bounds, "update")
        assert lif.bounds == {"tau": Interval(1.5), "threshold": Interval(0.0)}
        assert repr(lif.bounds) == repr(dict(lif.bounds))
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
    """A tensor that is changed in place is checked by the next call, where that takes no wait for a device."""

    @pytest.mark.parametrize("quick", [False, True])
    @pytest.mark.parametrize("change", [lambda t: t.fill_(-1.0), lambda t: t.mul_(-1), lambda t: t[1:].zero_()])
    def test_changed_in_place(self, change, quick):
        """A value outside raises, at the first call or a later one, until it is inside."""
        tau = torch.full((3,), 2.0)
        lif = sc.LIF(tau)
        if quick:
            for _ in range(3):
                lif(drive(4, 2, 3))
        change(lif.tau)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^LIF: tau=.* must be at least 1; bounds="):
                lif(drive(4, 2, 3))
        lif.tau.fill_(3.0)
        assert torch.equal(lif(drive(4, 2, 3)), sc.LIF(3.0)(drive(4, 2, 3)))
        lif.bounds = None
        lif.tau.fill_(-1.0)
        lif(drive(4, 2, 3))

    def test_a_range_follows(self):
        """A threshold that is below a ``v_reset`` that was changed in place is outside."""
        lif = sc.LIF(threshold=-50.0, v_reset=torch.full((3,), -65.0))
        lif(drive(4, 2, 3))
        lif.v_reset.fill_(-70.0)
        lif(drive(4, 2, 3))
        assert lif.bounds["threshold"] == Interval(-70.0)
        lif.v_reset.fill_(-40.0)
        with pytest.raises(ValueError, match=r"^LIF: threshold=-50.0 must be at least -40"):
            lif(drive(4, 2, 3))

    def test_made_in_inference_mode(self):
        """A tensor that has no versions can be called with."""
        with torch.inference_mode():
            lif = sc.LIF(torch.full((3,), 2.0))
            lif(drive(4, 2, 3))
            lif(drive(4, 2, 3))


class TestKept:
    """Projection: inside nothing changes, outside comes back."""

    def test_values_and_gradients_inside_are_those_without_ranges(self):
        """Three optimiser steps inside the range are equal to the bit, values and gradients."""
        nets = [
            sc.LIF(torch.linspace(1.5, 4, 3), learn=("tau", "threshold"), **free) for free in ({}, {"bounds": None})
        ]
        optimizers = [torch.optim.Adam(net.parameters(), 0.01) for net in nets]
        for seed in range(3):
            for net, optimizer in zip(nets, optimizers):
                optimizer.zero_grad()
                net(drive(8, 2, 3, seed=seed)).sum().backward()
                optimizer.step()
            for one, other in zip(nets[0].parameters(), nets[1].parameters()):
                assert torch.equal(one, other)
                assert torch.equal(one.grad, other.grad)

    def test_sgd_that_drives_tau_away(self):
        """SGD that took tau from 1.2 to 0.15 and -0.29 leaves it at 1, where the neuron still fires and learns."""
        x, lif = torch.full((16, 1, 8), 1.5), sc.LIF(1.2, learn=("tau",))
        optimizer, seen = torch.optim.SGD(lif.parameters(), lr=0.5), []
        for _ in range(6):
            optimizer.zero_grad()
            spikes, _, trace = lif.run(x, record=("v",))
            seen.append(lif.tau.item())
            assert spikes.sum() > 0
            (-trace["v"].mean() + 2 * lif.tau).backward()
            optimizer.step()
            assert torch.isfinite(lif.tau.grad)
        assert lif.tau.item() < 1.0
        assert seen[0] == pytest.approx(1.2)
        assert seen[1:] == [1.0] * 5

    @pytest.mark.parametrize(
        ("neuron", "name"),
        [(sc.ALIF(rho=0.99, learn=("rho",)), "rho"), (sc.Leaky(0.99, learn=("beta",)), "beta")],
        ids=["rho", "beta"],
    )
    def test_decay_above_1_is_not_stuck(self, neuron, name):
        """A decay that was pushed to 1.03 is 1 at the next call and has a gradient there, so that it can come back."""
        pushed(neuron, name, 0.04)
        decay = getattr(neuron, name)
        assert decay.item() == pytest.approx(1.03)
        decay.grad = None
        _, state = neuron.run(drive(6, 2, 3))
        assert decay.item() == 1.0
        sum(value.sum() for value in state.values()).backward()
        assert decay.grad != 0

    @pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
    def test_every_optimiser(self, options):
        """Fused updates, which raise no version of the parameter, are seen as well."""
        if options.get("fused") and "fused" not in torch.optim.SGD.__init__.__code__.co_varnames:
            pytest.skip("torch before 2.3 has no fused SGD")
        lif = pushed(sc.LIF(2.0, learn=("tau",)), "tau", -5.0, **options)
        lif(drive(3, 2))
        assert lif.tau.item() == 1.0

    @pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_shapes_and_dtypes(self, shape, dtype):
        """Of a tensor, the values outside move and the others stay, in every precision."""
        values = torch.linspace(-0.5, 1.5, 6).to(dtype)[: max(1, torch.Size(shape).numel())].reshape(shape)
        neuron = sc.KLIF(k=torch.ones(shape, dtype=dtype), learn=("k", "tau"), bounds={"tau": None}).to(dtype)
        with torch.no_grad():
            neuron.k.copy_(values)
        neuron(drive(3, 2, 3).to(dtype))
        eps = torch.finfo(dtype).eps
        assert neuron.k.dtype == dtype
        assert torch.equal(neuron.k, torch.where(values > 0, values, torch.full_like(values, eps)))

    def test_nan_stays(self):
        """A NaN is not hidden behind a bound."""
        for name in ("k", "tau"):
            neuron = sc.KLIF(learn=(name,))
            with torch.no_grad():
                getattr(neuron, name).fill_(NAN)
            assert neuron.run(drive(3, 2))[1]["v"].isnan().all()
            assert getattr(neuron, name).isnan()

    def test_graph_in_flight(self):
        """Calls between a forward and its backward pass, in training or without gradients, leave its gradient."""
        x, lif = drive(6, 2, 3), sc.LIF(1.2, learn=("tau",))
        (wanted,) = torch.autograd.grad(lif(x).sum(), lif.tau)
        out = lif(x).sum() + lif.tau**2
        with torch.no_grad():
            lif(x)
        lif(x)
        lif.state_dict()
        out.backward()
        torch.testing.assert_close(lif.tau.grad, wanted + 2 * lif.tau.detach())

    def test_other_calls(self):
        """Single steps, Recurrent, no_grad, inference mode, frozen and assigned parameters are kept, too."""
        single = sc.LIF(2.0, learn=("tau",), step="single")
        single(drive(2, 3))
        pushed(single, "tau", -5.0)(drive(2, 3))
        inner = sc.LIF(2.0, learn=("tau",))
        recurrent = sc.Recurrent(pushed(inner, "tau", -5.0), nn.Linear(3, 3))
        recurrent(drive(4, 2, 3))
        frozen = pushed(sc.LIF(2.0, learn=("tau",)), "tau", -5.0)
        frozen.tau.requires_grad_(False)
        with torch.no_grad():
            frozen(drive(4, 2))
        assigned = sc.LIF(2.0)
        assigned.tau = nn.Parameter(torch.tensor(3.0))
        with torch.inference_mode():
            pushed(assigned, "tau", -5.0)(drive(4, 2))
        assert [one.tau.item() for one in (single, inner, frozen, assigned)] == [1.0] * 4

    def test_made_in_inference_mode(self):
        """A neuron made in inference mode runs anywhere."""
        with torch.inference_mode():
            lif = sc.LIF(2.0, learn=("tau",))
        with torch.no_grad():
            assert torch.equal(lif(drive(4, 2)), sc.LIF(2.0)(drive(4, 2)))

    def test_shared(self):
        """A Parameter of two neurons ends in what their ranges have in common."""
        tau = nn.Parameter(torch.tensor(4.0))
        net = nn.Sequential(sc.LIF(tau), sc.LIF(tau, bounds={"tau": (3.0, 5.0)}))
        for by, end in ((-9.0, 3.0), (9.0, 5.0)):
            pushed(net[0], "tau", by)
            net(drive(3, 2))
            assert tau.item() == end

    def test_copies(self):
        """Copies have the ranges, and parameters of their own to keep in them."""
        lif = sc.LIF(2.0, bounds={"tau": (1.5, 3.0)}, learn=("tau",))
        for twin in (copy.deepcopy(lif), pickle.loads(pickle.dumps(lif))):
            pushed(twin, "tau", -5.0)(drive(3, 2))
            assert twin.tau.item() == 1.5
        assert lif.tau.item() == 2.0

    def test_pickle_from_before_ranges(self):
        """A neuron that was pickled without ranges has those of its class."""
        state = {name: value for name, value in sc.LIF(2.0).__getstate__().items() if name != "bounds"}
        lif = sc.LIF.__new__(sc.LIF)
        lif.__setstate__(state)
        assert lif.bounds == sc.LIF().bounds


class TestTransformed:
    """Where a parameter must not be changed in place, the value computed with is inside, with derivative 1."""

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

    def test_infinite_values(self):
        """A stand-in that is infinite gives the nearest value, not NaN; NaN stays NaN."""
        tau = torch.tensor([-INF, 3.0, NAN], requires_grad=True)
        inside = Interval(1.0, 9.0).straight_through(tau)
        torch.testing.assert_close(inside, torch.tensor([1.0, 3.0, NAN]), equal_nan=True)
        assert Interval(1.0, 9.0).straight_through(torch.tensor(INF)) == 9.0
        inside[1].backward()
        assert tau.grad.tolist() == [0.0, 1.0, 0.0]
        out = torch.func.functional_call(sc.LI(2.0, learn=("tau",)), {"tau": torch.tensor(-INF)}, drive(6, 2, 3))
        assert torch.equal(out, sc.LI(1.0)(drive(6, 2, 3)))

    def test_torch_func(self):
        """``grad``, ``vmap`` and ``grad`` of the input alone work, inside the range to the bit of autograd."""
        x, lif = drive(6, 2, 3), sc.LI(2.5, learn=("tau",), backend="torch")

        def loss(tau):
            return torch.func.functional_call(lif, {"tau": tau}, (x,)).sum()

        (want,) = torch.autograd.grad(lif(x).sum(), lif.tau)
        torch.testing.assert_close(torch.func.grad(loss)(torch.tensor(2.5)), want)
        taus = torch.tensor([-1.0, 1.0, 2.5])
        values = torch.func.vmap(loss)(taus)
        torch.testing.assert_close(values, torch.stack([sc.LI(t)(x).sum() for t in (1.0, 1.0, 2.5)]))
        pushed(lif, "tau", -9.0)
        by_x = torch.func.grad(lambda value: lif(value).sum())(x)
        assert lif.tau.item() == -6.5
        plain = x.clone().requires_grad_()
        torch.testing.assert_close(by_x, torch.autograd.grad(sc.LI(1.0)(plain).sum(), plain)[0])

    def test_parametrised(self):
        """A parametrisation of torch's own decides alone what the parameter is."""
        lif = sc.LI(2.0, learn=("tau",), bounds={"tau": (1.0, 4.0)})
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus(), unsafe=True)
        with torch.no_grad():
            lif.parametrizations.tau.original.fill_(8.0)
        assert torch.equal(lif(drive(4, 2)), sc.LI(nn.functional.softplus(torch.tensor(8.0)))(drive(4, 2)))

    @pytest.mark.filterwarnings("ignore")  # torch warns of what it takes for constants, and of jit itself
    def test_traced(self):
        """A traced program holds the range, and changes no parameter."""
        lif = pushed(sc.LI(2.0, learn=("tau",), backend="torch"), "tau", -9.0)
        with torch.no_grad():
            traced = torch.jit.trace(lif, drive(4, 2))
            lif.tau.fill_(-7.0)
            assert torch.equal(traced(drive(4, 2)), sc.LI(1.0)(drive(4, 2)))
        assert lif.tau.item() == -7.0

    @pytest.mark.skipif(TORCH < (2, 6), reason="the reference compiles from torch 2.6 on")
    # torch.compile makes an object of every autograd.Function it meets, of which torch itself warns
    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
    def test_compiled(self):
        """A compiled network computes with values inside, whatever the loop does; ``sc.project`` brings them in."""
        nets = [nn.Sequential(sc.LIF(1.2, learn=("tau",), backend="torch"), sc.KLIF(backend="torch")) for _ in range(2)]
        compiled = torch.compile(nets[1], fullgraph=True, backend="aot_eager")
        x, optimizers = drive(4, 2, 3), [torch.optim.SGD(net.parameters(), 0.3) for net in nets]
        for step in range(4):
            for net, call, optimizer in zip(nets, (nets[0], compiled), optimizers):
                optimizer.zero_grad()
                before = (
                    3 * net[0].tau ** 2 + 3 * net[1].k ** 2
                )  # of the graph before the calls, which must not break it
                out, again = call(x), call(x)
                (out.sum() + again.sum() + before).backward()
                optimizer.step()
                if step < 2:
                    sc.project(net)
            for one, other in zip(*(net.parameters() for net in nets)):
                assert torch.equal(one.grad, other.grad) or step > 2
        assert nets[1][0].tau.item() < 1.0
        assert torch.equal(compiled(x), nn.Sequential(sc.LIF(1.0), sc.KLIF(k=EPS))(x))
        assert nets[1].state_dict()["0.tau"].item() == 1.0


class TestTraining:
    """``training_model``."""

    def test_step_leaves_parameters_inside(self):
        """After a step a parameter that left its range is at its end, before any other call."""
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF(1.2, learn=("tau",)), sc.KLIF())
        optimizer = torch.optim.SGD(net.parameters(), 1.0)
        step = sc.training_model(net, lambda out, _: out.sum() + 5 * net[1].tau + 5 * net[2].k, optimizer)
        step(drive(4, 2, 3), torch.zeros(2))
        assert (net[1].tau.item(), net[2].k.item()) == (1.0, EPS)

    def test_step_loads_all_or_nothing(self):
        """A checkpoint of a step with a value outside is refused before anything of it is loaded."""
        net = nn.Sequential(nn.Linear(3, 3), sc.LIF(2.0, learn=("tau",)))
        step = sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 1.0))
        state = copy.deepcopy(step.state_dict())
        before = copy.deepcopy(net.state_dict())
        state["net"]["0.weight"].zero_()
        state["net"]["1.tau"].fill_(-0.29)
        with pytest.raises(
            RuntimeError, match=r"loading state_dict for Sequential:\n\t1\.tau holds -0\.29, and tau of"
        ):
            step.load_state_dict(state)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())

    @pytest.mark.skipif(TORCH < (2, 6), reason="before torch 2.6 fully_shard is private")
    @pytest.mark.filterwarnings("ignore")  # of a process group on one CPU
    def test_sharded(self):
        """Under fully_shard calls compute with values inside, and what is saved is inside."""
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            net = nn.Sequential(nn.Linear(6, 6), sc.LI(torch.full((6,), 1.2), learn=("tau",)))
            fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
            optimizer = torch.optim.SGD([net[1].tau], 1.0)
            for _ in range(2):
                optimizer.zero_grad()
                out = net(drive(4, 2, 6))
                (-out.sum()).backward()
                net[1].tau.grad.mul_(0.0).add_(1.0)
                optimizer.step()
            weight, bias = (value.full_tensor() for value in (net[0].weight, net[0].bias))
            assert torch.equal(out, sc.LI(1.0)(nn.functional.linear(drive(4, 2, 6), weight, bias)))
            state = net.state_dict()
            assert state["1.tau"].full_tensor().tolist() == [1.0] * 6
            net.load_state_dict(state)
        finally:
            distributed.destroy_process_group()
