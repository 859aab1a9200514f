"""``net.load_state_dict`` without loading: what it would refuse is known before anything changes, without a copy.

A network whose modules load as torch's own do is loaded once with every write to its tensors left out. What raises then
has changed no value; afterwards nothing is left that can fail, and Ctrl-C waits until the values are in place.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Set

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import TorchDispatchMode

_LIBRARIES = ("torch.nn.", "spikecore.")


def can_be_rehearsed(net: nn.Module, state: Any) -> bool:
    """Whether torch's code alone loads ``state``, in a way that fails before it copies, or not at all."""
    swaps = getattr(torch.__future__, "get_swap_module_params_on_conversion", bool)
    return (
        not swaps()
        and isinstance(state, Mapping)
        and all(_is_usual(value) for value in state.values())
        and all(_loads_as_torch(module) for module in net.modules())
    )


def rehearse(net: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise what ``net.load_state_dict(state)`` would raise; no value of a parameter or buffer changes."""
    held = tensors_of(net)
    # torch counts a write that is left out, too, and would refuse the backward pass of a graph made before
    with versions_kept(held), _NoWrites({id(tensor) for tensor in held}):
        net.load_state_dict(state)


def tensors_of(net: nn.Module) -> List[Tensor]:
    """The parameters and buffers of a network."""
    return [tensor for module in net.modules() for tensor in _held(module)]


def versions_kept(tensors: Iterable[Tensor]) -> ExitStack:
    """When this is closed, these tensors, whose values are the same again, count as never written to meanwhile."""
    stack = ExitStack()
    for tensor in tensors:
        if not tensor.is_inference():
            stack.enter_context(_unsafe_preserve_version_counter(tensor))
    return stack


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect at the end of this."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came = []
    signal.signal(signal.SIGINT, lambda *args: came.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


class _NoWrites(TorchDispatchMode):
    """Leaves out what would be written to some tensors."""

    def __init__(self, held: Set[int]) -> None:
        super().__init__()
        self._held = held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.fill_.Scalar) and id(args[0]) in self._held:
            return args[0]
        return func(*args, **(kwargs or {}))


def _loads_as_torch(module: nn.Module) -> bool:
    """Whether only code that is known here runs when a module is loaded, and its tensors are usual ones."""
    cls = type(module)
    methods = (cls._load_from_state_dict, cls.load_state_dict, cls.get_extra_state, cls.set_extra_state)
    own: Dict[str, Any] = vars(module)
    return (
        all(method.__module__.startswith(_LIBRARIES) for method in methods)
        and cls.get_extra_state is nn.Module.get_extra_state
        and not any(own.get(kind) for kind in ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"))
        and not any(name in own for name in ("_load_from_state_dict", "load_state_dict"))
        and all(_is_usual(tensor) for tensor in _held(module))
    )


def _held(module: nn.Module) -> Iterator[Tensor]:
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None:
            yield tensor


def _is_usual(value: Any) -> bool:
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not (value.is_quantized or value.is_nested or value.is_inference())
    )
