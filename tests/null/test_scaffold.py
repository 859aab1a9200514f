"""Projects of new backends: what is written, which names are refused, and that nothing is written over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from new_backends import project
from spikecore.cli import app


def refused(name: str, into: Path) -> str:
    """The error of the command, on one line."""
    done = CliRunner().invoke(app, ["new-backend", name, "--into", str(into)])
    assert done.exit_code == 2, done.output
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Tape", "'Tape' must be a lower-case identifier"),
        ("my-lib", "'my-lib' must be a lower-case identifier"),
        ("2d", "'2d' must be a lower-case identifier"),
        ("", "'' must be a lower-case identifier"),
        ("../x", "'../x' must be a lower-case identifier"),
        ("auto", "'auto' is reserved"),
        ("torch", "'torch' is that of a built-in backend; choose another"),
        ("pytest", "'pytest': there is a module spikecore_pytest already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, words: str) -> None:
    """A name that spikecore would refuse later, or that is taken, is refused at once, and nothing is written."""
    assert words in refused(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["folder", "file", "broken link"])
def test_nothing_is_written_over(tmp_path: Path, there: str) -> None:
    """Whatever has the name of the project stays as it is."""
    root = tmp_path / "spikecore-tape"
    if there == "folder":
        root.mkdir()
    elif there == "file":
        root.write_text("mine")
    else:
        root.symlink_to(tmp_path / "nowhere")
    assert "spikecore-tape exists; move it away, or write into another folder" in refused("tape", tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["spikecore-tape"]


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("name", ["tape", "my_lib_2"])
def test_every_mark_of_a_template_is_filled(name: str, kernel: bool) -> None:
    """Paths and texts have the backend's name, its class and its package, and no mark is left."""
    files = project(name, kernel)
    assert f"spikecore_{name}/__init__.py" in files
    assert not any(re.search("@[a-zA-Z]+@", path + text) for path, text in files.items())
    compile(files[f"spikecore_{name}/__init__.py"], "module", "exec")
    assert f"class {'Tape' if name == 'tape' else 'MyLib2'}(" in files[f"spikecore_{name}/__init__.py"]
    assert ("KernelBackend" in files[f"spikecore_{name}/__init__.py"]) == kernel


def test_the_command_writes_and_says_what_to_do_next(tmp_path: Path) -> None:
    """The command prints where the project is and the next two commands."""
    done = CliRunner().invoke(app, ["new-backend", "tape", "--kernel", "--into", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"pip install -e {tmp_path / 'spikecore-tape'}" in done.output
    assert "spikecore conformance tape --tier core" in done.output
    assert "class Tape(KernelBackend)" in (tmp_path / "spikecore-tape" / "spikecore_tape" / "__init__.py").read_text()


def test_the_page_and_the_project_are_one_text() -> None:
    """docs/backends.md shows what new-backend writes: pyproject.toml, both modules and the test file."""
    page = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    tape, flat = project("tape"), project("flat", kernel=True)
    for text, language in (
        (tape["pyproject.toml"], "toml"),
        (tape["spikecore_tape/__init__.py"], "python"),
        (tape["tests/test_conformance.py"], "python"),
        (flat["spikecore_flat/__init__.py"], "python"),
    ):
        assert f"```{language}\n{text}```" in page
