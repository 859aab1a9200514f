"""Names in kernels and in print: no identifier of a user meets one of a text, whatever either is called."""

from __future__ import annotations

import re
from typing import Any, Callable

import pytest
import torch

import spikecore as sc
from spikecore.lang.render import C_WORDS, LONGEST, Symbols, ascii_name, on_one_line
from spikecore.neuron import Neuron
from spikecore.testing.naming import Naming, frame, identifiers, namings, plans, same_but_for_names, usable
from spikecore_cupy.device import headers
from spikecore_cupy.feedback import HEADER
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form

#: What kernels name beside users' values.
GENERATED = [f"{letter}{k}" for letter in "tk" for k in range(6)] + (
    "x_step xs xs_step v_next v_start v_end v_trace v_saved grad_x grad_v grad_xs grad_outs grad_out0 grad_v_t "
    "grad_v_ts new_v "
    "kept kept_h kept_kept out outs out0 out1 out_j grad_x_j x_j tau_inner tau_channels taus grad_tau v_before"
).split()
STEPS = [3, None]


def kernel(direction: int, steps: Any, dtype: torch.dtype = torch.float32) -> Callable[[Neuron], str]:
    """What prints one of the two kernels of a neuron."""
    return lambda neuron: print_kernel(plans(neuron, steps, dtype)[direction], Form(2)).text


#: Every identifier of kernels that is nobody's name.
FRAME = frame(
    *(
        kernel(direction, steps, dtype)
        for steps in STEPS
        for direction in (0, 1)
        for dtype in (torch.float32, torch.float16)
    )
)


def test_the_frame_has_the_names_that_were_missed() -> None:
    """Kernels count neurons with j, which no list of theirs had."""
    assert {"i", "j", "k", "t", "T", "V", "chunks", "whole", "begin"} <= {*FRAME}


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("steps", STEPS)
def test_names_of_a_kernel_are_never_those_of_a_user(direction: int, steps: Any) -> None:
    """Each identifier of a kernel as parameter, state, input, local variable and field of a surrogate gives the text of
    harmless names, with others in their place.
    """
    for naming in namings(usable([*FRAME, *GENERATED]), 24):
        same_but_for_names(naming, kernel(direction, steps))


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
def test_names_of_the_header_are_never_those_of_a_user(direction: int) -> None:
    """Nor those of what kernels include, words of C++, macros, and functions of C."""
    files = headers(f'#include "{HEADER}"').values()
    words = "NULL M_PI M_PIf HUGE_VAL EOF INFINITY NAN errno stdin linux unix j0 y1 gamma signal main printf".split()
    for naming in namings(usable([*identifiers("".join(files)), *C_WORDS, *words]), 60):
        same_but_for_names(naming, kernel(direction, None))


def test_the_guard_sees_a_name_that_meets_one_of_a_kernel() -> None:
    """Two names that become one, and a word that changes, are found."""

    def careless(neuron: Neuron) -> str:
        return f"for j in range({neuron.program.params[0]}): pass"

    with pytest.raises(AssertionError, match="two names became one"):
        same_but_for_names(Naming(param=("j",)), careless)


def test_names_with_the_shape_of_macros_are_changed() -> None:
    """What begins with an underscore or with capitals may be a macro of some compiler, so no value is called so."""
    naming = Naming(local=("_h", "__CUDA_ARCH__", "a__b"), param=("NULL", "M_PI", "M_PIf", "errno"))
    for direction in (0, 1):
        found = same_but_for_names(naming, kernel(direction, 3))
        names = {new for old, new in found.items() if "harmless" in old}
        assert {"NULL_", "M_PI_", "M_PIf_", "errno_"} <= names
        assert not [name for name in names if re.search(r"^_|__|^[A-Z0-9_]+[A-Z0-9]$", name)]


# -- print(program)


@pytest.mark.parametrize("name", ["exp", "select", "spike", "clamp", "inf", "t1", "u", "rest", "step", "next", "out"])
def test_print_tells_a_value_from_a_function(name: str) -> None:
    """What a program prints calls no value like a function beside it, and no two values alike."""

    def equations(neuron: Neuron) -> str:
        first, *lines = [line for line in str(neuron.program).splitlines() if not line.startswith("  grad")]
        return "\n".join([first.partition("(")[2], *(line[8:] for line in lines)])

    for naming in namings([name, "t2", "h", "w", "select_"], 5):
        same_but_for_names(naming, equations)


def test_lines_of_print_keep_letters_that_kernels_have_not() -> None:
    """People read what they wrote; a kernel has ASCII."""
    naming = Naming(state=("größe",), param=("τ",))
    neuron = naming.neuron()()
    assert {"τ", "größe"} <= {*identifiers(str(neuron.program))}
    text = kernel(1, 3)(neuron)
    assert all(word.isascii() for word in identifiers(text))
    assert {"u3c4", "gruf6udfe"} <= {*identifiers(text)}


# -- names of any shape


def test_long_names_are_cut_and_told_apart() -> None:
    """Of 500 letters a kernel shows a few, and two that differ in the last one are two."""
    long = "n" * 500
    naming = Naming((f"{long}a", f"{long}b"), (f"{long}c", f"{long}d"), (f"{long}e",), (f"{long}f",), (), f"N{long}")
    for direction in (0, 1):
        for steps in STEPS:
            found = same_but_for_names(naming, kernel(direction, steps))
            assert max(map(len, found.values())) < LONGEST + 30


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


def test_what_cannot_be_printed_is_escaped() -> None:
    """A line stays one line."""
    assert on_one_line("a\nb\0c\u2028") == r"a\nb\x00c\u2028"
    assert on_one_line("a\\") == "a\\."


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


def test_a_symbol_may_begin_with_another_ones_name() -> None:
    """What belongs to a value is called after what that is called in the end."""
    symbols = Symbols()
    x = symbols.new("x")
    text = f"x = {symbols.new(f'{x}s')} + {symbols.new('unused')[:0]}{x}"
    assert chosen(symbols, text) == "x = x_s + x_"


def test_a_name_put_together_in_the_text_is_refused() -> None:
    """Nobody would look at whether it is free."""
    symbols = Symbols()
    with pytest.raises(ValueError, match="a symbol is part of a longer name"):
        chosen(symbols, f"{symbols.new('x')}_step")


def test_keys_have_one_symbol() -> None:
    """Asked for again, it is the same; a name that is a symbol is used as it is."""
    symbols = Symbols()
    x = symbols.of("key", "x")
    assert symbols.of("key", "y") == x
    assert symbols.of("other", x) == x
    assert symbols.new("x") != x
