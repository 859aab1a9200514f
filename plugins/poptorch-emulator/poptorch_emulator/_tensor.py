"""The tensor that a model sees while it is compiled: a shape and a dtype on the device ``ipu:0``, and no values.

Rules of this module:

- Its values cannot be read on the host: that raises PopTorch's error.
- It belongs to one trace. One that ``forward`` left on an attribute is an error in a later trace.
- In torch's C++ code its device is ``meta``: torch has the device type ``ipu`` but no device guard for it, which
  indexing needs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Tuple

import torch
from torch import Tensor

from ._errors import Error, cpp_error, py_error

if TYPE_CHECKING:
    from ._trace import Trace

DEVICE = torch.device("ipu:0")
_META = torch.device("meta")

#: dtypes that the device does not compute with -> what PopTorch converts them to: inputs, outputs and all in between.
NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.bfloat16: torch.float32}

READ = (
    "aten::item is only supported in eager mode, but was intercepted in a static graph. This means an IPU to CPU copy "
    "was triggered before the end of the graph, for example by calling tensor.item(). Please ensure that any such "
    "copies are removed."
)
MOVE = 'Illegal move to CPU (via `.to("cpu")`) when using the dispatcher. Instead, return this output as an IPU tensor.'
STALE = (
    'Attempted to promote a Tensor converted (using .to("ipu") or .ipu()) outside an IPUScope or IPUContext with the '
    "PopART compiler."
)
DATA = (
    "`.data` inside of a compiled model: PopTorch's documentation says that it stops gradients, its source that it "
    "does not. Use .detach()."
)


def narrowed(dtype: torch.dtype) -> torch.dtype:
    return NARROWED.get(dtype, dtype)


def narrow(tensor: Tensor) -> Tensor:
    """``tensor`` in its dtype on the device; integers that do not fit wrap around, as in PopTorch."""
    return tensor.to(narrowed(tensor.dtype))


def on_ipu(device: Any) -> bool:
    """True if an operation is asked to put its result on the device."""
    return device is not None and torch.device(device).type in (DEVICE.type, "meta")


def zero_sized(shape: torch.Size, where: str = "") -> Error:
    """PopTorch's error for a tensor without elements, and a sentence on which it is."""
    return cpp_error(f"Zero-sized tensors are unsupported (Got shape {list(shape)}).{where}")


#: What C++ calls the dtypes, in PopTorch's messages.
_SCALAR_TYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}


def host_tensor(tensor: Tensor) -> Error:
    """PopTorch's error for a tensor of the host among the arguments of an operation of the device."""
    return cpp_error(
        f"Expected an IPU tensor but got tensor(device={tensor.device}, shape={list(tensor.shape)}, "
        f"dtype={_SCALAR_TYPES.get(tensor.dtype, tensor.dtype)}).\nConstant tensors should be moved explicitly to the "
        'IPU, via cpu_tensor.to("ipu").'
    )


class Layout:
    """Order of the numbers of a tensor in memory. It is compared as an object: see :func:`layout`."""

    __slots__ = ("dtype", "offset", "shape", "strides")

    def __init__(self, shape: torch.Size, strides: Tuple[int, ...], offset: int, dtype: torch.dtype) -> None:
        self.shape, self.strides, self.offset, self.dtype = shape, strides, offset, dtype


def layout(tensor: Tensor) -> Layout:
    """The layout of a tensor. As a rule equal layouts are one object, which is what makes them quick to compare."""
    return _layout(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def contiguous(shape: torch.Size, dtype: torch.dtype) -> Layout:
    """The layout of a new tensor."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(1, size)
    return _layout(shape, tuple(reversed(strides)), 0, dtype)


def laid_as(laid: Layout, dtype: torch.dtype) -> Layout:
    return _layout(laid.shape, laid.strides, laid.offset, dtype)


@functools.lru_cache(maxsize=20_000)
def _layout(shape: torch.Size, strides: Tuple[int, ...], offset: int, dtype: torch.dtype) -> Layout:
    return Layout(shape, strides, offset, dtype)


class IpuTensor(Tensor):
    """Value ``number`` of the graph that ``recorder`` records. torch.Tensor has no attributes of these names."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch does the same

    recorder: Trace
    number: int
    laid: Layout
    #: The same layout, for the shape inference of torch; None until that is asked for.
    fake: Optional[Tensor]
    #: The tensor that it is a view of.
    base: Optional[IpuTensor]

    @staticmethod
    def __new__(
        cls, recorder: Trace, number: int, laid: Layout, fake: Optional[Tensor], base: Optional[IpuTensor]
    ) -> IpuTensor:
        tensor: IpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            laid.shape,
            strides=laid.strides,
            storage_offset=laid.offset,
            dtype=laid.dtype,
            device=_META,
        )
        tensor.recorder, tensor.number, tensor.laid, tensor.fake, tensor.base = recorder, number, laid, fake, base
        return tensor

    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]  # torch names a keyword
        return "<unavailable>"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # it never returns
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        # torch asks the dispatch mode of a running trace first: this is reached without one
        raise cpp_error(STALE)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch, as the next two
        return DEVICE

    @property
    def is_meta(self) -> bool:  # type: ignore[override]  # as device
        return False

    def _no_data(self, *value: Any) -> NoReturn:
        raise py_error(DATA)

    data = property(_no_data, _no_data)

    def tolist(self) -> NoReturn:
        raise cpp_error(READ)

    def numpy(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise cpp_error(MOVE)

    __array__ = numpy
