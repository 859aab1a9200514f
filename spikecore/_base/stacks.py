"""From where a module is called: the places in the user's code, from the call outwards, and the modules that run it.

While torch.compile traces, the innermost part of the stack is that of the code it traces, which no frame of Python
shows: torch's translators of bytecode do.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from torch import nn

from spikecore._base.recent import CALLS, Recent

#: So many frames are looked at.
_DEEPEST = 120
_LIBRARIES = ("torch", "spikecore")
#: The method of torch that calls ``forward``: its frame lasts as long, and names the module.
_CALLS: CodeType = nn.Module._call_impl.__code__
#: Name on that frame, and on the graph that torch.compile makes, of what identifies this one call.
_TOKEN = "_spikecore_activation"


class Place(NamedTuple):
    """A call in the user's source; ``column`` tells two of one line apart, if it is known."""

    file: str
    line: int
    column: Optional[int]

    def is_other(self, place: Place) -> bool:
        """Whether this is surely another place."""
        columns = {self.column, place.column}
        return self[:2] != place[:2] or (len(columns) == 2 and None not in columns)


class Level(NamedTuple):
    """One frame, real or traced: a place in the user's code, or a module that is called."""

    place: Optional[Place]
    owner: Optional[nn.Module]
    #: Where the token of this call of the owner is kept.
    notes: Any
    #: How far up the stack the frame is, its code, and the place in it; None if it is traced.
    real: Optional[Tuple[int, CodeType, int]]
    #: Of a place: its code, and its frame, or the module that traced code runs for.
    function: Optional[Tuple[CodeType, Any]] = None


def token_of(notes: Any) -> object:
    """What identifies one call of a module."""
    held: Dict[str, object] = notes.f_locals if isinstance(notes, FrameType) else vars(notes)
    return held.setdefault(_TOKEN, object())


def levels(frame: FrameType) -> Iterator[Level]:
    """From ``frame`` outwards; the number of a level is how far it is from where ``frame`` was taken."""
    above: Optional[FrameType] = frame
    for depth in range(_DEEPEST):
        if above is None:
            return
        code, place = above.f_code, (depth, above.f_code, above.f_lasti)
        if code is _CALLS:
            yield Level(None, above.f_locals["self"], above, place)
        elif not _is_library(above.f_globals):
            if code.co_name == "forward" and not (above.f_back is not None and _is_torch(above.f_back.f_globals)):
                # called by its name, past the method of torch
                owner = above.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
                if isinstance(owner, nn.Module):
                    yield Level(_place(above), None, None, place, (code, above))
                    yield Level(None, owner, above, place)
                    above = above.f_back
                    continue
            yield Level(_place(above), None, None, place, (code, above))
        above = above.f_back


def traced(frame: FrameType) -> Iterator[Level]:
    """The levels of the code that torch.compile traces, from the call outwards."""
    translator = _translator(frame)
    while translator is not None:
        code, scope = translator.f_code, translator.f_globals
        owner = _owner(translator, code)
        if not _is_library(scope):
            yield Level(_traced_place(translator, code), None, None, None, (code, owner))
        if owner is not None:
            yield Level(None, owner, translator.output, None)
        translator = getattr(translator, "parent", None)


def graph_of(frame: FrameType) -> Optional[object]:
    """What identifies the graph that torch.compile makes now, where the code that it traces is in a module."""
    return next((token_of(level.notes) for level in traced(frame) if level.owner is not None), None)


def _translator(frame: Optional[FrameType]) -> Any:
    """The object of torch.compile that traces the innermost code; None where this torch has no such object."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._dynamo.symbolic_convert":
            found = frame.f_locals.get("self")
            if all(hasattr(found, name) for name in ("f_code", "f_globals", "symbolic_locals", "output")):
                return found
        frame = frame.f_back
    return None


def _owner(translator: Any, code: CodeType) -> Optional[nn.Module]:
    if code.co_name != "forward" or not code.co_varnames:
        return None
    variable = translator.symbolic_locals.get(code.co_varnames[0])
    for name in ("value", "_value", "original_value", "peek_value"):
        found = getattr(variable, name, None)
        found = found() if name in ("original_value", "peek_value") and callable(found) else found
        if isinstance(found, nn.Module):
            return found
    return None


def _traced_place(translator: Any, code: CodeType) -> Place:
    positions = getattr(getattr(translator, "current_instruction", None), "positions", None)
    line = getattr(positions, "lineno", None) or getattr(translator, "lineno", None) or code.co_firstlineno
    return Place(code.co_filename, line, getattr(positions, "col_offset", None))


#: Places that were looked up, by the id of their code and the place in its bytecode; with the code, which has the id.
_columns: Recent[Tuple[int, int], Tuple[CodeType, Place]] = Recent(CALLS)


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    positions: Any = getattr(code, "co_positions", None)
    if positions is None:  # before Python 3.11: the place in the bytecode tells calls apart as well
        return Place(code.co_filename, frame.f_lineno, frame.f_lasti)
    key = id(code), frame.f_lasti
    known = _columns.get(key)
    if known is None or known[0] is not code:
        # it walks through the code before the place, which takes 20 us in a long function
        at = frame.f_lasti // 2
        found: List[Any] = list(itertools.islice(positions(), at, at + 1))
        known = _columns.put(key, (code, Place(code.co_filename, frame.f_lineno, found[0][2] if found else None)))
    return known[1]


def innermost_calls(pending: Sequence[Level]) -> List[Level]:
    """The levels, with recursive calls of one function taken as one call: a recursion over time is one place, as a loop
    is.
    """
    left: List[Level] = []
    for level in pending:
        again = [k for k, one in enumerate(left) if _is_same_function(one, level)]
        if again:
            del left[again[0] + 1 :]
        else:
            left.append(level)
    return left


def _is_same_function(one: Level, other: Level) -> bool:
    if one.function is None or other.function is None or one.function[0] is not other.function[0]:
        return False
    return _first_module(*one.function) is _first_module(*other.function)


# A frame keeps what was read of its variables until it ends, so that only frames within a network are read.


def _first_module(code: CodeType, held: Any) -> Any:
    """The module that a function gets as its first argument, if it gets one."""
    if isinstance(held, FrameType):
        held = held.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
    return held if isinstance(held, nn.Module) else None


def modules_within(frame: FrameType) -> Dict[str, int]:
    """The modules that the variables of a function hold now: name -> id."""
    return {name: id(value) for name, value in frame.f_locals.items() if isinstance(value, nn.Module)}


def _is_library(scope: Dict[str, Any]) -> bool:
    return _is_of_library(str(scope.get("__name__")))


@lru_cache(maxsize=1024)
def _is_of_library(name: str) -> bool:
    # asked for every frame of the stack, by the first call after each reset
    return name.partition(".")[0] in _LIBRARIES


def _is_torch(scope: Dict[str, Any]) -> bool:
    return str(scope.get("__name__")) == "torch.nn.modules.module"
