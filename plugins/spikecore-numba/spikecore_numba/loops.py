"""Loops that are written by hand, of which each dtype has a text of its own."""

from __future__ import annotations

import struct
from typing import Callable, NamedTuple, Tuple

import torch

from spikecore.kernels.writing import Argument, indented
from spikecore_numba.compiler import Function, compiled
from spikecore_numba.writer import STORAGE, Source


class Loop(NamedTuple):
    """A compiled loop, and what packs its arguments."""

    run: Function
    pack: Callable[..., bytes]


class Text(NamedTuple):
    """A kernel as text, in which ``READ(...)`` is a number in memory as one of arithmetic."""

    name: str
    #: Names of its arguments that are whole numbers.
    head: Tuple[str, ...]
    own: Tuple[Argument, ...]
    body: str

    def source(self, dtype: torch.dtype) -> Source:
        """The text for inputs of a dtype."""
        storage = STORAGE.get(dtype)
        names = ", ".join((*self.head, *(argument.name for argument in self.own)))
        body = self.body.strip("\n").replace("READ(", f"from_{storage}(" if storage else "(")
        lines = [
            f'"""{self.name.replace("_", " ").capitalize()}; {str(dtype)[6:]} in memory."""',
            "",
            *(["import math", ""] if "math." in body else []),
            *([f"from spikecore_numba.functions import from_{storage}", ""] if f"from_{storage}(" in body else []),
            "",
            f"def {self.name}({names}):",
            *indented(body.split("\n")),
        ]
        return Source(self.name, "\n".join(lines) + "\n", self.head, self.own, 0)

    def compiled(self, dtype: torch.dtype, compute: torch.dtype) -> Loop:
        """The loop for inputs of a dtype, and arithmetic in another one."""
        kinds = ["d" if argument.kind == "number" else "q" for argument in self.own]
        pack = struct.Struct("q" * len(self.head) + "".join(kinds)).pack
        return Loop(compiled(self.source(dtype), dtype, compute), pack)


def pointers(group: str, *names: str) -> Tuple[Argument, ...]:
    """Arguments that point to numbers of a group."""
    return tuple(Argument(name, "pointer", group) for name in names)


#: The sums of a parameter per channel, of what groups of neurons left; eight are added side by side, in float64.
TOTALS = Text(
    "channel_totals",
    ("span", "inner", "channels"),
    pointers("sums", "parts", "totals"),
    """
rows = span // (inner * channels)
for c in range(channels):
    totals[c] = 0.0
for row in range(rows):
    if inner == 1:
        for c in range(channels):
            totals[c] += parts[row * channels + c]
    else:
        for c in range(channels):
            start = (row * channels + c) * inner
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
            for i in range(inner // 8):
                at = start + 8 * i
                a0 += parts[at]
                a1 += parts[at + 1]
                a2 += parts[at + 2]
                a3 += parts[at + 3]
                a4 += parts[at + 4]
                a5 += parts[at + 5]
                a6 += parts[at + 6]
                a7 += parts[at + 7]
            for i in range(inner // 8 * 8, inner):
                a0 += parts[start + i]
            totals[c] += ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
""",
)

#: The sums of an input that broadcasts at each step, of what groups of neurons left, in the dtype of arithmetic: first
#: in long rows, a multiple of the period, which become vector instructions.
STEP_TOTALS = Text(
    "step_totals",
    ("steps", "span", "long", "period"),
    pointers("sums", "parts", "totals"),
    """
for t in range(steps):
    start = t * span
    for row in range(start + long, start + span, long):
        for i in range(min(long, start + span - row)):
            parts[start + i] += parts[row + i]
    if period == 1:
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
        for i in range(long // 8):
            at = start + 8 * i
            a0 += parts[at]
            a1 += parts[at + 1]
            a2 += parts[at + 2]
            a3 += parts[at + 3]
            a4 += parts[at + 4]
            a5 += parts[at + 5]
            a6 += parts[at + 6]
            a7 += parts[at + 7]
        for i in range(long // 8 * 8, long):
            a0 += parts[start + i]
        totals[t] = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
    else:
        for i in range(period):
            totals[t * period + i] = parts[start + i]
        for row in range(start + period, start + long, period):
            for i in range(period):
                totals[t * period + i] += parts[row + i]
""",
)
