"""Machines and processes that are unlike a developer's: calls compute there, and commands run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import spikecore

numba = pytest.importorskip(
    "spikecore_numba", reason="the plugin spikecore-numba, whose cache is tested, is not installed"
)

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
from typer.testing import CliRunner
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
#: Both copies are used afterwards: compiled, with what the first one compiled, and eagerly.
ANEW = """
import sys, torch, spikecore as sc
def use(sc, backend):
    lif = sc.LIF(backend=backend)
    compiled = torch.compile(lif, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(4, 3, requires_grad=True)).sum().backward()
    assert torch.equal(compiled(torch.ones(4, 3)), lif(torch.ones(4, 3)))
    return lif, compiled
before = [use(sc, backend) for backend in ("torch", "numba")]
for name in [name for name in sys.modules if name.startswith("spikecore")]:
    del sys.modules[name]
import spikecore as anew
assert anew is not sc
for backend in ("torch", "numba"):
    use(anew, backend)
for lif, compiled in before:
    assert torch.equal(compiled(torch.ones(4, 3)), lif(torch.ones(4, 3)))
"""


def run(code: str, **environ: str) -> str:
    """What a process prints."""
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


def test_from_a_zip_file(tmp_path: Path) -> None:
    """Numba compiles, commands find their tables, cupy its headers."""
    packages = [Path(spikecore.__file__).parent, Path(numba.__file__).parent]
    packages += [Path(__import__(f"spikecore_{name}").__file__ or "").parent for name in ("torch", "cupy", "ipu")]
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        for package in packages:
            for path in package.rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    archive.write(path, path.relative_to(package.parent))
    cupy = "from spikecore_cupy.device import headers\nassert len(headers('#include \"spikecore.cuh\"')) > 1\n"
    said = run(CALL + COMMANDS + cupy, PYTHONPATH=str(whole), SPIKECORE_CACHE_DIR=str(tmp_path / "cache"))
    assert said.split()[0].startswith(str(whole))
    assert said.split()[1] == "numba"


def test_imported_anew(tmp_path: Path) -> None:
    """After its removal from ``sys.modules``, as test isolation does; networks of the first import live on."""
    torch: Any = pytest.importorskip("torch", reason="spikecore needs torch, so this is never skipped")
    if not hasattr(torch.library, "register_autograd"):
        pytest.skip("torch.compile through a kernel needs torch 2.6")
    run(ANEW)
