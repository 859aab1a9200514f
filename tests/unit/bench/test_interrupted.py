"""``spikecore bench`` that is interrupted."""

from __future__ import annotations

import signal
from typing import Any, Dict, Iterator, List

import pytest
from typer.testing import CliRunner

from spikecore import cli
from spikecore.bench import _run as run
from spikecore.bench._report import Row


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """SIGINT is KeyboardInterrupt; a shell ignores it for its jobs in the background, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}], ids=["a file", "a terminal"])
def test_command_shows_what_it_has_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, environment: Dict[str, str]
) -> None:
    """SIGINT in the second case: the table has the first, and the status is the usual one."""
    prepare = run.prepare

    def interrupted(settings: Any) -> Any:
        report, jobs = prepare(settings)

        def stop() -> List[Row]:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("the run went on")

        return report, [jobs[0], run.Job("second", stop), *jobs[1:]]

    monkeypatch.setattr(run, "prepare", interrupted)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tiny = "--device cpu --no-peers --compile-steps 0 --repetitions 1 --quick --elements 30 --steps 3".split()
    chosen = "--suite neurons --neuron LIF --neuron PLIF".split()
    result = CliRunner().invoke(cli.app, ["bench", *tiny, *chosen])
    assert result.exit_code == 130, result.output
    assert "LIF float32" in result.output
    assert "PLIF float32" not in result.output
    assert "This run was interrupted: there was more to measure." in result.output
