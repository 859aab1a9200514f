"""The operations of the language as PopTorch can compile and differentiate them.

Derivatives that are not an operation's own are written into the forward pass (:data:`spikecore.lang.eager.RECORDED`).
"""

from __future__ import annotations

from spikecore.lang.eager import RECORDED, TORCH, Functions

#: Operations whose reference is one PopTorch function, with a handler and a derivative that is torch's. An operation
#: that is neither here nor written above is refused: PopTorch would stop at it, or derive something else.
SAME = (
    *("add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "atan", "erf"),
    *("abs", "power"),
    # of a detached value: no gradient
    *("sign", "floor", "round", "detach"),
    *("where", "ge", "gt", "le", "lt", "eq", "ne", "and", "or", "not"),
)

#: Every operation that PopTorch compiles here: op name -> its function.
PLAIN: Functions = {
    **{op: TORCH[op] for op in SAME},
    **RECORDED,
}
