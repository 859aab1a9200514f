"""What a definition reads of its neuron is followed in whatever way, and what it does not read costs nothing."""

from __future__ import annotations

import abc
import argparse
import operator
import sys

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
from scaled import Scaled, Within, X
from spikecore._shell import definition

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture
def traces(monkeypatch):
    """The neurons whose definition was traced, in this order."""
    found, traced = [], definition.traced

    def noting(neuron, detached):
        found.append(neuron)
        return traced(neuron, detached)

    monkeypatch.setattr(definition, "traced", noting)
    return found


class Shown(float):
    """A number that counts how often it is shown as text."""

    count = 0

    def __repr__(self):
        Shown.count += 1
        return float.__repr__(self)


@pytest.mark.parametrize(
    ("held", "read"),
    [
        ([Shown(1.0), Shown(2.0)], lambda held: held[0]),
        ((Shown(1.0),), lambda held: held[0]),
        ({"gain": Shown(1.0)}, lambda held: held["gain"]),
        (argparse.Namespace(gain=Shown(1.0)), lambda held: held.gain),
        ([[Shown(1.0)], {"gain": Shown(1.0)}], lambda held: held[0][0]),
    ],
    ids=["list", "tuple", "dict", "object", "nested"],
)
def test_what_stays_is_not_compared(held, read, traces):
    """A call at which the same objects are there looks at no value, and one with equal values traces nothing."""
    neuron = Within(held, read)
    neuron(X)
    Shown.count = 0
    for _ in range(5):
        neuron(X)
    assert Shown.count == 0
    if isinstance(held, list) and not isinstance(held[0], list):
        held[1] = Shown(2.0)
        neuron(X)
        neuron(X)
    assert len(traces) == 1


@pytest.mark.parametrize("now", [True, 1, np.float64(1.0), -1.0])
def test_what_is_only_equal(now):
    """Another kind of number in a list is another value, whatever ``==`` says."""
    neuron = Within([1.0, "float"], lambda held: 2.0 if type(held[0]) is float and held[0] > 0 else 3.0)
    assert torch.equal(neuron(X), X * 2.0)
    neuron._held[0] = now
    assert torch.equal(neuron(X), X * 3.0)


# What is not read.


class Keeps(sc.LIF):
    """It keeps what no definition reads."""

    def __init__(self, **options):
        super().__init__(**options)
        self.last = None

    def forward(self, x):
        y = super().forward(x)
        self.last = y
        return y


class Counts(sc.LIF):
    """Something outside sets its epoch."""

    def __init__(self):
        super().__init__()
        self.epoch = 0


class ByParameterName(Scaled):
    """It looks a parameter up by its name, and has a list that the definition does not read."""

    def __init__(self):
        super().__init__()
        self.history, self.gain = [], 1.0

    def dynamics(self, x, s, p):
        v = self.gain * x / getattr(p, "ta" + "u")
        return v, {"v": v}


def test_an_attribute_that_forward_sets(traces):
    """What a user's own forward keeps on the neuron, under a public name, has nothing traced again."""
    neuron = Keeps()
    for _ in range(5):
        neuron(X)
    assert len(traces) == 1


def test_a_list_beside_a_name_that_is_looked_up(traces):
    """``getattr`` in the definition makes nothing followed but what it reads."""
    neuron = ByParameterName()
    for _ in range(5):
        neuron.history.append(neuron(X))
    assert len(traces) == 1
    neuron.gain = 3.0
    assert torch.equal(neuron(X), X * 3.0 / 2.0)


@pytest.mark.skipif(TORCH < (2, 6) or sys.version_info >= (3, 14), reason="this torch does not compile a neuron")
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("cls", [Counts, ByParameterName])
def test_under_torch_compile(cls):
    """What the definition does not read has torch.compile compile nothing."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, neuron = CompileCounter(), cls()
    neuron(X)
    compiled = torch.compile(neuron, backend=counter)
    for k in range(5):
        if cls is Counts:
            neuron.epoch = k  # and no call in between, which would find the program equal
        else:
            neuron.history.append(k)
            neuron(X)
        compiled(X)
    assert counter.frame_count == 1


def _recorded():
    neuron = sc.LIF()
    return lambda x: neuron.run(x, record=("v",))


@pytest.mark.skipif(TORCH < (2, 6) or sys.version_info >= (3, 14), reason="this torch does not compile a neuron")
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [sc.LIF, lambda: sc.PLIF(2.0), _recorded, lambda: sc.layers.NormNeuron(torch.nn.BatchNorm1d(4), sc.LIF())],
    ids=["LIF", "PLIF", "recorded", "NormNeuron"],
)
def test_a_call_without_torch_compile_in_between_compiles_nothing_anew(make):
    """The first compiled call of a neuron guarded a stamp that the first plain call replaced: a validation without
    torch.compile after the first compiled step had the next step compile again, for minutes in a large network.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    plain, x, counter = make(), torch.rand(5, 3, 4), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(plain, backend=counter)
    for _ in range(3):
        compiled(x)
        plain(x)
    assert counter.frame_count == 1


class ShownAll(Scaled):
    """Its definition sees all attributes at once."""

    def __init__(self):
        super().__init__()
        self._gain, self.history, self.epoch = 1.0, [], 0

    def factor(self):
        return vars(self)["_gain"]


def test_a_change_that_leaves_the_program(traces):
    """Where any attribute may be read, one that changes has the definition traced, and an equal program goes on."""
    neuron = ShownAll()
    neuron(X)
    compiled, quick = neuron._cache.runners, neuron._cache.quick
    for k in range(3):
        neuron.history.append(k)
        neuron(X)
        neuron.epoch = k + 1
        neuron(X)
    assert len(traces) == 7
    assert neuron._cache.runners is compiled
    assert neuron._cache.quick is quick
    neuron._gain = 3.0
    assert torch.equal(neuron(X), X * 3.0)


# How it is read.

GET = operator.attrgetter("_gain")
CALL = operator.methodcaller("__getattribute__", "_gain")


def _by_format(neuron):
    return float("{._gain}".format(neuron))  # noqa: UP032  # the point: a function of C reads it


@pytest.mark.parametrize(
    "read",
    [GET, CALL, _by_format, lambda neuron: getattr(neuron, "_ga" + "in"), lambda neuron: vars(neuron)["_gain"]],
    ids=["attrgetter", "methodcaller", "format", "getattr", "vars"],
)
def test_what_a_function_of_c_reads(read):
    """The names that it reads are followed, though they stand nowhere in the code."""

    class Read(Scaled):
        def __init__(self):
            super().__init__()
            self._gain = 1.0

        def factor(self):
            return read(self)

    neuron = Read()
    assert torch.equal(neuron(X), X)
    neuron._gain = 3.0
    assert torch.equal(neuron(X), X * 3.0)
    neuron.__dict__["_gain"] = 2.0  # past what sees attributes that are set
    assert torch.equal(neuron(X), X * 2.0)


def test_what_the_definition_sees_of_itself():
    """Its class is that of the neuron, its class hooks do not run, and what it sets on itself is lost, as before."""
    made = []

    class Registered(Scaled):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            made.append(cls)

    class Looks(Registered):
        calls = 0

        def dynamics(self, x, s, p):
            self.calls += 1
            self._more = self.calls
            assert self.__class__ is Looks
            assert isinstance(self, Looks)
            assert super().factor is not None
            v = x * (2.0 if self._more == 1 else 3.0)
            return v, {"v": v}

        def factor(self):
            raise NotImplementedError

    Registered.factor = lambda self: 1.0
    neuron = Looks()
    assert torch.equal(neuron(X), X * 2.0)
    assert made == [Looks]
    assert "_more" not in vars(neuron)


@pytest.mark.parametrize("how", ["type", "key", "metaclass", "abstract", "getattr", "getattribute"])
def test_unusual_classes(how):
    """A definition that asks for ``type(self)``, or whose class does what it likes with names, reads what it did."""

    class Meta(type):
        pass

    class Unusual(Scaled, metaclass={"metaclass": Meta, "abstract": abc.ABCMeta}.get(how, type)):
        def __init__(self):
            super().__init__()
            self._gain, self._table = 1.0, {"also": 1.0}

        def factor(self):
            if how == "type":
                return self._gain if type(self) is Unusual else float("nan")
            if how == "key":
                return {Unusual: self._gain}[type(self)]
            return self.also if how == "getattr" else self._gain

    if how == "getattr":
        Unusual.__getattr__ = lambda self, name: (
            self.__dict__["_table"][name] if name == "also" else nn.Module.__getattr__(self, name)
        )
    if how == "getattribute":
        Unusual.__getattribute__ = object.__getattribute__
    neuron = Unusual()
    assert torch.equal(neuron(X), X)
    neuron._gain = neuron._table["also"] = 3.0
    assert torch.equal(neuron(X), X * 3.0)
