"""What functions, methods and operators of torch and NumPy are called here: tables, for values that record.

These need no module of the language: a formula of operators records whatever values it is given.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Dict, Tuple, Union

import torch

#: What ``torch.<name>(...)`` on a traced value records: torch's name -> the operation, or a formula of its arguments.
FROM_TORCH: Dict[str, Union[str, Callable[..., Any]]] = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "atan": "atan",
    "arctan": "atan",
    "erf": "erf",
    "special_erf": "erf",
    "abs": "abs",
    "absolute": "abs",
    "sign": "sign",
    "floor": "floor",
    "round": "round",
    "pow": "power",
    "minimum": "minimum",
    "maximum": "maximum",
    "clamp": "clamp",
    "clip": "clamp",
    "where": "where",
    "detach": "detach",
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "neg": operator.neg,
    "negative": operator.neg,
    "square": lambda a: a * a,
    "reciprocal": lambda a: 1.0 / a,
    "relu": lambda a: torch.where(a <= 0.0, 0.0, a),
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "eq": operator.eq,
    "ne": operator.ne,
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "logical_not": operator.invert,
}

#: Operation -> its last arguments where they are left out.
DEFAULTS: Dict[str, Tuple[float, ...]] = {"clamp": (-math.inf, math.inf)}

#: Operation -> what its arguments are called in messages; ``x`` if it is not here.
ARGUMENTS = {
    "clamp": "x, low, high",
    "power": "x, n",
    "where": "condition, x, y",
    "minimum": "x, y",
    "maximum": "x, y",
}

#: Methods of tensors that are operators here.
AS_OPERATOR = {
    "add": "x + y",
    "sub": "x - y",
    "subtract": "x - y",
    "mul": "x * y",
    "multiply": "x * y",
    "div": "x / y",
    "divide": "x / y",
    "true_divide": "x / y",
    "neg": "-x",
    "negative": "-x",
    "square": "x * x",
    "reciprocal": "1.0 / x",
    "rsqrt": "1.0 / sc.ops.sqrt(x)",
    "ge": "x >= y",
    "gt": "x > y",
    "le": "x <= y",
    "lt": "x < y",
    "eq": "x == y",
    "ne": "x != y",
    "logical_and": "x & y",
    "logical_or": "x | y",
    "logical_not": "~x",
    "relu": "sc.ops.relu(x)",
    "clamp_min": "sc.ops.maximum(x, low)",
    "clamp_max": "sc.ops.minimum(x, high)",
}


#: Methods of tensors that change the dtype.
CASTS = ("float", "double", "half", "bfloat16", "to", "type", "type_as")

#: NumPy's name of an operator -> ours.
FROM_NUMPY = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "power": "power",
    "greater_equal": "ge",
    "greater": "gt",
    "less_equal": "le",
    "less": "lt",
    "equal": "eq",
    "not_equal": "ne",
}
