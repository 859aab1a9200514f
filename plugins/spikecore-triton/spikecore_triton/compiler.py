"""From a printed kernel to a function that Triton compiles when it is first launched, and keeps on disk.

Two of Triton's options are ours: no fused multiply-add, and functions of the GPU's library that keep subnormal numbers.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Dict

import torch

from spikecore.kernels import KERNELS, Lock, Recent
from spikecore.kernels.cache import meaning
from spikecore_triton import cache
from spikecore_triton.writer import THREADS, Source

_lock = Lock()
#: By what their text means.
_modules: Recent[str, ModuleType] = Recent(KERNELS)


def compiled(source: Source) -> Any:
    """Triton's function of a printed kernel, called as ``function[blocks](*arguments, BLOCK=..., **options())``."""
    with _lock:
        module = _modules.get_or(meaning(source.text, "#"), lambda: _module(source))
    return getattr(module, source.name)


def _module(source: Source) -> ModuleType:
    path = cache.placed(source.name, source.text)
    # not imported: the folder of entries is on no path, and sys.modules would keep every kernel for ever
    module = ModuleType(f"spikecore_triton.kernels.{path.stem}")
    module.__file__ = str(path)
    exec(compile(source.text, str(path), "exec"), module.__dict__)
    return module


@functools.lru_cache(maxsize=None)
def options() -> Dict[str, Any]:
    """What a launch says beside the arguments."""
    # Warps have 64 threads on AMD's data-centre GPUs. One stage, because a text issues the loads of a chunk together
    # and leaves nothing to pipeline.
    chosen = {"num_warps": THREADS // (64 if torch.version.hip else 32), "num_stages": 1, "enable_fp_fusion": False}
    # without it, the floor of a subnormal number would be that of zero
    return chosen if torch.version.hip else {**chosen, "enable_reflect_ftz": False}
