"""Generated cases: a configuration is text that reads back, a failing one is made simpler."""

from __future__ import annotations

import re

import pytest
import torch

import refusals
import spikecore as sc
from plain_loop import Plain
from spikecore.backend import Capabilities
from spikecore.testing import CASES, check_backend, installed


class TestText:
    """A configuration as text."""

    def test_what_is_printed_reads_back(self):
        """Calls that are in no release, and the simplest: the sentence of the case begins with its text."""
        every = "model=turn,reset=none,shape=3,learn=all,state=yes,given=output:0+final:a,draw=2"
        layer = "x=strided,g_final=strided,feedback=fused,weights=masked,autocast=yes"
        for text in (every, layer, "simplest"):
            (case,) = CASES.select(ids=[f"generated/{text}"])
            assert case.holds.startswith(f"{text}: ")

    def test_a_case_is_found_by_its_text(self):
        """In the suite, beside the cases of this release."""
        (case,) = CASES.select(ids=["generated/dtype=float16,shape=17x5"])
        assert (case.needs[0], case.tier) == ("float16", "generated")
        assert CASES.get("generated/dtype=float8") is None
        with pytest.raises(ValueError, match="dtype=float8 must be"):
            CASES.select(ids=["generated/dtype=float8"])


@pytest.mark.parametrize(
    ("wrong", "simplest"),
    [
        (lambda spec, x: spec.dtype == torch.float16, "dtype=float16"),
        (lambda spec, x: len(x) == 64, "shape=64x3x5"),
        (lambda spec, x: "full" in spec.params, "params=full"),
        (lambda spec, x: len(x) == 64 and "w" in spec.learn, "model=plif,shape=64x3x5,learn=all"),
    ],
    ids=["dtype", "steps", "parameters", "two factors"],
)
def test_a_failing_call_is_made_simpler(wrong, simplest):
    """Until it has what it takes, and nothing else but its neuron."""

    class Wrong(Plain):
        name = "wrong"

        def compile(self, program, spec):
            run = super().compile(program, spec)

            def shifted(inputs, *rest):
                outputs, final, trace = run(inputs, *rest)
                return (tuple(y + wrong(spec, inputs[0]) for y in outputs), final, trace)

            return shifted

    model = "plif" if "plif" in simplest else "lif"
    call = f"model={model},reset=soft,dtype=float16,shape=64x3x5,params=full,learn=all,state=yes,given=outputs,draw=3"
    with installed(Wrong):
        (result,) = check_backend("wrong", cases=[f"generated/{call}"])
    assert re.search("the simplest call that fails so: (.*)", result.message)[1] == simplest


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

    assert "reset" in Passing.configuration
    assert "reset" not in sc.GLIF.configuration


test_refused = refusals.table(__file__, globals())
