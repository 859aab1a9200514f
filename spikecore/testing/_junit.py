"""A report as JUnit XML, in the form that Jenkins' schema takes and pytest calls xunit2.

Properties stand at the test suite: that schema has none at a test case.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from spikecore.testing._report import Report
from spikecore.testing._result import Result

#: Characters that XML 1.0 cannot hold, escaped or not.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """The file's text."""
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
        ElementTree.SubElement(properties, "property", name=f"spikecore.{name}", value=_legal(value))
    for result in report.results:
        _add(suite, report.backend, result)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add(suite: ElementTree.Element, backend: str, result: Result) -> None:
    place = f"spikecore.conformance.{backend}.{result.tier}"
    case = ElementTree.SubElement(suite, "testcase", classname=place, name=result.id, time=f"{result.seconds:.3f}")
    message = _legal(result.message)
    first = message.partition("\n")[0]
    if result.outcome == "error":
        ElementTree.SubElement(case, "error", type="error", message=first).text = message
    elif not result.ok:
        ElementTree.SubElement(case, "failure", type=result.outcome, message=first).text = message
    elif result.outcome != "passed":
        ElementTree.SubElement(case, "skipped", type=result.outcome, message=first)


def _legal(text: str) -> str:
    return _ILLEGAL.sub("?", text)
