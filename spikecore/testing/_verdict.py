"""What a run of the suite amounts to, in one of four words.

Rules of this module:

- A verdict follows from results alone, so it is the same from the shell, from Python and under pytest.
- Nothing that was left out counts as passed; what was left out is said in numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from spikecore.testing._case import DEFAULT_TIERS
from spikecore.testing._cases import CASES
from spikecore.testing._result import Result

CONFORMS, PARTIAL, NOT_TESTED, DOES_NOT_CONFORM = "conforms", "partial", "not tested", "does not conform"
#: What the command exits with; 2 is an error of usage.
EXIT_CODES = {CONFORMS: 0, DOES_NOT_CONFORM: 1, PARTIAL: 3, NOT_TESTED: 4}


@dataclass(frozen=True)
class LeftOut:
    """What a run did not show, in numbers."""

    #: Default tiers of which no case ran, and the cases in them.
    tiers: Tuple[str, ...]
    cases_of_tiers: int
    #: Cases of the other default tiers that did not run.
    not_chosen: int
    #: Cases that need what is not declared, and what that is.
    unsupported: int
    undeclared: Tuple[str, ...]
    #: Cases that failed as expected, and those of them in the core tier.
    expected_failures: int
    core_expected_failures: int
    #: Those that are wrong numbers, and excused by a reason without a pattern, which would cover any wrong number.
    blanket: int
    #: Why nothing could run.
    unavailable: str

    def sentences(self) -> List[str]:
        """One for each thing that was left out."""
        said = [self.unavailable] if self.unavailable else []
        if self.tiers and not self.unavailable:
            said.append(
                f"{_number(len(self.tiers), 'tier')} not run ({_cases(self.cases_of_tiers)}): {_list(self.tiers)}"
            )
        if self.not_chosen:
            said.append(f"{_cases(self.not_chosen)} of the other tiers not chosen")
        if self.unsupported:
            said.append(f"{_cases(self.unsupported)} unsupported, for want of {_list(self.undeclared)}")
        if "gradients" in self.undeclared:
            said.append("gradients not declared")
        if self.expected_failures:
            core = f", {self.core_expected_failures} of the core tier" if self.core_expected_failures else ""
            said.append(f"{_number(self.expected_failures, 'expected failure')}{core}")
        if self.blanket:
            said.append(
                f"wrong numbers in {_cases(self.blanket)} excused by a reason alone (give match of ExpectedFailure)"
            )
        return said

    def as_dict(self) -> Dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "tiers": list(self.tiers),
            "cases": self.cases_of_tiers + self.not_chosen,
            "unsupported": self.unsupported,
            "undeclared": list(self.undeclared),
            "expected_failures": self.expected_failures,
            "core_expected_failures": self.core_expected_failures,
            "blanket": self.blanket,
        }


@dataclass(frozen=True)
class Verdict:
    """One of four words, and what was left out.

    ``conforms``: the whole default suite ran, every core case passed, those of gradients included, nothing is wrong,
    and no wrong number is excused by a reason without a pattern. ``partial``: nothing is wrong, something passed, and
    something that ``conforms`` takes was left out. ``not tested``: nothing is wrong, and nothing passed. ``does not
    conform``: something is wrong.
    """

    word: str
    left_out: LeftOut
    passed: int
    wrong: int
    #: Results, and cases of the default suite with all others that ran.
    total: int
    suite: int

    @property
    def exit_code(self) -> int:
        """0, 1, 3 or 4: :data:`EXIT_CODES`."""
        return EXIT_CODES[self.word]

    def __str__(self) -> str:
        if self.word == DOES_NOT_CONFORM:
            return f"{self.word}: {self.wrong} of {_cases(self.total)} {'is' if self.wrong == 1 else 'are'} wrong"
        said = self.left_out.sentences()
        if self.word == NOT_TESTED:
            return f"{self.word}: nothing passed; {'; '.join(said)}" if said else f"{self.word}: nothing passed"
        tail = f"; {'' if self.word == CONFORMS else 'left out: '}{'; '.join(said)}" if said else ""
        return f"{self.word}: {_cases(self.passed)} passed{tail}"


def judge(results: Iterable[Result]) -> Verdict:
    """The verdict on the results of one backend."""
    results = list(results)
    passed = {result.id for result in results if result.outcome == "passed"}
    wrong = sum(not result.ok for result in results)
    left = _left_out(results)
    suite = {case.id for case in CASES.select()} | {result.id for result in results}
    if wrong:
        word = DOES_NOT_CONFORM
    elif not passed:
        word = NOT_TESTED
    elif (
        left.tiers
        or left.not_chosen
        or left.blanket
        or any(r.tier == "core" and r.outcome != "passed" for r in results)
    ):
        word = PARTIAL
    else:
        word = CONFORMS
    return Verdict(word, left, len(passed), wrong, len(results), len(suite))


def conforms(results: Iterable[Result]) -> bool:
    """Whether the verdict on these results is ``conforms``: of a part of the suite it is not."""
    return judge(results).word == CONFORMS


def _left_out(results: Sequence[Result]) -> LeftOut:
    ids = {result.id for result in results}
    missing = [case for case in CASES.select() if case.id not in ids]
    touched = {case.tier for case in CASES.select() if case.id in ids}
    tiers = tuple(tier for tier in DEFAULT_TIERS if tier not in touched and any(case.tier == tier for case in missing))
    excused = [result for result in results if result.outcome == "xfailed"]
    unsupported = [result for result in results if result.outcome == "unsupported"]
    return LeftOut(
        tiers=tiers,
        cases_of_tiers=sum(case.tier in tiers for case in missing),
        not_chosen=sum(case.tier not in tiers for case in missing),
        unsupported=len(unsupported),
        undeclared=tuple(dict.fromkeys(name for result in unsupported for name in result.lacking)),
        expected_failures=len(excused),
        core_expected_failures=sum(result.tier == "core" for result in excused),
        blanket=sum(result.blanket for result in excused),
        unavailable="; ".join(dict.fromkeys(r.message for r in results if r.outcome == "unavailable")),
    )


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)


def _cases(count: int) -> str:
    return _number(count, "case")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
