"""Reports for programs: JUnit, the badge, what changed; each in the form that its readers take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from plain_loop import Plain
from spikecore.cli import app
from spikecore.testing import CASES, Report, Result, installed
from spikecore.testing.reports import badge, changes, junit, markdown

#: What Jenkins' junit-10.xsd, which pytest calls xunit2, allows: element -> attributes, children.
SCHEMA = {
    "testsuites": ({"name", "time", "tests", "failures", "disabled", "errors"}, {"testsuite"}),
    "testsuite": (
        {*"name tests failures errors time disabled skipped timestamp hostname id package".split()},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": (
        {"name", "assertions", "time", "classname", "status"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "skipped": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "failure": ({"message", "type"}, set()),
}
VERSIONS = {"spikecore": "1.0", "distribution": "mine 2", "torch": "2.0", "python": "3.8", "contract": "1.1"}


def report(**outcomes: str) -> Report:
    """A report of some cases of two tiers."""
    results = [
        Result(f"forward/{id}", "core" if i % 2 == 0 else "state", outcome, 0.5, f"<{outcome}>\nof\x00 {id} & \x1b[31m")
        for i, (id, outcome) in enumerate(outcomes.items())
    ]
    return Report("mine", tuple(results), "cpu", "A & B", VERSIONS, "2026-01-02T03:04:05+00:00", 1.5)


def run(*arguments: str) -> Any:
    """The result of the command."""
    return CliRunner().invoke(app, ["conformance", *arguments])


def check(element: Any) -> None:
    """Attributes and children are those of the schema."""
    attributes, children = SCHEMA[element.tag]
    assert set(element.attrib) <= attributes, element.tag
    assert {child.tag for child in element} <= children, element.tag
    for child in element:
        check(child)


OUTCOMES = {
    "a": "passed", "b": "failed", "c": "error", "d": "stale", "e": "xfailed", "f": "unsupported", "g": "unavailable",
}  # fmt: skip


class TestJunit:
    """The XML."""

    def test_it_is_of_the_schema(self) -> None:
        """Elements, attributes and counts; no properties at a test case."""
        root = ElementTree.fromstring(junit(report(**OUTCOMES)).encode())
        check(root)
        (suite,) = root
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "2", "1")
        assert suite.get("skipped") == "3"
        assert suite.get("timestamp") == "2026-01-02T03:04:05"
        tags = [(case.get("name"), [child.tag for child in case]) for case in suite.iter("testcase")]
        failing = {"b": "failure", "c": "error", "d": "failure", "e": "skipped", "f": "skipped", "g": "skipped"}
        assert tags == [(f"forward/{id}", [failing[id]] if id in failing else []) for id in OUTCOMES]

    def test_the_verdict_and_the_versions_are_properties_of_the_suite(self) -> None:
        """Where the schema has a place for them."""
        root = ElementTree.fromstring(junit(report(a="passed")).encode())
        properties = {one.get("name"): one.get("value") for one in root.iter("property")}
        assert properties["spikecore.verdict"] == "partial"
        assert properties["spikecore.device_name"] == "A & B"
        assert properties["spikecore.version.torch"] == "2.0"

    def test_what_xml_cannot_hold_is_replaced(self) -> None:
        """A message may have any character."""
        (failure,) = ElementTree.fromstring(junit(report(b="failed")).encode()).iter("failure")
        assert failure.text == "<failed>\nof? b & ?[31m"
        assert failure.get("message") == "<failed>"


class TestBadge:
    """The picture."""

    @pytest.mark.parametrize(
        ("outcome", "says", "colour"),
        [
            ("passed", "partial: 1 of ", "#9a6700"),
            ("failed", "does not conform: 1 wrong of 1", "#c62828"),
            ("xfailed", "not tested", "#6e7781"),
        ],
    )
    def test_it_says_the_verdict(self, outcome: str, says: str, colour: str) -> None:
        """In words, in a colour, and for those who hear it."""
        text = badge(report(a=outcome))
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        shown = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert shown[0] == "spikecore mine"
        assert shown[1].startswith(says)
        assert colour in text
        assert root.get("aria-label") == f"{shown[0]}: {shown[1]}"

    def test_it_has_the_counts_of_a_suite_with_excuses(self) -> None:
        """One that conforms says how many cases passed, and of how many."""
        cases = CASES.select()
        outside = CASES.select(["robust"])[0].id
        ended = {case.id: "xfailed" if case.id == outside else "passed" for case in cases}
        results = tuple(Result(case.id, case.tier, ended[case.id], 0.0) for case in cases)
        text = badge(replace(report(a="passed"), results=results))
        assert f"conforms: {len(cases) - 1} of {len(cases)}" in text


class TestMarkdown:
    """The text for an issue."""

    def test_it_has_what_a_reader_asks_for(self) -> None:
        """Verdict, device, versions and counts; reasons of excuses and refusals; what is wrong, in blocks that end."""
        said = report(**OUTCOMES)
        broken = replace(said.results[1], message="is a | b\n~~~\n## heading")
        text = markdown(replace(said, results=(said.results[0], broken, *said.results[2:])))
        lines = text.splitlines()
        for line in (
            "### spikecore conformance mine: does not conform",
            "| device | cpu: A & B |",
            "| torch | 2.0 |",
            "| core | 1 | 1 | 0 | 1 | 0 | 1 | 0 |",
            "- <xfailed> (1)",
            "- <unsupported> (1)",
            "**failed `forward/b`**",
            "is a | b",
        ):
            assert line in lines, text
        assert lines.count("~~~text") == lines.count("~~~") == 3
        assert "\x00" not in text

    def test_many_failures_are_counted(self) -> None:
        """Twenty are shown."""
        text = markdown(report(**{f"c{i}": "failed" for i in range(23)}))
        assert text.count("**failed `") == 20
        assert text.endswith("3 more are wrong; `--json run.json` has them all.\n")

    def test_the_command_prints_it_alone(self, tmp_path: Path) -> None:
        """``--report``, with the report as a file; two texts on one output are refused."""
        path = tmp_path / "run.json"
        with installed(Plain) as name:
            done = run(name, "--case", "forward/lif-hard", "--report", "--json", str(path))
            both = run(name, "--case", "forward/lif-hard", "--report", "--json")
        assert done.exit_code == 3
        assert done.output.startswith(f"### spikecore conformance {name}: partial\n")
        assert "| core | 1 | 0 |" in done.output
        assert json.loads(path.read_text())["verdict"] == "partial"
        assert both.exit_code == 2
        assert "--report and --json both print; name a file" in both.output


class TestChanges:
    """Changes of each case's outcome."""

    def earlier(self, folder: Path, said: Report) -> Path:
        """A file as --json writes it."""
        path = folder / "old.json"
        path.write_text(json.dumps(said.as_dict()))
        return path

    def test_worse_better_new_gone(self, tmp_path: Path) -> None:
        """By outcome: an excuse and a refusal are equals, above a failure and below a pass."""
        old = self.earlier(tmp_path, report(a="passed", b="failed", c="passed", d="xfailed", e="unsupported"))
        found = changes(old, report(a="failed", b="passed", d="unsupported", e="passed", f="xfailed").results)
        assert found.worse == [("forward/a", "passed", "failed")]
        assert found.better == [("forward/b", "failed", "passed"), ("forward/e", "unsupported", "passed")]
        assert found.new == [("forward/f", "xfailed")]
        assert found.gone == [("forward/c", "passed")]
        assert found.sentences("partial") == [
            "worse: forward/a: passed -> failed",
            "better: forward/b: failed -> passed",
            "better: forward/e: unsupported -> passed",
            "new: 1 xfailed: forward/f",
            "gone: 1 passed: forward/c",
            "verdict: does not conform -> partial",
        ]

    def test_what_got_worse_is_an_exit_code(self, tmp_path: Path) -> None:
        """A case that passed and is now excused is 1; without change the code is the verdict's."""

        class Excused(Plain):
            name = "excused"

            def compile(self, program: Any, spec: Any) -> Any:
                raise NotImplementedError("no compiler")

        chosen = ("--case", "forward/lif-hard", "--case", "forward/if-hard")
        path = tmp_path / "old.json"
        with installed(Plain) as name:
            assert run(name, *chosen, "--json", str(path)).exit_code == 3
            same = run(name, *chosen, "--compare", str(path))
        assert same.exit_code == 3
        assert "nothing changed" in same.output
        with installed(Excused) as name:
            worse = run(name, *chosen, "--compare", str(path), "--json")
        assert worse.exit_code == 1
        facts = json.loads(worse.output)
        assert [row[0] for row in facts["changes"]["worse"]] == ["forward/lif-hard", "forward/if-hard"]

    def test_a_file_that_is_no_report_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        """Exit code 2, and the sentence names the file."""
        for text, words in ((None, "cannot be read"), ("{}", "is no report that --json wrote"), ("?", "is no report")):
            path = tmp_path / "other.json"
            if text is not None:
                path.write_text(text)
            result = run("torch", "--case", "forward/lif-hard", "--compare", str(path))
            assert result.exit_code == 2
            assert words in result.output
            assert "passed" not in result.output


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
        """The tiers conform as in one run: run one by one, merged under the backend's name."""
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


class TestFiles:
    """The options that write."""

    def test_all_at_once(self, tmp_path: Path) -> None:
        """The screen has what it has without them."""
        paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "junit", "badge")}
        arguments = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
        result = run("torch", "--case", "forward/lif-hard", *arguments)
        assert result.exit_code == 3
        assert "backend 'torch': partial" in result.output
        assert json.loads(paths["json"].read_text())["verdict"] == "partial"
        check(ElementTree.fromstring(paths["junit"].read_bytes()))
        assert ">partial: 1 of " in paths["badge"].read_text()

    @pytest.mark.parametrize(
        "arguments",
        [("torch", "--json"), ("--json", "torch"), ("torch", "--json", "--tier", "core"), ("torch", "--json", "-")],
    )
    def test_json_without_a_file_is_printed(self, arguments: Any) -> None:
        """Wherever the option stands; a backend's name after it is no file."""
        assert json.loads(run(*arguments, "--case", "forward/lif-hard").output)["backend"] == "torch"
