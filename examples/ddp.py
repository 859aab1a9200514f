"""Digits with the whole network in every process; each process computes a part of the batch (DistributedDataParallel).

    torchrun --standalone --nproc-per-node 2 examples/ddp.py [--device cpu|cuda] [--resume] ...

Gradients are averaged over the processes. So the weights are those of a run with one process, ``python
examples/ddp.py``, up to rounding. ``--batch-size`` counts the images of all processes. The network has no batch
normalisation, because its statistics would be those of one process's part.
``nn.SyncBatchNorm.convert_sync_batchnorm(net)`` uses the whole batch.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spikecore as sc
from common import processes
from common.loop import rate_loss


class Replicas(processes.Engine):
    """The network in every process."""

    def __init__(self, net: nn.Sequential, here: processes.Here, options: argparse.Namespace) -> None:
        self.net, self.here = net, here
        self.optimizer = torch.optim.Adam(net.parameters(), options.lr)
        self.step = sc.training_model(DistributedDataParallel(net), rate_loss, self.optimizer)
        self.predict = sc.inference_model(net)  # of the network itself: nothing is sent

    def train(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, loss, backward with gradients averaged over the processes, update."""
        _, loss = self.step(self.here.part(images), self.here.part(labels))
        return loss / self.here.world

    def right(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of this process's part."""
        mine = self.here.part(labels)
        predicted = self.predict(self.here.part(images))
        return sc.metrics.accuracy(predicted, mine, by="mean_membrane") * len(mine)

    def state(self) -> Dict[str, Any]:
        """The same in every process."""
        return processes.named(self.net, self.optimizer)

    def load(self, state: Dict[str, Any]) -> None:
        """Each process reads the file."""
        processes.load_named(self.net, self.optimizer, state)


if __name__ == "__main__":
    processes.main(processes.parser(__doc__, out="runs/ddp"), Replicas)
