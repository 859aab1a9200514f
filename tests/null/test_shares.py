"""Which cases of a matrix of tests run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, List

import pytest

import shares
from spikecore.testing import CASES, TIERS

CASES_OF_TIERS = [case for case in CASES if case.tier in TIERS]
IDS = [case.id for case in CASES_OF_TIERS]


def kept(monkeypatch: pytest.MonkeyPatch, variable: str, cases: List[Any], **mark: Any) -> List[str]:
    """The ids that a run with this variable keeps of a test; pytest is told of the others."""

    def item(case: Any) -> Any:
        id = getattr(case, "id", case)
        call = SimpleNamespace(id=id, params={"case": case})
        return SimpleNamespace(
            callspec=call, nodeid=f"t[{id}]", get_closest_marker=lambda _: SimpleNamespace(kwargs=mark)
        )

    told: List[Any] = []

    def pytest_deselected(items: List[Any]) -> None:
        told.extend(items)

    hook = SimpleNamespace(pytest_deselected=pytest_deselected)
    config: Any = SimpleNamespace(hook=hook)
    plain: Any = SimpleNamespace(get_closest_marker=lambda _: None, nodeid="plain")
    items = [*map(item, cases), plain]
    monkeypatch.setenv("MATRIX_SHARE", variable)
    shares.pytest_collection_modifyitems(config, items)
    assert len(items) + len(told) == len(cases) + 1
    assert items.pop() is plain
    return [one.callspec.id for one in items]


@pytest.mark.parametrize("shift", [{"variable": "{}/3", "turn": "0"}, {"variable": "1/3", "turn": "{}"}], ids=str)
def test_the_shares_together_run_every_case(shift: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of three commits, and those of three backends at one commit."""
    parts = []
    for k in range(3):
        share = shift["variable"].format(k + 1)
        parts.append(kept(monkeypatch, share, CASES_OF_TIERS, turn=int(shift["turn"].format(k))))
    assert {case for part in parts for case in part} == set(IDS)
    assert all(len(IDS) / 4 < len(part) < len(IDS) / 2 for part in parts)
    # each share has something of each family
    families = Counter(case.split("/")[0] for case in IDS)
    large = {name for name, cases in families.items() if cases >= 3}
    assert large
    assert all(large <= {case.split("/")[0] for case in part} for part in parts)


def test_without_the_variable_everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is no share is refused."""
    assert kept(monkeypatch, "1", IDS) == IDS
    monkeypatch.delenv("MATRIX_SHARE")
    assert shares.chosen() == (0, 1)
    assert shares.pytest_report_header() is None
    for wrong in ("0", "4/3", "0/3", "a third", ""):
        monkeypatch.setenv("MATRIX_SHARE", wrong)
        with pytest.raises(pytest.UsageError, match=f"MATRIX_SHARE='{wrong}' must be 3, for a third of a matrix"):
            shares.chosen()
