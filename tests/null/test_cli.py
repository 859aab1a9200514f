"""The ``spikecore`` command, in process: what it prints of a list of backends."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, List

import pytest
from typer.models import OptionInfo
from typer.testing import CliRunner

from spikecore import cli
from spikecore._plugins.registry import BackendStatus
from spikecore.cli import _backends

ROWS = [
    BackendStatus("torch", "ready", "spikecore", "0.1.0", 1, ("*",), ("float32", "gradients"), ""),
    BackendStatus("cupy", "unavailable", "spikecore", "0.1.0", 1, ("cuda",), (), "no cupy (pip 'spikecore[x]')"),
    BackendStatus("foo", "installed", "spikecore-foo", "0.3.1", None, (), (), ""),
]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> List[bool]:
    """The command lists ROWS; what it asked the library for is kept here."""
    asked: List[bool] = []

    def listed(probe: bool) -> List[BackendStatus]:
        asked.append(probe)
        return ROWS

    monkeypatch.setattr(_backends, "list_backends", listed)
    monkeypatch.setenv("COLUMNS", "200")
    return asked


def invoke(*arguments: str) -> str:
    """What the command prints; it must succeed."""
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

    def loud(probe: bool) -> List[BackendStatus]:
        print("imported")
        return ROWS

    monkeypatch.setattr(_backends, "list_backends", loud)
    # before version 8.2 click's runner puts what goes to standard error into the standard output
    apart: Any = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**apart).invoke(cli.app, ["backends", "--json", "--probe"])
    assert [row["name"] for row in json.loads(result.stdout)] == ["torch", "cupy", "foo"]


def test_json_has_every_field(probes: List[bool]) -> None:
    """``--json`` prints a list of objects with all fields of BackendStatus, and nothing else."""
    expected = json.loads(json.dumps([asdict(row) for row in ROWS]))
    assert json.loads(invoke("backends", "--json")) == expected
    assert set(expected[0]) == {
        "name",
        "state",
        "distribution",
        "version",
        "api",
        "devices",
        "capabilities",
        "detail",
        "automatic",
    }


def test_probe_is_passed_on(probes: List[bool]) -> None:
    """``--probe`` asks the library to load and try."""
    invoke("backends", "--probe")
    invoke("backends", "--json", "--probe")
    assert probes == [True, True]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_starts_without_torch(option: str) -> None:
    """Nothing of it is needed to list commands, or to say a version."""
    code = (
        "import sys; from spikecore.cli import app; "
        f"app([{option!r}], standalone_mode=False); "
        "sys.exit('torch' in sys.modules or 'spikecore.backend' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_options_with_a_metavar_say_their_names() -> None:
    """Typer 0.27 calls an option that is given a metavar and no name by the metavar: ``--DEVICE`` for ``--device``."""
    unnamed = []
    for command in map(cli.load, cli.COMMANDS):
        for name, parameter in inspect.signature(command.callback).parameters.items():
            option: Any = parameter.default
            if isinstance(option, OptionInfo) and option.metavar and not option.param_decls:
                unnamed.append(f"{command.name}: {name}")
    assert unnamed == []
