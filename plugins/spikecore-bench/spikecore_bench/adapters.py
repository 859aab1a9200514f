"""Neurons of other libraries as layers ``[T, *N] -> [T, *N]`` that start every call at rest."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn


class Steps(nn.Module):
    """A single step that continues, called step by step; ``reset()`` puts it at rest."""

    def __init__(self, single: Any) -> None:
        super().__init__()
        self.single = single

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.single.reset()
        return torch.stack([self.single(now) for now in x.unbind(0)])


class JellyFunctional(nn.Module):
    """SpikingJelly's functional form: one call for all steps, the state in float32.

    The state at rest is made once per shape, outside of what is timed, which is kind to it.
    """

    def __init__(self, function: Callable[..., Any], *, learnt: Optional[float] = None, **keywords: Any) -> None:
        super().__init__()
        self.function, self.keywords = function, keywords
        if learnt is not None:
            self.w = nn.Parameter(torch.tensor(learnt))
        self.rest: Dict[Tuple[Any, ...], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        x = x.contiguous()  # kernels of another library may not know a step that is repeated
        key = (x.shape[1:], x.device)
        start = self.rest.get(key)
        if start is None:
            start = self.rest[key] = torch.zeros(x.shape[1:], device=x.device)
        spikes: Tensor = self.function(x, start, *self.parameters(), **self.keywords)[0]
        return spikes


class JellyModule(nn.Module):
    """SpikingJelly's module, all steps in one call."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        node.step_mode = "m"
        self.node = node

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset()
        spikes: Tensor = self.node(x.contiguous())  # as above
        return spikes


class SnnSingle(nn.Module):
    """snnTorch's module as a single step that continues."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.node = node
        self.memory: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one time step."""
        memory = torch.zeros_like(x) if self.memory is None else self.memory
        spikes: Tensor
        spikes, self.memory = self.node(x, memory)
        return spikes

    def reset(self) -> None:
        """Begin at rest."""
        self.memory = None


class SnnParallel(nn.Module):
    """snnTorch's ``StateLeaky``, a convolution over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        atan = import_module("snntorch.surrogate").atan(alpha=2.0)
        # it decays by exp(-(1 - beta))
        self.node = import_module("snntorch").StateLeaky(1.0 - math.log(2.0), width, spike_grad=atan)

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        spikes: Tensor = self.node(x)[0].to(x.dtype)
        return spikes


class NorseSingle(nn.Module):
    """Norse's LIF without a current, as a single step that continues."""

    def __init__(self, tau: float = 2.0, compiled: bool = False) -> None:
        super().__init__()
        box = self.box = import_module("norse.torch.functional.lif_box")
        # the time step is 1, so the time constant is in time steps
        self.settings = box.LIFBoxParameters(tau_mem_inv=torch.tensor(1.0 / tau))
        step: Callable[..., Any] = box.lif_box_feed_forward_step
        self.step = torch.compile(step) if compiled else step
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one time step."""
        state = self.box.LIFBoxFeedForwardState(v=torch.zeros_like(x)) if self.state is None else self.state
        spikes: Tensor
        spikes, self.state = self.step(x, state, self.settings, dt=1.0)
        return spikes

    def reset(self) -> None:
        """Begin at rest."""
        self.state = None


class SinabsLayer(nn.Module):
    """sinabs' ``LIF``, whose inputs are ``[B, T, N]``."""

    def __init__(self) -> None:
        super().__init__()
        layers, activation = import_module("sinabs.layers"), import_module("sinabs.activation")
        self.node = layers.LIF(
            tau_mem=1.0 / math.log(2.0),  # it decays by exp(-1 / tau_mem)
            norm_input=False,
            spike_fn=activation.SingleSpike,
            reset_fn=activation.MembraneReset(),
            surrogate_grad_fn=lambda v, threshold: 1.0 / (1.0 + (math.pi * (v - threshold)) ** 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset_states()
        spikes: Tensor = self.node(x.transpose(0, 1)).transpose(0, 1)
        return spikes


class RockpoolLayer(nn.Module):
    """Rockpool's ``LIFTorch``, whose inputs are ``[B, T, N]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        constant = import_module("rockpool.parameters").Constant
        self.node = import_module("rockpool.nn.modules.torch.lif_torch").LIFTorch(
            width,
            leak_mode="decays",
            alpha=constant(0.5),
            beta=constant(0.5),
            threshold=constant(torch.ones(width)),
            bias=constant(torch.zeros(width)),
            max_spikes_per_dt=torch.tensor(1.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset_state()
        spikes: Tensor = self.node(x.transpose(0, 1))[0].transpose(0, 1)
        return spikes
