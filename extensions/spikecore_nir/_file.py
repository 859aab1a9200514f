"""Files of NIR: reading one that may be a stranger's, and what spikecore keeps in the metadata of its nodes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np
import torch
from torch import Tensor, nn

from spikecore import surrogate as surrogates
from spikecore.core.neuron import Neuron
from spikecore.core.ranges import Interval
from spikecore.dtypes import compute_dtype
from spikecore.neurons import PLIF
from spikecore.surrogate import Surrogate
from spikecore.words import a_kind, shown

#: The key of everything that spikecore keeps.
KEY = "spikecore"
#: The key of the formats of a prepared network.
FORMATS = "spikecore_formats"
#: Bytes that the arrays of a file may take in memory, where the caller gives no other number.
MAX_BYTES = 2**30
#: Arguments of a neuron that are not kept, since they say how a network is run.
_OF_A_RUN = ("step", "backend", "surrogate")


class Refused(ValueError):
    """Fault of a graph; ``sc.nir.load`` adds the name of the file."""


def package() -> Any:
    """The module ``nir``; ImportError with the command that installs it."""
    try:
        import nir
    except ImportError as error:
        raise ImportError(
            "sc.nir reads and writes files with the package nir, which is not installed: pip install 'spikecore[nir]', "
            "or pip install nir (Python 3.10 or newer)"
        ) from error
    return nir


def read_node(name: str, node: Any, make: Callable[[], Any]) -> Any:
    """Result of ``make`` for a node; Refused for any error, with the names of the node and the field."""
    try:
        for field, value in fields(node):
            if value is not None and not isinstance(value, (str, bytes, dict)):
                array = np.asarray(value)
                if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                    raise Refused(
                        f"node {name!r}, {a_kind(node)}, has {field}={shown(value)} of dtype {array.dtype}, which "
                        "must be real numbers of at most 64 bits"
                    )
        return make()
    except Refused:
        raise
    except Exception as error:  # of Python, NumPy, torch or nir
        what = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise Refused(f"node {name!r}, {a_kind(node)}, cannot be read: {what}{error}") from error


def fields(node: Any) -> Iterator[Tuple[str, Any]]:
    """The numbers of a node by name."""
    return (
        (name, value) for name, value in vars(node).items() if name not in ("metadata", "input_type", "output_type")
    )


# files


def read(path: Union[str, os.PathLike[str]], max_bytes: int) -> Any:
    """The graph or node in a file.

    ValueError for a file of something else, or one with what no file of NIR needs: links, data in other files, groups
    in a circle, and arrays that take more than ``max_bytes`` together.
    """
    import h5py  # nir needs it

    with open(path, "rb") as file:
        try:
            with h5py.File(file, "r") as root:
                return _node("", _Contents(max_bytes).of_group("", root)["node"])
        except Exception as error:  # what h5py and nir raise depends on what the file holds
            what = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
            raise ValueError(f"sc.nir.load: {os.fspath(path)} is no file of NIR: {what}{error}") from error


class _Contents:
    """Reads groups as dicts and datasets as arrays, while they fit into the limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left = max_bytes
        self._seen: Set[int] = set()

    def of_group(self, place: str, group: Any) -> Dict[str, Any]:
        """The contents of a group by name; RecursionError for one that is too deep."""
        import h5py

        contents: Dict[str, Any] = {}
        for name in group:
            inner = f"{place}/{name}"
            # not group.items(), which would follow a link
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise Refused(f"{inner!r} is a link, maybe to another file")
            each = group[name]
            address = h5py.h5o.get_info(each.id).addr
            if address in self._seen:
                raise Refused(f"{inner!r} is in the file under another name, too")
            self._seen.add(address)
            if isinstance(each, h5py.Group):
                contents[name] = self.of_group(inner, each)
            elif isinstance(each, h5py.Dataset):
                contents[name] = self._of_dataset(inner, each)
        return contents

    def _of_dataset(self, place: str, array: Any) -> Any:
        import h5py

        if array.external or array.is_virtual:
            raise Refused(f"the numbers of {place!r} are in another file")
        if array.shape is None:
            raise Refused(f"{place!r} is empty")
        chunk = array.dtype.itemsize * math.prod(array.chunks or (0,))  # is read as a whole
        self._take(place, max(array.nbytes, chunk), array.shape)
        text = h5py.check_string_dtype(array.dtype)
        if text is None and array.dtype.kind not in "biuf":
            raise Refused(f"{place!r} has the dtype {array.dtype}, which must be real numbers or text")
        if text is None or text.length is not None or array.shape == ():
            value = array[()]
            return value.decode() if isinstance(value, bytes) else value
        # text of any length, one after the other: all of them may be the same long one
        texts = np.empty(array.shape, dtype=object)
        for index in np.ndindex(array.shape):
            texts[index] = array[index]
            self._take(place, len(texts[index]), array.shape)
        return texts

    def _take(self, place: str, size: int, shape: Sequence[int]) -> None:
        self._left -= size
        if self._left < 0:
            raise Refused(
                f"the arrays up to {place!r} of shape {tuple(shape)} take more than max_bytes={self._max_bytes}; if "
                "you trust the file, give a larger max_bytes"
            )


def _node(name: str, contents: Any) -> Any:
    nir = package()
    try:
        if contents["type"] != "NIRGraph":
            return nir.dict2NIRNode(contents)
        nodes = {key: _node(f"{name}.{key}" if name else key, each) for key, each in contents["nodes"].items()}
        edges = [(str(_text(a)), str(_text(b))) for a, b in contents["edges"]]
        return nir.NIRGraph(nodes, edges, metadata=contents.get("metadata", {}), type_check=False)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"node {name!r}: {type(error).__name__}: {error}") from error


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


# metadata: class, settings and exact parameters of our own modules beside NIR's numbers
#
# A time constant is rounded when it becomes seconds in float32, and NIR has no word for some settings. Both are kept
# under KEY, which other libraries ignore. Whoever changed a node's numbers since has changed the node: what is kept
# counts only while it gives these numbers (neuron_of in _neuron_nodes).


def metadata_of(content: Mapping[str, Any], tensors: Mapping[str, Tensor] = MappingProxyType({})) -> Dict[str, Any]:
    """Metadata of a node: ``content`` as one text, tensors as arrays."""
    flat = {name: value.detach().cpu().to(compute_dtype(value.dtype)).reshape(-1) for name, value in tensors.items()}
    return {KEY: {"content": json.dumps(content), **{f"tensor_{name}": x.numpy().copy() for name, x in flat.items()}}}


def content_of(metadata: Any) -> Optional[Dict[str, Any]]:
    """Content that :func:`metadata_of` was given, tensors by name under ``"tensors"``; None if there is nothing."""
    entry = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    if not isinstance(entry, Mapping) or "content" not in entry:
        return None
    try:
        content = dict(json.loads(str(_text(entry["content"]))))
    except Exception as error:
        raise ValueError(f"metadata {KEY!r} is damaged: {error}; remove it from the node") from None
    content["tensors"] = {name[7:]: value for name, value in entry.items() if name.startswith("tensor_")}
    return content


def formats_of(graph: Any) -> Dict[str, Any]:
    """The formats in a graph's metadata, by the names of nodes, as a stranger may have written them."""
    formats: Dict[str, Any] = {}
    for name, node in graph.nodes.items():
        text = node.metadata.get(FORMATS) if isinstance(node.metadata, Mapping) else None
        if text is not None:
            try:
                formats.update(json.loads(str(_text(text))))
            except Exception as error:  # of JSON, and of what is no object
                raise Refused(f"node {name!r}: metadata {FORMATS!r} is damaged: {error}; remove it") from None
    return formats


def metadata_of_neuron(owner: str, neuron: Neuron) -> Dict[str, Any]:
    """The metadata of a neuron. ValueError, which begins with ``owner``, for a surrogate that a file cannot name."""
    settings = {name: getattr(neuron, name, None) for name in neuron.configuration if name not in _OF_A_RUN}
    like: Any = neuron.surrogate
    name = type(like).__name__
    if getattr(surrogates, name, None) is not type(like) or not dataclasses.is_dataclass(like):
        raise ValueError(
            f"{owner}: surrogate={like!r} is not one of sc.surrogate, so a file cannot name it; save with the default, "
            "neuron.surrogate = sc.surrogate.ATan(), and set yours again after loading"
        )
    values = {name: getattr(neuron, name) for name in neuron.params}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return metadata_of(
        {
            "class": type(neuron).__name__,
            "settings": {name: value for name, value in settings.items() if isinstance(value, (bool, int, str))},
            "surrogate": [name, {field.name: getattr(like, field.name) for field in dataclasses.fields(like)}],
            "learn": list(neuron.learn),
            "numbers": {name: value for name, value in values.items() if name not in tensors},
            "shapes": {
                name: [list(value.shape), str(value.dtype)[6:], isinstance(value, nn.Parameter)]
                for name, value in tensors.items()
            },
            "bounds": {name: _ends(within) for name, within in neuron.bounds.items()},
        },
        tensors,
    )


def _ends(within: Interval) -> List[Optional[float]]:
    """The ends of a range as ``bounds`` takes them: None for one at infinity."""
    return [None if math.isinf(end) else end for end in (within.low, within.high)]


def rebuilt(content: Mapping[str, Any], kinds: Iterable[Any]) -> Tuple[Optional[Neuron], str]:
    """The neuron that was kept, of one of these classes; None, and why, if there is no such class or setting."""
    if content.get("class") is None:
        return None, "has metadata of spikecore that name no class"
    name = str(content["class"])
    kind = {each.__name__: each for each in kinds}.get(name)
    if kind is None:
        return None, f"was saved as a {name}, which this version of spikecore does not know"
    try:
        return _neuron(kind, content), ""
    except Exception as error:
        return None, f"was saved as a {name} that cannot be made here ({type(error).__name__}: {error})"


def _neuron(kind: Any, content: Mapping[str, Any]) -> Neuron:
    """With the surrogate, values, settings and ranges that :func:`metadata_of_neuron` writes: none of a run."""
    name, numbers = content["surrogate"]
    like = getattr(surrogates, name)
    if not (isinstance(like, type) and issubclass(like, Surrogate)):
        raise ValueError(f"{name!r} is no surrogate")
    tensors = {key: _tensor(content["tensors"][key], *form) for key, form in content["shapes"].items()}
    values = {**content["numbers"], **tensors}
    allowed = {"setting": set(kind.configuration) - {*_OF_A_RUN}, "parameter": set(kind.params)}
    for what, names in (("setting", content["settings"]), ("parameter", values)):
        unknown = sorted(set(names) - allowed[what])
        if unknown:
            raise ValueError(f"a file gives no {what} {unknown[0]!r}")
    w = values.pop("w") if kind is PLIF else None
    options = {**values, **content["settings"], "surrogate": like(**numbers), "learn": tuple(content["learn"])}
    try:
        built: Any = kind(**options)
    except ValueError:
        # saved without the ranges of its class, in which these values are not
        built = kind(**options, bounds=None)
    if isinstance(w, Tensor):
        del built.w
        (built.register_parameter if isinstance(w, nn.Parameter) else built.register_buffer)("w", w)
    elif w is not None:
        built.w = w
    saved, there = content["bounds"], {name: _ends(within) for name, within in built.bounds.items()}
    changed: Dict[str, Any] = {name: tuple(ends) for name, ends in saved.items() if there.get(name) != ends}
    changed.update(dict.fromkeys(set(there) - set(saved)))
    if changed:
        built.bounds = changed if saved else None
    return built  # type: ignore[no-any-return]  # a neuron


def _tensor(numbers: Any, shape: Sequence[int], dtype: str, learnt: bool) -> Tensor:
    if not isinstance(getattr(torch, dtype), torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype")
    value = torch.from_numpy(np.array(numbers)).reshape(shape).to(getattr(torch, dtype))
    return nn.Parameter(value) if learnt else value
