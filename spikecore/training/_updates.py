"""The update of a step whose gradients are clipped or scaled: numbers that are not finite do not reach the weights.

Rules of this module:

- Where the host may wait for the device, a step whose gradients are not finite raises, and changes neither weights nor
  optimiser. A gradient scaler skips such an update itself; a warning says where that is not due to the scale.
- In a step that is captured the host cannot read a number. There such gradients count as 0, and ``skipped`` counts.
- Without ``clip_norm`` and without a scaler that is enabled the gradients of the first step and of each hundredth one
  are looked at.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor, nn

from spikecore._base import finite
from spikecore.core.modules import unwrapped

#: A scale is halved by each update that is skipped: after so many in a row no scale of a half type is the reason.
_PATIENCE = 20
#: Gradients are looked at in the first step, and each time that so many were made.
LOOKS = 100


class Updates:
    """Clips, scales and updates, and counts the updates that were skipped."""

    def __init__(self, net: nn.Module, clip_norm: Optional[float], scaler: Any) -> None:
        self._net, self._clip_norm, self._scaler = net, clip_norm, scaler
        self._scales = scaler is not None and bool(getattr(scaler, "is_enabled", lambda: True)())
        #: Of captured steps, on the device, so that a replay counts, too.
        self._on_device: Optional[Tensor] = None
        self._by_scaler = self._in_a_row = self._made = 0

    @property
    def skipped(self) -> int:
        """Number of updates that were skipped, because gradients were not finite. It waits for the device."""
        return self._by_scaler + (0 if self._on_device is None else int(self._on_device))

    def make(self, optimizer: Any, update: Callable[[Any], None], captured: bool, batch: Dict[str, Any]) -> None:
        """Clip the gradients, and update. ``batch``: inputs, targets, outputs and loss, for a message."""
        self._made += 1
        if self._clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            self._clip(self._clip_norm, weights, captured, batch)
        elif not (self._scales or captured) and (self._made == 1 or self._made % LOOKS == 0):
            self._check(optimizer, batch)
        if self._scaler is None:
            update(optimizer)
        else:
            self._make_scaled(optimizer, batch)

    def _clip(self, clip_norm: float, weights: List[Tensor], captured: bool, batch: Dict[str, Any]) -> None:
        clip = torch.nn.utils.clip_grad_norm_
        if captured:
            self._count(weights, clip(weights, clip_norm))
        elif self._scales:
            clip(weights, clip_norm)  # the scaler has seen the gradients, and skips the update
        else:
            try:
                clip(weights, clip_norm, error_if_nonfinite=True)  # raises before it changes a gradient
            except RuntimeError as error:
                why = _origin(self._net, batch, weights)
                if not why:
                    raise  # of another reason
                raise FloatingPointError(f"{_BEGINS}, so that no weight was changed: {why}") from error

    def _check(self, optimizer: Any, batch: Dict[str, Any]) -> None:
        """Raise where a gradient is not finite."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        if all(finite.is_finite(weight.grad) for weight in weights if weight.grad is not None):
            return
        why = _origin(self._net, batch, weights)
        raise FloatingPointError(f"{_BEGINS}, so that no weight was changed: {why}")

    def _count(self, weights: List[Tensor], norm: Tensor) -> None:
        """Let gradients without a finite norm count as 0, and count that, without the host."""
        spoilt = ~torch.isfinite(norm)
        for weight in weights:
            if weight.grad is not None:
                weight.grad.masked_fill_(spoilt, 0.0)
        if self._on_device is None:
            self._on_device = torch.zeros((), dtype=torch.long, device=norm.device)
        self._on_device += spoilt

    def _make_scaled(self, optimizer: Any, batch: Dict[str, Any]) -> None:
        scaler, before = self._scaler, self._scale()
        scaler.step(optimizer)
        scaler.update()
        if not self._scale() < before:
            self._in_a_row = 0
            return
        self._by_scaler += 1
        self._in_a_row += 1
        certain = _origin(self._net, batch, [])
        if self._in_a_row >= _PATIENCE:
            why = certain or f"no scale helped, down to {self._scale():g}: {_BACKWARD}"
            raise FloatingPointError(f"{_BEGINS} in {self._in_a_row} steps in a row, each of which was skipped: {why}")
        if certain:
            text = f"{_BEGINS}, and the scaler skipped the update; that is not due to the scale: {certain}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _scale(self) -> float:
        """The scale, of a scaler that tells it."""
        scale = getattr(self._scaler, "get_scale", None)
        return math.inf if scale is None else float(scale())


_BEGINS = "training step: the gradients are not finite"
_BACKWARD = (
    "either the forward pass has such numbers, which spikes hide, and sc.explain(net, inputs) says where it began; or "
    "the backward pass, of the loss or of a layer, makes them, and torch.autograd.set_detect_anomaly(True) around the "
    "step names the operation"
)


def _origin(net: nn.Module, batch: Dict[str, Any], weights: List[Tensor]) -> str:
    """Origin of numbers that are not finite, and the way out; "" if it is not known."""
    net = unwrapped(net)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    gradients = [
        (f"the gradient of {names.get(id(weight), 'a parameter')}", weight.grad)
        for weight in weights
        if weight.grad is not None
    ]
    values = [
        *finite.named_leaves("the input", batch["inputs"]),
        *finite.named_leaves("the target", batch["targets"]),
    ]
    rows = (
        (
            finite.first_nan,
            values,
            ". Leave such samples out, or put a number in their place by torch.nan_to_num",
        ),
        (
            finite.first_nan,
            [(f"the parameter {name!r}", parameter) for name, parameter in net.named_parameters()],
            ", and had it before this step. Go on from a checkpoint with finite weights, or make the network anew",
        ),
        (
            finite.first,
            finite.named_leaves("the output", batch["outputs"]),
            ", and no input or parameter has NaN. sc.explain(net, inputs) names the layer where it began",
        ),
        (
            finite.first,
            [("the loss", batch["loss"].detach())],
            ", and the output of the network is finite. Look for a division by 0, or a logarithm of 0, in the loss",
        ),
        (finite.first, gradients, f", and output and loss are finite; {_BACKWARD}"),
    )
    for first, tensors, way_out in rows:
        spoilt = first(tensors)
        if spoilt is not None:
            return f"{spoilt[0]} has {finite.in_words(spoilt[1])}{way_out}"
    for name, gradient in gradients:
        norm = float(torch.linalg.vector_norm(gradient.detach().double()))
        if norm > math.sqrt(torch.finfo(gradient.dtype).max):  # its square is infinite
            return (
                f"each number is finite, and {name} has a norm of {norm:.3g}, whose square is not. Scale the loss down"
            )
    return ""
