"""Digits with weights, gradients and optimiser state divided among the processes (FSDP2, ``fully_shard``).

    torchrun --standalone --nproc-per-node 2 examples/fsdp.py [--device cpu|cuda] [--resume] ...

Each process stores a part of every tensor. A block is gathered while it runs, in forward and again in backward. This
happens once per call, because neurons compute all time steps in one call. Each process computes a part of each batch.
The weights are those of a run with one process, up to rounding. It needs torch 2.6 or newer.

Every learnt parameter must have a dimension. Here ``tau`` has one value for each neuron. One value for all would be
``torch.tensor([2.0])``.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import spikecore as sc
from common import processes
from common.loop import rate_loss


class Shards(processes.Engine):
    """A part of every tensor in every process."""

    def __init__(self, net: nn.Sequential, here: processes.Here, options: argparse.Namespace) -> None:
        self.net, self.here = net, here
        mesh = init_device_mesh(here.device.type, (here.world,))
        for block in (*net, net):
            fully_shard(block, mesh=mesh)
        # made after fully_shard, which replaces the parameters
        self.optimizer = torch.optim.Adam(net.parameters(), options.lr)
        self.step = sc.training_model(net, rate_loss, self.optimizer)
        self.predict = sc.inference_model(net)

    def train(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, loss, backward with gradients averaged over the processes, update of the shards."""
        _, loss = self.step(self.here.part(images), self.here.part(labels))
        return loss / self.here.world

    def right(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of this process's part."""
        mine = self.here.part(labels)
        predicted = self.predict(self.here.part(images))
        return sc.metrics.accuracy(predicted, mine, by="mean_membrane") * len(mine)

    def state(self) -> Dict[str, Any]:
        """Gathered, on the CPU of process 0."""
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, optimizer = get_state_dict(self.net, self.optimizer, options=whole)
        return {"net": weights, "optimizer": optimizer}

    def load(self, state: Dict[str, Any]) -> None:
        """Each process reads the file, and keeps its part."""
        whole = StateDictOptions(full_state_dict=True)
        set_state_dict(
            self.net,
            self.optimizer,
            model_state_dict=state["net"],
            optim_state_dict=state["optimizer"],
            options=whole,
        )


if __name__ == "__main__":
    processes.main(processes.parser(__doc__, out="runs/fsdp"), Shards)
