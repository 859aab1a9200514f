"""What is meant by a name that no installed backend has: a device, a plugin of this project, or a misspelt name."""

from __future__ import annotations

import difflib
from typing import Mapping, Sequence, Tuple

#: Words for devices that are asked for as if they were backends, and what torch calls them.
DEVICES: Mapping[str, str] = {
    "cpu": "cpu",
    "cuda": "cuda",
    "gpu": "cuda",
    "hip": "cuda",
    "mps": "mps",
    "rocm": "cuda",
    "xpu": "xpu",
}
#: Device type -> the backends of this project that compute there, as automatic choice tries them
#: (:data:`spikecore._plugins.selection.AUTO`, which is above this module); ``torch`` on every other.
_ON: Mapping[str, Tuple[str, ...]] = {"cpu": ("numba", "torch"), "cuda": ("cupy", "triton", "torch")}
#: The plugins of this project, each in the folder ``plugins/NAME`` of the repository.
PLUGINS: Mapping[str, str] = {"jax": "spikecore-jax", "numba": "spikecore-numba", "triton": "spikecore-triton"}


def hint(name: str, known: Sequence[str], devices: Mapping[str, str]) -> str:
    """A sentence on what an unknown name may mean, with a space after it; empty if nothing is close.

    ``devices`` has device types that a misspelt name may be close to, and the built-in backend that computes on each.
    """
    plain = name.strip().lower()
    # "cuda:1" is a device, too; a plugin is also asked for by the name of its distribution or of its package
    short = plain.replace("_", "-").replace("spikecore-", "")
    device, plugin = DEVICES.get(plain.partition(":")[0]), PLUGINS.get(short)
    if device is not None:
        there = ", ".join(_ON.get(device, ("torch",)))
        return (
            f"that is a device: a backend computes where the tensors are, so move the network, net.to({device!r}), and "
            f"leave backend out, or ask for one that computes there: {there}. "
        )
    if plugin is not None and short not in known:
        install = f"pip install ./plugins/{plugin}, in a clone of spikecore"
        return f"that is the plugin {plugin}, which is not installed: {install}. "
    meant = {**devices, "auto": "auto", **{one: one for one in known}}
    close = difflib.get_close_matches(plain, meant, n=1, cutoff=0.7)
    return f"did you mean {meant[close[0]]!r}? " if close else ""
