"""How many neighbouring neurons a thread computes, and where a step multiplies by a reciprocal."""

from __future__ import annotations

from typing import Any, Type, Union

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS
from spikecore_cupy.host import HostKernel, reason
from spikecore_cupy.launcher import Launcher

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]


class Kernel(HostKernel):
    """As on a GPU: blocks of many threads."""

    block = 128


def launcher(dtype: torch.dtype, backward: bool = False, kernel: Type[HostKernel] = Kernel) -> Launcher:
    """That of LIF's forward or backward kernel, for any number of steps."""
    program = sc.LIF().program
    spec = Spec(dtype, None, ("number",) * len(program.params), (), False)
    plan: Union[ForwardPlan, BackwardPlan] = ForwardPlan(program, spec, (), checkpoints=True)
    if backward:
        nothing = {"trace": (), "final": False, "state": False, "learn": ()}
        plan = BackwardPlan(program, spec, has_initial_state=False, outputs=(True,), inputs=(True,), **nothing)
    return Launcher(kernel, plan, BACKWARD_GROUPS if backward else FORWARD_GROUPS, ())


@pytest.mark.parametrize(
    ("dtype", "widths"),
    [
        (torch.float32, {1000: 1, 2**17 - 2: 1, 2**17: 2, 2**17 + 1: 1, 2**24: 2}),
        (torch.bfloat16, {1000: 1, 2**16 - 4: 1, 2**16: 2, 2**18 - 4: 2, 2**18: 4, 2**18 + 2: 2, 2**24: 4}),
        (torch.float64, {1000: 1, 2**24: 1}),
    ],
    ids=["float32", "bfloat16", "float64"],
)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_few_neurons_have_threads_of_fewer_numbers(backward: bool, dtype: torch.dtype, widths: Any) -> None:
    """On a GPU; on a CPU, where this saves nothing, every size has the widest, so that tests meet it."""
    on_gpu, on_cpu = launcher(dtype, backward), launcher(dtype, backward, HostKernel)
    for neurons, expected in widths.items():
        width = on_gpu._narrowed(neurons, on_gpu._form.width)
        assert on_gpu._fitting(width, neurons, 0) == expected, neurons
        assert on_cpu._narrowed(neurons, on_cpu._form.width) == max(widths.values())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 4)])
def test_where_steps_multiply_by_a_reciprocal(dtype: torch.dtype, most: int) -> None:
    """Where tau is a power of two; backward in 16 bits only with two neurons at most."""
    names = sc.LIF().program.params
    twos, threes = ([value if name == "tau" else 1.0 for name in names] for value in (2.0, 3.0))
    for width in (1, 2, 4):
        assert launcher(dtype)._multiplies(width, twos)
        assert launcher(dtype, backward=True)._multiplies(width, twos) is (width <= most)
        assert not launcher(dtype)._multiplies(width, threes)
