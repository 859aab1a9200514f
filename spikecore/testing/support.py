"""The support table of the documentation, made from results and never by hand.

It holds no times, no versions and nothing of the machine, so the same code makes the same text. A backend that cannot
run on the machine that makes it is shown with what it declares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from spikecore.backend import BackendError, BackendInfo, BackendUnavailable, Capabilities
from spikecore.registry import default_registry
from spikecore.testing.cases import CASES
from spikecore.testing.models import MODELS
from spikecore.testing.runner import Result, check_backend, conforms

#: Families of core cases that there are of every neuron.
_PER_NEURON = ("forward", "exact", "bits", "single-step", "gradient")
#: How the table is made anew.
COMMAND = "spikecore conformance --write-support docs/support.md"

_HEAD = f"""# What each backend supports

Made by `{COMMAND}` from a run of the conformance suite; do not edit.

- **yes**: declared, and every case of it passed.
- **partly**: some cases are expected to fail; the reasons are below.
- **declared**: the backend could not run where this table was made.
- **no**: not declared; asking for it raises `Unsupported`.
- **wrong**: a case failed.
"""


def support_table(infos: Sequence[BackendInfo], results: Mapping[str, Sequence[Result]]) -> str:
    """The page, from what the backends say about themselves and the results of those that could run."""
    names = [info.name for info in infos]
    lines = [_HEAD, "## Neurons and surrogates", "", *_header("", names)]
    neurons = sorted({model.neuron.__name__ for model in MODELS}, key=str.lower)
    lines += [_row(f"`{name}`", [_cell(info, results, _of_neuron(name), ()) for info in infos]) for name in neurons]
    surrogates = {case.id for case in CASES if case.id.startswith("surrogate/")}
    lines.append(_row("all surrogates", [_cell(info, results, surrogates, ("gradients",)) for info in infos]))
    custom = {case.id for case in CASES if case.tier == "language"}
    lines.append(_row("neurons of your own", [_cell(info, results, custom, ()) for info in infos]))
    lines += ["", "## Capabilities", "", *_header("", names)]
    for capability in Capabilities.__dataclass_fields__:
        needing = {case.id for case in CASES if capability in case.needs}
        lines.append(_row(f"`{capability}`", [_cell(info, results, needing, (capability,)) for info in infos]))
    lines += ["", "## Devices", "", *_header("", names)]
    lines.append(_row("device types", ["any" if "*" in info.devices else ", ".join(info.devices) for info in infos]))
    lines += _reasons(results)
    return "\n".join(lines) + "\n"


def _header(first: str, names: Sequence[str]) -> List[str]:
    return [_row(first, names), _row("---", ["---"] * len(names))]


def _row(first: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([first, *cells]) + " |"


def _of_neuron(neuron: str) -> Set[str]:
    found: Set[str] = set()
    names = sorted((model.name for model in MODELS), key=len, reverse=True)
    mine = {model.name for model in MODELS if model.neuron.__name__ == neuron}
    for case in CASES:
        family, _, rest = case.id.partition("/")
        model = next((name for name in names if rest == name or rest.startswith(f"{name}-")), None)
        if case.tier == "core" and family in _PER_NEURON and model in mine:
            found.add(case.id)
    return found


def _cell(info: BackendInfo, results: Mapping[str, Sequence[Result]], ids: Set[str], needs: Tuple[str, ...]) -> str:
    if any(not getattr(info.capabilities, need) for need in needs):
        return "no"
    if info.name not in results:
        return "declared"
    ran = [result for result in results[info.name] if result.id in ids]
    if any(not result.ok for result in ran):
        return "wrong"
    if any(result.outcome == "xfailed" for result in ran):
        return "partly"
    return "yes" if any(result.outcome == "passed" for result in ran) else "no"


def _reasons(results: Mapping[str, Sequence[Result]]) -> List[str]:
    by_reason: Dict[Tuple[str, str], List[str]] = {}
    for name, row in results.items():
        for result in row:
            if result.outcome == "xfailed":
                by_reason.setdefault((name, result.message), []).append(f"`{result.id}`")
    if not by_reason:
        return []
    lines = ["", "## Expected failures", ""]
    return lines + [f"- {name}: {reason} ({', '.join(ids)})" for (name, reason), ids in by_reason.items()]


def make_support(names: Optional[Sequence[str]] = None) -> str:
    """Run the suite against these backends, by default every built-in, and give the page.

    Raises ``BackendError`` for a backend that does not conform: a table of wrong results helps nobody.
    """
    registry = default_registry()
    infos = [registry.info(name, "the support table") for name in names or sorted(registry.builtins)]
    results: Dict[str, Sequence[Result]] = {}
    for info in infos:
        try:
            registry.get(info.name, "the support table")
        except BackendUnavailable:
            continue
        results[info.name] = check_backend(info.name)
        if not conforms(results[info.name]):
            wrong = next(result for result in results[info.name] if not result.ok)
            raise BackendError(f"backend {info.name!r} does not conform: {wrong.id}: {wrong.message}")
    return support_table(infos, results)


def is_stale(path: str, names: Optional[Sequence[str]] = None) -> Optional[str]:
    """None if the page at ``path`` is what would be made now, else what to do about it."""
    page = Path(path)
    have = page.read_text(encoding="utf-8") if page.exists() else ""
    return None if have == make_support(names) else f"{path} is out of date; run: {COMMAND}"
