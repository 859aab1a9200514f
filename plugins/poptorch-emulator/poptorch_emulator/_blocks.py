"""Blocks, which assign the parts of a model to IPUs.

Rules of this module:

- A block changes no value. While a model is compiled the block is noted in :mod:`_stages`, which makes PopTorch's
  checks. At any other time a block has no effect.
- ``BeginBlock`` registers a hook on the module, as PopTorch does: the module keeps its class, and copies
  keep the block.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar, cast

from torch import nn

from ._errors import py_error
from ._stages import ExecutionStrategy, PipelinedExecution, Placement, ShardedExecution, Stage, current
from .enums import AutoStage

__all__ = [
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "BlockHook",
    "ExecutionStrategy",
    "PipelinedExecution",
    "ShardedExecution",
    "Stage",
    "removeBlocks",
]

F = TypeVar("F", bound=Callable[..., Any])


class _WithManager(type):
    """PopTorch keeps the placement of the model that is being compiled in an attribute of the class ``Block``."""

    @property
    def _stages_manager(cls) -> Optional[Placement]:
        return current()


class Block(nn.Module, metaclass=_WithManager):
    """``with poptorch.Block("encoder", ipu_id=1):`` what is called inside runs there."""

    def __init__(self, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Number blocks without an ID from 0; for the beginning of ``forward``."""
        placement = current()
        if placement is not None:
            placement.resetAutoId()

    @staticmethod
    def start(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> None:
        """Begin a block here."""
        placement = current()
        if placement is not None:
            placement.beginStage(user_id, ipu_id)

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """End the block: what comes next needs another one."""
        placement = current()
        if placement is not None:
            placement.end()


class BlockHook:
    """Begins a block before each call of a module."""

    def __init__(self, user_id: Optional[str], ipu_id: Optional[int]) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module: Any, inputs: Any) -> None:
        placement = current()
        if placement is not None:
            if self._user_id is None:  # numbered once: a second call of the layer is in the same block
                self._user_id = placement.nextAutoId()
            placement.beginStage(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class _BeginBlockFunction(BlockHook, nn.Module):
    """A function that begins a block."""

    def __init__(self, layer_to_call: Callable[..., Any], user_id: Optional[str], ipu_id: Optional[int]) -> None:
        nn.Module.__init__(self)
        BlockHook.__init__(self, user_id, ipu_id)
        self._layer_to_call = layer_to_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        super().__call__(self, args)
        return self._layer_to_call(*args, **kwargs)


def BeginBlock(layer_to_call: Any, user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> Any:
    """``layer_to_call``, a module that from now on begins a block each time that it is called.

    A function is wrapped in a module. Raises poptorch.Error for anything else, and for a module that begins a block
    already.
    """
    if not isinstance(layer_to_call, nn.Module):
        if callable(layer_to_call):
            return _BeginBlockFunction(layer_to_call, user_id, ipu_id)
        raise py_error("module is not an instance of torch.nn.Module or function.")
    if any(isinstance(other, BlockHook) for other in layer_to_call._forward_pre_hooks.values()):
        raise py_error("module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(BlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: Optional[str] = None, ipu_id: Optional[int] = None) -> Callable[[F], F]:
    """``@poptorch.BlockFunction("decoder", ipu_id=1)`` on a function: its body is a block."""

    def decorator(func: F) -> F:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return func(*args, **kwargs)

        return cast(F, wrapper)

    return decorator


def removeBlocks(module: nn.Module) -> None:
    """Take away what ``BeginBlock`` did to a module and its submodules."""
    if not isinstance(module, nn.Module):
        raise AssertionError(f"module must be an nn.Module, got {module!r}")
    for part in module.modules():
        for key, hook in list(part._forward_pre_hooks.items()):
            if isinstance(hook, BlockHook):
                del part._forward_pre_hooks[key]
