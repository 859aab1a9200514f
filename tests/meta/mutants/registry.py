"""The list of mutants: backends that are wrong on purpose, each with a user's program that shows the fault."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Tuple

from mutants.tape import Tape, Taped
from spikecore.testing._loopback import Loop, Loopback

#: A function of a backend's name that uses neurons as a user would and returns what came of it.
Shown = Callable[[str], Any]


class Mutant(NamedTuple):
    """A wrong backend."""

    name: str
    #: The class of its fault: the name of the file that it is in.
    kind: str
    #: The fault in words.
    what: str
    backend: Any
    #: Its sound original.
    control: Any
    #: Ids or patterns; of each at least one case must fail.
    caught_by: Tuple[str, ...]
    #: What the messages must contain.
    says: Tuple[str, ...]
    shows: Shown
    #: Whether the fault is an exception where there must be none.
    raises: bool


MUTANTS: List[Mutant] = []


def mutant(*caught_by: str, shows: Shown, says: Tuple[str, ...] = (), raises: bool = False) -> Any:
    """Make a mutated Loop, Tape or Backend into a backend, and list it."""

    def listed(cls: Any) -> Any:
        control = Taped if issubclass(cls, (Tape, Taped)) else Loopback
        changed = {"loop": cls} if issubclass(cls, (Loop, Tape)) else {}
        made = type(cls.__name__, (control if changed else cls,), {"name": "mutant", "__doc__": cls.__doc__, **changed})
        kind = cls.__module__.rpartition(".")[2]
        MUTANTS.append(Mutant(cls.__name__, kind, cls.__doc__, made, control, caught_by, says, shows, raises))
        return cls

    return listed
