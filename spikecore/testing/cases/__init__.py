"""Every case of the suite, by tier."""

from spikecore.testing.case import Collection
from spikecore.testing.cases import (
    compiled,
    core,
    dtypes,
    graphs,
    language,
    layouts,
    machinery,
    parameters,
    product,
    robust,
    sequences,
    state,
    unusual,
)

CASES = Collection()
for _tier in (
    core,
    dtypes,
    parameters,
    state,
    language,
    unusual,
    layouts,
    sequences,
    graphs,
    robust,
    machinery,
    compiled,
    product,
):
    _tier.add_to(CASES)

__all__ = ["CASES"]
