"""Arguments that a function does not take: where they go.

Python's own TypeError names an unknown argument and ends there. A function under :func:`guided` says what to write
instead, as for ``fast=True`` that was given to ``sc.training_model`` and not to ``sc.CudaOptions``. Calls with known
arguments are passed on as they are. A missing argument is left to Python, which names it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, List, Mapping, TypeVar

from spikecore._shell.checks import shown

_T = TypeVar("_T", bound=Callable[..., Any])
#: What to write instead, by the unknown keywords and their values; "" where nothing is known of them. There are none
#: where a call has too many arguments by position.
WayOut = Callable[[Mapping[str, Any]], str]


def guided(owner: str, way_out: WayOut) -> Callable[[_T], _T]:
    """Have a function, or the constructor of a class, say what to write in place of an argument that it does not take.

    ``owner`` is its name for users, such as ``"sc.fuse"``.
    """

    def decorate(target: _T) -> _T:
        if not isinstance(target, type):
            return _checked(target, owner, way_out, 0)  # type: ignore[return-value]  # called as the function is
        # its first argument is the object
        setattr(target, "__init__", _checked(vars(target)["__init__"], owner, way_out, 1))  # noqa: B010  # for mypy
        return target

    return decorate


def _checked(function: Callable[..., Any], owner: str, way_out: WayOut, hidden: int) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters
    by_position = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD][hidden:]
    names, most = list(parameters)[hidden:], len(by_position) + hidden
    known = frozenset(names)

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if keywords and not known.issuperset(keywords):
            unknown = {name: value for name, value in keywords.items() if name not in known}
            raise TypeError(f"{owner}() takes no {written(unknown)}; {way_out(unknown) or _meant(unknown, names)}")
        if len(arguments) > most:
            taken = f"only {', '.join(by_position)} by position" if by_position else "nothing by position"
            others = " and ".join(f"{name}=" for name in names if name not in by_position)
            instead = way_out({}) or (f"give {others} by name" if others else "leave it out")
            raise TypeError(f"{owner}() takes {taken}, got {shown(arguments[most])} as well; {instead}")
        return function(*arguments, **keywords)

    return checked


def written(keywords: Mapping[str, Any]) -> str:
    """Keyword arguments as a call has them."""
    return ", ".join(f"{name}={shown(value)}" for name, value in keywords.items())


def _meant(unknown: Mapping[str, Any], names: List[str]) -> str:
    close = [found for name in unknown for found in difflib.get_close_matches(name, names, n=1)]
    guess = f"did you mean {close[0]}=? " if close else ""
    return f"{guess}{'It' if close else 'it'} takes: {', '.join(names) or 'nothing'}"
