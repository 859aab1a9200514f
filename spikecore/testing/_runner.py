"""Running cases against a backend: one case, and a session of several on one backend object.

Each case ends in one :class:`Result`. What a backend does not declare is asked for all the same, and must be refused.
An expected failure that passes is a failure, and so is one that fails in another way, or that names no case.
"""

from __future__ import annotations

import os
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from spikecore.backend import Backend, BackendError, BackendInfo, Capabilities, Unsupported
from spikecore.dtypes import has_float64
from spikecore.plugins.registry import default_registry
from spikecore.testing._case import Case, Collection, Undeclared
from spikecore.testing._cases import CASES
from spikecore.testing._context import Context, Witness, check_device, choose_device, device_name
from spikecore.testing._expected import DIFFERENCE, REFUSAL, Excuse, ExpectedFailure, Failure, excuse_for, excuse_of
from spikecore.testing._verdict import Result
from spikecore.testing.compare import Mismatch

_ASKER = "the conformance suite"


@dataclass(frozen=True)
class Bench:
    """A backend, ready to be tested."""

    info: BackendInfo
    backend: Backend
    device: str

    @property
    def can(self) -> Capabilities:
        """Capabilities that the backend declares on this device."""
        return self.backend.capabilities_on(torch.device(self.device).type)

    def expected(self, more: Mapping[str, Excuse] = {}) -> Dict[str, Excuse]:  # never written to
        """The expected failures: those that the backend itself names in ``expected_failures``, and more."""
        return {**self.backend.expected_failures, **more}

    def excuse(self, id: str, excuses: Mapping[str, Excuse]) -> Optional[ExpectedFailure]:
        """The excuse of a case on this device, None if it has none here."""
        return excuse_for(id, excuses, self.device, device_name(self.device)) if id in excuses else None

    def command(self, id: str = "") -> str:
        """The command that runs this case, or all."""
        chosen = f" --case {id}" if id else ""
        device = "" if self.device == choose_device(self.info.devices) else f" --device {self.device}"
        return f"spikecore conformance {self.info.name}{chosen}{device}"

    def is_current(self) -> bool:
        """True if neurons that ask for the backend by name still get this object of it."""
        try:
            return default_registry().get(self.info.name, _ASKER) is self.backend
        except BackendError:
            return False

    @contextmanager
    def fresh(self) -> Iterator[Bench]:
        """Within the block, a bench with a new object of the backend, which has compiled nothing yet."""
        with default_registry().fresh(self.info.name, _ASKER) as backend:
            yield Bench(self.info, backend, self.device)


def prepare(name: str, device: Optional[str] = None) -> Bench:
    """Load the backend. Raises ``BackendError`` for one that is unknown, broken or not usable here, and ``ValueError``
    for a device that there is not or that it does not compute on.
    """
    registry = default_registry()
    info = registry.info(name, _ASKER)
    backend = registry.get(name, _ASKER)
    if device is not None:
        check_device(info, device)
    return Bench(info, backend, device or choose_device(info.devices))


def required(name: str, environ: Optional[Mapping[str, str]] = None) -> bool:
    """True if ``SPIKECORE_REQUIRE`` names the backend (names separated by commas)."""
    text = (os.environ if environ is None else environ).get("SPIKECORE_REQUIRE", "")
    return name in [word.strip() for word in text.split(",")]


class Refused(Mismatch):
    """The backend refused what its capabilities declare."""


def run_case(case: Case, bench: Bench, expected: Optional[Excuse] = None) -> Result:
    """Run one case; ``expected`` is the reason why it may fail, or the whole excuse."""
    started = time.perf_counter()
    lacks = tuple(need for need in case.needs if not getattr(bench.can, need))
    seeds: Dict[str, int] = {}
    failure: Optional[Failure] = None
    again = f"  again: {bench.command(case.id)}"
    try:
        outcome, message = _refused(case, bench, lacks, seeds) if lacks else _held(case, bench, seeds)
    except Undeclared as error:
        outcome, message, lacks = "unsupported", str(error), error.lacks
    except Mismatch as error:
        failure = Failure(REFUSAL if isinstance(error, Refused) else DIFFERENCE, str(error))
        outcome, message = "failed", f"{error}\n{again}"
    except Exception as error:
        failure = Failure(type(error).__name__, str(error))
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
        outcome = "error"
        message = f"{case.holds}: raised {type(error).__name__}: {error}\n{trace}{again}"
    blanket = False
    if expected is not None:
        excuse = excuse_of(expected)
        outcome, message = _excused(excuse, failure, outcome, message)
        blanket = outcome == "xfailed" and failure is not None and failure.kind == DIFFERENCE and not excuse.match
    return Result(case.id, case.tier, outcome, time.perf_counter() - started, message, lacks, seeds, blanket)


def _excused(excuse: ExpectedFailure, failure: Optional[Failure], outcome: str, message: str) -> Tuple[str, str]:
    if failure is None:
        what = "passes" if outcome == "passed" else f"is {outcome}: {message}"
        return "stale", f"expected to fail ({excuse.reason}), but it {what}; take it off expected_failures"
    if excuse.covers(failure):
        return "xfailed", excuse.reason
    return "failed", (
        f"it was expected to fail, and fails in another way\n  expected: {excuse}\n"
        f"  came: {failure.kind}, as follows\n{message}"
    )


def _held(case: Case, bench: Bench, seeds: Dict[str, int]) -> Tuple[str, str]:
    with Witness(bench.backend) as witness:
        context = Context(bench.backend, bench.device, witness, seeds)
        try:
            case.run(context)
        except Unsupported as error:
            raise Refused(
                f"{case.holds}: refused, although every capability it needs is declared ({', '.join(case.needs)})\n"
                f"  {error}\n  a limit within a declared capability is listed in expected_failures, with its reason"
            ) from error
        except Mismatch as error:
            if witness.of_reference:
                raise Mismatch(f"{error}\n  {witness.elsewhere()}") from error
            raise
        if case.computes:
            witness.verdict()
    return "passed", ""


def _refused(case: Case, bench: Bench, lacks: Sequence[str], seeds: Dict[str, int]) -> Tuple[str, str]:
    names = ", ".join(lacks)
    if case.undeclared == "nothing":
        return "unsupported", f"{names} is not declared; PyTorch leaves no place to refuse it, so it was not tried"
    if "float64" in lacks and not has_float64(torch.device(bench.device).type):
        return "unsupported", f"torch has no float64 on device {bench.device!r}, so there is no tensor to refuse"
    try:
        case.run(Context(bench.backend, bench.device, seeds=seeds))
    except Unsupported as error:
        return "unsupported", str(error)
    raise Mismatch(
        f"{case.holds}: {names} is not declared, and yet asking for it did not raise Unsupported\n"
        f"  declare it in the backend's Capabilities, or raise {case.undeclared}"
    )


def stale_ids(expected_failures: Mapping[str, Union[str, ExpectedFailure]], cases: Collection = CASES) -> List[Result]:
    """A result for each expected failure that names no case or gives no reason."""
    wrong = []
    for id, given in expected_failures.items():
        if cases.get(id) is None:
            message = f"expected_failures names {id!r}, which is no case{cases.near(id)}"
            wrong.append(Result(id, "core", "stale", 0.0, message))
            continue
        try:
            excuse_of(given)
        except ValueError:
            wrong.append(Result(id, "core", "stale", 0.0, f"expected_failures gives no reason for {id!r}"))
    return wrong


# -- several cases

#: Seconds that one run spends on failed cases run again alone, and how many cases before a failure its message names.
_PATIENCE, _NAMED = 60.0, 5


class Session:
    """Runs cases on one backend object, one after the other.

    A backend object stays as long as the process, with what it has compiled and cached. So a case can fail because of
    one that ran before it, and pass alone. A case that fails is therefore run again alone, on a fresh backend object.
    If it passes there twice, its message says so.
    """

    def __init__(self, bench: Bench, expected: Mapping[str, Excuse] = {}) -> None:
        self.bench, self.expected = bench, dict(expected)
        self._before: List[str] = []
        self._left = _PATIENCE

    def run(self, case: Case) -> Result:
        """Run a case; a failure is tried again alone."""
        excuse = self.bench.excuse(case.id, self.expected)
        result = run_case(case, self.bench, excuse)
        if result.outcome in ("failed", "error") and self._before and self._left > 0:
            started = time.perf_counter()
            result = replace(result, message=f"{result.message}{self._alone(case, excuse)}")
            self._left -= time.perf_counter() - started
        self._before.append(case.id)
        return result

    def _alone(self, case: Case, excuse: Optional[ExpectedFailure]) -> str:
        """Remark on a failed case that passes alone, on fresh backend objects; "" if it fails there, too."""
        try:
            for _ in range(2):  # a fault that does not occur every time may let one run pass
                with self.bench.fresh() as bench:
                    if not run_case(case, bench, excuse).ok:
                        return ""
        except BackendError as error:
            return f"\n  it could not be run again alone: {error}"
        return (
            "\n  alone, on a fresh backend object, it passes, twice: it fails after others, or by chance (a race, "
            "memory that was not written, an order of sums)"
            f"\n  {len(self._before)} ran before it, the last: {', '.join(self._before[-_NAMED:])}"
            f"\n  again with them: {self.bench.command()}"
        )
