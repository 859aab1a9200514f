"""The suite as a test class of pytest. Nothing else in this package imports pytest."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import pytest

from spikecore.backend import BackendError, BackendUnavailable
from spikecore.testing.case import DEFAULT_TIERS, Case
from spikecore.testing.own import cases_of
from spikecore.testing.runner import Bench, prepare, required, run_case, stale_ids

#: What a subclass may say. Everything else is the suite's.
_MINE = ("backend", "expected_failures", "tiers", "device")


class BackendConformance:
    """The conformance suite for one backend, as a test class::

        class TestMine(BackendConformance):
            backend = "mine"
            expected_failures = {"gradient/eif-hard": "exp is rounded to 10 bits, mine#3"}

    backend: the backend's name. expected_failures: case id -> reason; one that passes, or is no case, fails.
    tiers: those to run (:data:`~spikecore.testing.case.TIERS`). device: torch device; by default one of the backend's.

    A subclass sets these and nothing else: standard cases are not overridden, and other tests go beside the class.
    """

    backend: ClassVar[str] = ""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    tiers: ClassVar[Sequence[str]] = DEFAULT_TIERS
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

    def test_case(self, case: Case, record_property: Any, request: Any) -> None:
        """The case holds; or fails as expected; or asks for something undeclared, which is refused."""
        bench = _bench(self.backend, self.device, request.config)
        result = run_case(case, bench, bench.expected(self.expected_failures).get(case.id))
        for key, value in (("backend", self.backend), ("tier", case.tier), ("outcome", result.outcome)):
            record_property(f"spikecore_{key}", value)
        if result.outcome == "xfailed":
            pytest.xfail(result.message)
        if not result.ok:
            pytest.fail(result.message, pytrace=False)

    def test_expected_failures(self, request: Any) -> None:
        """Every expected failure names a case and gives a reason."""
        expected = _bench(self.backend, self.device, request.config).expected(self.expected_failures)
        stale = stale_ids(expected, cases_of(self.backend))
        if stale:
            pytest.fail("\n".join(result.message for result in stale), pytrace=False)


_prepared: Dict[Tuple[str, Optional[str]], Any] = {}


def _bench(name: str, device: Optional[str], config: Any) -> Bench:
    key = (name, device)
    if key not in _prepared:
        try:
            _prepared[key] = prepare(name, device)
        except BackendError as error:
            _prepared[key] = error
    found = _prepared[key]
    if isinstance(found, Bench):
        return found
    if isinstance(found, BackendUnavailable) and not _required(name, config):
        pytest.skip(str(found))
    pytest.fail(f"{found}", pytrace=False)


def _required(name: str, config: Any) -> bool:
    option = config.getoption("spikecore_require", default=None) or ""
    return required(name) or required(name, {"SPIKECORE_REQUIRE": option})
