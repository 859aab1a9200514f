"""The static graph that one run of ``forward`` is recorded as.

Rules of this module:

- A value is a number; a node has references to values among its arguments, and writes values. An operation in place
  writes a value that is there already.
- Values that may share memory have one owner. A node is needed if the owner of what it writes is: so an operation in
  place is kept for every view of the memory that it changes.
- Replayed under torch's autograd on real tensors, a graph has PopTorch's gradients: the recording is below autograd, so
  neither the backward of an ``autograd.Function`` nor ``no_grad`` is in it, and ``detach`` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

import torch
from torch import Tensor

from ._replay import compute
from ._structure import leaves, tree_map
from ._tensor import IpuTensor, Layout, narrowed


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
        """The values among the arguments."""
        return [ref.index for ref in leaves([list(self.args), self.kwargs], Ref)]

    @property
    def writes(self) -> List[int]:
        """The values among the results."""
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
        """The owners of several values."""
        return {self.owner(index) for index in indices}

    def changed(self, indices: Sequence[int]) -> Set[int]:
        """Those of ``indices`` that some node changes in place, directly or through a view."""
        changed = {self.owner(index) for node in self.nodes for index in node.changes}
        return {index for index in indices if self.owner(index) in changed}

    @property
    def outputs(self) -> List[int]:
        """The values that the model returned."""
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
        """What the model returned, with ``values`` in the place of tensors of the device."""
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
