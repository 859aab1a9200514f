"""Notebooks of the site: what is a page, what its blocks give, and the files beside it.

That each runs, and that its text says what is so, is the business of ``make docs``.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _extension() -> Any:
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "_ext" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["notebooks"] = module
    spec.loader.exec_module(module)
    return module


notebooks = _extension()
PAGES = notebooks.pages()
PAGE = """# A page

[A link](tutorial.md#here) and [another](https://other/y).

```python
x = 3
print("one", x, "  ")
print("two")
```

<!-- assert x == 3 -->

Words.

```python
def f():
    return 1 / (x - 3)
```

End.
"""


#: The site needs it, and its libraries there warn of nothing.
runs = pytest.mark.skipif(sys.version_info < (3, 10), reason="the site is built on Python 3.10 or newer")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_notebook_is_listed_and_complete(path: Path) -> None:
    """A title, blocks that are Python, a row of the overview, and at the end where to read on."""
    text = path.read_text(encoding="utf-8")
    assert re.match(r"# \S.*\n\n", text)
    for block in notebooks.blocks(text):
        ast.parse(block.text if block.is_code else "\n".join(notebooks.checks(block.text)))
    name = "../tutorial.md" if path.stem == "tutorial" else path.name
    assert f"]({name})" in (DOCS / "notebooks" / "index.md").read_text(encoding="utf-8")
    last = re.findall(r"(?m)^## (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text))[-1]
    assert last in ("Read on", "Where to go")


def test_nine_notebooks() -> None:
    """The number is that of the overview."""
    assert len(PAGES) == 9


def test_a_page_is_its_blocks() -> None:
    """Nothing is lost between text and programs, and each knows its line."""
    blocks = notebooks.blocks(PAGE)
    assert [block.is_code for block in blocks] == [False, True, False, True, False]
    lines = PAGE.splitlines()
    for block in blocks:
        assert lines[block.line - 1] == block.text.splitlines()[0]


@runs
def test_what_blocks_print_and_draw(page: Path) -> None:
    """In order, each its own, in a process that has other warnings than this one."""
    pytest.importorskip("matplotlib")
    page.write_text(PAGE.replace("def f", "from matplotlib import pyplot as plt\nplt.plot([1, 2])\ndef f"), "utf-8")
    first, second = notebooks.run(page, 1)
    assert first == {"text": "one 3\ntwo\n", "figures": []}
    assert second["text"] == ""
    (figure,) = second["figures"]
    assert figure["svg"].startswith("<svg ")
    assert "#000000" not in figure["svg"]
    assert re.search(r'<rect [^>]*width="', figure["svg"]), "the curve is cut to an area without a width"


@runs
@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("x == 3", "x == 4", "its text says what is not so: assert x == 4"),
        ("End.", "```python\nf()\n```", 'page.md", line 17, in f'),
        ("x = 3", "import warnings; warnings.warn('of a page')", "UserWarning: of a page"),
    ],
    ids=["a claim", "an error", "a warning"],
)
def test_a_page_that_is_wrong_ends_the_build(page: Path, changed: str, to: str, said: str) -> None:
    """By name and line."""
    pytest.importorskip("matplotlib")
    page.write_text(PAGE.replace(changed, to), encoding="utf-8")
    with pytest.raises(RuntimeError, match=re.escape(said)):
        notebooks.run(page, 1)


def test_a_table_keeps_its_lines_and_a_sentence_may_be_wrapped() -> None:
    """Each paragraph of what was printed by itself."""
    outputs = [{"text": f"layer  kind\n0      LIF\n\n{'word ' * 20}.\n", "figures": []}, {"text": "", "figures": []}]
    shown = notebooks.page_with(PAGE, "page", outputs)
    assert re.findall(r":class: (.*)", shown) == ["printed", "printed prose"]


def test_the_files_beside_a_page() -> None:
    """A notebook in Jupyter's format with the same output, and a program; checks are in neither, nor in the page."""
    path = DOCS / "notebooks" / "own-neuron.md"
    text = path.read_text(encoding="utf-8")
    blocks = [block for block in notebooks.blocks(text) if block.is_code]
    outputs = [{"text": f"printed {k}\n", "figures": [{"svg": "<svg/>", "png": "QQ=="}]} for k in range(len(blocks))]
    book = json.loads(notebooks.notebook(path, outputs, "https://host"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in cells] == [block.text.strip("\n") for block in blocks]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(blocks) + 1))
    assert [cell["outputs"][0]["text"] for cell in cells] == [[f"printed {k}\n"] for k in range(len(blocks))]
    program = notebooks.program(path, "https://host")
    ast.parse(program)
    shown = notebooks.page_with(text, path.stem, outputs)
    assert all(f"printed {k}\n" in shown for k in range(len(blocks)))
    assert 'href="own-neuron.ipynb"' in shown
    for written in (json.dumps(book), program, shown):
        assert "<!-- assert" not in written
    assert "(https://host/blob/HEAD/docs/neurons.md)" in program
    assert "](../" not in notebooks.program(path)
