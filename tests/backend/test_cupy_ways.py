"""Kernels of cupy that large layers alone take on a GPU: cases of the suite on small ones, in each way, on the CPU; and
no number that they write lies beside a tensor.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Type

import pytest
import torch

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import ForwardPlan, Geometry
from spikecore.kernels.writing import FORWARD_GROUPS
from spikecore.testing import check_backend, installed
from spikecore_cupy import forms, launcher
from spikecore_cupy.forms import beside_of
from spikecore_cupy.host import HostBackend, HostBlocks, HostKernel, reason
from spikecore_cupy.launcher import Launcher

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

#: name -> (limit of sizes, its value here, class of kernels, word of a text that goes this way)
WAYS: Dict[str, Any] = {
    "steps beside a sector are staged": ((launcher, "BESIDE", 1), HostKernel, "copied_in();"),
    "the same by blocks of threads": ((launcher, "BESIDE", 1), HostBlocks, "copied_in();"),
    "chunks are fetched ahead": ((forms, "FEWEST", 32), HostKernel, "ahead.cuh"),
    "what backward keeps lies in shared memory": ((forms, "FEWEST", 4), HostKernel, ".put(t, "),
    "divisions of several neurons at once": ((forms, "FEWEST", 16), HostKernel, "ahead.cuh"),
}
#: Around the ends of chunks; neurons that single threads, pairs and several blocks take; inputs that broadcast, of
#: which a block has several rows, a part of each, or no whole one.
CALLS = [
    f"generated/model={model},dtype={dtype},shape={shape},{more}wanted=inputs+states,given=outputs+final"
    for model, dtype, shape, more in (
        ("lif", "float32", "1x5", ""),
        ("lif", "bfloat16", "3x9", ""),
        ("alif", "float32", "37x5", "state=yes,"),
        ("lif", "bfloat16", "37x131", "state=yes,"),
        ("lif", "float32", "20x1029", ""),
        ("lif", "bfloat16", "17x2x4x4", ""),
        ("synaptic", "bfloat16", "33x2x4x4", "state=yes,"),
        ("alif", "float16", "49x2x4x4", ""),
        ("plif", "bfloat16", "40x2x4x4", "params=channel,learn=all,"),
        ("lif", "bfloat16", "32x2x4x4", "params=channel,learn=tau,"),
        ("swap", "float32", "2x3x21", "params=channel,repeat=yes,"),
        ("turn", "bfloat16", "40x4x12", "reset=none,bits=yes,params=channel,learn=all,broadcast=y batch,"),
        ("turn", "float32", "3x20x42", "reset=none,bits=yes,broadcast=y batch,"),
        ("turn", "float32", "9x5x33", "reset=none,bits=yes,params=scalar,learn=all,broadcast=y step,"),
    )
]


@pytest.fixture(scope="module", params=WAYS)
def way(request: Any) -> Iterator[List[bool]]:
    """A backend that goes this way; whether each of its kernels does."""
    (where, limit, value), base, word = WAYS[request.param]
    texts: List[bool] = []

    class Kernel(base):  # type: ignore[misc]  # one of two classes
        def __init__(self, name: str, text: str, *more: Any) -> None:
            super().__init__(name, text, *more)
            texts.append(word in text)

    backend: Type[HostBackend] = type("Way", (HostBackend,), {"name": "way", "kernel": Kernel})
    with pytest.MonkeyPatch.context() as patched, installed(backend, devices=("cpu",)):
        patched.setattr(where, limit, value)
        yield texts


@pytest.mark.parametrize("call", CALLS)
def test_a_call(way: List[bool], call: str) -> None:
    """Values and gradients are the oracle's."""
    (result,) = check_backend("way", cases=[call])
    assert result.outcome == "passed", result.message


def test_kernels_go_this_way(way: List[bool]) -> None:
    """Forward and backward, of some calls."""
    results = check_backend(
        "way", cases=[*CALLS[:4], "generated/dtype=bfloat16,shape=40x2x4x5,wanted=inputs,given=outputs"]
    )
    assert {result.outcome for result in results} == {"passed"}
    assert any(way)


# -- steps that begin beside a sector of memory are staged in shared memory

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
