"""The functions of ``poptorch`` that a model calls in its ``forward``.

Most only advise the compiler, and return their argument unchanged, in PopTorch and here. ``for_loop`` runs unrolled,
with the checks of PopTorch. ``cond`` computes both branches and chooses between their results.
"""

from __future__ import annotations

from typing import Any, Callable, List, NoReturn, Tuple

import torch
from torch import Tensor

from ._errors import cpp_error, py_error
from ._losses import reduced
from ._structure import tree_map
from ._tensor import IpuTensor
from ._trace import running


def isRunningOnIpu() -> bool:
    """Whether a model is compiled at this moment: its ``forward`` asks, to tell device from host."""
    return running() is not None


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """False: this is the emulator."""
    return False


def ipuHardwareVersion() -> int:
    """0, the version of no hardware."""
    return 0


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """``x``, its sum or its mean, from which PopTorch starts the backward pass if it is the last of the losses.

    Raises ``AssertionError`` if ``reduction`` is not one of "sum", "mean" and "none".
    """
    if not isinstance(reduction, str) or reduction not in ("sum", "mean", "none"):
        raise AssertionError("Unsupported reduction type!")
    trace = running()
    if trace is None or not isinstance(x, IpuTensor):
        return reduced(x, reduction)
    loss: Tensor = trace.record("identity_loss", reduced, (x, reduction), {}, loss="poptorch.identity_loss")
    return loss


def for_loop(count: int, body: Callable[..., Any], inputs: List[Tensor]) -> List[Tensor]:
    """``inputs = body(*inputs)``, ``count`` times, in inference only; on the host PopTorch runs the body once."""
    if not isinstance(inputs, list):
        raise ValueError(
            "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. (Object is not list)"
        )
    _check_list("poptorch.for_loop", "input tensors (inputs)", inputs)
    _inference_only("for_loop")
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count if isRunningOnIpu() else 1):
        results = body(*values)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        if [(value.shape, value.dtype) for value in results] != [(value.shape, value.dtype) for value in values]:
            raise py_error("the body of poptorch.for_loop must return as many tensors as it takes, of the same shapes")
        values = results
    return values


def cond(
    condition: Tensor,
    then_body: Callable[..., Any],
    then_inps: List[Tensor],
    else_body: Callable[..., Any],
    else_inps: List[Tensor],
) -> List[Tensor]:
    """The results of one of two functions; in inference only."""
    for name, inputs in (("then_inps", then_inps), ("else_inps", else_inps)):
        if not isinstance(inputs, list):
            raise ValueError(f"poptorch.cond expects {name} to be a list of tensors. (Object is not list)")
        _check_list("poptorch.cond", name, inputs)
    _inference_only("cond")
    then, other = (
        list(results) if isinstance(results, (list, tuple)) else [results]
        for results in (then_body(*then_inps), else_body(*else_inps))
    )
    if [(value.shape, value.dtype) for value in then] != [(value.shape, value.dtype) for value in other]:
        raise py_error("the branches of poptorch.cond must return as many tensors, of the same shapes")
    chosen = condition.bool()
    return [torch.where(chosen, a, b) for a, b in zip(then, other)]


def _check_list(function: str, name: str, inputs: List[Any]) -> None:
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{function} expects {name} to be a list of tensors. (Object contained in list at index {index} is not "
                "torch.tensor)"
            )


def _inference_only(function: str) -> None:
    trace = running()
    if trace is not None and trace.training:
        raise cpp_error(f"poptorch.{function}() is only supported in inference.")


def _identity(x: Any, name: str, refusal: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise py_error(f"{refusal} {type(x)} is not supported.")
    trace = running()
    if trace is None or not isinstance(x, IpuTensor):
        return x
    same: Tensor = trace.record(name, torch.clone, (x,), {})
    return same


def nop(tensor: Tensor) -> Tensor:
    """``tensor``."""
    return _identity(tensor, "nop", "nop must take a torch.tensor argument.")


def ipu_print_tensor(tensor: Tensor, title: str = "", *args: Any, **kwargs: Any) -> Tensor:
    """``tensor``; the emulator prints nothing."""
    return _identity(tensor, "nop", "ipu print tensor must take a torch.tensor argument.")


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """``tensor``; the emulator does not model memory."""
    return _identity(tensor, "nop", "You may only set available memory for torch.tensor values.")


def recomputationCheckpoint(*tensors: Any) -> Any:
    """The tensors; the emulator does not model memory."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return type(tensors[0])(tree_map(recomputationCheckpoint, tensors[0]))
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError("All inputs must be tensors")
    results: Tuple[Tensor, ...] = tuple(nop(tensor) for tensor in tensors)
    return results[0] if len(results) == 1 else results


def custom_op(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: a custom operation is C++ for the Poplar SDK, which is not here to compile it."""
    raise py_error("poptorch.custom_op needs the Poplar SDK: the emulator has nothing to compile C++ operations with")
