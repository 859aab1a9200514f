"""Files around the code: workflows, metadata, pages and links."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Set

import pytest

import spikecore
from spikecore.cli import conformance

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
#: Runs in repositories of plugins, where there is no Makefile; the others run here.
CALLED = ROOT / ".github/workflows/conformance.yml"
OURS = [path for path in WORKFLOWS if path != CALLED]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def script(name: str) -> Any:
    """A script of ``.ci``, as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def package() -> Any:
    """The script of ``make package``."""
    return script("package")


def targets(text: str) -> Set[str]:
    """The make targets that commands of a text run."""
    return set(re.findall(r"\bmake ([a-z][a-z-]*)", re.sub(r"(?m)^\s*#.*", "", text)))


class TestWorkflows:
    @pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
    def test_every_command_is_a_make_target(self, path: Path) -> None:
        """Every job runs targets that the Makefile has, and no command of its own that could not be repeated here."""
        text = path.read_text(encoding="utf-8")
        there = set(re.findall(r"(?m)^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8")))
        assert targets(text) <= there
        assert all(command.startswith("make ") for command in re.findall(r"run: (.*)", text))

    def test_what_must_pass_here_must_pass_there(self) -> None:
        """Every target of ``.ci/run`` is run by the workflow of every push."""
        ours = targets((ROOT / ".ci/run").read_text(encoding="utf-8"))
        assert ours
        assert ours <= targets((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))

    def test_one_torch(self) -> None:
        """The workflows install the torch of ``.ci/run``."""
        (ours,) = re.findall(r"torch=(torch==\S+)", (ROOT / ".ci/run").read_text(encoding="utf-8"))
        for path in OURS:
            assert re.findall(r"TORCH: (\S+)", path.read_text(encoding="utf-8")) == [ours], path


class TestCalledWorkflow:
    """The workflow that plugins' repositories call."""

    TEXT = CALLED.read_text(encoding="utf-8")

    def test_every_input_is_used_and_none_is_a_command(self) -> None:
        """Inputs reach the shell as environment, and its options are those of the command."""
        head, _, jobs = self.TEXT.partition("\njobs:\n")
        inputs = re.findall(r"(?m)^      ([a-z-]+):$", head)
        assert inputs
        assert {*inputs} == {*re.findall(r"inputs\.([a-z-]+)", jobs)}
        steps = jobs.partition("    steps:\n")[2]
        assert "${{" not in "".join(re.findall(r"(?s)run: (.*?)\n      - ", steps))
        options = {option for param in conformance.params for option in param.opts}
        assert {*re.findall(r" (--[a-z]+)", steps)} <= options

    def test_the_page_and_a_new_project_call_it(self) -> None:
        """With inputs that it has."""
        inputs = re.findall(r"(?m)^      ([a-z-]+):$", self.TEXT.partition("\njobs:\n")[0])
        template = (ROOT / "spikecore/_scaffold/templates/ci.template").read_text(encoding="utf-8")
        page = (ROOT / "docs/backends.md").read_text(encoding="utf-8")
        for text in (template, page):
            called = text.partition("/.github/workflows/conformance.yml@main\n")[2].partition("```")[0]
            given = re.findall(r"(?m)^      ([a-z-]+):", called)
            assert "backend" in given
            assert {*given} <= {*inputs}


class TestMetadata:
    def test_the_citation_is_of_this_version(self) -> None:
        """CITATION.cff names the version of the code."""
        text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
        assert re.findall(r"(?m)^version: (.*)$", text) == [spikecore.__version__]


class TestSite:
    def test_every_page_is_in_the_menu(self) -> None:
        """A page in no group of the menu ends ``make docs``; found here without a build. No group is long."""
        docs = ROOT / "docs"
        menu = runpy.run_path(str(docs / "_ext" / "menu.py"))["MENU"]
        named = [re.sub(r".*<(.*)>", r"\1", entry) for group in menu.values() for entry in group]
        pages = {path.stem for path in docs.glob("*.*") if path.suffix in (".md", ".rst")} - {"index"}
        pages |= {f"notebooks/{path.stem}" for path in docs.glob("notebooks/*.md")}
        pages |= {f"benchmarks/{path.stem}" for path in docs.glob("benchmarks/*.md")}
        made = {"conformance/*", "decisions/0*", "decisions/index", "reference/modules", "reference/spikecore*"}
        assert sorted(named) == sorted({*pages, *made}), "add the page to docs/_ext/menu.py, and a row to docs/guide.md"
        assert max(map(len, menu.values())) <= 8


class TestContributing:
    def test_it_is_short(self) -> None:
        """CONTRIBUTING.md is read from top to bottom: 12 KB at most."""
        assert (ROOT / "CONTRIBUTING.md").stat().st_size <= 12 * 1024


class TestBudgets:
    def test_a_new_neuron_passes(self, tmp_path: Path) -> None:
        """A module of 40 lines more than the budget is no fault; of 100 it is, with the way out."""
        size = script("size")
        folder = tmp_path / "spikecore" / "neurons"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("\n" * 500)
        rows = {name: size.Row(500, 1, None) for name in ("spikecore/neurons", "library")}
        rows.update(dict.fromkeys(("spikecore/*.py", "tests"), size.Row(0, 0, None)))
        (folder / "new.py").write_text("\n" * 40)
        assert size.check(tmp_path, rows)[1] == []
        (folder / "new.py").write_text("\n" * 100)
        assert size.check(tmp_path, rows)[1][0] == (
            "spikecore/neurons has 600 lines, and its budget lets it have 560: "
            "make it smaller, or raise the budget in .ci/budgets.toml and say why"
        )


class TestMakefile:
    @pytest.mark.skipif(shutil.which("make") is None, reason="GNU make is not installed")
    def test_a_python_that_does_not_run_says_why(self, tmp_path: Path) -> None:
        """A shim of pyenv is one: its own error is printed, and nothing is said of its version."""
        shim = tmp_path / "python3.8"
        shim.write_text("#!/bin/sh\necho 'pyenv: python3.8: command not found' >&2\nexit 127\n")
        shim.chmod(0o755)
        command = ["make", "-C", str(ROOT), "test-floor", f"FLOOR_PYTHON={shim}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert "pyenv: python3.8: command not found\n" in done.stdout
        assert f"{shim} did not run: its error is above." in done.stdout
        assert done.returncode != 0


class TestChangelog:
    FOLDER = ROOT / "changelog.d"

    def test_every_fragment_has_a_known_type_and_a_text(self) -> None:
        """A change is a file ``+short-name.TYPE.md`` with text in it; towncrier would ignore another name."""
        kinds = re.findall(r'(?m)^directory = "(\w+)"$', PYPROJECT.partition("[tool.towncrier]\n")[2])
        assert kinds == ["added", "changed", "removed", "fixed"]
        name = re.compile(rf"\+[a-z0-9-]+\.(?:{'|'.join(kinds)})\.md")
        for path in sorted(set(self.FOLDER.iterdir()) - {self.FOLDER / "README.md"}):
            assert name.fullmatch(path.name), (
                f"{path.name}: call it +short-name.TYPE.md, TYPE one of {', '.join(kinds)}"
            )
            assert path.read_text(encoding="utf-8").strip(), f"{path.name} is empty"


class TestTables:
    """The pages of the field's benchmarks have the figures of the files beside them."""

    def test_the_tables_are_made_of_the_files(self) -> None:
        """No figure is written by hand."""
        made = runpy.run_path(str(ROOT / "docs/benchmarks/tables.py"))
        for name in made["PAGES"]:
            page = (ROOT / "docs/benchmarks" / name).read_text(encoding="utf-8")
            assert made["render"](page) == page


class TestResults:
    """docs/results.md is what docs/results/page.py makes of the runs that programs kept."""

    @pytest.fixture
    def page(self) -> Dict[str, Any]:
        """The script, as a module's names."""
        return runpy.run_path(str(ROOT / "docs/results/page.py"))

    def test_the_page_is_made_of_the_files(self, page: Dict[str, Any]) -> None:
        """No figure is written by hand."""
        made = page["render"](ROOT / "docs/results/training")
        assert (ROOT / "docs/results.md").read_text(encoding="utf-8") == made

    def test_a_row(self, page: Dict[str, Any]) -> None:
        """The median, the range and the time of three seeds; the clock where a GPU computes, whose host waits."""
        same = {"data": "MNIST", "library": "spikecore 1.0", "network": "784-10", "parameters": 7850, "epochs": 2}
        same.update(machine="Some(R) CPU @ 2 GHz", command="python examples/mnist.py")
        each = [(0.97, 5.0, 7.0), (0.99, 6.0, 9.0), (0.98, 7.0, 8.0)]
        runs = [{"accuracy": score, "seconds": clock, "processor_seconds": used} for score, clock, used in each]
        begin, end = ["MNIST", "784-10", "7,850", "2", "**98.00** (97.00 to 99.00)"], "<br>`python examples/mnist.py`"
        for backend, time in (("numba on cpu", "8 s"), ("cupy on cuda:0", "6 s")):
            made = page["row"]([{**same, **run, "backend": backend} for run in runs])
            assert made == [*begin, time, f"{backend}, Some @ 2 GHz{end}"]


class TestLinksOfADistribution:
    def test_relative_links_lead_into_the_repository(self, package: Any) -> None:
        """Links are resolved from the folder of the page, pictures to the file itself; others are as they were."""
        page = "[a](docs/x.md#here) [b](../../README.md) [c](https://other/y) [d](#below) ![e](p.png)"
        assert package.with_absolute_links(page, "plugins/own", "https://host/blob/1") == (
            "[a](https://host/blob/1/plugins/own/docs/x.md#here) [b](https://host/blob/1/README.md) "
            "[c](https://other/y) [d](#below) ![e](https://host/raw/1/plugins/own/p.png)"
        )
