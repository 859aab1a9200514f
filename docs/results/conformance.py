"""Makes plugins.md, support.md, the pages of conformance/ and the table of accelerators.md from the files beside it.

A run of the whole suite is kept, and the pages are renewed, by ::

    spikecore conformance NAME --json run.json
    python docs/results/conformance.py run.json

A statement about an accelerator (README.md) and what ``spikecore backends --numbers --into DIR`` wrote are kept by the
same command. Without a file the pages are made anew. A result is the report of a whole run without its cases, in a file
of its own for each backend and device. The pages hold nothing that is in no file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

import spikecore as sc
from spikecore.backend import Capabilities
from spikecore.testing import CASES
from spikecore.testing import numbers as arithmetic
from spikecore.testing.reports import CONFORMS, DOES_NOT_CONFORM, NOT_TESTED, PARTIAL

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # tests run this file by its path

import accelerators  # noqa: E402  # the module beside this one

COMMAND = "python docs/results/conformance.py run.json"
#: Entries that a result has from its report, with their types; and the others: the row of accelerators.md, cases that
#: did not pass in short, and words for what the backend supports.
OF_REPORT: Dict[str, Any] = {
    "backend": str,
    "verdict": str,
    "counts": dict,
    "versions": dict,
    "device": dict,
    "date": str,
    "summary": str,
    "seconds": (int, float),
    "tiers": dict,
}
#: Entries of parts of a report.
OF_PARTS = {"versions": ("spikecore", "distribution", "torch"), "device": ("device", "name")}
OF_PARTS["results"] = ("id", "tier", "outcome", "message", "lacking")
KEYS = (*OF_REPORT, "accelerator", "status", "unsupported", "expected_failures", "support")
#: The folder of the pages of backends, beside the list.
FOLDER = "conformance"
COLUMNS = ("passed", "unsupported", "expected to fail", "wrong")
WRONG = ("failed", "error", "stale")
VERDICTS = (CONFORMS, PARTIAL, DOES_NOT_CONFORM, NOT_TESTED)
#: Families of core cases that there are of every neuron.
PER_NEURON = ("forward", "exact", "bits", "single-step", "gradient")
#: Neurons whose cases are not called after the class in lower case: first words of the ids -> class.
NAMED = {"se-adlif": "SEAdLIF", "synaptic-leaky": "SynapticLeaky", "ternary": "TernaryLIF"}
#: The tiers whose results decide a word of the support table.
TIERS = ("core", "dtypes", "parameters", "state", "language", "layouts", "robust", "compile")

#: The last line of each page.
MADE = f"Made by `{COMMAND}` from the files in [results](results); do not edit."
HEAD = """# Plugins

Each row is one run of the [conformance suite](backends.md#conformance) on one device. The name of a backend links to a
page with what it does not support, and why.

- **conforms**: the whole default suite ran, every core case passed, also those for gradients, and no case failed.
- **partial**: no case failed, but something was left out.
- *unsupported* cases ask for a capability that the backend does not declare, and were refused.

A result is only valid for this date, these versions and this machine.
"""
TAIL = f"""
## To be listed

To add your plugin to this list, clone this repository and install the plugin. Run the whole suite once for each device,
and send a pull request with the changed files:

```sh
spikecore conformance NAME --json run.json             # --merge A.json B.json joins the reports of parts
{COMMAND}        # updates results and pages
```

A newer run of a plugin on the same device replaces the older one. The rows of other plugins and devices stay. A run
with the verdict `not tested` is not listed. The [table of accelerators](accelerators.md) gets its row, too: that of the
device, or of `--accelerator 'NAME'`; `--emulated` says that an emulator ran. Without a clone, send `run.json` and what
`spikecore conformance NAME --merge run.json --report` prints, in an issue.

{MADE}
"""
NUMBERS = """## What arithmetic costs

In float32, for drawn numbers, bit patterns and edges of the range, compared with float64
([how](../backends.md#what-arithmetic-costs)). What is rounded correctly is off by 0.5 units in the last place at most.
"""
SUPPORT = """# What each backend supports

- **yes**: declared, and every case of it passed.
- **partly**: some cases are expected to fail; the reasons are on the [page of the backend](plugins.md).
- **declared**: it has not been run yet.
- **no**: not declared; asking for it raises `Unsupported`.
- **wrong**: a case failed.
"""


# -- results


def result_of(report: Mapping[str, Any], accelerator: str = "", emulated: bool = False) -> Dict[str, Any]:
    """The result of a report, as ``spikecore conformance --json`` writes it; the accelerator is that of the device.

    Raises ``ValueError`` for a file that is no report, for one in which nothing passed, or that is not of a whole run.
    """
    check(report)
    if report["verdict"] == "not tested":
        raise ValueError("the verdict is 'not tested', so there is nothing to keep")
    missing, tiers = report["left_out"]["cases"], report["left_out"]["tiers"]
    if missing:
        among = f", among them those of {', '.join(tiers)}" if tiers else ""
        raise ValueError(
            f"the report leaves out {number(missing, 'case')}{among}; a result is of a whole run, or of all its parts "
            "(spikecore conformance --merge)"
        )
    unsupported: Dict[str, Dict[str, Any]] = {}
    expected: Dict[str, List[str]] = {}
    for row in report["results"]:
        why = row["message"].partition("\n")[0]
        if row["outcome"] == "unsupported":
            unsupported.setdefault(", ".join(row["lacking"]), {"cases": 0, "why": why})["cases"] += 1
        elif row["outcome"] == "xfailed":
            expected.setdefault(why, []).append(row["id"])
    kept = {key: report[key] for key in OF_REPORT}
    kept["accelerator"] = accelerator or accelerators.accelerator_of(report)
    kept["status"] = "emulated" if emulated else "tested"
    return {**kept, "unsupported": unsupported, "expected_failures": expected, "support": support_of(report)}


def check(report: Mapping[str, Any]) -> None:
    """Raise ``ValueError``, with key and value, for what is no report."""
    again = "the file must be what `spikecore conformance NAME --json run.json` writes"
    for key, kind in {**OF_REPORT, "left_out": dict, "results": list}.items():
        if not isinstance(report.get(key), kind):
            raise ValueError(f"{key}: {report.get(key)!r} has the wrong type, or is missing; {again}")
    if report["verdict"] not in VERDICTS:
        raise ValueError(f"verdict: {report['verdict']!r} is none of {', '.join(VERDICTS)}; {again}")
    if not re.match(r"\d{4}-\d\d-\d\d", report["date"]):
        raise ValueError(f"date: {report['date']!r} begins with no day such as 2026-11-23; {again}")
    for key, names in OF_PARTS.items():
        for part in report[key] if key == "results" else [report[key]]:
            missing = [name for name in names if name not in part]
            if missing:
                raise ValueError(f"{key}: {part!r} has no {', '.join(missing)}; {again}")


def number(count: int, noun: str) -> str:
    """Count and noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def support_of(report: Mapping[str, Any]) -> Dict[str, Dict[str, str]]:
    """Table -> row -> word."""
    rows = [row for row in report["results"] if row["tier"] in TIERS]
    lacking = {name for row in report["results"] for name in row["lacking"]}

    def word(ids: Set[str], needs: str = "") -> str:
        ended = {row["outcome"] for row in rows if row["id"] in ids}
        if needs in lacking:
            return "no"
        return "wrong" if ended & {*WRONG} else "partly" if "xfailed" in ended else "yes" if "passed" in ended else "no"

    cases = cases_of_neurons()
    neurons = {f"`{name}`": word(cases[name]) for name in sorted(cases, key=str.lower)}
    surrogates = {case.id for case in CASES if case.id.startswith("surrogate/")}
    neurons["all surrogates"] = word(surrogates, "gradients")
    neurons["neurons of your own"] = word({case.id for case in CASES if case.tier == "language"})
    capabilities = {
        f"`{name}`": word({case.id for case in CASES if name in case.needs}, name)
        for name in Capabilities.__dataclass_fields__
    }
    devices = {status.name: status.devices for status in sc.backends(probe=True)}.get(report["backend"])
    if devices is None:
        raise ValueError(f"backend {report['backend']!r} is not installed here: install the plugin that was tested")
    return {
        "Neurons and surrogates": neurons,
        "Capabilities": capabilities,
        "Devices": {"device types": "any" if "*" in devices else ", ".join(devices)},
    }


def cases_of_neurons() -> Dict[str, Set[str]]:
    """Name of a neuron -> ids of its cases by itself."""
    names = {**{name.lower(): name for name in sc.neurons.MODELS}, **NAMED}
    longest_first = sorted(names, key=len, reverse=True)
    found: Dict[str, Set[str]] = {name: set() for name in sc.neurons.MODELS}
    for case in CASES:
        family, _, variant = case.id.partition("/")
        if family == "vectors" and variant in names:
            found[names[variant]].add(case.id)
        elif case.tier in ("core", "parameters") and family in PER_NEURON:
            found[names[next(first for first in longest_first if f"{variant}-".startswith(f"{first}-"))]].add(case.id)
    return found


# -- files


def load(folder: Path) -> Dict[str, Dict[str, Any]]:
    """The results of a folder, by name of their file. Raises ``ValueError`` for a file that is no result, or whose name
    is not that of its backend and device.
    """
    results = {}
    for path in folder.glob("*.json"):
        try:
            result: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: is no JSON: {error}") from error
        missing = [key for key in KEYS if not isinstance(result, dict) or key not in result]
        if missing:
            raise ValueError(f"{path}: has no {', '.join(missing)}; it must be what {COMMAND} writes")
        if path.name != file_name(result):
            raise ValueError(f"{path}: must be called {file_name(result)}, after its backend and device: rename it")
        results[path.name] = result
    return results


def file_name(result: Mapping[str, Any]) -> str:
    """The name of a result's file: one for each backend and device, and accelerator where it is not the device's."""
    other = "" if result["accelerator"] == accelerators.known(result) else result["accelerator"]
    words = re.sub(r"[^a-z0-9]+", "-", f"{result['backend']} {device_of(result)} {other}".lower()).strip("-")
    return f"{words}.json"


def write(folder: Path, files: Mapping[str, Mapping[str, Any]] = {}) -> List[str]:  # never written to
    """Put files into a folder of results, path -> contents, and make the pages beside that folder anew. Gives a line
    for each file that changed.

    Raises ``ValueError``, and writes nothing, for a file of the folder that is none of its kind.
    """
    statements = accelerators.load(folder / "status")
    kinds = {"": load(folder), "status/": {accelerators.file_name(one): one for one in statements}}
    kinds["numbers/"] = load_numbers(folder / "numbers")
    lines: List[str] = []
    for name, contents in files.items():
        kind, _, file = name.rpartition("/")
        kinds[f"{kind}/" if kind else ""][file] = dict(contents)
    made = pages(kinds[""].values(), kinds["numbers/"].values())
    page = folder.parent / "accelerators.md"
    rows = accelerators.table(kinds[""].values(), kinds["status/"].values())
    text = accelerators.put_into(page.read_text(encoding="utf-8"), rows)
    for name, contents in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        lines += put(folder / name, json.dumps(contents, indent=2) + "\n")
    beside = folder.parent / FOLDER
    beside.mkdir(exist_ok=True)
    lines += put(folder.parent / "plugins.md", render(kinds[""].values()))
    lines += put(folder.parent / "support.md", render_support(kinds[""].values()))
    lines += put(page, text)
    for old in sorted(beside.glob("*.md")):
        if old.stem not in made:  # its results are gone
            old.unlink()
            lines.append(f"removed {old}")
    return lines + [line for name, text in made.items() for line in put(beside / f"{name}.md", text)]


def load_numbers(folder: Path) -> Dict[str, Dict[str, Any]]:
    """The costs of arithmetic, by name of their file. Raises ``ValueError`` for a file of another kind."""
    reports = {}
    for path in folder.glob("*.json"):
        try:
            reports[path.name] = json.loads(path.read_text(encoding="utf-8"))
            arithmetic.check(reports[path.name])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return reports


def file_of(contents: Any, accelerator: str, emulated: bool) -> Tuple[str, Dict[str, Any]]:
    """Path in the folder of results, and contents, of what is kept of a file. Raises ``ValueError`` for one that is
    neither a report of the suite, nor a statement, nor what arithmetic costs.
    """
    if isinstance(contents, dict) and "operations" in contents:
        arithmetic.check(contents)
        return f"numbers/{arithmetic.file_name(contents)}", contents
    if isinstance(contents, dict) and "results" in contents:
        result = result_of(contents, accelerator, emulated)
        return file_name(result), result
    return f"status/{accelerators.file_name(accelerators.check(contents))}", contents


def put(path: Path, text: str) -> List[str]:
    """Write a file if that changes it, and say so in a line."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return []
    path.write_text(text, encoding="utf-8")
    return [f"wrote {path}"]


# -- pages


def render(results: Iterable[Mapping[str, Any]]) -> str:
    """The list of plugins."""
    head = ("plugin", "provided by", "device", "date", "verdict", *COLUMNS, "with")
    lines = [HEAD.rstrip(), "", line_of(head), line_of(["---"] * len(head))]
    lines += [line_of(cells(result)) for result in sorted(results, key=place)]
    return "\n".join(lines) + "\n" + TAIL


def render_support(results: Iterable[Mapping[str, Any]]) -> str:
    """The support table: of each backend its newest result."""
    by_age = sorted(results, key=lambda result: str(result["date"]))
    newest = {result["backend"]: result["support"] for result in by_age}
    names = sorted(newest)
    lines = [SUPPORT.rstrip()]
    for title in dict.fromkeys(title for support in reversed(list(newest.values())) for title in support):
        rows = dict.fromkeys(row for name in names for row in newest[name].get(title, {}))
        lines += ["", f"## {title}", "", line_of(("", *names)), line_of(["---"] * (1 + len(names)))]
        lines += [line_of((row, *(newest[name].get(title, {}).get(row, "declared") for name in names))) for row in rows]
    return "\n".join([*lines, "", MADE]) + "\n"


def pages(results: Iterable[Mapping[str, Any]], numbers: Iterable[Mapping[str, Any]] = ()) -> Dict[str, str]:
    """Name of a backend -> its page, with a section for each device, and what arithmetic costs there."""
    measured = sorted(numbers, key=place)
    runs = groupby(sorted(results, key=place), key=lambda result: str(result["backend"]))
    return {name: page(name, of, [one for one in measured if one["backend"] == name]) for name, of in runs}


def place(result: Mapping[str, Any]) -> Tuple[str, str]:
    """Key of the order of results."""
    return result["backend"], device_of(result)


def page(name: str, runs: Iterable[Mapping[str, Any]], numbers: Sequence[Mapping[str, Any]]) -> str:
    """The page of a backend."""
    lines = [
        f"# Conformance of `{name}`",
        "",
        "[What a verdict means](../backends.md#the-verdict). A result is only valid for its date and versions.",
    ]
    for run in runs:
        lines += section(run)
    lines += ["", *NUMBERS.splitlines()] * bool(numbers)
    for one in numbers:
        lines += arithmetic_of(one)
    return "\n".join([*lines, "", MADE.replace("(", "(../")]) + "\n"


def arithmetic_of(report: Mapping[str, Any]) -> List[str]:
    """The lines of what arithmetic costs on a device."""
    versions = {**report["versions"]}
    said = ", ".join([versions.pop("distribution"), *(f"{name} {version}" for name, version in versions.items())])
    lines = ["", f"### {device_of(report)}", "", f"On {report['date']}, with {said}.", ""]
    lines += [line_of(arithmetic.COLUMNS), line_of(["---"] * len(arithmetic.COLUMNS))]
    lines += [line_of((f"`{text}`", *cells)) for text, *cells in arithmetic.table(report)]
    return [*lines, "", f"{arithmetic.contraction(report)}."]


def section(run: Mapping[str, Any]) -> List[str]:
    """The lines of a device."""
    versions = {**run["versions"]}
    provided = versions.pop("distribution")
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = ["", f"## On {device_of(run)}", "", f"{run['summary'].rstrip('.')}.", ""]
    lines += [line_of(("date", "provided by", "with")), line_of(["---"] * 3)]
    lines += [line_of((run["date"][:10], provided, said)), "", line_of(("tier", *COLUMNS)), line_of(["---"] * 5)]
    lines += [line_of((f"`{tier}`", *numbers(counts))) for tier, counts in run["tiers"].items()]
    if run["unsupported"]:
        lines += ["", "Not supported: asking for it raises `Unsupported`.", ""]
        for names, limit in run["unsupported"].items():
            lines.append(f"- `{names}` ({number(limit['cases'], 'case')}): {limit['why'].rstrip('.')}.")
    if run["expected_failures"]:
        lines += ["", "Expected to fail, and known:", ""]
        for why, ids in run["expected_failures"].items():
            some = ", ".join(f"`{id}`" for id in ids[:6]) + (", ..." if len(ids) > 6 else "")
            lines.append(f"- {why.rstrip('.')} ({number(len(ids), 'case')}: {some}).")
    return lines


def numbers(counts: Mapping[str, int]) -> List[str]:
    """The cells of counts."""
    shown = [str(counts.get(outcome, 0)) for outcome in ("passed", "unsupported", "xfailed")]
    return [*shown, str(sum(counts.get(outcome, 0) for outcome in WRONG))]


def cells(result: Mapping[str, Any]) -> List[str]:
    """The cells of a row of the list."""
    name, versions = result["backend"], result["versions"]
    return [
        f"[`{name}`]({FOLDER}/{name}.md)",
        versions["distribution"],
        device_of(result),
        result["date"][:10],
        result["summary"],
        *numbers(result["counts"]),
        f"spikecore {versions['spikecore']}, torch {versions['torch']}",
    ]


def device_of(result: Mapping[str, Any]) -> str:
    """The device, and what it is called."""
    where, called = result["device"]["device"], result["device"]["name"]
    return where if called == where else f"{where}: {called}"


def line_of(row: Sequence[object]) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |"


def main(arguments: Sequence[str], folder: Path = HERE) -> None:
    """The command line: files to keep, or none."""
    parser = argparse.ArgumentParser(description="Keep results, and make the pages from them anew.")
    parser.add_argument("files", nargs="*", type=Path, help="a report, a statement, or what arithmetic costs")
    parser.add_argument("--accelerator", default="", help="the row of a report; by default that of its device")
    parser.add_argument("--emulated", action="store_true", help="a report of an emulator of the accelerator")
    options = parser.parse_args(arguments)
    try:
        kept = {}
        for path in options.files:
            try:
                contents = json.loads(path.read_text(encoding="utf-8"))
                name, result = file_of(contents, options.accelerator, options.emulated)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            kept[name] = result
        print("\n".join(write(folder, kept)) or "nothing changed")
    except (OSError, ValueError) as error:
        sys.exit(f"nothing is kept: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
