"""The documentation's examples work as shown."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Set

import pytest
import torch

import warm
from spikecore_cupy import device, host

ROOT = Path(__file__).parents[2]
#: What must still hold after the blocks of any page.
AFTERWARDS = """
from spikecore_cupy import custom, device as on_gpu
assert custom.CustomKernel.kernel is on_gpu.Kernel, "the page changes kernels for the whole process"
"""
#: Pages about other packages -> these packages.
NEEDED = {"convert.md": ("spikingjelly", "snntorch"), "nir.md": ("nir",)}
#: Its programs need trainers, which warn: tests/peers/test_trainers.py runs them.
TRAINERS = ROOT / "docs" / "trainers.md"
#: Runs when the site is built, as the pages of docs/notebooks do.
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "extensions" / "README.md",
    *sorted({*(ROOT / "docs").glob("*.md")} - {TRAINERS, TUTORIAL}),
]
#: Every page of the repository.
LINKED = [
    path
    for pattern in ("*.md", "docs/**/*.md", "extensions/**/*.md", "plugins/*/*.md")
    for path in sorted(ROOT.glob(pattern))
]


def python_blocks(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    """Copied into one file, the blocks run without an error or a warning, and change no class for others."""
    why = device.reason() if torch.cuda.is_available() else host.reason()
    if page.name == "kernels.md" and why:
        pytest.skip(why)
    lacking = [name for name in NEEDED.get(page.name, ()) if find_spec(name) is None]
    if lacking:
        pytest.skip(f"the page is about {' and '.join(lacking)}, which is not installed (make test-peers, extra dev)")
    program = tmp_path / "page.py"
    program.write_text(f"{python_blocks(page)}\n{AFTERWARDS}", encoding="utf-8")
    # no IPU here: the page about it runs on the emulator
    environment = {**os.environ, "SPIKECORE_IPU_EMULATOR": str(int(page.name == "ipu.md"))}
    # torch 2.0 imports pkg_resources, which warns of itself and of what else is installed
    old = ["-W", "ignore::DeprecationWarning"] if torch.__version__ < "2.1" else []
    # torch.func.jvp makes torch load rules that it compiles with its own torch.jit.script
    for kind in ("DeprecationWarning", "FutureWarning"):  # the second from torch 2.14 on
        old += ["-W", f"ignore:`torch.jit.script` is deprecated:{kind}"]
    # and torch.onnx.export of a scan those of methods
    old += ["-W", "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"]
    # torch.onnx.export copies trees of torch's own, which warn of themselves
    old += ["-W", "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning"]
    done = warm.run("-W", "error", *old, program, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


def anchors(page: Path) -> Set[str]:
    """The names that links can give to the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = [heading.lower().replace("`", "") for heading in re.findall(r"(?m)^#+ (.*)$", text)]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that exists, and a heading that it has."""
    lost = []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        to = page.parent / path if path else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            lost.append(f"{path}#{anchor}")
    assert lost == []
