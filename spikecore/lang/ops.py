"""The functions of the language: ``sc.ops``.

Each takes traced values, torch tensors or numbers. With a traced value among its arguments it records; with a tensor it
computes, so that a definition can be called by hand; with numbers only it returns a number.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Dict

import torch

from spikecore.lang import _numbers as numbers
from spikecore.lang import eager
from spikecore.lang._expr import Expr, TraceError, here, lift, make, record, refusing_no_grad
from spikecore.lang._graph import topological
from spikecore.lang.node import Node, SpikeRule

if TYPE_CHECKING:
    from spikecore.surrogate import Surrogate

Value = Any


def _apply(op: str, *args: Value) -> Value:
    if any(isinstance(arg, Expr) for arg in args):
        return record(op, *args)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if not tensors:
        # on the CPU, whatever torch's default device is: not all have float64
        values = [
            torch.tensor(arg, dtype=torch.bool if isinstance(arg, bool) else torch.float64, device="cpu")
            for arg in args
        ]
        return numbers.computed(op, args, eager.TORCH[op](*values).item())
    # numbers take the dtype of the floating-point tensors, or the default one beside a mask alone
    floating = [arg for arg in tensors if arg.is_floating_point()]
    dtype = floating[0].dtype if floating else torch.get_default_dtype()
    device = tensors[0].device  # and not new_tensor(), which torch 2.0 refuses inside torch.func.grad
    values = [arg if isinstance(arg, torch.Tensor) else torch.full((), arg, dtype=dtype, device=device) for arg in args]
    return eager.TORCH[op](*values)


def exp(x: Value) -> Value:
    """e to the power ``x``."""
    return _apply("exp", x)


def log(x: Value) -> Value:
    """Natural logarithm."""
    return _apply("log", x)


def sqrt(x: Value) -> Value:
    """Square root; correctly rounded on every backend, but for an IPU's."""
    return _apply("sqrt", x)


def sin(x: Value) -> Value:
    """Sine of ``x`` in radians."""
    return _apply("sin", x)


def cos(x: Value) -> Value:
    """Cosine of ``x`` in radians."""
    return _apply("cos", x)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    return _apply("tanh", x)


def sigmoid(x: Value) -> Value:
    """``1 / (1 + exp(-x))``."""
    return _apply("sigmoid", x)


def softplus(x: Value) -> Value:
    """``log(1 + exp(x))``, a smooth ``relu``: near ``x`` for a large one, and never infinite for a finite one."""
    return _apply("softplus", x)


def atan(x: Value) -> Value:
    """Arc tangent, in radians."""
    return _apply("atan", x)


def erf(x: Value) -> Value:
    """Error function, ``2/sqrt(pi)`` times the integral of ``exp(-t*t)`` from 0 to ``x``."""
    return _apply("erf", x)


def abs(x: Value) -> Value:
    """Absolute value; derivative 0 at 0."""
    return _apply("abs", x)


def sign(x: Value) -> Value:
    """-1, 0 or 1; derivative 0."""
    return _apply("sign", x)


def floor(x: Value) -> Value:
    """Largest whole number not above ``x``; derivative 0."""
    return _apply("floor", x)


def round(x: Value) -> Value:
    """Nearest whole number, ties to even; derivative 0."""
    return _apply("round", x)


def power(x: Value, exponent: Value) -> Value:
    """``x ** exponent``. For a square, ``x * x`` is exact on every backend and ``power`` is not."""
    return _apply("power", x, exponent)


def minimum(a: Value, b: Value) -> Value:
    """The smaller one; a tie gives half the gradient to each. NaN if one is NaN."""
    return _apply("minimum", a, b)


def maximum(a: Value, b: Value) -> Value:
    """The larger one; a tie gives half the gradient to each. NaN if one is NaN."""
    return _apply("maximum", a, b)


def clamp(x: Value, low: Value = -math.inf, high: Value = math.inf) -> Value:
    """``min(max(x, low), high)``; derivative 1 within and at the bounds, 0 outside."""
    return _apply("clamp", x, low, high)


def relu(x: Value) -> Value:
    """``x`` where it is above 0, else 0, as ``where(x <= 0, 0, x)``; derivative 0 at 0, as torch's. NaN for NaN."""
    return where(x <= 0.0, 0.0, x)


def where(condition: Value, a: Value, b: Value) -> Value:
    """``a`` where the comparison holds, else ``b``; gradient to ``a`` and ``b`` only."""
    return _apply("where", condition, a, b)


def select(z: Value, a: Value, b: Value) -> Value:
    """``a`` where the 0/1 spike ``z`` is 1, else ``b``, exactly; the gradient is that of ``z*a + (1-z)*b``."""
    return _apply("select", z, a, b)


def detach(x: Value) -> Value:
    """The same value, through which no gradient flows."""
    return _apply("detach", x)


def spike(u: Value, surrogate: Surrogate, strict: bool = False) -> Value:
    """1 where ``u >= 0`` (``u > 0`` if ``strict``), else 0; ``surrogate.derivative(u)`` is its derivative.

    The numbers of the surrogate may be expressions of parameters, such as ``ATan(alpha=1.0 / p.tau)``: the width of the
    derivative then follows what is learnt or set, and nothing is compiled again. No gradient flows to a parameter
    through a derivative, as in Lian et al. (2023), whose widths follow decay factors that the equations read, too. A
    parameter that only a surrogate reads has no gradient, and cannot be learnt.
    """
    if not callable(getattr(surrogate, "derivative", None)) or isinstance(surrogate, type):
        raise TypeError(f"spike: surrogate={surrogate!r} must be a surrogate, such as sc.surrogate.ATan(alpha=2.0)")
    # a traced program has parameters for the surrogate's numbers; computed now, they are the numbers themselves
    followed = numbers.current() if isinstance(u, Expr) else None
    asked = surrogate if followed is None else followed.copy_of(surrogate)
    values: Dict[Node, torch.Tensor] = {}
    if isinstance(u, torch.Tensor):
        asked, values = numbers.with_tensors(surrogate, Expr)
    # no gradient flows through a derivative, with and without torch.no_grad()
    with refusing_no_grad(False) if isinstance(u, Expr) else nullcontext():
        derivative = lift(asked.derivative(Expr(Node("argument", (), "u"))), "surrogate derivative")
    if derivative.is_bool:
        raise TraceError(f"{surrogate!r}.derivative gives a comparison{here()}; return sc.ops.where(comparison, a, b)")
    if not isinstance(u, (Expr, torch.Tensor)):
        return float(u > 0 if strict else u >= 0)
    others = [leaf for leaf in topological([derivative]) if leaf.op in ("input", "state")]
    if others:
        raise TraceError(
            f"the derivative of {type(surrogate).__name__} depends on {others[0].op} {others[0].attr!r}{here()}; the "
            "numbers of a surrogate may be expressions of parameters only"
        )
    if followed is None:
        rule = SpikeRule(strict, derivative, repr(surrogate))
    else:
        rule = SpikeRule(strict, derivative, followed.label(surrogate), followed.recipes(derivative))
    if isinstance(u, Expr):
        return Expr(make("spike", u.node, attr=rule))
    return eager.SpikeFunction(rule)(u, *[values[leaf].detach().to(u.dtype) for leaf in rule.params])
