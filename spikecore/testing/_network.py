"""A call inside a network, as ``training_model`` and ``inference_model`` of a backend run it.

A training step returns no gradients, it changes weights. So every input and state whose gradient is wanted has a weight
of zeros added to it, and plain gradient descent leaves the negative gradient there. For learnt parameters, which are
not zero, the rate is large, so that the update is not lost in the last digits of the value.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc

#: The rate at which learnt parameters are changed; a power of two, by which nothing is rounded.
RATE = 1024.0

Results = Callable[[Mapping[str, Tensor]], Dict[str, Tensor]]
Named = Dict[str, Tensor]


class Network(nn.Module):
    """``forward(*inputs, *states)`` gives the results of a call by name."""

    def __init__(self, neuron: Any, leaves: Named, results: Results) -> None:
        super().__init__()
        self.neuron, self.names, self.results = neuron, list(leaves), results
        self.wanted = [value.requires_grad for value in leaves.values()]
        self.batch = tuple(value.detach() for value in leaves.values())
        self.added = nn.ParameterList(
            [
                nn.Parameter(torch.zeros(value.shape, dtype=value.dtype, device=value.device), requires_grad=asked)
                for value, asked in zip(self.batch, self.wanted)
            ]
        )

    def forward(self, *tensors: Tensor) -> Named:
        """All results."""
        values = [x + zero if asked else x for x, zero, asked in zip(tensors, self.added, self.wanted)]
        return self.results(dict(zip(self.names, values)))

    def weights(self) -> Dict[str, Tuple[nn.Parameter, float]]:
        """Name of a gradient -> the weight that gets it, and its rate."""
        found = {name: (zero, 1.0) for name, zero in zip(self.names, self.added) if zero.requires_grad}
        learnt = {name: (value, RATE) for name, value in self.neuron.named_parameters() if value.requires_grad}
        return {**found, **learnt}


def in_network(
    backend: str, make: Callable[[str], Any], leaves: Named, results: Callable[[Any], Results], cotangents: Named
) -> Iterator[Tuple[str, Named, Named]]:
    """In which model, its results, and its gradients by the names of leaves; nothing for a call without steps.

    make: a neuron on a backend. results: what calls it. Where no weight is reached by a cotangent there is nothing to
    train, and no training step is made.
    """
    if not len(next(iter(leaves.values()))):
        return

    def network(name: str) -> Network:
        neuron = make(name)
        return Network(neuron, leaves, results(neuron))

    first = network(backend)
    yield "inference_model", sc.inference_model(first, backend=backend)(first.batch), {}
    plain = network("torch")
    reached = plain(*plain.batch)
    if not plain.weights() or not any(reached[name].requires_grad for name in cotangents):
        return
    second = network(backend)
    weights = second.weights()
    before = {name: weight.detach().cpu().clone() for name, (weight, _) in weights.items()}
    names = list(cotangents)

    def loss(outputs: Named, given: Sequence[Tensor]) -> Tensor:
        wide = torch.float64 if any(value.dtype == torch.float64 for value in outputs.values()) else torch.float32
        return torch.stack([(outputs[name].to(wide) * g.to(wide)).sum() for name, g in zip(names, given)]).sum()

    groups: List[Dict[str, Any]] = [{"params": [weight], "lr": rate} for weight, rate in weights.values()]
    step = sc.training_model(second, loss, torch.optim.SGD(groups, lr=RATE), backend=backend)
    outputs, _ = step(second.batch, tuple(cotangents.values()))
    changes = {name: (before[name] - weight.detach().cpu()) / rate for name, (weight, rate) in weights.items()}
    yield "training_model", outputs, changes
