"""Parts of torch that can follow the operations of the language: forward mode, vmap, torch.compile, torch.export."""

from __future__ import annotations

from typing import Callable, Dict, NamedTuple, Tuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import spikecore as sc
from places import check
from spikecore.lang.eager import TORCH
from spikecore.lang.operations import ROWS, Operation

DERIVATIVE = sc.surrogate.ATan(2.0).derivative
#: Some numbers, with ties, zeros, and bounds that are met.
LEFT = torch.tensor([0.5, 1.0, -1.5, 2.0, 0.0, 0.75], dtype=torch.float64)
RIGHT = torch.tensor([0.5, -1.0, 2.5, 1.0, 0.0, 1.25], dtype=torch.float64)
HIGH = torch.tensor([0.75, 1.0, 3.0, 1.5, 2.0, 0.25], dtype=torch.float64)
ABOVE = LEFT.abs() + 0.25
SPIKES = (LEFT > 0.6).double()


class Case(NamedTuple):
    """An operation as a function of numbers, and the numbers."""

    write: Callable[..., Tensor]
    args: Tuple[Tensor, ...]


def _mask(op: str) -> Case:
    """A truth value as a number, whose derivative is 0."""
    return Case(lambda *args: torch.where(TORCH[op](*args), args[0] * 2.0, args[0] * 3.0), (LEFT, RIGHT))


def _logic(op: str) -> Case:
    def write(*args: Tensor) -> Tensor:
        return torch.where(TORCH[op](*(arg > 0.6 for arg in args)), args[0] * 2.0, args[0] * 3.0)

    return Case(write, (LEFT,) if op == "not" else (LEFT, RIGHT))


def _number(row: Operation) -> Case:
    """A function of one number; one without a gradient beside a square."""
    if row.gradient is None:
        return Case(lambda x: row.torch(x) + x * x, (LEFT,))
    return Case(row.torch, (ABOVE if row.unbounded else LEFT,))


CASES: Dict[str, Case] = {
    **{row.name: _number(row) for row in ROWS if row.kind == "number" and row.arity == 1 and row.name != "spike"},
    **{op: Case(TORCH[op], (LEFT, RIGHT)) for op in "add sub mul minimum maximum".split()},
    "div": Case(TORCH["div"], (LEFT, ABOVE)),
    "power": Case(TORCH["power"], (ABOVE, RIGHT)),
    "remainder": Case(TORCH["remainder"], (LEFT, ABOVE)),
    "clamp": Case(TORCH["clamp"], (LEFT, RIGHT, HIGH)),
    "where": Case(lambda c, a, b: TORCH["where"](c > 0.6, a * c, b), (LEFT, RIGHT, HIGH)),
    "select": Case(TORCH["select"], (SPIKES, RIGHT, HIGH)),
    "spike": Case(lambda u: TORCH["spike"](u, False, DERIVATIVE), (LEFT,)),
    **{op: _mask(op) for op in "ge gt le lt eq ne".split()},
    **{op: _logic(op) for op in "and or not".split()},
}
#: Those that are an autograd.Function of ours.
OURS = ("spike", "select", "minimum", "maximum", "clamp", "remainder")
#: In float32 the root goes another way.
CASES["sqrt of float32"] = Case(TORCH["sqrt"], (ABOVE.float(),))


def test_the_table_is_whole() -> None:
    """Every operation of the language is in it."""
    check("tests/unit/lang/test_transforms.py: CASES", TORCH, CASES, others=True)


def tangents(args: Tuple[Tensor, ...], seed: int = 0) -> Tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(arg.shape, dtype=arg.dtype, generator=generator) for arg in args)


def by_reverse_mode(case: Case, along: Tuple[Tensor, ...]) -> Tensor:
    """The derivative along a direction: operations are elementwise, so it is a sum of products."""
    args = [arg.clone().requires_grad_() for arg in case.args]
    grads = torch.autograd.grad(case.write(*args).sum(), args, allow_unused=True)
    zero = torch.zeros_like(case.args[0])
    return sum((zero if grad is None else grad * tangent for grad, tangent in zip(grads, along)), zero)


@pytest.mark.parametrize("name", CASES)
def test_forward_mode(name: str) -> None:
    """torch.func.jvp, a dual level and jacfwd give the derivative of reverse mode, which others tests hold."""
    case = CASES[name]
    along = tangents(case.args)
    expected = by_reverse_mode(case, along)
    value, found = torch.func.jvp(case.write, case.args, along)
    assert torch.equal(value, case.write(*case.args))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        dual = case.write(*(forward_ad.make_dual(arg, tangent) for arg, tangent in zip(case.args, along)))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)
    jacobians = torch.func.jacfwd(case.write, argnums=tuple(range(len(case.args))))(*case.args)
    torch.testing.assert_close(sum(jacobian @ tangent for jacobian, tangent in zip(jacobians, along)), expected)


@pytest.mark.parametrize("name", CASES)
def test_vmap(name: str) -> None:
    """Mapped over one dimension, over another, and under a gradient, an operation computes the same bits."""
    case = CASES[name]
    args = tuple(torch.stack([arg, arg.flip(0), arg + 1.0]) for arg in case.args)
    expected = case.write(*args)
    assert torch.equal(torch.func.vmap(case.write)(*args), expected)
    assert torch.equal(torch.func.vmap(case.write, in_dims=1, out_dims=1)(*args), expected)
    given = [arg.clone().requires_grad_() for arg in args]
    grads = torch.autograd.grad(case.write(*given).sum(), given, allow_unused=True)
    each = torch.func.vmap(torch.func.grad(lambda *a: case.write(*a).sum(), argnums=tuple(range(len(args)))))(*args)
    for mine, theirs in zip(each, grads):
        assert torch.equal(mine, torch.zeros_like(mine) if theirs is None else theirs)


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_within_forward_mode(name: str) -> None:
    """It is right, or refused: of an autograd.Function torch would give 0."""
    case = CASES[name]

    def value(*args: Tensor) -> Tensor:
        return (case.write(*args) * sum(args)).sum()

    twice = torch.func.jacfwd(torch.func.jacfwd(value))
    if name in OURS:
        with pytest.raises(
            NotImplementedError, match=r"no forward-mode derivative within another.*jacfwd\(torch.func.j"
        ):
            twice(*case.args)
    else:
        torch.testing.assert_close(twice(*case.args), torch.func.hessian(value)(*case.args))


class TestNeurons:
    """The reference follows its operations; no kernel is asked."""

    def test_a_tangent_is_that_times_the_surrogate_derivative(self) -> None:
        """Forward mode gives the product with the Jacobian of reverse mode, in a function and within a dual level."""
        neuron = sc.ALIF(torch.full((3,), 2.5), channel_dim=-1, backend="torch")
        x = torch.linspace(-1.0, 3.0, 24, dtype=torch.float64).reshape(4, 2, 3)
        (along,) = tangents((x,))
        jacobian = torch.autograd.functional.jacobian(neuron, x)
        expected = (jacobian * along).sum((-3, -2, -1))
        value, found = torch.func.jvp(neuron, (x,), (along,))
        assert torch.equal(value, neuron(x))
        torch.testing.assert_close(found, expected)
        assert found.count_nonzero()
        with forward_ad.dual_level():
            dual = neuron(forward_ad.make_dual(x, along))
            torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)

    def test_a_first_call_in_inference_mode(self) -> None:
        """The constants that it made serve training afterwards."""
        neuron = sc.LIF(surrogate=sc.surrogate.ATan(2.0123), backend="torch")
        with torch.inference_mode():
            neuron(torch.rand(2, 3))
        neuron(torch.rand(2, 3, requires_grad=True)).sum().backward()
