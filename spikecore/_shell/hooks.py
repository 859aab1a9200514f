"""Whether hooks, or a ``forward`` of an object, see what a module computes."""

from __future__ import annotations

from typing import Any, Callable, TypeVar, Union

from torch import nn
from torch.nn.modules import module as _module

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
#: The attribute of a hook that takes a layer as it is computed.
_OBSERVES = "_spikecore_observes"
_GLOBAL = tuple(
    f"_global_{kind}" for kind in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
)


def observing(hook: _Hook) -> _Hook:
    """Says of a forward hook that it takes a layer as it is computed; it changes nothing."""
    setattr(hook, _OBSERVES, True)
    return hook


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a module has forward hooks, but for those that only observe."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(not hasattr(hook, _OBSERVES) for hook in hooks)


def is_watched_itself(module: nn.Module) -> bool:
    """Whether a hook of this module, or a ``forward`` of its own, sees what it computes."""
    backward: Union[Any, bool] = module._backward_hooks or getattr(module, "_backward_pre_hooks", None)
    return bool(backward) or "forward" in vars(module) or has_forward_hooks(module)


def is_watched(module: nn.Module) -> bool:
    """The same, with hooks of all modules."""
    return is_watched_itself(module) or any(getattr(_module, name, ()) for name in _GLOBAL)
