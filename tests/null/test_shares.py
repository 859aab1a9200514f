"""What a share of a matrix of tests leaves out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest

import shares
from spikecore.testing import CASES, TIERS

IDS = [case.id for case in CASES if case.tier in TIERS]


def item(case: str, **mark: Any) -> Any:
    """As pytest collects it: one without a mark if none is given."""
    found = SimpleNamespace(kwargs=mark) if mark else None
    return SimpleNamespace(callspec=SimpleNamespace(id=case), get_closest_marker=lambda name: found, nodeid=case)


class Kept:
    """The ids that a run of this share keeps, and what pytest was told of."""

    def __init__(self) -> None:
        self.deselected: List[Any] = []
        self.hook = self

    def pytest_deselected(self, items: List[Any]) -> None:
        """What pytest counts and prints."""
        self.deselected += items

    def of(self, items: List[Any]) -> List[str]:
        """Changes a copy of the list, as the hook changes pytest's."""
        left = [SimpleNamespace(**vars(item)) for item in items]
        shares.pytest_collection_modifyitems(self, left)  # type: ignore[arg-type]  # what it uses of a config and items
        return [item.nodeid for item in left]


def test_the_turns_together_run_every_case_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba, cupy's kernels on the CPU and triton have one turn each: no case runs on none of them."""
    monkeypatch.setenv("MATRIX_SHARE", "3")
    kept = [Kept().of([item(case, turn=turn) for case in IDS]) for turn in range(3)]
    assert sorted(case for part in kept for case in part) == sorted(IDS)
    assert all(len(IDS) / 4 < len(part) < len(IDS) / 2 for part in kept)
    # each turn has something of each family of cases that is large
    large = {name for name in (case.split("/")[0] for case in IDS) if sum(i.startswith(f"{name}/") for i in IDS) > 20}
    assert large
    assert all(large <= {case.split("/")[0] for case in part} for part in kept)


def test_what_is_no_matrix_runs_and_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mark, or without parameters, a test always runs; pytest prints how many were left out."""
    monkeypatch.setenv("MATRIX_SHARE", "3")
    run, plain = Kept(), SimpleNamespace(get_closest_marker=lambda name: SimpleNamespace(kwargs={}), nodeid="plain")
    items = [*(item(case) for case in IDS[:9]), plain]
    assert run.of(items) == [*IDS[:9], "plain"]
    assert not run.deselected
    few = [item(case, turn=0) for case in IDS[:30]]
    assert len(run.of(few)) + len(run.deselected) == 30


def test_without_the_variable_everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a value that is no share is refused."""
    every = [item(case, turn=1) for case in IDS]
    monkeypatch.delenv("MATRIX_SHARE", raising=False)
    assert Kept().of(every) == IDS
    for wrong in ("0", "1/3", ""):
        monkeypatch.setenv("MATRIX_SHARE", wrong)
        with pytest.raises(pytest.UsageError, match=f"MATRIX_SHARE='{wrong}' must be a whole number from 1 on"):
            Kept().of(every)
