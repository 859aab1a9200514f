"""Results of cases, and the verdict on a backend that follows from them.

A verdict follows from results alone, so it is the same from the shell, from Python and under pytest. Nothing that was
left out counts as passed; what was left out is said in numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from spikecore.testing._case import TIERS
from spikecore.testing._cases import CASES

#: Outcomes of a case. Only the last three are wrong.
OUTCOMES = ("passed", "xfailed", "unsupported", "unavailable", "failed", "error", "stale")
BAD = ("failed", "error", "stale")
#: From worst to best. An excuse and a missing capability are as good as each other: both are limits that are known.
RANKS = {**dict.fromkeys(BAD, 0), "unavailable": 1, "xfailed": 2, "unsupported": 2, "passed": 3}

CONFORMS, PARTIAL, NOT_TESTED, DOES_NOT_CONFORM = "conforms", "partial", "not tested", "does not conform"
#: Exit codes of the command; 2 is an error of usage. It exits with 0 where whole tiers were run that are clean.
EXIT_CODES = {CONFORMS: 0, DOES_NOT_CONFORM: 1, PARTIAL: 3, NOT_TESTED: 4}


@dataclass(frozen=True)
class Result:
    """Result of one case.

    ``passed``: it holds. ``unsupported``: a capability it needs is not declared, and asking for it was refused.
    ``xfailed``: it failed as expected. ``unavailable``: the backend is not usable here. ``failed``: it does not hold,
    or it failed in another way than expected. ``error``: it raised something unforeseen. ``stale``: it was expected to
    fail and did not, or the expected failure names no case.
    """

    id: str
    tier: str
    outcome: str
    seconds: float
    #: Reason for the outcome: the difference, the reason of an expected failure, or the refusal.
    message: str = ""
    #: Capabilities that the case needs and the backend does not declare.
    lacking: Tuple[str, ...] = ()
    #: Seeds that the case drew its inputs from, by name, if it noted them
    #: (:meth:`spikecore.testing._context.Context.seed`).
    seeds: Mapping[str, int] = field(default_factory=dict)
    #: True if it ``xfailed`` by wrong numbers under an excuse that would cover any wrong number: one without a pattern.
    blanket: bool = False

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return self.outcome not in BAD

    def as_dict(self) -> Dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """One of four words, and what was left out.

    ``conforms``: the whole default suite ran, every core case passed, those of gradients included, nothing is wrong,
    and no wrong number is excused by a reason without a pattern. ``partial``: nothing is wrong, something passed, and
    something that ``conforms`` takes was left out. ``not tested``: nothing is wrong, and nothing passed. ``does not
    conform``: something is wrong.
    """

    word: str
    passed: int
    wrong: int
    #: Results, and cases of the default suite with all others that ran.
    total: int
    suite: int
    #: Tiers that were run as a whole and hold, if nothing else was run.
    clean: Tuple[str, ...]
    #: Limits of the run, in numbers for programs and in sentences for people; tiers that were not run apart.
    left_out: Mapping[str, Any]
    limits: Tuple[str, ...]
    not_run: str

    @property
    def exit_code(self) -> int:
        """0, 1, 3 or 4: :data:`EXIT_CODES`; 0 as well for whole tiers that hold."""
        return 0 if self.clean else EXIT_CODES[self.word]

    def sentences(self) -> List[str]:
        """One for each thing that was left out."""
        return [*([f"{'not judged: ' if self.clean else ''}{self.not_run}"] if self.not_run else []), *self.limits]

    def headline(self) -> str:
        """The word, and what the run showed."""
        if self.word == DOES_NOT_CONFORM:
            return (
                f"{self.word}: {self.wrong} of {number(self.total, 'case')} {'is' if self.wrong == 1 else 'are'} wrong"
            )
        if self.word == NOT_TESTED:
            return f"{self.word}: nothing passed"
        if not self.clean:
            return f"{self.word}: {number(self.passed, 'case')} passed"
        tiers = f"tier{'' if len(self.clean) == 1 else 's'} {', '.join(self.clean)}"
        if self.total == 1:
            return f"{self.word}: the case of the {tiers} holds"
        if self.passed < self.total:
            return f"{self.word}: {self.passed} of {self.total} cases of the {tiers} hold, and none is wrong"
        return f"{self.word}: all {self.total} cases of the {tiers} hold"

    def __str__(self) -> str:
        if self.word == DOES_NOT_CONFORM or not self.sentences():
            return self.headline()
        left_out = "left out: " if self.word == PARTIAL and not self.clean else ""
        return f"{self.headline()}; {left_out}{'; '.join(self.sentences())}"


def judge(results: Iterable[Result]) -> Verdict:
    """The verdict on the results of one backend."""
    results = list(results)
    ids = {result.id for result in results}
    passed = {result.id for result in results if result.outcome == "passed"}
    wrong = sum(not result.ok for result in results)
    suite = CASES.select()
    missing = [case for case in suite if case.id not in ids]
    ran = {case.tier for case in suite if case.id in ids}
    tiers = tuple(tier for tier in TIERS if any(case.tier == tier for case in missing) and tier not in ran)
    not_chosen = sum(case.tier not in tiers for case in missing)
    blanket = any(result.outcome == "xfailed" and result.blanket for result in results)
    core_holds = all(result.outcome == "passed" for result in results if result.tier == "core")
    whole = core_holds and not blanket and not not_chosen
    if wrong:
        word = DOES_NOT_CONFORM
    elif not passed:
        word = NOT_TESTED
    else:
        word = CONFORMS if whole and not tiers else PARTIAL
    clean: Tuple[str, ...] = ()
    if word == PARTIAL and whole:
        clean = tuple(dict.fromkeys(result.tier for result in results))
        clean = clean if all(case.id in ids for case in CASES.select(clean)) else ()
    numbers, limits = _left_out(results)
    cases = sum(case.tier in tiers for case in missing)
    numbers = {"tiers": list(tiers), "cases": len(missing), **numbers}
    if not_chosen:
        limits.insert(0, f"{number(not_chosen, 'case')} of the other tiers not chosen")
    not_run = "; ".join(dict.fromkeys(r.message for r in results if r.outcome == "unavailable"))
    if tiers and not not_run:
        count = number(len(tiers), "tier")
        not_run = f"{count}{'' if clean else ' not run'} ({number(cases, 'case')}): {', '.join(tiers)}"
    every = {case.id for case in suite} | ids
    return Verdict(word, len(passed), wrong, len(results), len(every), clean, numbers, tuple(limits), not_run)


def conforms(results: Iterable[Result]) -> bool:
    """True if the verdict on these results is ``conforms``: of a part of the suite it is not."""
    return judge(results).word == CONFORMS


def _left_out(results: Sequence[Result]) -> Tuple[Dict[str, Any], List[str]]:
    """Limits of the cases that ran: numbers, and a sentence for each."""
    excused = [result for result in results if result.outcome == "xfailed"]
    unsupported = [result for result in results if result.outcome == "unsupported"]
    undeclared = list(dict.fromkeys(name for result in unsupported for name in result.lacking))
    core, blanket = (sum(result.tier == "core" for result in excused), sum(result.blanket for result in excused))
    limits = []
    if unsupported:
        limits.append(f"{number(len(unsupported), 'case')} unsupported, for want of {', '.join(undeclared)}")
    if "gradients" in undeclared:
        limits.append("gradients not declared")
    if excused:
        of_core = f", {core} of the core tier" if core else ""
        limits.append(f"{number(len(excused), 'expected failure')}{of_core}")
    if blanket:
        limits.append(
            f"wrong numbers in {number(blanket, 'case')} excused by a reason alone (give match of ExpectedFailure)"
        )
    numbers = {
        "unsupported": len(unsupported),
        "undeclared": undeclared,
        "expected_failures": len(excused),
        "core_expected_failures": core,
        "blanket": blanket,
    }
    return numbers, limits


def number(count: int, what: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{count} {what}{'' if count == 1 else 's'}"
