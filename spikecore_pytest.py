"""pytest's side of the conformance suite: an option, a header line, and a last look at what was required.

Every pytest run in this environment imports this module, so it imports neither spikecore nor torch.

``SPIKECORE_REQUIRE=mine,other``, or ``--spikecore-require=mine,other``: a backend that is not usable here is a failure
instead of a skip, and so is a run in which none of its core cases ran.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

import pytest

_BACKEND, _TIER, _OUTCOME = "spikecore_backend", "spikecore_tier", "spikecore_outcome"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--spikecore-require``."""
    parser.getgroup("spikecore").addoption(
        "--spikecore-require",
        default="",
        metavar="NAMES",
        help="backends, separated by commas, that must be usable and conform (also: SPIKECORE_REQUIRE)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run, where something is required of it."""
    config.pluginmanager.register(_Watch(config), "spikecore-watch")


def _required(config: pytest.Config) -> List[str]:
    given = f"{os.environ.get('SPIKECORE_REQUIRE', '')},{config.getoption('spikecore_require')}"
    return sorted({name.strip() for name in given.split(",")} - {""})


def pytest_report_header(config: pytest.Config) -> Optional[str]:
    """What the environment asks of spikecore, so that a misspelt name is seen."""
    names = ("SPIKECORE_BACKEND", "SPIKECORE_BLOCK", "SPIKECORE_NO_PLUGINS")
    said = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    said += [f"required: {', '.join(_required(config))}"] if _required(config) else []
    return f"spikecore: {'; '.join(said)}" if said else None


def pytest_report_teststatus(report: Any) -> Optional[Tuple[str, str, str]]:
    """Cases of capabilities that are not declared, and were refused, are counted apart."""
    if report.when == "call" and report.passed and (_OUTCOME, "unsupported") in getattr(report, "user_properties", ()):
        return "unsupported", "u", "UNSUPPORTED"
    return None


class _Watch:
    """Counts the core cases that ran, by backend."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ran: Dict[str, int] = {}
        self.missing: List[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One case more."""
        said = dict(report.user_properties)
        if report.when == "call" and said.get(_TIER) == "core" and said.get(_OUTCOME) != "unsupported":
            name = str(said.get(_BACKEND))
            self.ran[name] = self.ran.get(name, 0) + 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a required backend was not tested."""
        if session.config.option.collectonly or hasattr(session.config, "workerinput"):
            return
        self.missing = [name for name in _required(self.config) if not self.ran.get(name)]
        if self.missing and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say so."""
        for name in self.missing:
            terminalreporter.write_line(
                f"spikecore: backend {name!r} is required, and none of its core conformance cases ran", red=True
            )
