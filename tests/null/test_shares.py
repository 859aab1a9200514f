"""What a share of a matrix of tests leaves out."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any, List

import pytest

import shares
from spikecore.testing import CASES, TIERS

IDS = [case.id for case in CASES if case.tier in TIERS]


def item(case: str, **mark: Any) -> Any:
    """As pytest collects it: one without a mark if none is given."""
    found = SimpleNamespace(kwargs=mark) if mark else None
    return SimpleNamespace(
        callspec=SimpleNamespace(id=case), get_closest_marker=lambda name: found, nodeid=f"t[{case}]"
    )


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
        return [item.nodeid.partition("[")[2].rstrip("]") or item.nodeid for item in left]


def test_the_turns_together_run_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba, cupy's kernels on the CPU and triton have one turn each: no case runs on none of them."""
    monkeypatch.setenv("MATRIX_SHARE", "3")
    kept = [Kept().of([item(case, turn=turn) for case in IDS]) for turn in range(3)]
    assert {case for part in kept for case in part} == set(IDS)
    assert all(len(IDS) / 4 < len(part) < len(IDS) / 2 for part in kept)
    # each turn has something of each family
    families = Counter(case.split("/")[0] for case in IDS)
    often = {name for name, cases in families.items() if cases >= 3}
    assert often
    assert all(often <= {case.split("/")[0] for case in part} for part in kept)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_every_value_of_a_product_runs(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance alone a neuron, a dtype or a kind of parameter would be in no case of the share."""
    monkeypatch.setenv("MATRIX_SHARE", "3")
    values = [[f"neuron{n}" for n in range(24)], ["hard", "soft"], ["float32", "bfloat16"]]
    ids = ["-".join(case) for case in itertools.product(*values)]
    kept = Kept().of([item(case, turn=turn) for case in ids])
    assert {word for case in kept for word in case.split("-")} == {word for row in values for word in row}
    assert len(kept) < len(ids) / 2
    # in the order of collection, which pytest-xdist compares between its processes
    assert kept == [case for case in ids if case in kept]


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
