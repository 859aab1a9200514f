"""``sc.packed_spikes()``: tensors of spikes that autograd saves, kept as bits by a hook.

Rules of this module:

- What is packed is what :func:`spikecore.training._packed.origin.origin` knows to be small whole numbers. Everything
  else is kept as autograd keeps it, its check for changes in place included, which torch leaves to the hooks.
- Tensors in the same memory, such as the output of a neuron and a view of it, share their bits. The hook holds no
  memory of what it packed.
- Hooks that are active around the context get what this one keeps, as they would get the tensor.
"""

from __future__ import annotations

import warnings
import weakref
from contextlib import ExitStack
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from spikecore._base.bits import Whole
from spikecore._shell import marked
from spikecore._shell.misplaced import guided
from spikecore.backend import Unsupported
from spikecore.lang._plain import is_compiling
from spikecore.training._packed.bits import LEAST, REFERENCE, Packed, is_dense, packed
from spikecore.training._packed.origin import origin

_Unpack = Callable[[Any], Any]
#: The innermost hooks; None if there are none. Before torch 2.2 one cannot ask.
_around: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


class _Kept(NamedTuple):
    """A tensor as it is, with its version."""

    tensor: Tensor
    version: int


class _Outside(NamedTuple):
    """What the hooks around this one made of a tensor, and how they give it back."""

    handle: Any
    unpack: _Unpack


class InBits(NamedTuple):
    """Numbers that are packed, and how the tensor lies in them."""

    packed: Packed
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    #: Where the bits are, if not in ``packed``.
    outside: Optional[_Outside]

    def tensor(self) -> Tensor:
        """The tensor as it was saved."""
        bits = self.packed if self.outside is None else self.packed.holding(self.outside.unpack(self.outside.handle))
        return bits.numbers().as_strided(self.shape, self.stride)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.packed.count

    @property
    def bytes(self) -> int:
        """The memory of the bits, wherever it is."""
        return (self.size * self.packed.whole.bits + 7) // 8

    @property
    def data(self) -> Optional[Tensor]:
        """The bits; None where the hooks around this one keep them."""
        return self.packed.data


class _Memory(NamedTuple):
    """What is known of some memory: whether it is still there, and what was packed of it."""

    there: StorageWeakRef
    found: Dict[Any, weakref.ref[Packed]]


def _around_forward(unknown: Mapping[str, Any]) -> str:
    return "it is a block around the forward pass: with sc.packed_spikes(): loss = criterion(net(x), y)"


@guided("sc.packed_spikes", _around_forward)
class packed_spikes:  # noqa: N801  # a context, as torch.no_grad
    """Around a forward pass: what autograd saves of spikes, and of sums of spikes, is kept as bits::

        with sc.packed_spikes() as packed:
            loss = criterion(net(x), y)
        loss.backward()
        packed.before, packed.after           # bytes of the tensors that were packed, and of their bits

    Gradients are those of the plain pass, bit for bit. A tensor is packed where autograd's graph says that it holds
    spikes of a neuron, or is made of such by views, copies (also to another floating-point type), max pooling, average
    pooling by a power of 2, stacking, sums (up to 255) and products. Everything else is kept whole: what was
    changed in place, spikes that need no gradient, and fewer than 1024 numbers. A write that autograd does not see
    (``tensor.data``) is found by value on a CPU; on another device, where reading a value would wait, the tensor comes
    back as NaN.

    It works with autocast, CUDA graphs, ``DistributedDataParallel``, ``sc.checkpoint`` and ``torch.utils.checkpoint``
    within it, and within other saved-tensor hooks, which get the bits (from torch 2.2 on). A network under
    ``torch.compile`` saves what its graph keeps, without a word of what it holds: give the plain network to
    ``sc.training_model`` with ``sc.CudaOptions(compile=True, pack_spikes=True)``, which packs in the graph.

    Raises Unsupported where torch.compile traces it, and RuntimeError for one that is entered twice.
    """

    def __init__(self) -> None:
        #: Bytes of the tensors that were packed, each memory once.
        self.before = 0
        #: Bytes of what they were packed to.
        self.after = 0
        self._large = self._notes = 0
        self._memory: Dict[int, _Memory] = {}
        self._sweep = 64
        self._around: Any = None
        self._stack: Optional[ExitStack] = None

    def __enter__(self) -> packed_spikes:
        if is_compiling():
            raise Unsupported(
                "sc.packed_spikes() cannot be within a function under torch.compile; give the plain network to "
                "sc.training_model with sc.CudaOptions(compile=True, pack_spikes=True), which packs in the graph"
            )
        if self._stack is not None:
            raise RuntimeError("this sc.packed_spikes() is active already; make one for each block")
        self._around, self._large, self._notes = _around(True), 0, marked.notes
        with ExitStack() as stack:
            stack.enter_context(marked.wanting())
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Any, trace: Any) -> None:
        stack, self._stack = self._stack, None
        self._memory.clear()
        self._around = None
        if stack is not None:
            stack.close()
        if kind is None and self._large and marked.notes == self._notes:
            warnings.warn(
                f"sc.packed_spikes(): no neuron has given spikes that need a gradient, so all {self._large} large "
                "tensors that were saved for backward are kept whole. A network under torch.compile does not say what "
                "it saves: give the plain one to sc.training_model with sc.CudaOptions(compile=True, pack_spikes=True)",
                RuntimeWarning,
                stacklevel=2,
            )

    def _pack(self, tensor: Tensor) -> Any:
        bits = self._in_bits(tensor)
        if bits is not None:
            return bits
        if self._around is not None:
            return self._outside(tensor)
        # a result that is saved by its own node would keep that node alive, which keeps the result
        return _Kept(tensor if tensor.is_leaf else tensor.detach(), tensor._version)

    def _in_bits(self, tensor: Tensor) -> Optional[InBits]:
        """None for a tensor that is kept whole."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.numel() < LEAST or tensor.is_neg():
            return None
        self._large += 1
        whole = origin(tensor)
        return None if whole is None else self._bits(tensor, whole)

    def _bits(self, tensor: Tensor, whole: Whole) -> Optional[InBits]:
        shape, stride = tuple(tensor.shape), tensor.stride()
        if not is_dense(shape, stride):
            if 0 in stride:
                return None  # its memory is smaller than what would be packed
            tensor = tensor.detach().contiguous()
            stride = tensor.stride()
        found = self._packed(tensor.detach(), whole)
        if found is None:
            return None
        if self._around is None:
            return InBits(found, shape, stride, None)
        return InBits(found.holding(None), shape, stride, self._outside(found.data))

    def _outside(self, tensor: Optional[Tensor]) -> _Outside:
        pack, unpack = self._around
        return _Outside(pack(tensor), unpack)

    def _packed(self, tensor: Tensor, whole: Whole) -> Optional[Packed]:
        """The bits of a dense tensor, which another tensor in the same memory may have made."""
        storage = tensor.untyped_storage()
        memory = self._memory.get(storage._cdata)
        if memory is None:  # the weak reference keeps the address from another storage
            memory = self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), {})
            self._forget()
        place = tensor.storage_offset(), tensor.numel(), tensor.dtype, tensor._version
        known = memory.found.get(place)
        kept = None if known is None else known()
        numbers = tensor.as_strided((tensor.numel(),), (1,))
        packing = marked.packing_backends.get(tensor.device.type, REFERENCE)
        if kept is not None:
            # packed again although it is kept: what writes into tensor.data between two saves changes no version
            one = packed(numbers, whole, packing, kept)
            if one is not None:
                return one
        found = packed(numbers, whole, packing)
        if found is None:
            return None
        memory.found[place] = weakref.ref(found)
        self.before += tensor.numel() * tensor.element_size()
        self.after += found.bytes
        return found

    def _forget(self) -> None:
        """Drop what is known of memory that is gone, before it gets much."""
        if len(self._memory) > self._sweep:
            for place in [place for place, memory in self._memory.items() if memory.there.expired()]:
                del self._memory[place]
            self._sweep = 64 + 2 * len(self._memory)


def packing_around() -> Optional[Callable[[Tensor], Optional[InBits]]]:
    """What the innermost hooks pack with, if they are those of a :class:`packed_spikes`; it gives None for a tensor
    that stays whole. For hooks that are set within that context: torch calls the innermost alone.
    """
    hooks = _around(True)
    context = getattr(hooks[0], "__self__", None) if hooks else None
    return context._in_bits if isinstance(context, packed_spikes) else None


def _unpack(kept: Any) -> Tensor:
    if isinstance(kept, _Outside):
        return kept.unpack(kept.handle)  # type: ignore[no-any-return]  # that is what such a hook gives
    if isinstance(kept, _Kept):
        tensor, version = kept
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
                "instead"
            )
        return tensor
    return kept.tensor()  # type: ignore[no-any-return]  # of bits
