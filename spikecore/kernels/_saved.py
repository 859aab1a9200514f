"""What comes back for a backward pass: the tensors that forward saved, or what saved-tensor hooks made of them."""

from __future__ import annotations

from typing import Optional, Sequence

from torch import Tensor

from spikecore.backend import Spec
from spikecore.kernels._layout import Layout
from spikecore.lang import Program


def check_saved(
    program: Program,
    spec: Spec,
    has_initial_state: bool,
    tensors: Sequence[Tensor],
    checkpoints: Sequence[Tensor],
    grads: Sequence[Optional[Tensor]],
    layout: Layout,
) -> None:
    """Raise where a saved-tensor hook gave back something else than what forward saved.

    ``tensors`` are inputs, states if ``has_initial_state``, and parameters; ``grads`` the cotangents that arrive. Other
    strides are no difference: backward copies what does not lie in ``layout``.
    """
    x, inputs = tensors[0], len(program.inputs)
    moving = inputs + (len(program.states) if has_initial_state else 0)
    there = next((grad for grad in grads if grad is not None), x)
    steps = there.shape[0] if there.ndim > len(layout.shape) else x.shape[0]  # no cotangent but a final state's
    for i, tensor in enumerate((*tensors, *checkpoints)):
        dtype = spec.dtype if i < inputs else spec.compute
        fits = tensor.dtype == dtype and tensor.device == there.device
        if i < inputs:
            fits = fits and tensor.shape[0] == steps and tuple(tensor.shape[1:]) == layout.shape
        elif i < moving:
            fits = fits and tuple(tensor.shape) == layout.shape
        elif i >= len(tensors):
            fits = fits and tuple(tensor.shape[1:]) == layout.shape
        if not fits:
            raise RuntimeError(
                f"{program.name}: a saved-tensor hook gave back {tensor.dtype} {list(tensor.shape)} on "
                f"{tensor.device}, where {dtype} with neurons of shape {list(layout.shape)} on {there.device} was "
                "saved; what a hook unpacks must have the dtype, shape and device of what it packed"
            )
