"""Names in kernels of dialects of C: no identifier of a user meets one of a text, whatever either is called."""

from __future__ import annotations

from typing import Callable

import pytest
import torch

from kernel_names import frame, plans, same_but_for_names
from spikecore.core.neuron import Neuron
from spikecore.kernels.c_writer import printed
from spikecore.lang.dialects import C11, METAL, OPENCL, WORDS, Dialect
from spikecore.testing.naming import namings, usable


def kernel(dialect: Dialect, direction: int) -> Callable[[Neuron], str]:
    """The printer of one of the two kernels of a neuron, with 16 bits in memory where the dialect has them. What is
    before it are functions, whose arguments are named apart.
    """
    dtype = torch.bfloat16 if dialect.stored else torch.float32
    head = f"\n{dialect.kernel} "
    return lambda neuron: printed(dialect, plans(neuron, None, dtype)[direction]).text.rpartition(head)[2]


@pytest.mark.parametrize("dialect", [C11, OPENCL, METAL], ids=["C11", "OpenCL", "Metal"])
@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
def test_names_of_a_kernel_are_never_those_of_a_user(dialect: Dialect, direction: int) -> None:
    """Each identifier of a kernel, and the words of every dialect, in each role; no word of this dialect is a name."""
    others = frame(kernel(dialect, 0), kernel(dialect, 1))
    for naming in namings(usable([*others, *WORDS]), 150):
        found = same_but_for_names(naming, kernel(dialect, direction))
        assert not dialect.words & {new for old, new in found.items() if "harmless" in old.lower()}
