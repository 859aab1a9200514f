"""Loading a graph."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import torch
from torch import nn

from spikecore._base.errors import a_kind
from spikecore.layers import Delay
from spikecore.neurons import Recurrent
from spikecore.nir import _file, _kept
from spikecore.nir._conventions import CONVENTIONS, Convention, check_discretization, check_dt
from spikecore.nir._graphs import Flat, common_name
from spikecore.nir._network import INPUT, Network, Unit
from spikecore.nir._neuron_nodes import NEURON_NODES, Reading, neuron_of
from spikecore.nir._node_layers import LAYER_NODES, steps_of
from spikecore.nir._package import package
from spikecore.surrogate import Surrogate


def load(
    path: Any,
    *,
    dt: Optional[float] = None,
    discretization: Optional[str] = None,
    convention: Union[str, Convention, None] = None,
    surrogate: Optional[Surrogate] = None,
) -> Network:
    r"""Read a graph of NIR as a network, ``[T, B, *N] -> [T, B, *M]``, whose modules have the names of its nodes.

    A file that :func:`save` wrote needs no argument: it gives the same neurons with the same numbers. One of another
    library holds equations in continuous time. They become steps as :class:`Convention` says::

        v' = v_leak + decay (v - v_leak) + gain x        decay = 1 - dt/tau    discretization="euler"
        z  = [v' > v_threshold]                          decay = exp(-dt/tau)  discretization="exp"
        v'' = v_reset where z, else v'                   gain  = R (1 - decay)

    and for IF ``gain = R dt``; the current of CubaLIF first, then its membrane. At ``dt/tau = 0.5`` the two decays are
    0.5 and 0.607, so neither is a default. That is NIR's meaning; what a library computes from its own file may differ
    (it subtracts at a reset, fires at the threshold, takes the input as a jump), which ``convention`` says.

    path: a file, or a graph of the package nir.
    dt: the time step in the unit of the file's time constants, seconds in NIR.
    discretization: ``"euler"`` or ``"exp"``.
    convention: the library that wrote the file, ``"snntorch"``, ``"norse"``, ``"sinabs"``, ``"rockpool"`` or
        ``"spikingjelly"`` (:data:`CONVENTIONS`), or a :class:`Convention`; it has the discretisation and a dt.
    surrogate: that of the neurons which do not come from :func:`save`; None for the default.

    Neurons of other libraries become :class:`NIRLIF`, :class:`NIRLI`, :class:`NIRCubaLIF` and :class:`NIRCubaLI`.
    Parameters that are the same for all neurons become numbers, others tensors, per channel where that is enough. A
    neuron whose output comes back through a layer becomes :class:`spikecore.Recurrent`: the output comes back one step
    later.

    A file may be a stranger's: only classes, settings, surrogates and numbers that :func:`save` writes are taken from
    its metadata, and a file that refers to other files is refused.

    Raises ValueError for what the file leaves open, for nodes and loops that have no module here, by name, and for a
    file of something else; OSError if the file cannot be opened; TypeError for arguments of wrong types; ImportError
    without the package nir.
    """
    graph = _graph(path)
    how = _reading(graph, dt, discretization, convention, surrogate)
    flat = Flat(graph)
    made: Dict[str, nn.Module] = {}
    for loop in flat.loops():
        _loop(flat, loop, how, made)
    _delays(flat, how, made)
    units = []
    for name in flat.in_order():
        module = made[name] if name in made else _module(name, flat.nodes[name], how)
        units.append(Unit(name, module, _sources(flat, name)))
    return Network(units, _sources(flat, Flat.OUTPUT))


def _graph(path: Any) -> Any:
    nir = package()
    if isinstance(path, nir.NIRNode):
        graph = _as_read(path)
    elif not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"sc.nir.load: path={path!r} must be a file's name or a graph of the package nir")
    else:
        graph = _file.read(path)
    return graph if isinstance(graph, nir.NIRGraph) else nir.NIRGraph.from_list(graph, type_check=False)


def _as_read(node: Any) -> Any:
    """A node as a file would have it, with arrays of NumPy, whatever the writer gave."""
    held = copy.copy(node)
    for name, value in vars(node).items():
        if isinstance(value, torch.Tensor):
            setattr(held, name, value.detach().cpu().numpy())
        elif name == "nodes":
            held.nodes = {key: _as_read(each) for key, each in value.items()}
    return held


def _reading(graph: Any, dt: Any, way: Any, convention: Any, surrogate: Any) -> Reading:
    if dt is not None:
        check_dt("sc.nir.load", dt)
    if way is not None:
        check_discretization("sc.nir.load", way)
    if surrogate is not None and not isinstance(surrogate, Surrogate):
        raise TypeError(f"sc.nir.load: surrogate={surrogate!r} must be one of sc.surrogate")
    options = {} if surrogate is None else {"surrogate": surrogate}
    kept, own = _kept.read(graph.metadata), None
    if isinstance(convention, str):
        if convention not in CONVENTIONS:
            raise ValueError(
                f"sc.nir.load: convention={convention!r} is none of {', '.join(CONVENTIONS)}; give a sc.nir.Convention"
            )
        convention = CONVENTIONS[convention]
    if convention is not None:
        if not isinstance(convention, Convention):
            raise TypeError(f"sc.nir.load: convention={convention!r} must be a name or a sc.nir.Convention")
        if way not in (None, convention.discretization):
            raise ValueError(
                f"sc.nir.load: discretization={way!r}, and the convention has {convention.discretization!r}; give one"
            )
        like = convention if dt is None else dataclasses.replace(convention, dt=dt)
        return Reading(like, None, () if like.dt else ("dt",), options)
    if kept is not None:
        saved = kept.get("dt"), kept.get("discretization")
        dt, way = saved[0] if dt is None else dt, saved[1] if way is None else way
        own = saved if (dt, way) == saved and None not in saved else None
    lacking = [name for name, value in (("dt", dt), ("discretization", way)) if value is None]
    return Reading(Convention(way or "euler", dt), own, lacking, options)


def _module(name: str, node: Any, how: Reading) -> nn.Module:
    kind = type(node).__name__
    if kind in NEURON_NODES:
        return neuron_of(name, node, how)
    if kind in LAYER_NODES:
        return LAYER_NODES[kind](name, node, how)
    known = ", ".join((*NEURON_NODES, *LAYER_NODES))
    raise ValueError(f"sc.nir.load: node {name!r} is {a_kind(node)}, which has no module here; there are {known}")


def _sources(flat: Flat, name: str) -> Tuple[str, ...]:
    return tuple(INPUT if source == Flat.INPUT else source for source in flat.before(name))


def _loop(flat: Flat, loop: Any, how: Reading, made: Dict[str, nn.Module]) -> None:
    """One neuron whose output comes back through layers, as Recurrent."""
    neurons = [name for name in loop if type(flat.nodes[name]).__name__ in NEURON_NODES]
    names = ", ".join(sorted(repr(name) for name in loop))
    if len(neurons) != 1:
        raise ValueError(
            f"sc.nir.load: nodes {names} lead to each other with {len(neurons)} neurons in the loop, and a graph does "
            "not say which of its edges waits for a step; loops with one neuron are loaded, as sc.Recurrent. Take an "
            "edge out, load the rest, and write the loop over time yourself, with sc.set_step(net, 'single')"
        )
    (start,) = neurons
    chain: List[str] = []
    ahead = [name for name in flat.after(start) if name in loop]
    while len(ahead) == 1 and ahead[0] != start:
        (each,) = ahead
        if len(flat.before(each)) != 1 or len(flat.after(each)) != 1:
            raise ValueError(
                f"sc.nir.load: node {each!r} within the loop of {names} has edges to nodes outside of it; what comes "
                f"in and goes out must do so at the neuron, {start!r}"
            )
        chain.append(each)
        ahead = flat.after(each)
    if len(ahead) != 1 or len(chain) + 1 != len(loop):
        raise ValueError(f"sc.nir.load: the output of {start!r} comes back on several ways, {names}; wanted is one")
    name = common_name([start, *chain], [each for each in flat.nodes if each not in loop]) or start
    made[name] = Recurrent(neuron_of(start, flat.nodes[start], how), _feedback(flat, chain, how))
    flat.replaced([start, *chain], name)


def _feedback(flat: Flat, chain: List[str], how: Reading) -> nn.Module:
    nodes = [flat.nodes[name] for name in chain]
    kinds = [type(node).__name__ for node in nodes]
    if "Delay" in kinds:
        if len(kinds) != 2 or kinds[0] != "Delay" or kinds[1] not in ("Affine", "Linear"):
            raise ValueError(
                f"sc.nir.load: an output comes back through {', '.join(kinds)} ({', '.join(map(repr, chain))}); with a "
                "Delay, that must be Delay and then Affine or Linear"
            )
        return _delayed(chain[0], nodes[0], _module(chain[1], nodes[1], how), how)
    layers = [_module(name, node, how) for name, node in zip(chain, nodes)]
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def _delayed(name: str, node: Any, linear: Any, how: Reading) -> Delay:
    steps = steps_of(name, node, how)
    longest = max(int(steps.max()), 1)
    held = node.metadata.get("spikecore_max_delay") if isinstance(node.metadata, dict) else None
    longest = longest if held is None else max(int(np.asarray(held)), longest)
    return Delay(linear, longest, delay=steps.to(torch.float32), per="input", learn=())


def _delays(flat: Flat, how: Reading, made: Dict[str, nn.Module]) -> None:
    """Nodes ``p.delay`` and ``p.linear`` that follow each other, which sc.Delay is saved as."""
    for name in [name for name in flat.nodes if name.endswith(".delay")]:
        behind = name[:-5] + "linear"
        node, after = flat.nodes[name], flat.nodes.get(behind)
        if type(node).__name__ != "Delay" or type(after).__name__ not in ("Affine", "Linear"):
            continue
        place = common_name([name, behind], [each for each in flat.nodes if each not in (name, behind)])
        if place and flat.after(name) == [behind] and flat.before(behind) == [name]:
            made[place] = _delayed(name, node, _module(behind, after, how), how)
            flat.replaced([name, behind], place)
