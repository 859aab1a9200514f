"""The printed kernels: what people read."""

from __future__ import annotations

import gc
import linecache
import re
from pathlib import Path
from typing import Any, Dict, Optional

import pytest
import torch

import refusals
import spikecore as sc
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import ForwardPlan
from spikecore.lang import Node, Program
from spikecore.lang.node import const
from spikecore.testing import installed
from spikecore.testing.custom import Gated
from spikecore_triton import compiler
from spikecore_triton.backend import TritonBackend
from spikecore_triton.printer import TritonPrinter
from spikecore_triton.source import print_kernel
from spikecore_triton.writer import Source

BACKEND = TritonBackend()


def source(
    neuron: sc.Neuron, dtype: torch.dtype = torch.float32, steps: Optional[int] = 4, **kinds: str
) -> Dict[str, str]:
    """The text of both kernels; parameters are numbers unless a kind is given, and learnt if they are tensors."""
    program = neuron.program
    spec = Spec(dtype, steps, tuple(kinds.get(p, "number") for p in program.params), tuple(kinds), final=False)
    return BACKEND.source(program, spec)


def test_inputs_that_broadcast_are_read_where_they_lie(device: str) -> None:
    """A number of a period, or one for all; no copy has a number for each neuron."""
    read = []

    class Reading(TritonBackend):
        name = "reading"

        def forward(self, plan: ForwardPlan) -> Any:
            read.append(self.text(plan))
            return super().forward(plan)

    with installed(Reading, devices=(device,)):
        gated = Gated(backend="reading").to(device)
        for shape in ((3, 1, 5), (3,)):
            gated(torch.rand(3, 2, 5, device=device), torch.rand(shape, device=device))
    period, step = read
    assert "gates + in_period" in period
    assert "gates + 0 * at" in step


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_lif_reads_as_a_person_would_write_it(direction: str) -> None:
    """The kernels of LIF over four steps, to the letter."""
    expected = Path(__file__).with_name(f"lif_{direction}.txt").read_text(encoding="utf-8")
    assert source(sc.LIF())[direction] == expected


def test_two_modules_of_one_text() -> None:
    """Each has lines of its own, which Triton reads: those of one stay when the other is gone."""
    text = ["def kernel():\n", "    return 1\n"]
    first, second = (compiler.module_of(Source("kernel", "".join(text), (), 1)) for _ in range(2))
    del first
    gc.collect()
    assert linecache.getlines(str(second.__file__)) == text


def test_a_linear_neuron_recomputes_nothing() -> None:
    """Where the adjoint needs no state, the backward kernel neither reads inputs nor recomputes or reads states."""
    for steps in (4, None):
        text = source(sc.LI(), steps=steps)["backward"]
        assert not re.search(r"\bxs\b|checkpoints|following", text)


def test_numbers_are_of_the_type_of_arithmetic() -> None:
    """A number beside a value is plain; one that meets only numbers, or is subnormal, says that it is float32."""
    printer, x = TritonPrinter(), Node("input", (), "x")
    assert printer.read(Node("mul", (const(0.1), x))) == "0.1 * x"
    assert printer.read(Node("add", (x, Node("mul", (const(0.1), const(3.0)))))) == "x + float32(0.1) * 3.0"
    assert printer.read(Node("minimum", (x, const(1e-40)))) == "lesser(x, float32(1e-40))"
    assert printer.read(Node("add", (x, const(1e300)))) == 'x + float("inf")'
    assert printer.typed(Node("detach", (const(0.5),)), {}) == "float32(0.5)"


test_refused = refusals.table(__file__, globals(), Unsupported, ForwardPlan, Program, print_kernel)
