"""Numbers that no node of NIR and no step can have: those that are not finite, and those that leave a file's dtype."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
from torch import Tensor

from spikecore._base.errors import a_kind
from spikecore.neuron import Neuron
from spikecore.nir._conventions import Convention

#: The beginning of a field's name -> what to do where it is infinite, when a graph is read.
_INSTEAD: Dict[str, str] = {
    "tau": "a neuron that does not leak must be an IF or I, whose numbers are finite",
    "v_threshold": "give a neuron that never fires a finite threshold, which its potential does not reach; one whose "
    "output is its potential is an LI, CubaLI or I",
}
_FINITE = "must be finite"


def fitting(owner: str, key: str, value: Any, dtype: str, dt: float) -> Any:
    """A field of a node in the dtype of the file. ValueError where it is too large or too small for that.

    A threshold may be infinite, since it is so without having been rounded: the neuron never fires.
    """
    wide = np.asarray(value, np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype)
    lost = ~np.isfinite(narrow) & ~(np.isinf(wide) & (key == "v_threshold"))
    if key.startswith("tau") or key in ("r", "w_in"):
        lost |= (narrow == 0) & (wide != 0)
    if np.any(lost):
        number = f"{wide.flat[int(np.argmax(lost))]:g}"
        if key in ("v_leak", "v_reset", "v_threshold"):
            raise ValueError(f"{owner}: {key} would be {number} in the file, and {_FINITE} in {dtype}")
        wider = "" if dtype == "float64" else ", or save the network in float64 (net.double()), which reaches further"
        raise ValueError(
            f"{owner}: {key} would be {number} in the file, which {dtype} cannot hold; give another dt, which is the "
            f"time step in seconds and was {dt:g}, or the neuron other numbers{wider}"
        )
    return narrow


def check_node(name: str, node: Any, like: Convention, dt: float) -> None:
    """Refuse numbers from which no step follows."""
    for key, value in vars(node).items():
        if key in ("metadata", "input_type", "output_type"):
            continue
        array = np.asarray(value, np.float64)
        if not np.all(np.isfinite(array)):
            instead = next((words for begin, words in _INSTEAD.items() if key.startswith(begin)), f"it {_FINITE}")
            raise ValueError(
                f"sc.nir.load: node {name!r}, {a_kind(node)}, has {key}={array.flat[_worst(array)]}; {instead}"
            )
        if not key.startswith("tau"):
            continue
        shortest = float(array.min()) if array.size else dt
        if shortest <= 0:
            raise ValueError(f"sc.nir.load: node {name!r} has {key}={shortest:g}, which must be above 0")
        if like.discretization == "euler" and dt / shortest > 1 + 1e-6:
            raise ValueError(
                f"sc.nir.load: node {name!r} has {key}={shortest:g}, shorter than the time step dt={dt:g}, so that "
                "Euler's 1 - dt/tau is below 0; give the dt of its writer (in the unit of the file's tau), or "
                "discretization='exp'"
            )


def check_steps(name: str, node: Any, built: Neuron, dt: float) -> None:
    """Refuse a neuron with numbers that float32, in which it computes, does not hold."""
    largest = float(np.finfo(np.float64 if np.asarray(node.r).dtype == np.float64 else np.float32).max)
    for key in built.params:
        value = getattr(built, key)
        array = np.abs(np.asarray(value.detach().cpu().double() if isinstance(value, Tensor) else value, np.float64))
        if not np.all(array <= largest):
            raise ValueError(
                f"sc.nir.load: node {name!r}, {a_kind(node)}, has {key}={array.max():g} in steps of "
                f"dt={dt:g}, which is too large; give the dt of its writer (in the unit of the file's tau)"
            )


def _worst(array: Any) -> int:
    return int(np.argmax(~np.isfinite(array)))
