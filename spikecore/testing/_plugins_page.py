"""The list of plugins of the documentation, made from the results of runs and never by hand.

A result is what ``spikecore conformance NAME --json`` says, in a file of its own for each plugin and device. The page
holds nothing that is in no file, so it can be made anew from the folder alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

#: How the page is made anew.
COMMAND = "spikecore plugins-page docs/results --write docs/plugins.md"
#: What a result must have; of a run's report ``results`` is the long rest, which the page does not need.
KEYS = ("backend", "verdict", "counts", "versions", "device", "date")
#: What it may have beside: the verdict with what was left out.
_OPTIONAL = ("summary",)
VERDICTS = ("conforms", "partial", "not tested", "does not conform")
#: Outcomes of cases that are wrong.
WRONG = ("failed", "error", "stale")

_HEAD = f"""# Plugins

Made by `{COMMAND}` from the files in [results](results); do not edit.

Each row is one run of the [conformance suite](backends.md#conformance), on one device.

- **conforms**: the whole default suite ran, every core case passed, those of gradients included, and nothing was wrong.
- **partial**: nothing was wrong, and something was left out.
- *unsupported* cases ask for a capability that the backend does not declare, and were refused.

A run says what held on that day, with these versions, on that machine.
"""

_TAIL = f"""
## To be listed

Run the suite where your plugin is installed, and send the file with a pull request that adds it to `docs/results`, one
for each device:

```sh
spikecore conformance NAME --json > run.json
spikecore plugins-page docs/results --add run.json       # checks it, and keeps what the page needs
{COMMAND}
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
    if found["verdict"] not in VERDICTS:
        raise ValueError(f"{source}: verdict {found['verdict']!r} must be one of {', '.join(VERDICTS)}")
    if found["verdict"] == "not tested":
        raise ValueError(f"{source}: the verdict is 'not tested': there is nothing to list")
    wrong = {outcome: found["counts"].get(outcome, 0) for outcome in WRONG if found["counts"].get(outcome, 0)}
    if bool(wrong) != (found["verdict"] == "does not conform"):
        raise ValueError(f"{source}: the verdict {found['verdict']!r} does not go with {wrong or 'no'} wrong cases")
    return {key: found[key] for key in (*KEYS, *_OPTIONAL) if key in found}


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


def add(folder: Path, file: Path) -> Path:
    """Put a run's report into the folder, under the name of its plugin and device; gives the path."""
    result = read(file.read_text(encoding="utf-8"), str(file))
    path = folder / file_name(result)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def file_name(result: Mapping[str, Any]) -> str:
    """The name of a result's file: one for each plugin and device."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{result['backend']} {_device(result)}".lower()).strip("-")
    return f"{words}.json"


def render(results: List[Dict[str, Any]]) -> str:
    """The page."""
    head = ("plugin", "provided by", "device", "date", "verdict", "passed", "unsupported", "expected to fail", "wrong")
    lines = [_HEAD.rstrip(), "", _line((*head, "with")), _line(["---"] * (len(head) + 1))]
    lines += [_line(_cells(result)) for result in results]
    return "\n".join(lines) + "\n" + _TAIL


def _cells(result: Mapping[str, Any]) -> List[str]:
    counts, versions = result["counts"], result["versions"]
    passed, unsupported, expected = (str(counts.get(one, 0)) for one in ("passed", "unsupported", "xfailed"))
    with_ = ", ".join(f"{name} {versions[name]}" for name in ("spikecore", "torch") if name in versions)
    return [
        f"`{result['backend']}`",
        str(versions.get("distribution", "")),
        _device(result),
        str(result["date"])[:10],
        str(result.get("summary", result["verdict"])),
        passed,
        unsupported,
        expected,
        str(sum(counts.get(outcome, 0) for outcome in WRONG)),
        with_,
    ]


def _device(result: Mapping[str, Any]) -> str:
    device: Any = result["device"]
    if not isinstance(device, dict):
        return str(device)
    where, called = str(device.get("device", "")), str(device.get("name", ""))
    return f"{where}: {called}" if called and called != where else where


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
