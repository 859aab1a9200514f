"""The ``torch.Generator`` that a module draws from: its checks, and how it is copied and pickled."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from spikecore._base.modes import is_compiling
from spikecore._shell import checks
from spikecore.backend import Unsupported


def checked(owner: str, generator: Any) -> Optional[torch.Generator]:
    """A generator or None; raises TypeError for anything else."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"{owner}: generator must be a torch.Generator or None, got {checks.shown(generator)}")
    return generator


def refuse_compiler(owner: str) -> None:
    """Raise :class:`Unsupported` where torch.compile or torch.export traces a draw."""
    if is_compiling():
        raise Unsupported(
            f"{owner}: a compiled or exported graph cannot draw from a torch.Generator: leave generator= out and seed "
            "torch.manual_seed, or draw in front of it"
        )


def keyword(owner: str, generator: Optional[torch.Generator], device: torch.device) -> Dict[str, Any]:
    """The keyword ``generator`` of a draw of torch on ``device``; none without a generator.

    ONNX has no operator for a draw with this keyword, and with it torch.compile keeps no size open, not even for None.
    """
    if generator is None:
        return {}
    refuse_compiler(owner)
    if not checks.is_device(generator.device, device):
        way_out = f"make it with torch.Generator(device={str(device)!r})"
        if device.type == "ipu":
            way_out = "an IPU has none: leave it out, and set options.randomSeed(seed)"
        raise ValueError(f"{owner}: generator is on {generator.device} but x is on {device}; {way_out}")
    return {"generator": generator}


def pickled(state: Mapping[str, Any]) -> Dict[str, Any]:
    """The attributes of a module with device and state of its generator, which torch 2.0 cannot copy or pickle."""
    generator = state["generator"]
    return {**state, "generator": generator and (str(generator.device), generator.get_state())}


def unpickled(state: Mapping[str, Any]) -> Dict[str, Any]:
    """The attributes from :func:`pickled`, with a generator again."""
    if state["generator"] is None:
        return dict(state)
    device, numbers = state["generator"]
    generator = torch.Generator(device=device)
    generator.set_state(numbers)
    return {**state, "generator": generator}
