"""Layers and calls that kernel backends know nothing of, on loops in their place: what the suite says of them."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

from kernel_loop import Loop, Moving
from spikecore.testing import CASES, Case, check_backend, installed

#: Feedback, normalisation, and one step for all.
SUITE = CASES.select(ids=["recurrent/*", "normalised/*", "repeat/*"])


@pytest.fixture(scope="module", params=[Loop, Moving], ids=["whole", "in-chunks"])
def backend(request: Any) -> Iterator[str]:
    """A loop that keeps the states of all steps, and one that keeps those of every fourth and moves statistics."""
    with installed(request.param) as name:
        yield name


@pytest.mark.matrix(turn=2)
@pytest.mark.parametrize("case", SUITE, ids=lambda case: case.id)
def test_case(backend: str, case: Case) -> None:
    """The case holds."""
    (result,) = check_backend(backend, cases=[case.id])
    assert result.outcome == "passed", result.message
