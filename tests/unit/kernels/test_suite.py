"""Layers and calls that kernel backends know nothing of, on loops in their place: what the suite says of them."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

from kernel_loop import Loop, Moving
from spikecore.testing import CASES
from spikecore.testing._case import Case
from spikecore.testing._install import installed
from spikecore.testing._runner import prepare, run_case

#: Feedback, normalisation, and one step for all.
SUITE = CASES.select(ids=["recurrent/*", "normalised/*", "repeat/*"])


@pytest.fixture(scope="module", params=[Loop, Moving], ids=["whole", "in-chunks"])
def bench(request: Any) -> Iterator[Any]:
    """A loop that keeps the states of all steps, and one that keeps those of every fourth and moves statistics."""
    with installed(request.param) as name:
        yield prepare(name)


@pytest.mark.matrix(turn=2)
@pytest.mark.parametrize("case", SUITE, ids=lambda case: case.id)
def test_case(bench: Any, case: Case) -> None:
    """The case holds."""
    result = run_case(case, bench)
    assert result.outcome == "passed", result.message
