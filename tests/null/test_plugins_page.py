"""Results of whole runs, and the pages that are made from them alone."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from spikecore.testing import CASES, Report, Result

DOCS = Path(__file__).parents[2] / "docs"
TOOL = runpy.run_path(str(DOCS / "results" / "conformance.py"))
load, pages, render, render_support = (TOOL[name] for name in ("load", "pages", "render", "render_support"))
file_name, load_numbers, result_of, write = (TOOL[name] for name in ("file_name", "load_numbers", "result_of", "write"))
accelerators = TOOL["accelerators"]
PAGE = "# Accelerators\n\n| you have | backend | what |\n|---|---|---|\n| old |\n\n- behind the table\n"
COMPILED = {
    "accelerator": "Some GPU",
    "backend": "mine",
    "status": "compiled",
    "summary": "all kernels",
    "date": "2026-01-02",
    "targets": ["g1", "g2"],
    "compiler": "cc 3",
    "command": "spikecore conformance mine",
}


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
    (tmp_path / "accelerators.md").write_text(PAGE, encoding="utf-8")
    return tmp_path / "results"


def put(folder: Path, said: Dict[str, Any]) -> Any:
    """The lines of the tool for a result that is put into a folder."""
    return write(folder, {file_name(said): said})


def rows(folder: Path) -> List[str]:
    """The rows of the page of accelerators."""
    text = (folder.parent / "accelerators.md").read_text(encoding="utf-8")
    assert text.endswith(" |\n\n- behind the table\n")
    return [line for line in text.splitlines() if line.startswith("| ") and "what was run" not in line]


def test_the_pages_match_the_files() -> None:
    """plugins.md, support.md, the table of accelerators.md and conformance/ are what the tool makes of docs/results."""
    results = load(DOCS / "results").values()
    page = (DOCS / "accelerators.md").read_text(encoding="utf-8")
    statements = accelerators.load(DOCS / "results" / "status")
    assert page == accelerators.put_into(page, accelerators.table(results, statements))
    assert (DOCS / "plugins.md").read_text(encoding="utf-8") == render(results)
    assert (DOCS / "support.md").read_text(encoding="utf-8") == render_support(results)
    made = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "conformance").glob("*.md")}
    assert made == pages(results, load_numbers(DOCS / "results" / "numbers").values())


def test_a_result_is_one_row(folder: Path) -> None:
    """A run's report is named by plugin and device, stripped of its cases, and is one line of the list; a newer one of
    the same device replaces it. Each file that changed is named.
    """
    for date in ("2026-01-01", "2026-01-02"):
        lines = put(folder, result(date=date))
    file, page, table = folder / "mine-cuda-a-b-100.json", folder.parent / "plugins.md", folder.parent / "support.md"
    others = [folder.parent / "accelerators.md", folder.parent / "conformance" / "mine.md"]
    assert lines == [f"wrote {path}" for path in (file, page, *others)]
    assert "| `LIF` | yes |" in table.read_text().splitlines()
    assert put(folder, result(date=date)) == []
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
    assert f"removed {old}" in put(folder, result(results=rows))
    put(folder, result(device={"device": "cpu", "name": "C"}))
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
    other = {**result(backend="other", date="2026-01-01"), "support": {"Capabilities": {"`float64`": "partly"}}}
    newer = {
        **result(date="2027-01-01", device={"device": "cpu", "name": "C"}),
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
        ("[]", "x.json: has no backend, verdict, counts, versions, device, date, summary, seconds, tiers, accelerator"),
        (json.dumps(result()), "must be called mine-cuda-a-b-100.json"),
    ],
)
def test_a_file_that_is_no_result_is_named(folder: Path, text: str, words: str) -> None:
    """And what is wrong with it, before anything is written."""
    (folder / "x.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        put(folder, result())
    assert [path.name for path in folder.iterdir()] == ["x.json"]
    assert (folder.parent / "accelerators.md").read_text() == PAGE


def test_a_whole_run_is_a_result() -> None:
    """With a word for each neuron and capability; a part of the suite, and a run without a verdict, are refused."""
    ended = tuple(Result(case.id, case.tier, "passed", 0.0) for case in CASES.select())
    whole = Report(
        "torch", ended, "cpu", "C", {"spikecore": "1", "distribution": "spikecore 1", "torch": "2"}, "2026-01-02", 1.0
    )
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


def test_an_accelerator_has_the_row_of_its_best_status(folder: Path) -> None:
    """Statements and runs of one accelerator and backend are one row; of several devices each is named."""
    untested = {**COMPILED, "status": "untested"}
    for key in ("summary", "date", "targets", "compiler"):
        del untested[key]
    files = {f"status/{accelerators.file_name(one)}": one for one in (COMPILED, untested)}
    write(folder, files)
    assert rows(folder) == [
        "| Some GPU | `mine` | **compiled, not run**: g1, g2, by cc 3, 2 January 2026: all kernels; "
        "`spikecore conformance mine` |"
    ]
    for device in ("B", "A"):
        put(folder, {**result(device={"device": "cuda", "name": device}), "accelerator": "Some GPU"})
    put(folder, {**result(backend="other", device={"device": "cpu", "name": "C"}), "status": "emulated"})
    said = "**tested**: [whole suite](conformance/mine.md), {}, 2 January 2026: conforms: 900 cases passed"
    assert rows(folder) == [
        "| any CPU | `other` | **on its emulator**: [whole suite](conformance/other.md), C, 2 January 2026: conforms: "
        "900 cases passed; with the device: `spikecore conformance other` |",
        f"| Some GPU | `mine` | {said.format('A')}<br>{said.format('B')} |",
    ]


@pytest.mark.parametrize(
    ("device", "name", "torch", "accelerator"),
    [
        ("cpu", "C", "2.13.0", "any CPU"),
        ("cuda:1", "NVIDIA X", "2.13.0+cu130", "NVIDIA GPU"),
        ("cuda", "Instinct", "2.13.0+rocm7", "AMD GPU"),
        ("cuda", "AMD Radeon", "2.13.0", "AMD GPU"),
        ("mps", "mps", "2.13.0", "Apple GPU"),
    ],
)
def test_the_accelerator_of_a_run_is_that_of_its_device(device: str, name: str, torch: str, accelerator: str) -> None:
    """ROCm names its devices cuda."""
    said = report(device={"device": device, "name": name}, backend="torch")
    said["versions"]["torch"] = torch
    assert (result_of(said)["accelerator"], result_of(said)["status"]) == (accelerator, "tested")
    assert result_of(said, "Mine", emulated=True)["accelerator"] == "Mine"
    assert result_of(said, "Mine", emulated=True)["status"] == "emulated"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "works"}, "verdict: 'works' is none of conforms, partial"),
        ({"verdict": None}, "verdict: None has the wrong type, or is missing; the file must be what `spikecore conf"),
        ({"date": "today"}, "date: 'today' begins with no day such as 2026-11-23"),
        ({"device": {"name": "A"}}, "device: {'name': 'A'} has no device"),
        ({"results": [{"id": "bits/lif"}]}, "results: {'id': 'bits/lif'} has no tier, outcome, message, lacking"),
    ],
)
def test_a_report_that_breaks_the_schema_is_refused(changes: Dict[str, Any], words: str) -> None:
    """By key, value and what to write."""
    with pytest.raises(ValueError, match=re.escape(words)):
        result_of(report(**changes))


def test_a_device_that_is_not_known_must_be_named() -> None:
    """By the option that names it."""
    with pytest.raises(ValueError, match=re.escape("device: 'npu' is of no known accelerator; name it: --accelerator")):
        result_of(report(device={"device": "npu", "name": "N"}, backend="torch"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "works"}, "status: 'works' is none; write one of tested, emulated, compiled, untested"),
        ({"status": "tested"}, "device: is missing; a statement 'tested' needs it"),
        ({"verdict": "conforms"}, "verdict: 'conforms' does not belong into a statement 'compiled'; leave it out"),
        ({"by": "me"}, "by: 'me' has no meaning; keys are accelerator, backend, status"),
        ({"date": "23.11.2026"}, "date: '23.11.2026' is no day; write it as 2026-11-23"),
        ({"targets": "gfx942"}, "targets: 'gfx942' is not a list of texts; write ['gfx942']"),
        ({"targets": []}, "targets: [] is not a list of texts"),
        ({"compiler": " "}, "compiler: ' ' is not a text; write it in one line, not empty, without '|'"),
        ({"summary": "a | b"}, "summary: 'a | b' is not a text"),
        ({"backend": "Mine!"}, "backend: 'Mine!' is no name of a backend"),
        ({"status": "tested", "device": "D", "verdict": "good"}, "verdict: 'good' is none that can be listed"),
    ],
)
def test_a_statement_that_breaks_the_schema_is_refused(changes: Dict[str, Any], words: str) -> None:
    """By key, value and what to write."""
    statement = {**COMPILED, **changes}
    if statement["status"] == "tested":
        del statement["targets"], statement["compiler"]
    with pytest.raises(ValueError, match=re.escape(words)):
        accelerators.check(statement)


def test_the_schema_on_the_page_is_the_one_that_is_checked() -> None:
    """Keys, statuses that need them, and an example, in docs/results/README.md."""
    page = (DOCS / "results" / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert [key for key, _ in table] == [*accelerators.KEYS]
    for key, (needed, _) in accelerators.KEYS.items():
        if needed and needed != accelerators.STATUSES and dict(table)[key][:3] != "all":
            assert dict(table)[key] == ", ".join(needed)
    accelerators.check(json.loads(page.split("```json")[1].split("```")[0]))


def test_one_command_adds_a_file_of_each_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report, a statement, and what arithmetic costs; a wrong one is named, and nothing is written."""
    numbers = json.loads((DOCS / "results" / "numbers" / "torch-cpu-amd-epyc.json").read_text(encoding="utf-8"))
    run = report(backend="torch", device={"device": "npu", "name": "N"})
    for name, contents in (("run", run), ("compiled", COMPILED), ("numbers", numbers), ("wrong", {"status": "new"})):
        (folder.parent / f"{name}.json").write_text(json.dumps(contents), encoding="utf-8")
    monkeypatch.chdir(folder.parent)
    with pytest.raises(SystemExit, match=re.escape("nothing is kept: wrong.json: status: 'new' is none; write one of")):
        TOOL["main"](["compiled.json", "wrong.json"], folder)
    assert list(folder.iterdir()) == []
    TOOL["main"](["run.json", "compiled.json", "numbers.json", "--accelerator", "Some NPU"], folder)
    names = ("torch-npu-n-some-npu.json", "status/mine-some-gpu-compiled.json", "numbers/torch-cpu-amd-epyc.json")
    assert capsys.readouterr().out.splitlines()[:3] == [f"wrote {folder / name}" for name in names]
    assert [row.split(" | ")[0] for row in rows(folder)] == ["| Some GPU", "| Some NPU"]
    assert "| `sqrt(a)` | 0.5 |" in (folder.parent / "conformance" / "torch.md").read_text(encoding="utf-8")
