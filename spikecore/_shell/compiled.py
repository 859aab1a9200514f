"""What torch.compile and torch.export must know of the state that a neuron carries."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Mapping, Optional

import torch

from spikecore.lang._plain import PLAIN, is_dynamo_compiling, is_exporting


def uncompiled(function: Callable[..., Any]) -> Any:
    """Keep torch.compile out of a function, without an import of the compiler, which takes seconds."""
    guarded = getattr(torch, "_disable_dynamo", lambda same: same)(function)  # imports it when it is called

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (guarded if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


def check_exported(owner: str, state: Optional[Mapping[str, Any]]) -> None:
    """Refuse a state from before torch.export, which the program would continue from in every call."""
    # what torch.export computed itself is of a type of its own, but where the compiler reads the source
    if not is_dynamo_compiling():
        check_exported_first(owner, state)


def check_exported_first(owner: str, state: Optional[Mapping[str, Any]]) -> None:
    """The same of a state that the exported program has not computed."""
    if not is_exporting():
        return
    if any(type(value) in PLAIN for value in (state or {}).values()):
        raise RuntimeError(
            f"{owner} carries a state, which would be a constant of the exported program, whose calls all begin with "
            "it; call sc.reset(net) before torch.export"
        )


def must_be_whole() -> bool:
    """Whether the graph that torch.compile is making now must be whole (``fullgraph=True``), where torch says so."""
    from torch._dynamo.symbolic_convert import InstructionTranslator  # with the compiler, which is running

    current = getattr(InstructionTranslator, "current_tx", None)
    try:
        return current is not None and bool(getattr(current(), "one_graph", False))
    except AttributeError:  # nothing is traced in this thread
        return False
