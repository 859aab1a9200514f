"""``sc.load_weights``: a checkpoint of snnTorch or SpikingJelly in a network that was written anew.

Rules of this module:

- An entry goes by its name. ``TimeBatched`` and ``Recurrent`` put a module between, which the other library has not:
  the places of an entry are those that it has with and without these.
- What an entry means is for the module to say that takes it: a neuron takes ``beta`` as a number, and refuses a
  ``reset_mechanism_val`` that is not its own (:mod:`spikecore.core.checkpoints`).
- Loaded is everything or nothing: a copy of the network, where one can be made, loads first.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.core.checkpoints import SNNTORCH, STATES_OF_SNNTORCH
from spikecore.core.checks import check_network
from spikecore.core.neuron import Neuron
from spikecore.layers import TimeBatched
from spikecore.neurons import Recurrent
from spikecore.words import shown

#: Names under which programs keep the state of a network in a checkpoint.
USUAL = ("state_dict", "model_state_dict", "net_state_dict", "model", "net", "network")
#: The name under which torch.compile holds what it compiled, a network or a part of one.
COMPILED = "_orig_mod"
#: The prefix of DataParallel and DistributedDataParallel, which wrap a whole network.
PARALLEL = "module."


def load_weights(
    net: nn.Module, file: Union[str, Path, Mapping[str, Any]], *, order: bool = False, strict: bool = True
) -> Any:
    """Load a checkpoint of a snnTorch or SpikingJelly network into ``net``, whose neurons are of spikecore.

    ::

        net = nn.Sequential(sc.layers.TimeBatched(nn.Conv2d(1, 8, 3)), sc.PLIF(), nn.Flatten(2), nn.Linear(5408, 10))
        sc.load_weights(net, "spikingjelly.pt")  # "0.weight" is that of layer.Conv2d, net[0].module here

    Entries go by their names, those within :class:`spikecore.layers.TimeBatched` by the name of the ``layer.Conv2d`` or
    the ``SeqToANNContainer`` in its place, and those of :class:`spikecore.Recurrent` by snnTorch's ``recurrent`` and
    those of its neuron. A fixed ``beta``, ``alpha`` or ``threshold`` of snnTorch sets that of the neuron: one value a
    number, several a tensor. ``graded_spikes_factor`` must be 1, and ``reset_mechanism_val`` the reset of the neuron.
    States, which snnTorch saved before 0.9 (``mem``, ``syn``), are left out: the network begins at rest.
    Prefixes ``module.`` of DataParallel are left out, and ``_orig_mod.`` of torch.compile wherever it stands.

    file: a file of ``torch.save`` or of safetensors (``.safetensors``), or the entries themselves. In a checkpoint with
        more in it, the network's state is found under ``state_dict``, ``model_state_dict``, ``model``, ``net`` and the
        like. Files are read with ``weights_only=True``, which runs no code from them.
    order: match modules by their order instead of their names, as for a network whose layers are grouped in another
        way. Each module of the checkpoint goes to the next one of ``net`` with entries of the same names and shapes.
    strict: entries that are missing or unexpected raise RuntimeError. False, with ``order`` or without, loads the file
        of fixed neurons into a network that learns them, such as one of ``LIFNode`` into one of ``sc.PLIF``.

    Gives what ``net.load_state_dict`` gives: ``missing_keys`` and ``unexpected_keys``, by the names in ``net``. A
    network that :func:`spikecore.convert` changed has its old names, and loads with ``load_state_dict`` itself.

    Raises TypeError for what is no network or no checkpoint, ValueError if several things in a file may be the state of
    a network, if two entries are the same one of ``net`` or, with ``order``, if an entry has no place, OSError
    (FileNotFoundError, PermissionError, IsADirectoryError) for a file that cannot be read, and RuntimeError for what
    ``load_state_dict`` refuses; a ``net`` that ``copy.deepcopy`` takes is then as it was.
    """
    check_network("sc.load_weights", net)
    state = _unwrapped(net, _entries(file))
    named = _by_order(net, state, strict) if order else _by_name(net, state)
    try:
        trial = copy.deepcopy(net)
    except Exception:
        trial = None  # a state with a graph, for one: what then fails may have loaded some of the modules
    try:
        if trial is not None:
            trial.load_state_dict(named, strict=strict)
        return net.load_state_dict(named, strict=strict)
    except RuntimeError as error:
        if order or trial is None or not _loads_in_order(trial, state):
            raise
        raise RuntimeError(
            "sc.load_weights: the names of the checkpoint are not those of net, but its modules fit those of net in "
            f"order: sc.load_weights(net, file, order=True) goes by that. By names: {error}"
        ) from error


def _entries(file: Any) -> Mapping[str, Tensor]:
    """The state of a network in a file, or in what was read from one."""
    content = file
    if isinstance(file, (str, Path)):
        content = _read(Path(file))
    if not isinstance(content, Mapping):
        raise TypeError(
            f"sc.load_weights: file={shown(file)} must be a path or a state_dict, got {type(content).__name__}"
        )
    if _is_state(content):
        return content
    inner = [name for name in USUAL if _is_state(content.get(name))]
    if len(inner) != 1:
        what = f"both {' and '.join(inner)}" if inner else "no state of a network"
        raise ValueError(
            f"sc.load_weights: the checkpoint has {what} among {', '.join(map(repr, content))}; give the entry itself, "
            'sc.load_weights(net, checkpoint["..."])'
        )
    state: Mapping[str, Tensor] = content[inner[0]]
    return state


def _read(path: Path) -> Any:
    path.open("rb").close()  # raises the OSError of a file that cannot be read, for which the readers have other words
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            raise ImportError("sc.load_weights reads .safetensors by safetensors: pip install safetensors") from error
        try:
            return load_file(str(path))
        except Exception as error:
            raise ValueError(f"sc.load_weights: {str(path)!r} is no file of safetensors: {error}") from error
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"sc.load_weights: {str(path)!r} holds more than tensors, or is no file of torch.save: {error}\nIf you "
            "trust it, read it yourself: "
            "sc.load_weights(net, torch.load(path, map_location='cpu', weights_only=False)['net'])"
        ) from error


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, Tensor) for each in value.values())


def _unwrapped(net: nn.Module, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The entries by the names that they have without wrappers; nn.DataParallel(net) has names of its own."""
    names = {key: ".".join([part for part in key.split(".") if part != COMPILED]) for key in state}
    while PARALLEL[:-1] not in net._modules and all(name.startswith(PARALLEL) for name in names.values()):
        names = {key: name[len(PARALLEL) :] for key, name in names.items()}
    return _named(((key, names[key], value) for key, value in state.items()), "without its wrappers the same")


def _named(entries: Iterable[Tuple[str, str, Tensor]], what: str) -> Dict[str, Tensor]:
    """``(key, name, value)`` as name -> value. ValueError if two keys have one name, of which one would be lost."""
    named: Dict[str, Tensor] = {}
    keys: Dict[str, str] = {}
    for key, name, value in entries:
        if name in named:
            raise ValueError(
                f"sc.load_weights: {keys[name]!r} and {key!r} of the checkpoint are both {name!r}, {what} entry; take "
                "one of them out of it"
            )
        named[name], keys[name] = value, key
    return named


def _by_name(net: nn.Module, state: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    places: Dict[str, List[Tuple[str, nn.Module]]] = {}
    for theirs, ours, module in _places(net, [""], ""):
        places.setdefault(theirs, []).append((ours, module))

    def entries() -> Iterator[Tuple[str, str, Tensor]]:
        for key, value in state.items():
            theirs, _, leaf = key.rpartition(".")
            ours = next((path for path, module in places.get(theirs, ()) if _takes(module, leaf)), theirs)
            # snnTorch's feedback of single weights is registered twice, as V and recurrent.V
            if leaf == "V" and f"{theirs}.recurrent.V".lstrip(".") in state and ours == theirs:
                continue
            yield key, f"{ours}.{leaf}" if ours else leaf, value

    return _named(entries(), "in net the same")


def _places(module: nn.Module, theirs: Sequence[str], ours: str) -> Iterator[Tuple[str, str, nn.Module]]:
    """Names that a module may have in the other library -> its name here, and itself."""
    for name in theirs:
        yield name, ours, module
    for name, child in module.named_children():
        inner: List[str] = []
        if name == COMPILED:
            inner = list(theirs)
        elif isinstance(module, TimeBatched):
            # layer.Conv2d, or a container with the module in it; several modules have the container's numbers
            inner = [*theirs, *(() if type(child) is nn.Sequential else _below(theirs, "0"))]
        elif isinstance(module, Recurrent):
            inner = list(theirs) if name == "neuron" else _below(theirs, "recurrent")
        yield from _places(child, [*inner, *_below(theirs, name)], f"{ours}.{name}" if ours else name)


def _below(paths: Sequence[str], name: str) -> List[str]:
    return [f"{path}.{name}" if path else name for path in paths]


def _takes(module: nn.Module, leaf: str) -> bool:
    """True if a module has an entry of this name, or a neuron a parameter that is a number."""
    tensors: Set[str] = {*module._parameters, *module._buffers}
    return leaf in tensors or (isinstance(module, Neuron) and leaf in (*module.params, *SNNTORCH, *STATES_OF_SNNTORCH))


def _by_order(net: nn.Module, state: Mapping[str, Tensor], strict: bool = True) -> Dict[str, Tensor]:
    groups: Dict[str, Dict[str, Tensor]] = {}
    for key, value in state.items():
        theirs, _, leaf = key.rpartition(".")
        groups.setdefault(theirs, {})[leaf] = value
    # in the order of net.state_dict(); a neuron without entries takes some as numbers
    places, named = iter(dict(net.named_modules()).items()), {}
    for theirs, entries in groups.items():
        for ours, module in places:
            if _fits(module, entries):
                named.update({f"{ours}.{leaf}" if ours else leaf: value for leaf, value in entries.items()})
                break
            if _own_entries(module) and (strict or not isinstance(module, Neuron)):  # a neuron may learn here alone
                raise ValueError(
                    f"sc.load_weights: in order, {theirs!r} of the checkpoint, with {_shapes(entries)}, would go to "
                    f"{ours!r} ({type(module).__name__}) with {_shapes(_own_entries(module))}"
                )
        else:
            raise ValueError(
                f"sc.load_weights: in order, net has no place left for {theirs!r}, with {_shapes(entries)}"
            )
    return named


def _loads_in_order(trial: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """True if names alone were at fault: in order, every entry has a place, every place an entry, and all load."""
    try:
        trial.load_state_dict(_by_order(trial, state))
    except (RuntimeError, ValueError):
        return False
    return True


def _shapes(entries: Mapping[str, Tensor]) -> Dict[str, Tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in entries.items()}


def _fits(module: nn.Module, entries: Mapping[str, Tensor]) -> bool:
    """True if a module takes all entries of a module of the checkpoint, with their shapes."""
    if isinstance(module, Neuron):
        return all(_takes(module, name) for name in entries)
    return _shapes(entries) == _shapes(_own_entries(module))


def _own_entries(module: nn.Module) -> Dict[str, Tensor]:
    """The entries of a module itself, without those of its parts."""
    return {key: value for key, value in module.state_dict().items() if "." not in key and isinstance(value, Tensor)}
