"""The backward pass of a network that is explained."""

from __future__ import annotations

from inspect import signature
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import flattened
from spikecore._base.errors import a_kind
from spikecore._shell.checks import shown

#: From outputs to the number to go backward from; None for their sum.
Loss = Optional[Callable[[Any], Tensor]]


def check_loss(loss: Loss) -> None:
    """Raise TypeError for what is no function of the outputs alone."""
    if loss is None:
        return
    if not callable(loss):
        raise TypeError(f"loss={shown(loss)} must be a function of the outputs of net, or None for their sum")
    try:
        taken = signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):
        return  # some functions that are written in C have none
    try:
        taken.bind(None)
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        inner = name if name.isidentifier() else "criterion"
        raise TypeError(
            f"loss={name} must be a function of the outputs of net alone ({error}); write one that knows the targets, "
            f"as in loss=lambda outputs: {inner}(outputs, targets)"
        ) from error


def go_backward(net: nn.Module, given: Sequence[Tensor], outputs: Any, loss: Loss) -> List[Tuple[str, Tensor]]:
    """The gradients of the backward pass by the names of parameters; none is kept in them."""
    wanted = [one for one in (*net.parameters(), *given) if one.requires_grad]
    if loss is None:
        ends = [one for one in flattened(outputs) if one.requires_grad]
        if not ends:
            raise ValueError(
                "no output of net has a gradient to go back from; training=False explains the forward pass alone"
            )
        found = torch.autograd.grad(ends, wanted, [torch.ones_like(one) for one in ends], allow_unused=True)
        return _named(net, wanted, found)
    value = loss(outputs)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else a_kind(value)
        raise ValueError(f"loss must give one number with a gradient from the outputs of net, got {what}")
    return _named(net, wanted, torch.autograd.grad(value.reshape(()), wanted, allow_unused=True))


def _named(net: nn.Module, wanted: Sequence[Tensor], gradients: Sequence[Optional[Tensor]]) -> List[Tuple[str, Tensor]]:
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return [(names.get(id(one), "x"), grad) for one, grad in zip(wanted, gradients) if grad is not None]
