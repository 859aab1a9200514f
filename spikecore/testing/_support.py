"""The support table of the documentation, made from results and never by hand.

It holds no times, no versions and nothing of the machine, so the same code makes the same text. A run remakes the
column of the backend it tests and leaves the others as they were: no machine has every accelerator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from spikecore._plugins.registry import default_registry
from spikecore.backend import BackendError, BackendInfo, Capabilities
from spikecore.testing._cases import CASES
from spikecore.testing._models import MODELS
from spikecore.testing._pages import COMMAND, put
from spikecore.testing._verdict import Result

#: Families of core cases that there are of every neuron.
_PER_NEURON = ("forward", "exact", "bits", "single-step", "gradient")
#: The row of device types, and the section of reasons.
_DEVICES, _REASONS = "device types", "Expected failures"

_HEAD = f"""# What each backend supports

Made by `{COMMAND}` from runs of the conformance suite; do not edit.

- **yes**: declared, and every case of it passed.
- **partly**: some cases are expected to fail; the reasons are below.
- **declared**: it has not been run yet.
- **no**: not declared; asking for it raises `Unsupported`.
- **wrong**: a case failed.
"""

#: What the table is made from. Its rows need no more, and the whole suite runs elsewhere.
TIERS = ("core", "dtypes", "parameters", "state", "language", "layouts", "robust", "compile")


@dataclass
class Column:
    """What the page says of one backend: a word for each row, and the reasons of what is expected to fail."""

    cells: Dict[str, str] = field(default_factory=dict)
    reasons: List[str] = field(default_factory=list)


def _sections() -> Dict[str, Dict[str, Tuple[Set[str], Tuple[str, ...]]]]:
    """The rows of each table: the cases that decide a cell, and the capabilities without which it is no."""
    neurons = sorted({model.neuron.__name__ for model in MODELS}, key=str.lower)
    models: Dict[str, Tuple[Set[str], Tuple[str, ...]]] = {f"`{name}`": (_of_neuron(name), ()) for name in neurons}
    models["all surrogates"] = ({case.id for case in CASES if case.id.startswith("surrogate/")}, ("gradients",))
    models["neurons of your own"] = ({case.id for case in CASES if case.tier == "language"}, ())
    capabilities: Dict[str, Tuple[Set[str], Tuple[str, ...]]] = {
        f"`{name}`": ({case.id for case in CASES if name in case.needs}, (name,))
        for name in Capabilities.__dataclass_fields__
    }
    return {"Neurons and surrogates": models, "Capabilities": capabilities, "Devices": {_DEVICES: (set(), ())}}


def _of_neuron(neuron: str) -> Set[str]:
    found: Set[str] = set()
    names = sorted((model.name for model in MODELS), key=len, reverse=True)
    mine = {model.name for model in MODELS if model.neuron.__name__ == neuron}
    for case in CASES:
        family, _, variant = case.id.partition("/")
        model = next((name for name in names if variant == name or variant.startswith(f"{name}-")), None)
        if case.tier == "core" and family in _PER_NEURON and model in mine:
            found.add(case.id)
    return found


def column(info: BackendInfo, results: Optional[Sequence[Result]], can: Optional[Capabilities] = None) -> Column:
    """What a backend says about itself and what its results say; None where it could not run.

    ``can``: what it declares on the device of the results; by default on any.
    """
    made = Column()
    can = info.capabilities if can is None else can
    for rows in _sections().values():
        for label, (ids, needs) in rows.items():
            made.cells[label] = _cell(can, results, ids, needs)
    made.cells[_DEVICES] = "any" if "*" in info.devices else ", ".join(info.devices)
    by_reason: Dict[str, List[str]] = {}
    for result in results or ():
        if result.outcome == "xfailed":
            by_reason.setdefault(result.message, []).append(f"`{result.id}`")
    made.reasons = [f"{reason} ({', '.join(ids)})" for reason, ids in by_reason.items()]
    return made


def _cell(can: Capabilities, results: Optional[Sequence[Result]], ids: Set[str], needs: Tuple[str, ...]) -> str:
    if any(not getattr(can, need) for need in needs):
        return "no"
    if results is None:
        return "declared"
    ran = [result for result in results if result.id in ids]
    if any(not result.ok for result in ran):
        return "wrong"
    if any(result.outcome == "xfailed" for result in ran):
        return "partly"
    return "yes" if any(result.outcome == "passed" for result in ran) else "no"


def render(columns: Mapping[str, Column]) -> str:
    """The page."""
    names = sorted(columns)
    lines = [_HEAD.rstrip()]
    for title, rows in _sections().items():
        lines += ["", f"## {title}", "", _row("", names), _row("---", ["---"] * len(names))]
        lines += [_row(label, [columns[name].cells.get(label, "declared") for name in names]) for label in rows]
    reasons = [f"- {name}: {reason}" for name in names for reason in columns[name].reasons]
    if reasons:
        lines += ["", f"## {_REASONS}", "", *reasons]
    return "\n".join(lines) + "\n"


def _row(first: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([first, *cells]) + " |"


def read(text: str) -> Dict[str, Column]:
    """The columns of a page that :func:`render` made."""
    columns: Dict[str, Column] = {}
    names: List[str] = []
    for line in text.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else [line]
        if cells and not first:
            names = cells
        elif cells and first != "---":
            for name, cell in zip(names, cells):
                columns.setdefault(name, Column()).cells[first] = cell
        elif line.startswith("- ") and ": " in line and line[2 : line.index(": ")] in columns:
            name, reason = line[2:].split(": ", 1)
            columns[name].reasons.append(reason)
    return columns


def complete(results: Sequence[Result]) -> bool:
    """Whether these results decide every cell of a column."""
    return {case.id for case in CASES if case.tier in TIERS} <= {result.id for result in results}


def update(page: Path, name: str, results: Sequence[Result], device: str) -> List[str]:
    """Remake the backend's column of the page, which is made if there is none; others stay as they are. The results are
    of a whole run. Gives a line that says what became of the page.

    Nothing changes where a result is wrong, which helps nobody in a table, or where the backend is not installed here.
    """
    if not all(result.ok for result in results):
        return [f"{page} stays as it is: a case is wrong"]
    try:
        made = _made(name, results, device)
    except BackendError as error:
        return [f"{page} stays as it is: {error}"]
    columns = read(page.read_text(encoding="utf-8") if page.exists() else "")
    return put(page, render({**columns, name: made}))


def _made(name: str, results: Sequence[Result], device: str) -> Column:
    registry = default_registry()
    can = registry.get(name, "the support table").capabilities_on(torch.device(device).type)
    info = registry.info(name, "the support table")
    return column(info, [result for result in results if result.tier in TIERS], can)


def stale(path: str, name: str, results: Sequence[Result], device: str) -> Optional[str]:
    """What to do where a backend's column of the page at ``path`` is not what these results make; None if it is.

    The results are complete (:func:`complete`), and were computed on ``device``.
    """
    made = _made(name, results, device)
    have = read(Path(path).read_text(encoding="utf-8")).get(name)
    if have == made:
        return None
    cells = have.cells if have else {}
    other = [
        f"{row} ({cells.get(row, 'missing')}, now {cell})" for row, cell in made.cells.items() if cells.get(row) != cell
    ]
    what = ", ".join(other) if other else "the reasons of expected failures"
    return f"{path} is out of date for {name}: {what}; run: {COMMAND}"
