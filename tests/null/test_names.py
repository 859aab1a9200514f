"""Names in kernels and in print: no identifier of a user meets one of a text, whatever either is called."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch

import spikecore as sc
from spikecore.lang.render import Symbols, ascii_name
from spikecore.neuron import Neuron
from spikecore.testing.naming import identifiers, namings, plans, same_but_for_names
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form


def kernel(direction: int, steps: Any, dtype: torch.dtype = torch.float32) -> Callable[[Neuron], str]:
    """What prints one of the two kernels of a neuron."""
    return lambda neuron: print_kernel(plans(neuron, steps, dtype)[direction], Form(2)).text


# -- print(program)


@pytest.mark.parametrize("name", ["exp", "select", "spike", "clamp", "inf", "t1", "u", "rest", "step", "next", "out"])
def test_print_tells_a_value_from_a_function(name: str) -> None:
    """What a program prints calls no value like a function beside it, and no two values alike."""

    def equations(neuron: Neuron) -> str:
        first, *lines = [line for line in str(neuron.program).splitlines() if not line.startswith("  grad")]
        return "\n".join([first.partition("(")[2], *(line[8:] for line in lines)])

    for naming in namings([name, "t2", "h", "w", "select_"], 5):
        same_but_for_names(naming, equations)


# -- names of any shape


@pytest.mark.parametrize("owner", ["two words", "a\nb", 'x"""y', "back\\", "1st", "", "größe", "j", "step", "*/"])
def test_classes_made_with_type_may_be_called_anything(owner: str) -> None:
    """A kernel is named with what letters there are, and no comment or text ends early."""
    made = type(owner, (sc.LIF,), {})()
    assert len(str(made.program).splitlines()) == len(str(sc.LIF().program).splitlines())
    for direction in (0, 1):
        text, usual = (kernel(direction, 3)(neuron) for neuron in (made, sc.LIF()))
        assert len(identifiers(text)) == len(identifiers(usual))
        assert not [line for line in text.splitlines() if line.startswith("//") and line.endswith("\\")]


class Talking(sc.Surrogate):
    """A surrogate whose repr has what a comment cannot hold."""

    def __repr__(self) -> str:
        return 'nul\0 line\nreturn\r\x0b\x85\u2028 """ quote \ud800 \\'

    def derivative(self, u: Any) -> Any:
        return 1.0 / (1.0 + u * u)


def test_a_surrogate_may_say_anything() -> None:
    """Its repr stands in one line of a comment, in print and in kernels."""
    neuron = sc.LIF(surrogate=Talking())
    lines = str(neuron.program).split("\n")
    assert lines[-1].endswith(r'# nul\x00 line\nreturn\r\x0b\x85\u2028 """ quote \ud800 \.')
    assert len(lines) == len(str(sc.LIF(surrogate=sc.surrogate.StraightThrough()).program).split("\n"))
    for text in sc.kernel_source(neuron).values():
        assert text.encode().isascii()
        assert len(text.splitlines()) == text.count("\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("h", "h"), ("ﬁ", "fi"), ("τ", "u3c4"), ("my neuron", "my_neuron"), ("1st", "u1st"), ("", "u"), ("ª", "a")],
)
def test_names_are_written_with_letters_that_every_target_has(name: str, expected: str) -> None:
    """In the form in which Python reads them."""
    assert ascii_name(name) == expected


# -- symbols


def chosen(symbols: Symbols, text: str, *reserved: str) -> str:
    """A text with names."""
    return symbols.named([text], ascii_name, str, reserved, "//")(text)


def test_symbols_give_way_to_what_the_text_has() -> None:
    """To its identifiers, to words of the target, and to symbols made before; not to comments and attributes."""
    symbols = Symbols()
    j, again, word, free = (symbols.new(name) for name in ("j", "j", "goto", "x"))
    text = f"for (int j; {j} {again} {word} {free}) a.x; // {'x'}"
    assert chosen(symbols, text, "goto") == "for (int j; j_ j__ goto_ x) a.x; // x"


def test_a_name_put_together_in_the_text_is_refused() -> None:
    """Nobody would look at whether it is free."""
    symbols = Symbols()
    with pytest.raises(ValueError, match="a symbol is part of a longer name"):
        chosen(symbols, f"{symbols.new('x')}_step")
