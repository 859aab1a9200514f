"""Every case of the suite, by tier."""

from spikecore.testing._case import Collection
from spikecore.testing._cases import (
    absent,
    arguments,
    compiled,
    core,
    devices,
    drawn,
    edges,
    graphs,
    halves,
    language,
    layouts,
    lifetimes,
    machinery,
    normalised,
    ownership,
    packed,
    parameters,
    placed,
    process,
    random,
    recurrent,
    robust,
    rows,
    saved_tensors,
    sequences,
    sizes,
    state,
    steps,
    unusual,
    wanted,
)
from spikecore.testing._generated import cases as generated

CASES = Collection()
for _tier in (
    rows,
    core,
    parameters,
    normalised,
    state,
    recurrent,
    wanted,
    absent,
    language,
    drawn,
    unusual,
    edges,
    halves,
    layouts,
    placed,
    sizes,
    sequences,
    graphs,
    steps,
    saved_tensors,
    lifetimes,
    ownership,
    arguments,
    process,
    robust,
    packed,
    devices,
    machinery,
    compiled,
    random,
):
    _tier.add_to(CASES)
generated.add_to(CASES)

__all__ = ["CASES"]
