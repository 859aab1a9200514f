"""Differences that are beside subnormal numbers alone: what a backend that flushes them to zero may be excused for.

An excuse covers a text (:class:`~spikecore.testing.ExpectedFailure`), and a text that names the first difference says
nothing of the others. So :data:`ALONE` stands in it only where it is true of all of them, and a check that has several
comparisons tells of one of which it is not true, if there is one.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np

from spikecore.testing._oracle import Array

#: In the text of a difference: wherever numbers differ, one of those compared there, or an argument, is subnormal.
ALONE = "each of these is beside a subnormal number"


def beside(wrong: Array, values: Sequence[Array], dtype: Any) -> bool:
    """True if one of the ``values`` is subnormal in ``dtype``, that of arithmetic, wherever ``wrong`` is true."""
    tiny = float(np.finfo(dtype).tiny)
    sizes = [np.abs(np.asarray(value, np.float64)) for value in values]
    near = np.any([(size > 0) & (size < tiny) for size in sizes], axis=0)
    return bool(near[wrong].all())


def foremost(checks: Iterable[Callable[[], None]], kind: Any) -> None:
    """Run every check. Raises the first exception of this ``kind`` whose text does not have :data:`ALONE`, else the
    first one that has it.
    """
    alone: Optional[BaseException] = None
    for check in checks:
        try:
            check()
        except kind as error:
            if ALONE not in str(error):
                raise
            alone = alone or error
    if alone is not None:
        raise alone
