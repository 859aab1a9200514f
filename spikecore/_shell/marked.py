"""Which values are spikes, noted on autograd's nodes while somebody wants to know.

A saved-tensor hook gets a tensor and must know what it holds without reading it, which would wait for the device. So a
neuron notes on the node of each output that is spikes, by the rules of its program, which output it is and the version
of the tensor; where its kernel added a shortcut to the spikes, it notes what output of which node was added. A note
lives as long as the node, and says nothing about what was changed in place since: who reads it compares versions.
Without a reader (:func:`wanting`) nothing is noted.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from torch import Tensor

from spikecore._base.locking import Lock
from spikecore._plugins.selection import Resolved
from spikecore.backend import Backend
from spikecore.lang import Program

#: The keys of the notes in ``node.metadata``, which torch keeps for each node.
_NOTE, _ADDED = "spikecore.spikes", "spikecore.added"
#: An output of a node of autograd.
Output = Tuple[Any, int]

#: How many readers there are, in any thread.
readers = 0
#: How many outputs were noted.
notes = 0
#: By type of device, the backend of the neuron that gave the last spikes that were noted there, which packs; empty
#: while there is no reader. Every backend makes the same bits, so it does not matter which of several neurons was the
#: last, in whichever thread.
packing_backends: Dict[str, Backend] = {}
_lock = Lock()


@contextmanager
def wanting() -> Iterator[None]:
    """While this is active, neurons note which of their outputs are spikes."""
    global readers  # noqa: PLW0603  # a number that every call of a neuron reads, as quickly as can be
    with _lock:
        readers += 1
    try:
        yield
    finally:
        with _lock:
            readers -= 1
            if not readers:
                packing_backends.clear()


@lru_cache(maxsize=512)
def spiking(program: Program) -> Tuple[int, ...]:
    """Indices of the outputs that are 0 or 1, whatever comes in."""
    return tuple(index for index, node in enumerate(program.outputs) if node.op == "spike")


@lru_cache(maxsize=512)
def summing(program: Program) -> Mapping[int, int]:
    """Indices of the outputs that are spikes to which an input was added, and the indices of these inputs."""
    found = {}
    for index, node in enumerate(program.outputs):
        kinds = tuple([argument.op for argument in node.args]) if node.op == "add" else ()
        if kinds == ("spike", "input"):
            found[index] = program.inputs.index(str(node.args[1].attr))
    return found


def note(
    program: Optional[Program],
    outputs: Sequence[Tensor],
    bound: Mapping[str, Resolved],
    added: Optional[Tensor] = None,
) -> None:
    """Note on the nodes of a call's outputs which of them are spikes. ``bound`` are the backends by type of device,
    ``added`` what was added to the first output.
    """
    global notes  # noqa: PLW0603  # only ever compared with what it was: what is lost between threads does not matter
    for index in () if program is None else spiking(program):
        out = outputs[index]
        node: Any = out.grad_fn
        if node is not None:
            found: Dict[int, int] = node.metadata.setdefault(_NOTE, {})
            found[out.output_nr] = out._version
            if added is not None and not index:
                node.metadata.setdefault(_ADDED, {})[out.output_nr] = added.grad_fn, added.output_nr
            notes += 1
            resolved = bound.get(out.device.type)
            if resolved is not None:
                packing_backends[out.device.type] = resolved.backend


def version(node: Any, index: int) -> Optional[int]:
    """The version that output ``index`` of a node had when it was noted as spikes; None for another."""
    noted: Optional[Dict[int, int]] = node.metadata.get(_NOTE)
    return None if noted is None else noted.get(index)


def added_to(node: Any, index: int) -> Optional[Output]:
    """What was added to the spikes that output ``index`` of a node was noted as; None where nothing was."""
    noted: Optional[Dict[int, Output]] = node.metadata.get(_ADDED)
    return None if noted is None else noted.get(index)
