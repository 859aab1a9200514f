"""Layout of the tensors of a call in memory, and the arguments of a launch.

A launch gets the sizes of a call and then the fields of :class:`ForwardBuffers` or :class:`BackwardBuffers`, one
argument each, in their order. ``T`` below is the number of steps, ``*N`` the user's shape of one step with N numbers,
``[K, *N]`` one state before each chunk of steps but the first. "stored" is ``plan.dtype``, "arithmetic"
``plan.compute``. Of one step every tensor is dense in memory; all tensors share one order of neurons, whatever their
shape. A group that a plan does not have is empty.

A kernel sees steps of N neurons each, in the order of memory. Any tensor whose steps are dense is taken as it is:
contiguous, channels-last, any permutation, part of a batch, one step expanded over time. A backend may also take
``[B, T, ...]`` seen as ``[T, B, ...]``, whose steps are rows that lie apart. Anything else is copied.
All tensors of a call share the layout of its first input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import BackendError, Unsupported
from spikecore.context import is_batched_by_autograd
from spikecore.kernels._plan import Geometry
from spikecore.words import a_kind

if TYPE_CHECKING:
    from spikecore.kernels._call import CallPlan, Form, Kernels, Pass

#: Parameters as a launch gets them, one for each of the program: a float (kind "number"), or a tensor of arithmetic:
#: one number of any shape ("scalar"), ``[C]`` ("channel"), ``[*N]`` in the order of neurons ("full").
KernelParams = Tuple[Union[float, Tensor], ...]


#: Tensors of one kind, such as one for each state.
Group = Sequence[Tensor]


class ForwardBuffers(NamedTuple):
    """The groups of tensors of a forward launch. It fills the last four.

    inputs: stored, ``[T, *N]``, with ``stride(0)`` numbers from step to step, 0 where one step stands for all.
    state: arithmetic, ``[*N]`` for each state if ``plan.has_initial_state``.
    params: see :data:`KernelParams`.
    outputs: stored, ``[T, *N]``, dense.
    final: arithmetic, ``[*N]`` for each state if ``plan.final``.
    trace: arithmetic, ``[T, *N]``, dense, for each state of ``plan.record``.
    checkpoints: arithmetic, ``[K, *N]``, dense, for each state of ``plan.saved``.
    """

    inputs: Group
    state: Group
    params: KernelParams
    outputs: Group
    final: Group
    trace: Group
    checkpoints: Group


class BackwardBuffers(NamedTuple):
    """The groups of tensors of a backward launch. It fills the last two and returns the gradients of parameters.

    inputs, state, params: as in :class:`ForwardBuffers`.
    checkpoints: as forward filled them, for each state of ``plan.saved``.
    grad_outputs: stored, ``[T, *N]``, any ``stride(0)``, for each output whose cotangent arrives (``plan.outputs``).
    grad_final: arithmetic, ``[*N]`` for each state if ``plan.final``.
    grad_trace: arithmetic, ``[T, *N]``, any ``stride(0)``, for each state of ``plan.trace``.
    grad_inputs: stored, ``[T, *N]``, dense, for each input whose gradient is wanted (``plan.inputs``).
    grad_state: arithmetic, ``[*N]`` for each state if ``plan.state``.
    """

    inputs: Group
    state: Group
    params: KernelParams
    checkpoints: Group
    grad_outputs: Group
    grad_final: Group
    grad_trace: Group
    grad_inputs: Group
    grad_state: Group


class ForwardResults(NamedTuple):
    """Results of a forward launch of a backend with ``owns_outputs``: groups as in :class:`ForwardBuffers`, flat.

    outputs: stored, ``[T, N]``.
    final: arithmetic, ``[N]``.
    trace: arithmetic, ``[T, N]``.
    checkpoints: arithmetic, ``[K, N]``.
    """

    outputs: Group
    final: Group
    trace: Group
    checkpoints: Group


class BackwardResults(NamedTuple):
    """Results of a backward launch of a backend with ``owns_outputs``.

    grad_inputs: stored, ``[T, N]``, for each input whose gradient is wanted.
    grad_state: arithmetic, ``[N]`` for each state if ``plan.state``.
    grad_params: arithmetic, for each parameter of ``plan.learn``: partial sums of any number for kind "scalar", else
        one number for each neuron, ``[N]``.
    """

    grad_inputs: Group
    grad_state: Group
    grad_params: Group


#: Launches a forward kernel: the sizes, then the fields of :class:`ForwardBuffers`. What it returns is not read.
ForwardLaunch = Callable[[Geometry, Group, Group, KernelParams, Group, Group, Group, Group], object]
#: Launches a backward kernel: the sizes, then the fields of :class:`BackwardBuffers`. It returns the gradients of
#: ``plan.learn`` as :class:`BackwardResults` has them; what it returns is not read where no parameter is learnt.
BackwardLaunch = Callable[
    [Geometry, Group, Group, KernelParams, Group, Group, Group, Group, Group, Group], Optional[Group]
]
#: The same of a backend with ``owns_outputs``: without the groups that are filled, which they return. All tensors are
#: flat: ``[T, N]``, ``[N]``, ``[C]``.
ReturningForwardLaunch = Callable[[Geometry, Group, Group, KernelParams], ForwardResults]
ReturningBackwardLaunch = Callable[[Geometry, Group, Group, KernelParams, Group, Group, Group, Group], BackwardResults]
#: Running mean and variance ``[C]`` that a call moves, how many calls there were (``[]`` of int64) if that is counted,
#: and the share of the new ones.
Moved = Tuple[Tensor, Tensor, Optional[Tensor], float]
#: Statistics of an input ``[T, *N]``: ``launch(geometry, x, eps, running)``.
StatisticsLaunch = Callable[[Geometry, Tensor, float, Optional[Moved]], Optional[Tuple[Tensor, Tensor]]]
#: Launch that adds the part of the statistics to the gradient of an input: ``launch(geometry, x, grad, channels)``.
CorrectionLaunch = Callable[[Geometry, Tensor, Tensor, Sequence[Tensor]], None]
#: Any of the four. A backend annotates its own with the kind that it is.
Launch = Callable[..., Any]


class Layout(NamedTuple):
    """The sizes of one time step as the user sees them, and the order of its dimensions in memory."""

    shape: Tuple[int, ...]
    #: Dimensions of one time step, outermost in memory first; None for the natural order.
    order: Optional[Tuple[int, ...]]
    #: Number of the outermost dimensions that lie outside of time: 0 where a step is dense, 1 for ``[B, T, ...]``.
    outer: int = 0

    @classmethod
    def decoded(cls, shape: Sequence[int], numbers: Sequence[int]) -> Layout:
        """The layout of this shape that :attr:`encoded` gave the numbers of."""
        return cls(tuple(shape), tuple(numbers[1:]) or None, numbers[0] if numbers else 0)

    @property
    def encoded(self) -> List[int]:
        """All but the shape as numbers; none for the natural order."""
        return [self.outer, *(self.order or ())] if self.order or self.outer else []

    def empty(self, lead: Tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
        """A new dense tensor ``[*lead, *shape]`` that lies in this layout."""
        if self.order is None:
            return like.new_empty((*lead, *self.shape), dtype=dtype)
        inner = like.new_empty((*lead, *[self.shape[d] for d in self.order]), dtype=dtype)
        return inner.permute(self._back(len(lead)))

    def empty_steps(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A new dense tensor of the shape of ``x`` in this layout."""
        if not self.outer:
            return self.empty((x.shape[0],), x, dtype)
        # time lies between the dimensions of a step
        order = [1 + d for d in self.order or range(len(self.shape))]
        order.insert(self.outer, 0)
        sizes = (x.shape[0], *self.shape)
        return x.new_empty([sizes[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(len(order))])

    def holds(self, step: Tensor) -> bool:
        """True if a tensor ``[*shape]`` is dense in this layout."""
        return step.is_contiguous() if self.order is None else self._dense(step.stride())

    def fit(self, step: Tensor) -> Tensor:
        """The tensor ``[*shape]``, or a copy of it, dense in this layout."""
        return step if self.holds(step) else self._copied(step, 0)

    def holds_steps(self, steps: Tensor) -> bool:
        """True if each step of a tensor ``[T, *shape]`` lies as kernels read it."""
        strides = steps.stride()[1:]
        if (self.order is None and steps.is_contiguous()) or self._dense(strides):
            return True
        order = self.order or range(len(self.shape))
        return bool(self.outer) and _outer(self.shape, order, strides) in (0, self.outer)

    def fit_steps(self, steps: Tensor) -> Tensor:
        """The tensor ``[T, *shape]``, or a copy of it, with each step dense in this layout.

        Steps may lie at any distance ``stride(0)``, which is 0 where one step stands for all.
        """
        if self.holds_steps(steps):
            return steps
        # copy the one step, not T copies of it
        if steps.stride(0) == 0:
            return self.fit(steps[0]).expand(steps.shape)
        return self._copied(steps, 1)

    def fit_saved(self, saved: Tensor) -> Tensor:
        """The tensor ``[k, *shape]``, or a copy of it, dense in this layout from end to end."""
        # a backward kernel has no argument for the distance between checkpoints: it takes them to be N numbers apart
        size = 1
        for length in self.shape:
            size *= length
        dense = self._dense(saved.stride()[1:]) and (saved.shape[0] < 2 or saved.stride(0) == size)
        return saved if dense else self._copied(saved, 1)

    def dense_in_order(self, step: Tensor) -> Tensor:
        """A dense tensor ``[N]`` in the order of memory as ``[*shape]``."""
        if self.order is None:
            return step.reshape(self.shape)
        return step.reshape([self.shape[d] for d in self.order]).permute(self._back(0))

    def inner_of(self, dim: int) -> int:
        """Number of neurons between two neighbours along a dimension of one time step."""
        inner = 1
        for d in reversed(self.order or range(len(self.shape))):
            if d == dim:
                break
            inner *= self.shape[d]
        return inner

    def channels_along(self, view: Sequence[int]) -> Tuple[int, int]:
        """Layout of a parameter of shape ``[1, C, 1, ...]``: (neurons between neighbouring channels, channels)."""
        # all dimensions but that of the channels are 1; with one channel it is any
        dim = max(range(len(view)), key=lambda d: view[d])
        return self.inner_of(dim), view[dim]

    @property
    def rows(self) -> Tuple[int, int]:
        """Neurons of a row, and which dimension of ``[T, *shape]`` goes from row to row; for a layout with rows."""
        order = self.order or tuple(range(len(self.shape)))
        columns = 1
        for d in order[self.outer :]:
            columns *= self.shape[d]
        # that of a dimension of size 1 could be any stride
        return columns, 1 + next(d for d in reversed(order[: self.outer]) if self.shape[d] != 1)

    def _copied(self, tensor: Tensor, lead: int) -> Tensor:
        if self.order is None:
            return tensor.contiguous()
        there = (*range(lead), *(lead + d for d in self.order))
        return tensor.permute(there).contiguous().permute(self._back(lead))

    def _back(self, lead: int) -> Tuple[int, ...]:
        """The permutation from memory order to the order of the dimensions, behind ``lead`` leading ones."""
        order = self.order or ()
        return (*range(lead), *(lead + order.index(d) for d in range(len(order))))

    def _dense(self, strides: Sequence[int]) -> bool:
        return _is_dense(self.shape, self.order or range(len(self.shape)), strides)


def layout_of(x: Tensor, rows: bool = False) -> Layout:
    """The layout to compute ``x`` of shape ``[T, *N]`` in: its own where steps are dense, or with ``rows`` where they
    are rows between which other steps lie; else the natural one.
    """
    shape = tuple(x.shape)[1:]
    if x.is_contiguous():
        return Layout(shape, None)
    strides = x.stride()[1:]
    # outermost first; of equal strides the earlier dimension, as in the natural order
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], d)))
    natural = order == tuple(range(len(shape)))
    if _is_dense(shape, order, strides):
        return Layout(shape, None if natural else order)
    outer = _outer(shape, order, strides) if rows else 0
    if outer:
        layout = Layout(shape, None if natural else order, outer)
        columns, dim = layout.rows
        # memory is read in sectors of 32 bytes; rows that lie apart for another reason than time are copied
        if columns * x.element_size() >= 32 and x.stride(0) < x.stride(dim):
            return layout
    return Layout(shape, None)


def _outer(shape: Sequence[int], order: Sequence[int], strides: Sequence[int]) -> int:
    """Number of the dimensions, outermost in memory first, with gaps of one distance from row to row; the others are
    dense. 0 where all are dense, -1 where there is no such distance.
    """
    dense_stride, count = 1, 0
    for k, d in reversed(list(enumerate(order))):
        if shape[d] == 1:
            continue
        if strides[d] != dense_stride:
            if count:
                return -1
            dense_stride, count = strides[d], k + 1
        dense_stride *= shape[d]
    return count


def _is_dense(shape: Sequence[int], order: Sequence[int], strides: Sequence[int]) -> bool:
    dense_stride = 1
    for d in reversed(order):
        # torch allows any stride for a dimension of size 1
        if shape[d] != 1 and strides[d] != dense_stride:
            return False
        dense_stride *= shape[d]
    return True


def fits_param(kind: str, value: Tensor, view: Sequence[int], layout: Layout) -> bool:
    """True if a kernel reads a parameter in place: see :func:`fitted_param`."""
    if kind == "channel":
        return value.ndim == 1 and value.is_contiguous()
    return kind != "full" or (tuple(view) == layout.shape and layout.holds(value.view(view)))


def fitted_param(kind: str, value: Tensor, view: Sequence[int], layout: Layout) -> Tensor:
    """A parameter where a kernel reads it; ``view`` is its shape over the neurons of one time step."""
    if fits_param(kind, value, view, layout):
        return value
    if kind == "channel":
        # a kernel finds a neuron's channel by division, so the channels must be dense
        return value.reshape(-1).contiguous()
    # one of shape [1, C, H, W] is the same for a whole batch, but a kernel reads a number per neuron
    return layout.fit(value.view(view).expand(layout.shape))


def gradient(
    kind: str, part: Tensor, value: Tensor, view: Sequence[int], layout: Layout, channels: Sequence[int]
) -> Tensor:
    """The gradient of a parameter from its parts, as a backward launch gives them.

    ``view``: its shape over the neurons of one time step. ``channels``: how those of one of kind "channel" lie.
    """
    if kind == "full":
        # a parameter of shape [1, C, H, W] is the same for a whole batch: its gradient is the sum over it
        whole = layout.dense_in_order(part)
        if view == layout.shape and layout.holds(value.view(view)):
            return whole.view(value.shape)
        return whole.sum_to_size(view).contiguous().view(value.shape)
    if part.shape == value.shape:
        return part
    if kind == "channel":
        # in the order of memory neurons lie as [outer, channels, inner]
        inner, count = channels
        if part.numel() != count:  # else whole sums
            part = part.reshape(-1, count, inner).sum((0, 2)) if inner != 1 else part.reshape(-1, count).sum(0)
    elif part.numel() != 1:
        # partial sums, one for each block or each neuron, as the backend likes
        part = part.sum()
    return part.reshape(value.shape)


# Launches that return their results, as those of array compilers do, instead of filling tensors. Every tensor comes and
# goes flat, in one order of neurons: ``[T, N]`` of all steps, ``[N]`` of one, checkpoints ``[K, N]``. A parameter of
# kind "scalar" is ``[]``, of kind "channel" ``[C]``, of kind "full" ``[N]``. What arrives may have any distance between
# its steps, 0 included. What is returned has these shapes, in ``spec.dtype`` (outputs, gradients of inputs) or
# ``spec.compute`` (all others), on the device of the call, in memory of its own: a user may change any of them, and any
# argument, in place. Number, shape, dtype and device are checked; the conformance suite finds memory that is shared.

#: Expected result of a launch: its name for an error, its flat shape (None for any number of numbers), its dtype.
Expected = Tuple[str, Optional[Tuple[int, ...]], torch.dtype]


def returned_forward(plan: CallPlan, launch: Launch, groups: Sequence[Any]) -> List[Tensor]:
    """The results of a forward launch of inputs, states and parameters."""
    kernels, (steps, neurons) = plan.kernels, plan.geometry[:2]
    stored, compute, checkpoints = kernels.spec.dtype, kernels.spec.compute, plan.results[plan.n_results :]
    expected: List[List[Expected]] = [
        [(f"output {i}", (steps, neurons), stored) for i in range(kernels.n_outputs)],
        [(f"final state {i}", (neurons,), compute) for i in range(kernels.n_final)],
        [(f"recorded {name}", (steps, neurons), compute) for name in plan.call.record],
        [(f"checkpoint {i}", (shape[0], neurons), compute) for i, (shape, _, _) in enumerate(checkpoints)],
    ]
    results = launch(plan.geometry, *_flat(kernels, neurons, groups))
    rows = _checked(kernels, "forward", results, expected, groups[0][0].device)
    return [_returned(value, form) for value, form in zip([value for row in rows for value in row], plan.results)]


def returned_backward(backward_pass: Pass, groups: Sequence[Any]) -> Tuple[List[Tensor], Sequence[Tensor]]:
    """Gradients of inputs and states, and parts of those of parameters, of a backward launch of these groups."""
    plan, kernels = backward_pass.plan, backward_pass.plan.kernels
    steps, neurons = plan.geometry[:2]
    inputs, _, _, checkpoints, outputs, final, trace = groups
    late = [[_rows(value, neurons) for value in group] for group in (checkpoints, outputs)]
    late += [[_row(value, neurons) for value in final], [_rows(value, neurons) for value in trace]]
    stored, compute, parts = kernels.spec.dtype, kernels.spec.compute, backward_pass.learnt
    n_states = len(backward_pass.forms) - backward_pass.n_inputs
    expected: List[List[Expected]] = [
        [(f"gradient of input {i}", (steps, neurons), stored) for i in range(backward_pass.n_inputs)],
        [(f"gradient of state {i}", (neurons,), compute) for i in range(n_states)],
        [(f"gradient of parameter {name}", None if kind == "scalar" else (neurons,), compute) for name, kind in parts],
    ]
    returned = backward_pass.launch(plan.geometry, *_flat(kernels, neurons, groups[:3]), *late)
    to_inputs, to_states, to_params = _checked(kernels, "backward", returned, expected, inputs[0].device)
    results = [_returned(value, form) for value, form in zip((*to_inputs, *to_states), backward_pass.forms)]
    return results, [value.contiguous() for value in to_params]


def _flat(kernels: Kernels, neurons: int, groups: Sequence[Any]) -> Tuple[Any, ...]:
    inputs, state, params = groups
    placed: List[Any] = list(params)
    for index in kernels.tensor_params:
        value = placed[index]
        placed[index] = value.reshape(()) if kernels.spec.params[index] == "scalar" else _row(value, value.numel())
    return tuple([_rows(x, neurons) for x in inputs]), tuple([_row(s, neurons) for s in state]), tuple(placed)


def _checked(
    kernels: Kernels, launch: str, groups: Any, expected: Sequence[Sequence[Expected]], device: torch.device
) -> List[List[Tensor]]:
    who = f"the {launch} launch of backend {kernels.backend.name!r} for {kernels.program.name}"
    rows = [list(group) for group in groups] if isinstance(groups, (tuple, list)) else []
    if [len(row) for row in rows] != [len(row) for row in expected]:
        counts = ", ".join(str(len(row)) for row in expected)
        raise BackendError(f"{who} must return groups of {counts} tensors, got {[len(row) for row in rows]}")
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
    return rows


def _rows(steps: Tensor, neurons: int) -> Tensor:
    """All steps ``[T, N]`` in the order of memory."""
    return steps.as_strided((steps.shape[0], neurons), (steps.stride(0), 1))


def _row(step: Tensor, neurons: int) -> Tensor:
    """One step ``[N]`` in the order of memory."""
    return step.as_strided((neurons,), (1,))


def _returned(flat: Tensor, form: Form) -> Tensor:
    """A flat result as the user sees it: a tensor of its own on that memory, no view of another one, so that autograd
    lets it be changed in place.
    """
    # a library's own graph must not reach the user, whose gradients come from the backward launch
    memory, (shape, strides, _) = flat.detach().contiguous(), form
    return memory.new_empty(0).set_(memory.untyped_storage(), memory.storage_offset(), shape, strides)


def resolved(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors (or None), each with memory that holds its values.

    Raises ``ValueError`` for one that has no memory and no values either. Where a tensor is on another device than the
    call, even "meta", is for others to say.
    """
    if has_memory(tensors):
        return tensors
    return [
        value if value is None else _with_memory(value.resolve_neg() if value.is_neg() else value) for value in tensors
    ]


def has_memory(tensors: Sequence[Any]) -> bool:
    """True if the memory of each of the tensors (or None) holds its values."""
    try:
        for value in tensors:
            if value is not None and (value.is_neg() or not value.data_ptr()):
                return False
    except RuntimeError:  # tensors wrapped by functorch raise on data_ptr()
        return False
    return True


def _with_memory(tensor: Tensor) -> Tensor:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if has_memory((tensor,)):
        return tensor
    if is_batched_by_autograd(tensor):
        raise Unsupported(
            "a kernel was given the gradients of several outputs at once (is_grads_batched=True of autograd.grad, "
            "vectorize=True of jacobian) and takes those of one; ask for one after the other, or choose backend='torch'"
        )
    raise ValueError(
        f"a kernel was given a {tensor.dtype} tensor of shape {list(tensor.shape)} that has no memory: its storage "
        "was freed (untyped_storage().resize_(0)), or it stands for another tensor (a FakeTensor, a tensor kept "
        "from inside torch.func); give a tensor with values"
    )
