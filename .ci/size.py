"""Sizes of the project: budgets that ``make check`` holds, and a table of figures that compares two checkouts.

``python .ci/size.py --check`` prints lines and files of every package beside its budget in ``budgets.toml``, and fails
where one is above by more than :meth:`Row.limit` lets it. ``python .ci/size.py --root BEFORE --root .`` prints the
figures of both checkouts side by side; ``--json`` prints them as JSON.

Lines are lines of Python files, blank ones and comments included. *The library* is ``spikecore/`` without ``cli``
and ``testing``. The figures are these:

- lines and files of the library, of ``spikecore/`` as a whole, of the backends, of the extensions, of the plugins
  without their tests, and of all tests; bytes of pages (``*.md`` and ``docs/**/*.md``);
- modules at import: those of spikecore that ``import spikecore`` and a first use of ``spikecore.LIF`` put into
  ``sys.modules``, in a process of its own;
- base classes of ``sc.LIF``: classes before ``nn.Module`` in its method resolution order, without itself;
- autograd routes: classes of the library with a base named ``Function`` or ``autograd.Function``, and calls of
  ``register_autograd``. Those of ``lang``, which are derivatives of single operations, are counted, too;
- uses of the Python stack: places in the library that ask for a frame, read one, go from one to the next, or have
  Python call a function at each frame. A place is an attribute or a name of :data:`STACK`;
- questions about the mode: calls in the library of a function that says who is calling: the compiler, the exporter, a
  transform, a captured graph. These are the functions of :data:`QUESTIONS`;
- private imports: names that a file of the library imports out of another package of spikecore, where a module below
  that package, or the name, begins with ``_``, but for names such as ``__version__``. The package itself may:
  ``from spikecore._base import locks`` is not counted, ``from spikecore._base._locks import Lock`` is;
- private imports of tests: names that tests import out of this project where a part of the whole name begins with
  ``_``. ``budgets.toml`` has the largest number of these, too.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, cast

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib  # every environment of the Makefile has pip

#: The figure that has a budget.
OF_TESTS = "private imports of tests"
ROOT = Path(__file__).resolve().parents[1]
BUDGETS = Path(__file__).with_name("budgets.toml")
#: Parts of spikecore/ that are programs and suites, and no part of the library.
APART = ("cli", "testing")
#: Names that reach the Python stack, or read a frame of it.
STACK = frozenset(
    "_getframe _current_frames currentframe getouterframes getinnerframes extract_stack extract_tb walk_stack walk_tb "
    "setprofile settrace f_back f_code f_globals f_lasti f_lineno f_locals gi_frame tb_frame tb_lineno tb_next".split()
)
#: First words of the project's packages, apart from tests.
OURS = re.compile(r"(spikecore|poptorch_emulator)(_\w+)?")
#: Functions of ``inspect`` whose names are common words elsewhere.
INSPECT = frozenset(("stack", "trace"))
#: Functions that say who is calling: spikecore's and torch's.
QUESTIONS = frozenset(
    "is_batched_by_autograd is_compiling is_current_stream_capturing is_dynamo_compiling is_exporting "
    "is_functorch_wrapped_tensor is_fx_tracing is_in_onnx_export is_plain is_scripting is_tracing "
    "is_transforming are_transforms_active world".split()
)
#: Printed by a process that imports a checkout: where spikecore is, its modules, and base classes of LIF.
IMPORTED = """
import sys
sys.path[:0] = sys.argv[1:]
import spikecore
classes = spikecore.LIF.__mro__
modules = [name for name in sys.modules if name.partition(".")[0] == "spikecore"]
from torch import nn
print(spikecore.__file__, len(modules), classes.index(nn.Module) - 1, sep="\\n")
"""


class Size(NamedTuple):
    """Lines and files of a package."""

    lines: int
    files: int


class Row(NamedTuple):
    """A package of ``budgets.toml``: its budget now, and how many lines it shall have."""

    lines: Optional[int]
    files: Optional[int]
    aim: Optional[int]

    def limit(self) -> Size:
        """What is allowed: 60 lines or 3 % above the budget, whichever is more, and one file. The budget in lines of a
        package that is only planned is its aim.
        """
        lines = (self.lines if self.lines is not None else self.aim) or 0
        return Size(max(lines + 60, lines * 103 // 100), sys.maxsize if self.files is None else self.files + 1)


def python_files(*folders: Path) -> List[Path]:
    """Python files below folders, in order."""
    return sorted(path for folder in folders for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def size(files: List[Path]) -> Size:
    """Lines and number of files."""
    return Size(sum(path.read_bytes().count(b"\n") for path in files), len(files))


def library(root: Path) -> List[Path]:
    """Files of the library."""
    top = root / "spikecore"
    return [path for path in python_files(top) if path.relative_to(top).parts[0] not in APART]


def packages(root: Path) -> Dict[str, List[Path]]:
    """The packages that have a budget, by name, each with its files: folders, and modules beside them."""
    top = root / "spikecore"
    found = {"spikecore/*.py": sorted(top.glob("*.py"))}
    beside = [init for folder in ("backends", "extensions") for init in root.glob(f"{folder}/*/__init__.py")]
    for init in sorted([*top.glob("*/__init__.py"), *beside]):
        found[str(init.parent.relative_to(root))] = python_files(init.parent)
    for project in sorted(path.parent for path in root.glob("plugins/*/pyproject.toml")):
        tests = python_files(project / "tests")
        found[str(project.relative_to(root))] = [path for path in python_files(project) if path not in tests]
    found["tests"] = python_files(root / "tests", *root.glob("plugins/*/tests"))
    found["library"] = library(root)
    return found


def budgets(path: Path = BUDGETS) -> Dict[str, Row]:
    """The rows of ``budgets.toml``."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
    return {
        name: Row(row.get("lines"), row.get("files"), row.get("aim"))
        for name, row in cast("Dict[str, Any]", table).items()
    }


def check_tests(root: Path, path: Path = BUDGETS) -> List[str]:
    """A sentence for each private import, if tests have more of them than their budget lets them have."""
    most = tomllib.loads(path.read_text(encoding="utf-8"))["figure"][OF_TESTS]
    private = private_imports_of_tests(packages(root)["tests"])
    return (
        [f"{name}: import a public name; {OF_TESTS} may be {most}" for name in private] if len(private) > most else []
    )


def check(root: Path, rows: Dict[str, Row]) -> Tuple[List[str], List[str]]:
    """The table of packages beside their budgets, and a sentence for each package that is above, or has no row."""
    there = {name: size(files) for name, files in packages(root).items()}
    lines = [f"{'package':<34}{'lines':>8}{'budget':>8}{'aim':>8}{'files':>8}{'budget':>8}"]
    faults = [f"{name} has no row in .ci/budgets.toml: add one" for name in there if name not in rows]
    for name, row in rows.items():
        if name not in there:
            if row.lines is not None:
                faults.append(f"there is no {name} any more: delete its row in .ci/budgets.toml")
            continue
        now, limit = there[name], row.limit()
        shown = ["-" if value is None else f"{value:,}" for value in (row.lines, row.aim, row.files)]
        lines.append(f"{name:<34}{now.lines:>8,}{shown[0]:>8}{shown[1]:>8}{now.files:>8,}{shown[2]:>8}")
        for what, value, most in (("lines", now.lines, limit.lines), ("files", now.files, limit.files)):
            if value > most:
                fault = f"{name} has {value:,} {what}, and its budget lets it have {most:,}"
                faults.append(f"{fault}: make it smaller, or raise the budget in .ci/budgets.toml and say why")
    return lines, faults


def nodes(root: Path) -> Iterator[Tuple[Path, ast.AST]]:
    """Every node of every file of the library."""
    for path in library(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(root), node


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c`` and of ``c``; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_route(node: ast.AST) -> bool:
    """Whether it defines an ``autograd.Function``, or calls ``register_autograd``."""
    if isinstance(node, ast.ClassDef):
        return any(last_name(base) == "Function" for base in node.bases)
    return isinstance(node, ast.Call) and last_name(node.func) == "register_autograd"


def uses_stack(node: ast.AST) -> bool:
    """Whether it is a name of :data:`STACK`, or one of ``inspect``'s."""
    if isinstance(node, ast.Attribute):
        return node.attr in STACK or (node.attr in INSPECT and last_name(node.value) == "inspect")
    if isinstance(node, ast.Name):
        return node.id in STACK
    return False


def asks(node: ast.AST) -> bool:
    """Whether it is a call of a function of :data:`QUESTIONS`."""
    return isinstance(node, ast.Call) and last_name(node.func) in QUESTIONS


def private_imports(path: Path, node: ast.AST) -> int:
    """How many private names of another package of spikecore a node imports."""
    if not isinstance(node, ast.ImportFrom):
        return 0
    package = path.with_suffix("").parts[:-1]
    start = package[: len(package) - node.level + 1] if node.level else ()
    module = (*start, *(node.module or "").split(".")) if node.module else start
    own = path.with_suffix("").parts[1]
    if module[:1] != ("spikecore",):
        return 0
    full = [(*module, alias.name) for alias in node.names]
    return sum(name[1] != own and any(map(is_private, name[2:])) for name in full)


def is_private(part: str) -> bool:
    """True for ``_name``, and not for ``__name__``."""
    return part.startswith("_") and not part.endswith("__")


def private_imports_of_tests(files: List[Path]) -> List[str]:
    """Each private name that these files import out of the project: ``file: name``."""
    names = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
                names += [(path, ".".join([*module, alias.name]).split(".")) for alias in node.names]
    return [
        f"{path}: {'.'.join(name)}" for path, name in names if OURS.fullmatch(name[0]) and any(map(is_private, name))
    ]


def imported(root: Path) -> Tuple[int, int]:
    """Modules of spikecore that ``import spikecore`` imports, and base classes of ``LIF``."""
    command = [sys.executable, "-B", "-c", IMPORTED, str(root), str(root / "backends"), str(root / "extensions")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-3:]
    if root not in Path(lines[0]).resolve().parents:
        raise SystemExit(f"{root}: `import spikecore` found {lines[0]}")
    return int(lines[1]), int(lines[2])


def figures(root: Path) -> Dict[str, int]:
    """Every figure of one checkout, by name, in the order of the table."""
    there = packages(root)
    parts = {
        "library": there["library"],
        "spikecore/": python_files(root / "spikecore"),
        "backends/": python_files(root / "backends"),
        "extensions/": python_files(root / "extensions"),
        "plugins/": [path for name, files in there.items() if name.startswith("plugins/") for path in files],
        "tests": there["tests"],
    }
    table: Dict[str, int] = {}
    for name, files in parts.items():
        table[f"{name}: lines"], table[f"{name}: files"] = size(files)
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    table["pages: bytes"] = sum(path.stat().st_size for path in pages)
    table["modules at import spikecore"], table["base classes of sc.LIF"] = imported(root)
    asts = list(nodes(root))
    table["autograd routes"] = sum(is_route(node) for _, node in asts)
    table["uses of the Python stack"] = sum(uses_stack(node) for _, node in asts)
    table["questions about the mode"] = sum(asks(node) for _, node in asts)
    table["private imports across packages"] = sum(private_imports(path, node) for path, node in asts)
    table[OF_TESTS] = len(private_imports_of_tests(there["tests"]))
    return table


def comparison(tables: Dict[str, Dict[str, int]]) -> List[str]:
    """The figures of checkouts as columns; of two, also the change in percent."""
    names = list(next(iter(tables.values())))
    columns = [[Path(root).name, *(f"{table[name]:,}" for name in names)] for root, table in tables.items()]
    if len(tables) == 2:
        first, second = tables.values()
        changes = [f"{100 * (second[name] / first[name] - 1):+.0f} %" if first[name] else "" for name in names]
        columns.append(["change", *changes])
    widths = [max(map(len, column)) + 2 for column in columns]
    rows = zip(["", *names], *columns)
    return [
        "".join([f"{label:<34}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths))]) for label, *cells in rows
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", action="append", type=Path, help="a checkout (default: this one); may be given twice")
    parser.add_argument("--check", action="store_true", help="compare with .ci/budgets.toml, and fail above it")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    roots = [root.resolve() for root in options.root or [ROOT]]
    if options.check:
        lines, faults = check(roots[0], budgets())
        faults += check_tests(roots[0])
        print("\n".join([*lines, *faults]))
        return int(bool(faults))
    tables = {str(root): figures(root) for root in roots}
    print(json.dumps(tables, indent=2) if options.json else "\n".join(comparison(tables)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
