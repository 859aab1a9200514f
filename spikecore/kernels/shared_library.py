"""From C to functions: the machine's C compiler makes a shared library, which is kept on disk."""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Mapping, Optional, Sequence

from spikecore.kernels import cache

__all__ = ["NATIVE", "OPTIONS", "compiler", "library"]

#: Nothing that reorders or contracts arithmetic. The mode of ISO C contracts nothing by itself.
OPTIONS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-w")
#: The instructions of this machine's processor. The library is then for processors that have these.
NATIVE = "-march=native"
_KIND = "c"


def compiler() -> str:
    """The command that compiles C: ``$CC``, else ``cc``."""
    return os.environ.get("CC") or "cc"


def library(name: str, files: Mapping[str, str], options: Sequence[str] = OPTIONS) -> ctypes.CDLL:
    """The shared library of C files: from disk, or compiled now.

    name: of the entry on disk, for people. files: name -> text; those that end in ``.c`` are compiled. options: of the
    compiler; by default :data:`OPTIONS`. :data:`NATIVE` is left out for a compiler that does not take it.

    Raises RuntimeError where there is no compiler, or where it refuses a file; the message has what it says.
    """
    command = compiler()
    if shutil.which(command) is None:
        raise RuntimeError(
            f"the C compiler {command!r} is not on the PATH; install one, or name it in the environment variable CC"
        )
    parts = [part for file, text in files.items() for part in (file, cache.meaning(text, "//"))]
    if NATIVE in options:
        processor = _processor(command)
        parts.append(processor or "")
        options = [option for option in options if option != NATIVE or processor is not None]
    key = f"{name}-{cache.key_of(*parts, command, _version(command), tuple(options))}.so"
    # in a folder of this process, where nobody else can exchange what was verified or built
    with tempfile.TemporaryDirectory() as scratch:
        made, code = Path(scratch) / key, cache.read(_KIND, key)
        if code is None:
            for file, text in files.items():
                (Path(scratch) / file).write_text(text, encoding="utf-8")
            _compile(name, [str(Path(scratch) / file) for file in files if file.endswith(".c")], made, options)
            cache.write(_KIND, key, made.read_bytes())
        else:
            made.write_bytes(code)
        loaded = ctypes.CDLL(str(made))  # in memory it stays when the file goes
    weakref.finalize(loaded, _ctypes.dlclose, loaded._handle)  # which ctypes does not do
    return loaded


@functools.lru_cache(maxsize=None)
def _version(command: str) -> str:
    """The compiler's name and version."""
    run = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{command} --version fails; name another C compiler in CC. It says:\n{run.stderr}")
    return run.stdout


@functools.lru_cache(maxsize=None)
def _processor(command: str) -> Optional[str]:
    """The compiler's macros for :data:`NATIVE`, which name the instructions; None if it takes no such option."""
    arguments = [command, NATIVE, "-dM", "-E", "-x", "c", os.devnull]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return None if run.returncode else run.stdout


def _compile(name: str, sources: Sequence[str], made: Path, options: Sequence[str]) -> None:
    command = [compiler(), *options, *sources, "-o", str(made), "-lm"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{compiler()} cannot compile {name}; it says:\n{run.stderr}")
