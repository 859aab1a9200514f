"""Every case of the suite, by tier."""

from spikecore.testing._case import Collection
from spikecore.testing._cases import (
    calls,
    drawn,
    edges,
    found_by_mutants,
    gradients,
    language,
    layouts,
    memory,
    normalised,
    packed,
    parameters,
    process,
    random,
    recurrent,
    robust,
    rows,
    steps,
)

CASES = Collection()
for _rows in (rows, normalised, recurrent, drawn, steps, found_by_mutants, random):
    _rows.add_to(CASES)
for _written in (gradients, parameters, language, edges, layouts, calls, memory, process, robust, packed):
    for _case in _written.CASES:
        CASES.put(_case)

__all__ = ["CASES"]
