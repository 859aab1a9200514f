"""What every training step checks, whatever trains: its loss and its optimiser."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from spikecore._shell.checks import shown


def check_loss(loss: Any) -> Tensor:
    """What a loss gave, if it is a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"loss must give a tensor with one number, got {got}; reduce it with .mean() or .sum()")
    return loss


def check_optimizer(optimizer: Any, net: nn.Module) -> None:
    """Raise unless ``optimizer`` is one, and holds parameters of this network."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={shown(optimizer)} must be a torch.optim.Optimizer of this network's parameters")
    mine = {id(parameter) for parameter in net.parameters()}
    if not any(id(held) in mine for group in optimizer.param_groups for held in group["params"]):
        raise ValueError("optimizer holds no parameter of this network; make it from net.parameters()")


def check_step(optimizer: torch.optim.Optimizer) -> None:
    """Raise TypeError for an optimiser whose step needs a closure, as that of LBFGS: it runs the network again."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"optimizer={type(optimizer).__name__} runs the network several times in a step, by a closure, and a "
            "training step runs it once; use another optimiser, or call optimizer.step(closure) in a loop of your own"
        )
