"""Launches that return their results, as those of array compilers do, instead of filling tensors.

Every tensor comes and goes flat, in one order of neurons: ``[T, N]`` of all steps, ``[N]`` of one, checkpoints
``[K, N]``. A parameter of kind "scalar" is ``[]``, of kind "channel" ``[C]``, of kind "full" ``[N]``. What arrives may
have any distance between its steps, 0 included. What is returned is checked, for whatever a backend gets wrong there
would be read as something else:

- as many results as the plan has, of these shapes, in ``spec.dtype`` (outputs, gradients of inputs) or ``spec.compute``
  (all others), on the device of the call;
- in memory of their own: a user may change any of them, and any argument, in place.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.errors import a_kind
from spikecore.backend import BackendError, Tensors
from spikecore.kernels._arguments import Call, Prepared
from spikecore.kernels._execution import Arrays, Execution, Gradients
from spikecore.kernels._layout import Layout, layout_of
from spikecore.kernels._memory import resolved

#: What a result must be: its name for an error, its flat shape (None for any number of numbers), its dtype.
Expected = Tuple[str, Optional[Tuple[int, ...]], torch.dtype]


class ReturningExecution(Execution):
    """One program under one spec, by launches that return their results."""

    def forward(self, call: Call, tensors: Sequence[Tensor], save: bool) -> List[Tensor]:
        """Outputs, final states, recorded states and, for backward, checkpoints."""
        tensors = resolved(tensors)
        x = tensors[0]
        layout = layout_of(x)
        if not x.numel():
            return self.results(call, layout, x, save)
        flat = self._flat(self.arguments.prepared(call, tensors, layout))
        steps, neurons, _ = flat[0]
        chunk, compute = self.chunk, self.spec.compute
        kept = (steps - 1) // chunk if save and chunk else 0
        count = self.n_checkpoints(call) if kept else 0
        groups = self.forward_launch(call, bool(count))(*flat)
        expected: List[List[Expected]] = [
            [(f"output {i}", (steps, neurons), self.spec.dtype) for i in range(self.n_outputs)],
            [(f"final state {i}", (neurons,), compute) for i in range(self.n_final)],
            [(f"recorded {name}", (steps, neurons), compute) for name in call.record],
            [(f"checkpoint {i}", (kept, neurons), compute) for i in range(count)],
        ]
        found = self._checked("forward", groups, expected, x.device, [*flat[1], *flat[2], *flat[3]])
        leads = [[steps], [], [steps], [kept]]
        return [self._shaped(layout, value, lead) for row, lead in zip(found, leads) for value in row]

    def one_step(self, call: Call, tensors: Sequence[Tensor]) -> List[Tensor]:
        """Outputs and final states of one time step, whose one contiguous input ``[*N]`` and outputs have no time."""
        results = self.forward(call, [tensors[0].unsqueeze(0), *tensors[1:]], save=False)
        n = self.n_outputs
        return [*(_own(out, out.shape[1:], out.stride()[1:]) for out in results[:n]), *results[n:]]

    def launched(
        self, found: Gradients, call: Call, tensors: Sequence[Tensor], layout: Layout, arrays: Arrays
    ) -> Tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Gradients of inputs, of states and of parameters; ``arrays`` are checkpoints and cotangents."""
        x = tensors[0]
        flat = self._flat(self.arguments.prepared(call, tensors, layout))
        steps, neurons, _ = flat[0]
        checkpoints, outputs, final, trace = arrays
        late = [
            [_rows(value, neurons) for value in checkpoints],
            [_rows(value, neurons) for value in outputs],
            [_row(value, neurons) for value in final],
            [_rows(value, neurons) for value in trace],
        ]
        groups = found.launch(*flat, *late)
        compute = self.spec.compute
        n_states = self.arguments.n_states if found.state else 0
        uniform = [self.spec.params[index] == "scalar" for index in found.learn]
        expected: List[List[Expected]] = [
            [(f"gradient of input {i}", (steps, neurons), self.spec.dtype) for i in range(sum(found.inputs))],
            [(f"gradient of state {i}", (neurons,), compute) for i in range(n_states)],
            [(f"gradient of parameter {self.program.params[i]}", None if one else (neurons,), compute)
             for i, one in zip(found.learn, uniform)],
        ]  # fmt: skip
        given = [*flat[1], *flat[2], *flat[3], *[value for row in late for value in row]]
        inputs, states, params = self._checked("backward", groups, expected, x.device, given)
        return (
            [self._shaped(layout, value, [steps]) for value in inputs],
            [self._shaped(layout, value, []) for value in states],
            [value.contiguous() for value in params],
        )

    def backward_fast_path(self, found: Gradients, call: Call, x: Tensor, checkpoints: Tensors, grad: Tensor) -> Tensor:
        inputs, _, _ = self.launched(found, call, (x,), self.layout((x,)), (checkpoints, (grad,), (), ()))
        return inputs[0]

    def _flat(self, prepared: Prepared) -> Prepared:
        geometry, inputs, state, params = prepared
        n = geometry.neurons
        placed: List[Any] = list(params)
        for index in self.arguments.tensor_params:
            value = placed[index]
            placed[index] = value.reshape(()) if self.spec.params[index] == "scalar" else _row(value, value.numel())
        return geometry, tuple([_rows(x, n) for x in inputs]), tuple([_row(s, n) for s in state]), tuple(placed)

    def _checked(
        self,
        launch: str,
        groups: Any,
        expected: Sequence[Sequence[Expected]],
        device: torch.device,
        given: Sequence[Any],
    ) -> List[List[Tensor]]:
        who = f"the {launch} launch of backend {self.backend.name!r} for {self.program.name}"
        rows = [list(group) for group in groups] if isinstance(groups, (tuple, list)) else []
        if [len(row) for row in rows] != [len(row) for row in expected]:
            wanted = ", ".join(str(len(row)) for row in expected)
            raise BackendError(f"{who} must return groups of {wanted} tensors, got {[len(row) for row in rows]}")
        # a library may hand out an argument, or one array twice: a change in place would then change another value
        extents = [("an argument", *_extent(value)) for value in given if isinstance(value, Tensor)]
        for row, wishes in zip(rows, expected):
            for value, (name, shape, dtype) in zip(row, wishes):
                if not isinstance(value, Tensor):
                    raise BackendError(f"{who} returned {a_kind(value)} as {name}, not a tensor")
                fits = shape is None or tuple(value.shape) == shape
                if not fits or value.dtype != dtype or value.device != device:
                    raise BackendError(
                        f"{who} returned {value.dtype} {list(value.shape)} on {value.device} as {name}, "
                        f"expected {dtype} {'of any shape' if shape is None else list(shape)} on {device}"
                    )
                first, last = _extent(value)
                for other, begin, end in extents:
                    if first < end and begin < last:
                        raise BackendError(
                            f"{who} returned {name} in the memory of {other}; every result must have memory of its own"
                        )
                extents.append((name, first, last))
        return rows

    def _shaped(self, layout: Layout, flat: Tensor, lead: Sequence[int]) -> Tensor:
        """A flat result as the user sees it: a tensor of its own on that memory, no view of another one."""
        # a library's own graph must not reach the user, whose gradients come from the backward launch
        dense = flat.detach().contiguous()
        # on "meta" it has shape and strides, and no memory
        like = layout.empty(tuple(lead), dense.new_empty(0, device="meta"), dense.dtype)
        return _own(dense, like.shape, like.stride())


def _rows(steps: Tensor, neurons: int) -> Tensor:
    """All steps ``[T, N]`` in the order of memory."""
    return steps.as_strided((steps.shape[0], neurons), (steps.stride(0), 1))


def _row(step: Tensor, neurons: int) -> Tensor:
    """One step ``[N]`` in the order of memory."""
    return step.as_strided((neurons,), (1,))


def _own(memory: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A tensor on the memory of another one that is no view of it, so that autograd lets it be changed in place."""
    return memory.new_empty(0).set_(memory.untyped_storage(), memory.storage_offset(), shape, stride)


def _extent(value: Tensor) -> Tuple[int, int]:
    """The addresses that a tensor lies between, none for an empty one."""
    if not value.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    return value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size()
