"""Shapes, strides and dtypes of results: as torch infers them, and kept for the next operation on such arguments.

Torch infers them on fake tensors. That took more than half of the time of a recording, and a model that is unrolled
over time steps repeats the same operations at every step. Rules of this module:

- What is kept depends on the operation, on the layouts of its tensors and on its other arguments. An operation that
  writes in place, or has an argument of an unknown kind, is inferred each time.
- A tensor gets a fake one only when torch has to infer something from it. The fake of a view is a view of the fake of
  its base, because torch refuses to write where memory overlaps.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Callable, Dict, Hashable, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from ._aliasing import writes
from ._errors import cpp_error, not_modelled, py_error
from ._replay import widened
from ._structure import leaves, tree_map
from ._support import NOT_MODELLED, no_shape
from ._tensor import READ, IpuTensor, Layout, layout, zero_sized

#: Arguments that are compared by their values. Floats are compared as text, because NaN is not equal to itself.
_PLAIN = frozenset((bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
#: More than so many results are not kept.
_MOST = 20_000
#: By operation and arguments: the results, with layouts in the place of tensors.
_known: Dict[Hashable, Any] = {}


class _Unknown(Exception):
    """An argument that cannot be compared."""


class Inferred:
    """A result: its layout, and its fake tensor if torch made one."""

    def __init__(self, laid: Layout, fake: Optional[Tensor] = None) -> None:
        self.laid, self.fake = laid, fake


class Inference:
    """The inference of one trace. ``aside`` is a context in which nothing is recorded."""

    def __init__(self, aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._aside = aside
        self._mode: Optional[FakeTensorMode] = None

    def results(
        self,
        name: str,
        target: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        tensors: Sequence[IpuTensor],
    ) -> Any:
        """What an operation returns, with :class:`Inferred` in the place of new tensors. An operation in place returns
        its argument. Raises poptorch.Error where PopTorch cannot infer a shape.

        tensors: all of the device among the arguments.
        """
        key: Optional[Hashable] = None
        if isinstance(target, torch._ops.OpOverload) and not writes(target):
            try:
                key = (target, torch.get_default_dtype(), _key(args), _key(kwargs))
            except _Unknown:
                key = None
        if key is not None and key in _known:
            return tree_map(_anew, _known[key])
        results = self._inferred(name, target, args, kwargs, tensors)
        given = {id(tensor.fake): tensor for tensor in tensors}

        def of_device(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return given[id(leaf)] if id(leaf) in given else Inferred(layout(leaf), leaf)

        found = tree_map(of_device, results)
        if key is not None and not any(True for _ in leaves(found, IpuTensor)):
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = tree_map(lambda leaf: leaf.laid if isinstance(leaf, Inferred) else leaf, found)
        return found

    def _inferred(
        self,
        name: str,
        target: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        tensors: Sequence[IpuTensor],
    ) -> Any:
        """The results on fake tensors: shapes and dtypes as torch infers them, from which PopTorch has them, too."""
        with self._aside(), self._fakes():
            fakes = [
                tree_map(lambda leaf: self._fake(leaf) if isinstance(leaf, IpuTensor) else leaf, part)
                for part in (args, kwargs)
            ]
            if isinstance(target, torch._ops.OpOverload):
                fakes = list(widened(target, *fakes))
            try:
                results = target(*fakes[0], **fakes[1])
            except DataDependentOutputException as error:
                raise cpp_error(READ) from error
            except DynamicOutputShapeException as error:
                if name in NOT_MODELLED:
                    raise not_modelled(f"aten::{name}", "torch infers no shape without values") from error
                raise
            except NotImplementedError as error:
                raise no_shape(name) from error
        if any(tensor.fake is not None and tensor.shape != tensor.fake.shape for tensor in tensors):
            raise py_error(f"aten::{name} changes the shape of a tensor in place, which the emulator does not model")
        for result in leaves(results[:1] if isinstance(results, tuple) else results, Tensor):
            # batch_norm, a composition, makes an empty tensor of bytes that is for cuDNN only
            if 0 in result.shape and not (name == "empty" and result.dtype == torch.uint8):
                raise zero_sized(result.shape)
        return results

    def _fakes(self) -> FakeTensorMode:
        if self._mode is None:
            self._mode = FakeTensorMode()
        return self._mode

    def _fake(self, tensor: IpuTensor) -> Tensor:
        """The fake tensor of a tensor of the device, in the context of fake tensors."""
        if tensor.fake is None:
            laid = tensor.laid
            if tensor.base is not None and tensor.base.laid.dtype == laid.dtype:
                tensor.fake = self._fake(tensor.base).as_strided(laid.shape, laid.strides, laid.offset)
            else:
                last = laid.offset + sum((size - 1) * stride for size, stride in zip(laid.shape, laid.strides))
                memory = torch.empty(last + 1, dtype=laid.dtype)
                tensor.fake = memory.as_strided(laid.shape, laid.strides, laid.offset)
        return tensor.fake


def _anew(leaf: Any) -> Any:
    return Inferred(leaf) if isinstance(leaf, Layout) else leaf


def _key(part: Any) -> Hashable:
    """What stands for an argument in a comparison. Raises :class:`_Unknown` if nothing does."""
    kind = type(part)
    if kind is IpuTensor:
        return part.laid  # type: ignore[no-any-return]  # as the class says
    if kind in _PLAIN:
        return kind, part
    if kind is float:
        return kind, repr(part)
    if kind in (tuple, list, torch.Size):
        return (kind, *map(_key, part))
    if kind is dict:
        return tuple([(name, _key(part[name])) for name in sorted(part)])
    raise _Unknown
