"""The text of a neuron's kernels: from the library and from the shell, without GPU, CuPy or a compiler."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import List

import pytest
import torch
from click.testing import CliRunner

import refusals
import spikecore as sc
from spikecore import cli
from spikecore.neurons import MODELS as NEURONS
from spikecore.surrogate import SURROGATES
from spikecore.testing import installed
from spikecore_cupy import CAPABILITIES
from spikecore_cupy.backend import CupyBackend


def shown(*arguments: str) -> str:
    """The output of the command, which must succeed."""
    result = CliRunner().invoke(cli.app, ["kernel", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """The error of the command, which must refuse."""
    result = CliRunner().invoke(cli.app, ["kernel", *arguments])
    assert result.exit_code == 2
    return result.output


# -- from the library


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_both_kernels_are_there(dtype: str) -> None:
    """Forward and backward, each named after the neuron, in the dtype that was asked for."""
    texts = sc.inspect.kernel_source(sc.LIF(), dtype=getattr(torch, dtype))
    assert list(texts) == ["forward", "backward"]
    for direction, text in texts.items():
        assert f"__global__ void __launch_bounds__(128) lif_{direction}(" in text
        assert text.startswith(f"// LIF, {direction}: {dtype} in memory")


def test_what_a_backend_lacks_is_refused() -> None:
    """Text is shown only of what the backend would run."""

    class Poor(CupyBackend):
        name = "poor"
        capabilities = replace(CAPABILITIES, float64=False, channel_parameters=False)

    with installed(Poor, devices=("cpu",)):
        assert sc.inspect.kernel_source(sc.LIF(), "poor") == sc.inspect.kernel_source(sc.LIF(), "cupy")
        message = r"backend 'poor' \(from kernel_source\(\)\) does not support float64, channel_parameters"
        with pytest.raises(sc.backend.Unsupported, match=message):
            sc.inspect.kernel_source(sc.LIF(torch.ones(3)), "poor", torch.float64)


# -- from the shell


def test_piped_it_is_the_text_alone() -> None:
    """The output is the library's text, and nothing else; ``--direction`` takes one of the two."""
    texts = sc.inspect.kernel_source(sc.LIF(surrogate=sc.surrogate.ATan(), learn=("tau",)), "cupy", torch.bfloat16)
    command = ("LIF", "--surrogate", "ATan", "--dtype", "bfloat16", "--learn", "tau")
    assert shown(*command) == f"{texts['forward']}\n{texts['backward']}"
    for direction, text in texts.items():
        assert shown(*command, "--direction", direction) == text


def test_every_neuron_and_surrogate_may_be_asked_for() -> None:
    """By name, without further arguments: what a neuron requires has a value. Options change what they say."""
    assert {"LIF", "Leaky", "Izhikevich", "LI"} < set(NEURONS) <= set(sc.__all__)
    assert {"ATan", "StraightThrough"} < set(SURROGATES)
    for neuron in NEURONS:
        assert f"{neuron.lower()}_backward(" in shown(neuron, "--direction", "backward")
    for surrogate in SURROGATES:
        # of two surrogates with one equation, such as Super and FastSigmoid, the text has the name of either
        names = [kind.__name__ for kind in getattr(sc.surrogate, surrogate).__mro__[:2]]
        text = shown("IF", "--surrogate", surrogate, "--direction", "backward")
        assert any(f"# {name}(" in text for name in names)
    soft = sc.LIF(reset="soft", decay_input=False)
    command = ("LIF", "--reset", "soft", "--set", "decay_input=false", "--set", "tau=3", "--steps", "20")
    assert shown(*command) == "\n".join(sc.inspect.kernel_source(soft, steps=20).values())


OWN = """
import spikecore as sc
import refusals


class Own(sc.Neuron):
    states = {"v": 0.0}
    params = {"gain": 2.0}

    def dynamics(self, x, s, p):
        charged = s.v + p.gain * x
        return self.spike(charged - 1.0), {"v": charged}


made = Own(gain=3.0)
WORD = "a word"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a user's neuron, in the folder where the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_neuron_to_show.py").write_text(OWN, encoding="utf-8")
    return "own_neuron_to_show"


def test_a_neuron_of_a_file_or_a_module(own: str) -> None:
    """A class, which takes the options, and an object, which is as it was made."""
    text = shown(f"{own}.py:Own", "--learn", "gain", "--surrogate", "Sigmoid")
    assert "# Sigmoid(" in text
    assert "own_forward(" in text
    assert "grad_gain" in text
    assert shown(f"{own}:made") == shown(f"{own}:Own", "--set", "gain=3")
    assert "made is a neuron already; name its class for --set" in refused(f"{own}:made", "--learn", "gain")
    assert f"{own} has no 'Other'" in refused(f"{own}:Other")
    assert "there is no file none.py" in refused("none.py:Own")
    assert "'none.py' must be MODULE:NAME or path/to/file.py:NAME" in refused("none.py")
    assert "must be a spikecore neuron" in refused(f"{own}:WORD")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Lif"], "no neuron is called 'Lif'; did you mean 'LIF'? Known: ALIF, "),
        (["LIF", "--surrogate", "atam"], "no surrogate is called 'atam'; did you mean 'ATan'? Known: ATan, "),
        (["LIF", "--backend", "torch"], "backend 'torch' (from kernel_source()) has no kernels to show"),
        (["LIF", "--backend", "cupi"], "did you mean 'cupy'?"),
        (["LIF", "--reset", "sotf"], "reset='sotf' must be one of 'hard', 'soft', 'none'"),
        (["LIF", "--learn", "tua"], "learn names 'tua', which is no parameter; parameters: tau"),
        (["LIF", "--set", "tua=3"], "LIF has no parameter 'tua'; did you mean 'tau'?"),
        (["LIF", "--set", "tau=-3"], "tau=-3.0 must be at least 1"),
        (["LIF", "--set", "tau=x"], "--set 'tau=x' must be NAME=VALUE with a number, true or false"),
    ],
)
def test_wrong_words_are_answered(arguments: List[str], words: str) -> None:
    """An error says what was asked, and the nearest that there is."""
    assert words in refused(*arguments)


test_refused = refusals.table(__file__, globals())
