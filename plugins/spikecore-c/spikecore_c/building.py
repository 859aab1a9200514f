"""From the text of a kernel to a function: the C compiler makes a shared library of it, which is kept on disk."""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

from spikecore.backend import BackendError
from spikecore.kernels import KERNELS, Lock, Recent, cache
from spikecore_c import compiler

#: Nothing that reorders or contracts arithmetic. The mode of ISO C contracts nothing by itself.
OPTIONS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-w")
_KIND = "c"

_lock = Lock()
_libraries: Recent[str, ctypes.CDLL] = Recent(KERNELS)


def built(name: str, text: str) -> Any:
    """The function of this name of a text: from memory, from disk, or compiled now."""
    key = f"{name}-{cache.key_of(cache.meaning(text, '//'), compiler(), _version(compiler()), OPTIONS)}.so"
    with _lock:
        library = _libraries.get(key) or _libraries.put(key, _loaded(key, name, text))
        # of its own: what a function takes belongs to its object
        return library[name]


@functools.lru_cache(maxsize=None)
def _version(command: str) -> str:
    """The compiler's name and version."""
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout


def _loaded(key: str, name: str, text: str) -> ctypes.CDLL:
    # in a folder of this process, where nobody else can exchange what was verified or built
    with tempfile.TemporaryDirectory() as scratch:
        library, source = Path(scratch) / key, Path(scratch) / f"{name}.c"
        code = cache.read(_KIND, key)
        if code is None:
            source.write_text(text, encoding="utf-8")
            _compile(name, source, library)
            cache.write(_KIND, key, library.read_bytes())
        else:
            library.write_bytes(code)
        loaded = ctypes.CDLL(str(library))  # in memory it stays when the file goes
    weakref.finalize(loaded, _ctypes.dlclose, loaded._handle)  # which ctypes does not do
    return loaded


def _compile(name: str, source: Path, library: Path) -> None:
    command = [compiler(), *OPTIONS, str(source), "-o", str(library), "-lm"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise BackendError(
            f"backend 'c' cannot compile kernel {name}, so choose backend='torch'; {compiler()} says:\n{run.stderr}"
        )
