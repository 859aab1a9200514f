"""The options of a step that runs eagerly."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Optional

import torch

#: Options that :class:`CudaOptions` adds.
_OF_CUDA = ("graph", "warmup", "max_graphs", "fast")


@dataclass(frozen=True)
class TrainingOptions:
    """How an eager step trains.

    clip_norm: if given, gradients are scaled down to this total 2-norm before the update. Gradients that are not finite
        raise FloatingPointError, which says where they began; in a captured step they count as 0.
    autocast: if given, forward and loss run under ``torch.autocast`` with this dtype (float16 or bfloat16).
    scaler: a gradient scaler (``torch.amp.GradScaler``) for float16; called around backward and update.
    pack_spikes: if true, layers of the network that get spikes keep them for backward as bits, from then on:
        :func:`spikecore.pack` is called on it. A network without such a layer raises Unsupported.
    channels_last: if true, convolutions and their inputs have their channels last in memory.
    compile: if true, the network is run by ``torch.compile``, whole and for fixed sizes. The first step of each kind of
        batch compiles, which takes up to minutes. In a step that is captured the loss is compiled, too, and the update
        of Adam, AdamW and SGD: not of a derived class, with hooks, with a ``step`` of its own, with ``fused`` or
        ``foreach`` given, or once a hyperparameter that is a number has changed.

    None is as False here; :class:`CudaOptions` may decide.
    """

    clip_norm: Optional[float] = None
    autocast: Optional[torch.dtype] = None
    scaler: Any = None
    pack_spikes: Optional[bool] = None
    channels_last: Optional[bool] = None
    compile: Optional[bool] = None

    #: Whether options that are None are to be as they are fastest.
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
        for name in ("pack_spikes", "channels_last", "compile"):
            check_choice(name, getattr(self, name))


def check_choice(name: str, value: Any) -> None:
    """Raise TypeError for an option that is neither chosen nor left open."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False, or None to leave it open")
