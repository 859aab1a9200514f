"""What a class declares as attributes is the default of its constructor, or is refused when the class is made."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any, Dict

import numpy as np
import pytest
import torch

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


class Plain(sc.Neuron):
    """The same equations without defaults."""

    states = Own.states
    params = Own.params
    dynamics = Own.dynamics


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


def test_gradients_are_those_of_the_declared_surrogate() -> None:
    """Against the same equations that get surrogate, ``detach_reset`` and ``learn`` as arguments."""
    x = 3 * torch.rand(8, 2, 5, generator=torch.Generator().manual_seed(0))
    gradients = []
    for neuron in (Own(), Plain(surrogate=sc.surrogate.Sigmoid(4.0), detach_reset=True, learn=("tau",))):
        inputs = x.clone().requires_grad_()
        neuron(inputs).sum().backward()
        gradients.append((inputs.grad, neuron.tau.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])
    assert (Own().detach_reset, [name for name, _ in Own().named_parameters()]) == (True, ["tau"])
    assert words(pickle.loads(pickle.dumps(Own()))) == words(Own())


def test_signatures_show_it() -> None:
    """As ``help`` and editors do."""
    own, slow, wide = (inspect.signature(kind).parameters for kind in (Own, Slow, WritesItself))
    assert [own[name].default for name in ("surrogate", "learn")] == [sc.surrogate.Sigmoid(4.0), ("tau",)]
    assert [slow[name].default for name in ("tau", "threshold", "reset")] == [20.0, 0.5, "soft"]
    assert [wide[name].default for name in ("tau", "reset")] == [20.0, "none"]


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


def test_a_tensor_of_a_class_is_of_no_neuron() -> None:
    """A checkpoint that one neuron loads changes neither the class nor another neuron."""
    values = torch.tensor([2.0, 3.0])
    own, of_library = {"params": {"tau": values}}, {"params": {**sc.LIF.params, "tau": values}}
    for kind in (type("A", (Own,), own), type("B", (sc.LIF,), of_library)):
        loaded, other = kind(learn=()), kind(learn=())
        loaded.load_state_dict({"tau": torch.tensor([9.0, 9.0])})
        assert (loaded.tau.tolist(), other.tau.tolist(), values.tolist()) == ([9.0, 9.0], [2.0, 3.0], [2.0, 3.0])


def writes(**attributes: Any) -> Dict[str, Any]:
    def init(self: Any, *, reset: str = "hard", **options: Any) -> None:
        sc.LIF.__init__(self, reset=reset, **options)

    return {"__init__": init, **attributes}


REFUSED = {
    "a parameter": (sc.LIF, {"threshold": 0.5}, r"write params = \{\.\.\., 'threshold': 0\.5\}"),
    "a property": (sc.PLIF, {"tau": 5.0}, r"X\.tau=5\.0 would hide a property.*super\(\).__init__\(tau=5\.0\)"),
    "the backend": (sc.LIF, {"backend": "torch"}, r"X\.backend='torch' would hide a property"),
    "what is computed": (sc.PLIF, {"params": {**sc.PLIF.params, "w": 1.0}}, r"X\.params has w=1\.0, which the constr"),
    "another word": (sc.LIF, {"reset": "zero"}, "X: reset='zero' must be one of 'hard', 'soft', 'none'"),
    "a method": (sc.LIF, {"step": lambda self, x: x}, "X: step=<function .* must be 'multi'"),
    "one name": (sc.LIF, {"learn": "tau"}, "X: learn='tau' must be a tuple of parameter names"),
    "another name": (sc.LIF, {"learn": ("beta",)}, "X: learn names 'beta', which is no parameter"),
    "a class of surrogates": (sc.LIF, {"surrogate": sc.surrogate.ATan}, r"surrogate=ATan is the class; give an object"),
    "a number for a truth value": (Own, {"detach_reset": 1}, "X: detach_reset=1 must be True or False"),
    "a text for a number": (sc.LIF, {"channel_dim": "C"}, "X: channel_dim='C' must be a whole number"),
    "two defaults": (sc.LIF, writes(reset="soft"), "X has two defaults of reset, 'soft' of the class and 'hard' in __"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_when_the_class_is_made(name: str) -> None:
    """With the name, the value and the way out."""
    base, attributes, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        type("X", (base,), attributes)


def test_an_array_is_refused_as_it_is_of_an_argument() -> None:
    kind = type("X", (sc.LIF,), {"params": {**sc.LIF.params, "tau": np.ones(2)}})
    with pytest.raises(TypeError, match=r"X: tau=array\(.*give torch\.tensor\(values\)"):
        kind()
