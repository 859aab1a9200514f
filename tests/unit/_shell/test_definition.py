"""When a definition is traced, what it sees of its neuron, and what a trace that gives the same program keeps."""

from __future__ import annotations

import abc
import sys
import threading

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._base import versions
from spikecore._shell import binding

compiled = pytest.mark.skipif(
    not versions.COMPILES or sys.version_info >= (3, 14), reason="this torch does not compile a neuron"
)
X = torch.full((3, 2), 0.75)


class Scaled(sc.Neuron):
    """Its input times what ``factor`` finds."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def __init__(self):
        super().__init__()
        self.gain, self.epoch, self.log = 1.0, 0, []

    def dynamics(self, x, s, p):
        v = x * self.factor()
        return v, {"v": v}

    def factor(self):
        return self.gain


@pytest.fixture
def traces(monkeypatch):
    """The neurons whose definition was traced, in this order."""
    found, traced = [], binding._traced

    def noting(neuron, *others):
        found.append(neuron)
        return traced(neuron, *others)

    monkeypatch.setattr(binding, "_traced", noting)
    return found


def test_what_is_traced_again(traces):
    """Each change once, from the first call on; no parameter, no equal number, and a mode once for all."""
    neuron = Scaled()
    neuron.gain = 2.0
    assert traces == []
    for _ in range(3):
        neuron(X)
    assert len(traces) == 1
    neuron.epoch = 5
    neuron.channel_dim = 0
    assert len(traces) == 3
    for _ in range(3):
        neuron.tau = neuron.tau + 1.0
        neuron.tau = nn.Parameter(torch.tensor(2.0))
        del neuron.tau
        neuron.tau = 2.0
        neuron.epoch, neuron.channel_dim = 5, 0
        neuron.train()
        neuron.log.append(neuron(X))
    assert len(traces) == 3
    for _ in range(3):
        neuron.eval()(X)
        neuron.train()(X)
    assert len(traces) == 4


def test_what_a_trace_keeps(traces):
    """Kernels of the same program, and what torch.compile guards: an attribute that no step reads compiles nothing."""
    neuron = Scaled()
    neuron(X)
    program, runners, stamp = neuron.program, neuron._dispatch.runners, neuron._dispatch.stamp
    assert stamp == program.key
    neuron.epoch = 1
    neuron.eval()
    neuron.retrace()
    neuron(X)
    assert (neuron.program, neuron._dispatch.runners, neuron._dispatch.stamp) == (program, runners, stamp)
    assert neuron._dispatch.runners is runners
    neuron.gain = 3.0
    assert neuron.program != program
    assert neuron._dispatch.runners is not runners


def test_a_mistake_in_between(traces):
    """A definition that cannot be traced says so in the call, and is forgotten once it can."""
    neuron = Scaled()
    neuron(X)
    neuron.gain = "three"
    with pytest.raises(sc.TraceError, match="a str is not part of the language"):
        neuron(X)
    neuron.gain = 3.0
    assert torch.equal(neuron(X), X * 3.0)


def test_threads_that_change_and_call():
    """A call computes with what was set before it began or later, and the last value stays."""
    neuron, wrong = Scaled(), []
    neuron(X)

    def call():
        for _ in range(200):
            value = float((neuron(X) / X).unique())
            if value not in range(1, 41):
                wrong.append(value)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for k in range(1, 41):
        neuron.gain = float(k)
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(neuron(X), X * 40.0)


# What a definition sees.


def test_what_the_definition_sees_of_itself():
    """Its class is that of the neuron, its class hooks do not run, and what it sets on itself is lost."""
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
            assert self.__class__ is type(self) is Looks
            assert super().factor is not None
            v = x * (2.0 if self._more == 1 else 3.0)
            return v, {"v": v}

    neuron = Looks()
    assert torch.equal(neuron(X), X * 2.0)
    assert made == [Looks]
    assert "_more" not in vars(neuron)


@pytest.mark.parametrize("how", ["abstract", "getattr", "vars"])
def test_unusual_classes(how):
    """A class may do what it likes with names."""

    class Unusual(Scaled, metaclass=abc.ABCMeta if how == "abstract" else type):
        def factor(self):
            return self.also if how == "getattr" else vars(self)["gain"] if how == "vars" else self.gain

    if how == "getattr":
        Unusual.__getattr__ = lambda self, name: (
            self.__dict__["gain"] if name == "also" else nn.Module.__getattr__(self, name)
        )
    neuron = Unusual()
    assert torch.equal(neuron(X), X)
    neuron.gain = 3.0
    assert torch.equal(neuron(X), X * 3.0)


# With torch.compile, which guards the stamp of a program.


@compiled
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_under_torch_compile():
    """What leaves the program as it is has torch.compile compile nothing."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, neuron = CompileCounter(), Scaled()
    neuron(X)
    compiled = torch.compile(neuron, backend=counter)
    for k in range(5):
        neuron.epoch = k
        neuron.log.append(k)
        compiled(X)
    assert counter.frame_count == 1
    neuron.gain = 3.0
    assert torch.equal(compiled(X), X * 3.0)


@compiled
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_an_attribute_that_compiled_code_sets():
    """It is set outside of the graph, and the next call computes with it."""

    class Grows(Scaled):
        def forward(self, x):
            y = super().forward(x)
            self.gain = self.gain + 1.0
            return y

    torch._dynamo.reset()
    neuron = Grows()
    compiled = torch.compile(neuron, backend="eager")
    for gain in (1.0, 2.0, 3.0):
        assert torch.equal(compiled(X), X * gain)


def _recorded():
    neuron = sc.LIF()
    return lambda x: neuron.run(x, record=("v",))


@compiled
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [lambda: sc.PLIF(2.0), _recorded, lambda: sc.layers.NormNeuron(torch.nn.BatchNorm1d(4), sc.LIF())],
    ids=["PLIF", "recorded", "NormNeuron"],
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
