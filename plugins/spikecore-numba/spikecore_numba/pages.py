"""Large pages for large results.

A new tensor of more than some MiB is memory that the system has yet to provide, page by page as it is first written,
and with pages of 4 KiB that takes as long as the kernel itself. Linux provides 2 MiB at a time where it is asked to
(``madvise``), unless the administrator forbids it. Values do not depend on it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Iterable, Optional

from torch import Tensor

_LARGE_PAGE = 1 << 21
#: From this size on it is worth the system call.
_LARGE = 4 << 20
_MADV_HUGEPAGE = 14


def _madvise() -> Optional[Any]:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


_advise = _madvise()


def prefer_large_pages(tensors: Iterable[Tensor]) -> None:
    """Ask for large pages under the tensors that are large. Nothing happens where the system has none."""
    if _advise is None:
        return
    for tensor in tensors:
        # whole large pages inside the tensor: the advice holds for pages, and what shares one with it is not ours
        begin = -(-tensor.data_ptr() // _LARGE_PAGE) * _LARGE_PAGE
        end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // _LARGE_PAGE * _LARGE_PAGE
        if end - begin >= _LARGE:
            _advise(begin, end - begin, _MADV_HUGEPAGE)
