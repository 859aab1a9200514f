"""What a launch is called with has the dtypes and shapes that ForwardBuffers and BackwardBuffers say."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest
import torch
from torch import Tensor

from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, image
from spikecore.kernels import BackwardBuffers, BackwardPlan, ForwardBuffers, ForwardPlan, Geometry

T, CHUNK = 6, 4
#: Checkpoints before every chunk but the first.
K = (T - 1) // CHUNK
#: A shape of ``params`` by its kind; a scalar is one number of any shape.
PARAMS: Dict[str, Optional[Tuple[int, ...]]] = {"channel": (SHAPE[1],), "full": SHAPE}


class Watching(Loop):
    """Checks what its launches get."""

    def __init__(self) -> None:
        super().__init__(CHUNK)
        self.seen: List[str] = []

    def forward(self, plan: ForwardPlan) -> Any:
        launch = super().forward(plan)

        def watched(geometry: Geometry, *groups: Any) -> None:
            buffers = ForwardBuffers(*groups)
            self._common(plan, geometry, buffers)
            check(buffers.outputs, len(plan.program.outputs), (T, *SHAPE), plan.dtype)
            check(buffers.final, len(plan.program.states) if plan.final else 0, SHAPE, plan.compute)
            check(buffers.trace, len(plan.record), (T, *SHAPE), plan.compute)
            check(buffers.checkpoints, len(plan.saved), (K, *SHAPE), plan.compute)
            launch(geometry, *groups)

        return watched

    def backward(self, plan: BackwardPlan) -> Any:
        launch = super().backward(plan)

        def watched(geometry: Geometry, *groups: Any) -> List[Tensor]:
            buffers = BackwardBuffers(*groups)
            states = len(plan.program.states)
            self._common(plan, geometry, buffers)
            check(buffers.checkpoints, len(plan.saved), (K, *SHAPE), plan.compute)
            check(buffers.grad_outputs, len(plan.arriving), (T, *SHAPE), plan.dtype)
            check(buffers.grad_final, states if plan.final else 0, SHAPE, plan.compute)
            check(buffers.grad_trace, len(plan.trace), (T, *SHAPE), plan.compute)
            check(buffers.grad_inputs, len(plan.wanted), (T, *SHAPE), plan.dtype)
            check(buffers.grad_state, states if plan.state else 0, SHAPE, plan.compute)
            found: List[Tensor] = launch(geometry, *groups)
            return found

        return watched

    def _common(self, plan: Any, geometry: Geometry, buffers: Any) -> None:
        assert geometry[:2] == (T, SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3])
        check(buffers.inputs, len(plan.program.inputs), (T, *SHAPE), plan.dtype)
        check(buffers.state, len(plan.program.states) if plan.has_initial_state else 0, SHAPE, plan.compute)
        for kind, value in zip(plan.spec.params, buffers.params):
            if kind == "number":
                assert isinstance(value, float)
            elif kind == "scalar":
                assert value.numel() == 1
            else:
                check([value], 1, PARAMS[kind], plan.compute)
            self.seen.append(kind)


def check(group: Sequence[Tensor], count: int, shape: Optional[Tuple[int, ...]], dtype: torch.dtype) -> None:
    """A group has so many tensors of a shape and dtype."""
    assert [(tuple(value.shape), value.dtype) for value in group] == [(shape, dtype)] * count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_every_group_has_the_shapes_that_its_docstring_says(layout: str, dtype: torch.dtype) -> None:
    """Forward and backward, with a parameter of each kind, in two layouts: a full one has the user's shape."""
    a = torch.rand(SHAPE[1])
    neuron = Gated(tau=torch.rand(SHAPE) + 1.0, a=a, learn=("tau", "a", "start"))
    backend = Watching()
    x, gate = (LAYOUTS[layout](image(T, dtype, seed)).requires_grad_() for seed in (0, 1))
    state = {name: torch.rand(SHAPE).requires_grad_() for name in neuron.states}
    outputs, final, trace = bound(neuron, backend).run(x, gate, state=state, record=("v", "w"))
    results = [*outputs, *final.values(), *trace.values()]
    torch.autograd.backward(results, [torch.rand(result.shape).to(result.dtype) for result in results])
    assert {"number", "scalar", "channel", "full"} <= {*backend.seen}
    assert backend.calls == ["forward", "backward"]
