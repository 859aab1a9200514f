"""Running cases against a backend, outside of pytest or inside.

Rules of this module:

- Each case ends in one :class:`Result`; none is left out. What a backend does not declare is asked for all the same,
  and must be refused.
- An expected failure that passes is a failure, and so is one that names no case.
- An unusable backend is ``unavailable``, and a failure where it is required; so is a run in which no core case ran.
"""

from __future__ import annotations

import os
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from spikecore.backend import Backend, BackendError, BackendInfo, BackendUnavailable, Capabilities, Unsupported
from spikecore.registry import default_registry
from spikecore.testing.case import Case, Collection
from spikecore.testing.cases import CASES
from spikecore.testing.compare import Mismatch
from spikecore.testing.context import Context, Witness, check_device, choose_device
from spikecore.testing.own import cases_of

#: How a case can end. Only the last three are wrong.
OUTCOMES = ("passed", "xfailed", "unsupported", "unavailable", "failed", "error", "stale")
BAD = ("failed", "error", "stale")


@dataclass(frozen=True)
class Result:
    """How one case ended.

    ``passed``: it holds. ``unsupported``: a capability it needs is not declared, and asking for it was refused.
    ``xfailed``: it failed as expected. ``unavailable``: the backend is not usable here. ``failed``: it does not hold.
    ``error``: it raised something unforeseen. ``stale``: it was expected to fail and did not, or the expected failure
    names no case.
    """

    id: str
    tier: str
    outcome: str
    seconds: float
    #: Why: the difference, the reason of an expected failure, what was refused.
    message: str = ""
    #: Capabilities that the case needs and the backend does not declare.
    lacking: Tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.outcome not in BAD

    def as_dict(self) -> Dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


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

    def expected(self, more: Mapping[str, str] = {}) -> Dict[str, str]:  # never written to
        """The expected failures: those that the backend itself names in ``expected_failures``, and more."""
        return {**self.backend.expected_failures, **more}


def prepare(name: str, device: Optional[str] = None) -> Bench:
    """Load the backend. Raises ``BackendError`` for one that is unknown, broken or not usable here, and ``ValueError``
    for a device that there is not or that it does not compute on.
    """
    registry = default_registry()
    info = registry.info(name, "the conformance suite")
    backend = registry.get(name, "the conformance suite")
    if device is not None:
        check_device(info, device)
    return Bench(info, backend, device or choose_device(info.devices))


def required(name: str, environ: Optional[Mapping[str, str]] = None) -> bool:
    """Whether ``SPIKECORE_REQUIRE`` names the backend (names separated by commas)."""
    text = (os.environ if environ is None else environ).get("SPIKECORE_REQUIRE", "")
    return name in [word.strip() for word in text.split(",")]


def run_case(case: Case, bench: Bench, expected: Optional[str] = None) -> Result:
    """Run one case; ``expected`` is the reason why it may fail."""
    started = time.perf_counter()
    lacks = tuple(need for need in case.needs if not getattr(bench.can, need))
    try:
        outcome, message = _refused(case, bench, lacks) if lacks else _held(case, bench)
    except Mismatch as error:
        outcome, message = "failed", f"{error}\n{_again(case, bench)}"
    except Exception as error:
        outcome = "error"
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
        message = f"{case.holds}: raised {type(error).__name__}: {error}\n{trace}{_again(case, bench)}"
    if expected is not None:
        if outcome in ("failed", "error"):
            outcome, message = "xfailed", expected
        else:
            what = "passes" if outcome == "passed" else f"is {outcome}: {message}"
            outcome, message = "stale", f"expected to fail ({expected}), but it {what}; take it off expected_failures"
    return Result(case.id, case.tier, outcome, time.perf_counter() - started, message, lacks)


def _held(case: Case, bench: Bench) -> Tuple[str, str]:
    with Witness(bench.backend) as witness:
        try:
            case.run(Context(bench.backend, bench.device, witness))
        except Unsupported as error:
            raise Mismatch(
                f"{case.holds}: refused, although every capability it needs is declared ({', '.join(case.needs)})\n"
                f"  {error}\n  a limit within a declared capability is listed in expected_failures, with its reason"
            ) from error
        if case.computes:
            witness.verdict()
    return "passed", ""


def _refused(case: Case, bench: Bench, lacks: Sequence[str]) -> Tuple[str, str]:
    names = ", ".join(lacks)
    if case.undeclared == "nothing":
        return "unsupported", f"{names} is not declared; PyTorch leaves no place to refuse it, so it was not tried"
    try:
        case.run(Context(bench.backend, bench.device))
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


def _again(case: Case, bench: Bench) -> str:
    return f"  again: spikecore conformance {bench.info.name} --case {case.id}"


def check_backend(
    name: str,
    *,
    tiers: Optional[Sequence[str]] = None,
    cases: Optional[Sequence[str]] = None,
    expected_failures: Mapping[str, str] = {},  # never written to
    require: Optional[bool] = None,
    device: Optional[str] = None,
    progress: Optional[Callable[[Result], None]] = None,
) -> List[Result]:
    """Run the conformance suite against a backend; one :class:`Result` per case, all ``ok`` for one that conforms.

    tiers: those to run, of :data:`~spikecore.testing.case.TIERS`; by default all but ``product``.
    cases: ids, or patterns such as ``"gradient/*"``, instead of whole tiers.
    expected_failures: case id -> reason, beside those in the backend's own attribute of this name. One that passes, or
    names no case, is a failure.
    require: whether an unusable backend is a failure; by default whether ``SPIKECORE_REQUIRE`` names it.
    device: torch device to run on; by default the CPU if the backend takes it, else its first that exists here.
    progress: called with each result as it comes.
    """
    results: List[Result] = []

    def done(result: Result) -> None:
        results.append(result)
        if progress is not None:
            progress(result)

    try:
        collection = cases_of(name)
        chosen = collection.select(tiers, cases)
        bench = prepare(name, device)
    except BackendUnavailable as error:
        must = required(name) if require is None else require
        why = f"{error}; it is required" if must else str(error)
        done(Result("backend/available", "core", "failed" if must else "unavailable", 0.0, why))
        return results
    except BackendError as error:
        done(Result("backend/available", "core", "error", 0.0, str(error)))
        return results
    expected = bench.expected(expected_failures)
    for stale in stale_ids(expected, collection):
        done(stale)
    for case in chosen:
        done(run_case(case, bench, expected.get(case.id)))
    if not cases and (tiers is None or "core" in tiers):
        ran = [
            result for result in results if result.tier == "core" and result.outcome in ("passed", "failed", "xfailed")
        ]
        if not ran:
            done(Result("backend/core-ran", "core", "failed", 0.0, f"no core case ran on backend {name!r}"))
    return results


def stale_ids(expected_failures: Mapping[str, str], cases: Collection = CASES) -> List[Result]:
    """A result for each expected failure that names no case or gives no reason."""
    wrong = []
    for id, reason in expected_failures.items():
        if cases.get(id) is None:
            message = f"expected_failures names {id!r}, which is no case{cases.near(id)}"
            wrong.append(Result(id, "core", "stale", 0.0, message))
        elif not isinstance(reason, str) or not reason.strip():
            wrong.append(Result(id, "core", "stale", 0.0, f"expected_failures gives no reason for {id!r}"))
    return wrong


def conforms(results: Sequence[Result]) -> bool:
    """Whether nothing is wrong in these results."""
    return all(result.ok for result in results)


def device_name(device: str) -> str:
    """What a device is, for a report."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device
