"""Names in kernels: no identifier of a user meets one of a text, whatever either is called."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from typing import Any, Callable

import pytest
import triton.language
from triton.runtime.jit import JITFunction, create_function_from_signature

from kernel_names import frame, plans, same_but_for_names
from spikecore.core.neuron import Neuron
from spikecore.lang.dialects import WORDS
from spikecore.testing.naming import namings, usable
from spikecore_triton.compiler import options
from spikecore_triton.printer import LAUNCH
from spikecore_triton.source import print_kernel

STEPS = [3, None]
#: Names that kernels give beside users' values, that were missed once, and that the target has.
OTHERS = [
    *(f"t{k}" for k in range(8)),
    *"k k_ x_step xs xs_step v_next v_start v_end grad_x grad_v grad_xs grad_outs out outs taus tau_inner".split(),
    *keyword.kwlist,
    *getattr(keyword, "softkwlist", ()),
    *dir(builtins),
    *WORDS,
    *dir(triton.language),
]


def kernel(direction: int, steps: Any) -> Callable[[Neuron], str]:
    """The printer of one of the two kernels of a neuron."""
    return lambda neuron: print_kernel(plans(neuron, steps)[direction], 3 if steps is None else 0).text


#: Every identifier of the kernels that is nobody's name.
FRAME = frame(*(kernel(direction, steps) for direction in (0, 1) for steps in STEPS))


@pytest.mark.parametrize(("direction", "steps"), [(0, 3), (1, None)], ids=["forward", "backward"])
def test_names_of_a_kernel_are_never_those_of_a_user(direction: int, steps: Any) -> None:
    """Each identifier of a kernel, and words of the target, as parameter, state, input, local variable and field of a
    surrogate give the text of harmless names, with others in their place; and it is Python.
    """
    for naming in namings(usable([*FRAME, *OTHERS]), 150):
        same_but_for_names(naming, kernel(direction, steps))
        compile(kernel(direction, steps)(naming.neuron()(surrogate=naming.surrogate())), "kernel", "exec")


def test_names_of_a_launch_are_reserved() -> None:
    """Those that Triton's own function of a launch has, and the options that a launch gives by name."""
    made = inspect.getsource(create_function_from_signature).partition('func_body = f"""')[2].partition('"""')[0]
    its = {"dynamic_func", "params", "specialization", "options"}
    assert all(name in made for name in its)
    by_name = {*options(), *re.findall(r'kwargs\["(\w+)"\]', inspect.getsource(JITFunction.run))}
    given = re.findall(r'func_namespace\["(\w+)"\]', inspect.getsource(create_function_from_signature))
    assert {"num_warps", "debug"} <= by_name
    assert {*its, *by_name, *given, *inspect.signature(JITFunction.run).parameters} <= LAUNCH
