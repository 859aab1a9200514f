"""Vectors of a neuron: tensors ``[..., n]`` outside, one value after the other in its program.

Rules of this module:

- The last dimension is that of the values; in front of it a state has the dimensions of a time step, and a parameter
  none, ``[C]``, or what broadcasts to a time step. A parameter that is one number for all values stays a number.
- What is a vector, and of which size, is declared (:func:`spikecore.lang.vectors.vector`). No width decides it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Tensors
from spikecore.core.checks import is_a
from spikecore.lang.vectors import Vector, elements
from spikecore.words import shown

#: Types of the initial values of vectors, and in words.
_INITIAL = (
    ("states", (int, float, str), "a number or the name of a parameter"),
    ("params", (int, float), "a number, or {} numbers"),
    ("inputs", (int, float), "a number, or {} numbers"),
)


def declaration(cls: Any) -> None:
    """Check ``sizes`` of a class, and the sizes and initial values of its vectors."""
    for name, n in cls.sizes.items():
        size(cls.__name__, name, n)
    for kind, types, ways in _INITIAL:
        for name, each in _vectors(getattr(cls, kind)).items():
            where = f"{cls.__name__}.{kind} has {name!r}: sc.vector({each.n!r})"
            if isinstance(each.n, str) and each.n not in cls.sizes:
                known = ", ".join(cls.sizes) or "none"
                raise TypeError(f"{where}, which is no name in sizes; sizes: {known}; give a number of values")
            n = cls.sizes.get(each.n) or size(where, "n", each.n)
            values = each.initial if kind == "params" and isinstance(each.initial, tuple) else (each.initial,)
            if len(values) not in (1, n) or not all(isinstance(value, types) for value in values):
                raise TypeError(f"{where} with initial={shown(each.initial)}; give {ways.format(n)}")


def size(owner: str, name: str, n: Any) -> int:
    """The number of values of a vector, checked."""
    if not is_a(n, int) or n < 1:
        raise ValueError(f"{owner}: {name}={shown(n)} must be a whole number of values, 1 or more")
    return int(n)


def _vectors(declared: Any) -> Dict[str, Vector]:
    items = declared.items() if isinstance(declared, Mapping) else ()
    return {name: each for name, each in items if isinstance(each, Vector)}


def settle(neuron: Any, arguments: Dict[str, Any]) -> None:
    """Take the sizes of a neuron from its arguments, and have it know its vectors and its inputs."""
    cls = type(neuron)
    for name, n in cls.sizes.items():
        neuron.__dict__[name] = size(cls.__name__, name, arguments.pop(name, n))
    neuron.__dict__["vectors"] = _vectors(sized(neuron, {**cls.states, **cls.params}))
    if isinstance(cls.inputs, Mapping):
        kinds = neuron.__dict__["_input_kinds"] = sized(neuron, cls.inputs)
        neuron.__dict__["inputs"] = tuple([each for name, kind in kinds.items() for each in elements(name, kind)])


def sized(neuron: Any, declared: Any) -> Dict[str, Any]:
    """Declarations of a class, with the sizes of a neuron in the place of their names."""
    named = {name: each for name, each in _vectors(declared).items() if isinstance(each.n, str)}
    every = declared if isinstance(declared, Mapping) else dict.fromkeys(declared)
    return {**every, **{name: replace(each, n=getattr(neuron, str(each.n))) for name, each in named.items()}}


# -- parameters and inputs


def default(declared: Any) -> Any:
    """The default of a parameter, of a vector that of its values."""
    return declared.initial if isinstance(declared, Vector) else declared


def checked(neuron: Any, name: str, value: Any) -> Any:
    """The value of a parameter; that of a vector has its size."""
    value, declared = default(value), neuron.vectors.get(name)  # a constructor may pass the declaration on
    if declared is not None and isinstance(value, (tuple, list)):
        value = torch.tensor(value, dtype=torch.get_default_dtype())
    if declared is not None and isinstance(value, Tensor) and value.shape[-1:] != (declared.n,):
        raise ValueError(
            f"{type(neuron).__name__}: {name} has shape {list(value.shape)} and is a vector of {declared.n} values; "
            f"give a number for all of them, a tensor [{declared.n}], or [C, {declared.n}] for C channels"
        )
    return value


def values(neuron: Any, wanted: Iterable[str]) -> List[Tuple[str, Any]]:
    """The parameters of a program with these names, and their values."""
    every: Dict[str, Any] = {}
    for name, kind in neuron.vectors.items():
        if name in neuron.params:
            value = getattr(neuron, name)
            parts = value.unbind(-1) if isinstance(value, Tensor) else [value] * int(kind.n)
            every.update(zip(elements(name, kind), parts))
    return [(name, every[name] if name in every else getattr(neuron, name)) for name in wanted]


def are_inputs(neuron: Any) -> bool:
    """True if a neuron has vectors among its inputs."""
    return bool(neuron._input_kinds)


def named_inputs(neuron: Any) -> Tuple[str, ...]:
    """The names of the inputs of a neuron, each once where it is a vector."""
    return (*(neuron._input_kinds or neuron.inputs),)


def elements_of(neuron: Any, names: Iterable[str]) -> Tuple[str, ...]:
    """The names in a program of the inputs of a neuron with these names."""
    return tuple([each for name in names for each in elements(name, neuron._input_kinds.get(name))])


def regrouped(neuron: Any, values: Tensors) -> Tensors:
    """The inputs of a call from those of a program: the reverse of :func:`inputs`."""
    if not neuron._input_kinds:
        return values
    rest, kinds = iter(values), neuron._input_kinds.values()
    return tuple([next(rest) if kind is None else torch.stack([*islice(rest, kind.n)], -1) for kind in kinds])


def inputs(neuron: Any, given: Sequence[Any], names: Optional[Collection[str]] = None) -> Tuple[Any, ...]:
    """The inputs of a program from those of a call, which :func:`spikecore.core.checks.inputs` checks. ``names``: those
    that are given, all without.
    """
    kinds = neuron._input_kinds if names is None else {name: neuron._input_kinds[name] for name in names}
    if len(given) != len(kinds):
        raise TypeError(f"{type(neuron).__name__} takes {', '.join(kinds)}, and got {len(given)} inputs")
    parts: List[Any] = []
    for (name, kind), value in zip(kinds.items(), given):
        is_vector = kind is not None and isinstance(value, Tensor)
        if is_vector and value.shape[-1:] != (kind.n,):
            raise ValueError(
                f"{type(neuron).__name__}: {name} has shape {list(value.shape)} and is a vector of {kind.n} values; "
                f"give [T, *N, {kind.n}], of one time step [*N, {kind.n}]"
            )
        parts.extend(value.unbind(-1) if is_vector else (value,))
    return tuple(parts)


# -- states


def recorded(neuron: Any, record: Iterable[str]) -> Tuple[str, ...]:
    """The names in a program of states with these names; a name of another value stays."""
    return tuple([each for name in record for each in elements(name, neuron.vectors.get(name))])


def shapes(neuron: Any, step: Sequence[int]) -> Dict[str, Tuple[int, ...]]:
    """The shapes of the vectors of a neuron, for time steps of this shape."""
    return {name: (*step, int(kind.n)) for name, kind in neuron.vectors.items()}


def whole(neuron: Any, constant: Collection[str]) -> Tuple[str, ...]:
    """The states of a neuron all of whose values are among these states of its program."""
    return tuple([name for name in neuron.states if set(recorded(neuron, (name,))) <= set(constant)])


def apart(neuron: Any, state: Optional[Tensors]) -> Optional[Tensors]:
    """The states of a program from those of its neuron; what comes behind these stays."""
    if not neuron.vectors or state is None:
        return state
    parts: List[Tensor] = []
    for name, value in zip(neuron.states, state):
        parts.extend(value.unbind(-1) if name in neuron.vectors else (value,))
    return (*parts, *state[len(neuron.states) :])


def together(neuron: Any, names: Iterable[str], tensors: Tensors) -> Tensors:
    """The states of a neuron with these names from those of its program; what comes behind these stays."""
    if not neuron.vectors:
        return tensors
    rest = iter(tensors)
    kinds = map(neuron.vectors.get, names)
    states = [next(rest) if kind is None else torch.stack([*islice(rest, kind.n)], -1) for kind in kinds]
    return (*states, *rest)
