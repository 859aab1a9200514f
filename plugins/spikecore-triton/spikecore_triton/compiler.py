"""From a printed kernel to a function that Triton compiles when it is first launched, and keeps on disk.

Triton reads the text of what it compiles as :mod:`inspect` does. It is given in memory, through :mod:`linecache`.

Two of Triton's options are ours: no fused multiply-add, and functions of the GPU's library that keep subnormal numbers.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import weakref
from types import ModuleType
from typing import Any, Dict

import torch

from spikecore.kernels import KERNELS, Lock, Recent
from spikecore.kernels.cache import key_of, meaning
from spikecore_triton.writer import THREADS, Source

_lock = Lock()
_numbers = itertools.count()
#: By what their text means.
_modules: Recent[str, ModuleType] = Recent(KERNELS)


def compiled(source: Source) -> Any:
    """Triton's function of a printed kernel, called as ``function[blocks](*arguments, BLOCK=..., **options())``."""
    with _lock:
        module = _modules.get_or(meaning(source.text, "#"), lambda: module_of(source))
    return getattr(module, source.name)


def module_of(source: Source) -> ModuleType:
    """The module whose text is this one."""
    name = f"{source.name}-{key_of(source.text)}"
    # not imported: sys.modules would keep every kernel for ever
    module = ModuleType(f"spikecore_triton.kernels.{name}")
    file = module.__file__ = f"<{name}-{next(_numbers)}.py>"  # of one text there may be several
    linecache.cache[file] = len(source.text), None, source.text.splitlines(keepends=True), file
    exec(compile(source.text, file, "exec"), module.__dict__)
    weakref.finalize(getattr(module, source.name), linecache.cache.pop, file, None)
    return module


def options() -> Dict[str, Any]:
    """The options of a launch on the current device."""
    return options_on(torch.cuda.current_device()) if torch.version.hip else options_for("cuda", 32)


@functools.lru_cache(maxsize=None)
def options_for(vendor: str, warp: int) -> Dict[str, Any]:
    """The same for GPUs of ``"cuda"`` or ``"hip"`` with so many threads in a warp."""
    # one stage, because a text issues the loads of a chunk together and leaves nothing to pipeline
    chosen = {"num_warps": THREADS // warp, "num_stages": 1, "enable_fp_fusion": False}
    # without it, the floor of a subnormal number would be that of zero
    return chosen if vendor == "hip" else {**chosen, "enable_reflect_ftz": False}


@functools.lru_cache(maxsize=None)
def options_on(device: int) -> Dict[str, Any]:
    """The options of a GPU of AMD."""
    # a warp has 64 threads on AMD's data-centre GPUs and 32 on Radeon
    return options_for("hip", int(torch.cuda.get_device_properties(device).warp_size))
