"""Finds the value that PopTorch differentiates: the one terminal identity loss of the graph.

Rules of this module:

- Every built-in loss is an identity loss. One whose value flows into another is an ordinary reduction.
- Exactly one loss must flow into no other. It has one element, and the model returns it or what is computed from it.
- What is computed from that value and returned is not differentiated. PopTorch is silent about it, and trains on the
  loss without its weight or its penalty; here it is an error.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Set

from torch import Tensor

from ._errors import cpp_error, popart_error, py_error
from ._graph import Graph, Node

#: Functions of torch whose handler marks the result as a loss.
BUILT_IN = frozenset(
    (
        "mse_loss l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div poisson_nll_loss "
        "hinge_embedding_loss margin_ranking_loss cosine_embedding_loss triplet_margin_loss soft_margin_loss "
        "multilabel_soft_margin_loss ctc_loss"
    ).split()
)
#: Operations whose first result is a loss -> what the user called.
RECORDED = {"nll_loss_forward": "nll_loss or cross_entropy", "nll_loss2d_forward": "nll_loss or cross_entropy"}

NO_LOSS = "Couldn't find a loss in graph!"
SEVERAL = (
    "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
    "poptorch.identity_loss."
)
#: Operations through which no gradient goes in PopTorch.
_NO_GRADIENT = frozenset("detach bernoulli bernoulli_ sign floor ceil round zeros_like ones_like full_like".split())
#: Operations that change neither the value nor its gradient.
_SAME = frozenset("alias clone view _unsafe_view reshape squeeze unsqueeze _to_copy nop".split())


def reduced(x: Tensor, reduction: str) -> Tensor:
    """The value of ``identity_loss(x, reduction)``."""
    if reduction == "sum":
        return x.sum()
    return x.mean() if reduction == "mean" else x.clone()


def final_loss(graph: Graph) -> int:
    """The value at which PopTorch starts the backward pass of a pruned graph; raises as PopTorch does if none is it."""
    terminal = [
        node for position, node in enumerate(graph.nodes) if node.loss and not _flows_into_another(graph, position)
    ]
    if not terminal:
        raise cpp_error(NO_LOSS)
    if len(terminal) > 1:
        raise cpp_error(SEVERAL)
    (loss,) = terminal
    (value,) = loss.writes
    if graph.shapes[value].numel() > 1:
        raise popart_error(f"Loss tensor, '{loss.name}:{value}', must be a scalar tensor")
    later = _computed_from(graph, loss)
    if later:
        raise py_error(
            f"the value of {loss.loss} is used by {', '.join(later)}. PopTorch starts the backward pass at {loss.loss} "
            "and silently ignores what is computed from it. Wrap the final value in poptorch.identity_loss(value, "
            '"none"), or give .detach() of the loss to what is not to be trained on.'
        )
    return value


def check_no_grad(graph: Graph, loss: int, trained: Sequence[int]) -> None:
    """Raise poptorch.Error where ``torch.no_grad()`` would keep a gradient from what is trained, and PopTorch not."""
    leading = _leading_to(graph, loss)
    from_parameters = set(trained)
    seen: List[int] = list(trained)
    for node in graph.nodes:
        seen += node.writes
        if node.name in _NO_GRADIENT or not from_parameters & set(_floating(graph, node.reads)):
            continue
        if node.no_grad and id(node) in leading:
            raise py_error(
                f"{node.no_grad} is called under torch.no_grad(), with what is trained and on the way to the loss. "
                "PopTorch's guide says that no_grad stops gradients, its source ignores it: the layers in it would be "
                "trained, without a word. Write .detach() on the result"
            )
        changed = graph.owners(node.changes)
        from_parameters |= {*node.writes, *(value for value in seen if graph.owner(value) in changed)}


def _leading_to(graph: Graph, loss: int) -> Set[int]:
    """The ids of the nodes through which a gradient comes from the loss."""
    to_loss, leading = {loss}, set()
    for node in reversed(graph.nodes):
        wanted = to_loss & set(node.writes) or graph.owners(node.changes) & graph.owners(list(to_loss))
        if wanted and node.name not in _NO_GRADIENT and _floating(graph, [*node.writes, *node.changes]):
            to_loss |= set(_floating(graph, node.reads))
            leading.add(id(node))
    return leading


def _floating(graph: Graph, values: Sequence[int]) -> List[int]:
    return [index for index in values if graph.dtypes[index].is_floating_point]


def _flows_into_another(graph: Graph, position: int) -> bool:
    """Whether another loss is computed from the loss at this position."""
    reached: Set[int] = graph.owners(graph.nodes[position].writes)
    for node in graph.nodes[position + 1 :]:
        if graph.owners(node.reads) & reached:
            if node.loss:
                return True
            reached |= graph.owners([*node.writes, *node.changes])
    return False


def _computed_from(graph: Graph, loss: Node) -> List[str]:
    """The operations that are applied to the value of the loss, and not to a detached copy, which is not trained on."""
    same = set(loss.writes)
    later: Dict[str, None] = {}
    for node in graph.nodes:
        if node is not loss and same & set(node.reads) and node.name != "detach":
            if node.name in _SAME:
                same |= set(node.writes)
            else:
                later[f"aten::{node.name}"] = None
    return list(later)
