"""Pages of the documentation that are made from results of runs: the list of plugins, what each backend supports, and a
page for each backend.

A result is the report of a whole run without its cases, in a file of its own for each backend and device. The pages
hold nothing that is in no file, so they can be made anew from the folder alone.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from spikecore.testing._verdict import BAD, NOT_TESTED, number

#: Command that makes results, pages and the support table.
COMMAND = "spikecore conformance NAME --results docs/results"
#: Entries that a result has from its report; and the others: cases that did not pass in short, and words for what the
#: backend supports (:mod:`spikecore.testing._support`).
_OF_REPORT = ("backend", "verdict", "counts", "versions", "device", "date", "summary", "seconds", "tiers")
KEYS = (*_OF_REPORT, "unsupported", "expected_failures", "support")
#: The folder of the pages of backends, beside the list.
FOLDER = "conformance"

_HEAD = f"""# Plugins

Made by `{COMMAND}` from the files in [results](results); do not edit.

Each row is one run of the [conformance suite](backends.md#conformance) on one device. The name of a backend links to a
page with what it does not support, and why.

- **conforms**: the whole default suite ran, every core case passed, also those for gradients, and no case failed.
- **partial**: no case failed, but something was left out.
- *unsupported* cases ask for a capability that the backend does not declare, and were refused.

A result is only valid for this date, these versions and this machine.
"""

_TAIL = f"""
## To be listed

To add your plugin to this list, clone this repository and install the plugin. Run the whole suite once for each device,
and send a pull request with the changed files:

```sh
{COMMAND}              # runs the suite, updates results and pages
spikecore conformance --merge run.json --results docs/results  # the same with reports of --json
```

A newer run of a plugin on the same device replaces the older one. The rows of other plugins and devices stay. A run
with the verdict `not tested` is not listed.
"""

_SUPPORT = f"""# What each backend supports

Made by `{COMMAND}` from the files in [results](results); do not edit.

- **yes**: declared, and every case of it passed.
- **partly**: some cases are expected to fail; the reasons are on the [page of the backend](plugins.md).
- **declared**: it has not been run yet.
- **no**: not declared; asking for it raises `Unsupported`.
- **wrong**: a case failed.
"""


def result_of(report: Mapping[str, Any]) -> Dict[str, Any]:
    """The result of a report, as ``Report.as_dict`` gives it, but for the words of its support.

    Raises ``ValueError`` for one in which nothing passed, and for one that is not of a whole run.
    """
    if report["verdict"] == NOT_TESTED:
        raise ValueError(f"--results: the verdict is {NOT_TESTED!r}, so there is nothing to keep")
    missing, tiers = report["left_out"]["cases"], report["left_out"]["tiers"]
    if missing:
        among = f", among them those of {', '.join(tiers)}" if tiers else ""
        raise ValueError(
            f"--results: the report leaves out {number(missing, 'case')}{among}; a result is of a whole run, or of "
            "all its parts (--merge)"
        )
    unsupported: Dict[str, Dict[str, Any]] = {}
    expected: Dict[str, List[str]] = {}
    for row in report["results"]:
        why = row["message"].partition("\n")[0]
        if row["outcome"] == "unsupported":
            limit = unsupported.setdefault(", ".join(row["lacking"]), {"cases": 0, "why": why})
            limit["cases"] += 1
        elif row["outcome"] == "xfailed":
            expected.setdefault(why, []).append(row["id"])
    kept = {key: report[key] for key in _OF_REPORT}
    return {**kept, "unsupported": unsupported, "expected_failures": expected}


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
    """The name of a result's file: one for each backend and device."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{result['backend']} {_device(result)}".lower()).strip("-")
    return f"{words}.json"


def write(folder: Path, result: Mapping[str, Any]) -> List[str]:
    """Put a result into a folder of results, and make anew, beside that folder, the list of plugins, the support table
    and the pages of backends. Gives a line for each file that changed.

    Raises ``ValueError``, and writes nothing, for a file of the folder that is no result.
    """
    results = {**load(folder), file_name(result): dict(result)}
    beside = folder.parent / FOLDER
    beside.mkdir(exist_ok=True)
    lines = put(folder / file_name(result), json.dumps(result, indent=2) + "\n")
    lines += put(folder.parent / "plugins.md", render(results.values()))
    lines += put(folder.parent / "support.md", render_support(results.values()))
    made = pages(results.values())
    for old in sorted(beside.glob("*.md")):
        if old.stem not in made:  # its results are gone
            old.unlink()
            lines.append(f"removed {old}")
    return lines + [line for name, text in made.items() for line in put(beside / f"{name}.md", text)]


def put(path: Path, text: str) -> List[str]:
    """Write a file if that changes it, and say so in a line."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return []
    path.write_text(text, encoding="utf-8")
    return [f"wrote {path}"]


def render(results: Iterable[Mapping[str, Any]]) -> str:
    """The list of plugins."""
    head = ("plugin", "provided by", "device", "date", "verdict", *_COLUMNS, "with")
    lines = [_HEAD.rstrip(), "", _line(head), _line(["---"] * len(head))]
    lines += [_line(_cells(result)) for result in sorted(results, key=_place)]
    return "\n".join(lines) + "\n" + _TAIL


def render_support(results: Iterable[Mapping[str, Any]]) -> str:
    """The support table: of each backend its newest result."""
    by_age = sorted(results, key=lambda result: str(result["date"]))
    newest = {result["backend"]: result["support"] for result in by_age}
    names = sorted(newest)
    lines = [_SUPPORT.rstrip()]
    for title in dict.fromkeys(title for support in reversed(list(newest.values())) for title in support):
        rows = dict.fromkeys(row for name in names for row in newest[name].get(title, {}))
        lines += ["", f"## {title}", "", _line(("", *names)), _line(["---"] * (1 + len(names)))]
        lines += [_line((row, *(newest[name].get(title, {}).get(row, "declared") for name in names))) for row in rows]
    return "\n".join(lines) + "\n"


def pages(results: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """Name of a backend -> its page, with a section for each device."""
    by_name = groupby(sorted(results, key=_place), key=lambda result: str(result["backend"]))
    return {name: _page(name, runs) for name, runs in by_name}


def _place(result: Mapping[str, Any]) -> Tuple[str, str]:
    return result["backend"], _device(result)


def _page(name: str, runs: Iterable[Mapping[str, Any]]) -> str:
    lines = [
        f"# Conformance of `{name}`",
        "",
        f"Made by `{COMMAND}` from the files in [results](../results); do not edit.",
        "[What a verdict means](../backends.md#the-verdict). A result is only valid for its date and versions.",
    ]
    for run in runs:
        lines += _section(run)
    return "\n".join(lines) + "\n"


def _section(run: Mapping[str, Any]) -> List[str]:
    versions = {**run["versions"]}
    provided = versions.pop("distribution")
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = ["", f"## On {_device(run)}", "", f"{run['summary'].rstrip('.')}.", ""]
    lines += [_line(("date", "provided by", "with")), _line(["---"] * 3), _line((run["date"][:10], provided, said))]
    lines += ["", _line(("tier", *_COLUMNS)), _line(["---"] * 5)]
    lines += [_line((f"`{tier}`", *_numbers(counts))) for tier, counts in run["tiers"].items()]
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


_COLUMNS = ("passed", "unsupported", "expected to fail", "wrong")


def _numbers(counts: Mapping[str, int]) -> List[str]:
    shown = [str(counts.get(outcome, 0)) for outcome in ("passed", "unsupported", "xfailed")]
    return [*shown, str(sum(counts.get(outcome, 0) for outcome in BAD))]


def _cells(result: Mapping[str, Any]) -> List[str]:
    name, versions = result["backend"], result["versions"]
    return [
        f"[`{name}`]({FOLDER}/{name}.md)",
        versions["distribution"],
        _device(result),
        result["date"][:10],
        result["summary"],
        *_numbers(result["counts"]),
        f"spikecore {versions['spikecore']}, torch {versions['torch']}",
    ]


def _device(result: Mapping[str, Any]) -> str:
    where, called = result["device"]["device"], result["device"]["name"]
    return where if called == where else f"{where}: {called}"


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
