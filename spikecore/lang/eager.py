"""The operations of the language computed with PyTorch: what each one means, value and derivative.

This table defines the language for everybody: ``sc.ops`` on tensors, the torch backend, and the tests of every other
backend. Plain torch functions carry torch's own derivative rules; ``spike`` and ``select`` have theirs here.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Callable, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.lang.node import Node, SpikeRule, topological

_FLOAT32_MAX = torch.finfo(torch.float32).max


class _Spike(torch.autograd.Function):
    """Heaviside step with a given derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, strict: bool, derivative: Callable[[Tensor], Any]) -> Tensor:
        return (u > 0).to(u.dtype) if strict else (u >= 0).to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        u, _, ctx.derivative = inputs
        ctx.save_for_backward(u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None]:
        (u,) = ctx.saved_tensors
        return grad * ctx.derivative(u), None, None


class _Select(torch.autograd.Function):
    """Exact choice by a 0/1 spike, with the derivative of the arithmetic form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(z != 0, a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        z, a, b = ctx.saved_tensors
        zero = torch.zeros_like(grad)
        # a choice by the spike again, so that the second derivative is that of the arithmetic form, too
        return grad * (a - b), _Select.apply(z, grad, zero), _Select.apply(z, zero, grad)


def spike(u: Tensor, strict: bool, derivative: Callable[[Tensor], Any]) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``."""
    result: Tensor = _Spike.apply(u, strict, derivative)
    return result


def select(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``; differentiated as ``z*a + (1-z)*b``."""
    # expanding first leaves the summing over broadcast dimensions to autograd
    result: Tensor = _Select.apply(*torch.broadcast_tensors(z, a, b))
    return result


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``min(max(x, low), high)``."""
    return torch.clamp(x, low, high)


def sqrt(x: Tensor) -> Tensor:
    """Square root; in float32 correctly rounded by way of float64, which torch's own is not on every CPU."""
    return x.double().sqrt().to(x.dtype) if x.dtype == torch.float32 else torch.sqrt(x)


def detach(x: Tensor) -> Tensor:
    """The value without its graph."""
    return x.detach()


#: op name -> function of tensors; that of ``spike`` is called as ``spike(u, strict, derivative)``.
Functions = Mapping[str, Callable[..., Tensor]]

TORCH: Functions = {
    "spike": spike,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "atan": torch.atan,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "round": torch.round,
    "power": torch.pow,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "clamp": clamp,
    "where": torch.where,
    "select": select,
    "detach": detach,
    "ge": torch.ge,
    "gt": torch.gt,
    "le": torch.le,
    "lt": torch.lt,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
}

#: One instruction: (function, slots of its arguments). Its result is appended to the slots.
Instruction = Tuple[Callable[..., Tensor], Tuple[int, ...]]


def function_of(node: Node, functions: Functions = TORCH) -> Callable[..., Tensor]:
    """The function of the table that computes a node from its arguments."""
    if isinstance(node.attr, SpikeRule):
        return SpikeFunction(node.attr, functions)
    return functions[node.op]


class SpikeFunction:
    """A spike node as a function of ``u``."""

    def __init__(self, rule: SpikeRule, functions: Functions = TORCH) -> None:
        self.strict = rule.strict
        self.spike = functions["spike"]
        self.derivative = Straight([Node("argument", (), "u")], [rule.derivative], functions)

    def __call__(self, u: Tensor) -> Tensor:
        """Spikes for ``u``."""
        return self.spike(u, self.strict, self._derivative)

    def _derivative(self, u: Tensor) -> Tensor:
        (value,) = self.derivative([u], like=u)
        return value


def number(value: float, like: Tensor) -> Tensor:
    """A number as a 0-d tensor of the dtype and on the device of ``like``; beyond float32 it is infinite.

    A number given to torch as it is would be divided by through its reciprocal on some devices, and no longer correctly
    rounded.
    """
    if like.dtype == torch.float32 and _FLOAT32_MAX < abs(value) < math.inf:
        value = ctypes.c_float(value).value  # which torch.compile cannot trace, so only where torch.full would raise
    return torch.full((), value, dtype=like.dtype, device=like.device)


class Straight:
    """Straight-line code for some roots: leaves in, roots out, every node once, by the functions of a table."""

    def __init__(self, leaves: Sequence[Node], roots: Sequence[Node], functions: Functions = TORCH) -> None:
        nodes = [node for node in topological(roots, known=leaves) if node.op != "const"]
        constants = [node for node in topological(roots) if node.op == "const" and node not in leaves]
        missing = [node for node in nodes if node.is_leaf]
        if missing:
            raise KeyError(f"no value given for {missing}")
        slot = {node: i for i, node in enumerate([*leaves, *constants, *nodes])}
        # as text: torch.compile would make variables of floats, and then cannot look into a surrogate
        self.constants: List[str] = [repr(float(node.attr)) for node in constants]  # type: ignore[arg-type]
        self.code: List[Instruction] = [(function_of(n, functions), tuple(slot[a] for a in n.args)) for n in nodes]
        self.results: Tuple[int, ...] = tuple(slot[root] for root in roots)

    def __call__(self, leaves: Sequence[Tensor], like: Tensor) -> List[Tensor]:
        """Values of the roots, in the dtype and on the device of ``like``."""
        slots = [*leaves, *(number(float(c), like) for c in self.constants)]
        for function, args in self.code:
            slots.append(function(*[slots[i] for i in args]))
        return [slots[i] for i in self.results]


def evaluate(roots: Sequence[Node], values: Mapping[Node, Tensor], like: Tensor) -> List[Tensor]:
    """Values of some expressions, given those of their leaves."""
    return Straight(list(values), roots)(list(values.values()), like)
