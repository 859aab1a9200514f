"""Which backend computes a neuron, when it is bound, and what a change of the definition leaves of what was derived."""

from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._shell.binding import ask, request

X = torch.linspace(0.0, 2.0, 12).view(4, 3)


class Leaky(sc.Neuron):
    """Its step reads an attribute."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def __init__(self, gain=1.0, **kwargs):
        super().__init__(**kwargs)
        self.gain = gain
        self.label = "a name that no step reads"

    def dynamics(self, x, s, p):
        v = s.v + (self.gain * x - s.v) / p.tau
        z = self.spike(v - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, v)}


def test_a_neuron_is_bound_at_its_first_call():
    """Before, there is no backend; after, the one of the device type of the call, and why."""
    neuron = Leaky(backend="torch")
    assert neuron.bound == {}
    neuron(X)
    assert {device: (found.backend.name, found.source) for device, found in neuron.bound.items()} == {
        "cpu": ("torch", "argument")
    }


def test_what_is_bound_is_shown_and_not_handed_out():
    """Changing what ``bound`` gave changes no neuron."""
    neuron = Leaky()
    neuron(X)
    neuron.bound.clear()
    assert list(neuron.bound) == ["cpu"]


def test_a_backend_asked_for_later_is_bound_anew():
    """To ask drops what was bound; a change of the definition does not."""
    neuron = Leaky()
    neuron(X)
    neuron.gain = 2.0
    assert list(neuron.bound) == ["cpu"]
    neuron.backend = "torch"
    assert (neuron.bound, neuron.backend) == ({}, "torch")


def test_to_ask_reaches_neurons_only():
    """Other modules have no backend, and are passed over."""
    net = nn.Sequential(nn.Linear(3, 3), Leaky(), nn.Sequential(Leaky()))
    ask(net.modules(), request("torch", "a test"))
    assert [module.backend for module in net.modules() if isinstance(module, Leaky)] == ["torch", "torch"]
    with pytest.raises(TypeError, match=r"^backend=3 must be a backend's name, 'auto' or None$"):
        request(3, "a test")


def test_a_copy_has_derived_nothing():
    """A copy, by deepcopy or pickle, is bound and traced when it is called, and keeps what was asked for."""
    neuron = sc.LIF(backend="torch")
    neuron(X)
    for other in (copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
        assert (other.bound, other._dispatch.program, other.backend) == ({}, None, "torch")
        assert torch.equal(other(X), neuron(X))


def test_a_program_is_traced_when_it_is_needed():
    """Not when a neuron is made; after a change of what it reads the old one is gone, and the next call traces."""
    neuron = Leaky()
    assert neuron._dispatch.program is None
    neuron(X)
    before = neuron._dispatch.program
    assert before == neuron.program
    neuron.label = "another"
    assert neuron._dispatch.program is before
    neuron.gain = 3.0
    assert neuron.program != before
    assert torch.equal(neuron(X), Leaky(3.0)(X))


def test_an_attribute_that_is_deleted_is_missed():
    """What a step reads cannot be deleted without the next call noticing."""
    neuron = Leaky()
    neuron(X)
    del neuron.label
    neuron(X)
    del neuron.gain
    with pytest.raises(sc.TraceError, match="'Leaky' object has no attribute 'gain'"):
        neuron(X)


def test_numbers_of_surrogates():
    """They are behind the parameters of a neuron, and those of the surrogate that it has now."""
    neuron = sc.LIF(surrogate=sc.surrogate.ATan(alpha=3.0))
    assert [*neuron.named_values().values()][-2:] == pytest.approx([1.5 * math.pi, 1.5])
    neuron.surrogate = sc.surrogate.ATan(alpha=4.0)
    assert [*neuron.named_values().values()][-2:] == pytest.approx([2.0 * math.pi, 2.0])


def test_neurons_of_one_program_share_their_runner():
    """Compiled code is there once, whichever neuron asked for it first, and from whichever thread."""
    neurons = [sc.LIF(tau=2.0 + k, backend="torch") for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda neuron: neuron(X), neurons))
    runners = [runner for neuron in neurons for runner in neuron._dispatch.runners.values()]
    assert len(runners) == 8
    assert len({id(runner) for runner in runners}) == 1


def test_a_change_back_compiles_nothing():
    """The same program, with other numbers at most, keeps its runners and its stamp, which torch.compile guards."""
    neuron = sc.LIF(surrogate=sc.surrogate.ATan(alpha=2.0))
    neuron(X)
    stamp, runners = neuron._dispatch.stamp, neuron._dispatch.runners
    assert stamp == neuron.program.key
    neuron.surrogate = sc.surrogate.ATan(alpha=5.0)
    assert neuron._dispatch.runners is runners
    neuron.detach_reset = True
    assert (neuron._dispatch.stamp == stamp, neuron._dispatch.runners is runners) == (False, False)
    neuron.detach_reset = False
    neuron(X)
    assert neuron._dispatch.stamp == stamp


def test_a_parameter_is_an_argument_of_the_program():
    """Setting one, as a number or as a tensor, traces nothing again; the next call has the new value."""
    neuron = Leaky(tau=2.0)
    neuron(X)
    cache = neuron._dispatch
    neuron.tau = 5.0
    assert neuron._dispatch is cache
    assert torch.equal(neuron(X), Leaky(tau=5.0)(X))
    neuron.tau = torch.tensor([2.0, 3.0, 4.0])
    assert neuron._dispatch is cache
    assert torch.equal(neuron(X), Leaky(tau=torch.tensor([2.0, 3.0, 4.0]))(X))
