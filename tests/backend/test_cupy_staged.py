"""Steps that begin beside a sector of memory are staged in shared memory: nothing beside a tensor is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import ForwardPlan, Geometry
from spikecore.kernels.writing import FORWARD_GROUPS
from spikecore_cupy.forms import beside_of
from spikecore_cupy.host import HostBlocks, HostKernel, reason
from spikecore_cupy.launcher import Launcher

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@dtypes
@pytest.mark.parametrize("kernel", [HostKernel, HostBlocks])
def test_nothing_beside_a_tensor_is_written(kernel: Any, dtype: torch.dtype) -> None:
    """Every number of the output is written, and none before or behind it."""
    program = sc.LIF().program
    plan = ForwardPlan(program, Spec(dtype, 3, ("number",) * len(program.params), (), False))
    found = beside_of(plan)
    assert found is not None
    launcher = Launcher(kernel, plan, FORWARD_GROUPS, (), beside=found.form)
    for neurons in (1, 5, 31, 515):
        inside = 3 * neurons
        memory = torch.full((64 + inside + 64,), 7.0, dtype=dtype)
        # one that begins with a sector
        skip = next(k for k in range(32, 64) if (memory.data_ptr() + k * memory.element_size()) % 32 == 0)
        out = memory[skip : skip + inside].view(3, neurons)
        x = torch.empty(inside + 64, dtype=dtype).fill_(3.0)
        begin = next(k for k in range(64) if (x.data_ptr() + k * x.element_size()) % 32 == 0)
        numbers = (2.0, 1.0, 0.0)
        assert program.params[:3] == ("tau", "threshold", "v_reset")
        params = (*numbers, *(0.0 for _ in program.params[3:]))
        given = x[begin : begin + inside].view(3, neurons)
        launcher(Geometry(3, neurons, ()), (given,), (), params, (out,), (), (), ())
        assert set(out.float().unique().tolist()) <= {0.0, 1.0}
        assert bool((memory[:skip] == 7).all())
        assert bool((memory[skip + inside :] == 7).all())
