"""``poptorch.DataLoader``: batches that hold all the micro batches of one call.

Rules of this module:

- A batch has ``batch_size * device iterations * (replicas // input group size) * gradient accumulation`` samples. The
  last, smaller one is dropped unless ``drop_last=False``: unlike torch's, and because a compiled model takes one size
  only.
- Options that were given to a data loader are frozen.
- ``DataLoaderMode.Async`` gives the same batches in the same order, made in this process: the ring buffer of another
  process, which reuses the memory of batches, is not modelled. ``AsyncRebatched`` makes other batches, and is
  refused.
- Each batch of a ``batch_sampler`` is one micro batch; those of one call are joined along dimension 0.
- There is one process (``options.Distributed``), so ``auto_distributed_partitioning`` has no effect.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Optional

import torch
import torch.utils.data
from torch import Tensor

from ._errors import logger, not_modelled, py_error
from .arguments import Batching
from .enums import DataLoaderMode
from .options import Options

#: The settings that ``async_options`` may have; they have no effect here.
_ASYNC_OPTIONS = ("buffer_size", "miss_sleep_time_in_ms", "load_indefinitely", "early_preload", "sharing_strategy")


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]  # not generic here, as PopTorch's
    """``poptorch.DataLoader``; further keywords are those of torch's."""

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: Optional[int] = 1,
        shuffle: Optional[bool] = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: Optional[bool] = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Optional[Dict[str, Any]] = None,
        rebatched_worker_size: Optional[int] = None,
        batch_sampler: Optional[Iterable[List[Any]]] = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise AssertionError(f"options must be a poptorch.Options, got {options!r}")
        if batch_sampler is not None and (batch_size != 1 or shuffle):
            raise py_error("`batch_sampler` option is mutually exclusive with batch_size, shuffle.")
        options.freeze()
        self._options = options
        self._micro_batches = Batching(options).slices
        self._combined_batch_size = None if batch_size is None else batch_size * self._micro_batches
        self._joins = batch_sampler is not None
        self._drops = drop_last
        if mode != DataLoaderMode.Sync:
            _check_asynchronous(mode, async_options or {}, drop_last, self._combined_batch_size)
        kwargs["num_workers"] = num_workers
        kwargs["persistent_workers"] = num_workers > 0 if persistent_workers is None else persistent_workers
        if isinstance(dataset, torch.utils.data.IterableDataset):
            _warn_of_workers(kwargs)
        elif not (self._joins or drop_last or self._combined_batch_size is None):
            _warn_of_remainder(len(dataset), self._combined_batch_size)
        if self._joins:
            kwargs["batch_sampler"] = batch_sampler
        else:
            kwargs.update(batch_size=self._combined_batch_size, shuffle=shuffle, drop_last=drop_last)
        super().__init__(dataset, **kwargs)

    def __iter__(self) -> Any:
        return self._joined(super().__iter__()) if self._joins else super().__iter__()

    def __len__(self) -> int:
        batches = super().__len__()
        if not self._joins:
            return batches
        return batches // self._micro_batches if self._drops else -(-batches // self._micro_batches)

    def _joined(self, batches: Iterator[Any]) -> Iterator[Any]:
        held: List[Any] = []
        for batch in batches:
            held.append(batch)
            if len(held) == self._micro_batches:
                yield _cat(held)
                held = []
        if held and not self._drops:
            yield _cat(held)

    @property
    def combinedBatchSize(self) -> Optional[int]:
        """The samples in one batch, or, with a ``batch_sampler``, its batches in one; None without batching."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        return self._options

    def terminate(self) -> None:
        """Does nothing: no other process runs."""


def _check_asynchronous(mode: Any, async_options: Dict[str, Any], drop_last: bool, size: Optional[int]) -> None:
    if not isinstance(mode, DataLoaderMode):
        raise AssertionError(f"mode must be a poptorch.DataLoaderMode, got {mode!r}")
    if mode == DataLoaderMode.AsyncRebatched:
        raise not_modelled("DataLoaderMode.AsyncRebatched", "use Sync, or Async")
    if "rebatched_size" in async_options:
        raise AssertionError(
            "You cannot use DataLoaderMode.AsyncRebatched and manually specify the rebatched_size in async_options"
        )
    unknown = [name for name in async_options if name not in _ASYNC_OPTIONS]
    if unknown:
        raise TypeError(
            f"async_options has {', '.join(unknown)}; AsynchronousDataAccessor takes {list(_ASYNC_OPTIONS)}"
        )
    if not drop_last and size not in (None, 1):
        raise AssertionError(
            "The 'drop_last=False' option from the DataLoader only works if 'rebatched_size' is specified too."
        )


def _warn_of_workers(keywords: Dict[str, Any]) -> None:
    workers = keywords["num_workers"]
    if workers > 1 and "worker_init_fn" not in keywords:
        logger.warning(
            "IterableDataset used with num_workers=%d but no worker_init_fn specified: as a result the DataLoader will "
            "return %d times each element in the dataset (See torch.utils.data.IterableDataset's documentation for "
            "more information)",
            workers,
            workers,
        )


def _warn_of_remainder(samples: int, size: int) -> None:
    if samples % size:
        logger.warning(
            "The number of elements in the dataset (%d) is not divisible by the number of elements processed per step "
            "(%d) and drop_last=False. The last tensor will have a batch size of %d. To avoid having to handle this "
            "special case switch to drop_last=True",
            samples,
            size,
            samples % size,
        )


def _cat(batches: List[Any]) -> Any:
    """Batches of one structure as one, side by side along dimension 0."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, dict):
        return {key: _cat([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)):
        parts = [_cat(list(part)) for part in zip(*batches)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise py_error(f"batches of a batch_sampler are joined, which {type(first)} cannot be")
