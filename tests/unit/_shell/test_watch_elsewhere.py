"""What a definition reads outside of its neuron is followed: in submodules, in classes and in globals."""

from __future__ import annotations

import argparse
import collections
import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
from scaled import Scaled, Within, X
from spikecore._shell import definition


@pytest.fixture
def traces(monkeypatch):
    """The neurons whose definition was traced, in this order."""
    found, traced = [], definition.traced

    def noting(neuron, detached):
        found.append(neuron)
        return traced(neuron, detached)

    monkeypatch.setattr(definition, "traced", noting)
    return found


class Scale(nn.Module):
    """A module with numbers of every kind."""

    of_class = 1.0

    def __init__(self):
        super().__init__()
        self.k = 1.0
        self._items = [1.0]
        self.register_buffer("_buffer", torch.ones(1))
        self.weight = nn.Parameter(torch.ones(1))


class Nested(nn.Module):
    """A module in a module."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([Scale()])


MODULES = {
    "attribute": (Scale, lambda m: m.k, lambda m: setattr(m, "k", 3.0)),
    "item": (Scale, lambda m: m._items[0], lambda m: m._items.__setitem__(0, 3.0)),
    "buffer": (Scale, lambda m: float(m._buffer), lambda m: m._buffer.fill_(3.0)),
    "new buffer": (Scale, lambda m: float(m._buffer), lambda m: setattr(m, "_buffer", torch.tensor(3.0))),
    "parameter": (Scale, lambda m: float(m.weight.detach()), lambda m: m.weight.detach().fill_(3.0)),
    "over the class": (Scale, lambda m: m.of_class, lambda m: setattr(m, "of_class", 3.0)),
    "looked up": (Scale, lambda m: getattr(m, "k" + ""), lambda m: setattr(m, "k", 3.0)),
    "nested": (Nested, lambda m: m.inner[0].k, lambda m: setattr(m.inner[0], "k", 3.0)),
    "another": (
        Nested,
        lambda m: m.inner[0].k,
        lambda m: m.inner.__setitem__(0, (lambda one: setattr(one, "k", 3.0) or one)(Scale())),
    ),
}


class OfModule(Scaled):
    """A number of a module that it holds, in a list or not."""

    def __init__(self, module, read, listed):
        super().__init__()
        self.sub = module
        self._subs = [module] if listed else None
        self._how = read

    def factor(self):
        return self._how(self._subs[0] if self._subs is not None else self.sub)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("kind", MODULES)
def test_a_submodule(kind, listed, traces):
    """What the definition reads of a module that the neuron holds is followed; the rest of that module is not."""
    make, read, change = MODULES[kind]
    module = make()
    neuron = OfModule(module, read, listed)
    assert torch.equal(neuron(X), X)
    module.unrelated = 5
    neuron(X)
    unknown = kind == "looked up"  # which names count is not known, so that a new one may
    assert len(traces) == 1 + unknown
    change(module)
    assert torch.equal(neuron(X), X * 3.0)


def test_a_neuron_within():
    """A neuron that another one asks for its step is followed in its configuration."""

    class Outer(sc.Neuron):
        states = {"v": 0.0}
        params = {"tau": 2.0, "threshold": 1.0, "v_reset": 0.0}

        def __init__(self):
            super().__init__()
            self.inner = sc.LIF()

        def dynamics(self, x, s, p):
            return self.inner.dynamics(x, s, p)

    neuron, x = Outer(), torch.rand(20, 4) * 3
    assert torch.equal(neuron(x), sc.LIF()(x))
    neuron.inner.reset = "soft"
    assert torch.equal(neuron(x), sc.LIF(reset="soft")(x))
    assert not torch.equal(sc.LIF()(x), sc.LIF(reset="soft")(x))


def _classes():
    class Base(Scaled):
        k = 1.0
        _items = [1.0]

    class Config:
        gain = 1.0

    class Derived(Base):
        config = Config

    return Base, Config, Derived


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda self: self.k, lambda base, config, derived: setattr(base, "k", 3.0)),
        (lambda self: self.k, lambda base, config, derived: setattr(derived, "k", 3.0)),
        (lambda self: getattr(self, "k" + ""), lambda base, config, derived: setattr(derived, "k", 3.0)),
        (lambda self: type(self).k, lambda base, config, derived: setattr(derived, "k", 3.0)),
        (lambda self: self._items[0], lambda base, config, derived: base._items.__setitem__(0, 3.0)),
        (lambda self: self.config.gain, lambda base, config, derived: setattr(config, "gain", 3.0)),
    ],
    ids=["base", "derived", "getattr", "type", "item", "class within"],
)
def test_the_class(read, change, traces):
    """A value of the neuron's class, of one that it inherits from, or within one, is followed."""
    classes = _classes()
    classes[2].factor = read
    neuron = classes[2]()
    assert torch.equal(neuron(X), X)
    neuron(X)
    assert len(traces) == 1
    change(*classes)
    assert torch.equal(neuron(X), X * 3.0)


GAIN, GAINS, CONFIG = 1.0, {"gain": 1.0}, argparse.Namespace(gain=1.0)


class Config:
    """Settings as a class."""

    gain = 1.0


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda: GAIN, lambda patch: patch.setitem(globals(), "GAIN", 3.0)),
        (lambda: GAINS["gain"], lambda patch: patch.setitem(GAINS, "gain", 3.0)),
        (lambda: CONFIG.gain, lambda patch: patch.setattr(CONFIG, "gain", 3.0)),
        (lambda: Config.gain, lambda patch: patch.setattr(Config, "gain", 3.0)),
    ],
    ids=["number", "item", "object", "class"],
)
def test_a_global(read, change, monkeypatch):
    """A value that the code reads by a name of its module is followed."""

    class Read(Scaled):
        def factor(self):
            return read()

    neuron = Read()
    assert torch.equal(neuron(X), X)
    change(monkeypatch)
    assert torch.equal(neuron(X), X * 3.0)


# What cannot be followed.

LARGE = {
    "list": (lambda: [1.0] * 1001, True),
    "dict": (lambda: dict.fromkeys(range(1001), 1.0), True),
    "nested": (lambda: [[1.0] for _ in range(900)], False),
    "deep": (lambda: [[[1.0] for _ in range(40)] for _ in range(40)], True),
    "array": (lambda: np.ones(1001), True),
    "tuple": (lambda: (1.0,) * 1001, False),
    "tensor": (lambda: torch.ones(1001), False),
}


@pytest.mark.parametrize("kind", LARGE)
def test_what_is_too_large(kind, recwarn):
    """It is warned of by its name when the definition is traced; what cannot change, or is quickly asked, is not."""
    make, warned = LARGE[kind]

    class Read(Scaled):
        def __init__(self):
            super().__init__()
            self._unread, self._table = [0.0] * 2000, make()

        def factor(self):
            held = self._table[0]
            return 1.0 if isinstance(held, list) else float(held)

    neuron = Read()
    for _ in range(3):
        neuron(X)
    told = [str(one.message) for one in recwarn]
    assert len(told) == warned
    if warned:
        assert told[0].startswith("Read.dynamics reads self._table, which holds more than 1000 values: too many to ")
        assert "Set the attribute anew after a change; or keep what is read in a tuple, a tensor" in told[0]


class Racing(collections.OrderedDict):
    """A dict that another thread changes while it is looked at, as often as told."""

    left = 0

    def _race(self):
        if self.left:
            self.left -= 1
            raise RuntimeError("dictionary changed size during iteration")

    def values(self):
        self._race()
        return super().values()

    def items(self):
        self._race()
        return super().items()


@pytest.mark.parametrize("times", [1, 2, 50])
def test_what_another_thread_changes_meanwhile(times):
    """It counts as changed; the call does not fail."""
    neuron = Within(Racing(gain=1.0), lambda held: held["gain"])
    assert torch.equal(neuron(X), X)
    neuron._held["gain"], neuron._held.left = 3.0, times
    for _ in range(3):
        assert torch.equal(neuron(X), X * 3.0)
    neuron._held.left = 0
    neuron._held["gain"] = 2.0
    assert torch.equal(neuron(X), X * 2.0)


def test_a_neuron_is_freed():
    """What it reads of itself, its class and globals does not hold it."""

    class Read(Scaled):
        k = 1.0

        def __init__(self):
            super().__init__()
            self._items, self.sub = [1.0], Scale()

        def factor(self):
            return self._items[0] * self.sub.k * self.k * GAINS["gain"]

    gc.collect()
    gc.disable()
    try:
        neuron = Read()
        neuron(X)
        gone = weakref.ref(neuron)
        del neuron
        assert gone() is None
    finally:
        gc.enable()
