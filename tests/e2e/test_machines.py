"""Machines and processes that are unlike a developer's: calls compute there, and commands run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

numba = pytest.importorskip(
    "spikecore_numba", reason="the plugin spikecore-numba, whose cache is tested, is not installed"
)

pytestmark = pytest.mark.slow

#: Automatic choice on a CPU, both directions, beside the reference.
CALL = """
import torch, spikecore as sc
x = torch.full((4, 3), 1.7, requires_grad=True)
lif = sc.LIF()
found, = torch.autograd.grad(lif(x).sum(), x)
wanted, = torch.autograd.grad(sc.LIF(backend="torch")(x).sum(), x)
assert torch.allclose(found, wanted), (found, wanted)
print(sc.__file__, lif.bound["cpu"].backend.name)
"""
COMMANDS = """
from click.testing import CliRunner
from spikecore.cli import app
for arguments in (["cache"], ["backends"], ["conformance", "torch", "--case", "generated/dtype=float16,shape=17x5"]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 3), (arguments, result.output, result.exception)
"""
#: As in a container whose user has no entry in passwd.
NO_HOME = """
import os, pwd
for name in ("HOME", "SPIKECORE_CACHE_DIR", "XDG_CACHE_HOME"):
    os.environ.pop(name, None)
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
"""
FULL_DISK = """
import os
def full(*arguments):
    raise OSError(28, "No space left on device")
os.replace = full
"""


def run(code: str, **environ: str) -> str:
    """The output of a process."""
    # not in the folder of the sources, which Python would import from
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        cwd=str(Path(__file__).parent),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("machine", ["no home", "full disk"])
def test_a_machine_is_not_in_the_way(tmp_path: Path, machine: str) -> None:
    """The cache cannot be used, and numba computes."""
    before = NO_HOME if machine == "no home" else FULL_DISK
    assert run(before + CALL + COMMANDS, SPIKECORE_CACHE_DIR=str(tmp_path)).split()[-1] == "numba"
    assert list(tmp_path.rglob("*")) == []
