"""One network on several IPUs."""

from __future__ import annotations

from typing import Any, Mapping

from torch import nn

from spikecore_ipu.sdk import poptorch


def pipeline(net: nn.Module, stages: Mapping[str, int]) -> nn.Module:
    """``net`` with a new pipeline stage beginning at each named submodule: ``pipeline(net, {"fc2": 1})``.

    ``stages`` maps a submodule's name, as in ``net.named_modules()``, to the number of the IPU that computes from there
    on, in the order in which ``forward`` meets them; what runs before the first is on IPU 0. Marks the submodules in
    place, by ``poptorch.BeginBlock``, and returns ``net``. Call it before ``training_model``. Outside PopTorch it does
    nothing. A stage ends wherever the IPU changes, so what is called at each time step cannot begin one: give a neuron
    all steps in one call.

    With S stages PopTorch asks for a gradient accumulation of at least ``2 * S - 1`` in training, and for at least S
    device iterations in inference (``poptorch.Options``). The number of IPUs it takes is a power of two.

    Raises TypeError for what is no module, mapping or number, ValueError for a name that is not in ``net`` or an IPU
    below 0. Source: PopTorch 3.4's user guide, "Pipelined execution".
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={net!r} must be an nn.Module")
    if not isinstance(stages, Mapping):
        raise TypeError(f"stages={stages!r} must map names of submodules to IPUs, such as {{'fc2': 1}}")
    modules = dict(net.named_modules())
    for name, ipu in stages.items():
        if name == "" or name not in modules:
            known = ", ".join(repr(one) for one in modules if one)
            raise ValueError(f"stages names {name!r}, which is no submodule; submodules: {known or 'none'}")
        if isinstance(ipu, bool) or not isinstance(ipu, int):
            raise TypeError(f"stages puts {name!r} on {ipu!r}; give the number of an IPU, 0 or above")
        if ipu < 0:
            raise ValueError(f"stages puts {name!r} on IPU {ipu}; give a number of 0 or above")
    library: Any = poptorch()
    for name, ipu in stages.items():
        library.BeginBlock(modules[name], user_id=name, ipu_id=ipu)
    return net
