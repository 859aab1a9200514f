"""Saving a network."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spikecore._base.files import replacing
from spikecore._shell import checks
from spikecore._shell.modules import unwrapped
from spikecore._shell.state import Stateful
from spikecore.nir import _kept
from spikecore.nir._conventions import check_discretization, check_dt
from spikecore.nir._forms import Unsaid
from spikecore.nir._network import Network
from spikecore.nir._neuron_nodes import Writing
from spikecore.nir._package import package
from spikecore.nir._tracing import Drawn, Value, types

#: What ``keep`` may name.
KEEPABLE = (
    "soft_reset",
    "no_reset",
    "delayed_reset",
    "many_spikes",
    "initial_state",
    "surrogate",
    "detach_reset",
)


def save(
    net: nn.Module,
    path: Union[str, os.PathLike[str]],
    *,
    dt: float,
    discretization: str = "euler",
    input_shape: Optional[Sequence[int]] = None,
    keep: Sequence[str] = (),
) -> None:
    r"""Write a network as a graph of NIR (Pedersen et al., 2024), which other libraries and chips read.

    Time constants become seconds. A potential that loses the part ``leak`` in a step has::

        tau = dt / leak                  discretization="euler"
        tau = -dt / log(1 - leak)        discretization="exp"
        R   = gain / leak                so that v' = v + leak (v_leak - v) + gain x

    ``leak`` is ``1/tau`` of LIF, PLIF and LI, ``1 - beta`` of Leaky, Synaptic and SynapticLeaky (``1 - alpha`` of the
    current, whose gain is ``w_in``), 0 of IF, which has ``R = gain / dt``. A reader that takes the same ``dt`` and
    discretisation has our equations again. Ours fire at the threshold, ``>=`` (:class:`~spikecore.Leaky` and
    :class:`~spikecore.SynapticLeaky` above it), NIR's above it, ``>``: the reader differs where a potential is equal to
    the threshold, as it may be with whole numbers.

    net: modules of :mod:`torch.nn` and spikecore that the page on NIR lists, in any module whose ``forward`` calls
        modules, adds their outputs and flattens. Nodes have the names of its modules. Of a network that
        ``torch.compile``, ``DistributedDataParallel`` or ``nn.DataParallel`` wraps, the network itself is written.
    path: the file, which is replaced.
    dt: the time step, in seconds: that of the reader. snnTorch takes 1e-4, and SpikingJelly where it is given none;
        sinabs takes time constants for numbers of steps, ``dt=1.0`` with ``discretization="exp"``. With another one
        they read another network, without an error. The page on NIR has a table of readers.
    discretization: how a reader is meant to make steps, ``"euler"`` as most do or ``"exp"``; kept in the file.
    input_shape: the shape of one sample, without time and batch, such as ``(2, 34, 34)``; None takes it from the first
        layer, where that is ``nn.Linear``.
    keep: what NIR cannot say is refused, unless it is named here. Then the graph is written without it, with one
        warning, and it is kept as metadata, which :func:`load` alone reads: ``"soft_reset"``, ``"no_reset"``,
        ``"delayed_reset"``, ``"many_spikes"``, ``"initial_state"``, ``"surrogate"`` (any but the default),
        ``"detach_reset"``.

    Class, settings and exact parameters of our neurons are kept as metadata, too, so that :func:`load` gives the same
    network, bit for bit, although ``tau`` is rounded in the file. Numbers are float32, or float64 if the network's are.

    Raises ValueError for what NIR cannot say, naming module and way out; TypeError for arguments of wrong types;
    ImportError without the package nir.

    Pedersen et al.: Neuromorphic intermediate representation: A unified instruction set for interoperable
    brain-inspired computing. Nature Communications 15, 2024.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.nir.save: net={checks.shown(net)} must be an nn.Module")
    check_dt("sc.nir.save", dt)
    check_discretization("sc.nir.save", discretization)
    if isinstance(keep, str) or any(name not in KEEPABLE for name in keep):
        raise ValueError(f"sc.nir.save: keep={keep!r} must be a tuple of some of {', '.join(KEEPABLE)}")
    nir = package()
    net = unwrapped(net)
    unmade = [name for name, value in (*net.named_parameters(), *net.named_buffers()) if value.is_meta]
    if unmade:
        raise ValueError(f"sc.nir.save: {unmade[0]!r} is on the meta device, without numbers; load the weights first")
    wide = any(value.dtype == torch.float64 for value in net.parameters())
    to = Writing(float(dt), discretization, "float64" if wide else "float32")
    shape = _input_shape(net, input_shape)
    drawn = Drawn(to)
    first, last = _unlike(net, "input"), _unlike(net, "output")
    drawn.nodes[first] = nir.Input(types("input", shape))
    end = drawn.follow(net, "", Value([first], shape), _leading(net))
    drawn.nodes[last] = nir.Output(types("output", end.shape))
    drawn.edges += [(source, last) for source in end.sources]
    _tell(to.unsaid, keep)
    held = _kept.written({"dt": to.dt, "discretization": discretization})
    # in memory first: HDF5 does not say well what ended its writing
    content = io.BytesIO()
    nir.write(content, nir.NIRGraph(drawn.nodes, drawn.edges, metadata=held, type_check=False))
    with replacing(Path(path)) as file:
        file.write(content.getbuffer())


def _unlike(net: nn.Module, name: str) -> str:
    """The name, or one like it that no module of the network has."""
    taken = dict(net.named_modules())
    while name in taken:
        name += "_"
    return name


def _input_shape(net: nn.Module, given: Optional[Sequence[int]]) -> Tuple[int, ...]:
    if given is not None:
        if not all(isinstance(each, int) and each > 0 for each in given):
            raise ValueError(
                f"sc.nir.save: input_shape={given!r} must be sizes without time and batch, as in (2, 34, 34)"
            )
        return tuple(given)
    leaves = [part for part in net.modules() if is_parametrized(part) or not list(part.children())]
    first: Any = next(iter(leaves), None)
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    raise ValueError(
        f"sc.nir.save: the shape of a sample does not follow from the first layer, {type(first).__name__}; give it "
        "without time and batch, as in input_shape=(2, 34, 34)"
    )


def _leading(net: nn.Module) -> int:
    """Dimensions before a sample's: batch, and time where neurons or TimeBatched take whole sequences."""
    held = {part.step for part in _outermost(net)}
    if len(held) > 1:
        raise ValueError("sc.nir.save: the network has neurons with step='multi' and with step='single'; make them one")
    if held:
        return 1 if held == {"single"} else 2
    timed = [part for part in net.modules() if isinstance(part, Network) or getattr(part, "step", "") == "multi"]
    return 2 if timed else 1


def _outermost(net: nn.Module) -> List[Stateful]:
    """Stateful modules that are in no other one, whose step mode is theirs."""
    if isinstance(net, Stateful):
        return [net]
    return [found for child in net.children() for found in _outermost(child)]


def _tell(unsaid: Sequence[Tuple[str, Unsaid]], keep: Sequence[str]) -> None:
    """Refuse what NIR cannot say, or warn of it."""
    refused = [(name, each) for name, each in unsaid if each.name not in keep]
    if refused:
        lines = "\n".join(f"  {name!r} {each.sentence}" for name, each in refused)
        names = ", ".join(repr(name) for name in sorted({each.name for _, each in refused}))
        raise ValueError(
            f"sc.nir.save: NIR cannot say this:\n{lines}\nChange it, or write the graph without it and keep it as "
            f"metadata, which sc.nir.load alone reads: keep=({names},)"
        )
    if unsaid:
        lines = "\n".join(f"  {name!r} {each.sentence}" for name, each in unsaid)
        warnings.warn(
            f"sc.nir.save: the graph is written without this, which is kept as metadata that sc.nir.load alone reads:"
            f"\n{lines}",
            UserWarning,
            stacklevel=3,
        )
