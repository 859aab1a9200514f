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

from spikecore._plugins.registry import default_registry
from spikecore.backend import Backend, BackendError, BackendInfo, Capabilities, Unsupported
from spikecore.dtypes import has_float64
from spikecore.testing._case import Case, Collection, Undeclared
from spikecore.testing._cases import CASES
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context, Witness, check_device, choose_device, device_name
from spikecore.testing._expected import DIFFERENCE, REFUSAL, Excuse, ExpectedFailure, Failure, excuse_for, excuse_of
from spikecore.testing._verdict import Result

_ASKER = "the conformance suite"


@dataclass(frozen=True)
class Bench:
    """A backend, ready to be tested."""

    info: BackendInfo
    backend: Backend
    device: str

    @property
    def can(self) -> Capabilities:
        """What the backend declares on this device."""
        return self.backend.capabilities_on(torch.device(self.device).type)

    def expected(self, more: Mapping[str, Excuse] = {}) -> Dict[str, Excuse]:  # never written to
        """The expected failures: those that the backend itself names in ``expected_failures``, and more."""
        return {**self.backend.expected_failures, **more}

    def excuse(self, id: str, excuses: Mapping[str, Excuse]) -> Optional[ExpectedFailure]:
        """The excuse of a case on this device, None if it has none here."""
        return excuse_for(id, excuses, self.device, device_name(self.device)) if id in excuses else None

    def command(self, *ids: str) -> str:
        """The command that runs these cases, in this order."""
        chosen = "".join(f" --case {id}" for id in ids)
        device = "" if self.device == choose_device(self.info.devices) else f" --device {self.device}"
        return f"spikecore conformance {self.info.name}{chosen}{device}"

    def is_current(self) -> bool:
        """Whether neurons that ask for the backend by name still get this object of it."""
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
    """Whether ``SPIKECORE_REQUIRE`` names the backend (names separated by commas)."""
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
    try:
        outcome, message = _refused(case, bench, lacks, seeds) if lacks else _held(case, bench, seeds)
    except Undeclared as error:
        outcome, message, lacks = "unsupported", str(error), error.lacks
    except Mismatch as error:
        failure = Failure(REFUSAL if isinstance(error, Refused) else DIFFERENCE, str(error))
        outcome, message = "failed", f"{error}\n{again(bench, case.id)}"
    except Exception as error:
        failure = Failure(type(error).__name__, str(error))
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
        outcome = "error"
        message = f"{case.holds}: raised {type(error).__name__}: {error}\n{trace}{again(bench, case.id)}"
    blanket = False
    if expected is not None:
        excuse = excuse_of(expected)
        outcome, message = _excused(excuse, failure, outcome, message)
        blanket = outcome == "xfailed" and failure is not None and failure.kind == DIFFERENCE and excuse.any_text
    return Result(case.id, case.tier, outcome, time.perf_counter() - started, message, lacks, seeds, blanket)


def again(bench: Bench, *ids: str) -> str:
    """The last line of a failure's message."""
    return f"  again: {bench.command(*ids)}"


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
    except RuntimeError as error:
        if case.undeclared == "RuntimeError" and not isinstance(error, Mismatch):
            return "unsupported", str(error)
        raise
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

#: Seconds that one run spends on running failed cases again, all of them together.
PATIENCE = 60.0
#: How many of the cases before a failure its message names.
_NAMED = 5


class Session:
    """Runs cases on one backend object, one after the other.

    A backend object stays as long as the process, with what it has compiled and cached. So a case can fail because of
    one that ran before it, and pass alone. A case that fails is therefore run again alone, on a fresh backend object.
    If it passes there twice, a short list of earlier cases that brings the failure back is searched for, within
    ``patience`` seconds. Where there is none it may also be chance.
    """

    def __init__(self, bench: Bench, expected: Mapping[str, Excuse] = {}, patience: float = PATIENCE) -> None:
        self.bench, self.expected = bench, dict(expected)
        self._left = patience
        self._before: List[Tuple[Case, float]] = []

    def run(self, case: Case) -> Result:
        """Run a case; a failure is tried again alone."""
        result = run_case(case, self.bench, self.bench.excuse(case.id, self.expected))
        # without cases before it, it was alone
        if result.outcome in ("failed", "error") and self._before and self._left > result.seconds:
            started = time.perf_counter()
            result = self._run_alone(case, result)
            self._left -= time.perf_counter() - started
        self._before.append((case, result.seconds))
        return result

    def _run_alone(self, case: Case, first: Result) -> Result:
        try:
            # twice: a fault that does not occur every time may let one run pass
            if not (self._passes([], case) and self._passes([], case)):
                return first
        except BackendError as error:
            return replace(first, message=f"{first.message}\n  it could not be run again alone: {error}")
        before = [earlier.id for earlier, _ in self._before]
        culprits = self._culprits(case)
        ran = f"  {len(before)} ran before it, the last: {', '.join(before[-_NAMED:])}"
        if culprits is None:
            lines = [
                "  alone, on a fresh backend object, it passes, twice: it fails after others, or by chance",
                ran,
                "  none of the lists of earlier cases that were tried brings it back; the whole run may, but it may "
                "also be chance: a race, memory that was not written, an order of sums",
                f"  again: {self.bench.command()}",
            ]
        else:
            ids = [culprit.id for culprit in culprits]
            lines = [
                "  only after others: alone, on a fresh backend object, it passes, twice",
                ran,
                f"  it fails again after: {', '.join(ids)}",
                again(self.bench, *ids, case.id),
            ]
        text = first.message.replace(again(self.bench, case.id), "").rstrip()
        return replace(first, message="\n".join([text, *lines]))

    def _passes(self, before: List[Case], case: Case) -> bool:
        """Whether a case passes after these on a fresh backend object."""
        with self.bench.fresh() as bench:
            for earlier in before:
                run_case(earlier, bench, bench.excuse(earlier.id, self.expected))
            return run_case(case, bench, bench.excuse(case.id, self.expected)).ok

    def _culprits(self, case: Case) -> Optional[List[Case]]:
        """A short list of earlier cases after which it fails, in their order; None if there was none in time."""
        deadline = time.perf_counter() + self._left
        costs = {earlier.id: seconds for earlier, seconds in self._before}

        def in_time(cases: List[Case]) -> bool:
            return time.perf_counter() + sum(costs[earlier.id] for earlier in cases) < deadline

        before, length = [earlier for earlier, _ in self._before], 1
        while in_time(before[-length:]) and self._passes(before[-length:], case):
            if length >= len(before):
                return None
            length *= 4
        culprits = before[-length:]
        for earlier in list(culprits):  # drop what it does not take
            shorter = [other for other in culprits if other is not earlier]
            if shorter and in_time(shorter) and not self._passes(shorter, case):
                culprits = shorter
        return culprits if in_time(culprits) and not self._passes(culprits, case) else None
