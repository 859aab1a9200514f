"""Surrogates: their primitives, values that compare and pickle, and a user's own. Formulas are the suite's."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, fields, is_dataclass

import pytest
import torch

import refusals
import spikecore as sc
from spikecore.lang import TraceError
from spikecore.surrogate import Surrogate

S = sc.surrogate

NAMES = list(S.SURROGATES)
ALL = [*(getattr(S, name)() for name in NAMES), S.SquarewaveFourier(n=3, period=0.75)]
WITH_PRIMITIVE = [surrogate for surrogate in ALL if type(surrogate).primitive is not Surrogate.primitive]


def slope(surrogate, u):
    """The derivative at ``u``, found as a neuron finds it."""
    u = u.clone().requires_grad_()
    (grad,) = torch.autograd.grad(sc.ops.spike(u, surrogate).sum(), u)
    return grad


def points(count=400):
    """Irregular points in -4..4, none on a kink, and none closer to one than a difference quotient reaches."""
    return torch.rand(count, generator=torch.Generator().manual_seed(7), dtype=torch.float64) * 8 - 4


class TestFormulas:
    """The published ones are in the conformance suite."""

    @pytest.mark.parametrize("surrogate", WITH_PRIMITIVE, ids=repr)
    def test_derivative_is_the_slope_of_the_primitive(self, surrogate):
        """The derivative equals the difference quotient of ``primitive``."""
        u, h = points(), 1e-6
        quotient = (surrogate.primitive(u + h) - surrogate.primitive(u - h)) / (2 * h)
        torch.testing.assert_close(slope(surrogate, u), quotient, rtol=1e-6, atol=1e-8)

    def test_forward_is_the_step_whatever_the_surrogate(self):
        """A spike is 1 from the threshold on (above it, if strict), for every surrogate."""
        u = torch.tensor([-1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, math.inf, -math.inf, math.nan])
        for surrogate in ALL:
            assert sc.ops.spike(u, surrogate).tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0]
            assert sc.ops.spike(u, surrogate, strict=True).tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0]


class TestValue:
    """A surrogate is a value."""

    @pytest.mark.parametrize("surrogate", ALL, ids=repr)
    def test_equal_parameters_make_equal_surrogates(self, surrogate):
        """Equal, of one hash, and interchangeable after a copy, a pickle, and reading the repr back."""
        again = type(surrogate)(**{f.name: getattr(surrogate, f.name) for f in fields(surrogate)})
        for other in (again, copy.deepcopy(surrogate), pickle.loads(pickle.dumps(surrogate))):
            assert surrogate == other
            assert hash(surrogate) == hash(other)
        assert eval(repr(surrogate), dict(vars(S))) == surrogate


POSITIVE = [(getattr(S, name), field) for name in NAMES for field in getattr(S, name).positive]


class TestBadParameters:
    """A wrong parameter is named."""

    @pytest.mark.parametrize("value", [0, -1.5])
    @pytest.mark.parametrize(("cls", "field"), POSITIVE)
    def test_not_above_zero(self, cls, field, value):
        """A scale that is zero or negative."""
        with pytest.raises(ValueError, match=f"^{cls.__name__}: {field}={value} must be above 0$"):
            cls(**{field: value})

    @pytest.mark.parametrize("value", [math.nan, "2"])
    @pytest.mark.parametrize("cls", [getattr(S, name) for name in NAMES if fields(getattr(S, name))])
    def test_no_finite_number(self, cls, value):
        """Anything but a finite number."""
        field = fields(cls)[0].name
        with pytest.raises((TypeError, ValueError), match=f"^{cls.__name__}: {field}=.* must be a finite number$"):
            cls(**{field: value})


@dataclass(frozen=True)
class Box(Surrogate):
    """The box of the module's documentation."""

    width: float = 1.0
    positive = ("width",)

    def derivative(self, u):
        return sc.ops.where(abs(u) < self.width / 2, 1.0 / self.width, 0.0)


class Bell(Surrogate):
    """A plain class, written with torch's own functions."""

    def __init__(self, sharpness):
        self.sharpness = sharpness

    def derivative(self, u):
        return torch.exp(-self.sharpness * torch.square(u))


class Constant(Surrogate):
    """A derivative that is a number."""

    def derivative(self, u):
        return 0.25


class Empty(Surrogate):
    """Forgot the derivative."""


class Window(Surrogate):
    """A truth value, which is no derivative."""

    def derivative(self, u):
        return abs(u) < 0.5


class TestOwn:
    """A surrogate of one's own."""

    u = torch.tensor([-3.0, -0.7, -0.2, 0.0, 0.3, 0.9])

    @pytest.mark.parametrize(
        ("surrogate", "formula"),
        [
            (Box(), lambda u: (u.abs() < 0.5) * 1.0),
            (Box(width=2.0), lambda u: (u.abs() < 1) * 0.5),
            (Bell(3.0), lambda u: torch.exp(-3 * u * u)),
            (Constant(), lambda u: torch.full_like(u, 0.25)),
        ],
        ids=["dataclass", "dataclass with a parameter", "plain class", "number"],
    )
    def test_trains_a_neuron(self, surrogate, formula):
        """The input gradient of a neuron is the user's formula, on fresh and on used, copied and pickled neurons."""
        x = (self.u + 1.0).unsqueeze(0).requires_grad_()
        lif = sc.IF(surrogate=surrogate)
        for neuron in (lif, lif, copy.deepcopy(lif), pickle.loads(pickle.dumps(lif))):
            (grad,) = torch.autograd.grad(neuron(x).sum(), x)
            torch.testing.assert_close(grad[0], formula(x.detach()[0] - 1.0))

    def test_dataclass_is_a_value(self):
        """A frozen dataclass has equality, a name and its parameters checked, as those that come with spikecore."""
        assert is_dataclass(Box)
        assert Box(2.0) == Box(2.0)
        assert repr(sc.IF(surrogate=Box(2.0))).count("surrogate=Box(width=2.0)") == 1
        with pytest.raises(ValueError, match="^Box: width=-1 must be above 0$"):
            Box(-1)


test_refused = refusals.table(__file__, globals(), TraceError)
