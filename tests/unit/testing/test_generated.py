"""Generated cases: a configuration is text that reads back, a failing one is made simpler, seeds draw others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

import spikecore as sc
from plain_loop import Plain
from spikecore.backend import Capabilities
from spikecore.cli import app
from spikecore.testing import CASES, check_backend, installed
from spikecore.testing._config import Config, simplest
from spikecore.testing._models import _at_defaults

GENERATED = [case.id for case in CASES.select(ids=["generated/*=*"])]


class TestText:
    """A configuration as text."""

    def test_what_is_printed_reads_back(self):
        """Every call of the release, and the simplest."""
        for text in (*[id.partition("/")[2] for id in GENERATED], "simplest"):
            assert str(Config.parse(text)) == text
        every = Config("turn", "none", learn=("*",), given=("output 0", "final a"), state=True, shape=(3,), draw=2)
        assert Config.parse(str(every)) == every
        layer = Config("lif", feedback="fused", weights="masked", autocast=True, lay=("x strided", "g final v ones"))
        assert Config.parse(str(layer)) == layer

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("dtype=float8", "dtype=float8 must be one of float16, "),
            ("steps=1", "'steps=1' of 'steps=1': a factor is one of model, reset"),
            ("shape=axb", "'shape=axb' of 'shape=axb': shape is written as '12x3x7' is"),
            ("state=maybe", "state is written as 'no' is"),
            ("model=alif,record=u", "record=u must be some of v, a, or all"),
        ],
    )
    def test_a_configuration_that_cannot_be_is_refused(self, text, message):
        """With the factor and what it may be."""
        with pytest.raises(ValueError, match=message):
            Config.parse(text)

    def test_a_case_is_found_by_its_text(self):
        """In the suite, beside the cases of this release."""
        (case,) = CASES.select(ids=["generated/dtype=float16,shape=17x5"])
        assert (case.needs[0], case.tier) == ("float16", "generated")
        assert CASES.get("generated/dtype=float8") is None
        with pytest.raises(ValueError, match="dtype=float8 must be"):
            CASES.select(ids=["generated/dtype=float8"])


class TestSeeds:
    """Another seed draws other calls."""

    def test_by_argument_or_by_the_environment(self, monkeypatch):
        """The same ones for the same seed; their ids are their texts."""
        ids = [case.id for case in CASES.select(["generated"], seed=7)]
        assert len(ids) == len(set(ids)) == len(GENERATED) + 2
        assert len(set(ids) & set(GENERATED)) < 5
        monkeypatch.setenv("SPIKECORE_SEED", "7")
        assert [case.id for case in CASES.select(["generated"])] == ids
        monkeypatch.delenv("SPIKECORE_SEED")
        assert CASES.select(["generated"])[0].id == GENERATED[0]

    def test_the_command_takes_a_seed(self, monkeypatch):
        """It lists the cases of that seed."""
        monkeypatch.setenv("SPIKECORE_SEED", "1")  # put back afterwards
        told = CliRunner().invoke(app, ["conformance", "torch", "--tier", "generated", "--seed", "7", "--list"])
        assert "generated/seed-7" in told.stdout
        assert GENERATED[0] not in told.stdout

    def test_what_another_seed_draws_passes(self):
        """On the reference, eight of them."""
        some = [case.id for case in CASES.select(["generated"], seed=3)][:8]
        assert {result.outcome for result in check_backend("torch", cases=some)} == {"passed"}


@pytest.mark.parametrize(
    "fault",
    [
        {"dtype": "float16"},
        {"shape": (64, 3, 5), "learn": ("*",)},
        {"x2": "strided", "model": "turn"},
        {"params": "full", "param_dtype": "bfloat16"},
        {"given": ("final a",)},
    ],
    ids=str,
)
def test_a_failing_configuration_is_made_simpler(fault):
    """Until it has what it takes, and nothing else."""
    config = Config(
        "turn", "none", dtype="float16", shape=(64, 3, 5), params="full", param_dtype="bfloat16", learn=("*",),
        state=True, record=("*",), wanted=("inputs", "states"), given=("final a",), x="strided", x2="strided", draw=3,
    )  # fmt: skip
    tried = []

    def fails(other):
        tried.append(other)
        return all(getattr(other, name) == value for name, value in fault.items())

    found = simplest(config, fails)
    assert replace(found, model="turn") == Config("turn", **{k: v for k, v in fault.items() if k != "model"})
    assert len(tried) < 100


def test_a_poor_backend_is_asked_for_what_it_declares():
    """Programs are drawn of that: one input, one output, no learnt parameters."""

    class Poor(Plain):
        name = "poor"
        capabilities = Capabilities(float32=True, gradients=True)

    with installed(Poor):
        (result,) = check_backend("poor", cases=["generated/programs"])
    assert result.outcome == "passed", result.message


def test_a_neuron_that_passes_its_options_on_has_the_resets_of_its_base():
    """They are in its configuration, and in no signature of its own."""

    class Passing(sc.LIF):
        def __init__(self, **options):
            super().__init__(**options)

    assert _at_defaults("LIF", Passing).resets == ("hard", "soft", "none")
    assert _at_defaults("GLIF", sc.GLIF).resets == ("none",)
