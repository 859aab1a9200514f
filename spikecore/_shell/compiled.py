"""What torch.compile must know of a call that continues: whether it lies in a checkpointed region.

A compiled graph reads and writes the state of the module. In a checkpointed region state is that of the region
(:mod:`spikecore._shell.recompute`), so there a neuron that continues breaks the graph and runs eagerly. The stack tells
which of both holds, and torch guards nothing about the stack: a graph made outside would be used inside. So torch is
given a guard of its own with every graph that such a neuron is in.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import torch

from spikecore._shell import recompute
from spikecore.lang._plain import PLAIN, is_dynamo_compiling, is_exporting

#: Keeps torch.compile out of a function. torch.compiler.disable would import the compiler.
uncompiled: Callable[[Any], Any] = getattr(torch, "_disable_dynamo", lambda function: function)


def breaks() -> bool:
    """Whether a neuron that continues must be left out of the graph which torch.compile is making now."""
    near = recompute.near()
    return not _guarded(near) or near


# torch.compile calls it when it traces, rather than tracing it: the stack is not what a compiled graph can follow
breaks._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes


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


def _guarded(near: bool) -> bool:
    """Whether torch uses the graph only where :func:`recompute.near` is the same."""
    from torch._guards import TracingContext  # with the compiler, which is running

    if TracingContext.try_get() is None:
        return True  # torch.export, whose programs do not depend on regions
    manager = getattr(torch._C._dynamo.guards, "RootGuardManager", None)
    if not hasattr(manager, "add_lambda_guard"):
        return False  # another version of torch: without the guard it is slower, and right
    from torch._dynamo.guards import install_guard
    from torch._dynamo.source import GlobalStateSource

    install_guard(GlobalStateSource().make_guard(_INSIDE if near else _OUTSIDE))
    return True


def _guard(near: bool) -> Callable[[Any, Any], None]:
    code = f"spikecore._shell.recompute.near() is {near}"

    def still(_: Any) -> bool:
        return (recompute.possible() and recompute.near()) is near

    def spikecore_near(builder: Any, guard: Any) -> None:
        guard.set_export_info("SPIKECORE_NEAR", None, [code], None)
        root = builder.guard_manager.root
        try:
            root.add_lambda_guard(still, [code], None)
        except TypeError:  # older versions do not take the user's stack
            root.add_lambda_guard(still, [code])

    return spikecore_near


_INSIDE, _OUTSIDE = _guard(True), _guard(False)
