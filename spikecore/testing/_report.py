"""Reports: the results of a run with backend, device, versions and date; reports of parts are merged."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

import spikecore
from spikecore.backend import BACKEND_API, BackendError, BackendUnavailable
from spikecore.plugins.registry import default_registry
from spikecore.testing._case import TIERS
from spikecore.testing._cases import cases_of
from spikecore.testing._context import device_name
from spikecore.testing._expected import Excuse
from spikecore.testing._runner import Session, prepare, required, stale_ids
from spikecore.testing._verdict import CONFORMS, NOT_TESTED, OUTCOMES, Result, Verdict, judge


@dataclass(frozen=True)
class Report:
    """Report of a run of the suite on one backend."""

    backend: str
    results: Tuple[Result, ...]
    #: Torch device, "" where the backend could not be used, and what it is called.
    device: str
    device_name: str
    #: Versions: ``spikecore``, ``distribution`` (the backend's, with its version), ``torch``, ``python``, ``contract``;
    #: and ``by``, what really computes, where the backend says so.
    versions: Mapping[str, str]
    #: When the run began, in UTC, and how long it took in seconds.
    date: str
    seconds: float
    required: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict on these results."""
        return judge(self.results)

    @property
    def exit_code(self) -> int:
        """Exit code of the verdict; 1 if a required backend was not tested."""
        verdict = self.verdict
        return 1 if self.required and verdict.word == NOT_TESTED else verdict.exit_code

    @property
    def seeds(self) -> Dict[str, int]:
        """Seeds that cases drew their inputs from, by name."""
        return {name: seed for result in self.results for name, seed in result.seeds.items()}

    def counts(self, tier: Optional[str] = None) -> Dict[str, int]:
        """Outcome -> number of cases, of one tier or of all."""
        chosen = [result for result in self.results if tier in (None, result.tier)]
        return {outcome: sum(result.outcome == outcome for result in chosen) for outcome in OUTCOMES}

    def tiers(self) -> List[str]:
        """The tiers that have results, in their order."""
        return [tier for tier in TIERS if any(result.tier == tier for result in self.results)]

    def as_dict(self) -> Dict[str, Any]:
        """Everything, for JSON."""
        verdict = self.verdict
        return {
            "backend": self.backend,
            "verdict": verdict.word,
            "conforms": verdict.word == CONFORMS,
            "summary": str(verdict),
            "left_out": dict(verdict.left_out),
            "versions": dict(self.versions),
            "device": {"device": self.device, "name": self.device_name},
            "date": self.date,
            "seconds": round(self.seconds, 3),
            "seeds": self.seeds,
            "counts": self.counts(),
            "tiers": {tier: self.counts(tier) for tier in self.tiers()},
            "results": [result.as_dict() for result in self.results],
        }


def read(path: Path) -> Tuple[str, Report]:
    """The verdict and the report that ``--json`` wrote to a file.

    Raises ``ValueError`` for a file that cannot be read, or that is no such report.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        rows = [{**row, "lacking": tuple(row.get("lacking", ()))} for row in said["results"]]
        results = tuple(Result(**row) for row in rows)
        unknown = sorted({result.outcome for result in results} - {*OUTCOMES})
        if unknown:
            raise ValueError(f"it has outcomes that are none: {', '.join(unknown)}")
        device = said["device"]
        facts = (said["versions"], said["date"], said["seconds"])
        return said["verdict"], Report(said["backend"], results, device["device"], device["name"], *facts)
    except OSError as error:
        raise ValueError(f"the earlier report {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is no report that --json wrote: {error}") from error


def merge(paths: Sequence[Path], require: bool = False) -> Report:
    """One report of several, which ``--json`` wrote: for a suite that is run in parts.

    Raises ``ValueError`` for a file that is no report, for reports of different backends, devices, versions or seeds,
    and for a case that two of them have.
    """
    reports = [read(path)[1] for path in paths]
    first = reports[0]
    results: Dict[str, Result] = {}
    origin: Dict[str, Path] = {}
    drawn: Dict[str, Tuple[int, Path]] = {}
    for path, report in zip(paths, reports):
        for what in ("backend", "device", "device_name", "versions"):
            ours, theirs = getattr(first, what), getattr(report, what)
            if ours != theirs:
                raise ValueError(
                    f"--merge: {str(path)!r} has {what.replace('_', ' ')} {theirs!r}, and {str(paths[0])!r} {ours!r}; "
                    "reports of one backend, device and environment can be merged"
                )
        for name, seed in report.seeds.items():
            other, earlier = drawn.setdefault(name, (seed, path))
            if seed != other:
                raise ValueError(
                    f"--merge: {str(path)!r} has {seed} as the seed of {name}, and {str(earlier)!r} {other}; run the "
                    "parts with one --seed"
                )
        for result in report.results:
            # what is said of the backend as a whole is in each part
            if result.id in origin and result.outcome != "stale" and not result.id.startswith("backend/"):
                both = f"{str(path)!r} and {str(origin[result.id])!r} both have case {result.id!r}"
                raise ValueError(f"--merge: {both}; each case must be in one report alone")
            results[result.id], origin[result.id] = result, path
    ordered = tuple(sorted(results.values(), key=lambda result: TIERS.index(result.tier)))
    date, seconds = min(report.date for report in reports), sum(report.seconds for report in reports)
    return Report(first.backend, ordered, first.device, first.device_name, first.versions, date, seconds, require)


def examine(
    name: str,
    *,
    tiers: Optional[Sequence[str]] = None,
    cases: Optional[Sequence[str]] = None,
    expected_failures: Mapping[str, Excuse] = {},  # never written to
    require: Optional[bool] = None,
    device: Optional[str] = None,
    progress: Optional[Callable[[Result], None]] = None,
) -> Report:
    """Run the conformance suite against a backend; :attr:`Report.verdict` says what it amounts to.

    tiers: those to run, of :data:`~spikecore.testing._case.TIERS`; by default all.
    cases: ids, or patterns such as ``"gradient/*"``, instead of whole tiers, in the order in which they are to run.
    expected_failures: case id -> reason or :class:`~spikecore.testing._expected.ExpectedFailure`, beside those in the
    backend's own attribute of this name. One that passes, fails in another way, or names no case, is a failure.
    require: whether an unusable backend is a failure; by default whether ``SPIKECORE_REQUIRE`` names it.
    device: torch device to run on; by default the CPU if the backend takes it, else its first that exists here.
    progress: called with each result as it comes.

    Raises ``ValueError`` for a tier, a case or a device that there is not.
    """
    results: List[Result] = []

    def done(result: Result) -> None:
        results.append(result)
        if progress is not None:
            progress(result)

    must = required(name) if require is None else require
    date, started = datetime.now(timezone.utc).replace(microsecond=0).isoformat(), time.perf_counter()
    used = ""
    try:
        collection = cases_of(name)
        chosen = collection.select(tiers, cases)
        bench = prepare(name, device)
    except BackendUnavailable as error:
        why = f"{error}; it is required" if must else str(error)
        done(Result("backend/available", "core", "failed" if must else "unavailable", 0.0, why))
    except BackendError as error:
        done(Result("backend/available", "core", "error", 0.0, str(error)))
    else:
        used = bench.device
        expected = bench.expected(expected_failures)
        for stale in stale_ids(expected, collection):
            done(stale)
        session = Session(bench, expected)
        for case in chosen:
            done(session.run(case))
        ran = any(result.tier == "core" and result.outcome in ("passed", "failed", "xfailed") for result in results)
        if not cases and (tiers is None or "core" in tiers) and not ran:
            done(Result("backend/core-ran", "core", "failed", 0.0, f"no core case ran on backend {name!r}"))
    seconds = time.perf_counter() - started
    return Report(name, tuple(results), used, device_name(used), versions(name), date, seconds, must)


def check_backend(name: str, **options: Any) -> List[Result]:
    """Run the conformance suite against a backend; one :class:`Result` per case. Options and errors are those of
    :func:`examine`, which gives the verdict as well; ``conforms(results)`` is whether that is ``conforms``.
    """
    return list(examine(name, **options).results)


def versions(name: str) -> Dict[str, str]:
    """Versions of all that a result depends on; ``by`` is what really computes, where a loaded backend says so."""
    rows = [row for row in default_registry().status() if row.name == name]
    provider = f"{rows[0].distribution} {rows[0].version}".strip() if rows else ""
    return {
        **({"by": rows[0].detail} if rows and rows[0].state == "ready" and rows[0].detail else {}),
        "spikecore": spikecore.__version__,
        "distribution": provider,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "contract": ".".join(map(str, BACKEND_API)),
    }
