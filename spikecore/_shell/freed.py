"""A carried state whose graph backward has freed: an error that says ``sc.detach`` or ``sc.reset``.

torch says "Trying to backward through the graph a second time" for a forgotten ``sc.detach`` or ``sc.reset``, and names
no neuron. Whether a graph was freed cannot be asked cheaply. So :class:`Passed` notes when backward comes through the
last call; only then the next call looks closer (:func:`guarded`), and puts a node before the state that raises when
backward reaches it. A call that never goes backward is not disturbed.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

State = Dict[str, Tensor]

#: So many nodes of a graph are looked at; the first ones freed lie at its end.
_MOST = 500


#: Whether the backward pass that this thread is in frees no graph. Older versions do not tell.
_keeps: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", bool)


class Passed:
    """Whether backward came through the nodes that this watches, and may have freed them."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, grads: Any) -> None:
        """Hook of a node of the graph."""
        self.seen = self.seen or not _keeps()


class Marked:
    """The same for a node that notes by itself when backward comes, which takes a tenth of the time of a hook."""

    def __init__(self, node: Any) -> None:
        self._node = node

    @property
    def seen(self) -> bool:
        """Whether backward came through the node."""
        return getattr(self._node, PASSED, False)


#: What an ``autograd.Function`` sets on its ``ctx`` when backward comes, if it has the class attribute of that name.
PASSED = "_spikecore_passed"


def watched(outputs: Sequence[Tensor], state: Optional[State]) -> Union[Passed, Marked, None]:
    """An object that says later whether backward came through this call; None if the call has no graph."""
    if state is None or not torch.is_grad_enabled():
        return None
    first = outputs[0].grad_fn
    if hasattr(getattr(first, "_forward_cls", None), PASSED):  # one node made all that this call gave
        return Marked(first)
    nodes = {value.grad_fn for value in (*outputs, *state.values()) if value.grad_fn is not None}
    if not nodes:
        return None
    passed = Passed()
    for node in nodes:
        node.register_prehook(passed.note)
    return passed


def guarded(
    owner: str, state: Optional[State], passed: Union[Passed, Marked, None], constant: Callable[[], Collection[str]]
) -> Optional[State]:
    """The state, with a node that raises in backward before each value whose graph has been freed.

    ``constant()``: the states that no gradient passes. They are detached instead, since their gradient is 0.
    """
    if state is None or passed is None or not passed.seen or not torch.is_grad_enabled():
        return state
    guarded = {}
    for name, value in state.items():
        if value.grad_fn is not None and _freed(value.grad_fn):
            value = value.detach() if name in constant() else _Freed.apply(owner, value)
        guarded[name] = value
    return guarded


def _freed(node: Any) -> bool:
    """Whether backward has freed what a graph that ends in ``node`` had saved."""
    nodes, seen = [node], {node}
    while nodes and len(seen) < _MOST:
        node = nodes.pop(0)
        if _is_freed(node):
            return True
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                nodes.append(before)
    return False


def _is_freed(node: Any) -> bool:
    """Whether the node lacks what it had saved. Runs no hook of saved tensors, which may cost much or have effects."""
    try:
        if hasattr(type(node), "saved_tensors"):  # of an autograd.Function
            return node._raw_saved_tensors is None
        for name in dir(node):
            if name.startswith("_raw_saved_") and not _has_hook(getattr(node, name)):
                getattr(node, name[len("_raw") :])
    except RuntimeError as error:
        return "a second time" in str(error)
    return False


def _has_hook(saved: Any) -> bool:
    """Whether a hook would run to unpack this, or one of these; what is freed has none. Old versions do not tell."""
    every = saved if isinstance(saved, (tuple, list)) else (saved,)
    return any(getattr(one, "unpack_hook", None) is not None for one in every)


class _Freed(torch.autograd.Function):
    """The identity, which refuses to go backward."""

    @staticmethod
    def forward(ctx: Any, owner: str, value: Tensor) -> Tensor:
        ctx.owner = owner
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[None, None]:
        raise RuntimeError(
            f"{ctx.owner} goes on from the state of its last call, and backward has freed the graph of that call "
            "(torch: trying to backward through the graph a second time). Call sc.detach(net) after each backward to "
            "keep the state without its graph, or sc.reset(net) to begin at rest"
        )
