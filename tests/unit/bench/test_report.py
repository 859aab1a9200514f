"""A report of the benchmark: as JSON, as tables, as a plot, and by the command."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from bench_runs import TINY, Mutant, ran
from spikecore import cli
from spikecore.bench import _machine as machine
from spikecore.bench import _networks as networks
from spikecore.bench import _run as run
from spikecore.bench import models
from spikecore.bench._plot import figure_of, plot, pyplot
from spikecore.bench._report import Availability, Report, Row, from_json
from spikecore.cli import _bench_tables as tables
from spikecore.testing._loopback import installed


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first network is small, and the only one."""
    network = replace(models.NETWORKS["fc"], steps=2, batch_on_cpu=2)
    monkeypatch.setattr(networks, "NETWORKS", {"fc": network})


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
        found = from_json(path.read_text(encoding="utf-8"))
        measured = {row.implementation.partition(",")[0] for row in found.rows if row.status == "ok"}  # form after ","
        ours = "numba" if found.machine["device"] == "cpu" else "cupy"
        assert measured & {ours, "1 GPU"}, path.name  # rows of a pipeline are named after the number of GPUs
        assert ours in {one.name for one in found.implementations}, path.name


def test_status_that_is_none_is_refused() -> None:
    """A row has one of the known statuses."""
    with pytest.raises(ValueError, match="must be one of ok, differs, printed, wrong"):
        Row("small", {}, "x", "fine")


def test_tables_say_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """On eighty columns no figure is cut; what has no figure is said below in words."""
    from rich.console import Console

    tables.show(REPORT, Console(width=80))
    shown = capsys.readouterr().out
    for words_ in (
        *("pip install [gone]", "copy 9 GB/s", "1,234", "0.25"),
        "bad wrong: 3 of 4 (LIF float32 T=8 N=40)",
    ):
        assert words_ in shown
    assert "…" not in shown
    assert "interrupted" not in shown
    tables.show(replace(REPORT, complete=False), Console(width=80))
    assert "interrupted" in capsys.readouterr().out


def test_figures_beside_names_that_a_screen_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a screen does not hold all figures beside a name, there are two tables; the second has rows with figures.

    On eighty columns the seven figures of networks left two letters for names.
    """
    from rich.console import Console

    case = {"network": "vgg-t4", "dtype": "float32", "steps": 4, "batch": 128}
    times = dict.fromkeys(("step_ms", "images_per_second", "time_over_best_relu", "time_over_relu"), 1.5)
    memory = dict.fromkeys(("memory_gib", "activations_gib", "activations_over_relu"), 2.5)
    name = "cupy, compiled fused CUDA graph"
    rows = [Row("networks", case, name, "ok", "", times), Row("networks", case, "ReLU", "ok", "", {**times, **memory})]
    for width, names in ((80, [name, "ReLU", "ReLU"]), (160, [name, "ReLU"])):
        tables.show(replace(REPORT, rows=rows), Console(width=width))
        lines = capsys.readouterr().out.splitlines()
        assert [one for line in lines for one in (name, "ReLU") if line.strip().startswith(f"{one} ")] == names
        assert "".join(lines).count("Networks:") == 1
        assert "".join(lines).count("best ReLU: the network") == 1


def test_notes_say_a_thing_once() -> None:
    """The same reason in many cases is one sentence, without a case where it holds in all; of differences the first
    stands for all.
    """
    case = {"neuron": "LIF", "dtype": "float32", "steps": 8, "neurons": 40}
    rows = [Row("small", {**case, "steps": t}, "a", "skipped", "why") for t in (1, 2, 3)]
    rows += [Row("small", {**case, "steps": t}, "b", "differs", f"by {t}") for t in (1, 2)]
    rows += [Row("small", {**case, "steps": t}, "c", "skipped", "too many") for t in (2, 3)]
    assert [note.plain for note in tables.notes(rows)] == [
        "a skipped: why",
        "* b differs: by 1 (LIF float32 T=1 N=40 and 1 more)",
        "c skipped: too many (LIF float32 T=2 N=40 and 1 more)",
    ]


def test_plot_is_a_picture(tmp_path: Any, small_network: None) -> None:
    """Every suite that was measured has a panel."""
    pytest.importorskip("matplotlib")
    report = ran(replace(TINY, suites=("neurons", "small", "networks"), steps=(2, 3)))
    plot(report, tmp_path / "bench.svg")
    text = (tmp_path / "bench.svg").read_text(encoding="utf-8")
    assert "<svg" in text


def test_legend_of_a_plot_covers_no_panel() -> None:
    """One legend for all panels, with every implementation, beside them and inside the picture."""
    pytest.importorskip("matplotlib")
    case = {"neuron": "LIF", "dtype": "float32", "steps": 4, "neurons": 10}
    names = ["cupy", "triton", *(f"SpikingJelly {how}" for how in ("functional", "module", "steps"))]
    rows = [
        Row("neurons", {**case, "dtype": dtype, "steps": steps}, name, "ok", "", {"training_fraction": 0.9})
        for dtype in ("float32", "bfloat16", "float16", "float64")
        for steps in (4, 128)
        for name in names
    ]
    figure = figure_of(replace(REPORT, rows=rows))
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    panels = [ax for ax in figure.axes if ax.get_visible()]
    assert len(panels) == 4
    assert [text.get_text() for text in legend.get_texts()] == names
    assert not any(ax.get_legend() or ax.get_tightbbox().overlaps(box) for ax in panels)
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    pyplot().close(figure)


def test_machine_facts_are_json() -> None:
    """What a figure depends on is named, and None stands for what is not installed."""
    facts = machine.machine(torch.device("cpu"))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["torch"] == torch.__version__
    assert {"device_name", "threads", "python", "triton", "cupy", "spikingjelly"} <= set(facts)
    assert machine.version_of("no-such-distribution") is None


# -- command


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
        assert says in " ".join(result.output.replace("│", " ").split())


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
        (["--json", "."], ". is a directory; give a file in it"),
        (["--plot", "bench.xyz"], "bench.xyz: '.xyz' is no format of a picture; there are: "),
        (["--suite", "all", "--suite", "nothing"], "suite 'nothing' is not known"),
        (["--threads", "0"], "threads=0 must be 1 or more"),
        (["--suite", "neurons", "--form", "eager"], "--form eager does not change what --suite neurons measures"),
        (
            ["--suite", "networks", "--suite", "calls"],
            "--steps 3 does not change what --suite networks, calls measures",
        ),
        (["--suite", "small"], "--elements 30 does not change what --suite small measures; leave it out, or measure"),
    ],
)
def test_command_refuses_before_it_measures(arguments: List[str], says: str) -> None:
    """A wrong argument is an error at once, in words, and so is one that would change nothing."""
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())


def test_what_is_named_twice_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites, numbers of steps and all other names."""
    seen: List[Any] = []
    monkeypatch.setattr(run, "prepare", lambda settings: seen.append(settings) or (REPORT, []))
    invoke(*"--suite neurons --suite neurons --steps 3 --steps 4 --dtype float32 --dtype float32".split())
    (settings,) = seen
    assert (settings.suites, settings.steps, settings.dtypes) == (("neurons",), (3, 4), ("float32",))


def test_command_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """--plot is refused before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("--plot", str(tmp_path / "bench.png"))
    assert result.exit_code == 2
    assert "pip install 'spikecore[train]'" in " ".join(result.output.replace("│", " ").split())


def test_what_is_long_is_said_below_the_table() -> None:
    """Beside the name of a measured row stand a few words; kernels that are listed are below, not all of them."""
    case = {"network": "vgg-t4", "dtype": "bfloat16", "steps": 4, "batch": 2}
    long = "device 4 ms: " + "; ".join(f"kernel_{i}" for i in range(100))
    rows = [Row("networks", case, "few", "ok", "two words"), Row("networks", case, "many", "ok", long)]
    console = Console(file=io.StringIO(), width=500)
    tables.show(Report({"device_name": "x", "device": "cpu", "threads": 1}, {}, [], rows, True), console)
    text = console.file.getvalue()
    assert "few two words" in text
    assert "many ok: device 4 ms: kernel_0; kernel_1;" in text
    assert "kernel_30" in text
    assert "kernel_99" not in text
