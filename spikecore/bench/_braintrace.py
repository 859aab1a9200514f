"""BrainTrace's D-RTRL for the suite ``online``: a linear layer and a LIF cell, under ``jax.jit``."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take the memory that torch needs

jax: Any = import_module("jax")
jnp: Any = jax.numpy
brainstate: Any = import_module("brainstate")
braintrace: Any = import_module("braintrace")


def _fires(u: Any) -> Any:
    return (u >= 0).astype(u.dtype)


def _with_derivative(primals: Any, tangents: Any) -> Any:
    (u,), (du,) = primals, tangents
    return _fires(u), du / (1.0 + (jnp.pi * u) ** 2)  # ATan(2)


_spike = jax.custom_jvp(_fires)
_spike.defjvp(_with_derivative)


class _Cell(brainstate.nn.Module):  # type: ignore[misc]  # of a library without types
    """``h = (v + W x) / 2``, ``v = (1 - z) h``. Its state is ``h``, since their losses are of states."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.linear = braintrace.nn.Linear(*weight.shape, w_init=lambda *_, **__: weight, b_init=None)

    def init_state(self, batch_size: Any = None, **_: Any) -> None:
        """At rest."""
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, *self.linear.out_size)))

    def update(self, x: Any) -> Any:
        """Spikes of one step."""
        h = self.h.value
        self.h.value = (h * (1.0 - _spike(h - 1.0)) + self.linear(x)) / 2.0
        return _spike(self.h.value - 1.0)


class Layer:
    """The layer, compiled once for single steps and once for sequences."""

    def __init__(self, weight: Tensor, x: Tensor, c: Tensor) -> None:
        device = jax.devices("gpu" if x.device.type == "cuda" else "cpu")[0]
        w, self.x, self.c = (jax.device_put(value.cpu().numpy(), device) for value in (weight.t(), x, c))
        self.like, self.batch = weight, x.shape[1]
        self.learner = braintrace.compile(_Cell(w), "d_rtrl", self.x[0], batch_size=self.batch)
        self.states = self.learner.states(brainstate.HiddenState)
        self.parameters = self.learner.param_states

        def gradient(x: Any, c: Any) -> Any:
            return self.learner.etrace_grad(x, c, step_fn=lambda x, c: (self.learner(x) * c).sum(), reduction="sum")

        def learn(x: Any, c: Any) -> None:
            for name, g in gradient(x, c).items():
                state = self.parameters[name]
                state.value = jax.tree.map(lambda value, d: value - 1e-9 * d, state.value, g)

        self._gradient, self._learn = brainstate.transform.jit(gradient), brainstate.transform.jit(learn)

    def _reset(self) -> None:
        self.learner.reset_state(batch_size=self.batch)
        for state in self.states.values():
            state.value = jnp.zeros_like(state.value)

    def gradient(self) -> Tensor:
        """Of the weights ``[J, I]`` by the sequence."""
        self._reset()
        (g,) = jax.tree.leaves(self._gradient(self.x, self.c))
        return torch.tensor(g.T.tolist()).to(self.like)

    def sequence(self, i: int) -> None:
        """A sequence from rest, and an update."""
        self._reset()
        self._learn(self.x, self.c)
        self._wait()

    def steps(self, count: int, i: int) -> None:
        """So many single steps, each with an update."""
        for t in range(count):
            self._learn(self.x[t : t + 1], self.c[t : t + 1])
        self._wait()

    def _wait(self) -> None:
        jax.block_until_ready([state.value for state in self.parameters.values()])
