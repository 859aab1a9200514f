"""Attributes of a class are defaults of its constructor, or are refused when the class is made."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import refusals
import spikecore as sc


class Own(sc.Neuron):
    """A neuron of one's own with a default for nearly everything."""

    states = {"v": 0.0}
    params = {"tau": 5.0}
    surrogate = sc.surrogate.Sigmoid(4.0)
    learn = ("tau",)
    detach_reset = True

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, h)}


class Slow(sc.LIF):
    """A neuron of the library with other values, one setting, and nothing else."""

    params = {**sc.LIF.params, "tau": 20.0, "threshold": 0.5}
    reset = "soft"


class PassesNothingOn(Slow):
    """Its constructor gives nothing to that of the base."""

    def __init__(self) -> None:
        super().__init__()


class WritesItself(Slow):
    """Its constructor has a default of its own."""

    def __init__(self, *, reset: str = "none", **options: Any) -> None:
        super().__init__(reset=reset, **options)


class Soft:
    """A class that is no neuron, with a setting."""

    reset = "soft"


class Mixed(Soft, sc.LIF):
    """A neuron that has the setting from beside."""

    params = Slow.params


class Derived(Slow):
    """One default of the base, one of its own."""

    gradient = "spike_time"
    params = {**Slow.params, "threshold": 0.25}


class Wide(sc.Neuron):
    """A constructor with an argument of its own, which a derived class has as attribute."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.width = width

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return self.width * x, {}


class Widest(Wide):
    """That derived class."""

    width = 9


class Words(sc.Neuron):
    """Parameters with names that a constructor of the library might take for itself."""

    params = {"neuron": 5.0, "init": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return p.neuron * x + p.init, {}


SAME = {
    "a setting and values of a subclass": (Slow, lambda: sc.LIF(20.0, threshold=0.5, reset="soft")),
    "an argument by position wins": (lambda: Slow(3.0), lambda: sc.LIF(3.0, threshold=0.5, reset="soft")),
    "an argument by name wins": (lambda: Slow(reset="hard"), lambda: sc.LIF(20.0, threshold=0.5)),
    "a constructor that passes nothing on": (PassesNothingOn, Slow),
    "a default in the constructor of a derived class": (WritesItself, lambda: Slow(reset="none")),
    "a setting of a class that is no neuron": (Mixed, Slow),
    "of a base, and of the class": (Derived, lambda: Slow(threshold=0.25, gradient="spike_time")),
    "an argument without a default": (
        type("L", (sc.Leaky,), {"params": {**sc.Leaky.params, "beta": 0.7}}),
        lambda: sc.Leaky(0.7),
    ),
    "what a neuron learns by itself": (type("K", (sc.KLIF,), {"learn": ()}), lambda: sc.KLIF(learn=())),
    "single steps": (type("S", (sc.LIF,), {"step": "single"}), lambda: sc.LIF(step="single")),
    "None for the surrogate": (lambda: Own(surrogate=None), Own),
    "a parameter named as in the library's own code": (lambda: Words(neuron=5.0, init=1.0), Words),
}


def words(neuron: sc.Neuron) -> str:
    return neuron.extra_repr().partition(", backend=")[0]


@pytest.mark.parametrize("name", SAME)
def test_it_is_as_with_the_arguments(name: str) -> None:
    """Values, settings, what is learnt and the program."""
    make, with_arguments = SAME[name]
    neuron, expected = make(), with_arguments()
    lines = [str(each.program).splitlines()[1:] for each in (neuron, expected)]  # without the name of the class
    assert (words(neuron), lines[0]) == (words(expected), lines[1])
    assert words(copy.deepcopy(neuron)) == words(neuron)


def test_arguments_of_ones_own() -> None:
    """A derived class may say what its base asks for; an attribute beside an ``__init__`` that asks for it is data."""
    assert (Widest().width, Widest(width=2).width, Widest(3).width) == (9, 2, 3)

    class Here(sc.Neuron):
        width = 3

        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width

        dynamics = Wide.dynamics

    with pytest.raises(TypeError, match="width"):
        Here()


test_refused = refusals.table(__file__, globals(), np)
