"""The cases of one run, one after the other, and which earlier cases a failure depends on.

A backend object stays as long as the process, with what it has compiled and kept. So a case can fail because of another
that ran before, and pass alone: then the command that runs it alone shows nothing. A case that fails is therefore run
again alone, on a fresh backend object; if it passes there twice, the shortest list of earlier cases that brings the
failure back, twice as well, is looked for, within :data:`PATIENCE`. Where there is none it may also be chance.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import List, Mapping, Optional, Tuple

from spikecore.backend import BackendError
from spikecore.testing._case import Case
from spikecore.testing._expected import Excuse
from spikecore.testing._result import Result
from spikecore.testing._runner import Bench, again, run_case

#: Seconds that one run spends on running failed cases again, all of them together.
PATIENCE = 60.0
#: How many of the cases before a failure its message names.
_NAMED = 5


class Session:
    """Runs cases on one backend object, and remembers in which order."""

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
            result = self._again_alone(case, result)
            self._left -= time.perf_counter() - started
        self._before.append((case, result.seconds))
        return result

    def _again_alone(self, case: Case, first: Result) -> Result:
        try:
            # twice: a fault that does not occur every time may let one run pass
            if not (self._passes([], case) and self._passes([], case)):
                return first
        except BackendError as error:
            return replace(first, message=f"{first.message}\n  it could not be run again alone: {error}")
        before = [one for one, _ in self._before]
        culprits = self._culprits(case)
        some = ", ".join(one.id for one in before[-_NAMED:])
        lines = [
            "  only after others: alone, on a fresh backend object, it passes, twice",
            f"  {len(before)} ran before it, the last: {some}",
        ]
        if culprits is None:
            lines[0] = "  alone, on a fresh backend object, it passes, twice: it fails after others, or by chance"
            lines.append(
                "  none of the lists of earlier cases that were tried brings it back; the whole run may, but it may "
                "also be chance: a race, memory that was not written, an order of sums"
            )
            lines.append(f"  again: {self.bench.command()}")
        else:
            ids = [one.id for one in culprits]
            lines.append(f"  it fails again after: {', '.join(ids)}")
            lines.append(again(self.bench, *ids, case.id))
        text = first.message.replace(again(self.bench, case.id), "").rstrip()
        return replace(first, message="\n".join([text, *lines]))

    def _passes(self, before: List[Case], case: Case) -> bool:
        """Whether a case passes after these on a fresh backend object."""
        with self.bench.fresh() as bench:
            for one in before:
                run_case(one, bench, bench.excuse(one.id, self.expected))
            return run_case(case, bench, bench.excuse(case.id, self.expected)).ok

    def _culprits(self, case: Case) -> Optional[List[Case]]:
        """A short list of earlier cases after which it fails, in their order; None if none was found in time."""
        deadline = time.perf_counter() + self._left
        costs = {one.id: seconds for one, seconds in self._before}

        def in_time(cases: List[Case]) -> bool:
            return time.perf_counter() + sum(costs[one.id] for one in cases) < deadline

        before = [one for one, _ in self._before]
        length, found = 1, before[-1:]
        while in_time(found) and self._passes(found, case):
            if length >= len(before):
                return None
            length *= 4
            found = before[-length:]
        if not in_time(found):
            return None
        # drop what it does not take: halves first, then ever smaller parts
        size = len(found) // 2
        while size:
            start = 0
            while start < len(found):
                shorter = found[:start] + found[start + size :]
                if shorter and in_time(shorter) and not self._passes(shorter, case):
                    found = shorter
                else:
                    start += size
            size //= 2
        return found if in_time(found) and not self._passes(found, case) else None
