"""Python processes that begin with torch imported, which takes most of the time of a short one.

:func:`run` is ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)``, and :func:`start` is
``subprocess.Popen``. The process of :func:`run` is a fork of one that imported torch and pytest, and what ``imported``
names, and computed nothing: its modules, its environment and its exit are its own. What must itself import torch, or
start with other settings of Python or of OpenMP, is an ordinary process.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

#: Variables that torch, OpenMP and Python read when they are loaded: where they differ, a fork would be too late.
EARLY = ("OMP_", "MKL_", "KMP_", "GOMP_", "LD_", "TORCH", "PYTORCH", "CUDA", "PYTHON", "MPL")
#: Of these, what a fork sets by itself. torch sets the second one when it first compiles, and reads it each time.
#: When it counted as a difference, all processes after that were ordinary ones.
SET = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
#: What the programs of ``examples/`` import from others, and what torch imports at the first step of an optimiser. It
#: takes as long as torch.
PROGRAMS = (
    "matplotlib.pyplot",
    "sklearn.datasets",
    "sklearn.model_selection",
    "torch._dynamo",
    "torch.utils.tensorboard",
)

#: The processes that fork, by what they imported, once they were started.
_servers: Dict[Tuple[str, ...], subprocess.Popen[str]] = {}


def run(
    *arguments: Union[str, Path],
    cwd: Optional[Path] = None,
    env: Optional[Dict[str, str]] = None,
    timeout: Optional[float] = None,
    check: bool = False,
    imported: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """The output of ``python arguments``, and its exit status. It takes the options ``-c``, ``-m``, ``-W``.

    imported: modules that are there before it begins, beside torch and pytest.
    """
    command = [sys.executable, *map(str, arguments)]
    environment = {**(os.environ if env is None else env)}
    if not _can(environment):
        return subprocess.run(
            command, capture_output=True, text=True, check=check, cwd=cwd, env=environment, timeout=timeout
        )
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder, "out"), Path(folder, "error")
        pid = _begun(imported, command[1:], str(cwd or os.getcwd()), environment, str(out), str(error), timeout)
        status = _asked(imported, {"wait": pid})
        done = subprocess.CompletedProcess(command, status, out.read_text("utf-8"), error.read_text("utf-8"))
    if check:
        done.check_returncode()
    return done


def start(*arguments: Union[str, Path], env: Optional[Dict[str, str]] = None) -> subprocess.Popen[str]:
    """An ordinary process, which runs. It takes Ctrl-C, even where a shell runs pytest in the background."""
    # a process ignores the signals that the one which starts it ignores, as a shell's background job ignores Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, *map(str, arguments)], stderr=pipe, stdout=pipe, text=True, env=env)
    finally:
        signal.signal(signal.SIGINT, before)


def _can(environment: Dict[str, str]) -> bool:
    """True if a fork can stand for the process."""
    return hasattr(os, "fork") and sys.platform == "linux" and _early(environment) == _early(dict(os.environ))


def _early(environment: Dict[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY) and name not in SET}


def _begun(
    imported: Sequence[str],
    arguments: List[str],
    cwd: str,
    environment: Dict[str, str],
    out: str,
    error: str,
    timeout: Optional[float],
) -> int:
    """Begin a process; returns its id."""
    names = ("arguments", "cwd", "environment", "out", "error", "timeout")
    return _asked(imported, dict(zip(names, (arguments, cwd, environment, out, error, timeout))))


def _asked(imported: Sequence[str], request: Dict[str, Any]) -> int:
    key = tuple(imported)
    if key not in _servers:
        path = {name: value for name, value in os.environ.items() if name not in SET}
        command = [sys.executable, __file__, *key]
        _servers[key] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=path)
        atexit.register(_ended, key)
    stdin, stdout = _servers[key].stdin, _servers[key].stdout
    assert stdin is not None
    assert stdout is not None
    stdin.write(json.dumps(request) + "\n")
    stdin.flush()
    return int(stdout.readline())


def _ended(key: Tuple[str, ...]) -> None:
    _servers.pop(key).communicate()  # it ends with its input


# -- in the process that forks


def _served() -> Optional[Dict[str, Any]]:
    """Forks for each request. In the fork the request is returned, and the fork goes on from there."""
    for line in sys.stdin:
        request: Dict[str, Any] = json.loads(line)
        said = _status(request["wait"]) if "wait" in request else os.fork()
        if not said and "wait" not in request:
            return request
        answer = os.fdopen(os.dup(1), "w")
        answer.write(f"{said}\n")
        answer.close()
    return None


def _status(child: int) -> int:
    """Exit status as :mod:`subprocess` has it: negative where a signal ended the process."""
    _, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(request: Dict[str, Any]) -> List[str]:
    """Take the streams, folder and environment of a new process; returns its arguments without Python's own."""
    import warnings

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the process that forks may ignore Ctrl-C
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT),
        (2, request["error"], os.O_WRONLY | os.O_CREAT),
    ):
        stream = os.open(name, flags)
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["timeout"] is not None:
        signal.setitimer(signal.ITIMER_REAL, request["timeout"])  # SIGALRM ends it
    arguments: List[str] = request["arguments"]
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        arguments = arguments[2:]
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]  # what Python does when it starts
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [*path, *sys.path[1:]]  # its first entry is the folder of this file
    return arguments


def _started(arguments: Sequence[str]) -> None:
    """Run a module, a text or a file, as ``python arguments`` does."""
    import runpy
    import types

    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    import importlib

    import pytest  # noqa: F401  # forks have it
    import torch  # noqa: F401  # the same

    for name in sys.argv[1:]:
        importlib.import_module(name)
    work = _served()
    if work is not None:
        _started(_become(work))
