"""Operations at NaN, infinities, zeros of both signs, ties and large numbers."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.use import applied, at, call, lif
from spikecore.testing._loopback import Loop

INF, NAN, ops = float("inf"), float("nan"), sc.ops
SQRT_AT_ZERO = at(ops.sqrt, (0.0, 4.0), gradient=True)
ABS_AT_ZERO = at(ops.abs, (0.0, 2.0), gradient=True)
BOTH = ((NAN, 1.0, -1.0), (1.0, NAN, 2.0))


def wrong(name, op, what, shows, *caught_by, **options):
    """A mutant in which an operation is another function."""

    def listed(function):
        class Wrong(Loop):
            def operate(self, node, args, t):
                made = super().operate(node, args, t)
                return function(made, *args) if node.op == op else made

        Wrong.__name__, Wrong.__doc__, Wrong.__module__ = name, what, __name__
        mutant(*(caught_by or (f"edges/{op}",)), shows=shows, **options)(Wrong)
        return function

    return listed


@wrong("SignOfNaN", "sign", "sign(NaN) is 1.", at(ops.sign, (NAN, 0.0, 2.0)))
def _(made, x):
    return torch.where(torch.isnan(x), torch.ones_like(x), made)


@wrong("AbsByComparison", "abs", "abs(-0.0) is -0.0: x < 0 ? -x : x.", at(ops.abs, (-0.0, -1.0)))
def _(made, x):
    return torch.where(x < 0, -x, x)


@wrong("MaximumDropsNaN", "maximum", "maximum drops NaN, as C's fmax.", at(ops.maximum, *BOTH))
def _(made, a, b):
    return torch.fmax(a, b)


@wrong("MinimumDropsNaN", "minimum", "minimum drops NaN, as C's fmin.", at(ops.minimum, *BOTH))
def _(made, a, b):
    return torch.fmin(a, b)


@wrong("ClampOfNaN", "clamp", "clamp of NaN is the lower bound.", at(lambda x: ops.clamp(x, -1.0, 1.0), (NAN, 2.0)))
def _(made, x, low, high):
    return torch.where(torch.isnan(x), low, made)


@wrong("RoundThroughInteger", "round", "round goes through a 32-bit integer.", at(ops.round, (3e9, 2.5, 1e30)))
def _(made, x):
    return made.clamp(-(2.0**31), 2.0**31)


@wrong("FloorThroughInteger", "floor", "floor goes through a 32-bit integer.", at(ops.floor, (3e9, 2.5, -1e30)))
def _(made, x):
    return made.clamp(-(2.0**31), 2.0**31)


@wrong("FloorLosesASign", "floor", "floor(-0.0) is 0.0.", at(ops.floor, (-0.0, 0.5)))
def _(made, x):
    return made + 0.0


@wrong("ExpSaturates", "exp", "exp of what is too large is the largest finite number.", at(ops.exp, (100.0, 1e3, INF)))
def _(made, x):
    return made.clamp(max=torch.finfo(made.dtype).max)


@wrong("TanhByExp", "tanh", "tanh by exp(2 x) is NaN for large x.", at(ops.tanh, (50.0, 1e3, -2.0)))
def _(made, x):
    return torch.where(x.abs() > 44, (x * 2).exp() / (1 + (x * 2).exp()), made)


@wrong(
    "SigmoidByExp",
    "sigmoid",
    "sigmoid as exp(x) / (1 + exp(x)) is NaN for large x.",
    at(ops.sigmoid, (100.0, 0.5)),
)
def _(made, x):
    return torch.where(x > 80, x.exp() / (1 + x.exp()), made)


@wrong("LogOfZero", "log", "log(0) is finite: log(x + 1e-38).", at(ops.log, (0.0, 1.0)))
def _(made, x):
    return torch.where(x == 0, torch.full_like(x, -87.5), made)


@wrong("SqrtOfNegative", "sqrt", "sqrt of a negative number is 0.", at(ops.sqrt, (-1.0, 4.0)))
def _(made, x):
    return torch.where(x < 0, torch.zeros_like(x), made)


@wrong("PowerByLog", "power", "powers of negative numbers are NaN: exp(n log(x)).", at(lambda x: x**2.0, (-2.0, 3.0)))
def _(made, x, n):
    return torch.where(x < 0, torch.full_like(made, NAN), made)


@wrong("ZeroToTheZero", "power", "0 to the power of 0 is NaN.", at(lambda x, y: x**y, (0.0, 2.0), (0.0, 2.0)))
def _(made, x, n):
    return torch.where((x == 0) & (n == 0), torch.full_like(made, NAN), made)


@wrong("DivisionGuarded", "div", "Division by 0 is 0.", at(lambda x, y: x / y, (1.0, 0.0, -1.0), (0.0, 0.0, 2.0)))
def _(made, a, b):
    return torch.where(b == 0, torch.zeros_like(made), made)


@wrong("SinOfLarge", "sin", "sin of large numbers is reduced in float32.", at(ops.sin, (1e3, 3e9, 0.5)))
def _(made, x):
    reduced = x - torch.round(x / 6.2831855) * 6.2831855
    return torch.where(x.abs() > 500, torch.sin(reduced), made)


@wrong("SoftplusOverflows", "softplus", "softplus is log(1 + exp(x)).", at(ops.softplus, (1e3, -30.0, 0.5)))
def _(made, x):
    return torch.log(1.0 + torch.exp(x))


@wrong("ErfIsTanh", "erf", "erf is approximated by tanh, to three digits.", at(ops.erf, (0.5, -1.5, 3.0)))
def _(made, x):
    return torch.tanh(1.1283791 * (x + 0.089430 * x * x * x))


@wrong("CosOfLarge", "cos", "cos of 1e30 is 1.", at(ops.cos, (1e30, 0.5)))
def _(made, x):
    return torch.where(x.abs() > 1e8, torch.ones_like(made), made)


@wrong(
    "GreaterByNotLess",
    "ge",
    "NaN >= 1 holds: not (x < 1).",
    at(lambda x: ops.where(x >= 1.0, 1.0, 0.0), (NAN, 1.0)),
)
def _(made, a, b):
    return ~(a < b)


@wrong("NotEqualOrdered", "ne", "NaN != NaN does not hold.", at(lambda x: ops.where(x != x, 1.0, 0.0), (NAN, 1.0)))
def _(made, a, b):
    return made & ~torch.isnan(a) & ~torch.isnan(b)


@wrong("NegateBySubtraction", "neg", "-x is 0 - x: -(0.0) is 0.0.", at(lambda x: -x, (0.0, 1.0)))
def _(made, x):
    return 0 - x


@wrong("ZeroTimesInfinity", "mul", "0 times infinity is 0.", at(lambda x, y: x * y, (0.0, 2.0), (INF, NAN)))
def _(made, a, b):
    return torch.where((a == 0) | (b == 0), torch.zeros_like(made), made)


@wrong(
    "WhereByArithmetic",
    "where",
    "A choice is arithmetic: infinity on the other side is NaN.",
    at(lambda x, y: ops.where(x > 0.0, x, y), (1.0, -1.0), (INF, 2.0)),
)
def _(made, c, a, b):
    c = c.to(made.dtype)
    return c * a + (1 - c) * b


@wrong("AddFlushes", "add", "Sums that are subnormal are 0.", at(lambda x, y: x + y, (1e-39, 1.0), (1e-40, 1.0)))
def _(made, a, b):
    return torch.where(made.abs() < 1.1754944e-38, torch.zeros_like(made), made)


@wrong(
    "SlopeOfSqrtAtZero",
    "sqrt",
    "The derivative of sqrt at 0 is 0.",
    at(ops.sqrt, (0.0, 4.0), gradient=True),
    "edges/sqrt-gradient*",
)
def _(made, x):
    return torch.where(x == 0, x.detach(), made)


@wrong(
    "SlopeOfAbsAtZero",
    "abs",
    "The derivative of abs at 0 is 1.",
    at(ops.abs, (0.0, 2.0), gradient=True),
    "edges/abs-gradient*",
)
def _(made, x):
    return torch.where(x >= 0, x, -x) + (made - made).detach()


@wrong(
    "SlopeOfClampAtBounds",
    "clamp",
    "The derivative of clamp at its bounds is 0.",
    at(lambda x: ops.clamp(x, -1.0, 1.0), (1.0, -1.0, 0.5), gradient=True),
    "edges/clamp-gradient*",
)
def _(made, x, low, high):
    return torch.where((x <= low) | (x >= high), made.detach(), made)


@wrong(
    "MaximumTakesTheFirst", "maximum", "Of two zeros maximum is the first.", at(ops.maximum, (0.0, 1.0), (-0.0, 1.0))
)
def _(made, a, b):
    return torch.where((a >= b) | (a != a), a, b)


@wrong("RoundHalfUp", "round", "round is floor(x + 1/2).", at(ops.round, (-0.5, -1.5, 0.3)))
def _(made, x):
    return torch.floor(x + 0.5)


class _Skipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value, slope):
        """The value."""
        ctx.save_for_backward(slope)
        return value.clone()

    @staticmethod
    def backward(ctx, g):
        """Nothing for a cotangent of 0."""
        return torch.where(g == 0, torch.zeros_like(g), g * ctx.saved_tensors[0]), None, None


def masked_root(backend: str) -> object:
    """A root whose gradient is masked: that of 0 is NaN all the same."""
    x = torch.tensor([[0.0, 4.0]], requires_grad=True)
    (applied(ops.sqrt)(backend)(x) * torch.tensor([0.0, 1.0])).sum().backward()
    return x.grad


@wrong("ZeroCotangentsSkipped", "sqrt", "A cotangent of 0 is not multiplied.", masked_root, "edges/sqrt-gradient-zero")
def _(made, x):
    return _Skipped.apply(x, made.detach(), 0.5 / made.detach()) if x.requires_grad else made


@wrong("SurrogateCutOff", "spike", "A surrogate is 0 beyond 1.25.", call(lif()), "edges/surrogate-atan-gradient")
def _(made, u, *values):
    return torch.where(u.abs() > 1.25, made.detach(), made)
