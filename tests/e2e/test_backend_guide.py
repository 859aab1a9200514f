"""The backend that docs/backends.md writes is installed from the page, conforms, and is caught when it is broken."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"


def blocks(language: str) -> Any:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def run(site: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SPIKECORE_")}
    path = os.pathsep.join(filter(None, (str(site), environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=site,
        env={**environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def installed(folder: Path, old: str = "", new: str = "") -> Path:
    """The page's package, with a change, in a folder where pip put it."""
    source, site = folder / "source", folder / "site"
    (source / "spikecore_tape").mkdir(parents=True)
    site.mkdir()
    module, test = blocks("python")
    assert old in module
    (source / "pyproject.toml").write_text(blocks("toml")[0], encoding="utf-8")
    (source / "spikecore_tape" / "__init__.py").write_text(module.replace(old, new, 1), encoding="utf-8")
    (site / "test_tape.py").write_text(test, encoding="utf-8")
    pip = ["pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run(site, *pip, "--no-build-isolation", "--target", str(site), str(source))
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("tape"))


def conformance(site: Path, *arguments: str) -> Dict[str, Any]:
    return json.loads(run(site, "spikecore", "conformance", "tape", "--json", *arguments, check=False).stdout)


def test_it_has_about_sixty_lines() -> None:
    """What the page calls a complete backend stays readable in one go."""
    assert len(blocks("python")[0].splitlines()) <= 65


def test_its_test_file_passes(site: Path) -> None:
    """The conformance class of the page passes under pytest, in every tier, with the backend required."""
    done = run(site, "pytest", "-q", "-p", "no:cacheprovider", "--spikecore-require=tape", "test_tape.py")
    assert " passed, " in done.stdout
    assert "1 xfailed" in done.stdout


def test_the_command_agrees(site: Path) -> None:
    """From the shell the core tier passes, undeclared capabilities are counted apart, and nothing fails."""
    report = conformance(site, "--tier", "core", "--tier", "parameters")
    assert report["conforms"]
    assert report["counts"]["passed"] > 300
    assert report["counts"]["unsupported"] > 50


@pytest.mark.parametrize(
    ("old", "new", "case", "words"),
    [
        (
            "reversed(range(len(grad)))",
            "range(len(grad))",
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
    report = conformance(installed(tmp_path, old, new), "--case", case)
    (result,) = report["results"]
    assert result["outcome"] == "failed"
    assert [word for word in words if word not in result["message"]] == []
    assert f"spikecore conformance tape --case {case}" in result["message"]
