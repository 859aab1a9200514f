"""Third-party backends as a third party ships them: built and installed by pip, seen from a new process.

All plugins, good and bad, are installed side by side in one folder, as they could be on a user's machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

import spikecore
import warm

pytestmark = pytest.mark.slow

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "{version}"

[project.entry-points."spikecore.backends"]
{name} = "{module}"

[tool.setuptools]
py-modules = ["{module}"]
"""

# it says on standard output that it was imported: the proof that blocking and listing come before
PLUGIN = """
print("imported {module}")
import spikecore._plugins.registry
from spikecore.backend import Backend, BackendInfo, Capabilities

CAN = Capabilities(float32=True)


class Fake(Backend):
    name = "{name}"
    capabilities = CAN

    def compile(self, program, spec):
        from spikecore_torch.backend import TorchRunner

        print("{name} compiles", program.name)
        return TorchRunner(program, spec)


@spikecore._plugins.registry.hookimpl
def spikecore_backends():
    return [BackendInfo("{name}", "{module}:Fake", ("cpu",), CAN, lambda: None, api={api})]
"""


def project(folder: Path, name: str, distribution: str, version: str, api: int = 1, first_line: str = "") -> Path:
    """A plugin's source tree: one module and a pyproject.toml."""
    module = distribution.replace("-", "_")
    tree = folder / distribution
    tree.mkdir()
    words: Dict[str, Any] = {
        "name": name,
        "distribution": distribution,
        "version": version,
        "module": module,
        "api": api,
    }
    (tree / "pyproject.toml").write_text(PYPROJECT.format(**words))
    (tree / f"{module}.py").write_text(first_line + PLUGIN.format(**words))
    return tree


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all plugins installed."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("site")
    trees = [
        project(source, "good", "spikecore-good", "0.3.1"),
        project(source, "loud", "spikecore-loud", "1.0"),
        project(source, "broken", "spikecore-broken", "0.1", first_line="import no_such_library\n"),
        project(source, "twice", "spikecore-a", "1.0"),
        project(source, "twice", "spikecore-b", "2.1"),
        project(source, "torch", "spikecore-shadow", "6.6"),
        project(source, "old", "spikecore-old", "0.0.1", api=0),
    ]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run([*pip, *options, *map(str, trees)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Process:
    """Runs Python with the plugins on its path."""

    def __init__(self, site: Path) -> None:
        root = Path(spikecore.__file__).parents[1]
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join(filter(None, (str(site), str(root), str(root / "backends"), *inherited)))
        ours = {key: value for key, value in os.environ.items() if not key.startswith("SPIKECORE_")}
        # automatic choice of built-ins, whatever else is installed
        self.stderr = ""
        self.environ = {**ours, "PYTHONPATH": path, "SPIKECORE_BLOCK": "numba,triton"}

    def run(self, *arguments: str, **environ: str) -> str:
        """Standard output of ``python arguments``, which must succeed."""
        done = warm.run(*arguments, env={**self.environ, **environ}, cwd=Path(os.sep))
        assert done.returncode == 0, done.stdout + done.stderr
        self.stderr = done.stderr
        return done.stdout

    def code(self, *lines: str, **environ: str) -> List[str]:
        """What these lines print; ``attempt(function)`` prints the outcome of a call, errors with their causes."""
        return self.run("-c", "\n".join((PRELUDE, *lines)), **environ).splitlines()


def rows_of(output: str) -> List[Dict[str, Any]]:
    """The JSON of ``spikecore backends --json``, after what imported plugins printed."""
    rows: List[Dict[str, Any]] = json.loads(output[output.index("[\n") :])
    return rows


PRELUDE = """
from spikecore._plugins.registry import default_registry
from spikecore._plugins.selection import capture, resolve, use_backend

def attempt(function):
    try:
        chosen = function()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        print(f"because of {error.__cause__!r}")
    else:
        print(f"{chosen.backend.name} from {type(chosen.backend).__module__}, {chosen.reason}")
"""


@pytest.fixture(scope="module")
def process(site: Path) -> Process:
    """A process that sees the installed plugins."""
    return Process(site)


def test_installed_plugins_are_listed_without_import(process: Process) -> None:
    """The command lists every plugin with distribution, version and state, and imports none of them."""
    output = process.run("-m", "spikecore", "backends", "--json")
    assert "imported" not in output
    rows = {(row["name"], row["distribution"]): row for row in rows_of(output)}
    states = {key: row["state"] for key, row in rows.items()}
    expected = {
        ("good", "spikecore-good"): "installed",
        ("loud", "spikecore-loud"): "installed",
        ("broken", "spikecore-broken"): "installed",
        ("twice", "spikecore-a"): "failed",
        ("twice", "spikecore-b"): "failed",
        ("torch", "spikecore-shadow"): "shadowed",
        ("old", "spikecore-old"): "installed",
    }
    assert {key: states.get(key) for key in expected} == expected  # the environment may have others
    assert rows["good", "spikecore-good"]["version"] == "0.3.1"
    assert rows["torch", "spikecore"]["state"] == "installed"


def test_neurons_run_on_it(process: Process) -> None:
    """A neuron is computed by the plugin it names, was made under, or finds in the environment, and says so."""
    lines = process.code(
        "import torch, spikecore as sc",
        "x = torch.rand(4, 2, 3)",
        "expected = sc.IF(backend='torch')(x)",
        "named = sc.IF(backend='good')",
        "with sc.use_backend('good'): under = sc.LIF()",
        "other = sc.Leaky(0.9)",
        "under(x), other(x)",
        "print(torch.equal(named(x), expected))",
        "print(*(n.extra_repr().rpartition('backend=')[2] for n in (named, under, other)), sep='; ')",
        "attempt(lambda: sc.IF(backend='good')(x.double()))",
        SPIKECORE_BACKEND="loud",
    )
    assert lines == [
        "imported spikecore_good",
        "good compiles LIF",
        "imported spikecore_loud",
        "loud compiles Leaky",
        "good compiles IF",
        "True",
        "good (good on cpu); good from use_backend() (good on cpu); loud from SPIKECORE_BACKEND (loud on cpu)",
        "Unsupported: backend 'good' (from argument) does not support float64, which this call of IF needs; "
        "of those loaded, torch could",
        "because of None",
    ]
