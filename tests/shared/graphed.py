"""A network and its training step with CUDA graphs, and stand-ins for the capture and the compiler."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc
from spikecore.batches import flattened
from spikecore.training import Capture

GRAPH = sc.CudaOptions(graph=True)


class Rerun:
    """Methods of Capture on the CPU: a replay runs the work again and fills the tensors of the first time."""

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
            for mine, new in zip(flattened(held[0]), flattened(result)):
                mine.copy_(new)
            return held[0]

        return replay

    def forget(self):
        self.forgotten += 1


def without_capture(monkeypatch):
    """Captures by :class:`Rerun`: a function that gives the one of the step made last."""
    for name in ("__init__", "run", "watch", "record", "forget"):
        monkeypatch.setattr(Capture, name, vars(Rerun)[name])
    monkeypatch.setattr(Capture, "made", [], raising=False)
    return lambda: Capture.made[-1]


def without_a_gpu(monkeypatch):
    """Have networks count as on a GPU: a function that gives the stand-in for the capture of the step made last."""
    monkeypatch.setattr(Capture, "device_type", "cpu")
    return without_capture(monkeypatch)


class Compiler:
    """Stands for torch.compile: the names and options of what it was given, and what it raises, by these names."""

    def __init__(self):
        self.given, self.called, self.raises, self.raises_in_backward = [], [], {}, {}

    def __call__(self, what, **options):
        # the network alone is compiled for fixed sizes
        name = "net" if "dynamic" in options else "update" if "optimizer" in what.__code__.co_freevars else "loss"
        self.given.append((name, options))

        def run(*arguments):
            self.called.append(name)
            if name in self.raises:
                raise self.raises[name]
            result = what(*arguments)
            if name in self.raises_in_backward:
                result.register_hook(lambda grad: self._raise(name))
            return result

        return run

    def _raise(self, name):
        raise self.raises_in_backward[name]


def failure(text="no compiler here"):
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException(text)


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
    """True if two structures have equal tensors, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
