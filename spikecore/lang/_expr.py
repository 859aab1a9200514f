"""Traced values, which ``dynamics`` gets and which record.

An :class:`Expr` is a node with Python's operators. What Python cannot record raises :class:`TraceError`, with the
definition that did it and what to write instead; the line is in Python's traceback.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from numbers import Real
from typing import Any, Callable, Dict, Iterator, NamedTuple, NoReturn, Optional, Tuple, Union

import torch

from spikecore.lang.node import ARITY, CHOICE, LOGIC, Attribute, Node, const
from spikecore.lang.operations import COMPOSED, OPERATION, ROWS


class TraceError(TypeError):
    """A definition uses something the language does not have, or misses something it needs."""


class Elements:
    """Base of a traced vector (:mod:`spikecore.lang.vectors`), which records beside a traced value."""

    __slots__ = ()


#: torch's name -> the formula that ``torch.<name>(...)`` on traced values records, and what to write in its place.
_FORMULAS: Dict[str, Tuple[Callable[..., Any], str]] = {
    "add": (operator.add, "x + y"),
    **dict.fromkeys(("sub", "subtract"), (operator.sub, "x - y")),
    **dict.fromkeys(("mul", "multiply"), (operator.mul, "x * y")),
    **dict.fromkeys(("div", "divide", "true_divide"), (operator.truediv, "x / y")),
    **dict.fromkeys(("neg", "negative"), (operator.neg, "-x")),
    "square": (lambda a: a * a, "x * x"),
    "reciprocal": (lambda a: 1.0 / a, "1.0 / x"),
    **{
        name: (formula, f"sc.ops.{name}({', '.join(signature(formula).parameters)})")
        for name, formula in COMPOSED.items()
    },
    **{row.name: (getattr(operator, row.name), row.c[1].format("x", "y")) for row in ROWS if row.kind == "comparison"},
    "logical_and": (operator.and_, "x & y"),
    "logical_or": (operator.or_, "x | y"),
    "logical_not": (operator.invert, "~x"),
}
#: Record of ``torch.<name>(...)`` on a traced value: torch's name -> the operation, or a formula of its arguments.
FROM_TORCH: Dict[str, Union[str, Callable[..., Any]]] = {
    **{name: row.name for row in ROWS for name in row.names},
    **{name: formula for name, (formula, _) in _FORMULAS.items()},
}
#: Replacements of tensors' methods, for messages.
INSTEAD = {
    **{name: text for name, (_, text) in _FORMULAS.items()},
    "clamp_min": "sc.ops.maximum(x, low)",
    "clamp_max": "sc.ops.minimum(x, high)",
}

#: Functions of torch that are products with a matrix, or convolutions.
_OF_LAYERS = ("linear", "matmul", "mm", "mv", "bmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d")
_LAYERS = (
    "a step is that of one neuron: put the layer before the neuron, and for last outputs that come back through it "
    "write sc.Recurrent(neuron, nn.Linear(C, C))"
)

#: Methods of tensors that change the dtype.
CASTS = ("float", "double", "half", "bfloat16", "to", "type", "type_as")

#: NumPy's name of an operator on two numbers -> ours.
FROM_NUMPY = {
    "true_divide": "div",
    **{row.numpy: row.name for row in ROWS if row.numpy and row.arity == 2 and row.kind != "logic"},
}


class Definition(NamedTuple):
    """The definition that is being traced."""

    #: Its name, as ``LIF.dynamics``, for errors; "" where none is traced.
    name: str = ""
    #: The :class:`~spikecore.lang._numbers.Numbers` of surrogates, which become parameters; None: they are constants.
    numbers: Any = None
    #: True if an operation that its code puts under ``torch.no_grad()`` is an error: a program would have its gradient
    #: all the same.
    refuses_no_grad: bool = False
    #: The values that it names; None where names mean nothing.
    named: Optional[Dict[str, Node]] = None


_NONE = Definition()
_definition: ContextVar[Definition] = ContextVar("spikecore_definition", default=_NONE)
#: The definition that is being traced in this thread.
definition = _definition.get


@contextmanager
def defining(of: Definition) -> Iterator[None]:
    """In the block this definition is traced, and gradients are enabled."""
    token = _definition.set(of)
    try:
        with torch.enable_grad():
            yield
    finally:
        _definition.reset(token)


def here() -> str:
    """`` in LIF.dynamics``: the definition that is being traced, or nothing if none is."""
    name = definition().name
    return f" in {name}" if name else ""


#: Advice for a comparison in the place of a number.
COMPARISON_AS_NUMBER = (
    "for a spike write self.spike(v - 1) in place of v > 1; sc.ops.where(comparison, 1.0, 0.0) is a number without a "
    "gradient"
)


def make(op: str, *args: Node, attr: Attribute = None) -> Node:
    """A node of an operation; raises :class:`TraceError` where a truth value stands for a number, or the reverse."""
    if not torch.is_grad_enabled() and definition().refuses_no_grad:
        raise TraceError(
            f"torch.no_grad() in a definition is not part of the language{here()}; write sc.ops.detach(value) for a "
            "value that carries no gradient"
        )
    wants_bool = (True, False, False) if op == CHOICE else (op in LOGIC,) * len(args)
    for arg, is_bool in zip(args, wants_bool):
        if arg.is_bool != is_bool:
            got, way_out = (
                ("a comparison", COMPARISON_AS_NUMBER)
                if arg.is_bool
                else ("a number", "compare it with something first, as in v > 0")
            )
            raise TraceError(f"{op} got {got} ({arg!r}){here()}; {way_out}")
    return Node(op, args, attr)


def lift(value: Any, role: str = "value") -> Node:
    """The node of a traced value or a Python number; anything else raises :class:`TraceError`."""
    if isinstance(value, Expr):
        return value.node
    if type(value) is not bool and isinstance(value, Real):
        return const(float(value))
    if isinstance(value, Elements):
        raise TraceError(
            f"{value!r} stands for one number as {role}{here()}; write sc.ops.sum(vector), or take one, as in vector[0]"
        )
    kind = type(value).__name__
    way_out = (
        "declare it as a parameter of the neuron"
        if kind in ("Tensor", "Parameter", "ndarray")
        else "use traced values and Python numbers only"
    )
    raise TraceError(f"a {kind} is not part of the language as {role}{here()}; {way_out}")


def _binary(op: str, swap: bool = False) -> Callable[[Expr, Any], Expr]:
    def method(self: Expr, other: Any, *modulo: Any) -> Any:
        if isinstance(other, Elements):
            return NotImplemented
        if modulo:
            raise TraceError(f"pow with a modulus is not part of the language{here()}; write sc.ops.power(x, exponent)")
        left, right = self.node, lift(other, f"operand of {op}")
        return Expr(make(op, right, left) if swap else make(op, left, right))

    return method


def _refuse(what: str, way_out: str) -> Callable[..., NoReturn]:
    def method(self: Expr, *_: Any, **__: Any) -> NoReturn:
        raise TraceError(f"{what} is not part of the language{here()}; {way_out}")

    return method


_SEE_OPS = "see sc.ops for what there is"


def _instead(name: str) -> str:
    """Replacement of torch's or NumPy's function of this name, for messages."""
    if name in _OF_LAYERS:
        return _LAYERS
    if name in INSTEAD:
        return f"write {INSTEAD[name]}"
    op = FROM_TORCH.get(name)
    return f"write sc.ops.{op}({OPERATION[op].arguments})" if isinstance(op, str) else _SEE_OPS


def _instead_of_method(name: str, node: Node) -> str:
    plain = name.rstrip("_")
    if node.is_bool and plain in (*CASTS, "int", "long"):
        return COMPARISON_AS_NUMBER
    if plain in CASTS:
        return f"leave .{name}(...) out: traced values have the dtype of the inputs"
    return _instead(plain)


class Expr:
    """A traced value: a node with Python's operators. Its value is not known while a definition is traced."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"Expr({self.node!r})"

    __add__, __radd__ = _binary("add"), _binary("add", swap=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", swap=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", swap=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", swap=True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", swap=True)
    __pow__, __rpow__ = _binary("power"), _binary("power", swap=True)
    __ge__, __gt__, __le__, __lt__ = _binary("ge"), _binary("gt"), _binary("le"), _binary("lt")
    __eq__, __ne__ = _binary("eq"), _binary("ne")  # type: ignore[assignment]  # comparisons are values here
    __and__, __rand__ = _binary("and"), _binary("and", swap=True)
    __or__, __ror__ = _binary("or"), _binary("or", swap=True)
    __hash__ = object.__hash__

    def __neg__(self) -> Expr:
        return Expr(make("neg", self.node))

    def __pos__(self) -> Expr:
        return self

    def __invert__(self) -> Expr:
        return Expr(make("not", self.node))

    def __abs__(self) -> Expr:
        return Expr(make("abs", self.node))

    def __round__(self, digits: Optional[int] = None) -> Expr:
        if digits is not None:
            raise TraceError(f"round to {digits} digits is not part of the language{here()}; round to a whole number")
        return Expr(make("round", self.node))

    __bool__ = _refuse(
        "a Python decision (`if`, `and`, `or`, `not`, `min`, `max`) on a traced value",
        "its value is not known here: choose with sc.ops.where(condition, a, b), combine with & | ~, "
        "or use sc.ops.minimum and sc.ops.maximum",
    )
    __float__ = __int__ = __index__ = __complex__ = __trunc__ = _refuse(
        "turning a traced value into a Python number (`float`, `int`, `math.*`)",
        "its value is not known here: use the functions of sc.ops",
    )
    __iter__ = __len__ = __getitem__ = __contains__ = _refuse(
        "indexing or iterating a traced value", "it stands for one number per neuron"
    )
    __setitem__ = __delitem__ = _refuse(
        "a change in place of a traced value", "it stands for one number per neuron: choose with sc.ops.where"
    )
    __call__ = _refuse("calling a traced value", "it is a number per neuron and no function; is an operator missing?")
    __divmod__ = __rdivmod__ = _refuse("divmod", "write q = sc.ops.floor(a / b) and a - b * q")
    __floordiv__ = __rfloordiv__ = _refuse("the operator //", "write sc.ops.floor(a / b)")
    __matmul__ = __rmatmul__ = _refuse("the operator @", _LAYERS)
    __xor__ = __rxor__ = _refuse("the operator ^", "write (a & ~b) | (~a & b)")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse("a shift operator", _SEE_OPS)

    def __format__(self, spec: str) -> str:
        if spec:
            raise TraceError(
                f"the format {spec!r} is not part of the language{here()}; "
                "its value is not known here: see run(record=)"
            )
        return repr(self)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the method .{name} is not part of the language{here()}; {_instead_of_method(name, self.node)}"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # NumPy takes over when its scalar stands on the left, as in np.sqrt(2.0) * x
        if any(isinstance(value, Elements) for value in inputs):
            return NotImplemented
        name = FROM_NUMPY.get(ufunc.__name__)
        if name is None or method != "__call__" or kwargs:
            raise TraceError(f"numpy.{ufunc.__name__} is not part of the language{here()}; {_instead(ufunc.__name__)}")
        left, right = (lift(value, f"operand of {name}") for value in inputs)
        return Expr(make(name, left, right))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(arg, Elements) for arg in args):
            return NotImplemented
        name = getattr(func, "__name__", str(func))
        for arg in () if name.strip("_") in _OF_LAYERS else args:
            if not isinstance(arg, Expr) and hasattr(arg, "__torch_function__"):
                lift(arg, f"argument of torch.{name}")
        # __add__ means add; add_ is in-place in torch, and is not looked up as add
        recorded = FROM_TORCH.get(name[2:-2] if name.startswith("__") else name)
        if kwargs and name in ("relu", "silu") and not kwargs.get("inplace", True):
            kwargs = None  # torch.nn.functional.relu and silu say what they do not do
        if recorded is None or kwargs:
            extra = f" with {', '.join(kwargs)}" if kwargs else ""
            bounds = {"min": "clamp_min", "max": "clamp_max"} if name in ("clamp", "clip") and len(args) == 1 else {}
            meant = bounds.get(next(iter(kwargs)), name) if len(kwargs or ()) == 1 else name
            raise TraceError(f"torch.{name}{extra} is not part of the language{here()}; {_instead(meant)}")
        if isinstance(recorded, str):
            return record(recorded, *args, *OPERATION[recorded].defaults[len(args) - 1 :])
        return recorded(*args)


def name_value(name: str, value: Any) -> Any:
    """The same value, whose name is noted in the definition that is being traced."""
    if not isinstance(name, str) or not name.isidentifier():
        raise TraceError(f"sc.ops.named got the name {name!r}{here()}; give a name that Python takes, such as 'h'")
    named = definition().named
    if named is not None:
        node = lift(value, f"value of sc.ops.named({name!r}, ...)")
        if node.is_bool:
            raise TraceError(f"sc.ops.named({name!r}, ...) got a comparison{here()}; {COMPARISON_AS_NUMBER}")
        if named.setdefault(name, node) != node:
            raise TraceError(f"sc.ops.named({name!r}, ...) has two values{here()}; give each a name of its own")
    return value


def record(op: str, *args: Any) -> Expr:
    """The operation on traced values and Python numbers; raises :class:`TraceError` for another number of arguments."""
    if len(args) != ARITY[op]:
        raise TraceError(f"{op} takes {ARITY[op]} arguments and got {len(args)}{here()}")
    return Expr(make(op, *(lift(arg, f"argument of sc.ops.{op}") for arg in args)))
