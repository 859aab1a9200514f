"""The table of accelerators.md: statements of docs/results/status and runs of the suite, a row for each accelerator and
backend.

README.md in this folder has the schema of a statement, which :func:`check` holds.
"""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

Row = Mapping[str, Any]

#: From best to worst.
STATUSES = ("tested", "emulated", "compiled", "untested")
VERDICTS = ("conforms", "partial")
#: Keys of a statement: statuses that need the key, and further ones that may have it.
KEYS: Mapping[str, Tuple[Sequence[str], Sequence[str]]] = {
    "accelerator": (STATUSES, ()),
    "backend": (STATUSES, ()),
    "status": (STATUSES, ()),
    "summary": (STATUSES[:3], STATUSES),
    "date": (STATUSES[:3], ()),
    "device": (STATUSES[:2], ()),
    "verdict": (STATUSES[:2], ()),
    "targets": (("compiled",), ()),
    "compiler": (("compiled",), ()),
    "repeated": ((), ("compiled",)),
    "command": (STATUSES[1:], STATUSES),
    "note": ((), STATUSES),
}
#: Accelerators in the order of the page; others stand behind them.
ORDER = (
    "any CPU",
    "NVIDIA GPU",
    "AMD GPU",
    "Intel GPU",
    "Intel Gaudi",
    "Apple GPU",
    "ARM GPU (Mali)",
    "Qualcomm GPU (Adreno)",
    "TPU",
    "Graphcore IPU",
    "another device that torch names",
)
#: Device type of torch -> accelerator. A GPU of AMD has the type cuda, too.
OF_DEVICE = {
    "cpu": "any CPU",
    "cuda": "NVIDIA GPU",
    "mps": "Apple GPU",
    "xpu": "Intel GPU",
    "hpu": "Intel Gaudi",
    "ipu": "Graphcore IPU",
}
#: Backend -> its cell.
OF_BACKEND = {
    "torch": "`torch`, built in",
    "cupy": "`cupy`, built in",
    "ipu": "[`ipu`](ipu.md), built in",
    **{
        name: f"`{name}`, of [spikecore-{name}](../plugins/spikecore-{name}/README.md)"
        for name in ("numba", "opencl", "jax", "triton", "c")
    },
}
OF_BACKEND["c"] += ", for authors of backends"
OF_BACKEND["metal"] = "`metal`, of [spikecore-c](../plugins/spikecore-c/README.md#apple-gpus-metal)"
FIRST, HEAD = "| you have | backend |", "| you have | backend | what was run, or the command that runs it |"


# -- statements


def check(statement: Any) -> Dict[str, Any]:
    """The statement. Raises ``ValueError``, with key, value and the way out, for one that breaks the schema."""
    if not isinstance(statement, dict):
        raise ValueError(f"a statement is a JSON object with {', '.join(KEYS)}, not {statement!r}")
    status = statement.get("status")
    if status not in STATUSES:
        raise ValueError(f"status: {status!r} is none; write one of {', '.join(STATUSES)}")
    unknown = sorted({*statement} - {*KEYS})
    if unknown:
        raise ValueError(f"{unknown[0]}: {statement[unknown[0]]!r} has no meaning; keys are {', '.join(KEYS)}")
    for key, (needed, allowed) in KEYS.items():
        if key not in statement:
            if status in needed:
                raise ValueError(f"{key}: is missing; a statement {status!r} needs it (docs/results/README.md)")
        elif status not in (*needed, *allowed):
            raise ValueError(f"{key}: {statement[key]!r} does not belong into a statement {status!r}; leave it out")
        else:
            _check_value(key, statement[key])
    return statement


def _check_value(key: str, value: Any) -> None:
    texts = value if key == "targets" and isinstance(value, list) and value else [value]
    if any(not isinstance(text, str) or not text.strip() or "\n" in text or "|" in text for text in texts):
        form = "a list of texts" if key == "targets" else "a text"
        raise ValueError(f"{key}: {value!r} is not {form}; write it in one line, not empty, without '|'")
    if key == "targets" and texts is not value:
        raise ValueError(f"{key}: {value!r} is not a list of texts; write [{value!r}]")
    if key == "backend" and not re.fullmatch(r"[a-z][a-z0-9_]*", value):
        raise ValueError(f"backend: {value!r} is no name of a backend; write it as `spikecore backends` lists it")
    if key == "date":
        try:
            right = date.fromisoformat(value).isoformat() == value
        except ValueError:
            right = False
        if not right:
            raise ValueError(f"date: {value!r} is no day; write it as 2026-11-23")
    if key == "verdict" and value not in VERDICTS:
        raise ValueError(f"verdict: {value!r} is none that can be listed; write one of {', '.join(VERDICTS)}")


def file_name(statement: Row) -> str:
    """The name of a statement's file."""
    words = f"{statement['backend']} {statement['accelerator']} {statement['status']}".lower()
    return f"{re.sub('[^a-z0-9]+', '-', words).strip('-')}.json"


def load(folder: Path) -> List[Dict[str, Any]]:
    """The statements of a folder. Raises ``ValueError`` for a file that is none, or that has not its own name."""
    statements = []
    for path in sorted(folder.glob("*.json")):
        try:
            statements.append(check(json.loads(path.read_text(encoding="utf-8"))))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if path.name != file_name(statements[-1]):
            raise ValueError(f"{path}: must be called {file_name(statements[-1])}, after what it is about: rename it")
    return statements


def accelerator_of(report: Row) -> str:
    """The accelerator that a report of the suite is about. Raises ``ValueError`` for a device that is not known."""
    if not known(report):
        device = report["device"]["device"]
        raise ValueError(f"device: {device!r} is of no known accelerator; name it: --accelerator 'NAME'")
    return known(report)


def known(report: Row) -> str:
    """The accelerator of the device that a report or a result names, "" for another device."""
    device = str(report["device"]["device"]).partition(":")[0]
    amd = "rocm" in report["versions"]["torch"] or report["device"]["name"].startswith("AMD")
    return "AMD GPU" if device == "cuda" and amd else OF_DEVICE.get(device, "")


# -- the page


def table(results: Iterable[Row], statements: Iterable[Row]) -> List[str]:
    """The lines of the table. A row shows what is known of its best status."""
    rows: Dict[Tuple[str, str], List[Tuple[str, str]]] = {}
    for result in sorted(results, key=lambda result: str(result["device"]["name"])):
        place = result["accelerator"], result["backend"]
        rows.setdefault(place, []).append((result["status"], _of_run(result)))
    for statement in statements:
        place = statement["accelerator"], statement["backend"]
        rows.setdefault(place, []).append((statement["status"], _of_statement(statement)))
    lines = [HEAD, "|---|---|---|"]
    for accelerator, backend in sorted(rows, key=_place):
        known = rows[accelerator, backend]
        best = min((status for status, _ in known), key=STATUSES.index)
        cell = "<br>".join(text for status, text in known if status == best)
        lines.append(f"| {accelerator} | {OF_BACKEND.get(backend, f'`{backend}`')} | {cell} |")
    return lines


def _place(row: Tuple[str, str]) -> Tuple[int, str, int, str]:
    accelerator, backend = row
    first = ORDER.index(accelerator) if accelerator in ORDER else len(ORDER)
    return first, accelerator, [*OF_BACKEND, backend].index(backend), backend


def _of_run(result: Row) -> str:
    """Text of a run of the suite."""
    page = f"[whole suite](conformance/{result['backend']}.md)"
    summary = result["summary"].rstrip(".").replace("|", "/")
    command = _with_device(result["status"], f"spikecore conformance {result['backend']}")
    name = result["device"]["name"].replace("(R)", "")
    return f"**{_word(result)}**: {page}, {name}, {day(result['date'])}: {summary}{command}"


def _of_statement(statement: Row) -> str:
    """Text of a statement."""
    status, note = statement["status"], f" ({statement['note']})" if "note" in statement else ""
    summary = f": {statement['summary']}" if "summary" in statement else ""
    if status == "untested":
        return f"**untested**{summary}: `{statement['command']}`{note}"
    if status == "compiled":
        again = f" and in every `{statement['repeated']}`" if "repeated" in statement else ""
        by = f"{', '.join(statement['targets'])}, by {statement['compiler']}, {day(statement['date'])}{again}"
        return f"**compiled, not run**: {by}{summary}; `{statement['command']}`{note}"
    ran = f"{statement['device']}, {day(statement['date'])}: {statement['verdict']}{summary}{note}"
    return f"**{_word(statement)}**: {ran}{_with_device(status, statement.get('command', ''))}"


def _word(row: Row) -> str:
    """Word for a verdict."""
    if row["status"] == "emulated":
        return "on its emulator"
    return {"conforms": "tested", "partial": "tested in part"}.get(row["verdict"], str(row["verdict"]))


def _with_device(status: str, command: str) -> str:
    """The command that tests on the device what an emulator ran."""
    return f"; with the device: `{command}`" if status == "emulated" else ""


def day(text: str) -> str:
    """A date as pages write it."""
    at = date.fromisoformat(text[:10])
    return f"{at.day} {at:%B} {at.year}"


def put_into(page: str, lines: Sequence[str]) -> str:
    """The page with these lines in the place of its table. Raises ``ValueError`` for a page without one."""
    before, found, rest = page.partition(FIRST)
    if not found:
        raise ValueError(f"accelerators.md has no table that begins with {FIRST!r}: put that line where it belongs")
    return f"{before}{chr(10).join(lines)}\n\n{rest.partition(chr(10) * 2)[2]}"
