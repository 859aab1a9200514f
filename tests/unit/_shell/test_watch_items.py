"""What a definition reads of lists of modules, of globals without a value, of modules and of classes is followed."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import spikecore as sc

LIMIT = None
config = types.ModuleType("config")
config.GAIN = 1.0
config.inner = types.ModuleType("config.inner")
config.inner.LIMIT = None
X = torch.ones(1, 1, 1)


class Gain(nn.Module):
    """A module with a number."""

    def __init__(self, g):
        super().__init__()
        self.g = g


class Listed(sc.Neuron):
    """The input times the sum of what the listed modules have."""

    states = {"v": 0.0}

    def __init__(self, mods):
        super().__init__()
        self.mods = mods

    def dynamics(self, x, s, p):
        return x * (sum(m.g for m in self.mods) + 10.0 * len(self.mods)), {"v": s.v}


def test_a_list_of_modules_grows_and_shrinks():
    """Appended, deleted, replaced and inserted items are seen, and the attributes of those that are new."""
    neuron = Listed(nn.ModuleList([Gain(1.0)]))
    assert neuron(X).item() == 11.0
    neuron.mods.append(Gain(2.0))
    assert neuron(X).item() == 23.0
    neuron.mods[1].g = 4.0
    assert neuron(X).item() == 25.0
    del neuron.mods[1]
    assert neuron(X).item() == 11.0
    neuron.mods[0] = Gain(5.0)
    assert neuron(X).item() == 15.0
    neuron.mods[0].g = 7.0
    assert neuron(X).item() == 17.0
    neuron.mods.insert(0, Gain(3.0))
    assert neuron(X).item() == 30.0
    neuron.mods[0].g = 4.0
    assert neuron(X).item() == 31.0


def test_a_list_of_parameters_grows_and_shrinks():
    """A parameter in a list is one of a module, under a number; a list in a list is followed likewise."""

    class Numbers(Listed):
        def dynamics(self, x, s, p):
            return x * sum(float(one.detach()) for one in self.mods[0]), {"v": s.v}

    neuron = Numbers(nn.ModuleList([nn.ParameterList([nn.Parameter(torch.ones(1))])]))
    assert neuron(X).item() == 1.0
    neuron.mods[0].append(nn.Parameter(torch.ones(1)))
    assert neuron(X).item() == 2.0
    neuron.mods[0][1] = nn.Parameter(torch.full((1,), 4.0))
    assert neuron(X).item() == 5.0
    with torch.no_grad():
        neuron.mods[0][0].mul_(3.0)
    assert neuron(X).item() == 7.0


def test_an_attribute_that_a_submodule_gets_later():
    """Absent at first, a number of a submodule counts once it is there; as a buffer, too."""

    class Lacking(Listed):
        def dynamics(self, x, s, p):
            try:
                return x * float(self.mods.scale), {"v": s.v}
            except AttributeError:
                return x, {"v": s.v}

    for change in (lambda m: setattr(m, "scale", 3.0), lambda m: m.register_buffer("scale", torch.tensor(3.0))):
        neuron = Lacking(Gain(1.0))
        assert neuron(X).item() == 1.0
        change(neuron.mods)
        assert neuron(X).item() == 3.0


class Settings:
    """A plain object whose number is one of its class."""

    gain = 1.0


READS = {
    "None": (lambda self: 1.0 if LIMIT is None else LIMIT, lambda m: m.setitem(globals(), "LIMIT", 3.0)),
    "of a module": (lambda self: config.GAIN, lambda m: m.setattr(config, "GAIN", 3.0)),
    "of a module in a module": (
        lambda self: 1.0 if config.inner.LIMIT is None else config.inner.LIMIT,
        lambda m: m.setattr(config.inner, "LIMIT", 3.0),
    ),
    "of the class of an object": (lambda self: self.settings.gain, lambda m: m.setattr(Settings, "gain", 3.0)),
}


def _absent(self):
    try:
        return ABSENT  # a test sets it
    except NameError:
        return 1.0


READS["absent"] = (_absent, lambda m: m.setitem(globals(), "ABSENT", 3.0))


@pytest.mark.parametrize("what", READS)
def test_what_has_no_value_of_its_own(what, monkeypatch):
    """A global that is None or absent, an attribute of an imported module or of an object's class: a change is seen."""
    read, change = READS[what]

    class Reads(sc.Neuron):
        states = {"v": 0.0}

        def __init__(self):
            super().__init__()
            self.settings = Settings()

        def dynamics(self, x, s, p):
            return x * read(self), {"v": s.v}

    neuron = Reads()
    assert neuron(X).item() == 1.0
    change(monkeypatch)
    assert neuron(X).item() == 3.0
    monkeypatch.undo()
    assert neuron(X).item() == 1.0
