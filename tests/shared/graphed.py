"""A network and its training step with CUDA graphs, and a stand-in for the capture that needs no GPU."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc
from spikecore.training._cuda_graph import step

GRAPH = sc.CudaOptions(graph=True)


class Rerun:
    """Stands for Capture on the CPU: a replay runs the work again and fills the tensors of the first time."""

    made: list[Rerun] = []

    def __init__(self, device):
        self.device = device
        self.eager = self.recorded = self.replayed = self.forgotten = 0
        self.waits, self.error, self.executes = [], None, False
        self.made.append(self)

    def run(self, work):
        self.eager += 1
        return work()

    def watch(self, work):
        return self.run(work), self.waits

    def record(self, work, generators):
        self.recorded += 1
        if self.error is not None:
            raise self.error
        if self.executes:
            work()
        held = []

        def replay():
            self.replayed += 1
            result = work()
            if not held:
                held.append(result)
            for mine, new in zip(step.flattened(held[0]), step.flattened(result)):
                mine.copy_(new)
            return held[0]

        return replay

    def forget(self):
        self.forgotten += 1


def net(device="cpu", backend="torch", seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12),
        sc.layers.TimeBatched(nn.BatchNorm1d(12)),
        nn.Dropout(0.2),
        sc.LIF(learn=("tau",), backend=backend),
        nn.Linear(12, 3),
        sc.LIF(backend=backend),
    ).to(device)


def batch(seed=1, size=8, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, size, 6, generator=generator) * 3
    return x.to(device), torch.randint(0, 3, (size,), generator=generator).to(device)


def sgd(model, lr=0.1, **kwargs):
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9, **kwargs)


def training(model=None, loss=sc.losses.ce_count, optimizer=None, options=GRAPH):
    model = net() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    return sc.training_model(model, loss, optimizer, options=options), model, optimizer


def same(a, b):
    """Whether two structures have equal tensors, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
