"""Cases of the field's own benchmarks: a linear layer with LIF, and a training step of two hidden layers on SHD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Tuple, Union

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.dtypes import DTYPES
from spikecore_bench.equations import Layer
from spikecore_bench.implementations import Implementation, NotTimed
from spikecore_bench.recurrent import as_graph
from spikecore_bench.report import Fact
from spikecore_bench.settings import FIELD
from spikecore_bench.timing import Call

OPEN_NEUROMORPHIC, SHD = FIELD
#: Training samples, input channels and classes of the Spiking Heidelberg Digits.
SAMPLES, CHANNELS, CLASSES = 8156, 128, 20
#: Spikes of the synthetic input, per channel and step.
RATE = 0.05
LEARNING_RATE = 5e-4
#: Steps of a network before it is timed; a graph is captured in the last of them, or in the one after.
WARM_UP = 4


@dataclass(frozen=True)
class Bound:
    """Operations of the products, and bytes that must be moved."""

    operations: float
    moved: float = 0.0

    def seconds(self, rate: float, bandwidth: float) -> float:
        """The least time at these rates."""
        return max(self.operations / rate, self.moved / bandwidth)


def layer_of(library: Implementation) -> Layer:
    """Its layer in these suites. Raises NotTimed where it takes no part."""
    if library.in_field is None:
        raise NotTimed("has no such layer")
    return library.in_field


@dataclass(frozen=True)
class LinearCase:
    """A linear layer and LIF: forward, and forward with backward, of the sum of the output. As Open Neuromorphic."""

    dtype: str
    steps: int
    batch: int
    neurons: int
    suite = OPEN_NEUROMORPHIC

    @property
    def label(self) -> str:
        """For people."""
        return f"n={self.neurons} {self.dtype}"

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        facts: Dict[str, Fact] = {"neuron": "Linear + LIF", "dtype": self.dtype, "steps": self.steps}
        return {**facts, "neurons": self.neurons, "batch": self.batch}

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """Forward reads input and weight and writes spikes; backward reads the input again and writes the gradient.

        The current between the two layers is not counted, since it could be computed again.
        """
        rows, n = self.steps * self.batch, self.neurons
        word = torch.finfo(DTYPES[self.dtype]).bits // 8
        product = 2.0 * rows * n * n
        forward = Bound(product, word * (2.0 * rows * n + n * n))
        return {"forward": forward, "training": Bound(2 * product, word * (3.0 * rows * n + 2.0 * n * n))}

    def _tensors(self, device: torch.device) -> Tuple[Tensor, Tensor, Tensor]:
        n, dtype = self.neurons, DTYPES[self.dtype]
        generator = torch.Generator(device).manual_seed(0)
        x = torch.randn(self.steps, self.batch, n, device=device, generator=generator).to(dtype)
        weight = ((torch.rand(n, n, device=device, generator=generator) * 2 - 1) * n**-0.5).to(dtype)
        return x, weight, torch.zeros(n, device=device, dtype=dtype)

    def products(self, device: torch.device) -> Mapping[str, Call]:
        """The product of forward, and both products of forward and backward."""
        inputs, weight, _ = self._tensors(device)
        x = inputs.flatten(0, 1)
        gradient = torch.randn_like(x)

        def both(i: int) -> None:
            x @ weight.t()
            gradient.t() @ x

        return {"forward": lambda i: x @ weight.t(), "training": both}

    def calls(self, library: Implementation, computing: Any, device: torch.device, graph: bool) -> Mapping[str, Call]:
        """Forward with what backward needs, as the original has it, and forward with backward."""
        x, weight, bias = self._tensors(device)
        make = layer_of(library).make
        if make is None:
            forward, both = computing.linear(x, weight, bias)
        else:
            forward, both = _linear_of_torch(make(self.neurons).to(device), x, weight, bias)
        if graph:
            forward, both = as_graph(forward), as_graph(both)
        return {"forward": forward, "training": both}


def _linear_of_torch(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Call, Call]:
    weight.requires_grad_()
    bias.requires_grad_()

    def forward(i: int) -> Tensor:
        spikes: Tensor = layer(nn.functional.linear(x, weight, bias))
        return spikes

    def both(i: int) -> None:
        forward(i).sum().backward()
        weight.grad = bias.grad = None

    return forward, both


@dataclass(frozen=True)
class ClassifierCase:
    """A training step of the network of Spyx' paper on SHD: loss, backward and Adam, in float32."""

    steps: int
    batch: int
    width: int
    dtype = "float32"
    suite = SHD

    @property
    def label(self) -> str:
        """For people."""
        return f"H={self.width},B={self.batch}"

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        return {
            "network": f"{CHANNELS}-{self.width}-{self.width}-{CLASSES}",
            "about": f"two hidden layers; synthetic spikes, {RATE} per channel and step",
            "dtype": self.dtype,
            "steps": self.steps,
            "batch": self.batch,
        }

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """Products: forward, the gradients of the weights, and of all inputs but the first."""
        first, others = CHANNELS * self.width, self.width * self.width + CLASSES * self.width
        return {"step": Bound(2.0 * self.steps * self.batch * (2 * first + 3 * others))}

    def _tensors(self, device: torch.device) -> Tuple[Tensor, Tensor, List[Tensor]]:
        """Input, labels and weights."""
        generator = torch.Generator(device).manual_seed(0)
        x = (torch.rand(self.steps, self.batch, CHANNELS, device=device, generator=generator) < RATE).float()
        labels = torch.randint(CLASSES, (self.batch,), device=device, generator=generator)
        shapes = ((self.width, CHANNELS), (self.width, self.width), (CLASSES, self.width))
        uniform = [torch.rand(shape, device=device, generator=generator) * 2 - 1 for shape in shapes]
        return x, labels, [weight * 3 * weight.shape[1] ** -0.5 for weight in uniform]

    def products(self, device: torch.device) -> Mapping[str, Call]:
        """All products of a training step, on random numbers."""
        x, _, weights = self._tensors(device)
        rows = self.steps * self.batch
        inputs = [x.flatten(0, 1), *(torch.randn(rows, len(weight), device=device) for weight in weights)]

        def call(i: int) -> None:
            for k, weight in enumerate(weights):
                inputs[k] @ weight.t()
                inputs[k + 1].t() @ inputs[k]
                if k:
                    inputs[k + 1] @ weight

        return {"step": call}

    def calls(self, library: Implementation, computing: Any, device: torch.device, graph: bool) -> Mapping[str, Call]:
        """The training step; as a CUDA graph with the optimiser in it."""
        x, labels, weights = self._tensors(device)
        make = layer_of(library).make
        if make is None:
            return {"step": computing.classifier(weights, x, labels, LEARNING_RATE)}
        net = classifier(weights, make).to(device)
        optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE, fused=device.type == "cuda")
        options = sc.CudaOptions(graph=True) if graph else sc.TrainingOptions()
        backend = library.name if library.ours else "torch"
        step = sc.training_model(net, _loss, optimizer, backend=backend, options=options)
        for _ in range(WARM_UP):
            step(x, labels)
        return {"step": lambda i: step(x, labels)}


FieldCase = Union[LinearCase, ClassifierCase]


def classifier(weights: List[Tensor], make: Callable[[int], nn.Module]) -> nn.Sequential:
    """Linear layers with neurons between them: ``[T, B, 128] -> [T, B, 20]``, which is to be summed over time."""
    layers: List[nn.Module] = []
    for weight in weights:
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data.copy_(weight)
        layers += [make(linear.in_features), linear] if layers else [linear]
    return nn.Sequential(*layers)


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.sum(0), labels)
