"""Options of an online step: the rule, the length of a chunk, when to update, how errors reach a layer."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Optional, Union

import torch

from spikecore_online._plasticity import STDP
from spikecore_online._rules import RULES

_RULES = (*RULES, "rstdp", "bptt")
UPDATES = ("sequence", "chunk")
FEEDBACKS = ("exact", "random", "none")


@dataclass(frozen=True)
class OnlineOptions:
    """Options for online training by :func:`spikecore.training_model`: in chunks of steps, in memory that does not grow
    with time.

    ::

        options = sc.OnlineOptions(rule="d_rtrl", chunk=20)
        step = sc.training_model(net, loss, optimizer, options=options)
        outputs, loss = step(inputs, targets)  # [T, B, ...]
        outputs, loss = step(chunks, targets)  # an iterator of [C, B, ...]
        output, loss = step.feed(x_t, y_t)  # [B, ...]: one step, a chunk of its own

    A step runs the network on a chunk from the states that the chunk before left, takes the gradient of the chunk's
    loss, adds what the chunk owes to earlier steps, and moves its traces on. See
    :class:`~spikecore.training.OnlineTraining` for what a call does, and for the loss of a sequence.

    With ``s`` the states of a neuron, ``x = W u + b`` its input and ``y`` its output, a rule is what it keeps of the
    transition ``M[t] = ds[t] / ds[t-1]``, and the trace that each weight has of ``ds / dW``:

    - ``"d_rtrl"``: all of ``M``, a trace for each weight ``[B, J, I]``. BPTT's gradient, exactly, for one layer and
      any chunk; of several layers all but the paths through the memory of a layer above that begin in an earlier
      chunk. For ``nn.Linear``.
    - ``"eprop"``: the same with the reset detached (Bellec et al., Nature Communications 11:3625, 2020).
    - ``"pp_prop"``: all of ``M``, and in the place of ``ds / dW`` an outer product: ``ds / db``, which is exact,
      with the mean of the inputs, each weighted by what it adds to ``ds / db``. For linear layers of any size and
      convolutions. (Wang et al., 2024, have an exponential mean there.)
    - ``"ottt"``: of ``M`` the leak alone; the trace is the input, filtered by the leak (Xiao et al., NeurIPS 2022).
      Exact for a neuron that is linear but for its output.
    - ``"sltt"``: nothing of ``M``, no trace (Meng et al., ICCV 2023).
    - ``"stdp"``, ``"rstdp"`` or an :class:`~spikecore.training.STDP`: local plasticity, by the times of spikes
      alone, or with the negative of the loss as reward.
    - ``"bptt"``: truncated backpropagation through time: all within a chunk, nothing beyond.

    Learnt parameters of neurons have exact traces of ``ds / dp`` under every rule but ``"bptt"``.

    rule: one of these.
    chunk: how many steps a chunk has, 1 or more.
    update: ``"sequence"``: gradients add up, and the optimiser steps once at the end. ``"chunk"``: after each chunk;
        traces then are of weights that moved meanwhile, as in every online rule.
    feedback: how the error reaches the layers below the last one with weights. ``"exact"``: back through the layers
        above. ``"random"``: by a fixed random matrix from the error behind the last layer to each neuron layer's output
        (Lillicrap et al., 2016; Nøkland, 2016), drawn from ``generator`` with variance 1 / (number of errors).
        ``"none"``: not at all, so that the last layer alone learns.
    time_targets: whether targets have time first, as the inputs, and are cut with them; otherwise each chunk's loss
        gets them whole.
    clip_norm: if given, gradients are scaled down to this total 2-norm before an update.
    graph: whether chunks that go on from others are replayed from a CUDA graph, one for each kind of chunk. A parameter
        that gets no gradient then has one of 0. Not for ``"bptt"``, and on a GPU alone.
    generator: what random feedback is drawn from; None for torch's own.

    Raises ValueError or TypeError for what is none of these.
    """

    rule: Union[str, STDP]
    chunk: int = 1
    update: str = "sequence"
    feedback: str = "exact"
    time_targets: bool = False
    clip_norm: Optional[float] = None
    graph: bool = False
    generator: Optional[torch.Generator] = None

    def __post_init__(self) -> None:
        for name, choices in (("rule", _RULES), ("update", UPDATES), ("feedback", FEEDBACKS)):
            value: Any = getattr(self, name)
            if value not in choices and not (name == "rule" and isinstance(value, STDP)):
                raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")
        chunk: Any = self.chunk
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise ValueError(f"chunk={chunk!r} must be a whole number of steps, 1 or more")
        for name in ("time_targets", "graph"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} must be True or False")
        norm: Any = self.clip_norm
        if norm is not None and (isinstance(norm, bool) or not isinstance(norm, Real) or not float(norm) > 0):
            raise ValueError(f"clip_norm={norm!r} must be a number above 0, or None for no clipping")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise TypeError(f"generator={self.generator!r} must be a torch.Generator, or None for torch's own")
        if self.plasticity and self.feedback != "exact":
            raise ValueError(f"feedback={self.feedback!r}: rule={self.rule!r} is local, and has none; leave it out")
        if self.plasticity and self.graph:
            raise ValueError(
                f"graph=True is for rules with a backward pass, and rule={self.rule!r} has none; leave it out"
            )
        if self.rule == "bptt" and self.graph:
            raise ValueError("graph=True is for rules with traces; for rule='bptt' take sc.CudaOptions(graph=True)")
        if self.rule == "bptt" and self.feedback != "exact":
            raise ValueError(f"feedback={self.feedback!r}: rule='bptt' follows the network's own paths; take 'exact'")

    @property
    def name(self) -> str:
        """The name of the rule."""
        local = self.plasticity
        return str(self.rule) if local is None else "rstdp" if local.reward else "stdp"

    @property
    def plasticity(self) -> Optional[STDP]:
        """The rule, if it is one of local plasticity."""
        if isinstance(self.rule, STDP):
            return self.rule
        return STDP(reward=self.rule == "rstdp") if self.rule in ("stdp", "rstdp") else None
