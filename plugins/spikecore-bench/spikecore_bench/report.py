"""Report of a run: rows, and the machine they were measured on. A report is data, and is the same after JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple, Union

from spikecore.files import replacing

#: Version of the JSON. A reader refuses an unknown one.
SCHEMA = 2
#: Schema 1 calls the implementations "contenders", the implementation of a row "contender".
_FIRST_SCHEMA = 1
#: ``ok``: measured. ``differs``: measured, but a peer that computes something else, which ``detail`` describes.
#: ``wrong``: a backend that does not compute what the reference computes; never timed. ``unsupported``: it says that it
#: does not do this. ``failed``: it raised. ``skipped``: left out on purpose.
#: ``printed``: figures of a document, measured by its authors on their machine.
STATUSES = ("ok", "differs", "printed", "wrong", "unsupported", "failed", "skipped")
#: Rows with one of these have figures.
MEASURED = ("ok", "differs", "printed")

Fact = Union[str, int, float, None]


@dataclass(frozen=True)
class Row:
    """One implementation in one case."""

    suite: str
    #: Measured case: neuron, dtype, steps, neurons; or network, dtype, steps, batch.
    case: Mapping[str, Fact]
    implementation: str
    status: str
    #: Reason for the status, in words; for ``ok``, remarks.
    detail: str = ""
    #: Name -> number; see docs/benchmarks/README.md for each.
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} must be one of {', '.join(STATUSES)}")


@dataclass(frozen=True)
class Availability:
    """One line of the list of implementations: what could be measured, or why not."""

    name: str
    #: ``backend``, ``peer`` or ``yardstick``.
    kind: str
    #: ``ready``, or why not in a word: ``missing``, ``unavailable``, ``failed``, ``left out``, ...
    state: str
    version: str = ""
    detail: str = ""


@dataclass
class Report:
    """Everything that a run found. Rows are added as they are measured."""

    machine: Dict[str, Fact]
    settings: Dict[str, Any]
    implementations: List[Availability] = field(default_factory=list)
    rows: List[Row] = field(default_factory=list)
    #: False while it runs, and in the file of a run that was interrupted.
    complete: bool = False

    def of(self, suite: str) -> List[Row]:
        """The rows of one suite."""
        return [row for row in self.rows if row.suite == suite]

    def cases(self, suite: str) -> List[Tuple[Mapping[str, Fact], List[Row]]]:
        """The cases of a suite in the order in which they were measured, each with its rows."""
        found: Dict[str, Tuple[Mapping[str, Fact], List[Row]]] = {}
        for row in self.of(suite):
            found.setdefault(json.dumps(row.case, sort_keys=True), (row.case, []))[1].append(row)
        return list(found.values())

    def to_json(self) -> str:
        """The report as text; :func:`from_json` reads it."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write the JSON; a file that is there is replaced as a whole or not at all."""
        with replacing(path) as file:
            file.write(self.to_json().encode("utf-8"))


def from_json(text: str) -> Report:
    """The report that :meth:`Report.to_json` wrote, now or with schema 1. Raises ValueError for anything else."""
    held = json.loads(text)
    schema = held.pop("schema", None) if isinstance(held, dict) else None
    if schema not in (_FIRST_SCHEMA, SCHEMA):
        raise ValueError(f"this is no report of spikecore bench with schema {_FIRST_SCHEMA} or {SCHEMA}")
    if schema == _FIRST_SCHEMA:
        held["implementations"] = held.pop("contenders")
        for row in held["rows"]:
            row["implementation"] = row.pop("contender")
    held["rows"] = [Row(**row) for row in held["rows"]]
    held["implementations"] = [Availability(**one) for one in held["implementations"]]
    return Report(**held)
