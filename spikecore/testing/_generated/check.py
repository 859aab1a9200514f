"""One row on a backend, compared with the oracle; where it fails, the simplest row that fails in the same way."""

from __future__ import annotations

import re
from functools import partial
from typing import Optional, Tuple

import numpy as np

from spikecore.backend import Unsupported
from spikecore.testing._context import Context
from spikecore.testing._generated.make import case_of
from spikecore.testing._generated.row import Row
from spikecore.testing._generated.shrink import Shrunk, shrunk
from spikecore.testing._subnormal import ALONE, foremost
from spikecore.testing.random_programs._call import Difference, by_call
from spikecore.testing.random_programs._case import Case
from spikecore.testing.random_programs._comparison import compare, compared
from spikecore.testing.random_programs._tree import source

#: Ids of rows: this and the row's text.
PREFIX = "generated/"


def check_row(row: Row, backend: str, device: str) -> None:
    """Raise :class:`Difference` where results or gradients of a row differ, and whatever the backend raises."""
    compare_all(case_of(row), backend, device)


def compare_all(case: Case, backend: str, device: str) -> None:
    """Raise :class:`Difference` where results or gradients of a case differ. No gradient stands for zeros."""
    found = compared(case, by_call(case, backend, device), False)
    foremost(
        [
            partial(compare, what, np.zeros(wanted.shape) if ours is None else ours, wanted, tolerance, "")
            for what, ours, wanted, tolerance in found
        ],
        Difference,
    )


def holds(context: Context, row: Row) -> None:
    """The case of a row. What it raises tells of the simplest row that fails in the same way."""
    try:
        check_row(row, context.name, str(context.device))
    except Unsupported:
        raise
    except Exception as error:
        found = shrunk(row, lambda other: _failure(other, context), _kind(error))
        last = found.error or error
        text = f"{str(last).rstrip()}\n{_told(found, context.name)}"
        if isinstance(error, Difference):
            raise Difference(text) from error
        raise _with_text(last, text) from error


def _failure(row: Row, context: Context) -> Optional[Tuple[str, Exception]]:
    """How a row fails, if it does: its kind, and what was raised."""
    try:
        check_row(row, context.name, str(context.device))
    except Exception as error:
        return _kind(error), error
    return None


def _kind(error: Exception) -> str:
    """Failures of one kind are taken for one fault."""
    if isinstance(error, Difference):
        if ALONE in str(error):
            return "subnormals"
        return "gradients" if str(error).startswith("gradient") else "values"
    return type(error).__name__


def _with_text(error: Exception, text: str) -> Exception:
    """The same exception, which says more."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (text,)
    return error


def _told(found: Shrunk, backend: str) -> str:
    case = case_of(found.row)
    tree = case.tree
    return (
        f"\n  {found}\n"
        f"  its tensors: {_tensors(case)}\n"
        f"  its program: inputs {tree.inputs}, states {tree.states}, parameters {_values(case)}\n\n"
        + re.sub("^", "    ", source(tree).rstrip(), flags=re.MULTILINE)
        + f"\n\n  this row alone: spikecore conformance {backend} --case {PREFIX}{found.row}"
    )


def _tensors(case: Case) -> str:
    wanted = [name for name, asked in zip(("inputs", "state"), case.wanted) if asked]
    given = ", ".join(f"{name} {layout}" for name, layout in case.around.cotangent_layouts.items()) or "none"
    return (
        f"[{len(case.inputs[0])}, {', '.join(map(str, case.shape))}] of {case.dtype}, learn {case.learn}, "
        f"gradients of {' and '.join(wanted) or 'no tensor'}, cotangents: {given}"
    )


def _values(case: Case) -> str:
    return ", ".join(
        f"{name} {case.kinds[name]}" + (f" {value.reshape(-1)[0]!r}" if value.size else "")
        for name, value in case.params.items()
    )
