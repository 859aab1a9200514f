"""A stand-in for PopTorch 3.4 on the CPU, for those without an IPU or its SDK.

Use it as ``import poptorch_emulator as poptorch``.

It is a checker, not a mock: it fails where PopTorch fails, with its texts, and where PopTorch would silently go wrong.

- ``forward`` runs once, on tensors without values; branches, numbers and constants are frozen. Reading a value, mixing
  in tensors of the host, replacing buffers, operations without a handler and stale tensors are errors.
- The graph is replayed under PopTorch's rules of differentiation: the backward of an ``autograd.Function`` and
  ``no_grad`` are ignored, ``detach`` is not, and a maximum gives the whole gradient to both of two equal arguments.
- What PopTorch loses without a word is an error: changes in place through a view, parts of constants that are filled
  (``rec = zeros(T, B); rec[t] = x``), weights that are not contiguous, arguments that it ignores.
- The machine has one device, which one executor holds; a block that was entered by ``with`` ends there.
- A model has one final loss; arithmetic after it, which PopTorch silently ignores, is an error.
- A call is cut into micro batches for device iterations, gradient accumulation and replicas, with one update per device
  iteration; what comes back follows the output mode. Later calls must match the first.
- Weights have memory of their own on the device. Those of the host are stale until they are read back, and edits there
  are not seen until they are copied.
- Of an optimiser only the hyper-parameters are used, and they are read when a model is wrapped and at ``setOptimizer``.

Not modelled: time, memory, placement on several IPUs, pipelining, overlap; rounding of the IPU's transcendental
functions and reductions, stochastic rounding, half-precision accumulation; its streams of random numbers; executables
in files.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from . import enums, ops, optim
from ._data import DataLoader
from ._errors import Error, RecoverableError, UnrecoverableError, not_modelled, setLogLevel
from ._executor import (
    VERSION,
    PoplarExecutor,
    inferenceModel,
    registerPostCompileHook,
    registerPreCompileHook,
    trainingModel,
)
from ._trace import traced
from .arguments import ICustomArgParser, registerCustomArgParser
from .blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    PipelinedExecution,
    ShardedExecution,
    Stage,
    removeBlocks,
)
from .enums import *  # noqa: F403 - all of them are PopTorch's
from .ops import *  # noqa: F403 - its __all__ are PopTorch's
from .options import Options, TensorLocationSettings

#: PopTorch's: the version that this stands for.
__version__ = VERSION

__all__ = [
    "BeginBlock", "Block", "BlockFunction", "DataLoader", "Error", "ICustomArgParser", "Options", "PipelinedExecution",
    "PoplarExecutor", "RecoverableError", "ShardedExecution", "Stage", "TensorLocationSettings", "UnrecoverableError",
    "inferenceModel", "install", "optim", "registerCustomArgParser", "registerPostCompileHook",
    "registerPreCompileHook", "removeBlocks", "setLogLevel", "traced", "trainingModel",
]  # fmt: skip
__all__ += enums.__all__
__all__ += ops.__all__

#: Names of PopTorch that the emulator does not have.
_NOT_MODELLED = frozenset(
    (
        "AsynchronousDataAccessor AsynchronousWorker Attribute ParallelPhasedExecution Phase SerialPhasedExecution "
        "ctc_beam_search_decoder fps hasMlirSupportOnPlatform load module_repr nms profiling"
    ).split()
)


def __getattr__(name: str) -> Any:
    if name in _NOT_MODELLED:
        raise not_modelled(f"poptorch.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def install() -> None:
    """Have ``import poptorch`` give this module, so that a script for an IPU runs as it is; ``import popart``, too.

    Raises ``RuntimeError`` if PopTorch itself is here: it is never replaced.
    """
    here = sys.modules[__name__]
    if sys.modules.get("poptorch") is here:
        return
    if "poptorch" in sys.modules or importlib.util.find_spec("poptorch") is not None:
        raise RuntimeError("poptorch is installed, and the emulator does not take its place; use it, or uninstall it")
    # the modules as well: otherwise `from poptorch.optim import SGD` would load a second copy of them
    for name, module in list(sys.modules.items()):
        if name == __name__ or name.startswith(__name__ + "."):
            sys.modules["poptorch" + name[len(__name__) :]] = module
    if importlib.util.find_spec("popart") is None:
        sys.modules["popart"] = _Popart(
            "popart", "PopART, which scripts import beside PopTorch. Nothing of it is modelled."
        )


class _Popart(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_modelled(f"popart.{name}")
