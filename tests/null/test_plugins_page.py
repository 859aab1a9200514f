"""Results of whole runs, and the pages that are made from them alone."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest

from spikecore.testing import CASES, Report, Result

DOCS = Path(__file__).parents[2] / "docs"
TOOL = runpy.run_path(str(DOCS / "results" / "conformance.py"))
load, pages, render, render_support = (TOOL[name] for name in ("load", "pages", "render", "render_support"))
result_of, write = TOOL["result_of"], TOOL["write"]


def report(**changes: Any) -> Dict[str, Any]:
    """The report of a whole run, as spikecore conformance --json writes it."""
    return {
        "backend": "mine",
        "verdict": "conforms",
        "summary": "conforms: 900 cases passed",
        "left_out": {"tiers": [], "cases": 0},
        "counts": {"passed": 900, "xfailed": 1, "unsupported": 7, "failed": 0, "error": 0, "stale": 0},
        "tiers": {"core": {"passed": 900}, "language": {"passed": 3, "xfailed": 1, "failed": 0}},
        "versions": {"spikecore": "0.9", "distribution": "spikecore-mine 1.2", "torch": "2.4.0", "python": "3.12.1"},
        "device": {"device": "cuda", "name": "A | B 100"},
        "date": "2026-01-02T03:04:05+00:00",
        "seconds": 3.0,
        "results": [{"id": "bits/lif-hard", "tier": "core", "outcome": "passed", "message": "", "lacking": []}],
        **changes,
    }


def result(**changes: Any) -> Dict[str, Any]:
    """The result of such a run."""
    words = {"Neurons and surrogates": {"`LIF`": "yes"}, "Capabilities": {"`float64`": "no"}}
    said = report(**{"results": [], **changes})
    support = {"tier": "core", "message": "", "lacking": []}
    return {
        **result_of({**said, "backend": "torch", "results": [{**support, **row} for row in said["results"]]}),
        "backend": said["backend"],
        "support": words,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of results."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def test_the_pages_match_the_files() -> None:
    """docs/plugins.md, docs/support.md and docs/conformance are what the tool makes of docs/results."""
    results = load(DOCS / "results").values()
    assert (DOCS / "plugins.md").read_text(encoding="utf-8") == render(results)
    assert (DOCS / "support.md").read_text(encoding="utf-8") == render_support(results)
    made = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "conformance").glob("*.md")}
    assert made == pages(results)


def test_a_result_is_one_row(folder: Path) -> None:
    """A run's report is named by plugin and device, stripped of its cases, and is one line of the list; a newer one of
    the same device replaces it. Each file that changed is named.
    """
    for date in ("2026-01-01", "2026-01-02"):
        lines = write(folder, result(date=date))
    file, page, table = folder / "mine-cuda-a-b-100.json", folder.parent / "plugins.md", folder.parent / "support.md"
    assert lines == [f"wrote {path}" for path in (file, page, folder.parent / "conformance" / "mine.md")]
    assert "| `LIF` | yes |" in table.read_text().splitlines()
    assert write(folder, result(date=date)) == []
    assert "results" not in json.loads(file.read_text())
    assert [line for line in page.read_text().splitlines() if line.startswith("| [`mine`]")] == [
        "| [`mine`](conformance/mine.md) | spikecore-mine 1.2 | cuda: A / B 100 | 2026-01-02 | conforms: 900 cases "
        "passed | 900 | 7 | 1 | 0 | spikecore 0.9, torch 2.4.0 |"
    ]


def test_a_backend_has_a_page_with_its_limits(folder: Path) -> None:
    """With a section for each device: versions, numbers of each tier, and in words what is not supported and why."""
    rows = [
        {"id": "dtypes/a", "outcome": "unsupported", "message": "no float64 here\nmore", "lacking": ["float64"]},
        {"id": "dtypes/b", "outcome": "unsupported", "message": "no float64 there", "lacking": ["float64"]},
        {"id": "language/exp", "outcome": "xfailed", "message": "exp has 10 bits, mine#3", "lacking": []},
    ]
    old = folder.parent / "conformance" / "gone.md"
    old.parent.mkdir()
    old.write_text("of a backend without results")
    assert f"removed {old}" in write(folder, result(results=rows))
    write(folder, result(device={"device": "cpu", "name": "C"}))
    assert [path.name for path in old.parent.iterdir()] == ["mine.md"]
    page = (old.parent / "mine.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Conformance of `mine`",
        "## On cpu: C",
        "## On cuda: A | B 100",
    ]
    for line in (
        "conforms: 900 cases passed.",
        "| 2026-01-02 | spikecore-mine 1.2 | spikecore 0.9, torch 2.4.0, python 3.12.1 |",
        "| `language` | 3 | 0 | 1 | 0 |",
        "- `float64` (2 cases): no float64 here.",
        "- exp has 10 bits, mine#3 (1 case: `language/exp`).",
    ):
        assert line in page.splitlines(), page


def test_the_support_table_has_the_newest_result_of_each_backend(folder: Path) -> None:
    """A row that a result does not have is declared and not run."""
    other = {**result(backend="other", date="2026"), "support": {"Capabilities": {"`float64`": "partly"}}}
    newer = {
        **result(date="2027", device={"device": "cpu", "name": "C"}),
        "support": {"Capabilities": {"`record`": "yes"}},
    }
    text = render_support([newer, other, result()])
    assert [line for line in text.splitlines() if line.startswith("| ")] == [
        "|  | mine | other |",
        "| --- | --- | --- |",
        "| `record` | yes | declared |",
        "| `float64` | declared | partly |",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "x.json: is no JSON"),
        ("[]", "x.json: has no backend, verdict, counts, versions, device, date, summary, seconds, tiers, unsupported"),
        (json.dumps(result()), "must be called mine-cuda-a-b-100.json"),
    ],
)
def test_a_file_that_is_no_result_is_named(folder: Path, text: str, words: str) -> None:
    """And what is wrong with it, before anything is written."""
    (folder / "x.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        write(folder, result())
    assert [path.name for path in folder.iterdir()] == ["x.json"]


def test_a_whole_run_is_a_result() -> None:
    """With a word for each neuron and capability; a part of the suite, and a run without a verdict, are refused."""
    ended = tuple(Result(case.id, case.tier, "passed", 0.0) for case in CASES.select())
    whole = Report("torch", ended, "cpu", "C", {"distribution": "spikecore 1"}, "2026-01-02", 1.0)
    support = result_of(whole.as_dict())["support"]
    assert set(support["Neurons and surrogates"].values()) == set(support["Capabilities"].values()) == {"yes"}
    assert support["Devices"] == {"device types": "any"}
    lacking = tuple(
        replace(one, outcome="unsupported", lacking=("record",)) if "record" in CASES.get(one.id).needs else one
        for one in ended
    )
    words = result_of(replace(whole, results=lacking).as_dict())["support"]["Capabilities"]
    assert (words["`record`"], words["`full_parameters`"]) == ("no", "yes")
    with pytest.raises(ValueError, match=r"leaves out \d+ cases, among them those of dtypes, .*; a result is of"):
        result_of(replace(whole, results=ended[:1]).as_dict())
    with pytest.raises(ValueError, match="backend 'mine' is not installed here"):
        result_of(replace(whole, backend="mine").as_dict())
    with pytest.raises(ValueError, match="the verdict is 'not tested', so there is nothing to keep"):
        result_of(replace(whole, results=()).as_dict())
