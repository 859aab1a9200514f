"""What the writers of kernels share: arguments, where a launch finds them, names, lines, and unknown operations."""

from __future__ import annotations

from typing import Tuple

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import BackwardBuffers, BackwardPlan, ForwardBuffers, ForwardPlan
from spikecore.kernels.writing import (
    BACKWARD_GROUPS,
    FILLED,
    FORWARD_GROUPS,
    STORED,
    Argument,
    ArgumentTable,
    KernelPrinter,
    KernelWriter,
    Places,
    commented,
    filled,
    indented,
    input_leaf,
    named,
)
from spikecore.lang import Node, Program
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form


def plans(*kinds: str) -> Tuple[ForwardPlan, BackwardPlan]:
    """The plans of LIF at rest with parameters of these kinds, the others numbers."""
    program = sc.LIF().program
    padded = (*kinds, *["number"] * (len(program.params) - len(kinds)))
    spec = Spec(torch.float32, 4, padded, (), final=False)
    return ForwardPlan(program, spec), BackwardPlan(program, spec, False, (True,), (), False, (True,), False, ())


def test_groups_are_those_of_the_buffers_that_a_launch_gets() -> None:
    """A group's place in a launch is its field's, and what is stored or filled is one of them."""
    assert ForwardBuffers._fields == FORWARD_GROUPS
    assert (*BackwardBuffers._fields, "grad_params") == BACKWARD_GROUPS
    assert {*STORED, *FILLED} <= {*FORWARD_GROUPS, *BACKWARD_GROUPS}


def test_an_argument_is_made_once_and_gives_way_to_the_words_of_the_text() -> None:
    """The same place has the same name; another place that wants the name gets another; a size keeps its own."""
    printer = KernelPrinter()
    table = ArgumentTable(printer)
    size = table.name("neurons", "neurons")
    first = table.name("xs", "pointer", "inputs", 0)
    assert table.name("other", "pointer", "inputs", 0) == first
    second = table.name("xs", "pointer", "inputs", 1)
    stride = table.name("neurons", "stride", "inputs", 0)
    assert size == "neurons"
    write = printer.named([size, first, second, stride])
    arguments = named(table.ordered(("stride", "neurons", "pointer")), write)
    assert [(a.name, a.kind) for a in arguments] == [
        ("neurons_", "stride"),
        ("neurons", "neurons"),
        ("xs", "pointer"),
        ("xs_", "pointer"),
    ]


def test_a_launch_finds_tensors_by_group_and_number_and_channels_by_parameter() -> None:
    """Pairs of (group in the launch's order, number of the group)."""
    arguments = [
        Argument("a_channels", "channels", "params", 1),
        Argument("a_inner", "inner", "params", 1),
        Argument("xs", "pointer", "inputs", 0),
        Argument("as", "pointer", "params", 1),
    ]
    places = Places(arguments, FORWARD_GROUPS)
    assert places.of("pointer") == [(0, 0), (FORWARD_GROUPS.index("params"), 1)]
    assert places.of("stride") == []
    assert places.channels() == [(1, 0), (1, 1)]


def test_a_writer_names_what_backward_keeps_and_what_it_does_not_read() -> None:
    """A kept state has the name of its value before the step; an input is read again, so it is not kept."""
    _, backward = plans()
    writer = KernelWriter(backward, "backward", KernelPrinter(), backward.roots)
    program = backward.program
    value = Node("add", (program.leaves[0], program.leaves[1]))
    kept = writer.kept_values([program.leaves[1], input_leaf("x"), value, Node("detach", (value,))])
    write = writer.printer.named([writer.name, *kept.values()])
    assert [write(name) for name in kept.values()] == ["v_before", "kept", "kept_"]
    assert writer.title() == "LIF, backward: float32 in memory, float32 arithmetic."


def test_the_arguments_of_a_channel_parameter_lie_together() -> None:
    """Its tensor; the neurons between neighbouring channels and the number of channels, which are those of all."""
    forward, _ = plans("channel")
    writer = KernelWriter(forward, "forward", KernelPrinter(), forward.roots)
    (leaf,) = writer.params_of("channel")
    texts = writer.channel(leaf)
    write = writer.printer.named(texts)
    name = forward.program.params[0]
    assert [write(text) for text in texts] == [f"{name}s", "channel_inner", "channel_count"]


def test_lines() -> None:
    """Words are not broken, spaces within them neither; comments have no space at their end."""
    long = "n" * 50
    assert filled([f"int {long},", f"float {long}"], 60) == [f"    int {long},", f"    float {long}"]
    assert indented(["a", "b"]) == ["    a", "    b"]
    assert commented("a\n\nb", "//") == ["// a", "//", "// b"]


def test_an_operation_without_a_text_is_refused_by_name_in_a_kernel() -> None:
    """A language with one more operation: the kernel of a program that uses it is Unsupported, not a KeyError."""
    novel = Node("novel", (input_leaf("x"),))
    program = Program("Novel", inputs=("x",), states=(), outputs=[novel], next=[], initial=[])
    spec = Spec(torch.float32, 4, ())
    with pytest.raises(Unsupported, match="CudaPrinter has no text for the operation 'novel'"):
        print_kernel(ForwardPlan(program, spec), Form(1))
