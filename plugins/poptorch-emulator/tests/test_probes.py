"""Small functions, and what PopTorch 3.4 does with each by its source: the emulator agrees, or refuses and says why.

With those of ``test_probes_of_models`` they are fifty, by number. A probe returns what it computed. Its row says what
PopTorch gives: ``("is", value)``; ``("fails", text)``, an error that the emulator raises with PopTorch's text; or
``("silent", text)``: PopTorch computes something else than torch without a word, or what the emulator does not model,
and the emulator refuses with a sentence of its own.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from poptorch_emulator._trace import traced

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


def of(function, *tensors):
    """A probe that traces ``function`` and calls it."""
    return lambda: traced(function, *tensors)(*tensors)


def written(x):
    out = torch.zeros(2, 2)
    for t in range(2):
        out[t] = x[t]
    return out


def flat(x):
    y = x * 1
    y.view(-1).add_(1)
    return y


def row(x):
    y = x * 1
    y[0].add_(1)
    return y


def assigned(x):
    y = x * 1
    y[0] = x[1]
    return y


def unsqueezed(x):
    y = x * 1
    y.unsqueeze_(0)
    return y


NAN, INF = math.nan, math.inf
UNSUPPORTED = r"Unsupported ops found in compiled model: \[aten::{}\]"
LOST = "changed in place: in PopTorch a view has a value of its own"
SYMMETRIC = torch.tensor([7.0, -7.0])
SEVENS = torch.tensor([7, -7]), torch.tensor([2, 2])

#: Number, program, probe, what PopTorch does.
PROBES = [
    (4, "out = zeros(T, B); out[t] = ...", of(written, X), ("silent", "are constants for PopTorch.*torch.stack")),
    (5, "y.view(-1).add_(1) of an intermediate", of(flat, X), ("silent", LOST)),
    (6, "y[0].add_(1) of an intermediate", of(row, X), ("silent", LOST)),
    (7, "y[0] = ... of an intermediate", of(assigned, X), ("is", [[3, 4], [3, 4]])),
    (8, "x.unsqueeze_(0)", of(unsqueezed, X), ("silent", "changes the shape of a tensor in place, which the emulator")),
    (
        20,
        "torch.div(a, b, rounding_mode='floor')",
        of(lambda a: torch.div(a, 2.0, rounding_mode="floor"), SYMMETRIC),
        ("silent", "PopTorch ignores rounding_mode='floor'"),
    ),
    (
        21,
        "torch.trunc(3e9)",
        of(torch.trunc, torch.tensor([3e9])),
        ("silent", "aten::trunc of a number of 2.31 or more"),
    ),
    (22, "torch.frac(3e9)", of(torch.frac, torch.tensor([3e9])), ("silent", "aten::frac of a number of 2.31 or more")),
    (
        23,
        "x.var(0, correction=2)",
        of(lambda x: x.var(0, correction=2), torch.rand(4)),
        ("silent", "with correction=2 as"),
    ),
    (24, "log_sigmoid(-200)", of(F.logsigmoid, torch.tensor([-200.0])), ("is", [-INF])),
    (25, "triu of a value", of(torch.triu, X), ("fails", "only supported within constant expressions")),
    (26, "torch.xlogy", of(torch.xlogy, X, X), ("fails", UNSUPPORTED.format("xlogy"))),
    (27, "torch.aminmax", of(lambda x: torch.aminmax(x, dim=1).min, X), ("fails", UNSUPPORTED.format("aminmax"))),
    (28, "torch.isinf", of(torch.isinf, torch.tensor([1.0, INF, -INF, NAN])), ("is", [False, True, True, False])),
    (
        29,
        "torch.isfinite",
        of(torch.isfinite, torch.tensor([1.0, INF, -INF, NAN])),
        ("is", [True, False, False, False]),
    ),
    (30, "a constant linspace", of(lambda x: x[0] + torch.linspace(0, 1, 2), X), ("is", [1, -1])),
    (31, "tril(ones)", of(lambda x: x * torch.tril(torch.ones(2, 2)), X), ("is", [[1, 0], [3, 4]])),
    (32, "a constant eye", of(lambda x: x * torch.eye(2, device=x.device), X), ("is", [[1, 0], [0, 4]])),
    (33, "torch.median(x, 0)", of(lambda x: torch.median(x, 0).values, X), ("is", [1, -2])),
    (
        34,
        "scatter_reduce",
        of(lambda x: x.scatter_reduce(0, torch.tensor([[1, 1]], device=x.device), x[:1], "sum"), X),
        ("is", [[1, -2], [4, 2]]),
    ),
    (35, "x.argsort(1)", of(lambda x: x.argsort(1), X), ("is", [[1, 0], [0, 1]])),
    (
        38,
        "binary_cross_entropy of rates that are exactly 0 and 1",
        of(F.binary_cross_entropy, torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])),
        ("is", NAN),
    ),
    (39, "int // int of negatives", of(lambda a, b: a // b, *SEVENS), ("silent", "integers cannot be divided by //")),
    (40, "x.item()", of(lambda x: x * x.sum().item(), X), ("fails", "aten::item is only supported in eager mode")),
    (41, "x[mask]", of(lambda x: x[x > 0], X), ("fails", r"nonzero|aten\.index")),
    (43, "torch.heaviside", of(lambda x: torch.heaviside(x, x), X), ("fails", UNSUPPORTED.format("heaviside"))),
    (46, "the same output twice", of(lambda x: torch.stack([x + 1, x + 1])[1], X), ("is", [[2, -1], [4, 5]])),
    (50, "round(0.5), round(1.5)", of(torch.round, torch.tensor([0.5, 1.5])), ("is", [0, 2])),
]


@pytest.mark.parametrize(
    ("probe", "expected"), [row[2:] for row in PROBES], ids=[f"{row[0]}: {row[1]}" for row in PROBES]
)
def test_probe(agrees, probe, expected):
    """The emulator does what PopTorch does, or refuses and says why."""
    agrees(probe, expected)
