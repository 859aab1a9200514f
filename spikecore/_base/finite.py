"""Numbers that are not finite: whether a tensor has some, how many, and where the first one is."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Tuple

import torch
from torch import Tensor

from spikecore.batches import leaves

#: Others, such as whole numbers and 8-bit floats, are taken to be finite: torch has no ``isfinite`` for all of them.
_KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def is_finite(x: Tensor) -> bool:
    """True if no number of a tensor is NaN or infinite. It waits for the device."""
    x = _stored(x)
    return not _is_looked_at(x) or bool(torch.isfinite(x).all())


def has_nan(x: Tensor) -> bool:
    """True if a number of a tensor is NaN. It waits for the device."""
    x = _stored(x)
    return _is_looked_at(x) and bool(torch.isnan(x).any())


def first_index(x: Tensor) -> Optional[Tuple[int, ...]]:
    """Index of the first number that is not finite; None if all are."""
    x = _local(x)
    if is_finite(x):
        return None
    if x.layout is torch.sparse_coo:
        x = x.coalesce()
        row, *rest = first_index(x.values()) or (0,)
        return (*x.indices()[:, row].tolist(), *rest)
    flat = int((~torch.isfinite(x)).reshape(-1).int().argmax())
    index: List[int] = []
    for length in reversed(x.shape):
        index.insert(0, flat % length)
        flat //= length
    return tuple(index)


def in_words(x: Tensor) -> str:
    """Numbers that are not finite, in words: ``3 NaN among 640 numbers, the first at index [4, 0, 2]``; "" without."""
    index = first_index(x)
    if index is None:
        return ""
    x = _stored(x)
    if x.numel() == 1:
        return f"the value {str(x.item()).replace('nan', 'NaN')}"
    nans, infinities = int(torch.isnan(x).sum()), int(torch.isinf(x).sum())
    counts = [f"{nans:,} NaN"] if nans else []
    counts += [f"{infinities:,} {'infinity' if infinities == 1 else 'infinities'}"] if infinities else []
    return f"{' and '.join(counts)} among {x.numel():,} numbers, the first at index {list(index)}"


def first(named: Iterable[Tuple[str, Tensor]]) -> Optional[Tuple[str, Tensor]]:
    """The first of these tensors that is not finite, with its name."""
    return next(((name, x) for name, x in named if not is_finite(x)), None)


def first_nan(named: Iterable[Tuple[str, Tensor]]) -> Optional[Tuple[str, Tensor]]:
    """The first of these inputs or parameters that has NaN. Infinite ones are legitimate: a threshold, or a mask."""
    return next(((name, x) for name, x in named if has_nan(x)), None)


def named_leaves(what: str, value: Any) -> List[Tuple[str, Tensor]]:
    """The tensors of a batch with their names: ``what`` of one alone, ``what[0]`` and ``what['x']`` of several."""
    if isinstance(value, dict):
        return [pair for key, part in value.items() for pair in named_leaves(f"{what}[{key!r}]", part)]
    if isinstance(value, (tuple, list)):
        return [pair for i, part in enumerate(value) for pair in named_leaves(f"{what}[{i}]", part)]
    return [(what, tensor) for tensor in leaves(value, Tensor)]


def _is_looked_at(x: Tensor) -> bool:
    return x.dtype in _KINDS and x.layout is torch.strided and not x.is_meta and not x.is_nested


def _stored(x: Tensor) -> Tensor:
    """The numbers of a tensor; of a sparse one those that it has."""
    x = _local(x)
    return x.coalesce().values() if x.layout is torch.sparse_coo else x


def _local(x: Tensor) -> Tensor:
    """Of a shard the part of this process."""
    local = getattr(x, "to_local", None)
    return x.detach() if local is None else local().detach()
