"""The operations of the language computed with PyTorch: what each one means, value and derivative.

This table defines the language for everybody: ``sc.ops`` on tensors, the torch backend, and the tests of every other
backend. Plain torch functions carry torch's own derivative rules; ``spike`` and ``select`` have theirs here, and what
torch computes almost as the language has it is in :mod:`spikecore.lang.exact`.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.lang import exact
from spikecore.lang.node import Node, SpikeRule, topological
from spikecore.lang.plain import ZERO, Constants, choice, is_chosen, is_few, is_plain, step
from spikecore.lang.plain import number as number  # plugins take it from here


class _Spike(torch.autograd.Function):
    """Heaviside step with a given derivative.

    The values of the derivative's parameters, which have no gradient, are one argument: before it calls ``forward``,
    torch.compile compares the number of arguments with that of the signature.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, strict: bool, derivative: Callable[..., Any], values: Tuple[Tensor, ...]
    ) -> Tensor:
        ctx.derivative = derivative
        ctx.save_for_backward(u, *values)
        ctx.set_materialize_grads(False)
        return step(u, strict)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        if grad is None:  # no cotangent is not one of 0, which an infinite derivative would make NaN
            return None, None, None, None
        u, *values = ctx.saved_tensors
        return grad * ctx.derivative(u, *values), None, None, None


class _TransformedSpike(_Spike):
    """The same in the form that torch.func takes, for which torch reads the signature again on every call."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, strict: bool, derivative: Callable[..., Any], values: Tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        return (u > 0).to(u.dtype) if strict else (u >= 0).to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        u, _, ctx.derivative, values = inputs
        ctx.save_for_backward(u, *values)


class _Select(torch.autograd.Function):
    """Exact choice by a 0/1 spike, with the derivative of the arithmetic form."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(z, a, b)
        ctx.set_materialize_grads(False)
        return choice(z, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        if grad is None:
            return None, None, None
        return _gradients(ctx.needs_input_grad, grad, *ctx.saved_tensors)


def _gradients(
    wanted: Sequence[bool], grad: Tensor, z: Tensor, a: Tensor, b: Tensor, chosen: Optional[Tensor] = None
) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """Gradients of a choice by ``z``; ``chosen``: where ``z`` is not 0, if that is known."""
    to_z, to_a, to_b = wanted
    (zero,) = ZERO(grad)
    choose: Any = torch.where
    if chosen is None or torch.is_grad_enabled():
        # a choice by the spike again, so that the second derivative is that of the arithmetic form, too
        chosen, choose = z, select
    return (
        grad * (a - b) if to_z else None,
        choose(chosen, grad, zero) if to_a else None,
        choose(chosen, zero, grad) if to_b else None,
    )


class _FewSelect(_Select):
    """The same for few numbers on a CPU: the truth values are kept, which are found slowly and take little memory."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        chosen = is_chosen(z)
        ctx.save_for_backward(z, a, b, chosen)
        ctx.set_materialize_grads(False)
        return torch.where(chosen, a, b)


class _TransformedSelect(_Select):
    """The same in the form that torch.func takes, for which torch reads the signature again on every call."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
        return torch.where(z != 0, a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


def spike(u: Tensor, strict: bool, derivative: Callable[..., Any], *values: Tensor) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``."""
    if not is_plain(u):
        result: Tensor = _TransformedSpike.apply(u, strict, derivative, values)
    elif torch.is_grad_enabled() and u.requires_grad:
        result = _Spike.apply(u, strict, derivative, values)
    else:
        result = step(u, strict)
    return result


def select(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``; differentiated as ``z*a + (1-z)*b``."""
    if not is_plain(z):
        result: Tensor = _TransformedSelect.apply(*torch.broadcast_tensors(z, a, b))
    elif torch.is_grad_enabled() and (z.requires_grad or a.requires_grad or b.requires_grad):
        # expanding first leaves the summing over broadcast dimensions to autograd
        z, a, b = _broadcast(z, a, b)
        if not is_few(z):
            result = _Select.apply(z, a, b)
        elif z.requires_grad:
            result = _FewSelect.apply(z, a, b)
        else:  # as torch differentiates it
            result = torch.where(is_chosen(z), a, b)
    else:
        result = choice(z, a, b)
    return result


def _broadcast(z: Tensor, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    # a number needs no gradient, and torch broadcasts it
    if b.shape == z.shape and (a.shape == z.shape or (not a.requires_grad and not a.shape)):
        return z, a, b
    z, a, b = torch.broadcast_tensors(z, a, b)
    return z, a, b


def detach(x: Tensor) -> Tensor:
    """The value without its graph."""
    return x.detach()


#: op name -> function of tensors; that of ``spike`` is called as ``spike(u, strict, derivative, *values)``, where
#: ``derivative(u, *values)`` is its derivative.
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
    "sqrt": exact.sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "atan": torch.atan,
    "abs": torch.abs,
    "sign": exact.sign,
    "floor": exact.floor,
    "round": exact.round,
    "power": torch.pow,
    "minimum": exact.minimum,
    "maximum": exact.maximum,
    "clamp": exact.clamp,
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


def operands(node: Node) -> Tuple[Node, ...]:
    """What the function of a node takes: its arguments, then the parameters that a spike's derivative reads."""
    return (*node.args, *node.attr.params) if isinstance(node.attr, SpikeRule) else node.args


def function_of(node: Node, functions: Functions = TORCH) -> Callable[..., Tensor]:
    """The function of the table that computes a node from its operands."""
    if isinstance(node.attr, SpikeRule):
        return SpikeFunction(node.attr, functions)
    return functions[node.op]


class SpikeFunction:
    """A spike node as a function of ``u`` and of the parameters that its derivative reads."""

    def __init__(self, rule: SpikeRule, functions: Functions = TORCH) -> None:
        self.strict = rule.strict
        self.spike = functions["spike"]
        self.derivative = Straight([Node("argument", (), "u"), *rule.params], [rule.derivative], functions)

    def __call__(self, u: Tensor, *values: Tensor) -> Tensor:
        """Spikes for ``u``."""
        return self.spike(u, self.strict, self._derivative, *values)

    def _derivative(self, u: Tensor, *values: Tensor) -> Tensor:
        (value,) = self.derivative([u, *values], like=u)
        return value


class Straight:
    """Straight-line code for some roots: leaves in, roots out, every node once, by the functions of a table."""

    def __init__(self, leaves: Sequence[Node], roots: Sequence[Node], functions: Functions = TORCH) -> None:
        nodes = [node for node in topological(roots, known=leaves) if node.op != "const"]
        constants = [node for node in topological(roots) if node.op == "const" and node not in leaves]
        missing = [node for node in nodes if node.is_leaf]
        missing += [leaf for node in nodes for leaf in operands(node)[len(node.args) :] if leaf not in leaves]
        if missing:
            raise KeyError(f"no value given for {missing}")
        slot = {node: i for i, node in enumerate([*leaves, *constants, *nodes])}
        self.constants = Constants([float(node.attr) for node in constants])  # type: ignore[arg-type]
        self.code: List[Instruction] = [(function_of(n, functions), tuple(slot[a] for a in operands(n))) for n in nodes]
        self.results: Tuple[int, ...] = tuple(slot[root] for root in roots)

    def __call__(self, leaves: Sequence[Tensor], like: Tensor) -> List[Tensor]:
        """Values of the roots, in the dtype and on the device of ``like``."""
        slots = [*leaves, *self.constants(like)]
        for function, args in self.code:
            if len(args) == 2:
                slots.append(function(slots[args[0]], slots[args[1]]))
            else:
                slots.append(function(*[slots[i] for i in args]))
        return [slots[i] for i in self.results]


def evaluate(roots: Sequence[Node], values: Mapping[Node, Tensor], like: Tensor) -> List[Tensor]:
    """Values of some expressions, given those of their leaves."""
    return Straight(list(values), roots)(list(values.values()), like)
