"""Activation checkpointing with state gives the numbers of the plain run, on these kernels."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc

T, B, C = 20, 3, 5


class Net(nn.Module):
    """Neurons that are looped over in single steps, or take a chunk at once."""

    def __init__(self, step):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(C, C)
        self.first = sc.LIF(1.6, threshold=0.4, learn=("tau",), step=step, backend="numba")
        feedback = sc.Recurrent(sc.ALIF(3.0, threshold=0.3, backend="numba"), nn.Linear(C, C), step=step)
        self.last = nn.Sequential(feedback, sc.LI(3.0, step=step, backend="numba"))

    def forward(self, x):
        if self.first.step == "multi":
            return self.last(self.first(self.fc(x)))
        return torch.stack([self.last(self.first(self.fc(x_t))) for x_t in x])


def again(net, x, call=None):
    """A region that is computed again in backward."""
    contexts = sc.parallel.checkpoint_contexts(net)
    return checkpoint(net if call is None else call, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("detach", [False, True], ids=["through", "detached"])
@pytest.mark.parametrize("mode", ["rest", "carried", "single"])
def test_numbers(mode, detach):
    """Outputs, gradients and final states: at rest, carried over chunks (one longer than 16 steps), step by step."""
    found = []
    for call in (again, lambda net, x: net(x)):
        net = Net("single" if mode == "single" else "multi")
        x = torch.randn(T, B, C, generator=torch.Generator().manual_seed(1)).add(0.4).requires_grad_()
        with sc.carry_state(net) if mode == "carried" else nullcontext():
            outputs = []
            for chunk in x.split([17, 3]):
                outputs.append(call(net, chunk))
                if detach:
                    sc.detach(net)
            modules = sc.functional.stateful_modules(net)
            end = [value.detach() for module in modules for value in (module.state or {}).values()]
        (torch.cat(outputs) * torch.linspace(0.5, 1.5, C)).sum().backward()
        found.append([*outputs, *end, x.grad, *[p.grad for p in net.parameters()]])
    for ours, plain in zip(*found):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
