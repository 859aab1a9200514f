"""Cuts the batch of a call into micro batches along dimension 0, and joins their outputs.

For ``D`` device iterations, ``A`` accumulated micro batches and ``R`` replicas in groups of ``G`` with one input, a
call takes ``D * A * (R / G)`` consecutive slices, in the order [device iteration][accumulation][group of replicas].

| output mode | micro outputs that are returned, for each replica                        | joined: dimension 0 times |
|-------------|--------------------------------------------------------------------------|---------------------------|
| All         | of all iterations                                                        | ``D * A * R``             |
| EveryN      | of iterations N-1, 2N-1, ...                                             | ``D * A * R / N``         |
| Final       | of the last iteration                                                    | ``R``                     |
| Sum         | the sum over all iterations                                              | ``R``                     |

0-d outputs are stacked to ``[k]`` if there are k > 1 of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

import torch
from torch import Tensor

from .enums import OutputMode
from .options import Options


@dataclass(frozen=True)
class Batching:
    """The sizes that the options give."""

    iterations: int
    accumulation: int
    replicas: int
    group: int
    mode: OutputMode
    period: int

    @staticmethod
    def of(options: Options) -> Batching:
        """The sizes of these ``poptorch.Options``."""
        return Batching(
            options.device_iterations,
            options.Training.gradient_accumulation,
            options.replication_factor,
            options.input_group_size,
            options.output_mode,
            options.output_return_period,
        )

    @property
    def slices(self) -> int:
        """Number of parts that the batch of one call is cut into."""
        return self.iterations * self.accumulation * (self.replicas // self.group)

    def check(self, shape: torch.Size) -> None:
        """Raise AssertionError if an input of this shape cannot be cut into the micro batches of a call."""
        size = shape[0] if shape else 1
        if size % self.slices:
            raise AssertionError(
                f"Invalid batch dimension: In the input {shape}, the batch dimension ({size}) must be a multiple of "
                f"Options.deviceIterations({self.iterations}) * (Options.replicationFactor({self.replicas}) / "
                f"Options.inputReplicaGrouping.input_group_size({self.group})) * "
                f"Options.Training.gradientAccumulation({self.accumulation}) = {self.slices} because it is used to "
                "calculate the batch size which will be executed on the device in any given iteration. For a full "
                "explanation see the batching semantics page of the documentation."
            )

    def slice(self, tensor: Tensor, iteration: int, step: int, replica: int) -> Tensor:
        """The micro batch, a view, of one accumulation step of one device iteration."""
        if not tensor.dim():
            return tensor
        size = tensor.shape[0] // self.slices
        groups = self.replicas // self.group
        return tensor.narrow(0, ((iteration * self.accumulation + step) * groups + replica // self.group) * size, size)

    def joined(self, outputs: List[Tensor]) -> Tensor:
        """What a call returns of its micro batches' outputs, given in the order of computation, replicas innermost."""
        steps = [outputs[start : start + self.replicas] for start in range(0, len(outputs), self.replicas)]
        if self.mode == OutputMode.Final:
            steps = steps[-1:]
        elif self.mode == OutputMode.EveryN:
            steps = steps[self.period - 1 :: self.period]
        elif self.mode == OutputMode.Sum:
            steps = [[torch.stack(replica).sum(0).to(replica[0].dtype) for replica in zip(*steps)]]
        chosen = [output for step in steps for output in step]
        if len(chosen) == 1:
            return chosen[0].clone()
        return torch.cat(chosen) if chosen[0].dim() else torch.stack(chosen)
