"""Builds the distributions of this repository and inspects them: ``package.py [--url URL] [--out dist]``.

Run by ``make package``, which installs the two libraries that it needs: ``build`` and ``twine``.

Each distribution is built from a copy of the tracked files, so that no other file of a working tree gets in. A package
index cannot follow relative links of a README: in the copy they become links into the repository at ``--url``. The
wheel is built from the source distribution, which is thereby known to build.
"""

from __future__ import annotations

import argparse
import email
import email.message
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with `build`

ROOT = Path(__file__).resolve().parents[1]
#: ``[text](target)`` and ``![text](target)``, where target is neither absolute nor an anchor of the same page.
_RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class Project(NamedTuple):
    """A distribution: the folder of its pyproject.toml, relative to the root, and the tracked files below it."""

    folder: str
    files: Tuple[str, ...]
    settings: Dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the distribution."""
        return str(self.settings["project"]["name"])

    def packaged(self) -> Set[str]:
        """Files that the wheel must have, by their paths there: all of every import package, and lone modules.

        An import package is a folder with an ``__init__.py`` beside ``pyproject.toml``, in ``backends`` or in
        ``extensions``.
        """
        found = {f"{module}.py" for module in self.settings["tool"]["setuptools"].get("py-modules", ())}
        for init in self.files:
            parts = init.split("/")
            place = parts[1:] if parts[0] in ("backends", "extensions") else parts
            if len(place) == 2 and place[1] == "__init__.py":
                start = init[: -len("__init__.py")]
                skip = len(parts) - len(place)
                found.update("/".join(f.split("/")[skip:]) for f in self.files if f.startswith(start))
        return found


def git(*arguments: str, root: Path = ROOT) -> str:
    """What git says of the repository, which must be a clone: there, git knows which files belong to it."""
    done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Distributions are built from a clone, where git knows the files: {done.stderr}")
    return done.stdout


def projects(root: Path = ROOT) -> List[Project]:
    """The distributions of the repository: spikecore, and each plugin."""
    # a file that is deleted, but not yet in a commit, is still listed
    tracked = [file for file in git("ls-files", "-z", root=root).split("\0") if file and (root / file).is_file()]
    found = []
    for file in tracked:
        folder, _, name = file.rpartition("/")
        if name == "pyproject.toml":
            start = f"{folder}/" if folder else ""
            files = tuple(f[len(start) :] for f in tracked if f.startswith(start))
            found.append(Project(folder, files, tomllib.loads((root / file).read_text(encoding="utf-8"))))
    return sorted(found)


def with_absolute_links(page: str, folder: str, base: Optional[str]) -> str:
    """The page with each relative link as one to ``base``, or where there is no base as its text alone.

    Pictures are shown from the file itself, ``raw`` and not ``blob``, which is a page about it.
    """

    def replaced(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        if base is None:
            return text
        path, hash_sign, anchor = target.partition("#")
        start = base.replace("/blob/", "/raw/") if mark else base
        return f"{mark}[{text}]({start}/{posixpath.normpath(posixpath.join(folder, path))}{hash_sign}{anchor})"

    return _RELATIVE_LINK.sub(replaced, page)


def repository(given: str, settings: Dict[str, Any]) -> Optional[str]:
    """Address of the repository: the one given, else ``Repository`` of ``[project.urls]``, else None."""
    found = given or settings["project"].get("urls", {}).get("Repository", "")
    return found.rstrip("/") or None


def copied(project: Project, url: Optional[str], commit: str, root: Path, to: Path) -> Path:
    """A copy of the tracked files in the folder ``to``, ready to be built.

    Links of the README lead to the commit that is built, so that they show what the package is, for as long as it is
    read; those of the metadata to the newest state.
    """
    source = root / project.folder
    for file in project.files:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / file, to / file)
    # the licence asks for a copy of itself in every distribution
    shutil.copy2(root / "LICENSE", to / "LICENSE")
    readme, pyproject = to / "README.md", to / "pyproject.toml"
    base = f"{url}/blob/{commit}" if url else None
    readme.write_text(with_absolute_links(readme.read_text(encoding="utf-8"), project.folder, base), encoding="utf-8")
    if url and "urls" not in project.settings["project"]:
        urls = {
            "Repository": url,
            "Documentation": f"{url}/blob/HEAD/docs/guide.md",
            "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
            "Issues": f"{url}/issues",
        }
        lines = "\n".join(f'{name} = "{address}"' for name, address in urls.items())
        pyproject.write_text(f"{pyproject.read_text(encoding='utf-8')}\n[project.urls]\n{lines}\n", encoding="utf-8")
    return to


def faults_of_wheel(project: Project, wheel: Path) -> List[str]:
    """What is wrong with a wheel, in words; nothing if it is as it should be."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = next(name.split("/")[0] for name in sorted(names) if ".dist-info/" in name)
        metadata = email.message_from_string(archive.read(f"{information}/METADATA").decode())
    held = {name for name in names if not name.startswith(f"{information}/")}
    expected = project.packaged()
    faults = [f"has {name}, which is no part of its packages" for name in sorted(held - expected)]
    faults += [f"lacks {name}" for name in sorted(expected - held)]
    packages = sorted({name.split("/")[0] for name in expected if "/" in name})
    faults += [f"lacks {package}/py.typed" for package in packages if f"{package}/py.typed" not in held]
    if not any(name.endswith("/LICENSE") for name in names - held):
        faults.append("lacks the licence")
    return faults + faults_of_metadata(project, metadata)


def faults_of_metadata(project: Project, metadata: email.message.Message) -> List[str]:
    """What is wrong with the metadata of a distribution, in words."""
    declared = project.settings["project"]
    wanted = {
        "Name": declared["name"],
        "Summary": declared["description"],
        "Requires-Python": declared["requires-python"],
        "License": declared["license"]["text"],
        "Description-Content-Type": "text/markdown",
    }
    faults = [f"says {key}: {metadata[key]} and not {value}" for key, value in wanted.items() if metadata[key] != value]
    relative = [target for _, _, target in _RELATIVE_LINK.findall(str(metadata.get_payload()))]
    return faults + [f"has a relative link in its description: {target}" for target in relative]


def faults_of_source(project: Project, source: Path) -> List[str]:
    """What is wrong with a source distribution, in words: it must hold exactly the tracked files."""
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    # what setuptools writes, and the licence, which a plugin's folder does not have
    held = {n for n in names if ".egg-info/" not in n and n not in ("PKG-INFO", "setup.cfg", "LICENSE")}
    expected = set(project.files) - {"LICENSE"}
    faults = [f"has {name}, which is not tracked" for name in sorted(held - expected)]
    faults += [f"lacks {name}: MANIFEST.in leaves it out" for name in sorted(expected - held)]
    return faults + ([] if "LICENSE" in names else ["lacks the licence"])


def build(tree: Path, out: Path) -> Tuple[Path, Path]:
    """Build the source distribution of a tree, and from that the wheel: their paths."""
    before = set(out.iterdir())
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"build fails:\n{done.stdout}{done.stderr}")
    made = set(out.iterdir()) - before
    (source,) = (path for path in made if path.name.endswith(".tar.gz"))
    (wheel,) = (path for path in made if path.suffix == ".whl")
    return source, wheel


def main() -> int:
    """Build and inspect every distribution; 1 if something is wrong with one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="", help="where the repository is: links of the README lead there")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder that is emptied and filled")
    arguments = parser.parse_args()
    out: Path = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    found = projects()
    url = repository(arguments.url, found[0].settings)
    if url is None:
        print("No address of the repository is given (URL=...): links of the READMEs into it become plain text.")
    faults: List[str] = []
    for project in found:
        with tempfile.TemporaryDirectory() as folder:
            source, wheel = build(copied(project, url, git("rev-parse", "HEAD").strip(), ROOT, Path(folder)), out)
        here = [f"{wheel.name} {fault}" for fault in faults_of_wheel(project, wheel)]
        here += [f"{source.name} {fault}" for fault in faults_of_source(project, source)]
        print(f"{source.name}, {wheel.name}: {'; '.join(here) or 'as they should be'}")
        faults += here
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir()))]
    checked = subprocess.run(twine, check=False)
    return 1 if faults or checked.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
