"""Finds and downloads the files of a data set; messages about the checkpoint of a run.

A data set is searched in the folder of ``--folder``, in the places where torchvision and tonic store it. Nothing is
downloaded without ``--download``. A downloaded file gets its final name after its MD5 was checked. The MD5 of other
files is not checked: their readers check that they are complete.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from pathlib import Path
from typing import Dict, Optional, Sequence

from tqdm import tqdm

#: Seconds without an answer until a download fails.
TIMEOUT = 30.0


class Stopped(SystemExit):
    """The end of a program that Ctrl-C or SIGTERM stopped: its text goes to stderr, and the status is 130, as shells
    have it for Ctrl-C.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 130
        print(text, file=sys.stderr)


def tell_of_earlier(checkpoint: Path) -> None:
    """Say that a run that begins anew will replace the checkpoint of an earlier one."""
    if checkpoint.exists():
        print(
            f"{checkpoint} is of an earlier run, and will be replaced; --resume goes on from it, --out names "
            "another folder",
            file=sys.stderr,
        )


class DataError(Exception):
    """A data set is not there, or a file of it is not what its name says. The text is a sentence for the user."""


def missing(
    name: str, looked_for: Sequence[str], places: Sequence[Path], cause: str = "", way_out: str = ""
) -> DataError:
    """The error for a set that is not there: the files, the folders, why there was no download, and the way out, by
    default that of programs with the options of :mod:`common.options`.
    """
    failed = f"; the download failed: {cause}" if cause else ""
    get = "try again" if cause else "get it with --download"
    usual = f"Name the folder with --folder, or {get}, or take --data digits, which comes with scikit-learn"
    return DataError(
        f"{name} is not there: looked for {', '.join(looked_for)} in {' and '.join(map(str, places))}{failed}. "
        f"{way_out or usual}"
    )


def find(names: Sequence[str], places: Sequence[Path]) -> Optional[Dict[str, Path]]:
    """The files of these names, plain or with ``.gz``, from the first of the places that has them all."""
    for place in places:
        tried = {name: [place / name, place / f"{name}.gz"] for name in names}
        found = {name: path for name, paths in tried.items() for path in reversed(paths) if path.is_file()}
        if len(found) == len(names):
            return found
    return None


def download(url: str, path: Path, md5: str) -> None:
    """Get a file. Raises OSError (URLError is one) with the cause; no part of a file is left under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside, digest = path.with_name(f".{path.name}.part"), hashlib.md5()
    asked = urllib.request.Request(url, headers={"User-Agent": "spikecore"})
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT) as answer, open(str(beside), "wb") as file:
            size = answer.headers.get("Content-Length")
            with tqdm(total=int(size) if size else None, desc=path.name, unit="B", unit_scale=True) as bar:
                for chunk in iter(lambda: answer.read(1 << 20), b""):
                    digest.update(chunk)
                    bar.update(file.write(chunk))
        if digest.hexdigest() != md5:
            raise OSError(f"{url} gave {beside.stat().st_size} bytes whose MD5 is {digest.hexdigest()}, not {md5}")
        os.replace(str(beside), str(path))
    except OSError as error:
        raise OSError(f"{url}: {error}" if url not in str(error) else str(error)) from error
    finally:
        if beside.exists():
            beside.unlink()
