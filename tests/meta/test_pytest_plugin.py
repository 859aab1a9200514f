"""The pytest plugin and the three-line class as a third party uses them: in processes and folders of their own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import spikecore
import spikecore_pytest
import warm
from spikecore.testing import CASES

ROOT = Path(spikecore_pytest.__file__).parent
SOURCES = [str(ROOT), *{str(Path(path).parent) for path in spikecore.__path__}, str(ROOT / "backends")]
SOURCES.append(str(ROOT / "tests" / "shared"))

MODULE = """
import spikecore
from spikecore.backend import BackendInfo
from plain_loop import EVERYTHING


@spikecore.backend.hookimpl
def spikecore_backends():
    return [BackendInfo("buggy", "spikecore_buggy.backend:Buggy", ("*",), EVERYTHING, lambda: {reason!r})]
"""

BACKEND = """
from dataclasses import replace

from plain_loop import EVERYTHING, Loop, Plain


class Buggy(Plain):
    name = "buggy"

    class loop(Loop):
        def backward(self, tensors, record, grads):
            made = super().backward(tensors, record, grads)
            {bug}
            return made
"""

TESTS = """
from spikecore.testing import TIERS, BackendConformance, ExpectedFailure


class TestBuggy(BackendConformance):
    backend = "buggy"
    tiers = {tiers}
    expected_failures = {expected}
"""

#: What a class has that names no tiers.
DEFAULT = "TIERS"

#: The modules of pytest plugins that are installed here.
LOADED = """
import importlib.metadata as m
print([p.value for d in m.distributions() for p in d.entry_points if p.group == "pytest11"])
"""
#: Twice the gradients, the same value.
BUG = "made = [g if g is None else 2 * g for g in made]"


@pytest.fixture
def plugin(tmp_path: Path) -> Any:
    """A backend package with its metadata, in a folder; run pytest there."""

    def run(
        *arguments: str,
        bug: str = "pass",
        reason: Any = None,
        expected: Any = None,
        tiers: str = "('core',)",
        **env: str,
    ) -> Any:
        site = tmp_path / "site"
        package, metadata = site / "spikecore_buggy", site / "spikecore_buggy-0.1.dist-info"
        for folder in (package, metadata):
            folder.mkdir(parents=True)
        (package / "__init__.py").write_text(MODULE.format(reason=reason))
        (package / "backend.py").write_text(BACKEND.format(bug=bug))
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spikecore-buggy\nVersion: 0.1\n")
        (metadata / "entry_points.txt").write_text("[spikecore.backends]\nbuggy = spikecore_buggy\n")
        (tmp_path / "test_buggy.py").write_text(TESTS.format(expected=expected or {}, tiers=tiers))
        return pytest_in(tmp_path, *arguments, path=[str(site)], **env)

    return run


def pytest_in(folder: Path, *arguments: str, path: Any = (), **env: str) -> Any:
    """Run pytest with the plugin in a folder."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SPIKECORE", "PYTEST"))}
    clean["PYTHONPATH"] = os.pathsep.join([*path, *SOURCES])
    plugin = [] if _loaded(clean["PYTHONPATH"]) else ["-p", "spikecore_pytest"]
    command = ["-m", "pytest", "-p", "no:cacheprovider", *plugin, *arguments]
    return warm.run(*command, cwd=folder, env={**clean, **env}, timeout=300)


@functools.lru_cache(maxsize=None)
def _loaded(path: str) -> bool:
    """True if pytest finds the plugin by itself: it is installed here, and not only on the path."""
    done = warm.run("-c", LOADED, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    return "spikecore_pytest" in done.stdout


def test_the_plugin_imports_neither_spikecore_nor_torch(tmp_path: Path) -> None:
    """It is loaded by every pytest run of the environment."""
    code = "import sys, spikecore_pytest; print(sorted({'spikecore', 'torch', 'numpy'} & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_an_empty_folder(tmp_path: Path) -> None:
    """pytest with the plugin runs nothing there, and does not fail for it unless something is required."""
    assert pytest_in(tmp_path).returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    result = pytest_in(tmp_path, SPIKECORE_REQUIRE="torch")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "required: torch" in result.stdout
    assert "backend 'torch' is required, and none of its core conformance cases passed" in result.stdout


def test_a_sound_package_passes(plugin: Any, tmp_path: Path) -> None:
    """Through its entry point, where warnings are errors; what it does not declare is counted apart. pytest's JUnit
    file is in the form of its schema (xunit2): no property at a test case.
    """
    chosen = ("-k", "forward/lif-hard] or compile or expected", "--junitxml=out.xml")
    result = plugin("-q", "-W", "error", *chosen, tiers=DEFAULT, SPIKECORE_REQUIRE="buggy")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "9 unsupported" in result.stdout
    cases = list(ElementTree.parse(tmp_path / "out.xml").iter("testcase"))
    assert len(cases) == 11
    assert {child.tag for case in cases for child in case} <= {"skipped", "failure", "error"}


def test_a_bug_leads_to_itself(plugin: Any) -> None:
    """A backend with twice the surrogate fails in gradients and nowhere else, and the message says where to look."""
    result = plugin("-q", "-k", "lif-hard", bug=BUG, tiers=DEFAULT)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    failed = {line.split("[")[1].split("]")[0] for line in result.stdout.splitlines() if line.startswith("FAILED")}
    assert "gradient/lif-hard" in failed
    assert not any(id.startswith(("forward/", "exact/", "bits/", "single-step/")) for id in failed)
    for words in ("input gradient", "LIF(", "expected", "again: spikecore conformance buggy --case gradient/lif-hard"):
        assert words in result.stdout, words


def test_expected_failures(plugin: Any) -> None:
    """One that fails is an xfail with its reason; one that passes fails."""
    expected = {"gradient/lif-hard": "no surrogate yet, buggy#1", "forward/lif-hard": "nothing is wrong here"}
    result = plugin("-q", "-rx", "-k", "forward/lif-hard or gradient/lif-hard]", bug=BUG, expected=expected)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed" in result.stdout
    assert "1 xfailed" in result.stdout
    assert "no surrogate yet, buggy#1" in result.stdout
    assert "take it off expected_failures" in result.stdout


def test_required_and_nothing_but_expected_failures_fails(plugin: Any) -> None:
    """A required backend must pass a core case: one whose every case is excused does not."""
    expected = {"gradient/lif-hard": "no surrogate yet, buggy#1"}
    chosen = ("-q", "-k", "gradient/lif-hard]")
    result = plugin(*chosen, bug=BUG, expected=expected, SPIKECORE_REQUIRE="buggy")
    assert "1 xfailed" in result.stdout
    assert "backend 'buggy': not tested: nothing passed" in result.stdout
    assert "required, and none of its core conformance cases passed" in result.stdout
    assert result.returncode == pytest.ExitCode.TESTS_FAILED


def test_the_verdict_is_in_the_summary(plugin: Any) -> None:
    """A class of one tier is no proof of the whole, and says so."""
    result = plugin("-q", "-k", "forward/ or expected", tiers="('core',)")
    assert result.returncode == 0, result.stdout
    assert "spikecore: backend 'buggy': partial: " in result.stdout
    assert "tiers not run" in result.stdout
    assert "cases of the other tiers not chosen" in result.stdout


def test_results_come_home_from_workers(plugin: Any) -> None:
    """Under pytest-xdist the verdict is that of all workers."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    result = plugin("-q", "-n", "2", "-p", "xdist", "-k", "forward/lif-", SPIKECORE_REQUIRE="buggy")
    assert result.returncode == 0, result.stdout + result.stderr
    passed = sum(case.id.startswith("forward/lif-") and case.tier == "core" for case in CASES)
    assert f"partial: {passed} cases passed" in result.stdout


@pytest.mark.parametrize("required", [False, True])
def test_unavailable_is_skipped_and_required_is_not(plugin: Any, required: bool) -> None:
    """The reason is said; with the option the same is a failure."""
    option = ("--spikecore-require", "buggy") if required else ()
    result = plugin("-q", "-rs", *option, "-k", "forward/lif-hard]", reason="no such chip here")
    assert result.returncode == (pytest.ExitCode.TESTS_FAILED if required else pytest.ExitCode.OK)
    assert "no such chip here" in result.stdout
    assert ("backend 'buggy': not tested: nothing passed" in result.stdout) or required
