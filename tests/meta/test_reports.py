"""Reports as JSON: written, printed, and merged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spikecore.cli import app
from spikecore.testing import CASES, Report, Result

VERSIONS = {"spikecore": "1.0", "distribution": "mine 2", "torch": "2.0", "python": "3.8", "contract": "1.1"}


def report(**outcomes: str) -> Report:
    """A report of some cases of two tiers."""
    results = [
        Result(f"forward/{id}", "core" if i % 2 == 0 else "state", outcome, 0.5, f"<{outcome}>\nof\x00 {id} & \x1b[31m")
        for i, (id, outcome) in enumerate(outcomes.items())
    ]
    return Report("mine", tuple(results), "cpu", "A & B", VERSIONS, "2026-01-02T03:04:05+00:00", 1.5)


def run(*arguments: str) -> Any:
    """What the command gives."""
    return CliRunner().invoke(app, ["conformance", *arguments])


class TestMerge:
    """One report of runs of parts."""

    def parts(self, folder: Path, **changed: Any) -> Any:
        """Two files of one backend; what is changed, is in the second."""
        second = replace(report(c="failed", d="stale"), date="2026-01-02T02:00:00+00:00", **changed)
        first = report(a="passed", b="xfailed", d="stale")
        drawn = replace(first.results[0], seeds={"programs": 1})
        first = replace(first, results=(drawn, *first.results[1:]))
        for name, said in (("a.json", first), ("b.json", second)):
            (folder / name).write_text(json.dumps(said.as_dict()))
        return [str(folder / name) for name in ("a.json", "b.json")]

    def test_it_has_the_cases_of_all(self, tmp_path: Path) -> None:
        """The earliest date, and the sum of the seconds. An excuse that is stale is in each part."""
        facts = json.loads(run("--merge", *self.parts(tmp_path), "--json").output)
        assert {row["id"]: row["outcome"] for row in facts["results"]} == {
            "forward/a": "passed",
            "forward/b": "xfailed",
            "forward/c": "failed",
            "forward/d": "stale",
        }
        assert (facts["verdict"], facts["date"], facts["seconds"]) == (
            "does not conform",
            "2026-01-02T02:00:00+00:00",
            3.0,
        )

    def test_parts_that_are_the_whole_conform(self, tmp_path: Path) -> None:
        """As one run of them would: the tiers run one by one, merged under the backend's name."""
        for name, core in (("a.json", True), ("b.json", False)):
            cases = [case for case in CASES.select() if (case.tier == "core") == core]
            results = tuple(Result(case.id, case.tier, "passed", 0.0) for case in cases)
            (tmp_path / name).write_text(json.dumps(replace(report(a="passed"), results=results).as_dict()))
        result = run("mine", "--merge", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
        assert result.exit_code == 0, result.output
        assert f"backend 'mine' conforms: {len(CASES.select())} cases passed" in result.output

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"backend": "other"}, "has backend 'other', and"),
            ({"device_name": "C"}, "has device name 'C', and"),
            ({"versions": {**VERSIONS, "torch": "2.1"}}, "has versions {"),
            (
                {"results": report(a="passed", b="xfailed").results},
                "a.json' both have case 'forward/a'; each case must be",
            ),
            (
                {"results": (Result("random/c", "random", "passed", 0.1, seeds={"programs": 2}),)},
                "b.json' has 2 as the seed of programs, and",
            ),
        ],
    )
    def test_reports_that_do_not_go_together_are_refused(self, tmp_path: Path, changed: Any, words: str) -> None:
        """The sentence names the files, and says what differs, or what both have."""
        result = run("--merge", *self.parts(tmp_path, **changed))
        assert result.exit_code == 2
        assert words in result.output

    @pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("{}", "is no report that --json wrote")])
    def test_a_file_that_is_no_report_is_refused(self, tmp_path: Path, text: Any, words: str) -> None:
        """Exit code 2, and the sentence names the file."""
        path = tmp_path / "other.json"
        if text is not None:
            path.write_text(text)
        result = run("--merge", str(path))
        assert result.exit_code == 2
        assert words in result.output

    def test_nothing_is_run(self, tmp_path: Path) -> None:
        """So nothing can be chosen."""
        result = run("--merge", *self.parts(tmp_path), "--tier", "core")
        assert result.exit_code == 2
        assert "--merge runs nothing: leave --tier, --case and --device out" in result.output


class TestJson:
    """The option that writes."""

    def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        """A folder that is missing, and a folder in place of a file."""
        result = run("torch", "--case", "forward/lif-hard", "--json", str(tmp_path / "none" / "out.json"))
        assert result.exit_code == 2
        assert f"there is no folder {tmp_path / 'none'}; make it first" in result.output
        assert "passed" not in result.output
        (tmp_path / "out.json").mkdir()
        result = run("torch", "--case", "forward/lif-hard", "--json", str(tmp_path / "out.json"))
        assert result.exit_code == 2
        assert "that is a folder; name a file" in result.output

    def test_a_file_beside_the_screen(self, tmp_path: Path) -> None:
        """The screen has what it has without it."""
        path = tmp_path / "out.json"
        result = run("torch", "--case", "forward/lif-hard", "--json", str(path))
        assert result.exit_code == 3
        assert "backend 'torch': partial" in result.output
        assert json.loads(path.read_text())["verdict"] == "partial"

    @pytest.mark.parametrize(
        "arguments",
        [("torch", "--json"), ("--json", "torch"), ("torch", "--json", "--tier", "core"), ("torch", "--json", "-")],
    )
    def test_json_without_a_file_is_printed(self, arguments: Any) -> None:
        """Wherever the option stands; a backend's name after it is no file."""
        assert json.loads(run(*arguments, "--case", "forward/lif-hard").output)["backend"] == "torch"
