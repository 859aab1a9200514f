"""Writes the tables of the pages about the field's benchmarks from the files of ``spikecore bench --json`` beside them.

python docs/benchmarks/tables.py

A page has a line ``<!-- table: FILE -->`` before each table and ``<!-- end -->`` behind it. With ``<!-- table: FILE
bfloat16 -->`` only the cases of a dtype are in the table; of the suite ``online`` with ``rules`` or ``memory`` those.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from spikecore_bench.report import MEASURED, Report, Row, from_json

HERE = Path(__file__).parent
PAGES = ("open-neuromorphic.md", "shd.md", "online.md", "README.md")
_BLOCK = re.compile(r"(<!-- table: (\S+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_VERSIONS = (
    *("torch", "cuda", "cupy", "triton", "numba", "jax"),
    *("spikingjelly", "snntorch", "norse", "sinabs", "rockpool", "spyx", "braintrace"),
)


def three(value: float) -> str:
    """A time with three digits."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def linear(row: Row) -> str:
    """A cell of the linear layer: forward, forward and backward, and the bound's share of it."""
    figures = row.figures
    times = f"{three(figures['forward_ms'])} / **{three(figures['training_ms'])}**"
    return f"{times} ({figures['training_over_bound']:.2f})"


def classifier(row: Row) -> str:
    """A cell of the classifier: a step, and an epoch's."""
    figures = row.figures
    epoch = f" ({three(figures['epoch_s'])} s)" if "epoch_s" in figures else ""
    return f"**{three(figures['step_ms'])}**{epoch}"


_CELLS = {"open-neuromorphic": linear, "shd": classifier}


def heading(case: Mapping[str, Any]) -> str:
    """What a column is."""
    if "network" in case:
        return f"H = {case['network'].split('-')[1]}, B = {case['batch']}"
    return f"n = {case['neurons']:,}"


def bound(suite: str, rows: List[Row], of: str) -> str:
    """A column's cell of the bound; ``of`` is ``bound``, or ``peak`` for that of the data sheet."""
    figures = next(row.figures for row in rows if row.status in MEASURED)
    kinds = ("step",) if suite == "shd" else ("forward", "training")
    return " / ".join(three(figures[f"{kind}_{of}_ms"]) for kind in kinds)


def table(report: Report, dtype: str) -> str:
    """The cases of a report as columns, and below it the machine and what rows with a star compute."""
    (suite,) = {row.suite for row in report.rows}
    if suite == "online":
        return online(report, dtype)
    if suite == "single":
        return single(report)
    cases = [(case, rows) for case, rows in report.cases(suite) if dtype in ("", case["dtype"])]
    names: Dict[str, Tuple[float, str]] = {}
    for _, rows in cases:
        for row in rows:
            if row.status in MEASURED:
                star = " *" if row.status == "differs" else ""
                time = row.figures.get("training_ms", row.figures.get("step_ms", 0.0))
                names.setdefault(row.implementation, (time, star))
    lines = [["", *(heading(case) for case, _ in cases)], ["---"] * (1 + len(cases))]
    lines.append(["bound of the arithmetic", *(bound(suite, rows, "bound") for _, rows in cases)])
    if any(name.endswith("_peak_ms") for name in report.rows[0].figures):
        lines.append(["the same by the data sheet", *(bound(suite, rows, "peak") for _, rows in cases)])
    for name, (_, star) in sorted(names.items(), key=lambda item: item[1][0]):
        of_cases = [next((row for row in rows if row.implementation == name), None) for _, rows in cases]
        cells = [_CELLS[suite](row) if row is not None and row.status in MEASURED else "" for row in of_cases]
        lines.append([name + star, *cells])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\n{machine(report)}\n\n{details([row for _, rows in cases for row in rows])}"


def online(report: Report, part: str) -> str:
    """The rules as columns, or the numbers of steps: a cell has single steps and chunks, or MiB."""
    in_memory = part == "memory"
    cases = [(case, rows) for case, rows in report.cases("online") if ("rule" not in case) == in_memory]
    headings = [f"T = {case['steps']:,}" if in_memory else case["rule"] for case, _ in cases]
    lines = [["", *headings], ["---"] * (1 + len(cases))]
    every = [row for _, rows in cases for row in rows]
    for name in dict.fromkeys(row.implementation for row in every if row.status in MEASURED):
        of_cases = [next((row for row in rows if row.implementation == name), None) for _, rows in cases]
        lines.append([name, *(online_cell(row) if row is not None and row.figures else "" for row in of_cases)])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    steps = "" if in_memory else f"; T = {cases[0][0]['steps']}"
    return f"{text}\n{versions(report)}{steps}; {report.machine['date']}.\n\n{details(every)}"


def online_cell(row: Row) -> str:
    """A cell: MiB, or microseconds per step, each with the ratio to the loop by hand."""
    figures = row.figures
    if "memory_mib" in figures:
        return three(figures["memory_mib"])
    kinds = [kind for kind in ("step", "chunk") if f"{kind}_us" in figures]
    cells = [f"{three(figures[f'{kind}_us'])} ({figures[f'{kind}_over_plain']:.2f})" for kind in kinds]
    return " / ".join(cells if len(kinds) == 2 else ["–", *cells])


def single(report: Report) -> str:
    """Single steps: a cell has microseconds without and with gradients, each with the ratio to the plain step."""
    cases = report.cases("single")
    headings = [f"{case['neuron']}, [{case['batch']}, {case['neurons']}]" for case, _ in cases]
    lines = [["", *headings], ["---"] * (1 + len(cases))]
    for name in dict.fromkeys(row.implementation for _, rows in cases for row in rows if row.status in MEASURED):
        of_cases = [next(row for row in rows if row.implementation == name).figures for _, rows in cases]
        cells = [
            " / ".join(
                f"{three(cell[f'{kind}_us'])} ({cell[f'{kind}_over_plain']:.2f})" for kind in ("forward", "training")
            )
            for cell in of_cases
        ]
        lines.append([name, *cells])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\n{machine(report)}\n\n{details([row for _, rows in cases for row in rows])}"


def machine(report: Report) -> str:
    """One line about the machine and the versions."""
    return f"{versions(report)}; T = {report.rows[0].case['steps']}; {report.machine['date']}."


def versions(report: Report) -> str:
    """The machine, and the versions of libraries."""
    facts = report.machine
    there = ", ".join(f"{name} {facts[name]}" for name in _VERSIONS if facts.get(name))
    threads = f", {facts['threads']} thread(s)" if str(facts["device"]).startswith("cpu") else ""
    return f"{facts['device_name']}{threads}; {there}"


def details(rows: List[Row]) -> str:
    """What rows say in words, once each; of what fails, how."""
    said: Dict[Tuple[str, str], str] = {}
    for row in rows:
        if row.detail:
            failed = f"{row.status}: " if row.status not in MEASURED else ""
            said.setdefault((row.implementation.partition(", ")[0], failed), f"{failed}{row.detail}")
    return "".join(f"- {name}: {detail}\n" for (name, _), detail in said.items())


def render(page: str) -> str:
    """A page with its tables as the files have them."""

    def block(match: Any) -> str:
        report = from_json((HERE / match[2]).read_text(encoding="utf-8"))
        return f"{match[1]}\n{table(report, match[3] or '')}\n{match[4]}"

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    for path in (HERE / page for page in PAGES):
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)
