"""Every case of the suite, by tier."""

from spikecore.testing._case import Collection
from spikecore.testing._cases import (
    calls,
    edges,
    fixed,
    gradients,
    language,
    layers,
    layouts,
    memory,
    online,
    packed,
    parameters,
    process,
    random,
    robust,
    rows,
    steps,
    vectors,
)

CASES = Collection()
for _rows in (rows, random):
    _rows.add_to(CASES)
_WRITTEN = (layers, gradients, parameters, language, edges, layouts, calls, steps, memory, online, process, robust)
for _written in (*_WRITTEN, packed, fixed, vectors):
    for _case in _written.CASES:
        CASES.put(_case)

__all__ = ["CASES"]
