"""A case inside a network, as ``training_model`` and ``inference_model`` of a backend run it.

A training step returns no gradients, it changes weights. So every input and state whose gradient is wanted has a weight
of zeros added to it, and plain gradient descent leaves the negative gradient there. For learnt parameters, which are
not zero, the rate is large, so that the update is not lost in the last digits of the value.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.testing._oracle.rules import Array
from spikecore.testing.random_programs._call import (
    arguments,
    array,
    assert_dtypes,
    compute_dtype,
    cotangents,
    learnt,
    neuron_of,
    results_of,
)
from spikecore.testing.random_programs._case import Case

#: The rate at which learnt parameters are changed; a power of two, by which nothing is rounded.
RATE = 1024.0


class Network(nn.Module):
    """``forward(*inputs, *states)`` gives the results of a case by name."""

    def __init__(self, case: Case, backend: str, device: str) -> None:
        super().__init__()
        self.case = case
        self.neuron = neuron_of(case, backend, device)
        inputs, state = arguments(case, device)
        states = [] if state is None else list(state.values())
        #: Whose gradients are asked for; while PopTorch traces, weights do not say so themselves.
        self.wanted = [*[case.wanted[0]] * len(inputs), *[case.wanted[1]] * len(states)]
        self.batch = (*inputs, *states)
        self.added = nn.ParameterList(
            [
                nn.Parameter(torch.zeros(value.shape, dtype=value.dtype, device=device), requires_grad=asked)
                for value, asked in zip(self.batch, self.wanted)
            ]
        )

    def forward(self, *tensors: Tensor) -> Dict[str, Tensor]:
        """All results."""
        values = [x + zero if asked else x for x, zero, asked in zip(tensors, self.added, self.wanted)]
        inputs = values[: len(self.case.inputs)]
        state = None
        if self.case.state is not None:
            state = dict(zip(self.case.state, values[len(inputs) :]))
        return results_of(self.case, self.neuron, inputs, state)

    def weights(self) -> Dict[str, Tuple[nn.Parameter, float]]:
        """Name of a gradient -> the weight that gets it, and its rate."""
        names = [f"input {n}" for n in self.case.tree.inputs] + [f"state {n}" for n in self.case.state or ()]
        found = {f"gradient of {n}": (zero, 1.0) for n, zero in zip(names, self.added) if zero.requires_grad}
        found.update({f"gradient of {n}": (getattr(self.neuron, n), RATE) for n in learnt(self.case)})
        return found


def by_step(case: Case, backend: str, device: str) -> List[Tuple[str, Dict[str, Array]]]:
    """Results of ``predict``, and results and gradients of a training step; nothing for a case without steps.

    Where no weight is reached by a cotangent there is nothing to train, and no training step is made.
    """
    if not len(case.inputs[0]):
        return []
    network = Network(case, backend, device)
    predicted = sc.inference_model(network, backend=backend)(network.batch)
    assert_dtypes(case, predicted)
    runs = [("inference_model: ", {name: array(value) for name, value in predicted.items()})]
    targets = cotangents(case, device)
    if _trains(case, device, targets):
        runs.append(("training_model: ", _trained(case, backend, device, targets)))
    return runs


def _trains(case: Case, device: str, targets: Dict[str, Tensor]) -> bool:
    network = Network(case, "torch", device)
    results = network(*network.batch)
    return bool(network.weights()) and any(results[name].requires_grad for name in targets)


def _trained(case: Case, backend: str, device: str, targets: Dict[str, Tensor]) -> Dict[str, Array]:
    network = Network(case, backend, device)
    weights = network.weights()
    before = {name: array(weight) for name, (weight, _) in weights.items()}
    names, dtype = list(targets), compute_dtype(case)

    def loss(outputs: Dict[str, Tensor], given: Sequence[Tensor]) -> Tensor:
        terms = [(outputs[name].to(dtype) * g.to(dtype)).sum() for name, g in zip(names, given)]
        return torch.stack(terms).sum()

    groups: List[Dict[str, Any]] = [{"params": [weight], "lr": rate} for weight, rate in weights.values()]
    others = [p for p in network.parameters() if p.requires_grad and all(p is not w for w, _ in weights.values())]
    optimizer = torch.optim.SGD([*groups, *[{"params": [p]} for p in others]], lr=RATE)
    step = sc.training_model(network, loss, optimizer, backend=backend)
    outputs, _ = step(network.batch, tuple(targets.values()))
    assert_dtypes(case, outputs)
    found = {name: array(value) for name, value in outputs.items()}
    for name, (weight, rate) in weights.items():
        found[name] = np.asarray((before[name] - array(weight)) / rate)
    return found
