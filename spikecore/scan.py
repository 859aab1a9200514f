"""Time as one operation of an exported program, where the number of steps is symbolic: a scan.

``torch.export`` unrolls a loop over steps whose number is fixed. Where ``dynamic_shapes`` names dimension 0, the number
of steps is a symbol, and a loop over them is one scan, an operation of torch and of ONNX: a program for any T.

torch's operator asks of a step that no result shares memory with an argument or another result, and that carried values
keep their strides; :func:`scan` copies them. The operator itself is called, not the function of
``torch._higher_order_ops``, which has torch.compile trace the step and keeps what that specialised for a later export.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.contract import Unsupported
from spikecore.context import is_exporting

#: A step: carried values, inputs of a step and constants -> carried values and outputs of that step.
Step = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Tuple[Sequence[Tensor], Sequence[Tensor]]]


def is_any_length(x: Tensor) -> bool:
    """True if torch.export traces with a symbol for the number of time steps of ``x`` ``[T, *N]``."""
    # with strict=True the front end of torch.compile traces, which makes T a constant
    return is_exporting() and bool(x.ndim) and isinstance(x.shape[0], torch.SymInt)


def scan(
    step: Step, carry: Sequence[Tensor], inputs: Sequence[Tensor], constants: Sequence[Tensor]
) -> Tuple[Tuple[Tensor, ...], Tuple[Tensor, ...]]:
    """Last carried values, and outputs ``[T, *N]`` of all steps over ``inputs`` ``[T, *N]``. It has no derivative.

    Everything that a step reads is among its arguments. Raises :class:`spikecore.backend.Unsupported` where this torch
    has no scan.
    """
    compute = operator()
    if compute is None:
        raise Unsupported(
            f"a symbolic number of time steps needs torch.ops.higher_order.scan, which torch {torch.__version__} does "
            "not have; leave dimension 0 out of dynamic_shapes"
        )
    n, m = len(carry), len(carry) + len(inputs)

    def flat(*values: Tensor) -> Sequence[Tensor]:
        following, outputs = step(values[:n], values[n:m], values[m:])
        return [_own(value) for value in (*following, *outputs)]

    with torch.no_grad():
        results = compute(
            flat, [_own(value) for value in carry], [x.contiguous() for x in inputs], tuple(map(_own, constants))
        )
    return tuple(results[:n]), tuple(results[n:])


def operator() -> Any:
    """torch's scan; None where this torch has none."""
    return getattr(torch.ops.higher_order, "scan", None)


def _own(value: Tensor) -> Tensor:
    """A copy in memory of its own, in the usual order of dimensions."""
    return value.clone(memory_format=torch.contiguous_format)
