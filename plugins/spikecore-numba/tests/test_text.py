"""The printed kernels: what people read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict

import pytest
import torch

import refusals
import spikecore as sc
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import ForwardPlan
from spikecore.lang import Node, Program
from spikecore_numba.backend import NumbaBackend
from spikecore_numba.source import print_kernel

BACKEND = NumbaBackend()


def source(neuron: sc.Neuron, dtype: torch.dtype = torch.float32, **kinds: str) -> Dict[str, str]:
    """The text of both kernels; parameters are numbers unless a kind is given, and learnt if they are tensors."""
    program = neuron.program
    spec = Spec(dtype, None, tuple(kinds.get(p, "number") for p in program.params), tuple(kinds), final=False)
    return BACKEND.source(program, spec)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_lif_reads_as_a_person_would_write_it(direction: str) -> None:
    """The kernels of LIF, to the letter."""
    expected = Path(__file__).with_name(f"lif_{direction}.txt").read_text(encoding="utf-8")
    assert source(sc.LIF())[direction] == expected


def test_a_linear_neuron_recomputes_nothing() -> None:
    """Where the adjoint needs no state, the backward kernel neither reads inputs nor keeps a history."""
    text = source(sc.LI())["backward"]
    assert not re.search(r"\bxs\b|history|spike\(", text.partition("def ")[2])


test_refused = refusals.table(__file__, globals(), Unsupported, ForwardPlan, Node, Program, print_kernel)
