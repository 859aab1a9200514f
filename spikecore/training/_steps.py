"""A step of training or inference: its protocol and its options."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Callable, ClassVar, Dict, Optional, Protocol, Tuple

import torch
from torch import Tensor

#: ``loss(outputs, targets)`` gives one number.
Loss = Callable[[Any, Any], Tensor]


class TrainingStep(Protocol):
    """A training step of :func:`spikecore.training_model`: forward, loss, backward and update, as one call.

    A backend may add methods of its own (the IPU's: compiling, detaching from the device, copying weights back).
    """

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch.

        ``inputs`` is a tensor, a tuple for ``net(*inputs)``, or a dict for ``net(**inputs)``. The outputs and the loss
        are those from before the update, detached; the loss has one number, or one for each micro batch of a backend
        that makes several updates in a call.
        """

    def state_dict(self) -> Dict[str, Any]:
        """State that training goes on from: weights ``"net"``, the state of the optimiser ``"optimizer"``, a scaler's.

        The weights have the names of the network itself, and load into it on every backend.
        """

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, as a whole or not at all.

        Raises ValueError or RuntimeError, naming what is missing, too much or of another kind; nothing has changed
        then.
        """


class InferenceStep(Protocol):
    """A call of :func:`spikecore.inference_model`: the network in eval mode and without gradients."""

    def __call__(self, inputs: Any) -> Any:
        """The outputs for one batch, whose form is that of :meth:`TrainingStep.__call__`."""


@dataclass(frozen=True)
class TrainingOptions:
    """Options of an eager step.

    clip_norm: if given, gradients are scaled down to this total 2-norm before the update. Gradients that are not finite
        raise FloatingPointError, which says where they began; in a captured step they count as 0.
    autocast: if given, forward and loss run under ``torch.autocast`` with this dtype (float16 or bfloat16).
    scaler: a gradient scaler (``torch.amp.GradScaler``) for float16; called around backward and update.
    pack_spikes: if true, layers of the network that get spikes keep them for backward as bits, from then on:
        :func:`spikecore.layers.pack` is called on it. A network without such a layer raises Unsupported.
    channels_last: if true, convolutions and their inputs have their channels last in memory.
    compile: if true, the network is run by ``torch.compile``, whole and for fixed sizes. The first step of each kind of
        batch compiles, which takes up to minutes. In a step that is captured the loss is compiled, too, and the update
        of Adam, AdamW and SGD: not of a derived class, with hooks, with a ``step`` of its own, with ``fused`` or
        ``foreach`` given, or once a hyperparameter that is a number has changed.
    memory: if "low", the network is computed again in backward, in groups between spikes that are kept as bits, as of
        ``sc.checkpoint(net, every="spikes")``: less memory for the time of another forward pass. A network without such
        groups raises Unsupported. With ``compile`` each group is compiled by itself; in a captured step groups with
        random layers are computed once.

    None is as False here; :class:`CudaOptions` may decide.
    """

    clip_norm: Optional[float] = None
    autocast: Optional[torch.dtype] = None
    scaler: Any = None
    pack_spikes: Optional[bool] = None
    channels_last: Optional[bool] = None
    compile: Optional[bool] = None
    memory: Optional[str] = None

    #: If true, options left at None are enabled where supported.
    fast: ClassVar[bool] = False

    def __post_init__(self) -> None:
        norm: Any = self.clip_norm
        if norm is not None and (isinstance(norm, bool) or not isinstance(norm, Real)):
            raise TypeError(f"clip_norm={norm!r} must be a number above 0, or None for no clipping")
        if norm is not None and not float(norm) > 0:
            raise ValueError(f"clip_norm={norm!r} must be above 0, or None for no clipping")
        if self.autocast not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"autocast={self.autocast!r} must be torch.float16, torch.bfloat16 or None")
        needed = ("scale", "unscale_", "step", "update")
        if self.scaler is not None and not all(hasattr(self.scaler, name) for name in needed):
            raise TypeError(
                f"scaler={self.scaler!r} must have the methods of torch.amp.GradScaler: {', '.join(needed)}"
            )
        if self.memory not in (None, "low"):
            raise ValueError(f"memory={self.memory!r} must be 'low', or None to keep what autograd saves")
        for name in ("pack_spikes", "channels_last", "compile"):
            _check_choice(name, getattr(self, name))


def _check_choice(name: str, value: Any) -> None:
    """Raise TypeError for an option that is neither chosen nor left open."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False, or None to leave it open")


@dataclass(frozen=True)
class CudaOptions(TrainingOptions):
    """Options of a step on a GPU: :class:`TrainingOptions`, and its capture in a CUDA graph.

    graph: if true, forward, loss, backward and update are captured once for each kind of batch and replayed.
    warmup: number of eager steps before a kind of batch is captured, 2 or more.
    max_graphs: number of kinds of batches that get a graph; others run eagerly, with one warning.
    fast: if true, each of ``channels_last``, ``compile`` and ``graph`` that is not given is done where it can be, and
        left out with a warning that says why where it cannot; ``step.form`` says what became of each. The weights are
        those of the plain step, to rounding. ``pack_spikes`` and ``memory`` are for memory, and done where they are
        given.

    clip_norm, autocast, scaler, pack_spikes, channels_last, compile, memory: as of :class:`TrainingOptions`.

    Without ``graph`` and ``fast`` it is :class:`TrainingOptions`, on any device.
    """

    graph: Optional[bool] = None
    warmup: int = 3
    max_graphs: int = 4
    fast: bool = False  # type: ignore[misc]  # a field here, a constant of the class above

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_choice("graph", self.graph)
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
