"""Local plasticity: STDP, and STDP modulated by a reward, on the calls of a chunk.

The window of a pair of spikes is two neurons of the language whose outputs are traces: ``p`` of the inputs of a layer,
and ``q`` of the spikes of the neuron that it reaches. They run over the chunk as any neuron does, and the pairings of
the chunk are two products for a layer of any kind: what its backward gives a weight for an input and a cotangent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.core.neuron import Neuron
from spikecore.neurons import LI, Recurrent
from spikecore_online._chunk import Chunk, LayerCall, NeuronCall, accumulate, learnt
from spikecore_online._traces import SYNAPSES, Connection, Traces, key_of

#: A number, or a function of the weights that gives one for each.
Amplitude = Union[float, Callable[[Tensor], Tensor]]


def _window() -> Neuron:
    return LI(20.0, decay_input=False)


@dataclass(frozen=True)
class STDP:
    """Spike-timing-dependent plasticity by traces, of every layer with weights in front of a spiking neuron.

    With ``u`` what a layer reads, ``y`` the spikes behind it and their traces ``p`` and ``q``, sums over the batch::

        e[t] = potentiation(W) y[t] p[t]^T - depression(W) q[t] u[t]^T
        dW   = sum_t e[t]                                         reward=False
        dW   = reward E    E is the sum of e over the chunk       reward=True
        E'   = exp(-1 / tau_eligibility) E + e[t] / tau_eligibility   with tau_eligibility

    A spike counts in its own trace, so that spikes of one step pair, in both terms. An update adds ``-dW`` to
    ``weight.grad``: with ``torch.optim.SGD`` and a learning rate of 1 the weight grows by ``dW``. Biases, parameters of
    neurons and normalisations do not learn. Whatever lies between layer and neuron is differentiated.

    pre, post: the neurons that make the traces, of one input and one output; by default ``sc.LI(20.0,
        decay_input=False)``, ``p' = (1 - 1/tau) p + u``. Any equations will do, such as ones in which a spike sets the
        trace to 1, for nearest neighbours. They compute on the backend that they ask for themselves.
    potentiation, depression: amplitudes, numbers or functions of the weights, ``lambda w: 1.0 - w``.
    reward: whether the chunk's loss modulates the pairings: the reward is ``-loss(outputs, targets)``, one number, or
        one for each sample, ``[B]``. It comes at the end of a chunk, for what happened in it and, with
        ``tau_eligibility``, before.
    tau_eligibility: time constant of an eligibility trace for each sample and weight, in steps, above 0, for linear
        layers alone; None for none.

    Raises TypeError or ValueError for what is none of these. Source: Song, Miller and Abbott (2000) in the form of
    traces of Morrison, Diesmann and Gerstner (2008); with rewards MSTDP and MSTDPET of Florian (2007). As
    SpikingJelly's learners of these names, whose reward of a step acts on the pairings of the step before.
    """

    pre: Neuron = field(default_factory=_window)
    post: Neuron = field(default_factory=_window)
    potentiation: Amplitude = 1.0
    depression: Amplitude = 1.0
    reward: bool = False
    tau_eligibility: Optional[float] = None

    def __post_init__(self) -> None:
        for name in ("pre", "post"):
            window: Any = getattr(self, name)
            if not isinstance(window, Neuron):
                raise TypeError(f"{name}={window!r} must be a neuron whose output is the trace, such as sc.LI(20.0)")
            if len(window.inputs) != 1 or window.step != "multi" or window.repeat is not None:
                raise ValueError(f"{name}={window!r} must take one input [T, *N], without step='single' and repeat")
        for name in ("potentiation", "depression"):
            amplitude: Any = getattr(self, name)
            if isinstance(amplitude, bool) or not (isinstance(amplitude, Real) or callable(amplitude)):
                raise TypeError(f"{name}={amplitude!r} must be a number, or a function of the weights")
        tau: Any = self.tau_eligibility
        if tau is None:
            return
        if isinstance(tau, bool) or not isinstance(tau, Real) or not 0.0 < float(tau) < math.inf:
            raise ValueError(f"tau_eligibility={tau!r} must be a number of steps above 0, or None")
        if not self.reward:
            raise ValueError(f"tau_eligibility={tau!r} is of a trace that a reward reads; give reward=True")


class Plasticity:
    """Adds what a chunk changes of the weights, and moves the traces over it."""

    kinds = SYNAPSES
    takes = "linear layers and convolutions"

    def __init__(self, rule: STDP) -> None:
        self.rule = rule
        #: Traces that are carried from chunk to chunk.
        self.traces: Traces = {}
        #: There is no feedback.
        self.matrices: Dict[str, Tensor] = {}

    def __call__(self, chunk: Chunk, loss: Tensor) -> None:
        """The changes by a chunk; ``loss``: one number, or one for each sample."""
        reached = set()
        for position, call in enumerate(chunk.calls):
            if isinstance(call, NeuronCall):
                post = self._trace((call.name, "post"), self.rule.post, _spikes(call))
                for connection in _connections(chunk, position, call):
                    change = self._change(connection, post, -loss.detach())
                    accumulate(connection.layer.weight, -change)  # type: ignore[arg-type]  # a tensor
                    reached.add(connection.name)
        for call in chunk.calls:
            if (
                isinstance(call, LayerCall)
                and call.name not in reached
                and isinstance(call.layer, SYNAPSES)
                and learnt(call.layer)
            ):
                raise Unsupported(
                    f"rule='stdp': {call.name!r} learns, and there is no neuron behind it with whose spikes its inputs "
                    "could pair; give its weights requires_grad_(False), or put a neuron behind"
                )

    def _change(self, of: Connection, post: Tensor, reward: Tensor) -> Tensor:
        """By how much the weights of a layer grow, but for the learning rate."""
        u, y = of.over_time(of.inputs), _spikes(of.neuron)
        pre = self._trace(key_of(of, "pre"), self.rule.pre, u)
        if self.rule.tau_eligibility is not None:
            return _modulated(self._eligibility(of, (pre, y), (u, post)), reward, y.shape[1])
        if self.rule.reward:
            y, post = _of_samples(reward, y), _of_samples(reward, post)
        gained, lost = _product(of, pre, y), _product(of, u, post)
        return _times(self.rule.potentiation, of, gained) - _times(self.rule.depression, of, lost)

    def _trace(self, key: Tuple[str, ...], window: Neuron, x: Tensor) -> Tensor:
        """The trace of a chunk, from the states in which the chunk before left it."""
        keys = {state: (*key, state) for state in window.states}
        start = {state: self.traces[name] for state, name in keys.items() if name in self.traces}
        with torch.no_grad():
            trace, end = window.run(x.detach(), state=start or None)
        self.traces.update({keys[state]: value for state, value in end.items()})
        return trace  # type: ignore[no-any-return]  # a tensor

    def _eligibility(self, of: Connection, gain: Tuple[Tensor, Tensor], loss: Tuple[Tensor, Tensor]) -> Tensor:
        """Eligibility of each sample and weight at the end of the chunk, ``[R, J, I]``."""
        if not isinstance(of.layer, nn.Linear):
            raise Unsupported(
                f"tau_eligibility has a trace for each weight of nn.Linear, and {of.name!r} is "
                f"{type(of.layer).__name__}; leave tau_eligibility out"
            )
        tau: Any = self.rule.tau_eligibility
        behind = torch.arange(of.steps - 1, -1, -1, device=of.inputs.device, dtype=of.inputs.dtype)
        weight = torch.exp(-behind / tau) / tau
        gained, lost = (_pairs_of_samples(of, *pairs, weight) for pairs in (gain, loss))
        new = _times(self.rule.potentiation, of, gained) - _times(self.rule.depression, of, lost)
        old = self.traces.get(key_of(of, "eligibility"))
        total = new if old is None else new + math.exp(-of.steps / tau) * old
        self.traces[key_of(of, "eligibility")] = total
        return total


def _connections(chunk: Chunk, position: int, call: NeuronCall) -> List[Connection]:
    """The layers with weights that learn, and whose output reaches a neuron."""
    ones = [torch.ones_like(x) for x in call.inputs]
    layers = chunk.back(call.inputs, ones, position)[1]
    connections = [Connection(of.name, of.layer, of.inputs, call, of) for of in layers]
    if isinstance(call.module, Recurrent):
        connections.append(Connection(f"{call.name}.linear", call.module.linear, call.fed_back(), call, None))
    return [of for of in connections if isinstance(of.layer, SYNAPSES) and "weight" in learnt(of.layer)]


def _spikes(call: NeuronCall) -> Tensor:
    output = call.module.output if isinstance(call.module, Recurrent) else None
    return call.outputs[output or 0].detach()


def _times(amplitude: Amplitude, of: Connection, value: Tensor) -> Tensor:
    weight: Any = of.layer.weight
    return value * (amplitude(weight.detach()) if callable(amplitude) else amplitude)


def _product(of: Connection, inputs: Tensor, spikes: Tensor) -> Tensor:
    """``sum_t spikes[t] inputs[t]^T``, summed over the batch, for a layer of any kind."""
    cotangent: Any = of.cotangent([spikes] * len(of.neuron.inputs))
    weight: Any = of.layer.weight
    with torch.enable_grad():
        z = of.layer(of.as_read(inputs))
    total: Tensor = torch.autograd.grad(z, weight, cotangent.reshape(z.shape))[0]
    return total


def _pairs_of_samples(of: Connection, inputs: Tensor, spikes: Tensor, weight: Tensor) -> Tensor:
    """``sum_t weight[t] spikes[t] inputs[t]^T`` for each row of a linear layer, ``[R, J, I]``."""
    cotangent: Any = of.cotangent([spikes] * len(of.neuron.inputs))
    rows = inputs.reshape(of.steps, -1, inputs.shape[-1])
    posts = cotangent.reshape(of.steps, rows.shape[1], -1) * weight.view(-1, 1, 1)
    return torch.bmm(posts.permute(1, 2, 0), rows.transpose(0, 1))


def _modulated(eligibility: Tensor, reward: Tensor, batch: int) -> Tensor:
    """The sum of all rows, each times the reward of its sample."""
    per_row = reward.reshape(-1).expand(batch).repeat_interleave(len(eligibility) // batch)
    return torch.einsum("r,rji->ji", per_row.to(eligibility.dtype), eligibility)


def _of_samples(reward: Tensor, values: Tensor) -> Tensor:
    """``values [C, B, ...]`` times the reward of each sample."""
    return values * reward.to(values.dtype).reshape(1, -1, *[1] * (values.ndim - 2))
