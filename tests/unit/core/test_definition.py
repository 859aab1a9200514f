"""Calls one after the other: what changes between them counts, and a definition is traced again when it must be."""

from __future__ import annotations

import sys

import pytest
import torch

import spikecore as sc
from spikecore.context import COMPILES

compiles = pytest.mark.skipif(
    not COMPILES or sys.version_info >= (3, 14), reason="this torch does not compile a neuron"
)
X, N = torch.full((3, 2), 0.75), 5


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


def test_what_is_traced_again():
    """Each change, from the first call on; no call, no equal number. A program that is the same keeps its key."""
    traces = []

    class Counted(Scaled):
        def factor(self):
            traces.append(self.gain)
            return self.gain

    neuron = Counted()
    neuron.gain = 2.0
    assert traces == []
    for _ in range(3):
        neuron(X)
    assert traces == [2.0]
    key = neuron.program.key
    neuron.epoch = 5
    neuron.channel_dim = 0
    neuron(X)
    assert neuron.program.key == key  # no step reads them, so nothing is compiled again
    traces.clear()
    for _ in range(3):
        neuron.epoch, neuron.channel_dim = 5, 0
        neuron.train()
        neuron.log.append(neuron(X))
    assert traces == []
    for change in (neuron.eval, neuron.train, lambda: setattr(neuron, "tau", 3.0)):
        change()
        neuron(X)
        assert (traces, neuron.program.key) == ([2.0], key)
        traces.clear()
    neuron.gain = "three"
    with pytest.raises(sc.lang.TraceError, match="a str is not part of the language"):
        neuron(X)
    neuron.gain = 3.0
    assert torch.equal(neuron(X), X * 3.0)


@compiles
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [lambda: sc.PLIF(2.0), lambda: sc.layers.NormNeuron(torch.nn.BatchNorm1d(4), sc.LIF())],
    ids=["PLIF", "NormNeuron"],
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
