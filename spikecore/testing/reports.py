"""Reports of the suite for others: JUnit XML, an SVG badge, a text for an issue, changes since an earlier report."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Tuple
from xml.etree import ElementTree

from spikecore.testing._cases import cases_of
from spikecore.testing._report import Report, merge, read
from spikecore.testing._verdict import CONFORMS, DOES_NOT_CONFORM, NOT_TESTED, OUTCOMES, PARTIAL, RANKS, Result

__all__ = [
    "CONFORMS",
    "DOES_NOT_CONFORM",
    "NOT_TESTED",
    "OUTCOMES",
    "PARTIAL",
    "Changes",
    "badge",
    "cases_of",
    "changes",
    "junit",
    "markdown",
    "merge",
]

# -- JUnit

#: Characters that XML 1.0 cannot hold, escaped or not.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """JUnit XML in the form that Jenkins' schema takes and pytest calls xunit2: properties stand at the test suite,
    since that schema has none at a test case.
    """
    counts = report.counts()
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name=f"spikecore conformance {report.backend}",
        tests=str(len(report.results)),
        failures=str(counts["failed"] + counts["stale"]),
        errors=str(counts["error"]),
        skipped=str(counts["xfailed"] + counts["unsupported"] + counts["unavailable"]),
        time=f"{report.seconds:.3f}",
        timestamp=report.date[:19],  # the schema takes no time zone; it is UTC
    )
    facts = {
        "verdict": report.verdict.word,
        "device": report.device,
        "device_name": report.device_name,
        **{f"version.{name}": version for name, version in report.versions.items()},
        **{f"seed.{name}": str(seed) for name, seed in report.seeds.items()},
    }
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=f"spikecore.{name}", value=_ILLEGAL.sub("?", value))
    for result in report.results:
        _add(suite, report.backend, result)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add(suite: ElementTree.Element, backend: str, result: Result) -> None:
    place = f"spikecore.conformance.{backend}.{result.tier}"
    case = ElementTree.SubElement(suite, "testcase", classname=place, name=result.id, time=f"{result.seconds:.3f}")
    message = _ILLEGAL.sub("?", result.message)
    first = message.partition("\n")[0]
    if result.outcome == "error":
        ElementTree.SubElement(case, "error", type="error", message=first).text = message
    elif not result.ok:
        ElementTree.SubElement(case, "failure", type=result.outcome, message=first).text = message
    elif result.outcome != "passed":
        ElementTree.SubElement(case, "skipped", type=result.outcome, message=first)


# -- badge

_COLOURS = {CONFORMS: "#2e7d32", PARTIAL: "#9a6700", NOT_TESTED: "#6e7781", DOES_NOT_CONFORM: "#c62828"}
#: Widths of characters of 11 px Verdana, of others, and the margin at each side. Texts are fitted to these widths, so
#: that another font looks the same.
_WIDTHS = {**dict.fromkeys("ijl.,:;|'", 3.4), **dict.fromkeys("frt -()[]/", 4.6), **dict.fromkeys("mwMW@%", 10.3)}
_OTHER, _MARGIN = 6.7, 7

_TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">
  <title>{title}</title>
  <clipPath id="corners"><rect width="{width}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#corners)">
    <rect width="{left}" height="20" fill="#444d56"/>
    <rect x="{left}" width="{right}" height="20" fill="{colour}"/>
  </g>
  <g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
    <text x="{label_x}" y="14" textLength="{label_width}">{label}</text>
    <text x="{value_x}" y="14" textLength="{value_width}">{value}</text>
  </g>
</svg>
"""


def badge(report: Report) -> str:
    """SVG without fonts or scripts of its own: ``spikecore mine | conforms: 1590 of 1600``, the number of cases that
    passed, and of the default suite; of a backend that does not conform the number of cases that are wrong.
    """
    verdict = report.verdict
    label, value = f"spikecore {report.backend}", verdict.word
    if verdict.word in (CONFORMS, PARTIAL):
        value = f"{value}: {verdict.passed} of {verdict.suite}"
    elif verdict.word == DOES_NOT_CONFORM:
        value = f"{value}: {verdict.wrong} wrong of {verdict.total}"
    widths = [round(sum(_WIDTHS.get(letter, _OTHER) for letter in text)) for text in (label, value)]
    left, right = (width + 2 * _MARGIN for width in widths)
    return _TEMPLATE.format(
        width=left + right,
        left=left,
        right=right,
        colour=_COLOURS[verdict.word],
        title=escape(f"{label}: {value}"),
        label=escape(label),
        value=escape(value),
        label_x=left / 2,
        value_x=left + right / 2,
        label_width=widths[0],
        value_width=widths[1],
    )


# -- a text

#: Wrong cases that a text shows, and characters of each message.
_SHOWN, _LENGTH = 20, 1500


def markdown(report: Report) -> str:
    """Markdown to be pasted into an issue: verdict, device, versions, counts of each tier, and what is wrong."""
    facts = {
        "verdict": str(report.verdict),
        "device": ": ".join(dict.fromkeys(filter(None, (report.device, report.device_name)))) or "none",
        "date": report.date,
        **report.versions,
        **{f"seed of {name}": str(seed) for name, seed in report.seeds.items()},
    }
    lines = [f"### spikecore conformance {report.backend}: {report.verdict.word}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(fact)} |" for name, fact in facts.items()]
    lines += ["", f"| tier | {' | '.join(OUTCOMES)} |", "|---|" + "---|" * len(OUTCOMES)]
    for tier in report.tiers():
        lines.append(f"| {tier} | {' | '.join(str(count) for count in report.counts(tier).values())} |")
    for outcome in ("xfailed", "unsupported", "unavailable"):
        results = [result for result in report.results if result.outcome == outcome]
        why = Counter(", ".join(result.lacking) or result.message.partition("\n")[0] for result in results)
        lines += ["", f"{outcome}:", ""] * bool(why) + [f"- {_cell(reason)} ({count})" for reason, count in why.items()]
    wrong = [result for result in report.results if not result.ok]
    for result in wrong[:_SHOWN]:
        message = _ILLEGAL.sub("?", result.message[:_LENGTH]).replace("~~~", "---")  # which would end the block
        lines += ["", f"**{result.outcome} `{result.id}`**", "", "~~~text", message, "~~~"]
    if len(wrong) > _SHOWN:
        lines += ["", f"{len(wrong) - _SHOWN} more are wrong; `--json run.json` has them all."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A text in one line of a table."""
    return _ILLEGAL.sub("?", text).replace("\n", " ").replace("|", "\\|")


# -- what changed


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
    """Changes since the report that ``--json`` wrote to ``earlier``.

    Raises ``ValueError`` for a file that cannot be read, or that is no such report.
    """
    verdict, report = read(earlier)
    before = {result.id: result.outcome for result in report.results}
    now = {result.id: result.outcome for result in results}
    both = [(id, before[id], now[id]) for id in now if id in before]
    return Changes(
        worse=[row for row in both if RANKS[row[2]] < RANKS[row[1]]],
        better=[row for row in both if RANKS[row[2]] > RANKS[row[1]]],
        new=[(id, outcome) for id, outcome in now.items() if id not in before],
        gone=[(id, outcome) for id, outcome in before.items() if id not in now],
        verdict=verdict,
    )
