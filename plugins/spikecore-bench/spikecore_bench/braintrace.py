"""BrainTrace and brainstate, with which it is written: a LIF layer by backpropagation, and by rules along with time."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, List, Tuple

import torch
from torch import Tensor

from spikecore_bench.check import Observed
from spikecore_bench.implementations import NotTimed
from spikecore_bench.jax_layers import get, jax, jnp, put, spike, waiting

brainstate: Any = import_module("brainstate")
braintrace: Any = import_module("braintrace")


class LIF(brainstate.nn.Module):  # type: ignore[misc]  # of a library without types
    """``h = v / 2 + x``, or ``h = (v + x) / 2``, and ``v = (1 - z) h``.

    Its state is ``h``, since losses of BrainTrace are of states.
    """

    def __init__(self, width: int, decay_input: bool = False, detach_reset: bool = True) -> None:
        super().__init__()
        self._width, self._decay_input, self._detach_reset = width, decay_input, detach_reset

    def init_state(self, batch_size: Any = None, **_: Any) -> None:
        """At rest."""
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self._width)))

    def update(self, x: Any) -> Any:
        """Spikes of one step."""
        h = self.h.value
        z = spike(h - 1.0)
        v = h * (1.0 - (jax.lax.stop_gradient(z) if self._detach_reset else z))
        self.h.value = (v + x) / 2.0 if self._decay_input else v / 2.0 + x
        return spike(self.h.value - 1.0).astype(x.dtype)


def spikes(x: Any, unrolled: int) -> Any:
    """Of a layer ``[T, B, N]``."""
    neuron = LIF(x.shape[-1])
    neuron.init_state(x.shape[1])
    return brainstate.transform.for_loop(neuron, x, unroll=unrolled)


class _Cell(brainstate.nn.Module):  # type: ignore[misc]
    """A linear layer and neurons."""

    def __init__(self, weight: Any, bias: Any, neuron: LIF) -> None:
        super().__init__()
        with_bias = None if bias is None else lambda *_, **__: bias
        self.linear = braintrace.nn.Linear(*weight.shape, w_init=lambda *_, **__: weight, b_init=with_bias)
        self.neuron = neuron

    def update(self, x: Any) -> Any:
        """Spikes of one step."""
        return self.neuron(self.linear(x))


class Online:
    """A cell that learns by a rule; its functions are to be compiled."""

    def __init__(self, cell: _Cell, rule: str, x: Any, **options: Any) -> None:
        self._batch = x.shape[1]
        self.learner = braintrace.compile(cell, rule, x[0], batch_size=self._batch, **options)
        self._states = self.learner.states(brainstate.HiddenState)
        self.parameters = self.learner.param_states

    def reset(self) -> None:
        """States and traces at rest."""
        self.learner.reset_state(batch_size=self._batch)
        for state in self._states.values():
            state.value = jnp.zeros_like(state.value)

    def forward(self, x: Any) -> Any:
        """Spikes of a sequence, without gradients."""
        self.reset()
        return brainstate.transform.for_loop(self.learner, x)

    def gradients(self, x: Any, c: Any) -> Any:
        """Of ``sum_t c[t] y[t]``, by the name of a parameter; goes on from the states that are there."""
        return self.learner.etrace_grad(x, c, step_fn=lambda x, c: (self.learner(x) * c).sum(), reduction="sum")


class OnlineLayer:
    """The linear layer and the neurons of the suites of the field, whose weights learn by a rule."""

    def __init__(self, rule: str, **options: Any) -> None:
        self._rule, self._options = rule, options

    def _online(self, x: Any, weight: Any, bias: Any) -> Online:
        return Online(_Cell(weight, bias, LIF(weight.shape[1])), self._rule, x, **self._options)

    def observe(self, x: Tensor, cotangent: Tensor) -> Observed:
        """Spikes, and the gradient of a weight that is the identity; there is none of the input."""
        inputs, width = put(x), x.shape[-1]
        online = self._online(inputs, put(torch.eye(width).to(x)), None)
        fired = brainstate.transform.jit(online.forward)(inputs)
        online.reset()
        (gradient,) = jax.tree.leaves(brainstate.transform.jit(online.gradients)(inputs, put(cotangent)))
        return Observed(get(fired, x), x.detach(), (get(gradient, x),))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Callable[[int], Any], Callable[[int], Any]]:
        """Forward, and forward with the gradients of the weights, of the sum of the spikes."""
        inputs, ones = put(x), put(x.new_ones(len(x)))
        online = self._online(inputs, put(weight.t()), put(bias))

        def both(inputs: Any, ones: Any) -> Any:
            online.reset()
            return online.gradients(inputs, ones)

        jit = brainstate.transform.jit
        return waiting(jit(online.forward), inputs), waiting(jit(both), inputs, ones)

    def classifier(self, weights: List[Tensor], x: Tensor, labels: Tensor, rate: float) -> Callable[[int], float]:
        """Raise NotTimed: the loss is of a sum over time."""
        raise NotTimed("its losses are of single steps, and the loss of this suite is of a sum over time")


class Layer:
    """The layer of the suite ``online``, compiled once for single steps and once for sequences."""

    def __init__(self, weight: Tensor, x: Tensor, c: Tensor) -> None:
        self.like, self.x, self.c = weight, put(x), put(c)
        w = put(weight.t())
        self.online = Online(_Cell(w, None, LIF(w.shape[1], decay_input=True, detach_reset=False)), "d_rtrl", self.x)

        def learn(x: Any, c: Any) -> None:
            for name, g in self.online.gradients(x, c).items():
                state = self.online.parameters[name]
                state.value = jax.tree.map(lambda value, d: value - 1e-9 * d, state.value, g)

        self._gradient, self._learn = map(brainstate.transform.jit, (self.online.gradients, learn))

    def gradient(self) -> Tensor:
        """Of the weights ``[J, I]`` by the sequence."""
        self.online.reset()
        (g,) = jax.tree.leaves(self._gradient(self.x, self.c))
        return get(g.T, self.like)

    def sequence(self, i: int) -> None:
        """A sequence from rest, and an update."""
        self.online.reset()
        self._learn(self.x, self.c)
        self._wait()

    def steps(self, count: int, i: int) -> None:
        """So many single steps, each with an update."""
        for t in range(count):
            self._learn(self.x[t : t + 1], self.c[t : t + 1])
        self._wait()

    def _wait(self) -> None:
        jax.block_until_ready([state.value for state in self.online.parameters.values()])
