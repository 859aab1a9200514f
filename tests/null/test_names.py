"""Names in kernels and in print: no identifier of a user meets one of a text, whatever either is called."""

from __future__ import annotations

import pytest

from spikecore.core.neuron import Neuron
from spikecore.lang.render import Printer, ascii_name
from spikecore.testing.naming import namings, same_but_for_names

# -- print(program)


@pytest.mark.parametrize("name", ["exp", "select", "spike", "clamp", "inf", "t1", "u", "rest", "step", "next", "out"])
def test_print_tells_a_value_from_a_function(name: str) -> None:
    """A printed program calls no value like a function beside it, and no two values alike."""

    def equations(neuron: Neuron) -> str:
        first, *lines = [line for line in str(neuron.program).splitlines() if not line.startswith("  grad")]
        return "\n".join([first.partition("(")[2], *(line[8:] for line in lines)])

    for naming in namings([name, "t2", "h", "w", "select_"], 5):
        same_but_for_names(naming, equations)


# -- names of any shape


@pytest.mark.parametrize(
    ("name", "expected"),
    [("h", "h"), ("ﬁ", "fi"), ("τ", "u3c4"), ("my neuron", "my_neuron"), ("1st", "u1st"), ("", "u"), ("ª", "a")],
)
def test_names_are_written_with_letters_that_every_target_has(name: str, expected: str) -> None:
    """In the form in which Python reads them."""
    assert ascii_name(name) == expected


@pytest.mark.parametrize(("name", "expected"), [("_2x", "u2x"), ("__", "u"), ("$²x", "u2x"), ("NULL", "NULL_")])
def test_names_in_c_begin_with_a_letter(name: str, expected: str) -> None:
    """Underscores in front, which the compiler keeps for itself, go; a digit behind them does not begin the name."""
    printer = Printer()
    assert printer.legal(printer.spelled(name)) == expected


# -- symbols
