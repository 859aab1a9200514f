"""Checks of arguments, recorded numbers and files of every export of a network."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Optional, Union

import torch
from torch import Tensor, nn

from spikecore.lang.render import LIKE_A_MACRO, LONGEST
from spikecore.words import a_kind, shown
from spikecore_chips._export_c._graph import Refused
from spikecore_chips._export_c._values import Table, Value, integers_of, table_of


def check_arguments(
    caller: str, net: Any, example: Any, name: Any, language: str, words: Collection[str], of_test: Collection[str]
) -> None:
    """Raise for arguments that no network can be exported with. ``words``: names that the language has; ``of_test``:
    those of the test's own files.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"{caller}: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")
    if not isinstance(example, Tensor) or example.ndim < 2 or not example.numel():
        raise ValueError(f"{caller}: example={shown(example)} must be inputs over time, a tensor [T, B, ...]")
    if not isinstance(name, str):
        raise TypeError(f"{caller}: name={shown(name)} must be a str")
    if not re.fullmatch(rf"[A-Za-z]\w{{,{LONGEST - 1}}}", name, re.ASCII) or name in words:
        raise ValueError(
            f"{caller}: name={shown(name)} must be a name that {language} can have: at most {LONGEST} ASCII letters, "
            f"digits and underscores, and no word of {language}"
        )
    if LIKE_A_MACRO.fullmatch(name):
        raise ValueError(f"{caller}: name={name!r} has capitals as macros of C; write {name.lower()!r}")
    if name.lower() in of_test:
        raise ValueError(f"{caller}: name={name!r} is that of the program's test; choose another one")
    if example.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{caller}: example has dtype {example.dtype}; {language} computes in float32 or integers: .float()"
        )
    finite = torch.isfinite(example)
    if not bool(finite.all()):
        where = (~finite).nonzero()[0].tolist()
        raise ValueError(f"{caller}: example is {example[tuple(where)].item()} at {where}; give finite numbers")


def recorded(owner: str, value: Value, numbers: Tensor, rounds: Optional[Callable[[Tensor], Tensor]] = None) -> Tensor:
    """Numbers of an example as the program has them: integers, or floats as they are."""
    if value.format is None:
        return numbers.float()
    integers = integers_of(owner, numbers, int(value.format.frac or 0)) if rounds is None else rounds(numbers)
    if int(integers.min()) < value.format.low or int(integers.max()) > value.format.high:
        raise Refused(f"{owner} has numbers beyond {value.format}")
    return integers


def recorded_table(what: str, value: Value, numbers: Tensor) -> Table:
    """The table of recorded numbers."""
    return table_of(f"recorded_{what}", numbers, value.format)._replace(type=value.type)


def filled(package: str, template: str, words: Mapping[str, str]) -> str:
    """A template of a package with its words filled in."""
    text = (pkgutil.get_data(package, f"templates/{template}") or b"").decode("utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def write(folder: Union[str, Path], texts: Mapping[str, str]) -> None:
    """Write files: path -> text."""
    for file, text in texts.items():
        path = Path(folder) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
