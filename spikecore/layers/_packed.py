"""Layers that keep their input for backward as bits; ``sc.layers.pack`` puts them into a network.

Autograd keeps the input of a linear layer or a convolution for the gradient of the weight. Where that is spikes, a bit
each is enough. Rules of this module:

- Outputs and gradients are torch's, by the same calls, unless a backend adds rows of the weight instead.
- What the input holds is said, by ``largest`` and ``unit`` of a layer. Whether it is so is checked while it is packed,
  without waiting for a device: on a CPU other numbers raise, elsewhere the gradient of the weight is NaN.
- Packing and unpacking are two ops of torch, which ``torch.compile`` keeps as they are. A backend computes them.
- Compiled graphs have dense products.
- Where a backend adds rows, an input of a dense product is kept whole up to :data:`WHOLE` bytes: bits of a small one
  take longer than its products.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spikecore._base.bits import Bits, Whole, memory_order
from spikecore._base.contract import Unsupported
from spikecore.context import (
    COMPILES,
    PLAIN,
    autocast_dtype,
    is_autocast,
    is_compiling,
    is_exporting,
    is_plain,
    no_autocast,
    require_compiler,
)
from spikecore.dtypes import NAMES
from spikecore.plugins.registry import Registry, default_registry
from spikecore.plugins.selection import Request, Resolved, resolve

#: Bytes of an input that is kept whole at most.
WHOLE = 1 << 22
#: Rows, steps times samples, for which a backend is asked if it adds rows at all.
MANY = 1 << 12
#: Stride, padding and dilation of a convolution, a number for each dimension, and groups; empty for a linear layer.
Form = Sequence[int]


class _Packed(nn.Module):
    """Base of all layers, beside torch's classes."""

    #: The class that :func:`spikecore.layers.unpack` puts in its place.
    plain: Type[nn.Module]
    #: Range of the input.
    spikes: Whole
    #: True if every output is to be a sum in the order of the inputs.
    in_order: bool = False

    def __init__(self, *args: Any, largest: int = 1, unit: float = 1.0, **keywords: Any) -> None:
        require_compiler("packing spikes as bits")
        super().__init__(*args, **keywords)
        self.spikes = Whole(largest, unit)

    def extra_repr(self) -> str:
        """Text of torch's layer, and the range of the input."""
        unit = f", unit={self.spikes.unit}" if self.spikes.unit != 1.0 else ""
        order = ", in_order=True" if self.in_order else ""
        return f"{super().extra_repr()}, largest={self.spikes.largest}{unit}{order}"


class PackedLinear(_Packed, nn.Linear):
    """``nn.Linear`` for spikes: ``[..., C] -> [..., D]``. It keeps its input as bits for backward.

    The input must hold whole numbers from 0 to ``largest``, times ``unit``: with the defaults spikes, 0 or 1, which
    take a bit each. Numbers up to 3 take two bits, up to 15 four, up to 255 eight. Behind a sum of n spikes ``largest``
    is n; behind an average of four, ``largest=4, unit=0.25``. The input is float16, bfloat16, float32 or float64.

    Other numbers raise ValueError on a CPU where they are kept as bits. On another device, where reading them would
    wait, the gradient of the weight is NaN; outputs and the gradient of the input are right.

    The input is kept whole, as by ``nn.Linear``, for tensors of subclasses, within ``torch.func`` and
    ``torch.export``, and under modes that see every operation. It is not kept where the weight needs no gradient.
    Second derivatives raise RuntimeError: :func:`spikecore.layers.unpack` puts torch's layers back. Names in
    ``state_dict`` are those of ``nn.Linear``, and so are all other arguments.

    On a CPU with spikecore-numba a call that has few spikes adds up the columns of the weight for what fired, in the
    order of the inputs, and so do its gradients. A dense product takes the others, which keep an input of up to 4 MiB
    whole, and those that are compiled, exported, transformed, or under autocast without gradients. Outputs and
    gradients are then torch's to rounding.

    args, keywords: those of ``nn.Linear``.
    in_order: if true, every output is a sum in the order of the inputs, at any rate, so that single steps have the bits
        of a sequence. A call that cannot do so raises :class:`spikecore.backend.Unsupported`.
    largest: the largest number in the input, divided by ``unit``; 1 to 255.
    unit: what numbers in the input are multiples of; a power of 2 from 1/128 to 128.

    Raises ValueError for a ``largest`` that is not from 1 to 255 and for a ``unit`` that is no power of 2 from 1/128 to
    128, and :class:`spikecore.backend.Unsupported` for torch before 2.6.
    """

    computes = plain = nn.Linear

    def __init__(
        self, *args: Any, largest: int = 1, unit: float = 1.0, in_order: bool = False, **keywords: Any
    ) -> None:
        super().__init__(*args, largest=largest, unit=unit, **keywords)
        self.in_order = in_order

    def forward(self, input: Tensor) -> Tensor:
        """``[..., C] -> [..., D]``."""
        own, compiles = self._parameters, is_compiling()
        if not (self.in_order or compiles) and input.is_cpu and "weight" in own:
            # a small product takes a few microseconds: its size is looked at before all else
            size = input.numel(), self.in_features, self.out_features, input.dtype
            if _is_plain(*size, torch.is_grad_enabled(), torch.get_num_threads(), default_registry()):
                return F.linear(input, own["weight"], own["bias"])  # type: ignore[arg-type]  # there is a weight
        weight, bias = self.weight, self.bias
        if _keeps(input, weight):
            return _kept(input, weight, bias, self.spikes, [], self.in_order)
        y = None
        if (self.in_order or not compiles) and _is_constant(input, weight, bias):
            y = _rows(input, weight.t(), bias, self.in_order)
        if y is None and self.in_order and input.numel():
            raise _not_in_order(input)
        return F.linear(input, weight, bias) if y is None else y


class _PackedConvolution(_Packed):
    """Base of the convolutions."""

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, ...] -> [B, D, ...]``, or ``[C, ...] -> [D, ...]``."""
        conv: Any = self
        weight, bias, dims = conv.weight, conv.bias, conv.weight.ndim - 2
        if input.ndim not in (dims + 1, dims + 2) or not _keeps(input, weight):
            return super().forward(input)  # type: ignore[no-any-return]  # torch's
        padding: Any = conv.padding
        if conv.padding_mode != "zeros" or isinstance(padding, str):
            mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
            input, padding = F.pad(input, conv._reversed_padding_repeated_twice, mode), (0,) * dims
        x = input if input.ndim == dims + 2 else input.unsqueeze(0)
        form = [*conv.stride, *padding, *conv.dilation, conv.groups]
        if dims > 1:
            y = _kept(x, weight, bias, self.spikes, form, False)
        elif is_product(conv) and conv.stride == (1,) and x.transpose(1, 2).is_contiguous():
            y = _kept(x.transpose(1, 2), weight.squeeze(2), bias, self.spikes, [], False).transpose(1, 2)
        else:
            form = [1, form[0], 0, form[1], 1, *form[2:]]
            y = _kept(x.unsqueeze(2), weight.unsqueeze(2), bias, self.spikes, form, False).squeeze(2)
        return y if input.ndim == dims + 2 else y.squeeze(0)


class PackedConv1d(_PackedConvolution, nn.Conv1d):
    """``nn.Conv1d`` that keeps its input as bits for backward, in every way as :class:`PackedConv2d`.

    It is computed in two dimensions, one of which is 1, so that it keeps the layout of a channels-last input
    (:func:`spikecore.layers.channels_last`).

    args, keywords: those of ``nn.Conv1d``.
    largest, unit: as of :class:`PackedLinear`.
    """

    computes = nn.Conv1d
    plain: Type[nn.Module] = nn.Conv1d


class PackedConv2d(_PackedConvolution, nn.Conv2d):
    """``nn.Conv2d`` that keeps its input as bits for backward, in every way as :class:`PackedLinear`.

    With ``padding="same"`` and a kernel of an even size gradients are torch's to rounding. On a GPU the gradient of the
    weight is computed before that of the input, so that the spikes, unpacked, are gone before the latter is there.

    args, keywords: those of ``nn.Conv2d``.
    largest, unit: as of :class:`PackedLinear`.
    """

    computes = plain = nn.Conv2d


class PackedConv3d(_PackedConvolution, nn.Conv3d):
    """``nn.Conv3d`` that keeps its input as bits for backward, in every way as :class:`PackedConv2d`.

    args, keywords: those of ``nn.Conv3d``.
    largest, unit: as of :class:`PackedLinear`.
    """

    computes = plain = nn.Conv3d


def is_product(conv: Any) -> bool:
    """True if a convolution of one dimension is a product over the channels of each place that it takes."""
    return bool(conv.kernel_size == (1,) and conv.padding in ((0,), "same", "valid") and conv.groups == 1)


def _keeps(x: Tensor, weight: Tensor) -> bool:
    """True if a call keeps its input as bits."""
    if not torch.is_grad_enabled() or not weight.requires_grad or x.dtype not in NAMES or not x.numel():
        return False
    return not is_exporting() if is_compiling() else is_plain(x) and type(weight) in PLAIN


def _is_constant(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> bool:
    """True if a call is eager, in the dtype of its factors, and nobody wants its gradient."""
    if is_compiling() or not is_plain(x) or type(weight) not in PLAIN or is_autocast(x.device.type):
        return False
    factors = (x, weight) if bias is None else (x, weight, bias)
    return not torch.is_grad_enabled() or not any(factor.requires_grad for factor in factors)


def _kept(x: Tensor, weight: Tensor, bias: Optional[Tensor], spikes: Whole, form: Form, in_order: bool) -> Tensor:
    factors = _autocast(x, weight, bias)
    if is_compiling():
        if in_order:
            raise _not_in_order(x)
        return torch.ops.spikecore.kept(*factors, *spikes, form)  # type: ignore[no-any-return]  # torch says nothing
    made: List[Tensor] = []
    if not form:
        x, weight, bias = factors  # type: ignore[assignment]  # only the last one may be None
        y = _rows(x.detach(), weight.detach().t(), None if bias is None else bias.detach(), in_order)
        if y is not None:
            made = [y]
        elif in_order:
            raise _not_in_order(x)
        elif x.is_cpu and _is_whole(*_size(x, weight)):
            return F.linear(x, weight, bias)
    return _Kept.apply(*factors, *spikes, form, made)  # type: ignore[no-any-return]  # the same


def _size(x: Tensor, weight: Tensor) -> Tuple[int, int, int, torch.dtype, int, Registry]:
    return x.numel(), weight.shape[1], weight.shape[0], x.dtype, torch.get_num_threads(), default_registry()


@functools.lru_cache(maxsize=1024)
def _is_plain(
    numbers: int, count: int, width: int, dtype: torch.dtype, graph: bool, threads: int, registry: Registry
) -> bool:
    """True if a call on a CPU is that of ``nn.Linear`` by its size, for an input of so many numbers; ``graph``: with
    gradients.
    """
    dense = not _adds(numbers, count, width, dtype, threads, registry, graph)
    return dense and (not graph or _is_whole(numbers, count, width, dtype, threads, registry))


def _is_whole(numbers: int, count: int, width: int, dtype: torch.dtype, threads: int, registry: Registry) -> bool:
    """True if an input of a dense product is kept whole: a small one, where rows are added in some calls."""
    small = numbers * dtype.itemsize <= WHOLE
    return small and _adds(MANY * count, count, width, dtype, threads, registry, False)


def _adds(
    numbers: int, count: int, width: int, dtype: torch.dtype, threads: int, registry: Registry, bits: bool
) -> bool:
    """True if a CPU's backend may add rows for an input of so many numbers; ``bits``: for one that is kept as bits."""
    backend = _chosen("cpu", registry).backend
    return bool(backend.adds_rows(numbers // (count or 1), count, width, dtype, bits=bits))


def _rows(x: Tensor, table: Tensor, bias: Optional[Tensor] = None, always: bool = False) -> Optional[Tensor]:
    """``x @ table + bias`` by the backend that adds rows of ``table``; None where a product is to be dense."""
    dtype, shape = x.dtype, x.shape
    same = dtype == table.dtype and (bias is None or dtype == bias.dtype) and shape[-1:] == table.shape[:1]
    if not same or not x.numel() or x.device != table.device:
        return None
    flat = x if x.ndim == 2 else x.reshape(-1, table.shape[0])
    flat = flat.contiguous() if always else flat
    y: Optional[Tensor] = _by_backend(x.device.type, "sparse_product", flat, table, bias, always)
    return y if y is None or x.ndim == 2 else y.view(*shape[:-1], table.shape[1])


def _not_in_order(x: Tensor) -> Unsupported:
    return Unsupported(
        f"PackedLinear(in_order=True) cannot add rows for x of shape {list(x.shape)}, {x.dtype}, on {x.device}: it "
        "takes a CPU with spikecore-numba, outside of torch.compile, torch.export, torch.func, and of autocast without "
        "gradients; with gradients the weight needs one, too. Choose in_order=False"
    )


def _autocast(x: Tensor, *others: Optional[Tensor]) -> Sequence[Optional[Tensor]]:
    """The factors of a product as autocast has them."""
    dtype = autocast_dtype(x.device.type)
    if dtype is None or x.dtype == torch.float64:
        return (x, *others)
    return [value if value is None else value.to(dtype) for value in (x, *others)]


class _Kept(torch.autograd.Function):
    """A linear layer or a convolution."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        largest: int,
        unit: float,
        form: Form,
        made: Sequence[Tensor] = (),
    ) -> Tensor:
        # the order of memory, so that what is unpacked has the strides of x
        order = memory_order(x)
        data, right = torch.ops.spikecore.pack_spikes(x, order, largest, unit)
        ctx.save_for_backward(data, right, weight)
        ctx.about = (x.shape, order, largest, unit, x.dtype)
        ctx.form, ctx.sizes = form, None if bias is None else [bias.shape[0]]
        return made[0] if made else _plain(x, weight, bias, largest, unit, form)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        # read once: a checkpointed part is computed again for it
        saved = ctx.saved_tensors
        of = _of_convolution if ctx.form else _of_linear
        return (*of(ctx, saved, grad), None, None, None, None)


def _plain(x: Tensor, weight: Tensor, bias: Optional[Tensor], largest: int, unit: float, form: Form) -> Tensor:
    if not form:
        return F.linear(x, weight, bias)
    return (F.conv2d if x.ndim == 4 else F.conv3d)(x, weight, bias, *_parts(form))


def _parts(form: Form) -> Tuple[Any, Any, Any, int]:
    dims = len(form) // 3
    return form[:dims], form[dims : 2 * dims], form[2 * dims : 3 * dims], form[3 * dims]


def _of_linear(ctx: Any, saved: Sequence[Tensor], grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    weight, wants, plain = saved[2], ctx.needs_input_grad, is_plain(grad)
    flat = grad.reshape(-1, weight.shape[0])
    of_input = of_weight = None
    if wants[1]:
        x = _restored(saved, ctx.about).reshape(-1, weight.shape[1])
        turned = _rows(x.t(), flat) if plain else None
        if turned is None and not weight.is_contiguous():
            turned = x.t() @ flat  # as the weight lies, so that autograd copies nothing
        of_weight = flat.t() @ x if turned is None else turned.t()
    if wants[0]:
        of_input = _rows(flat, weight) if plain else None
        of_input = (flat @ weight if of_input is None else of_input).view(ctx.about[0])
    return of_input, of_weight, flat.sum(0) if wants[2] else None


def _of_convolution(ctx: Any, saved: Sequence[Tensor], grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    weight, wants = saved[2], list(ctx.needs_input_grad[:3])
    stride, padding, dilation, groups = _parts(ctx.form)
    apart = grad.is_cuda and wants[0]
    how = (stride, padding, dilation, False, [0] * len(stride), groups, [wants[0] and not apart, *wants[1:]])
    gradients = torch.ops.aten.convolution_backward(grad, _restored(saved, ctx.about), weight, ctx.sizes, *how)
    of_input = _of_input(grad, weight, ctx.about[0], ctx.form) if apart else gradients[0]
    return of_input, gradients[1], gradients[2] if wants[2] else None


def _of_input(grad: Tensor, weight: Tensor, shape: torch.Size, form: Form) -> Tensor:
    """The gradient of an input of this shape.

    Torch's function for it wants an input, which it would copy into the layout of the others; the transposed
    convolution is the same call of a GPU's library without one.
    """
    stride, padding, dilation, groups = _parts(form)
    sizes = zip(grad.shape[2:], stride, padding, dilation, weight.shape[2:])
    reached = [(n - 1) * step - 2 * pad + apart * (k - 1) + 1 for n, step, pad, apart, k in sizes]
    rest = [size - least for size, least in zip(shape[2:], reached)]
    # a caller may run backward under autocast
    with no_autocast(grad.device.type):
        back = F.conv_transpose2d if grad.ndim == 4 else F.conv_transpose3d
        return back(grad, weight, None, stride, padding, rest, groups, dilation)


def _restored(saved: Sequence[Tensor], about: Any) -> Tensor:
    x: Tensor = torch.ops.spikecore.unpack_spikes(*saved[:2], *about)
    return x


# -- the ops


def _pack(x: Tensor, order: List[int], largest: int, unit: float) -> Tuple[Tensor, Tensor]:
    numbers = x.detach().permute(order).reshape(-1)
    packed: Bits = _by_backend(x.device.type, "pack", numbers, Whole(largest, unit))
    if x.device.type == "cpu" and bool(packed.right.isnan()):
        what = "spikes, 0 or 1" if (largest, unit) == (1, 1.0) else f"whole numbers from 0 to {largest}, times {unit}"
        raise ValueError(
            f"x of shape {list(x.shape)} is not what its layer was said to get: {what}. PackedLinear and PackedConv2d "
            "take largest= and unit=; use nn.Linear and nn.Conv2d for other numbers. If it is the shortcut of a "
            "NormNeuron, call sc.layers.unpack(net); if it is the input of a group, sc.checkpoint(..., bits=False)"
        )
    return packed.data, packed.right


def _pack_fake(x: Tensor, order: List[int], largest: int, unit: float) -> Tuple[Tensor, Tensor]:
    count = (x.numel() * Whole(largest, unit).bits + 7) // 8
    return x.new_empty(count, dtype=torch.uint8), x.new_empty((), dtype=torch.float32)


def _unpack(
    data: Tensor, right: Tensor, shape: List[int], order: List[int], largest: int, unit: float, dtype: torch.dtype
) -> Tensor:
    count = functools.reduce(lambda n, size: n * size, shape, 1)
    numbers = _by_backend(data.device.type, "unpack", Bits(data, right), Whole(largest, unit), count, dtype)
    return _in_order(numbers, shape, order)


def _unpack_fake(
    data: Tensor, right: Tensor, shape: List[int], order: List[int], largest: int, unit: float, dtype: torch.dtype
) -> Tensor:
    count = functools.reduce(lambda n, size: n * size, shape, 1)
    return _in_order(data.new_empty(count, dtype=dtype), shape, order)


def _in_order(numbers: Tensor, shape: List[int], order: List[int]) -> Tensor:
    laid = numbers.view([shape[dim] for dim in order])
    return laid.permute([order.index(dim) for dim in range(len(order))])


def _by_backend(device_type: str, method: str, *arguments: Any) -> Any:
    """Result of the backend of a type of device."""
    return getattr(_chosen(device_type, default_registry()).backend, method)(*arguments)


@functools.lru_cache(maxsize=8)
def _chosen(device_type: str, registry: Registry) -> Resolved:
    return resolve(Request(None, ""), device_type, registry)


def _register() -> None:
    """Define the operators, once: a second import, after removal from ``sys.modules``, goes on with them."""
    lasting = vars(torch.ops.spikecore)
    if "library of packing" in lasting:
        return
    library = torch.library.Library("spikecore", "FRAGMENT")
    how = "int[] order, int largest, float unit"
    operators: Dict[str, Tuple[str, Callable[..., Any], Callable[..., Any]]] = {
        "pack_spikes": (f"(Tensor x, {how}) -> (Tensor, Tensor)", _pack, _pack_fake),
        "unpack_spikes": (
            f"(Tensor data, Tensor right, SymInt[] shape, {how}, ScalarType dtype) -> Tensor",
            _unpack,
            _unpack_fake,
        ),
        # what torch.compile sees of a layer; its kernel for autograd, traced, is made of the others
        "kept": (
            "(Tensor x, Tensor weight, Tensor? bias, int largest, float unit, int[] form) -> Tensor",
            _plain,
            _plain,
        ),
    }
    for name, (schema, function, fake) in operators.items():
        library.define(name + schema)
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"spikecore::{name}", fake, lib=library)
    library.impl("kept", _Kept.apply, "Autograd")
    lasting["library of packing"] = library  # torch forgets the operators with it


if COMPILES:
    _register()


# -- in networks


def lay(weight: Tensor, by_input: bool) -> None:
    """Lay a weight ``[D, C]`` in memory with what an input gives side by side, or as torch has it. Values stay."""
    if type(weight) in PLAIN:
        weight.data = weight.data.t().contiguous().t() if by_input else weight.data.contiguous()


def adds_rows(weight: Tensor, rows: int, bits: bool = False) -> bool:
    """True if a backend may add columns of a weight for what fired in so many rows; ``bits``: kept as bits."""
    count, width, dtype = weight.shape[1], weight.shape[0], weight.dtype
    backend = _chosen(weight.device.type, default_registry()).backend
    return bool(backend.adds_rows(rows, count, width, dtype, bits=bits))


def as_kind(module: nn.Module, kind: Type[nn.Module], spikes: Optional[Whole] = None) -> nn.Module:
    """The same layer as another kind: parameters and hooks are those of ``module``."""
    made: Any = kind.__new__(kind)
    own = ("spikes", "in_order", "plain")
    vars(made).update({name: value for name, value in vars(module).items() if name not in own})
    if spikes is not None:
        made.spikes, made.plain = spikes, type(module)
    return made  # type: ignore[no-any-return]  # of this kind
