"""One network on several IPUs.

Rules of this module:

- ``poptorch.BeginBlock`` puts a hook on a module, which runs where the module is called, and not where only its
  ``.run()`` is. While a network is compiled, :func:`placed` has ``.run()`` begin the stage as well, and raises for a
  stage that was never begun, whose operations PopTorch would silently leave on the previous IPU.
- ``with poptorch.Block(...)`` ends its block, and PopTorch refuses operations after it. So the loss continues the last
  block of the network: :func:`last_block` begins that again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple

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
            known = ", ".join(repr(block) for block in modules if block)
            raise ValueError(f"stages names {name!r}, which is no submodule; submodules: {known or 'none'}")
        if isinstance(ipu, bool) or not isinstance(ipu, int):
            raise TypeError(f"stages puts {name!r} on {ipu!r}; give the number of an IPU, 0 or above")
        if ipu < 0:
            raise ValueError(f"stages puts {name!r} on IPU {ipu}; give a number of 0 or above")
    library: Any = poptorch()
    for name, ipu in stages.items():
        library.BeginBlock(modules[name], user_id=name, ipu_id=ipu)
        modules[name].register_forward_pre_hook(_Begun(name, ipu))
    return net


class _Begun:
    """Notes that a stage began: a hook of its module."""

    def __init__(self, name: str, ipu: int) -> None:
        self.name = name
        self.ipu = ipu
        self.met = False

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        self.met = True


@contextmanager
def placed(net: nn.Module) -> Iterator[None]:
    """Around the compilation of ``net``; raises ValueError at the end if a stage of :func:`pipeline` was not begun."""
    begun = [hook for module in net.modules() for hook in _stages_of(module)]
    for stage in begun:
        stage.met = False
    yield
    missed = [stage.name for stage in begun if not stage.met]
    if missed:
        raise ValueError(
            f"the pipeline stages {', '.join(map(repr, missed))} were not reached: forward calls no such submodule, "
            "and PopTorch would leave what they compute on the IPU before; give pipeline() modules that forward calls; "
            "around neuron.run(...), which PopTorch does not see, write with poptorch.Block(name, ipu_id=...)"
        )


def _stages_of(module: nn.Module) -> List[_Begun]:
    """The stages that begin at this module, unless ``poptorch.removeBlocks`` has taken them away."""
    hooks = list(module._forward_pre_hooks.values())
    if not any(repr(hook).startswith("BeginBlock(") for hook in hooks):
        return []
    return [hook for hook in hooks if isinstance(hook, _Begun)]


@contextmanager
def last_block() -> Iterator[Callable[[], None]]:
    """Around ``forward`` while it is compiled; gives a function that begins the block again that was begun last in it.

    PopTorch's stage manager is asked, since hooks begin blocks as well. The function does nothing if there was no
    block.
    """
    block: Any = poptorch().Block
    manager = getattr(block, "_stages_manager", None)
    last: Optional[Tuple[str, Optional[int]]] = None

    def go_on() -> None:
        if last is not None:
            block.start(*last)

    if manager is None:
        yield go_on
        return
    begin = manager.beginStage

    def noted(user_id: Optional[str], ipu_id: Optional[int]) -> None:
        nonlocal last
        last = user_id or manager.nextAutoId(), ipu_id
        begin(*last)

    manager.beginStage = noted
    try:
        yield go_on
    finally:
        del manager.beginStage  # removes the instance attribute; the method of the class is found again
