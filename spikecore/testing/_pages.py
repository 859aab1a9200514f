"""Pages of the documentation that are made from results of runs: the list of plugins, and a page for each backend.

A result is the report of a run without its cases, in a file of its own for each backend and device. The pages hold
nothing that is in no file, so they can be made anew from the folder alone.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from spikecore.testing._verdict import BAD, EXIT_CODES, NOT_TESTED

#: How the pages are made anew.
COMMAND = "spikecore plugins-page docs/results --write docs/plugins.md"
#: What a result must have; and what it has beside, with the cases that did not pass in short.
KEYS = ("backend", "verdict", "counts", "versions", "device", "date")
_OPTIONAL = ("summary", "seconds", "tiers", "unsupported", "expected_failures")
#: The folder of the pages of backends, beside the list.
FOLDER = "conformance"

_HEAD = f"""# Plugins

Made by `{COMMAND}` from the files in [results](results); do not edit.

Each row is one run of the [conformance suite](backends.md#conformance), on one device; the name of a backend leads to
what it does not support, and why.

- **conforms**: the whole default suite ran, every core case passed, those of gradients included, and nothing was wrong.
- **partial**: nothing was wrong, and something was left out.
- *unsupported* cases ask for a capability that the backend does not declare, and were refused.

A run says what held on that day, with these versions, on that machine.
"""

_TAIL = """
## To be listed

Run the suite where your plugin is installed, in a clone of this repository, once for each device, and send a pull
request with what changed:

```sh
spikecore conformance NAME --results docs/results              # runs it, keeps what the pages need, and makes them anew
spikecore conformance --merge run.json --results docs/results  # the same for a report that --json wrote elsewhere
```

A newer run of a plugin on the same device replaces the older one. Every verdict is listed but `not tested`.
"""


def read(text: str, source: str) -> Dict[str, Any]:
    """A result. Raises ``ValueError``, which names ``source`` and what is wrong, for what is none."""
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: is no JSON: {error}") from error
    missing = [key for key in KEYS if not isinstance(found, dict) or key not in found]
    if missing:
        raise ValueError(f"{source}: has no {', '.join(missing)}; it must be what spikecore conformance --json writes")
    if found["verdict"] not in EXIT_CODES:
        raise ValueError(f"{source}: verdict {found['verdict']!r} must be one of {', '.join(EXIT_CODES)}")
    if found["verdict"] == NOT_TESTED:
        raise ValueError(f"{source}: the verdict is 'not tested': there is nothing to list")
    wrong = {outcome: found["counts"].get(outcome, 0) for outcome in BAD if found["counts"].get(outcome, 0)}
    if bool(wrong) != (found["verdict"] == "does not conform"):
        raise ValueError(f"{source}: the verdict {found['verdict']!r} does not go with {wrong or 'no'} wrong cases")
    if "results" in found:
        found = {**found, **_limits(found["results"])}
    return {key: found[key] for key in (*KEYS, *_OPTIONAL) if key in found}


def _limits(results: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
    """The cases that were refused, by capability, and those that failed as expected, by reason."""
    unsupported: Dict[str, Dict[str, Any]] = {}
    expected: Dict[str, List[str]] = {}
    for row in results:
        why = str(row.get("message", "")).partition("\n")[0]
        if row["outcome"] == "unsupported":
            limit = unsupported.setdefault(", ".join(row.get("lacking", ())), {"cases": 0, "why": why})
            limit["cases"] += 1
        elif row["outcome"] == "xfailed":
            expected.setdefault(why, []).append(row["id"])
    return {"unsupported": unsupported, "expected_failures": expected}


def load(folder: Path) -> List[Dict[str, Any]]:
    """The results of a folder, by plugin and device. Raises ``ValueError`` for a file that is no result, or two of one
    plugin and device.
    """
    found: Dict[Tuple[str, str], Dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = read(path.read_text(encoding="utf-8"), str(path))
        if path.name != file_name(result):
            raise ValueError(f"{path}: must be called {file_name(result)}; spikecore plugins-page --add names it so")
        found[result["backend"], _device(result)] = result
    return [found[key] for key in sorted(found)]


def add(folder: Path, text: str, source: str) -> Path:
    """Put a run's report, as JSON, into the folder, under the name of its plugin and device; gives the path."""
    result = read(text, source)
    path = folder / file_name(result)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def file_name(result: Mapping[str, Any]) -> str:
    """The name of a result's file: one for each plugin and device."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{result['backend']} {_device(result)}".lower()).strip("-")
    return f"{words}.json"


def write(folder: Path, page: Path) -> None:
    """Make the list of plugins, and the pages of backends in :data:`FOLDER` beside it, of the results of a folder."""
    results = load(folder)
    page.write_text(render(results), encoding="utf-8")
    beside = page.parent / FOLDER
    beside.mkdir(exist_ok=True)
    for old in beside.glob("*.md"):
        old.unlink()
    for name, text in pages(results).items():
        (beside / f"{name}.md").write_text(text, encoding="utf-8")


def render(results: List[Dict[str, Any]]) -> str:
    """The list of plugins."""
    head = ("plugin", "provided by", "device", "date", "verdict", "passed", "unsupported", "expected to fail", "wrong")
    lines = [_HEAD.rstrip(), "", _line((*head, "with")), _line(["---"] * (len(head) + 1))]
    lines += [_line(_cells(result)) for result in results]
    return "\n".join(lines) + "\n" + _TAIL


def pages(results: List[Dict[str, Any]]) -> Dict[str, str]:
    """Name of a backend -> its page, with a section for each device."""
    by_name = groupby(results, key=lambda result: str(result["backend"]))
    return {name: _page(name, list(runs)) for name, runs in by_name}


def _page(name: str, runs: List[Dict[str, Any]]) -> str:
    lines = [
        f"# Conformance of `{name}`",
        "",
        f"Made by `{COMMAND}` from the files in [results](../results); do not edit.",
        "[What a verdict means](../backends.md#the-verdict). What is said here held with these versions, on that day.",
    ]
    for run in runs:
        lines += _section(run)
    return "\n".join(lines) + "\n"


def _section(run: Mapping[str, Any]) -> List[str]:
    versions = {**run["versions"]}
    provided = str(versions.pop("distribution", ""))
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = ["", f"## On {_device(run)}", "", f"{str(run.get('summary', run['verdict'])).rstrip('.')}.", ""]
    lines += [_line(("date", "provided by", "with")), _line(["---"] * 3), _line((run["date"][:10], provided, said))]
    if run.get("tiers"):
        lines += ["", _line(("tier", *_COLUMNS)), _line(["---"] * 5)]
        lines += [_line((f"`{tier}`", *_numbers(counts))) for tier, counts in run["tiers"].items()]
    if run.get("unsupported"):
        lines += ["", "Not supported: asking for it raises `Unsupported`.", ""]
        for names, limit in run["unsupported"].items():
            lines.append(f"- `{names}` ({limit['cases']} cases): {limit['why'].rstrip('.')}.")
    if run.get("expected_failures"):
        lines += ["", "Expected to fail, and known:", ""]
        for why, ids in run["expected_failures"].items():
            some = ", ".join(f"`{id}`" for id in ids[:6]) + (", ..." if len(ids) > 6 else "")
            lines.append(f"- {why.rstrip('.')} ({len(ids)} cases: {some}).")
    return lines


_COLUMNS = ("passed", "unsupported", "expected to fail", "wrong")


def _numbers(counts: Mapping[str, int]) -> List[str]:
    shown = [str(counts.get(outcome, 0)) for outcome in ("passed", "unsupported", "xfailed")]
    return [*shown, str(sum(counts.get(outcome, 0) for outcome in BAD))]


def _cells(result: Mapping[str, Any]) -> List[str]:
    name, versions = result["backend"], result["versions"]
    return [
        f"[`{name}`]({FOLDER}/{name}.md)",
        str(versions.get("distribution", "")),
        _device(result),
        str(result["date"])[:10],
        str(result.get("summary", result["verdict"])),
        *_numbers(result["counts"]),
        ", ".join(f"{name} {versions[name]}" for name in ("spikecore", "torch") if name in versions),
    ]


def _device(result: Mapping[str, Any]) -> str:
    device: Any = result["device"]
    if not isinstance(device, dict):
        return str(device)
    where, called = str(device.get("device", "")), str(device.get("name", ""))
    return f"{where}: {called}" if called and called != where else where


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
