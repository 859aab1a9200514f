"""Learning rules that move along with time: what they ask of a backend, and what they make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.backend import Backend, Unsupported
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array, adjoint
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch, as_array

CASES = Collection()
_STATE = ("gradients", "state_gradients")
_SHAPE = (7, 3, 5)


def _weighted(y: Tensor, weights: Tensor) -> Tensor:
    return (y * weights).sum()


def _by_inputs(s: Subject, rule: str, weights: Tensor) -> Array:
    """The errors at the inputs of the neuron, as the rule has them."""
    if rule != "sltt":
        return s.gradients(weights).inputs[0]
    errors = np.zeros(s.shape)
    for t in range(s.shape[0]):
        alone = np.zeros(s.shape)
        alone[t] = as_array(weights[t])
        errors[t] = adjoint(s.seen, [alone], cut=t).inputs[0][t]
    return errors


@CASES.case("online/d-rtrl", "sequences", "traces of weights give backpropagation's gradient, for any chunk", *_STATE)
@CASES.case("online/eprop", "sequences", "the same with the reset detached", *_STATE, rule="eprop")
@CASES.case("online/sltt", "sequences", "errors of each step alone, without those of later ones", *_STATE, rule="sltt")
def _online(context: Context, rule: str = "d_rtrl") -> None:
    """A linear layer that is the identity, so that the neuron reads the suite's inputs."""
    for model in ("lif", "alif"):
        s = subject(context, model, "soft", shape=_SHAPE, detach=rule == "eprop")
        layer = nn.Linear(_SHAPE[-1], _SHAPE[-1], bias=False)
        nn.init.eye_(layer.weight)
        net = nn.Sequential(context.place(layer), s.neuron)
        x, weights = s.x(), s.cotangent(s.x())
        s.check_outputs(s.neuron(x))
        errors = _by_inputs(s, rule, weights)
        right = np.einsum("tbj,tbi->ji", errors, as_array(x))
        for chunk in (1, 3, s.shape[0]):
            options = sc.OnlineOptions(rule=rule, chunk=chunk, time_targets=True)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
            try:
                step: Any = sc.training_model(net, _weighted, optimizer, backend=context.name, options=options)
            except Unsupported:
                if type(context.backend).training_model is Backend.training_model:
                    raise
                return
            if type(context.backend).training_model is not Backend.training_model:
                raise Mismatch(f"backend {context.name!r} trains in a way of its own, and took {options!r}")
            outputs, _ = step(x, weights)
            s.check_outputs(outputs, f" of chunks of {chunk}")
            terms = np.einsum("tbj,tbi->ji", np.abs(errors), np.abs(as_array(x)))
            s.check("parameter gradient", layer.weight.grad, right, name=f"a weight, chunks of {chunk}", terms=terms)
