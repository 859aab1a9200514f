"""Additions to Triton's interpreter: numbers as a kernel gets them, and the GPU's mathematical functions.

The interpreter is NumPy. It has no fused multiply-add to switch off, its division is always the exact one, and its
functions are NumPy's, whose last digit is not the GPU's. What it shows is that a kernel's text means the right thing;
what a GPU makes of it, tests on a GPU show. It does not round to bfloat16 correctly, so that dtype is not declared.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from spikecore.kernels import Lock

#: Held while a kernel is interpreted: the interpreter changes Triton's language meanwhile, for all threads.
alone = Lock()


def number(value: float) -> Any:
    """A number as a compiled kernel gets it, in float32; the interpreter would compute with Python's own."""
    return tl.tensor(TensorHandle(np.array([value]).astype(np.float32), tl.float32), tl.float32)


def count(value: int) -> Any:
    """A whole number that a kernel counts to; of the interpreter's own, NumPy 2.4 makes no index."""
    return tl.tensor(TensorHandle(np.array(value, np.int64), tl.int64), tl.int64)


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        # a constant of the text comes as a number of Python
        values = [arg if isinstance(arg, tl.tensor) else number(arg) for arg in args]
        blocks = [value.type for value in values if value.type.is_block()]
        data = function(*[value.handle.data for value in values]).astype(np.float32)
        return tl.tensor(TensorHandle(data, tl.float32), blocks[0] if blocks else tl.float32)

    return apply


def _power(x: Any, n: Any) -> Any:
    # an exponent for each element: NumPy takes a single 0.5 as a square root, which is NaN at -inf; the power is inf
    return np.power(x, np.array(np.broadcast_to(n, np.broadcast_shapes(x.shape, n.shape)), order="C"))


#: The functions of the GPU's library that kernels use.
libdevice = SimpleNamespace(
    **{
        name: _interpreted(getattr(np, name))
        for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "fmod")
    },
    atan=_interpreted(np.arctan),
    erf=_interpreted(np.vectorize(math.erf, otypes=[np.float64])),
    pow=_interpreted(_power),
    nearbyint=_interpreted(np.rint),
)


_create_splat = InterpreterBuilder.create_splat


def _splat(builder: Any, *args: Any) -> Any:
    """One value for all neurons. The interpreter makes a number of a truth value there, which ``&`` refuses."""
    made = _create_splat(builder, *args)
    truth = any(isinstance(arg, TensorHandle) and arg.data.dtype == np.bool_ for arg in args)
    return TensorHandle(made.data.astype(np.bool_), tl.int1) if truth else made


InterpreterBuilder.create_splat = _splat
