"""The projects that ``spikecore new-backend`` writes are installed, conform, and are caught when they are broken.

docs/backends.md shows the same text. An older and a newer plugin, and cases that a plugin adds, are installed the same
way.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

import warm
from new_backends import project

pytestmark = pytest.mark.slow
#: A neuron beside the reference, and who computed it.
RUNS = """
import torch, spikecore as sc
x, neuron = torch.rand(4, 2, 3), sc.IF()
print(torch.equal(neuron(x), sc.IF(backend="torch")(x)), neuron.extra_repr().rpartition("backend=")[2])
"""
PIP = ["pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]


def run(site: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SPIKECORE_")}
    path = os.pathsep.join(filter(None, (str(site), environ.get("PYTHONPATH", ""))))
    done = warm.run("-m", *command, cwd=site, env={**environ, "PYTHONPATH": path})
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def installed(
    folder: Path,
    name: str = "tape",
    old: str = "",
    new: str = "",
    kernel: bool = False,
    more: Optional[Dict[str, str]] = None,
) -> Path:
    """A project as new-backend writes it, with a change and more files or lines, in a folder where pip put it.

    pip takes two seconds, so it installs each project once, with the metadata that it has, and a change is made there.
    """
    changed = dict(more or {})
    site = folder / "site"
    shutil.copytree(
        by_pip(name, kernel, changed.pop("pyproject.toml", "")), site, ignore=shutil.ignore_patterns("__pycache__")
    )
    files = project(name, kernel)
    module = f"spikecore_{name}/__init__.py"
    assert old in files[module]
    changed[module] = files[module].replace(old, new, 1)
    for path, text in changed.items():
        (site / path).write_text(text, encoding="utf-8")
    return site


@functools.lru_cache(maxsize=None)
def by_pip(name: str, kernel: bool, entries: str) -> Path:
    """Where pip put a project with more entry points, and its test file."""
    folder = Path(tempfile.mkdtemp(prefix=f"spikecore-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, site = folder / "source", folder / "site"
    site.mkdir()
    files = project(name, kernel)
    files["pyproject.toml"] += entries
    for path, text in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text, encoding="utf-8")
    (site / "test_conformance.py").write_text(files["tests/test_conformance.py"], encoding="utf-8")
    run(site, *PIP, "--target", str(site), str(source))
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("tape"))


def conformance(site: Path, *arguments: str, name: str = "tape") -> Dict[str, Any]:
    done = run(site, "spikecore", "conformance", name, "--json", *arguments, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_it_is_listed_without_import_and_runs(site: Path) -> None:
    """From metadata alone, with name and version; a neuron that asks for it is computed by it."""
    module = site / "spikecore_tape" / "__init__.py"
    text = module.read_text(encoding="utf-8")
    module.write_text(f"{text}\nprint('imported')\n", encoding="utf-8")
    try:
        listed = run(site, "spikecore", "backends", "--json").stdout
        assert "imported" not in listed
        (row,) = [row for row in json.loads(listed) if row["name"] == "tape"]
        assert (row["state"], row["distribution"], row["version"]) == ("installed", "spikecore-tape", "0.1.0")
        probed = run(site, "spikecore", "backends", "--json", "--probe")
        (row,) = [row for row in json.loads(probed.stdout) if row["name"] == "tape"]
        assert row["state"] == "ready"
        assert "imported" in probed.stderr  # where errors go, so that the list is readable for programs
    finally:
        module.write_text(text, encoding="utf-8")
    done = warm.run("-c", RUNS, env={**os.environ, "PYTHONPATH": str(site), "SPIKECORE_BACKEND": "tape"})
    assert done.stdout == "True tape from SPIKECORE_BACKEND (tape on cpu)\n", done.stderr


def test_its_test_file_passes(site: Path) -> None:
    """The conformance class of the page passes under pytest, here in two families, with the backend required."""
    some = ("-k", "forward or gradient", "--spikecore-require=tape")
    done = run(site, "pytest", "-q", "-p", "no:cacheprovider", *some, "test_conformance.py")
    assert " passed, " in done.stdout
    assert " failed" not in done.stdout


def test_a_kernel_backend_passes_as_it_is_written(tmp_path: Path) -> None:
    """With --kernel the project passes the core tier, with nothing undeclared."""
    site = installed(tmp_path, "flat", kernel=True)
    report = conformance(site, "--tier=core", name="flat")
    counts = {outcome: count for outcome, count in report["counts"].items() if count}
    assert set(counts) == {"passed"}
    assert counts["passed"] > 400


@pytest.mark.parametrize(
    ("old", "new", "case", "words"),
    [
        (
            "reversed(range(len(x)))",
            "range(len(x))",
            "gradient/lif-hard",
            ["input gradient of LIF(tau=", "of 252 differ from the oracle", "first at (t=0, n=0, 0): got"],
        ),
        (
            "out, *now = (value",
            "out, *_ = (value",
            "forward/lif-hard",
            ["spikes of LIF(tau=", "first at (t=", ": got", ", expected"],
        ),
    ],
    ids=["time runs forwards in backward", "the state never moves"],
)
def test_a_bug_is_led_to(tmp_path: Path, old: str, new: str, case: str, words: Any) -> None:
    """With one deliberate bug the suite fails, and the message names the quantity, the neuron and the place."""
    report = conformance(installed(tmp_path, "tape", old, new), "--case", case)
    (result,) = report["results"]
    assert result["outcome"] == "failed"
    assert [word for word in words if word not in result["message"]] == []
    assert f"spikecore conformance tape --case {case}" in result["message"]


# -- versions of the contract

#: A plugin as it was written for version 1 of the contract, before minor versions: an integer, and nothing newer.
OF_VERSION_1 = """
import torch

import spikecore
from spikecore.backend import Backend, BackendInfo, Capabilities
from spikecore.lang.eager import StraightLine, number

CAN = Capabilities(float32=True)


class Old(Backend):
    name = "old"
    capabilities = CAN

    def compile(self, program, spec):
        params = program.leaves[len(program.inputs) + len(program.states) :]
        initial = StraightLine(params, program.initial)
        step = StraightLine(program.leaves, [*program.outputs, *program.next])

        def runner(inputs, state, params, record):
            (x,) = inputs
            values = [v.to(x.dtype) if isinstance(v, torch.Tensor) else number(v, x) for v in params]
            now = [v.expand(x.shape[1:]) for v in initial(values, x)] if state is None else state
            outputs = []
            for x_t in x:
                out, *now = (v.expand(x_t.shape) for v in step([x_t, *now, *values], x))
                outputs.append(out)
            return (torch.stack(outputs) if outputs else x.clone(),), tuple(v.clone() for v in now), ()

        return runner


@spikecore.backend.hookimpl
def spikecore_backends():
    return [BackendInfo("old", "spikecore_old:Old", ("cpu",), CAN, probe=lambda: None, api=1)]
"""


def test_a_plugin_of_an_older_minor_version_works(tmp_path: Path) -> None:
    """A plugin written for contract 1 computes, passes its cases, and is asked for nothing that it does not know."""
    template = project("old")["spikecore_old/__init__.py"]
    site = installed(tmp_path, "old", template, OF_VERSION_1)
    report = conformance(site, "--case", "bits/*", "--case", "gradient/lif-hard", name="old")
    assert {result["outcome"] for result in report["results"]} == {"passed", "unsupported"}


# -- cases of a plugin

CASES = """
import torch

import spikecore as sc
from spikecore.testing import Collection

CASES = Collection()


def wrong(context):
    assert sc.IF(backend=context.name)(context.tensor([[0.5]])).item() == 1.0, "half is not enough"


def right(context):
    assert sc.IF(backend=context.name)(context.tensor([[1.5]])).item() == 1.0


CASES.add("tape/right", "own", "one and a half is enough", right)
CASES.add("tape/wrong", "own", "a half is enough", wrong)
CASES.add("tape/undeclared", "own", "is not declared", right, needs=("record",), undeclared="nothing")
"""
ENTRY = '\n[project.entry-points."spikecore.cases"]\ntape = "spikecore_tape.cases:CASES"\n'


def test_a_plugin_adds_cases_of_its_own(tmp_path: Path) -> None:
    """They are listed and run by default, fail as others do, and no other backend runs them."""
    site = installed(tmp_path, more={"spikecore_tape/cases.py": CASES, "pyproject.toml": ENTRY})
    report = conformance(site, "--tier", "own")
    assert {result["id"]: result["outcome"] for result in report["results"]} == {
        "tape/right": "passed",
        "tape/wrong": "error",
        "tape/undeclared": "unsupported",
    }
    assert "half is not enough" in next(r["message"] for r in report["results"] if r["id"] == "tape/wrong")
    assert "tape/right" in run(site, "spikecore", "conformance", "tape", "--list", "--tier", "own").stdout
    assert "tape/right" not in run(site, "spikecore", "conformance", "--list").stdout
    (site / "test_own.py").write_text(
        "from spikecore.testing import BackendConformance\n\n\nclass TestTape(BackendConformance):\n"
        '    backend = "tape"\n    tiers = ("own",)\n    expected_failures = {"tape/wrong": "a half is not enough"}\n'
    )
    done = run(
        site, "pytest", "-q", "-p", "no:cacheprovider", "--spikecore-require=tape", "-rA", "test_own.py", check=False
    )
    assert "PASSED test_own.py::TestTape::test_case[tape/right]" in done.stdout, done.stdout
    assert "test_own.py::TestTape::test_case[tape/wrong]" in done.stdout
