"""The options of a step on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from spikecore.training._options import TrainingOptions, check_choice


@dataclass(frozen=True)
class CudaOptions(TrainingOptions):
    """How a step on a GPU runs: :class:`TrainingOptions`, and whether it is captured in a CUDA graph.

    graph: if true, forward, loss, backward and update are captured once for each kind of batch and replayed.
    warmup: number of eager steps before a kind of batch is captured, 2 or more.
    max_graphs: number of kinds of batches that get a graph; others run eagerly, with one warning.
    fast: if true, each of ``channels_last``, ``compile`` and ``graph`` that is not given is done where it can be, and
        left out with a warning that says why where it cannot; ``step.form`` says what became of each. The weights are
        those of the plain step, to rounding. ``pack_spikes`` is for memory, and done where it is given.

    Without ``graph`` and ``fast`` it is :class:`TrainingOptions`, on any device.
    """

    graph: Optional[bool] = None
    warmup: int = 3
    max_graphs: int = 4
    fast: bool = False  # type: ignore[misc]  # a field here, a constant of the class above

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("graph", self.graph)
        if not isinstance(self.fast, bool):
            raise TypeError(f"fast={self.fast!r} must be True or False")
        # two: the first eager step makes what is made lazily, the last one is checked for what a graph cannot contain
        for name, least in (("warmup", 2), ("max_graphs", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number, {least} or more")
        if self.graph and self.scaler is not None:
            raise ValueError(
                f"scaler={self.scaler!r} decides on the host whether to update, which no CUDA graph can; "
                "use autocast=torch.bfloat16, which needs no scaler, or graph=False"
            )
