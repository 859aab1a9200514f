"""The static graph that one run of ``forward`` is recorded as, and the loss in it that PopTorch differentiates.

Rules of this module:

- A value is a number; a node has references to values among its arguments, and writes values. An operation in place
  writes a value that is there already.
- Values that may share memory have one owner. A node is needed if the owner of what it writes is: so an operation in
  place is kept for every view of the memory that it changes.
- Replayed under torch's autograd on real tensors, a graph has PopTorch's gradients: the recording is below autograd, so
  neither the backward of an ``autograd.Function`` nor ``no_grad`` is in it, and ``detach`` is.
- Every built-in loss is an identity loss. One whose value flows into another is an ordinary reduction. Exactly one must
  flow into no other. It has one element, and the model returns it or what is computed from it.
- What is computed from that value and returned is not differentiated. PopTorch is silent about it, and trains on the
  loss without its weight or its penalty; here it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

import torch
from torch import Tensor

from ._compute import compute
from ._errors import cpp_error, popart_error, py_error
from ._tensor import IpuTensor, Layout, narrowed
from .arguments import leaves, tree_map


@dataclass(frozen=True)
class Ref:
    """A value of the graph, as an argument or a result."""

    index: int


@dataclass(frozen=True)
class Node:
    """One operation: ``results`` is what it returns, with references in the place of tensors."""

    name: str
    target: Callable[..., Any]
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]
    results: Any
    #: The values that it changes in place.
    changes: Tuple[int, ...] = ()
    #: What marks its result as a loss: "poptorch.identity_loss", a built-in loss, or nothing.
    loss: str = ""
    #: False if it comes after a block that has ended, and before the next begins.
    placed: bool = True
    #: The function of torch that was called under ``torch.no_grad()``; empty without it.
    no_grad: str = ""

    @property
    def reads(self) -> List[int]:
        return [ref.index for ref in leaves([list(self.args), self.kwargs], Ref)]

    @property
    def writes(self) -> List[int]:
        return [ref.index for ref in leaves(self.results, Ref)]


class Graph:
    """Nodes in order, and where their values come from: ``inputs``, ``weights``, ``constants`` and other nodes."""

    def __init__(self) -> None:
        self.nodes: List[Node] = []
        #: Dtype of each value.
        self.dtypes: List[torch.dtype] = []
        self.shapes: List[torch.Size] = []
        self.inputs: List[int] = []
        #: Name in the model -> value, of parameters and buffers.
        self.weights: Dict[str, int] = {}
        self.constants: Dict[int, Tensor] = {}
        #: What the model returned, with tensors of the device.
        self.returned: Any = None
        self._owner: List[int] = []

    def value(self, like: Layout) -> int:
        """A new value of the dtype and shape of ``like``."""
        self.dtypes.append(like.dtype)
        self.shapes.append(like.shape)
        self._owner.append(len(self._owner))
        return len(self._owner) - 1

    def share(self, a: int, b: int) -> None:
        """Note that two values may share memory."""
        self._owner[self.owner(a)] = self.owner(b)

    def owner(self, index: int) -> int:
        """The one value that represents all that may share memory with this one."""
        while self._owner[index] != index:
            index = self._owner[index]
        return index

    def owners(self, indices: Sequence[int]) -> Set[int]:
        return {self.owner(index) for index in indices}

    def changed(self, indices: Sequence[int]) -> Set[int]:
        """Those of ``indices`` that some node changes in place, directly or through a view."""
        changed = {self.owner(index) for node in self.nodes for index in node.changes}
        return {index for index in indices if self.owner(index) in changed}

    @property
    def outputs(self) -> List[int]:
        return [tensor.number for tensor in leaves(self.returned, IpuTensor)]

    def prune(self) -> None:
        """Drop the nodes on which neither a returned value depends nor one that the caller or the device keeps."""
        kept = self.owners([*self.inputs, *self.weights.values()])
        live = self.owners(self.outputs)
        nodes: List[Node] = []
        for node in reversed(self.nodes):
            written = self.owners([*node.writes, *node.changes])
            if written & live or self.owners(node.changes) & kept:
                live |= written | self.owners(node.reads)
                nodes.append(node)
        self.nodes = nodes[::-1]

    def replay(self, inputs: Sequence[Tensor], weights: Dict[str, Tensor]) -> Dict[int, Tensor]:
        """All values, computed from those of the inputs and weights; differentiable by torch's autograd."""
        values = {index: constant.clone() for index, constant in self.constants.items()}
        values.update(zip(self.inputs, inputs))
        values.update((index, weights[name]) for name, index in self.weights.items())

        def value(leaf: Any) -> Any:
            return values[leaf.index] if isinstance(leaf, Ref) else leaf

        with torch.enable_grad():
            for node in self.nodes:
                results = compute(node.target, tree_map(value, node.args), tree_map(value, node.kwargs))
                for index, result in zip(node.writes, leaves(results, Tensor)):
                    # of a view or an operation in place .to() returns the same tensor, which has the dtype already
                    values[index] = result.to(self.dtypes[index])
        return values

    def rebuilt(self, values: Dict[int, Any]) -> Any:
        """The model's result, with ``values`` in the place of tensors of the device."""
        return tree_map(lambda leaf: values[leaf.number] if isinstance(leaf, IpuTensor) else leaf, self.returned)

    def __call__(self, *inputs: Tensor) -> Any:
        """Compute the graph of a function for these tensors: what the function returned, with PopTorch's gradients.

        Raises ``ValueError`` unless the number of tensors, their shapes and their dtypes are those of the recording.
        """
        expected = [(self.shapes[index], self.dtypes[index]) for index in self.inputs]
        given = [(tensor.shape, narrowed(tensor.dtype)) for tensor in inputs]
        if given != expected:
            raise ValueError(f"recorded for tensors of (shape, dtype) {expected}, got {given}")
        copies = [tensor.to(dtype).clone() for tensor, (_, dtype) in zip(inputs, expected)]
        return self.rebuilt(self.replay(copies, {}))


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
    """True if another loss is computed from the loss at this position."""
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
