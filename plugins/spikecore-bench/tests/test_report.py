"""A report of the benchmark: as JSON, as tables, as a plot, and by the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench_runs import Mutant
from spikecore import cli
from spikecore.testing import installed
from spikecore_bench import run, tables
from spikecore_bench.report import Availability, Report, Row, from_json
from spikecore_bench.settings import SUITES

REPORT = Report(
    {"date": "", "device": "cpu", "device_name": "a processor", "threads": 2, "spikecore": "0", "torch": "2"},
    {"steps": [3]},
    [Availability("gone", "peer", "missing", "", "pip install [gone]")],
    [
        Row("neurons", {"neuron": "LIF", "dtype": "float32", "steps": 4, "neurons": 10}, "copy", "ok", "9 GB/s", {}),
        Row(
            "neurons",
            {"neuron": "LIF", "dtype": "float32", "steps": 4, "neurons": 10},
            "torch",
            "ok",
            "",
            {"forward_ms": 0.5, "training_ms": 1234.0, "training_fraction": 0.25},
        ),
        Row("small", {"neuron": "LIF", "dtype": "float32", "steps": 8, "neurons": 40}, "bad", "wrong", "3 of 4", {}),
    ],
    True,
)


def test_report_is_the_same_after_json(tmp_path: Any) -> None:
    """Writing and reading gives an equal report; anything else is refused."""
    REPORT.write(tmp_path / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert from_json((tmp_path / "report.json").read_text(encoding="utf-8")) == REPORT
    for text in ("[]", '{"schema": 0}'):
        with pytest.raises(ValueError, match="no report of spikecore bench"):
            from_json(text)


def test_report_of_schema_1_is_read() -> None:
    """Its words were others: "contenders" and, in a row, "contender"; docs/benchmarks has such files."""
    held = json.loads(REPORT.to_json())
    held.update(schema=1, contenders=held.pop("implementations"))
    for row in held["rows"]:
        row["contender"] = row.pop("implementation")
    assert from_json(json.dumps(held)) == REPORT
    for path in sorted((Path(__file__).parents[3] / "docs/benchmarks").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        if "schema" not in json.loads(text):  # of a program in docs/benchmarks, such as fixed_point.py
            continue
        found = from_json(text)
        measured = {row.implementation.partition(",")[0] for row in found.rows if row.status == "ok"}  # form after ","
        ours = "numba" if found.machine["device"] == "cpu" else "cupy"
        assert measured & {ours, "1 GPU"}, path.name  # rows of a pipeline are named after the number of GPUs
        assert ours in {one.name for one in found.implementations}, path.name


def test_tables_say_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """On eighty columns no figure is cut; what has no figure is said below in words."""
    tables.show(REPORT, Console(width=80))
    shown = capsys.readouterr().out
    for words_ in (*("pip install [gone]", "copy 9 GB/s", "1,234", "0.25"), "bad wrong: 3 of 4 (LIF float32 T=8 N=40)"):
        assert words_ in shown
    assert "…" not in shown
    assert "interrupted" not in shown
    tables.show(replace(REPORT, complete=False), Console(width=80))
    assert "interrupted" in capsys.readouterr().out


def invoke(*arguments: str) -> Any:
    """Run the command on tiny sizes."""
    tiny = "--device cpu --no-peers --compile-steps 0 --repetitions 1 --quick --elements 30 --size 4 --steps 3".split()
    return CliRunner().invoke(cli.app, ["bench", *tiny, *arguments])


def test_command_shows_and_writes(tmp_path: Any) -> None:
    """A table on the screen, JSON in the file; several suites, neurons and dtypes may be named."""
    path = tmp_path / "bench.json"
    options = "--suite neurons --suite small --neuron LIF --neuron own-neuron --dtype float32 --dtype bfloat16".split()
    result = invoke(*options, "--json", str(path))
    assert result.exit_code == 0, result.output
    assert all(words_ in result.output for words_ in ("own-neuron bfloat16", "T=3 N=10", "T=3 N=4"))
    report = from_json(path.read_text(encoding="utf-8"))
    assert report.complete
    assert report.settings["neurons"] == ["LIF", "own-neuron"]
    assert {row.case["dtype"] for row in report.of("neurons")} == {"float32", "bfloat16"}


def test_picture_marks_what_differs() -> None:
    """Marks of the table: a name with a star, and the meaning of the star below."""
    pytest.importorskip("matplotlib")
    from spikecore_bench import plot

    case = {"neuron": "Linear + LIF", "dtype": "float32", "steps": 5, "neurons": 4, "batch": 2}
    figures = {"training_ms": 2.0, "training_bound_ms": 1.0}
    rows = [
        Row("open-neuromorphic", case, name, status, "", figures)
        for name, status in (("torch", "ok"), ("Spyx", "differs"))
    ]
    figure = plot.figure_of(replace(REPORT, rows=rows))
    figure.canvas.draw()
    names = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert {"torch", "Spyx *"} <= names
    assert [text.get_text() for text in figure.legends[0].get_texts()][1].startswith("* another equation")
    plot.pyplot().close(figure)


def test_command_shows_and_draws_a_report_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """--from measures nothing: the tables and the plot are those of the file."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(run, "prepare", None)
    REPORT.write(tmp_path / "report.json")
    runner = CliRunner()
    result = runner.invoke(
        cli.app, ["bench", "--from", str(tmp_path / "report.json"), "--plot", str(tmp_path / "again.svg")]
    )
    assert result.exit_code == 1  # that report has a wrong row
    assert "copy 9 GB/s" in result.output
    assert "<svg" in (tmp_path / "again.svg").read_text(encoding="utf-8")
    for given, says in (
        (["--from", str(tmp_path / "none.json")], "No such file"),
        (["--from", str(tmp_path / "again.svg")], "this is no report that spikecore bench --json wrote"),
        (["--from", str(tmp_path / "report.json"), "--form", "eager"], "--form: with --from nothing is measured"),
        (["--from", str(tmp_path / "report.json"), "--json", str(tmp_path / "new.json")], "nothing is measured"),
    ):
        result = runner.invoke(cli.app, ["bench", *given])
        assert result.exit_code == 2, result.output
        assert says in " ".join(result.output.split())


def test_ctrl_c_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends with 130, as a shell says it."""

    def interrupted(report: Report, *arguments: Any) -> None:
        report.rows.append(REPORT.rows[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", interrupted)
    result = invoke("--suite", "neurons")
    assert result.exit_code == 130
    assert "copy 9 GB/s" in result.output


def test_the_help_lists_the_suites() -> None:
    """It is written out in spikecore, since help imports no torch."""
    texts = {option.name: getattr(option, "help", "") for option in cli.bench.params}
    assert texts["suites"].startswith(", ".join(SUITES))


def test_command_fails_for_a_wrong_backend() -> None:
    """It says so last, and exits with 1; the tables are there all the same."""
    with installed(Mutant):
        result = invoke("--suite", "neurons")
    assert result.exit_code == 1
    assert "mutant wrong:" in result.output
    assert "not timed, because what it computes is wrong: mutant" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--suite", "nothing"], "suite 'nothing'"),
        (["--backend", "nothing"], "'nothing' is not installed"),
        (["--json", "no/such/place.json"], "there is no directory"),
        (["--json", "."], "File '.' is a directory"),
        (["--plot", "bench.xyz"], "bench.xyz: '.xyz' is no format of a picture; there are: "),
        (["--suite", "neurons", "--form", "eager"], "--form eager does not change what --suite neurons measures"),
        (["--suite", "small"], "--elements 30 does not change what --suite small measures; leave it out, or measure"),
    ],
)
def test_command_refuses_before_it_measures(arguments: List[str], says: str) -> None:
    """A wrong argument is an error at once, in words, and so is one that would change nothing."""
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
