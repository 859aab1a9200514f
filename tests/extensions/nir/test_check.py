"""Errors of ``sc.nir.check`` that need no other library. ``tests/peers/test_nir_check.py`` has comparisons."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner
from torch import nn

import spikecore as sc
from spikecore.cli import app

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")


@pytest.fixture
def file(tmp_path) -> str:
    """A file that spikecore wrote."""
    sc.nir.save(nn.Sequential(nn.Linear(3, 4), sc.LIF()), tmp_path / "net.nir", dt=1e-4)
    return str(tmp_path / "net.nir")


@pytest.mark.parametrize("library", ["snntorch", "norse", "sinabs"])
def test_a_library_that_is_not_installed(library: str, file: str, monkeypatch) -> None:
    """The error says what to install, and the command ends with 2."""
    monkeypatch.setitem(sys.modules, library, None)
    for name in [name for name in sys.modules if name.startswith(library + ".")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=rf"against='{library}' .* cannot be imported .*: pip install {library} nir"):
        sc.nir.check(file, library)
    done = CliRunner().invoke(app, ["check", file, "--against", library])
    assert done.exit_code == 2
    assert f"pip install {library}" in " ".join(done.output.split())


def test_arguments(file: str) -> None:
    """Wrong ones are named."""
    with pytest.raises(ValueError, match="against='lava' is none of snntorch, norse, sinabs"):
        sc.nir.check(file, "lava")
    for scales in ((), (1.0, 0.0)):
        with pytest.raises(ValueError, match=r"scales=.* must be numbers above 0"):
            sc.nir.check(file, "norse", scales=scales)
    for wrong in ("sinabs,leak=2", "lava,lif=jump"):
        done = CliRunner().invoke(app, ["check", file, "--against", "norse", "--convention", wrong])
        assert done.exit_code == 2
        assert f"--convention '{wrong}' must be one of snntorch, norse" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["check", file, "--against", "norse", "--input", "4,x"])
    assert done.exit_code == 2
    assert "--input '4,x' must be whole numbers above 0" in done.output
