"""Names in kernels: no identifier of a user meets one of a text, whatever either is called."""

from __future__ import annotations

import builtins
import keyword
from typing import Any, Callable

import pytest

from kernel_names import frame, plans, same_but_for_names
from spikecore.core.neuron import Neuron
from spikecore.lang.dialects import WORDS
from spikecore.testing.naming import namings, usable
from spikecore_numba.source import print_kernel

STEPS = [3, None]
#: Names that kernels give beside users' values, that were missed once, and that the target has.
OTHERS = [
    *(f"t{k}" for k in range(8)),
    *"k k_ x_step xs xs_step v_next v_start v_end grad_x grad_v grad_xs grad_outs out outs taus tau_inner".split(),
    *keyword.kwlist,
    *getattr(keyword, "softkwlist", ()),
    *dir(builtins),
    *WORDS,
    *"math np numba float32 float64 expf sign signf scratch int32 uint32 types prange njit jit literally".split(),
]


def kernel(direction: int, steps: Any) -> Callable[[Neuron], str]:
    """The printer of one of the two kernels of a neuron."""
    return lambda neuron: print_kernel(plans(neuron, steps)[direction]).text


#: Every identifier of the kernels that is nobody's name.
FRAME = frame(*(kernel(direction, steps) for direction in (0, 1) for steps in STEPS))


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("steps", STEPS)
def test_names_of_a_kernel_are_never_those_of_a_user(direction: int, steps: Any) -> None:
    """Each identifier of a kernel, and words of the target, as parameter, state, input, local variable and field of a
    surrogate give the text of harmless names, with others in their place; and it is Python.
    """
    for naming in namings(usable([*FRAME, *OTHERS]), 150):
        same_but_for_names(naming, kernel(direction, steps))
        compile(kernel(direction, steps)(naming.neuron()(surrogate=naming.surrogate())), "kernel", "exec")
