"""Layers that normalise on a loop over the neurons' equations: by direct calls, and through all checks."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List

import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import SHAPE, Loop, bound
from spikecore.layers import NormNeuron

C = SHAPE[1]


class Moving(Loop):
    """With a launch of its own that finds statistics and moves the running ones."""

    def __init__(self, chunk: int = 4) -> None:
        super().__init__(chunk)
        self.moves = 0

    def forward(self, plan: Any) -> Any:
        return _of_its_steps(plan, super().forward(plan))

    def backward(self, plan: Any) -> Any:
        return _of_its_steps(plan, super().backward(plan))

    def statistics(self, spec: Any) -> Any:
        def launch(geometry: Any, x: Tensor, eps: float, running: Any) -> Any:
            self.moves += 1
            x = x.detach().to(spec.compute)
            dims = [0, 1, *range(3, x.ndim)]
            mean, variance = x.mean(dims), x.var(dims, unbiased=False)
            if running is not None:
                n = x.numel() // x.shape[2]
                held, moved, count, factor = running
                with torch.no_grad():
                    held.data.lerp_(mean.to(held.dtype), factor)
                    moved.data.lerp_((variance * (n / (n - 1))).to(moved.dtype), factor)
                    if count is not None:
                        count.data.add_(1)
            return mean, torch.rsqrt(variance + eps)

        return launch


def _of_its_steps(plan: Any, launch: Any) -> Any:
    """The launch, which must get as many steps as it was made for."""

    def checked(geometry: Any, *groups: Any) -> Any:
        assert plan.spec.steps in (None, geometry.steps)
        return launch(geometry, *groups)

    return checked


class Slow(Moving):
    """The same through all checks and the runner, at each call."""

    def compile(self, program: Any, spec: Any) -> Any:
        made = super().compile(program, spec)
        made.bind = lambda *_: None
        return made


NEURONS: Dict[str, Callable[[], sc.Neuron]] = {
    "numbers": sc.LIF,
    "scalar": lambda: sc.LIF(learn=("tau", "threshold")),
    "channels": lambda: sc.LIF(torch.linspace(2, 3, C), learn=("tau",)),
    "not learnt": lambda: sc.LIF(torch.linspace(2, 3, C)),
    "ranged": sc.PLIF,
    "two states": lambda: sc.Synaptic(learn=("alpha",)),
}


def norm(**options: Any) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(C, **options)
    if made.affine:
        with torch.no_grad():
            made.weight.copy_(torch.linspace(0.6, 1.8, C))
            made.bias.copy_(torch.linspace(-0.2, 0.5, C))
    return made


def layers(neuron: str = "numbers", shortcut: Any = None, backend: Any = Moving, **options: Any) -> List[NormNeuron]:
    """A layer, and a twin all of whose calls go through every check."""
    fast = NormNeuron(norm(**options), bound(NEURONS[neuron](), backend()), shortcut=shortcut)
    slow = copy.deepcopy(fast)
    bound(slow.neuron, Slow())
    return [fast, slow]


def results(layer: NormNeuron, x: Tensor, *skip: Tensor, grad: bool = True, cotangent: Any = None) -> List[Any]:
    """Output, gradients, running statistics."""
    given = [value.detach().clone(memory_format=torch.preserve_format).requires_grad_(grad) for value in (x, *skip)]
    layer.zero_grad()
    out = layer(*given)
    if out.requires_grad:
        out.backward(torch.cos(x) if cotangent is None else cotangent)
    found = [out.detach(), *(value.grad for value in given), *(p.grad for p in layer.parameters())]
    return [*found, *(value.clone() for value in layer.buffers())]


def equal(mine: List[Any], its: List[Any]) -> None:
    assert len(mine) == len(its)
    for one, other in zip(mine, its):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one, other)
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def agree(pair: List[NormNeuron], x: Tensor, *skip: Tensor, **options: Any) -> None:
    equal(*(results(layer, x, *skip, **options) for layer in pair))
