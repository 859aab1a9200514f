"""How many neighbouring neurons a thread computes, and where a step multiplies by a reciprocal."""

from __future__ import annotations

from typing import Any, Optional, Type, Union

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS
from spikecore_cupy.forms import in_chunks
from spikecore_cupy.host import HostKernel, reason
from spikecore_cupy.launcher import Launcher

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]


class Kernel(HostKernel):
    """As on a GPU: blocks of many threads."""

    block = 128


def launcher(
    dtype: torch.dtype, backward: bool = False, kernel: Type[HostKernel] = Kernel, steps: Optional[int] = None
) -> Launcher:
    """That of LIF's forward or backward kernel, by default for any number of steps."""
    program = sc.LIF().program
    spec = Spec(dtype, steps, ("number",) * len(program.params), (), False)
    plan: Union[ForwardPlan, BackwardPlan] = ForwardPlan(program, spec, (), checkpoints=steps is None)
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


@pytest.mark.parametrize(
    ("dtype", "steps", "most"),
    [
        (torch.float32, None, 2**24),
        (torch.float32, 16, 2**24),
        (torch.float64, None, 2**24),
        (torch.bfloat16, 10, 2**24),
        (torch.bfloat16, 11, 2**17),
        (torch.float16, None, 2**17),
    ],
)
def test_where_steps_multiply_by_a_reciprocal(dtype: torch.dtype, steps: Optional[int], most: int) -> None:
    """Where tau is a power of two; backward in 16 bits only few steps, or of few neurons."""
    names = sc.LIF().program.params
    twos, threes = ([value if name == "tau" else 1.0 for name in names] for value in (2.0, 3.0))
    forward, backward = (launcher(dtype, which, steps=steps) for which in (False, True))
    for neurons in (1, 2**17, 2**17 + 1, 2**24):
        assert forward._multiplies(neurons, twos)
        assert backward._multiplies(neurons, twos) is (neurons <= most)
        assert not forward._multiplies(neurons, threes)
        assert not backward._multiplies(neurons, threes)


def test_forward_chunks_may_take_registers() -> None:
    """Otherwise the compiler takes 32 of them and has few loads under way."""
    for dtype, blocks in ((torch.float32, 4), (torch.bfloat16, 4), (torch.float64, 0)):
        one = launcher(dtype)
        for length in (9, 12):
            assert in_chunks(one.plan, one._form, length).blocks == blocks
