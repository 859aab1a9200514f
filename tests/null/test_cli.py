"""The ``spikecore`` command, in process: what it prints of a list of backends."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import asdict
from typing import Any, List

import pytest
from click.testing import CliRunner

from spikecore import cli
from spikecore.backend import BackendStatus
from spikecore.dtypes import DTYPES, NARROW
from spikecore.plugins.registry import Registry
from spikecore.testing import TIERS

ROWS = [
    BackendStatus("torch", "ready", "spikecore", "0.1.0", 1, ("*",), ("float32", "gradients"), ""),
    BackendStatus("cupy", "unavailable", "spikecore", "0.1.0", 1, ("cuda",), (), "no cupy (pip 'spikecore[x]')"),
    BackendStatus("foo", "installed", "spikecore-foo", "0.3.1", None, (), (), ""),
]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> List[bool]:
    """The command lists ROWS; what it asked the library for is kept here."""
    asked: List[bool] = []

    def listed(registry: Registry, probe: bool, automatic: Any) -> List[BackendStatus]:
        asked.append(probe)
        return ROWS

    monkeypatch.setattr(Registry, "status", listed)
    monkeypatch.setenv("COLUMNS", "200")
    return asked


def invoke(*arguments: str) -> str:
    """The output of the command, which must succeed."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_line_per_backend_with_its_details(probes: List[bool]) -> None:
    """Name, state and provider; devices, capabilities and detail under it, brackets unharmed; nothing is probed."""
    lines = invoke("backends").splitlines()
    assert lines[:3] == ["torch ready (spikecore 0.1.0)", "    devices: *", "    can: float32, gradients"]
    assert lines[3:6] == ["cupy unavailable (spikecore 0.1.0)", "    no cupy (pip 'spikecore[x]')", "    devices: cuda"]
    assert lines[6] == "foo installed (spikecore-foo 0.3.1)"
    assert probes == [False]


def test_what_a_plugin_prints_does_not_spoil_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes where errors go."""

    def loud(*asked: Any) -> List[BackendStatus]:
        print("imported")
        return ROWS

    monkeypatch.setattr(Registry, "status", loud)
    # before version 8.2 click's runner puts what goes to standard error into the standard output
    apart: Any = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**apart).invoke(cli.app, ["backends", "--json", "--probe"])
    assert [row["name"] for row in json.loads(result.stdout)] == ["torch", "cupy", "foo"]


def test_json_has_every_field(probes: List[bool]) -> None:
    """``--json`` prints a list of objects with all fields of BackendStatus, and nothing else."""
    expected = json.loads(json.dumps([asdict(row) for row in ROWS]))
    assert json.loads(invoke("backends", "--json")) == expected
    names = "name state distribution version api devices capabilities detail automatic"
    assert set(expected[0]) == {*names.split()}


def test_probe_is_passed_on(probes: List[bool]) -> None:
    """``--probe`` asks the library to load and try."""
    invoke("backends", "--probe")
    invoke("backends", "--json", "--probe")
    assert probes == [True, True]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in cli.app.commands)])
def test_help_imports_no_torch(arguments: List[str]) -> None:
    """Nothing of it is needed to list commands and options, or to say a version. Each help has examples."""
    code = (
        "import sys; from spikecore.cli import app; "
        f"app({arguments}, standalone_mode=False); "
        "sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert arguments == ["--version"] or "Examples:\n    spikecore " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["backends"], ["backends", "--json"], ["cache"], ["cache", "--json"]])
def test_what_only_reads_imports_no_torch(arguments: List[str]) -> None:
    """Metadata of installed packages, and files of a folder: torch takes most of two seconds."""
    code = f"import sys; from spikecore.cli import app; app({arguments}, standalone_mode=False)"
    asked = f"{code}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_lists_in_the_help_are_those_of_the_library() -> None:
    """They are written out, since help imports no torch."""
    choices = {option.name: option.type for option in cli.kernel.params + cli.explain.params}
    assert sorted(choices["dtype"].choices) == sorted(DTYPES)
    assert list(choices["autocast"].choices) == sorted(NARROW)
    texts = {option.name: getattr(option, "help", "") for option in cli.conformance.params}
    assert texts["tier"].split(": ")[1].rstrip(".").startswith(", ".join(TIERS[:-1]))


def test_the_benchmark_is_a_distribution_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed the command says how to get it."""
    monkeypatch.setitem(sys.modules, "spikecore_bench", None)
    result = CliRunner().invoke(cli.app, ["bench", "--quick"])
    assert result.exit_code == 2
    needs = "spikecore bench needs spikecore-bench: pip install ./plugins/spikecore-bench, in a clone of spikecore"
    assert needs in " ".join(result.output.split())


def test_every_command_is_under_a_heading() -> None:
    """Of the help, once."""
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", invoke("--help"), re.MULTILINE)
    assert sorted(listed) == sorted(cli.app.commands)


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is a shell's; 1 would be a verdict of conformance."""

    def interrupted(*asked: Any) -> List[BackendStatus]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Registry, "status", interrupted)
    assert CliRunner().invoke(cli.app, ["backends"]).exit_code == 130
