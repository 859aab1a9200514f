"""Layers and calls that kernel backends know nothing of, on loops in their place: what the suite says of them."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

from kernel_loop import Loop, Moving, Periods
from spikecore.testing import CASES, Case, check_backend, installed

#: Feedback, normalisation, one step for all, every layout, and what calls want.
SUITE = CASES.select(ids=["recurrent/*", "normalised/*", "repeat/*", "layouts/*", "wanted/*"])
BROADCAST = CASES.select(ids=["broadcast/*"])


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


@pytest.mark.matrix(turn=2)
@pytest.mark.parametrize("kind", [Loop, Periods])
@pytest.mark.parametrize("case", BROADCAST, ids=lambda case: case.id)
def test_broadcast(kind: Any, case: Case) -> None:
    """Inputs that broadcast, of kernels for which they are copied, and of those that read them where they lie."""
    with installed(kind) as name:
        (result,) = check_backend(name, cases=[case.id])
    assert result.outcome == "passed", result.message


class NextNumber(Periods):
    """Reads the period from its second number on."""

    def read(self, plan: Any, geometry: Any, index: int, value: Any) -> Any:
        right = super().read(plan, geometry, index, value)
        return right.roll(-1, 1) if plan.broadcast and plan.broadcast[index] == "period" else right


class FirstStep(Periods):
    """Reads the first number of an input with one a step."""

    def read(self, plan: Any, geometry: Any, index: int, value: Any) -> Any:
        right = super().read(plan, geometry, index, value)
        return right[:1].expand(right.shape) if plan.broadcast and plan.broadcast[index] == "step" else right


class OneRow(Periods):
    """Leaves out the last neurons of a sum."""

    def add_up(self, parts: Any) -> Any:
        total = super().add_up(parts)
        total[:, -1] = 0.0
        return total


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (NextNumber, "broadcast/y-batch"),
        (NextNumber, "broadcast/spikes-batch"),
        (FirstStep, "broadcast/y-step"),
        (FirstStep, "broadcast/spikes-step"),
        (OneRow, "broadcast/x-batch"),
        (OneRow, "broadcast/y-step"),
        (OneRow, "broadcast/wanted-alone"),
    ],
)
def test_a_fault_with_an_input_that_broadcasts_fails_its_case(kind: Any, case: str) -> None:
    """A case sees what a kernel reads or sums wrongly."""
    with installed(kind) as name:
        (result,) = check_backend(name, cases=[case])
    assert result.outcome == "failed"
