"""pytest's side of the conformance suite: an option, a header line, the verdicts, and a last look at what was required.

Every pytest run in this environment imports this module, so it imports neither spikecore nor torch, unless conformance
cases ran: their verdict is spikecore's.

``SPIKECORE_REQUIRE=mine,other``, or ``--spikecore-require=mine,other``: a backend that is not usable here is a failure
instead of a skip, and so is a run in which none of its core cases passed.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Generator, List, Optional, Tuple

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--spikecore-require``."""
    group = parser.getgroup("spikecore")
    group.addoption(
        "--spikecore-require",
        default="",
        metavar="NAMES",
        help="backends, separated by commas, that must be usable and conform (also: SPIKECORE_REQUIRE)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run: what passed, and whether that is all that is required."""
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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any) -> Generator[None, Any, None]:
    """Put the result that a conformance case left at its item into the report, which pytest-xdist sends home."""
    outcome = yield
    if hasattr(item, "spikecore"):
        outcome.get_result().spikecore = item.spikecore


def pytest_report_teststatus(report: Any) -> Optional[Tuple[str, str, str]]:
    """Cases of capabilities that are not declared, and were refused, are counted apart."""
    if report.when == "call" and report.passed and _said(report).get("outcome") == "unsupported":
        return "unsupported", "u", "UNSUPPORTED"
    return None


def _said(report: Any) -> Dict[str, Any]:
    said: Dict[str, Any] = getattr(report, "spikecore", {})
    return said


class _Watch:
    """Collects the results of conformance cases, by backend, device and test class."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seen: Dict[Tuple[str, str, str], List[Dict[str, Any]]] = {}
        self.missing: List[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One case more."""
        said = dict(_said(report))
        if report.when == "call" and said:
            key = said.pop("backend"), report.nodeid.rpartition("::")[0], said.pop("device")
            self.seen.setdefault(key, []).append({**said, "seconds": report.duration})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a required backend was not tested."""
        if session.config.option.collectonly or hasattr(session.config, "workerinput"):
            return
        self.missing = [name for name in _required(self.config) if not self._passed(name)]
        if self.missing and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _passed(self, name: str) -> bool:
        every = [said for (backend, *_), results in self.seen.items() if backend == name for said in results]
        return any(said["tier"] == "core" and said["outcome"] == "passed" for said in every)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The verdicts, and what is missing."""
        backends = [name for name, *_ in self.seen]
        for (name, place, _), results in sorted(self.seen.items()):
            where = f" ({place})" if backends.count(name) > 1 else ""
            terminalreporter.write_line(f"spikecore: backend {name!r}{where}: {_verdict(results)}")
        for name in self.missing:
            terminalreporter.write_line(
                f"spikecore: backend {name!r} is required, and none of its core conformance cases passed", red=True
            )


def _verdict(said: List[Dict[str, Any]]) -> str:
    from spikecore.testing import Result, judge

    return str(judge([Result(**{**one, "lacking": tuple(one["lacking"])}) for one in said]))
