"""Notebooks: pages whose Python blocks run when the site is built, each with what it printed and drew below it.

``docs/tutorial.md`` and the pages of ``docs/notebooks`` are such pages: Markdown that reads well in the repository and
in a diff, without output. The build runs each page from top to bottom in a process of its own, with warnings as errors,
and writes it three times: as a page of the site, as ``NAME.ipynb`` with the same output, and as ``NAME.py``.
A line ``<!-- assert ... -->`` after a block is what the text claims: it is checked there, and shown nowhere.
The program of ``docs/index.md`` runs, too, and has no files.

``python docs/_ext/notebooks.py PAGE ...`` writes the notebooks and programs alone, into ``build/notebooks``.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

DOCS = Path(__file__).parents[1]
#: Measures time, so it runs alone, with every core.
ALONE = "speed"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
#: Seconds that one page may take.
LIMIT = 180
#: Warnings of other libraries about themselves, that a page can do nothing about.
IGNORED = (
    # torch.onnx.export copies trees of torch's own
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning",
)
#: Blue, orange and green are legible on white and on black, as in the gallery.
COLOURS = ("#3d85c6", "#e08214", "#4d9221", "#c51b8a")
#: What matplotlib draws -> what it is in a page, where text and lines have the colour of the page.
ADAPTED = {"#000000": "currentColor", "#666666": "#888888", "#1f77b4": COLOURS[0]}


#: What is written beside a page: ending, and what it is.
FILES = (("ipynb", "notebook"), ("py", "Python program"))


class Block(NamedTuple):
    """A part of a page: a Python program, or the text between two; ``line`` is its first line in the page."""

    is_code: bool
    text: str
    line: int


def pages() -> List[Path]:
    """Every notebook."""
    return [DOCS / "tutorial.md", *sorted({*(DOCS / "notebooks").glob("*.md")} - {DOCS / "notebooks" / "index.md"})]


def executed() -> List[Path]:
    """Every page whose blocks run: the notebooks, and the first page."""
    return [DOCS / "index.md", *pages()]


def blocks(text: str) -> List[Block]:
    """The Python blocks of a page, and the text between them."""
    parts: List[Block] = []
    line = 1
    for k, part in enumerate(re.split(r"(?ms)^```python\n(.*?)^```\n", text)):
        line += k % 2
        if part.strip() or k % 2:
            parts.append(Block(bool(k % 2), part, line))
        line += part.count("\n") + k % 2
    return parts


def checks(text: str) -> List[str]:
    """Claims of the text after a block."""
    return re.findall(r"(?m)^<!-- (assert .*) -->$", text)


def without_checks(text: str) -> str:
    """The text as a reader sees it."""
    return re.sub(r"(?m)^<!-- assert .* -->\n", "", text)


# In the process of a page.


def figures() -> List[Dict[str, str]]:
    """The pictures that matplotlib holds, as SVG for a page and as PNG for a notebook."""
    from matplotlib import pyplot as plt

    drawn = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        page, image = io.StringIO(), io.BytesIO()
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None})
        figure.savefig(image, format="png", dpi=120, facecolor="white")
        names = [f"{axis.get_ylabel()} over {axis.get_xlabel()}" for axis in figure.axes if axis.get_xlabel()]
        png = base64.b64encode(image.getvalue()).decode()
        drawn.append({"svg": svg(page.getvalue(), "; ".join(names)), "png": png})
    plt.close("all")
    return drawn


def svg(text: str, label: str) -> str:
    """A picture of matplotlib as part of a page: its width is the column's, its letters those of the page."""
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9]+_\d+"', "", text)  # those of two pictures would be equal
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {ADAPTED.get(m[2], m[2])}", text)
    text = re.sub(r"font: (\S+) [^;\"]*", r"font: \1 sans-serif; fill: currentColor", text)
    width = 1.5 * float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]  # matplotlib writes it
    start, _, rest = text.partition(">")
    start = re.sub(r' (width|height)="[^"]*"', "", start)
    look = f'role="img" aria-label="{escape(label)}" style="width: 100%; max-width: {width:.0f}px; height: auto"'
    return f"{start} {look}>{rest}"


def execute(page: Path) -> List[Dict[str, Any]]:
    """Output and pictures of each Python block of a page, when run in order in this process."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "spikecore", "font.size": 9, "axes.linewidth": 0.8,
        "axes.spines.top": False, "axes.spines.right": False, "axes.prop_cycle": mpl.cycler(color=COLOURS),
    })  # fmt: skip
    space: Dict[str, Any] = {"__name__": "__main__"}
    done: List[Dict[str, Any]] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.is_code:
            out = io.StringIO()
            # Lines of the page, so that an error names them.
            program = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(out):
                exec(program, space)
            text = re.sub(r"(?m)[ \t]+$", "", out.getvalue())
            done.append({"text": text, "figures": figures()})
        else:
            for check in checks(block.text):
                try:
                    exec(check, space)
                except AssertionError as error:
                    raise AssertionError(f"{page}: its text says what is not so: {check}") from error
    return done


# In the process that builds.


def run(page: Path, threads: int) -> List[Dict[str, Any]]:
    """Output and pictures of each Python block of a page, in a new process and an empty folder."""
    warnings = [argument for each in ("error", *IGNORED) for argument in ("-W", each)]
    paths = [str(DOCS.parent), str(DOCS.parent / "backends"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": str(threads)}
    environment.pop("SPIKECORE_BACKEND", None)  # a reader has none
    environment["COLUMNS"] = "96"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, *warnings, __file__, "--execute", str(page), str(out)]
        work = Path(folder, "work")
        work.mkdir()
        done = subprocess.run(
            command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=LIMIT,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{page} did not run:\n{done.stdout}")
        return list(json.loads(out.read_text(encoding="utf-8")))


def run_together(chosen: List[Path]) -> Dict[Path, List[Dict[str, Any]]]:
    """Results of the blocks of these pages, as many pages at a time as there are cores; not of one that runs alone."""
    together = [page for page in chosen if page.stem != ALONE]
    with ThreadPoolExecutor(CORES) as pool:
        return dict(zip(together, pool.map(lambda page: run(page, 1), together)))


def run_alone(chosen: List[Path]) -> Dict[Path, List[Dict[str, Any]]]:
    """Results of the blocks of the page that measures."""
    return {page: run(page, CORES) for page in chosen if page.stem == ALONE}


def notebook(page: Path, outputs: List[Dict[str, Any]], url: str = "") -> str:
    """The page as a Jupyter notebook, with its output."""
    cells: List[Dict[str, Any]] = []
    given = iter(outputs)
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"))):
        cell: Dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if block.is_code:
            output = next(given)
            shown: List[Dict[str, Any]] = []
            if output["text"]:
                shown.append({"output_type": "stream", "name": "stdout", "text": _lines(output["text"])})
            pictures = [{"image/png": figure["png"]} for figure in output["figures"]]
            shown += [{"output_type": "display_data", "metadata": {}, "data": data} for data in pictures]
            count = sum(other["cell_type"] == "code" for other in cells) + 1
            cell.update(cell_type="code", execution_count=count, outputs=shown, source=_lines(block.text.strip("\n")))
        else:
            text = _with_addresses(without_checks(block.text), page, url)
            cell.update(cell_type="markdown", source=_lines(text.strip("\n")))
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def program(page: Path, url: str = "") -> str:
    """The page as a Python program, whose cells editors know: text is a comment."""
    parts = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.is_code:
            parts.append("# %%\n" + block.text)
        else:
            text = _with_addresses(without_checks(block.text), page, url).strip("\n")
            parts.append("# %% [markdown]\n" + "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines()))
    return "\n".join(parts)


def _lines(text: str) -> List[str]:
    return text.splitlines(keepends=True)


def _with_addresses(text: str, page: Path, url: str) -> str:
    """A notebook is read elsewhere: links lead to the repository where its address is known, else they are text."""

    def replaced(link: Any) -> str:
        words, target = link.groups()
        to = (page.parent / target.partition("#")[0]).resolve().relative_to(DOCS.parent)
        return f"[{words}]({url}/blob/HEAD/{to.as_posix()})" if url else str(words)

    return re.sub(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", replaced, text)


def page_with(text: str, name: str, outputs: List[Dict[str, Any]]) -> str:
    """The text of a page with output below each block, and below its title the files to download."""
    given, parts = iter(outputs), []
    for block in blocks(text):
        if not block.is_code:
            parts.append(without_checks(block.text))
            continue
        output = next(given)
        parts.append(f"```python\n{block.text}```\n")
        parts += [_printed(paragraph) for paragraph in re.split(r"\n{2,}", output["text"].strip("\n")) if paragraph]
        drawn = [f'<figure class="drawn">{figure["svg"]}</figure>' for figure in output["figures"]]
        parts += [f"\n```{{raw}} html\n{figure}\n```\n" for figure in drawn]
    if name == "index":
        return "".join(parts)
    links = [f'<a href="{name}.{end}" download>{kind}</a>' for end, kind in FILES]
    words = f"This page as a {links[0]} or a {links[1]}. The output below is of the build of this site."
    files = f'\n```{{raw}} html\n<p class="notebook-files">{words}</p>\n```\n'
    title, rest = "".join(parts).split("\n", 1)
    return f"{title}\n{files}{rest}"


def _printed(text: str) -> str:
    """A paragraph of what was printed: a table, or a program, keeps its lines; sentences may be wrapped."""
    prose = not any("  " in line.strip() for line in text.splitlines()) and max(map(len, text.splitlines())) > 80
    return f"\n```{{code-block}} text\n:class: printed{' prose' if prose else ''}\n\n{text}\n```\n"


def begun(app: Any) -> None:
    """Run the pages, beside what Sphinx reads before it needs them."""
    app.notebooks = {}
    app.running = ThreadPoolExecutor(1).submit(run_together, executed()) if app.builder.format == "html" else None


def read(app: Any, docname: str, source: List[str]) -> None:
    """Put its output into a page."""
    page = DOCS / f"{docname}.md"
    if app.running is None or page not in executed():
        return
    if not app.notebooks:
        app.notebooks = app.running.result()
        app.notebooks.update(run_alone(pages()))
    source[0] = page_with(source[0], page.stem, app.notebooks[page])


def finished(app: Any, error: Any) -> None:
    """Put notebooks and programs beside the pages of the site."""
    if not error:
        for page in filter(app.notebooks.__contains__, pages()):
            outputs = app.notebooks[page]
            write(page, outputs, (Path(app.outdir) / page.relative_to(DOCS)).parent, app.config.spikecore_url)


def write(page: Path, outputs: List[Dict[str, Any]], folder: Path, url: str = "") -> None:
    """Write the notebook and the program of a page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{page.stem}.ipynb").write_text(notebook(page, outputs, url), encoding="utf-8")
    (folder / f"{page.stem}.py").write_text(program(page, url), encoding="utf-8")


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", begun)
    app.connect("source-read", read)
    app.connect("build-finished", finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main(arguments: List[str]) -> None:
    """Run pages: one in this process, for :func:`run`, or those named, or all, each in its own."""
    if arguments[:1] == ["--execute"]:
        page, out = map(Path, arguments[1:])
        linecache.getlines(str(page))
        out.write_text(json.dumps(execute(page)), encoding="utf-8")
        return
    folder = DOCS.parent / "build" / "notebooks"
    chosen = [Path(argument).resolve() for argument in arguments] or pages()
    try:
        given = {**run_together(chosen), **run_alone(chosen)}
    except RuntimeError as error:
        sys.exit(str(error))
    for page, outputs in given.items():
        write(page, outputs, folder)
        print(folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
