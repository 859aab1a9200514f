"""Digits with a part of the network in each process; micro-batches pass through them (torch.distributed.pipelining).

    torchrun --standalone --nproc-per-node 2 examples/pipelining.py [--schedule gpipe|1f1b] [--chunks 4] [--resume] ...

The batch is split, but not time: neurons start every call, that is every micro-batch, at rest. The weights are those of
a run with one process, up to rounding. The four blocks of the network make up to four stages. It needs torch 2.5 or
newer.

For your own network, note two things. Batch normalisation uses the statistics of a micro-batch. It also counts the call
before the first micro-batch, in which torch finds out shapes with arbitrary values. And if the input has time first,
``[T, B, ...]``, pass ``args_chunk_spec=(TensorChunkSpec(1),)``.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.microbatch import TensorChunkSpec

import spikecore as sc
from common import processes
from common.loop import rate_loss
from common.options import at_least

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stages(processes.Engine):
    """Consecutive blocks in every process."""

    def __init__(self, net: nn.Sequential, here: processes.Here, options: argparse.Namespace) -> None:
        if here.world > len(net):
            raise ValueError(f"the network has {len(net)} blocks, and {here.world} processes want one each")
        if options.batch_size % options.chunks:
            raise ValueError(f"--batch-size {options.batch_size} must be a multiple of --chunks {options.chunks}")
        self.here = here
        # a slice of a Sequential keeps the names of its blocks
        self.blocks = net[here.rank * len(net) // here.world : (here.rank + 1) * len(net) // here.world]
        self.optimizer = torch.optim.Adam(self.blocks.parameters(), options.lr)
        self.first, self.last = here.rank == 0, here.rank == here.world - 1
        merge = TensorChunkSpec(1)  # outputs are [T, B, C]
        kind, chunks = SCHEDULES[options.schedule], options.chunks
        # the loss is a mean over its samples; gradients of micro-batches are averaged, too (scale_grads)
        self.training = kind(self._stage(), chunks, loss_fn=rate_loss, output_merge_spec=merge)
        self.predicting = ScheduleGPipe(self._stage(), chunks, output_merge_spec=merge)

    def _stage(self) -> PipelineStage:
        return PipelineStage(self.blocks, self.here.rank, self.here.world, self.here.device)

    def train(self, images: Tensor, labels: Tensor) -> Tensor:
        """All micro-batches forward and backward, in the order of the schedule, and an update of this stage."""
        self.optimizer.zero_grad()
        losses: List[Tensor] = []
        target = {"target": labels.to(self.here.device), "losses": losses} if self.last else {}
        self.training.step(*([images.to(self.here.device)] if self.first else []), **target)
        self.optimizer.step()
        return torch.stack(losses).detach().mean() if self.last else torch.zeros((), device=self.here.device)

    @torch.no_grad()
    def right(self, images: Tensor, labels: Tensor) -> Tensor:
        """Known to the last stage."""
        outputs = self.predicting.step(*([images.to(self.here.device)] if self.first else []))
        if not self.last:
            return torch.zeros((), device=self.here.device)
        return sc.metrics.accuracy(outputs, labels.to(self.here.device), by="mean_membrane") * len(labels)

    def state(self) -> Dict[str, Any]:
        """Gathered, on the CPU of process 0."""
        mine = processes.named(self.blocks, self.optimizer)
        parts: List[Any] = [None] * self.here.world
        distributed.gather_object(mine, parts if self.first else None)
        if not self.first:
            return {}
        groups = [{**mine["optimizer"]["param_groups"][0], "params": []}]
        whole: Dict[str, Any] = {"net": {}, "optimizer": {"state": {}, "param_groups": groups}}
        for part in parts:
            whole["net"].update(part["net"])
            whole["optimizer"]["state"].update(part["optimizer"]["state"])
            groups[0]["params"] += part["optimizer"]["param_groups"][0]["params"]
        return whole

    def load(self, state: Dict[str, Any]) -> None:
        """Each process reads the file, and takes its blocks."""
        processes.load_named(self.blocks, self.optimizer, state)


if __name__ == "__main__":
    made = processes.parser(__doc__, out="runs/pipelining")
    made.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    made.add_argument("--chunks", type=at_least(1), default=4, help="micro-batches of each batch")
    processes.main(made, Stages)
