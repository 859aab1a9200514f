"""Texts of ``help`` and ``?`` for a neuron."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

from torch import nn

import spikecore as sc

#: The arguments of every neuron.
SHARED = inspect.signature(sc.Neuron).parameters.keys()


class Plain(sc.Neuron):
    """Sum of its inputs.

    surrogate: of nothing, since it has no spike.
    """

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return s.v + x, {"v": s.v + x}


class Slow(sc.LIF):
    """A slow one."""

    params = {**sc.LIF.params, "tau": 20.0}


class Untold(sc.LIF):
    params = {**sc.LIF.params, "tau": 20.0}


def lines(kind: type) -> Any:
    """The lines of a docstring that describe an argument, by its name."""
    return {line.partition(":")[0]: line for line in (kind.__doc__ or "").splitlines()}


def test_a_class_of_a_user_explains_every_argument() -> None:
    """Its own words come first; what it leaves out is explained as its bases do, once."""
    told, of_all, of_lif = lines(Plain), lines(sc.LIF), lines(Slow)
    assert told.keys() >= SHARED
    assert told["surrogate"] == "surrogate: of nothing, since it has no spike."
    assert [told[name] for name in SHARED - {"surrogate"}] == [of_all[name] for name in SHARED - {"surrogate"}]
    assert (Slow.__doc__ or "").startswith("A slow one.\n\ntau: time constant")
    assert all(of_lif[name] == of_all[name] for name in inspect.signature(sc.LIF).parameters)
    assert (Slow.__doc__ or "").count("channel_dim:") == 1
    assert Untold.__doc__ == sc.LIF.__doc__


def test_completion_shows_what_a_user_writes() -> None:
    """``lif.<TAB>`` has settings and parameters, what a class declares and calls, and no inner names."""
    shown = {name for name in dir(sc.LIF()) if name[0] != "_"} - {*dir(nn.Module())}
    declared = "states params sizes bounds positive inputs drawn reset_states".split()
    called = "run spike retrace dynamics charge after_spike state program bound".split()
    assert shown == {*inspect.signature(sc.LIF).parameters, *declared, *called}


def test_help_begins_with_the_arguments() -> None:
    """They stand before the methods, and the constructor does not speak of torch's modules."""
    told = subprocess.run(
        [sys.executable, "-c", "import pydoc, spikecore as sc; print(pydoc.plain(pydoc.render_doc(sc.LIF)))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    arguments = told.partition("Method resolution order")[0]
    assert all(f" {name}: " in arguments for name in inspect.signature(sc.LIF).parameters)
    assert [inspect.getdoc(kind.__init__) for kind in (sc.LIF, sc.Delay, sc.Recurrent, Slow)] == [
        "Arguments are those in the docstring of the class."
    ] * 4


def test_without_docstrings_nothing_is_explained() -> None:
    """``python -OO`` removes them."""
    code = "import spikecore as sc; K = type('K', (sc.LIF,), {}); print(sc.LIF.__doc__, K.__doc__, K())"
    told = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.startswith("None None K(tau=2")
