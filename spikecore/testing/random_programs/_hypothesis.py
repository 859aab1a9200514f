"""Hypothesis, which draws, shrinks and replays: imported when the first case is drawn."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

try:
    import hypothesis
    from hypothesis import strategies
except ImportError as error:  # pragma: no cover  # the named cases do without
    raise ImportError("drawn cases need Hypothesis: pip install 'spikecore[testing]'") from error

__all__ = ["drawn", "examples", "hypothesis", "strategies"]

#: Seconds of computing in which a failing example is made simpler.
SHRINKING = 5.0


def examples(strategy: Any, body: Callable[[Any], None], count: int, seed: Optional[int]) -> None:
    """Call ``body`` with so many examples of a seed, by default always the same ones; raises what the simplest failing
    one raises.
    """
    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=seed is None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    failures: Dict[str, BaseException] = {}
    until = [float("inf")]

    def bounded(example: Any) -> None:
        known = failures.get(repr(example))
        if known is not None:
            raise known
        if time.process_time() > until[0]:
            return  # the simplest failure so far is given
        try:
            body(example)
        except hypothesis.errors.UnsatisfiedAssumption:
            raise
        except Exception as error:
            until[0] = min(until[0], time.process_time() + SHRINKING)
            failures[repr(example)] = error
            raise

    def run(example: Any) -> None:
        bounded(example)

    test: Any = hypothesis.given(strategy)(run)
    if seed is not None:
        test = hypothesis.seed(seed)(test)
    settings(test)()


def drawn(strategy: Any, count: int, seed: int) -> Any:
    """So many different examples of a seed."""
    found: Dict[str, Any] = {}
    # some are drawn twice, and the first is the simplest
    examples(strategy, lambda example: found.setdefault(str(example), example), 2 * count, seed)
    return list(found.values())[:count]
