"""Objects that a user names on the command line, of a module or of a file."""

from __future__ import annotations

import difflib
import os
import sys
from functools import reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, List

from torch import nn

from spikecore.words import a_kind


def named(text: str) -> Any:
    """The object of ``package.module:name`` or ``path/to/file.py:name``.

    The folder of the file, or the current one, is on ``sys.path`` from now on. Raises ValueError where it is not there.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ValueError(f"{text!r} must be MODULE:NAME or path/to/file.py:NAME")
    path = Path(where) if where.endswith(".py") else None
    sys.path.insert(0, str(path.resolve().parent) if path else os.getcwd())
    module = _file(path) if path else import_module(where)
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError as error:
        close = difflib.get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{where} has no {name!r}{hint}") from error


def network(text: str) -> nn.Module:
    """The network of that name, or the one that the object makes without arguments."""
    value = named(text)
    if callable(value) and not isinstance(value, nn.Module):
        value = value()
    if not isinstance(value, nn.Module):
        raise TypeError(f"{text} is {a_kind(value)}; name an nn.Module or what makes one without arguments")
    return value


def shape(text: str) -> List[int]:
    """The numbers of ``--input 8,1,28,28``."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ValueError(f"--input {text!r} must be whole numbers above 0 with commas between them, as 8,1,28,28")
    return sizes


def _file(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"there is no file {path}")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module
