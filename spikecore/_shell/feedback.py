"""A neuron whose last output comes back through a matrix, as one call of a backend over all steps.

A call is one call of the backend where its tensors and the backend's capabilities allow that (:func:`why_not`).
Otherwise :class:`~spikecore.neurons.Recurrent` computes one step after the other.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.context import autocast_dtype
from spikecore._shell import checks, modules, parameters
from spikecore.backend import FEEDBACK_BIAS, FEEDBACK_WEIGHT, Feedback, Tensors
from spikecore.lang._plain import PLAIN, is_plain


class Matrix(NamedTuple):
    """What outputs come back through: ``y @ weight.T + bias``."""

    weight: Tensor
    bias: Optional[Tensor]

    @property
    def tensors(self) -> Tensors:
        """The tensors that there are."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def why_not(neuron: Any, x: Tensor, state: Optional[Tensors], matrix: Matrix, record: Sequence[str]) -> str:
    """Why a call cannot be one call of the backend, "" if it can.

    ``state``: the states of the neuron in its order, then the last output; None at rest.
    """
    if not is_plain(x):
        return "torch traces or transforms the call, or x is no plain tensor"
    others = (*(state or ()), *matrix.tensors)
    if any(type(value) not in PLAIN or value.device != x.device for value in others):
        return "weight, bias or state is no plain tensor beside x"
    if any(value.layout is not torch.strided for value in (x, *others)):
        # a kernel reads memory by strides
        return "weight, bias, state or x is sparse, or has no strides"
    width = x.shape[-1] if x.ndim > 1 else 0
    if matrix.weight.shape != (width, width) or (matrix.bias is not None and matrix.bias.shape != (width,)):
        return "linear does not keep the shape of a step"
    if not x.numel():
        return "x is empty"
    dtype = matrix.weight.dtype
    if any(value.dtype != dtype for value in matrix.tensors) or torch.promote_types(x.dtype, dtype) != x.dtype:
        return f"the weight is {dtype} and x is {x.dtype}"
    if dtype not in (x.dtype, autocast_dtype(x.device.type)):
        return f"the weight is {dtype} and x is {x.dtype}"
    device = x.device.type
    resolved = neuron._bind(device)
    has = resolved.backend.capabilities_on(device)
    # what the loop does without: it collects a record itself, and the matrix is no parameter of its calls
    learns = torch.is_grad_enabled() and any(value.requires_grad for value in matrix.tensors)
    wanted = {"recurrent": True, "record": bool(record), "parameter_gradients": learns}
    missing = [name for name, wants in wanted.items() if wants and not getattr(has, name)]
    return f"backend {resolved.backend.name!r} does not declare {', '.join(missing)}" if missing else ""


def fed_back(
    neuron: Any, x: Tensor, state: Optional[Tensors], matrix: Matrix, record: Sequence[str], final: bool
) -> Tuple[Tensor, Optional[Tensors], Tensors]:
    """All steps of ``x`` ``[T, ..., H]``: output, states as they were given if ``final``, recorded states."""
    owner = type(neuron).__name__
    named = neuron._values()
    checks.same_device(owner, x.device, named)
    modules.check_gathered(owner, x, named)
    values, kinds = parameters.place(owner, named, x.shape[1:], neuron.channel_dim)
    grad = torch.is_grad_enabled()
    learn: List[str] = []
    if grad:
        learnable = [*named, (FEEDBACK_WEIGHT, matrix.weight), (FEEDBACK_BIAS, matrix.bias)]
        learn = [name for name, value in learnable if isinstance(value, Tensor) and value.requires_grad]
    gradients = grad and x.requires_grad
    state_learns = grad and state is not None and any(value.requires_grad for value in state)
    state_gradients = state_learns or (final and (gradients or bool(learn)))
    spec = (x.dtype, None, kinds, tuple(learn), final, Feedback(matrix.bias is not None))
    kind = neuron._find(x.device.type, spec, gradients, state_gradients, bool(record), neuron._cache.stamp)
    neuron._settle()
    outputs, end, trace = neuron._cache.runners[kind]((x,), state, (*values, *matrix.tensors), tuple(record))
    return outputs[0], end, trace


def under_autocast(x: Tensor, matrix: Matrix) -> Matrix:
    """The matrix as autocast would have its product with an output of the dtype of ``x``."""
    dtype = autocast_dtype(x.device.type)
    # autocast leaves float64 as it is
    if dtype is None or torch.float64 in (x.dtype, *[value.dtype for value in matrix.tensors]):
        return matrix
    return Matrix(*[None if value is None else value.to(dtype) for value in matrix])  # type: ignore[arg-type]  # the weight is there
