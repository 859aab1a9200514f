"""A program follows what its definition reads of the neuron, under whatever name and however it is read."""

from __future__ import annotations

import array
import collections
import copy
import cProfile
import dataclasses
import pickle

import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore._shell import definition

X = torch.full((3, 2), 0.75)


class Scaled(sc.Neuron):
    """Its input times what ``factor`` finds."""

    states = {"v": 0.0}
    params = {"tau": 2.0}
    gain = 1.0
    _class_gain = 1.0

    def dynamics(self, x, s, p):
        v = x * self.factor()
        return v, {"v": v}

    def factor(self):
        raise NotImplementedError


class Held:
    """Something with an attribute, and one within that."""

    def __init__(self, gain):
        self.gain = gain
        self.inner = {"gain": gain}


class Slotted:
    """Something with an attribute that is in no ``__dict__``."""

    __slots__ = ("gain", "never_set")

    def __init__(self, gain):
        self.gain = gain


class Listed(list):
    """A list with an attribute."""

    gain = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    """What cannot change within."""

    gain: float


class Private(Scaled):
    """A number under a private name."""

    def __init__(self):
        super().__init__()
        self._gain = 1.0

    def factor(self):
        return self._gain


class ByName(Private):
    """Looked up."""

    def factor(self):
        return getattr(self, "_" + "gain")


class ByFunction(Private):
    """Read by a function that gets the neuron, in a lambda."""

    def factor(self):
        return (lambda: _gain_of(self))()


def _gain_of(neuron):
    return neuron._gain


class ByProperty(Private):
    """Read by a property."""

    @property
    def factor_now(self):
        return self._gain

    def factor(self):
        return self.factor_now


class Absent(Scaled):
    """Not there at first."""

    def factor(self):
        return getattr(self, "_gain", 1.0)


class OfClass(Scaled):
    """A default of the class, under a public name."""

    def factor(self):
        return self.gain


class OfClassPrivate(Scaled):
    """A default of the class, under a private name."""

    def factor(self):
        return self._class_gain


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Private, "_gain"),
        (ByName, "_gain"),
        (ByFunction, "_gain"),
        (ByProperty, "_gain"),
        (Absent, "_gain"),
        (OfClass, "gain"),
        (OfClassPrivate, "_class_gain"),
    ],
)
def test_an_attribute_that_is_set(cls, name):
    """The next call computes with it, and so does a copy; deleted, it is what the class says."""
    neuron = cls()
    for one in (neuron, copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
        assert torch.equal(one(X), X)
        setattr(one, name, 3.0)
        assert torch.equal(one(X), X * 3.0)
        assert torch.equal(one.run(X, record=("v",))[2]["v"], X * 3.0)
    if cls in (Absent, OfClass, OfClassPrivate):
        delattr(neuron, name)
        assert torch.equal(neuron(X), X)


def test_while_a_profiler_runs():
    """Nobody sees then what is read, so that every attribute counts."""
    neuron = Private()
    with cProfile.Profile():
        neuron(X)
    neuron._gain = 3.0
    assert torch.equal(neuron(X), X * 3.0)


class Within(Scaled):
    """A number within something else."""

    def __init__(self, held, read):
        super().__init__()
        self._held, self._how = held, read

    def factor(self):
        return self._how(self._held)


def _set_item(held):
    held["gain"] = 3.0


CHANGES = {
    "list": (lambda: [0.0, 1.0], lambda held: held[1], lambda held: held.__setitem__(1, 3.0)),
    "dict": (lambda: {"gain": 1.0}, lambda held: held["gain"], _set_item),
    "set": (lambda: {1.0}, max, lambda held: held.add(3.0)),
    "nested": (
        lambda: ({"gain": [1.0]},),
        lambda held: held[0]["gain"][0],
        lambda held: held[0]["gain"].insert(0, 3.0),
    ),
    "object": (lambda: Held(1.0), lambda held: held.gain, lambda held: setattr(held, "gain", 3.0)),
    "object with slots": (lambda: Slotted(1.0), lambda held: held.gain, lambda held: setattr(held, "gain", 3.0)),
    "list with an attribute": (Listed, lambda held: held.gain, lambda held: setattr(held, "gain", 3.0)),
    "deque": (lambda: collections.deque([1.0]), lambda held: held[0], lambda held: held.__setitem__(0, 3.0)),
    "array": (lambda: array.array("d", [1.0]), lambda held: held[0], lambda held: held.__setitem__(0, 3.0)),
    "NumPy array": (lambda: np.ones((2, 2)), lambda held: float(held[1, 0]), lambda held: held.fill(3.0)),
    "tensor": (lambda: torch.ones(2), lambda held: float(held[1]), lambda held: held.fill_(3.0)),
    "tensor in a dict": (
        lambda: {"gain": torch.ones(2)},
        lambda held: float(held["gain"][1]),
        lambda held: held["gain"].mul_(3.0),
    ),
    "parameter": (
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda held: float(held.detach()[1]),
        lambda held: held.detach().fill_(3.0),
    ),
    "in an object": (lambda: Held(1.0), lambda held: held.inner["gain"], lambda held: _set_item(held.inner)),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("call", ["forward", "run", "record", "program", "single"])
def test_what_changes_within(kind, call):
    """The next call of any kind computes with what a list, a dict, a set or an object holds then."""
    make, read, change = CHANGES[kind]
    neuron = Within(make(), read)
    calls = {
        "forward": lambda: neuron(X),
        "run": lambda: neuron.run(X)[0],
        "record": lambda: neuron.run(X, record=("v",))[2]["v"],
        "single": lambda: torch.stack([neuron(x) for x in X]),
        "program": lambda: neuron.program,
    }
    if call == "single":
        neuron.step = "single"
    before = [calls[call]() for _ in range(3)][-1]
    change(neuron._held)
    after = calls[call]()
    assert (after != before) if call == "program" else torch.equal(after, before * 3.0)


@pytest.mark.parametrize("kind", [np.float32, Slotted, lambda k: lambda: k], ids=["NumPy", "slots", "function"])
def test_what_is_replaced_within_twice(kind):
    """Between two calls: what is there then may lie where the first one lay, which is gone, and is another value."""
    read = (lambda one: one()) if kind(1.0).__class__.__name__ == "function" else lambda one: getattr(one, "gain", one)
    neuron = Within([kind(1.0)], lambda held: float(read(held[0])))
    for k in range(1, 20):
        neuron._held[0] = None
        neuron._held[0] = kind(float(k))
        assert torch.equal(neuron(X), X * float(k))


def test_a_buffer_that_changes():
    """A tensor that moves with the neuron counts as one under any other attribute."""
    neuron = Private()
    del neuron._gain
    neuron.register_buffer("_gain", torch.tensor(1.0))
    neuron.factor = lambda: float(neuron._gain)
    assert torch.equal(neuron(X), X)
    neuron._gain.fill_(3.0)
    assert torch.equal(neuron(X), X * 3.0)


class Moded(Scaled):
    """Another factor while it is trained."""

    def factor(self):
        return 1.0 if self.training else 3.0


class ModedByName(Scaled):
    """The same, looked up."""

    def factor(self):
        return 1.0 if getattr(self, "train" + "ing") else 3.0


@pytest.mark.parametrize("cls", [Moded, ModedByName])
def test_the_mode_of_the_network(cls):
    """A definition that asks for ``self.training`` follows ``train()`` and ``eval()``."""
    neuron = cls()
    net = torch.nn.Sequential(neuron)
    for factor in (1.0, 3.0, 1.0):
        net.train(factor == 1.0)
        for _ in range(2):
            assert torch.equal(net(X), X * factor)


def test_a_second_surrogate():
    """A surrogate of the neuron's own, under a private name, gives the gradient once it is set."""

    class Two(sc.Neuron):
        states = {"v": 0.0}

        def __init__(self):
            super().__init__()
            self._other = sc.surrogate.ATan(2.0)

        def dynamics(self, x, s, p):
            z = sc.ops.spike(x - 1.0, self._other)
            return z, {"v": z}

    def gradient(neuron):
        x = X.clone().requires_grad_()
        return torch.autograd.grad(neuron(x).sum(), x)[0]

    neuron = Two()
    before = gradient(neuron)
    key = neuron.program.key
    neuron._other = sc.surrogate.ATan(5.0)
    assert neuron.program.key == key  # its number is an argument
    assert not torch.equal(gradient(neuron), before)
    neuron._other = sc.surrogate.Sigmoid(4.0)
    assert neuron.program.key != key


def test_what_changes_nothing_traces_nothing():
    """Attributes that the definition does not read, frozen ones and the shell's own leave the program in place."""
    neuron = Private()
    neuron._log, neuron._frozen = [], Frozen(1.0)
    neuron(X)
    program = neuron._cache.program
    neuron._log.append(1)
    neuron._other = 3
    neuron(X)
    neuron.train()
    assert neuron._cache.program is program


def test_the_shells_own_names():
    """Every private attribute of a neuron that has been used in every way is known as the shell's."""
    single = sc.LIF(torch.full((2,), 2.0), step="single")
    learnt = sc.LIF(learn=("tau",), step="single")
    for neuron in (single, learnt):
        neuron(X)
        neuron.run(X, record=("v",))
        neuron.load_state_dict(neuron.state_dict())
        sc.reset(neuron)
        with sc.carry_state(neuron):
            neuron(X[0])
        private = {name for name in vars(neuron) if name.startswith("_")}
        assert private <= definition.SHELL
