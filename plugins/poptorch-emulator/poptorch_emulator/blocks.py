"""Blocks, which assign the parts of a model to IPUs: execution strategies, their stages, and what a model met of them.

Rules of this module:

- Placement changes no number. It is checked as PopTorch checks it, while ``forward`` is recorded in :func:`placing`,
  and once after. Outside of it blocks do nothing, as in PopTorch on the CPU.
- A block that was entered by ``with`` ends with the ``with``. What is computed after it and used is in no block, which
  PopTorch refuses. What is computed before the first block is on IPU 0.
- PopTorch counts a pipeline stage each time that the IPU changes: a layer that is called once per time step, on
  another IPU than its neighbours, makes two stages per step, and the check says so.
- ``BeginBlock`` registers a hook on the module, as PopTorch does: its class stays, and copies keep the block.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple, TypeVar, cast

from torch import nn

from ._errors import cpp_error, py_error
from .enums import AutoStage

if TYPE_CHECKING:
    from .options import Options


#: The most IPUs that one process can take.
MOST_IPUS = 64


class Stage:
    """``poptorch.Stage("a", "b")``: blocks that run on one IPU."""

    def __init__(self, *block_ids: str) -> None:
        if not all(isinstance(block, str) for block in block_ids):
            raise AssertionError(f"Block IDs are supposed to be strings but got {block_ids}")
        self._blocks = block_ids
        self._stage_id = -1
        self._ipu: Optional[int] = None

    @property
    def blocks(self) -> Tuple[str, ...]:
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        if not isinstance(ipu, int):
            raise AssertionError(f"ipu must be an int, got {ipu!r}")
        self._ipu = ipu
        return self


class ExecutionStrategy:
    """Assigns blocks to stages: the listed ones in this order, or by ``AutoStage`` all that ``forward`` begins."""

    pipelined = True

    def __init__(self, *args: object) -> None:
        self._auto = AutoStage.SameAsIpu
        self._block_map: Dict[str, Stage] = {}
        #: Block -> IPU, of the model that was compiled last.
        self.placed: Dict[str, int] = {}
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self._auto = args[0]
            return
        for number, arg in enumerate(args):
            stage = _stage(arg)
            stage._stage_id = number
            for block in stage.blocks:
                if block in self._block_map:
                    raise AssertionError(f"{block} associated with more than one stage")
                self._block_map[block] = stage

    def stage(self, block_id: str) -> Stage:
        """The stage of a block that was listed."""
        if block_id not in self._block_map:
            raise AssertionError(f"Unknown block {block_id}")
        return self._block_map[block_id]


def _stage(arg: object) -> Stage:
    if isinstance(arg, Stage):
        return arg
    if isinstance(arg, str):
        return Stage(arg)
    if not isinstance(arg, Sequence):
        raise AssertionError(f"a stage is a poptorch.Stage, a block ID or a list of them, got {arg!r}")
    return Stage(*arg)


class PipelinedExecution(ExecutionStrategy):
    """``poptorch.PipelinedExecution``, the default."""


class ShardedExecution(ExecutionStrategy):
    """``poptorch.ShardedExecution``: IPUs one after the other, without a least number of micro batches."""

    pipelined = False


class Placement:
    """The blocks that one model meets while it is compiled."""

    def __init__(self, strategy: ExecutionStrategy) -> None:
        self._strategy = strategy
        self._auto_ids = 0
        self._met: Dict[str, Stage] = dict(strategy._block_map)
        self._next_stage = 1
        self._last_ipu = 0
        #: Whether what is computed now is in a block, or before the first.
        self.active = True
        #: How often the IPU changed; computation begins on IPU 0.
        self.switches = 0
        #: Block -> IPU.
        self.blocks: Dict[str, int] = {}

    def nextAutoId(self) -> str:
        """An ID for a block without one: its number."""
        self._auto_ids += 1
        return str(self._auto_ids - 1)

    def resetAutoId(self) -> None:
        self._auto_ids = 0

    def beginStage(self, user_id: Optional[str], ipu_id: Optional[int]) -> None:
        """Operations from here on belong to this block."""
        block = user_id or self.nextAutoId()
        stage = self._stage(block, ipu_id)
        ipu = next(number for number in (stage._ipu, ipu_id, stage._stage_id) if number is not None)
        if isinstance(ipu, bool) or not isinstance(ipu, int) or ipu < 0:
            raise cpp_error(f"The IPU of block {block} must be a number of 0 or above (Got {ipu!r})")
        self.blocks[block] = ipu
        self.switches += ipu != self._last_ipu
        self._last_ipu = ipu
        self.active = True

    def end(self) -> None:
        """Operations from here on belong to no block."""
        self.active = False

    def _stage(self, block: str, ipu_id: Optional[int]) -> Stage:
        if block in self._met:
            return self._met[block]
        if self._strategy._block_map:
            raise AssertionError(f"Unknown Block '{block}' list of expected Blocks: {list(self._strategy._block_map)}")
        stage = self._met[block] = Stage(block)
        if self._strategy._auto == AutoStage.SameAsIpu:
            if ipu_id is None:
                raise AssertionError(
                    f"poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block {block}"
                )
            stage._stage_id = ipu_id
        else:
            stage._stage_id = self._next_stage
            self._next_stage += 1
        return stage

    def check(self, options: Options, training: bool) -> None:
        """Raise poptorch.Error for a pipeline that is not filled, and for a number of IPUs that there is not."""
        stages, backward = self.switches + 1, self.switches
        if self._strategy.pipelined and training and options.Training.gradient_accumulation < stages + backward:
            raise cpp_error(
                "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of "
                f"pipeline stages ({stages + backward}) when using poptorch.PipelinedExecution. Please note that a "
                f"model with {stages} pipeline stages in PopTorch will have an additional {backward} stages when "
                "training."
            )
        if self._strategy.pipelined and not training and options.device_iterations < stages:
            raise cpp_error(
                "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages "
                f"({stages}) when using PopTorch.PipelinedExecution."
            )
        count = (max(self.blocks.values(), default=0) + 1) * options.replication_factor
        rounded = 1 << (count - 1).bit_length()
        if rounded != count and not options.auto_round_num_ipus:
            raise cpp_error(
                f"The model specifies the use of {count} IPUs, however PopTorch must reserve a minimum of {rounded} in "
                "order to allow the model to run, because PopTorch must reserve a power of 2 or maximum of "
                f"{MOST_IPUS} IPUs per process. Please reconfigure your model to use a different number of IPUs or set "
                "poptorch.Options().autoRoundNumIPUs(True)."
            )
        if rounded > MOST_IPUS:
            raise cpp_error(
                f"Too many IPUs requested ({rounded}). Experiments that need more than {MOST_IPUS} IPUs require "
                "distributed execution."
            )


def check_blocks(names: Sequence[str]) -> None:
    """Raise PopTorch's error if operations, of these names, came after a block that had ended."""
    if names:
        raise cpp_error(
            "No active Block, all the ops must belong to a Block\n"
            f"{', '.join(f'aten::{name}' for name in dict.fromkeys(names))} came after a `with poptorch.Block(...)` "
            "had ended; put them into a block of their own, or mark layers with poptorch.BeginBlock, which ends none."
        )


#: Has the placement of the model that the thread compiles.
_compiling = threading.local()


def current() -> Optional[Placement]:
    """The placement of the model that this thread compiles; None if it compiles none."""
    placement: Optional[Placement] = getattr(_compiling, "placement", None)
    return placement


@contextmanager
def placing(options: Options, training: bool) -> Iterator[Mapping[str, int]]:
    """Around ``forward`` while it is recorded; gives the blocks that it begins, and their IPUs.

    Raises poptorch.Error at its end if PopTorch could not place them.
    """
    strategy = options.execution_strategy
    placement = _compiling.placement = Placement(strategy)
    try:
        yield placement.blocks
    finally:
        _compiling.placement = None
    strategy.placed = dict(placement.blocks)
    placement.check(options, training)


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
        placement = current()
        if placement is not None:
            placement.beginStage(user_id, ipu_id)

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, *error: object) -> None:
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
