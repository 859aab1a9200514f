"""Python processes that begin with torch imported, which takes most of the time of a short one.

:func:`run` is ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)``. The process is a fork
of one that imported torch and pytest and computed nothing, so its modules, its environment and its exit are its own.
What must itself import torch, or start with other settings of Python or of OpenMP, is an ordinary process.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

#: Variables that torch, OpenMP and Python read when they are loaded: where they differ, a fork would be too late.
EARLY = ("OMP_", "MKL_", "KMP_", "GOMP_", "LD_", "TORCH", "PYTORCH", "CUDA", "PYTHON")
#: Of these, what a fork sets by itself.
SET = ("PYTHONPATH",)

#: The process that forks, once it was started.
_servers: List[subprocess.Popen[str]] = []


def run(
    *arguments: Union[str, Path],
    cwd: Optional[Path] = None,
    env: Optional[Dict[str, str]] = None,
    timeout: Optional[float] = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What ``python arguments`` printed, and its exit status. It takes the options ``-c``, ``-m``, ``-W``."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**(os.environ if env is None else env)}
    if not hasattr(os, "fork") or sys.platform != "linux" or _early(environment) != _early(dict(os.environ)):
        return subprocess.run(
            command, capture_output=True, text=True, check=check, cwd=cwd, env=environment, timeout=timeout
        )
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder, "out"), Path(folder, "error")
        request = {
            "arguments": command[1:],
            "cwd": str(cwd or os.getcwd()),
            "environment": environment,
            "out": str(out),
            "error": str(error),
            "timeout": timeout,
        }
        status = _asked(request)
        done = subprocess.CompletedProcess(command, status, out.read_text("utf-8"), error.read_text("utf-8"))
    if check:
        done.check_returncode()
    return done


def _early(environment: Dict[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY) and name not in SET}


def _asked(request: Dict[str, Any]) -> int:
    if not _servers:
        path = {name: value for name, value in os.environ.items() if name not in SET}
        command = [sys.executable, __file__]
        _servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=path))
        atexit.register(_ended)
    stdin, stdout = _servers[0].stdin, _servers[0].stdout
    assert stdin is not None
    assert stdout is not None
    stdin.write(json.dumps(request) + "\n")
    stdin.flush()
    return int(stdout.readline())


def _ended() -> None:
    _servers.pop().communicate()  # it ends with its input


# -- in the process that forks


def _served() -> Optional[Dict[str, Any]]:
    """Forks for each request. In the fork the request is returned, and the fork goes on from there."""
    for line in sys.stdin:
        request: Dict[str, Any] = json.loads(line)
        child = os.fork()
        if not child:
            return request
        answer = os.fdopen(os.dup(1), "w")
        answer.write(f"{_status(child)}\n")
        answer.close()
    return None


def _status(child: int) -> int:
    """As :mod:`subprocess` says it: negative where a signal ended the process."""
    _, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(request: Dict[str, Any]) -> List[str]:
    """Take the streams, folder and environment of a new process; returns its arguments without Python's own."""
    import signal
    import warnings

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
    import pytest  # noqa: F401  # forks have it
    import torch  # noqa: F401  # the same

    work = _served()
    if work is not None:
        _started(_become(work))
