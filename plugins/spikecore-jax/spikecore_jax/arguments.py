"""Arguments of a pure function of a neuron: checked by name, and brought to the shapes that its steps compute with."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np
import torch

from spikecore.lang import Program

#: One array, or one for each input or output of a neuron.
Arrays = Union[jax.Array, Sequence[jax.Array]]


def array(value: Any) -> np.ndarray:
    """A parameter of a neuron: a number in float64, which each call rounds once to its dtype of arithmetic."""
    if isinstance(value, torch.Tensor):
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        return np.array(value.detach().to("cpu", wide).numpy())
    return np.asarray(value, np.float64)


def checked(x: Any) -> jax.Array:
    """An input as an array of JAX."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise TypeError(
            f"xs is a {type(x).__module__}.{type(x).__name__}; give an array of JAX or NumPy [T, *N], or a tuple of "
            "one for each input"
        )
    return jnp.asarray(x)


def inputs_of(program: Program, xs: Arrays) -> List[jax.Array]:
    """One array for each input, all of one shape and dtype."""
    inputs = [checked(x) for x in (xs if isinstance(xs, (tuple, list)) else [xs])]
    if len(inputs) != len(program.inputs):
        names = ", ".join(program.inputs)
        raise ValueError(
            f"xs has {len(inputs)} arrays, {program.name} has the inputs {names}; give one for each, of random numbers "
            "jax.random.uniform(key, x.shape)"
        )
    one = inputs[0]
    if any(x.shape != one.shape or x.dtype != one.dtype for x in inputs) or one.ndim < 1:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
        raise ValueError(f"xs is {shapes}; give arrays [T, *N] of one shape and dtype")
    return inputs


def state_of(program: Program, state: Mapping[str, Any], shape: Tuple[int, ...], compute: str) -> List[jax.Array]:
    """The states in the program's order."""
    if {*state} != {*program.states}:
        raise ValueError(f"state has {', '.join(state) or 'nothing'}; {program.name} has {', '.join(program.states)}")
    for name, value in state.items():
        if jnp.shape(value) != shape:
            raise ValueError(f"state {name!r} has shape {list(jnp.shape(value))}, one step has {list(shape)}")
    return [jnp.asarray(state[name], compute) for name in program.states]


def placed(name: str, given: Any, shape: Tuple[int, ...], channel_dim: int, compute: str) -> jax.Array:
    """A parameter that broadcasts against one step, by spikecore's rules."""
    value = jnp.asarray(given, compute)
    dims = len(shape)
    if value.ndim == 1 and -dims <= channel_dim < dims and value.shape[0] == shape[channel_dim]:
        view = [1] * dims
        view[channel_dim] = value.shape[0]
        return value.reshape(view)
    if value.shape == (1,):
        return value.reshape(())
    behind = shape[dims - value.ndim :] if value.ndim <= dims else None
    fits = behind is not None and all(have in (1, want) for have, want in zip(value.shape, behind))
    if fits and (value.ndim != 1 or dims == 1):
        return value
    along = f"; a parameter [C] lies along dimension {channel_dim}" if value.ndim == 1 else ""
    raise ValueError(f"params {name!r} has shape {list(value.shape)}, one step has {list(shape)}{along}")


def tied(*groups: Sequence[jax.Array]) -> List[List[jax.Array]]:
    """The same values, each varying over devices as any of them does: what ``shard_map`` asks of a loop over steps, and
    by which it adds up gradients over devices.
    """
    here: Any = False
    for value in (one for group in groups for one in group if one.size):
        here = here | (value[(0,) * value.ndim] == 0)
    return [[jnp.where(here, value, value) for value in group] for group in groups]
