"""Tensors that have memory in common."""

from __future__ import annotations

from typing import Iterable, Iterator, NamedTuple, Tuple

from torch import Tensor


class Span(NamedTuple):
    """The memory of a contiguous tensor: its first address, and the one after its last number."""

    begin: int
    end: int
    name: str
    tensor: Tensor


def overlapping(named: Iterable[Tuple[str, Tensor]]) -> Iterator[Tuple[Span, Span]]:
    """Pairs of contiguous tensors that overlap: each with the one before it in memory that ends last."""
    spans = [
        Span(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name, tensor)
        for name, tensor in named
        if tensor.numel()
    ]
    spans.sort(key=lambda span: (span.begin, span.end))
    last = None
    for span in spans:
        if last is not None and span.begin < last.end:
            yield last, span
        last = span if last is None or span.end > last.end else last
