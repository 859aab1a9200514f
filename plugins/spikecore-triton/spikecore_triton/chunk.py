"""Steps that are written out one after the other, and the lines that load, hold and store a block's numbers."""

from __future__ import annotations

from typing import NamedTuple


class Chunk(NamedTuple):
    """Steps that are written out one after the other."""

    #: Name of the variable with the first step of the chunk; empty where the chunk begins at step 0.
    first: str
    steps: int
    #: Prefix of the chunk's names: a variable that two chunks share would be carried from one to the other.
    prefix: str


def load(address: str, where: str = "inside", other: str = "") -> str:
    """The text that loads a block's numbers."""
    # without `other`, lanes outside the mask have any number: what is computed from it is never stored
    return f"tl.load({address}, mask={where}, other={other})" if other else f"tl.load({address}, mask={where})"


def store(address: str, value: str, where: str = "inside") -> str:
    """The line that stores a block's numbers, in the dtype of the memory."""
    return f"tl.store({address}, {value}, mask={where})"


def in_every_lane(local: str) -> str:
    """A value that all neurons share, made one number per neuron: a loop carries values of one shape."""
    return f"{local} = tl.broadcast_to({local}, (BLOCK,))"
