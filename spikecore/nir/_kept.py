"""What a file keeps of our own modules beside NIR's numbers, as metadata of a node: class, settings, exact parameters.

A time constant is rounded when it becomes seconds in float32, and NIR has no word for some settings. Both are kept
under the key ``spikecore``, which other libraries ignore. Whoever changed a node's numbers since has changed the node:
what is kept counts only while it gives these numbers (:func:`spikecore.nir._nodes.neuron_of`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from spikecore import surrogate as surrogates
from spikecore._shell.checks import shown
from spikecore._shell.ranges import Interval
from spikecore.dtypes import compute_dtype
from spikecore.neuron import Neuron
from spikecore.neurons import PLIF
from spikecore.nir._forms import FORMS
from spikecore.nir._layers import Threshold
from spikecore.surrogate import Surrogate

#: The key of everything that spikecore keeps.
KEY = "spikecore"
_CLASSES: Dict[str, Any] = {kind.__name__: kind for kind in (*FORMS, Threshold)}
#: What a neuron is built with that is no parameter and is not kept: how a network is run.
_OF_A_RUN = ("step", "backend", "surrogate")


def written(content: Mapping[str, Any], tensors: Optional[Mapping[str, Tensor]] = None) -> Dict[str, Any]:
    """Metadata of a node: ``content`` as one text, tensors as arrays."""
    arrays = {f"tensor_{name}": _array(value) for name, value in (tensors or {}).items()}
    return {KEY: {"content": json.dumps(content), **arrays}}


def read(metadata: Any) -> Optional[Dict[str, Any]]:
    """What :func:`written` was given, tensors by name under ``"tensors"``; None if there is nothing."""
    held = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    if not isinstance(held, Mapping) or "content" not in held:
        return None
    text = held["content"]
    try:
        content = json.loads(text.decode() if isinstance(text, bytes) else str(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"sc.nir.load: metadata {KEY!r} is damaged, no JSON: {error}; remove it from the node"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(f"sc.nir.load: metadata {KEY!r} is damaged, {shown(content)}; remove it from the node")
    content["tensors"] = {name[7:]: value for name, value in held.items() if name.startswith("tensor_")}
    return content


def _array(value: Tensor) -> Any:
    value = value.detach().cpu()
    wide = value.to(compute_dtype(value.dtype)) if value.is_floating_point() else value
    return wide.reshape(-1).numpy().copy()


def of_neuron(neuron: Neuron) -> Dict[str, Any]:
    """The metadata of a neuron. ValueError for a surrogate that a file cannot name."""
    numbers: Dict[str, float] = {}
    tensors: Dict[str, Tensor] = {}
    shapes: Dict[str, List[Any]] = {}
    for name in neuron.params:
        value = getattr(neuron, name)
        if isinstance(value, Tensor):
            tensors[name] = value
            shapes[name] = [list(value.shape), str(value.dtype)[6:], isinstance(value, nn.Parameter)]
        else:
            numbers[name] = value
    content = {
        "class": type(neuron).__name__,
        "settings": {name: getattr(neuron, name) for name in neuron.configuration if name in _settings(neuron)},
        "surrogate": _surrogate(neuron),
        "learn": list(neuron.learn),
        "numbers": numbers,
        "shapes": shapes,
        "bounds": {name: _ends(within) for name, within in neuron.bounds.items()},
    }
    return written(content, tensors)


def _settings(neuron: Neuron) -> List[str]:
    return [
        name
        for name in neuron.configuration
        if name not in _OF_A_RUN and isinstance(getattr(neuron, name, None), (bool, int, str))
    ]


def _ends(within: Interval) -> List[Optional[float]]:
    """The ends of a range as ``bounds`` takes them: None for one at infinity."""
    return [None if math.isinf(end) else end for end in (within.low, within.high)]


def _surrogate(neuron: Neuron) -> List[Any]:
    held: Any = neuron.surrogate
    name = type(held).__name__
    if getattr(surrogates, name, None) is not type(held) or not dataclasses.is_dataclass(held):
        raise ValueError(
            f"surrogate={held!r} is not one of sc.surrogate, so a file cannot name it; save with the default, "
            "neuron.surrogate = sc.surrogate.ATan(), and set yours again after loading"
        )
    return [name, {field.name: getattr(held, field.name) for field in dataclasses.fields(held)}]


def rebuilt(content: Mapping[str, Any]) -> Tuple[Optional[Neuron], str]:
    """The neuron that was kept; None, and why, if this version has no such class, surrogate or setting."""
    if content.get("class") is None:
        return None, "has metadata of spikecore that name no class"
    name = str(content["class"])
    if name not in _CLASSES:
        return None, f"was saved as a {name}, which this version of spikecore does not know"
    try:
        return _neuron(_CLASSES[name], content), ""
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        return None, f"was saved as a {name} that cannot be made here ({type(error).__name__}: {error})"


def _neuron(kind: Any, content: Mapping[str, Any]) -> Neuron:
    options, values = _options(kind, content), _values(kind, content)
    if kind is not PLIF:
        try:
            built: Neuron = kind(**values, **options)
        except ValueError:
            # saved without the ranges of its class, in which these values are not
            built = kind(**values, **options, bounds=None)
        return _within(built, content)
    w = values.pop("w")
    parametric = PLIF(**values, **options)
    if isinstance(w, Tensor):
        del parametric.w
        if isinstance(w, nn.Parameter):
            parametric.register_parameter("w", w)
        else:
            parametric.register_buffer("w", w)
    else:
        parametric.w = w
    return _within(parametric, content)


def _values(kind: Any, content: Mapping[str, Any]) -> Dict[str, Any]:
    """The parameters: numbers and tensors."""
    values: Dict[str, Any] = {**content["numbers"]}
    for name, (shape, dtype, learnt) in content["shapes"].items():
        array = torch.from_numpy(np.array(content["tensors"][name])).reshape(shape).to(_dtype(dtype))
        values[name] = nn.Parameter(array) if learnt else array
    _check_names("parameter", values, kind.params)
    return values


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype


def _options(kind: Any, content: Mapping[str, Any]) -> Dict[str, Any]:
    """The surrogate, what is learnt, and the settings that :func:`of_neuron` writes: none of a run."""
    name, fields = content["surrogate"]
    _check_names("setting", content["settings"], [name for name in kind.configuration if name not in _OF_A_RUN])
    like = getattr(surrogates, name)
    if not (isinstance(like, type) and issubclass(like, Surrogate)):
        raise ValueError(f"{name!r} is no surrogate")
    return {**content["settings"], "surrogate": like(**fields), "learn": tuple(content["learn"])}


def _check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"a file gives no {what} {unknown[0]!r}")


def _within(built: Neuron, content: Mapping[str, Any]) -> Neuron:
    """With the ranges that it was saved with, where they were not those of its class; older files have none."""
    wanted = content.get("bounds")
    if wanted is None:
        return built
    other = {
        name: pair for name, pair in wanted.items() if name not in built.bounds or _ends(built.bounds[name]) != pair
    }
    lifted = [name for name in built.bounds if name not in wanted]
    if other or lifted:
        changed: Dict[str, Any] = {**{name: tuple(pair) for name, pair in other.items()}, **dict.fromkeys(lifted)}
        built.bounds = changed if wanted else None  # type: ignore[assignment]  # what the constructor takes
    return built
