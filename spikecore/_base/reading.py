"""Which attributes of an object a function reads, by whatever way: ``self.gain``, ``getattr``, a function of C.

The function gets a twin of the object, whose class is made from that of the object and notes each name. The twin passes
for the object: its class has the same name, and ``self.__class__`` is that of the object. Only ``type(self)`` tells the
difference, so that a function which asks for it is called with a plain twin instead, and may have read anything.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from functools import lru_cache
from types import FrameType
from typing import Any, FrozenSet, Mapping, Optional, Set, Tuple

from torch import nn

#: Under this name a twin holds what was read of it.
NOTED = "_noted"
#: Attributes that show all others.
_SHOWING: FrozenSet[str] = frozenset(("__dict__", "_parameters", "_buffers", "_modules"))
#: Names in code that asks for the class of an object, or reads past it.
PAST: FrozenSet[str] = frozenset(("type", "__getattribute__", "getattr_static"))
#: Code that looks for one name in all attributes.
_LOOKING = {getattr(nn.Module, name).__code__ for name in ("__getattr__", "__setattr__", "__delattr__")}


class Noted:
    """The names that were read."""

    def __init__(self) -> None:
        self.names: Set[str] = set()
        #: Those that other code than that of spikecore read.
        self.by_others: Set[str] = set()
        #: Whether something was read that shows all attributes.
        self.all = False


def plain_twin(of: Any, others: Mapping[str, Any]) -> Any:
    """An object with the same attributes but for ``others``."""
    twin = object.__new__(type(of))
    twin.__dict__.update(of.__dict__)
    twin.__dict__.update(others)
    return twin


def noting_twin(of: Any, others: Mapping[str, Any]) -> Tuple[Any, Optional[Noted]]:
    """A twin that notes what is read of it, and its notes; None for both where its class cannot be derived from."""
    own: Any = type(of)
    kind = _noting(own)
    if kind is None:
        return None, None
    twin, noted = object.__new__(kind), Noted()
    object.__getattribute__(twin, "__dict__").update({**of.__dict__, **others, NOTED: noted})
    return twin, noted


class _Noting:
    """The first base of a noting twin's class, before the class of the object."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Do nothing: the user's ``__init_subclass__``, which may register classes, must not see this one."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return type(self).__bases__[1]
        noted: Optional[Noted] = object.__getattribute__(self, "__dict__").get(NOTED)
        if noted is not None:
            if name not in _SHOWING:
                noted.names.add(name)
                if not _is_ours(sys._getframe(1)):
                    noted.by_others.add(name)
            elif not _is_ours(sys._getframe(1)):
                noted.all = True
        return super().__getattribute__(name)


def _is_ours(frame: FrameType) -> bool:
    """Whether the code looks for one name in all attributes, or is that of the shell around a definition."""
    return frame.f_code in _LOOKING or str(frame.f_globals.get("__name__")).startswith("spikecore.")


@lru_cache(maxsize=64)
def _noting(kind: Any) -> Any:
    if type(kind) not in (type, ABCMeta):  # another metaclass may register classes, too
        return None
    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (_Noting, kind), own)
