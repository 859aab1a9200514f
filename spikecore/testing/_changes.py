"""What changed between two runs of the suite on a backend: an earlier report, as JSON, and the results of now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Tuple

from spikecore.testing._result import BAD, Result

#: From worst to best. An excuse and a missing capability are as good as each other: both are limits that are known.
_RANKS = {**dict.fromkeys(BAD, 0), "unavailable": 1, "xfailed": 2, "unsupported": 2, "passed": 3}


class Changes(NamedTuple):
    """Case ids, with outcome before and now where both are known, in the order of the run; and the earlier verdict."""

    worse: List[Tuple[str, str, str]]
    better: List[Tuple[str, str, str]]
    new: List[Tuple[str, str]]
    gone: List[Tuple[str, str]]
    verdict: str

    def sentences(self, now: str) -> List[str]:
        """One line for each change, the worse first; ``now`` is the verdict of now."""
        lines = [f"worse: {id}: {before} -> {after}" for id, before, after in self.worse]
        lines += [f"better: {id}: {before} -> {after}" for id, before, after in self.better]
        for what, cases in (("new", self.new), ("gone", self.gone)):
            by_outcome: Dict[str, List[str]] = {}
            for id, outcome in cases:
                by_outcome.setdefault(outcome, []).append(id)
            for outcome, ids in by_outcome.items():
                some = ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else "")
                lines.append(f"{what}: {len(ids)} {outcome}: {some}")
        if self.verdict != now:
            lines.append(f"verdict: {self.verdict} -> {now}")
        return lines or ["nothing changed"]


def changes(earlier: Path, results: Iterable[Result]) -> Changes:
    """What changed since the report that ``--json`` wrote to ``earlier``.

    Raises ``ValueError`` for a file that cannot be read, or that is no such report.
    """
    verdict, before = _read(earlier)
    now = {result.id: result.outcome for result in results}
    both = [(id, before[id], now[id]) for id in now if id in before]
    return Changes(
        worse=[row for row in both if _RANKS[row[2]] < _RANKS[row[1]]],
        better=[row for row in both if _RANKS[row[2]] > _RANKS[row[1]]],
        new=[(id, outcome) for id, outcome in now.items() if id not in before],
        gone=[(id, outcome) for id, outcome in before.items() if id not in now],
        verdict=verdict,
    )


def _read(path: Path) -> Tuple[str, Dict[str, str]]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {str(row["id"]): str(row["outcome"]) for row in said["results"]}
        unknown = {outcome for outcome in outcomes.values() if outcome not in _RANKS}
        if unknown:
            raise ValueError(f"it has outcomes that are none: {', '.join(sorted(unknown))}")
        # reports without a verdict are from before there were four of them
        verdict = said.get("verdict") or ("conforms" if said["conforms"] else "does not conform")
    except OSError as error:
        raise ValueError(f"the earlier report {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is no report that --json wrote: {error}") from error
    return str(verdict), outcomes
