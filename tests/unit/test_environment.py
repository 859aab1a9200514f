"""A variable of the environment with a bad value: who says so, and with what words. One test for each variable."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, Dict

import pytest
import torch
from click.testing import CliRunner

import spikecore as sc
from plain_loop import Plain
from spikecore import cli
from spikecore.kernels import cache
from spikecore.plugins.registry import BUILTINS, Registry, default_registry
from spikecore.testing import check_backend, installed
from spikecore.testing.random_programs import first_seed

Patch = pytest.MonkeyPatch
HERE = Path(__file__).resolve()


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: Patch) -> None:
    for name in list(os.environ):
        if name.startswith("SPIKECORE_"):
            monkeypatch.delenv(name)


def backend(monkeypatch: Patch) -> None:
    """The first tensor: a name that nobody has."""
    monkeypatch.setenv("SPIKECORE_BACKEND", "troch")
    with pytest.raises(
        sc.backend.UnknownBackend, match=r"unknown backend 'troch' \(from SPIKECORE_BACKEND\); did you mean 'to"
    ):
        sc.LIF()(torch.ones(2, 3))
    monkeypatch.setenv("SPIKECORE_BACKEND", " ")  # as if it were unset
    assert sc.LIF()(torch.ones(2, 3)).shape == (2, 3)


def block(monkeypatch: Patch) -> None:
    """A name that nobody has blocks nobody: one list serves machines with other plugins."""
    monkeypatch.setenv("SPIKECORE_BLOCK", "no-such-plugin,,")
    assert Registry(BUILTINS, entry_points=[]).names() == sorted(BUILTINS)


def no_plugins(monkeypatch: Patch) -> None:
    """Whoever asks for a backend, and the list of backends in one sentence."""
    monkeypatch.setenv("SPIKECORE_NO_PLUGINS", "false")
    text = "SPIKECORE_NO_PLUGINS='false' must be 1, which blocks plugins, or 0, empty or unset"
    for ask in (sc.backends, lambda: sc.LIF(backend="torch"), lambda: sc.LIF()(torch.ones(2, 3))):
        with pytest.raises(sc.backend.BackendError, match=text):
            ask()
    result = CliRunner().invoke(cli.app, ["backends"])
    assert result.exit_code == 2
    assert "SPIKECORE_NO_PLUGINS='false'" in " ".join(result.output.split())


def cache_dir(monkeypatch: Patch) -> None:
    """A folder that cannot be one costs the cache and nothing else."""
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(HERE / "below a file"))
    cache.write("cpu", "kernel-0123456789abcdef01234567.o", b"code")
    assert cache.read("cpu", "kernel-0123456789abcdef01234567.o") is None
    assert cache.kinds() == {}


def cache_size(monkeypatch: Patch) -> None:
    """A warning where a kernel is kept, since that ends nobody's call; an error of ``spikecore cache``."""
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(HERE / "below a file"))
    monkeypatch.setenv("SPIKECORE_CACHE_SIZE", "lots")
    with pytest.warns(
        RuntimeWarning, match="SPIKECORE_CACHE_SIZE='lots' must be a number of MiB, 0 or more, such as 512"
    ):
        cache.write("cpu", "kernel-0123456789abcdef01234567.o", b"code")
    assert CliRunner().invoke(cli.app, ["cache"]).exit_code == 2


def emulator(monkeypatch: Patch) -> None:
    """The backend that it is about says so when it is asked whether it is usable."""
    monkeypatch.setenv("SPIKECORE_IPU_EMULATOR", "yes")
    said = default_registry().info("ipu", "a test").probe()
    assert said is not None
    assert "SPIKECORE_IPU_EMULATOR=yes is neither 1, for the emulator, nor" in said


def require(monkeypatch: Patch) -> None:
    """A name that nobody has fails the run of tests, see tests/meta/test_pytest_plugin.py; here it is nobody's."""
    monkeypatch.setenv("SPIKECORE_REQUIRE", "troch, ")
    with installed(Plain, reason="no such chip") as name:
        assert [result.outcome for result in check_backend(name)] == ["unavailable"]


def seed(monkeypatch: Patch) -> None:
    """Whoever draws the first program."""
    for text in ("many", "-1", "1.5"):
        monkeypatch.setenv("SPIKECORE_SEED", text)
        with pytest.raises(
            ValueError, match=f"SPIKECORE_SEED='{text}' must be a whole number, 0 or more; unset it for"
        ):
            first_seed()
    monkeypatch.setenv("SPIKECORE_SEED", " 41 ")
    assert first_seed() == 41


VARIABLES: Dict[str, Callable[[Patch], None]] = {
    "SPIKECORE_BACKEND": backend,
    "SPIKECORE_BLOCK": block,
    "SPIKECORE_CACHE_DIR": cache_dir,
    "SPIKECORE_CACHE_SIZE": cache_size,
    "SPIKECORE_IPU_EMULATOR": emulator,
    "SPIKECORE_NO_PLUGINS": no_plugins,
    "SPIKECORE_REQUIRE": require,
    "SPIKECORE_SEED": seed,
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_bad_value(name: str, monkeypatch: Patch) -> None:
    """Is met where the variable is read, with its name, its value and what is allowed."""
    VARIABLES[name](monkeypatch)


def test_the_table_is_whole() -> None:
    """Every variable that the code reads is in it."""
    reads = re.compile(r"""(?:environ|_env\(|VARIABLE = ).*?(SPIKECORE_[A-Z_]*[A-Z])""")
    found = set()
    for package in (sc.__file__, __import__("spikecore_ipu").__file__, __import__("spikecore_cupy").__file__):
        for path in Path(package).parent.rglob("*.py"):
            found.update(reads.findall(path.read_text(encoding="utf-8")))
    assert found == set(VARIABLES)
