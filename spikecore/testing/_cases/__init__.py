"""Every case of the suite, by tier."""

from spikecore.testing._case import Collection
from spikecore.testing._cases import (
    absent,
    arguments,
    asked,
    compiled,
    core,
    devices,
    dtypes,
    edges,
    graphs,
    halves,
    language,
    layouts,
    lifetimes,
    machinery,
    ownership,
    parameters,
    placed,
    process,
    product,
    random,
    robust,
    saved_tensors,
    sequences,
    sizes,
    state,
    steps,
    turning,
    unusual,
    values,
    wanted,
)
from spikecore.testing._generated import cases as generated

CASES = Collection()
for _tier in (
    core,
    dtypes,
    parameters,
    values,
    state,
    turning,
    wanted,
    absent,
    asked,
    language,
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
    devices,
    machinery,
    compiled,
    product,
    random,
):
    _tier.add_to(CASES)
generated.add_to(CASES)

__all__ = ["CASES"]
