"""The suite as a test class of pytest. Nothing else in this package imports pytest."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import pytest

from spikecore.backend import BackendError, BackendUnavailable
from spikecore.testing._case import TIERS, Case
from spikecore.testing._cases import cases_of
from spikecore.testing._expected import Excuse
from spikecore.testing._runner import Session, prepare, required, stale_ids
from spikecore.testing._verdict import Result

#: Attributes that a subclass may set. Everything else is the suite's.
_MINE = ("backend", "expected_failures", "tiers", "device")


class BackendConformance:
    """The conformance suite for one backend, as a test class::

        class TestMine(BackendConformance):
            backend = "mine"
            expected_failures = {"language/exp": ExpectedFailure("exp has 10 bits, mine#3", match="rounding")}

    backend: the backend's name. expected_failures: case id -> reason, or
    :class:`~spikecore.testing._expected.ExpectedFailure`, which says how and where it fails; a case that passes, fails
    in another way, or is none, is a failure.
    tiers: those to run (:data:`~spikecore.testing._case.TIERS`). device: torch device; by default one of the backend's.

    A subclass sets these and nothing else: standard cases are not overridden, and other tests go beside the class.
    The verdict is in pytest's summary: a class with fewer tiers, or a run of some cases, is ``partial`` at most.
    """

    backend: ClassVar[str] = ""
    expected_failures: ClassVar[Mapping[str, Excuse]] = {}
    tiers: ClassVar[Sequence[str]] = TIERS
    device: ClassVar[Optional[str]] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__bases__ != (BackendConformance,):
            raise TypeError(f"{cls.__name__} must have BackendConformance as its one base")
        for name in vars(cls):
            if name not in _MINE and not (name.startswith("__") and name.endswith("__") and name != "__init__"):
                raise TypeError(
                    f"{cls.__name__}.{name}: a conformance class sets {', '.join(_MINE)} and nothing else; no case can "
                    "be overridden. List one that fails in expected_failures with its reason; put other tests outside"
                )
        if not cls.backend or not isinstance(cls.backend, str):
            raise TypeError(f"{cls.__name__} must set backend to the name of the backend to test")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per case, of the suite and of the plugin: the backend is not loaded or probed while collecting."""
        if "case" in metafunc.fixturenames:
            chosen = cases_of(self.backend).select(self.tiers)
            metafunc.parametrize("case", [pytest.param(case, id=case.id) for case in chosen])

    def test_case(self, case: Case, request: Any) -> None:
        """The case holds; or fails as expected; or asks for something undeclared, which is refused."""
        session = _session(self, request)
        result = session.run(case)
        _tell(request.node, self.backend, result, session.bench.device)
        if result.outcome == "xfailed":
            pytest.xfail(result.message)
        if not result.ok:
            pytest.fail(result.message, pytrace=False)

    def test_expected_failures(self, request: Any) -> None:
        """Every expected failure names a case and gives a reason."""
        session = _session(self, request)
        stale = stale_ids(session.expected, cases_of(self.backend))
        for result in stale:
            _tell(request.node, self.backend, result, session.bench.device)
        if stale:
            pytest.fail("\n".join(result.message for result in stale), pytrace=False)


def _tell(node: Any, backend: str, result: Result, device: str = "") -> None:
    """Leave the result for spikecore_pytest, which puts it into the report of this test.

    Not with ``record_property``: the schema of pytest's JUnit files has no properties at a test case, and pytest warns.
    """
    node.spikecore = {"backend": backend, "device": device, **result.as_dict()}


#: By class and device: the session, or the error that there is in its place.
_sessions: Dict[Tuple[type, Optional[str]], Any] = {}


def _session(test: BackendConformance, request: Any) -> Session:
    key = (type(test), test.device)
    known = _sessions.get(key)
    # A fixture of the user's may install the backend. pytest-xdist can end the fixture after some cases and begin it
    # again for others, which then have another object of the backend.
    if known is None or (isinstance(known, Session) and not known.bench.is_current()):
        try:
            bench = prepare(test.backend, test.device)
            _sessions[key] = Session(bench, bench.expected(test.expected_failures))
        except BackendError as error:
            _sessions[key] = error
    found = _sessions[key]
    if isinstance(found, Session):
        return found
    skipped = isinstance(found, BackendUnavailable) and not _required(test.backend, request.config)
    outcome = "unavailable" if skipped else "error"
    _tell(request.node, test.backend, Result("backend/available", "core", outcome, 0.0, str(found)))
    if skipped:
        pytest.skip(str(found))
    pytest.fail(f"{found}", pytrace=False)


def _required(name: str, config: Any) -> bool:
    option = config.getoption("spikecore_require", default=None) or ""
    return required(name) or required(name, {"SPIKECORE_REQUIRE": option})
