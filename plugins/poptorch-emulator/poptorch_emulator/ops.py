"""The functions of ``poptorch`` that a model calls in its ``forward``.

Most only advise the compiler, and return their argument unchanged, in PopTorch and here. ``for_loop`` runs unrolled,
with the checks of PopTorch. ``cond`` computes both branches and chooses between their results. ``ipu_print_tensor``
writes values, and gradients, to standard error; numbers, brackets, lines and parts that are left out have Poplar's
form, and a column is as wide as its widest number.
"""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable, List, NoReturn, Optional, Tuple, Union

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ._errors import cpp_error, not_modelled, py_error
from ._graph import reduced
from ._tensor import IpuTensor
from ._trace import running
from .arguments import leaves, tree_map
from .enums import MatMulSerializationMode, MultiConvPlanType, OverlapMode

__all__ = [
    "CPU", "MultiConv", "NameScope", "cond", "custom_op", "dynamic_slice", "dynamic_update", "for_loop",
    "identity_loss", "ipuHardwareIsAvailable", "ipuHardwareVersion", "ipu_print_tensor", "isRunningOnIpu", "nearest",
    "nop", "recomputationCheckpoint", "serializedMatMul", "set_available_memory", "set_overlap_for_input",
    "set_overlap_for_output",
]  # fmt: skip
#: How a number is written, by ``float_format``.
FORMATS = ("auto", "fixed", "scientific", "none")


@dataclass(frozen=True)
class Style:
    """The arguments of ``ipu_print_tensor`` behind the tensor."""

    title: str = ""
    print_gradient: bool = True
    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"

    def text(self, values: Tensor) -> str:
        """All values, or those at the edges of more than ``summarise_threshold``."""
        write = self._writer(values)
        edge = self.edge_items if 0 < self.summarise_threshold < values.numel() else 0
        return self._nested(values, write, edge, 0)

    def _writer(self, values: Tensor) -> Callable[[Any], str]:
        if not values.is_floating_point():
            return lambda value: str(int(value))
        digits = self.digits or 8
        if self.float_format == "scientific":
            return lambda value: f"{value:.{digits - 1}e}"
        if self.float_format == "fixed":
            return lambda value: (
                f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}" if math.isfinite(value) else f"{value:g}"
            )
        return lambda value: f"{value:.{digits}g}"

    def _nested(self, values: Tensor, write: Callable[[Any], str], edge: int, depth: int) -> str:
        if not values.dim():
            return write(values.item())
        if edge > 0 and 2 * edge < len(values):
            parts: List[Any] = [*values[:edge], None, *values[-edge:]]
        else:
            parts = list(values)
        items = ["..." if part is None else self._nested(part, write, edge, depth + 1) for part in parts]
        if values.dim() > 1:
            lines = "".join(f"{' ' * (depth + 1)}{item}\n" for item in items)
            return f"{self.open_bracket}\n{lines}{' ' * depth}{self.close_bracket}"
        return f"{self.open_bracket}{self._row(items, depth)}{self.close_bracket}"

    def _row(self, items: List[str], depth: int) -> str:
        width = max(map(len, items)) if self.digits else 0
        text, column = "", depth + len(self.open_bracket)
        for position, item in enumerate(items):
            item = item.rjust(width) + (self.separator if position + 1 < len(items) else "")
            if text and 0 < self.max_line_width < column + len(item):
                text, column = f"{text.rstrip()}\n{' ' * (depth + 2)}", depth + 2
            text, column = text + item, column + len(item)
        return text


class Printed(torch.autograd.Function):
    """The tensor itself, which is written to standard error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, style: Style) -> Tensor:
        ctx.style = style
        _write(style.title, x, style)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None]:
        if ctx.style.print_gradient:
            _write(f"{ctx.style.title}_gradient", gradient, ctx.style)
        return gradient, None


def printed(x: Tensor, style: Style) -> Tensor:
    """``x``, printed whenever it is computed. Shapes are inferred on tensors without values, which print nothing."""
    if isinstance(x, FakeTensor):
        return x.clone()
    same: Tensor = Printed.apply(x, style)
    return same


def _write(title: str, values: Tensor, style: Style) -> None:
    sys.stderr.write(f"{title}: {style.text(values.detach())}\n")


def isRunningOnIpu() -> bool:
    """True if a model is compiled at this moment: its ``forward`` asks, to tell device from host."""
    return running() is not None


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """False: this is the emulator."""
    return False


def ipuHardwareVersion() -> int:
    """0, the version of no hardware."""
    return 0


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """``x``, its sum or its mean, from which PopTorch starts the backward pass if it is the last of the losses.

    Raises ``AssertionError`` if ``reduction`` is not one of "sum", "mean" and "none".
    """
    if not isinstance(reduction, str) or reduction not in ("sum", "mean", "none"):
        raise AssertionError("Unsupported reduction type!")
    trace = running()
    if trace is None or not isinstance(x, IpuTensor):
        return reduced(x, reduction)
    loss: Tensor = trace.record("identity_loss", reduced, (x, reduction), {}, loss="poptorch.identity_loss")
    return loss


def for_loop(count: int, body: Callable[..., Any], inputs: List[Tensor]) -> List[Tensor]:
    """``inputs = body(*inputs)``, ``count`` times, in inference only; on the host PopTorch runs the body once."""
    _check_list("poptorch.for_loop", "input tensors (inputs)", inputs)
    _inference_only("for_loop")
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count if isRunningOnIpu() else 1):
        results = _listed(body(*values))
        if not _alike(results, values):
            raise py_error("the body of poptorch.for_loop must return as many tensors as it takes, of the same shapes")
        values = results
    return values


def cond(
    condition: Tensor,
    then_body: Callable[..., Any],
    then_inps: List[Tensor],
    else_body: Callable[..., Any],
    else_inps: List[Tensor],
) -> List[Tensor]:
    """The results of one of two functions; in inference only."""
    _check_list("poptorch.cond", "then_inps", then_inps)
    _check_list("poptorch.cond", "else_inps", else_inps)
    _inference_only("cond")
    then, other = _listed(then_body(*then_inps)), _listed(else_body(*else_inps))
    if not _alike(then, other):
        raise py_error("the branches of poptorch.cond must return as many tensors, of the same shapes")
    chosen = condition.bool()
    return [torch.where(chosen, a, b) for a, b in zip(then, other)]


def _listed(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _alike(some: List[Tensor], others: List[Tensor]) -> bool:
    return [(x.shape, x.dtype) for x in some] == [(x.shape, x.dtype) for x in others]


def _check_list(function: str, name: str, inputs: Any) -> None:
    strange = [index for index, x in enumerate(inputs) if not isinstance(x, Tensor)] if type(inputs) is list else [-1]
    for index in strange:
        what = f"contained in list at index {index} is not torch.tensor" if index >= 0 else "is not list"
        raise ValueError(f"{function} expects {name} to be a list of tensors. (Object {what})")


def _inference_only(function: str) -> None:
    trace = running()
    if trace is not None and trace.training:
        raise cpp_error(f"poptorch.{function}() is only supported in inference.")


def _on_ipu(name: str, function: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
    """``function(x, *args)`` as one operation of the device; on the host ``x``."""
    trace = running()
    if trace is None or not isinstance(x, IpuTensor):
        return x
    result: Tensor = trace.record(name, function, (x, *args), {})
    return result


def _identity(x: Any, name: str, refusal: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise py_error(f"{refusal} {type(x)} is not supported.")
    return _on_ipu(name, torch.clone, x)


def nop(tensor: Tensor) -> Tensor:
    """``tensor``."""
    return _identity(tensor, "nop", "nop must take a torch.tensor argument.")


def ipu_print_tensor(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``tensor``, whose values, and in training whose gradient, are written to standard error at every run.

    The other arguments are those of :class:`Style`.
    """
    style = Style(*args, **kwargs)
    if not isinstance(tensor, Tensor):
        raise py_error(f"ipu print tensor must take a torch.tensor argument. {type(tensor)} is not supported.")
    if style.float_format not in FORMATS:
        raise KeyError(style.float_format)  # as PopTorch
    return _on_ipu("ipu_print_tensor", printed, tensor, style)


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """``tensor``; the emulator does not model memory."""
    return _identity(tensor, "nop", "You may only set available memory for torch.tensor values.")


def recomputationCheckpoint(*tensors: Any) -> Any:
    """The tensors; the emulator does not model memory."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return type(tensors[0])(tree_map(recomputationCheckpoint, tensors[0]))
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError("All inputs must be tensors")
    results: Tuple[Tensor, ...] = tuple(nop(tensor) for tensor in tensors)
    return results[0] if len(results) == 1 else results


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """The tensors, which must be inputs of the model; the emulator does not model time."""
    trace = running()
    if trace is not None and not {tensor.number for tensor in leaves(input_tensors, IpuTensor)} <= {
        *trace.graph.inputs
    }:
        raise cpp_error("poptorch.set_overlap_for_input applied on a node which is not a tensor input to the model.")
    return tree_map(lambda leaf: nop(leaf) if isinstance(leaf, Tensor) else leaf, input_tensors)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """The tensors, which the model must return; the emulator does not model time."""

    def marked(leaf: Any) -> Any:
        return _identity(leaf, "set_overlap_for_output", "") if isinstance(leaf, Tensor) else leaf

    return tree_map(marked, output_tensors)


def serializedMatMul(
    lhs: Tensor, rhs: Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> Tensor:
    """``torch.matmul(lhs, rhs)``; how it is cut into parts is memory, which the emulator does not model."""
    for value, kind in ((keep_precision, bool), (factor, int), (mode, MatMulSerializationMode)):
        if not isinstance(value, kind):
            raise AssertionError(f"serializedMatMul expects a {kind.__name__}, got {value!r}")
    return torch.matmul(lhs, rhs)


def _check_kinds(function: str, *values: Tuple[Any, type]) -> None:
    for value, kind in values:
        if not isinstance(value, kind):
            raise py_error(f"{function} takes a {kind.__name__} in the place of {type(value)}")


def _recorded(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """The function of tensors, as one operation of the device."""
    trace = running()
    if trace is None or not leaves(list(args), IpuTensor):
        return function(*args)
    return trace.record(name, function, args, {})


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """``tensor[start : start + size : step]`` along ``dim``, where ``start`` is a tensor; in inference only."""
    _check_kinds("dynamic_slice", (tensor, Tensor), (dim, int), (start, Tensor), (size, int), (step, int))
    _check_slice(size)
    if step < 1:
        raise cpp_error("Slicing step must be at least 1")
    if running() is not None and tensor.shape[dim] % size:
        raise cpp_error(
            f"The size of the slice ({size}) must be a factor of the slicing dimension ({tensor.shape[dim]})."
        )

    def sliced(tensor: Tensor, start: Tensor) -> Tensor:
        return tensor.index_select(dim, _positions(start, size, step))

    part: Tensor = _recorded("dynamic_slice", sliced, tensor, start)
    return part


def _check_slice(size: int) -> None:
    if size == 0:
        raise cpp_error("The start and end of a slice must be different.")
    if size < 0:
        raise cpp_error("Taking a slice of a tensor with the end less than the start is not supported.")
    trace = running()
    if trace is not None and trace.training:
        raise not_modelled("a dynamic slice in training", "PopTorch's tests have it in inference only")


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """``input`` with ``src`` in the place of ``input[start : start + size]`` along ``dim``."""
    _check_kinds("dynamic_update", (input, Tensor), (src, Tensor), (dim, int), (start, Tensor), (size, int))
    if input.dim() != src.dim():
        raise py_error(f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})")
    if input.dtype != src.dtype:
        raise py_error(f"input and src tensor must have same dtype. ({input.dtype} vs {src.dtype})")
    _check_slice(size)

    def replaced(input: Tensor, src: Tensor, start: Tensor) -> Tensor:
        return input.index_copy(dim, _positions(start, size, 1), src)

    updated: Tensor = _recorded("dynamic_update", replaced, input, src, start)
    return updated


def _positions(start: Tensor, size: int, step: int) -> Tensor:
    return start.reshape(()).long() + torch.arange(0, size, step)


#: One entry to each point, as a list or a tensor.
_Batch = Optional[Union[List[int], Tensor]]


def nearest(x: Tensor, y: Tensor, batch_x: _Batch = None, batch_y: _Batch = None) -> Tensor:
    """For each point of ``x`` the index of the nearest point of ``y``, of those with the same batch."""
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise py_error(f"`nearest` must take a torch.tensor `{name}` input. {type(value)} is not supported.")
    batches = [[] if batch is None else batch for batch in (batch_x, batch_y)]
    if not all(isinstance(batch, (list, Tensor)) for batch in batches):
        raise py_error(
            f"`batch_x` and `batch_y` must be torch.Tensors or lists while `batch_x` is of type {type(batch_x)} and "
            f"`batch_y` is of type {type(batch_y)}."
        )
    index: Tensor = _recorded("nearest", _nearest, x, y, *batches)
    return index


def _nearest(x: Tensor, y: Tensor, batch_x: Any, batch_y: Any) -> Tensor:
    distances = torch.cdist(x.float().reshape(len(x), -1), y.float().reshape(len(y), -1))
    if len(batch_x) and len(batch_y):
        apart = torch.as_tensor(batch_x)[:, None] != torch.as_tensor(batch_y)[None, :]
        distances = distances.masked_fill(apart, float("inf"))
    return distances.argmin(1).int()


class NameScope(nullcontext):  # type: ignore[type-arg]  # not generic in Python 3.8
    """Names of operations in PopART's graph, which is not here: no effect."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise AssertionError("Parameter to NameScope must be a string")
        super().__init__()


class CPU:
    """``poptorch.CPU``: a function that the host computes in the middle of an inference graph."""

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer_to_call = layer_to_call
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)

    def __call__(self, *input: Tensor, **kwargs: Any) -> Any:
        """The results of the function, which is called once with zeros while the model is compiled."""
        trace = running()
        if trace is None:
            return self._layer_to_call(*input)
        _inference_only("CPU")
        with trace.aside():
            example = self._layer_to_call(*[torch.zeros(one.shape, dtype=one.dtype, device="cpu") for one in input])

        def on_host(*inputs: Tensor) -> Any:
            if any(isinstance(tensor, FakeTensor) for tensor in inputs):
                return tree_map(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype), example)
            with torch.no_grad():
                return self._layer_to_call(*inputs)

        return trace.record("call_cpu_op", on_host, input, {})


def custom_op(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: a custom operation is C++ for the Poplar SDK, which is not here to compile it."""
    raise py_error("poptorch.custom_op needs the Poplar SDK: the emulator has nothing to compile C++ operations with")


def _multi_conv_setter(name: str, kind: type) -> Callable[[MultiConv, Any], MultiConv]:
    def setter(self: MultiConv, value: Any) -> MultiConv:
        values = _listed(value)
        if value is not None and not (values and all(isinstance(part, kind) for part in values)):
            raise AssertionError(f"Invalid {name}!")
        return self

    return setter


class MultiConv:
    """``with poptorch.MultiConv():`` computes the convolutions inside at the same time: no effect on numbers.

    What its setters are given is checked, and concerns memory and time.
    """

    availableMemoryProportions = _multi_conv_setter("available memory proportion", float)
    perConvReservedTiles = _multi_conv_setter("number of reserved tiles", int)
    cycleBackOff = _multi_conv_setter("cycle back off", float)

    def partialsTypes(self, value: Any) -> MultiConv:
        """Partial sums are those of the CPU."""
        if not set(_listed(value)) <= {torch.float32, torch.float16}:
            raise ValueError("Invalid partials types. Expecting torch.float or torch.half")
        return self

    def enableConvDithering(self, value: Any) -> MultiConv:
        """Memory."""
        if value is not None and not all(isinstance(flag, bool) for flag in _listed(value)):
            raise ValueError("value must be bool or list of bools")
        return self

    def planType(self, value: Optional[MultiConvPlanType]) -> MultiConv:
        """Time."""
        if value is not None and not isinstance(value, MultiConvPlanType):
            raise AssertionError("Invalid plan type!")
        return self

    def __enter__(self) -> None:
        trace = running()
        if trace is not None:
            if trace.multi_conv is not None:
                raise cpp_error("Nested poptorch.MultiConv is not supported")
            trace.multi_conv = len(trace.graph.nodes)

    def __exit__(self, kind: Any, *exception: Any) -> None:
        trace = running()
        if trace is not None and kind is None:
            inside = trace.graph.nodes[trace.multi_conv :]
            trace.multi_conv = None
            if not any(node.name == "convolution" for node in inside):
                raise cpp_error("Unexpected end_multi_conv")
