"""The list of plugins is made from result files alone, and a file that is no result is named with what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict

import pytest
from typer.testing import CliRunner

from spikecore.cli import app
from spikecore.testing._loopback import Loopback, installed
from spikecore.testing._pages import add, load, pages, read, render, write

DOCS = Path(__file__).parents[2] / "docs"


def report(**changes: Any) -> Dict[str, Any]:
    """A run's report, as spikecore conformance --json writes it."""
    return {
        "backend": "mine",
        "verdict": "conforms",
        "conforms": True,
        "counts": {"passed": 900, "xfailed": 1, "unsupported": 7, "failed": 0, "error": 0, "stale": 0},
        "versions": {"spikecore": "0.9", "distribution": "spikecore-mine 1.2", "torch": "2.4.0", "python": "3.12.1"},
        "device": {"device": "cuda", "name": "A | B 100"},
        "date": "2026-01-02T03:04:05+00:00",
        "results": [{"id": "bits/lif-hard", "outcome": "passed"}],
        **changes,
    }


def listed(folder: Path, **changes: Any) -> Path:
    """The file of a run's report in the folder."""
    return add(folder, json.dumps(report(**changes)), "run.json")


def test_the_pages_match_the_files() -> None:
    """docs/plugins.md and docs/conformance are what the command makes of docs/results."""
    results = load(DOCS / "results")
    assert (DOCS / "plugins.md").read_text(encoding="utf-8") == render(results)
    made = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "conformance").glob("*.md")}
    assert made == pages(results)


def test_a_result_is_one_row(tmp_path: Path) -> None:
    """A run's report is checked, named by plugin and device, stripped of its cases, and is one line of the list."""
    path = listed(tmp_path)
    assert path.name == "mine-cuda-a-b-100.json"
    assert "results" not in json.loads(path.read_text())
    row = next(line for line in render(load(tmp_path)).splitlines() if line.startswith("| [`mine`]"))
    assert row == (
        "| [`mine`](conformance/mine.md) | spikecore-mine 1.2 | cuda: A / B 100 | 2026-01-02 | conforms | 900 | 7 | 1 "
        "| 0 | spikecore 0.9, torch 2.4.0 |"
    )


def test_the_page_says_what_was_left_out(tmp_path: Path) -> None:
    """A partial run is listed with the summary of its report, so that it is not taken for more than it is."""
    said = "partial: 308 cases passed; left out: 10 tiers not run"
    listed(tmp_path, verdict="partial", summary=said)
    assert f"| {said} |" in render(load(tmp_path))


def test_a_newer_run_replaces_the_older(tmp_path: Path) -> None:
    """There is one row for a plugin and device."""
    for date in ("2026-01-02", "2026-03-04"):
        listed(tmp_path, date=date)
    assert [result["date"] for result in load(tmp_path)] == ["2026-03-04"]


def test_a_backend_has_a_page_with_its_limits(tmp_path: Path) -> None:
    """With a section for each device: versions, numbers of each tier, and in words what is not supported and why."""
    rows = [
        {"id": "dtypes/a", "outcome": "unsupported", "message": "no float64 here\nmore", "lacking": ["float64"]},
        {"id": "dtypes/b", "outcome": "unsupported", "message": "no float64 there", "lacking": ["float64"]},
        {"id": "language/exp", "outcome": "xfailed", "message": "exp has 10 bits, mine#3", "lacking": []},
    ]
    (tmp_path / "results").mkdir()
    tiers = {"core": {"passed": 900}, "language": {"passed": 3, "xfailed": 1, "failed": 0}}
    listed(tmp_path / "results", results=rows, tiers=tiers, summary="conforms: 900 cases passed")
    listed(tmp_path / "results", device={"device": "cpu", "name": "C"})
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "gone.md").write_text("of a backend without results")
    write(tmp_path / "results", tmp_path / "plugins.md")
    assert [path.name for path in (tmp_path / "conformance").iterdir()] == ["mine.md"]
    page = (tmp_path / "conformance" / "mine.md").read_text()
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
        "- exp has 10 bits, mine#3 (1 cases: `language/exp`).",
    ):
        assert line in page.splitlines(), page


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "run.json: is no JSON"),
        ("[]", "run.json: has no backend, verdict, counts, versions, device, date; it must be what"),
        (json.dumps({k: v for k, v in report().items() if k != "date"}), "run.json: has no date; it must be what"),
        (
            json.dumps(report(verdict="fine")),
            "verdict 'fine' must be one of conforms, does not conform, partial, not",
        ),
        (json.dumps(report(verdict="not tested")), "the verdict is 'not tested': there is nothing to list"),
        (
            json.dumps(report(counts={"passed": 3, "error": 2})),
            "verdict 'conforms' does not go with {'error': 2} wrong",
        ),
        (
            json.dumps(report(verdict="does not conform")),
            "verdict 'does not conform' does not go with no wrong",
        ),
    ],
)
def test_what_is_no_result_is_refused(text: str, words: str) -> None:
    """Each way to be no result is said with the file."""
    with pytest.raises(ValueError, match=re.escape(words)):
        read(text, "run.json")


def test_a_file_has_the_name_of_its_plugin_and_device(tmp_path: Path) -> None:
    """Otherwise two files could speak of one plugin and device."""
    (tmp_path / "x.json").write_text(json.dumps(report()))
    with pytest.raises(ValueError, match="x.json: must be called mine-cuda-a-b-100.json; spikecore plugins-page --add"):
        load(tmp_path)


def test_the_command(tmp_path: Path) -> None:
    """It adds, prints and writes; a wrong file or folder is an error of usage."""
    folder, run = tmp_path / "results", tmp_path / "run.json"
    folder.mkdir()
    run.write_text(json.dumps(report()))
    runner = CliRunner()
    assert runner.invoke(app, ["plugins-page", str(folder), "--add", str(run)]).exit_code == 0
    printed = runner.invoke(app, ["plugins-page", str(folder)])
    assert printed.output == render(load(folder))
    runner.invoke(app, ["plugins-page", str(folder), "--write", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == printed.output
    assert (tmp_path / "conformance" / "mine.md").exists()
    assert runner.invoke(app, ["plugins-page", str(tmp_path / "none")]).exit_code == 2


def test_a_run_is_published_by_one_command(tmp_path: Path) -> None:
    """It leaves the result and the pages; a backend that cannot be used is not listed."""
    folder = tmp_path / "results"
    folder.mkdir()
    runner = CliRunner()
    done = runner.invoke(app, ["conformance", "torch", "--case", "forward/lif-hard", "--results", str(folder)])
    assert done.exit_code == 3, done.output
    (result,) = load(folder)
    assert (result["backend"], result["tiers"]["core"]["passed"]) == ("torch", 1)
    assert "[`torch`](conformance/torch.md)" in (tmp_path / "plugins.md").read_text()
    assert "## On cpu" in (tmp_path / "conformance" / "torch.md").read_text()
    with installed(Loopback, reason="no such chip here") as name:
        assert "not listed" in runner.invoke(app, ["conformance", name, "--results", str(folder)]).output
    assert len(load(folder)) == 1
    assert runner.invoke(app, ["conformance", "torch", "--results", str(tmp_path / "none")]).exit_code == 2
