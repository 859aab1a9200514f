"""Products of small matrices in a compiled network on a GPU, in float32: the forms for which cuBLAS has fast kernels.

A linear layer of few outputs, or of few rows, has a small result and a long sum. cuBLAS computes such a product by
parts of the sum at the same time, so that all of a GPU has work; but not with a bias, nor where the result has few
rows. So the bias is added behind the product, and a gradient of a weight with few rows is computed transposed. On an
H100 a captured step of 784-1000-10 with LIF, T = 25, B = 128, takes 122 us so, and 139 without; the same network with
ReLU 127 without (there the compiler adds the bias with ReLU itself). cuBLAS 13, torch 2.11.

Numbers are those of the product to rounding, as cuBLAS gives others on every GPU. Half types and TF32 are left as they
are: there a bias costs nothing, and the transposed form is not faster.
"""

from __future__ import annotations

from typing import Any, List

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
#: Numbers of a result at most: with more there is a block of it for every multiprocessor.
MOST = 1 << 18
#: Length of the sum at least.
LEAST = 256
#: Where products are by cuBLAS.
_DEVICE = "cuda"


def change(graph: fx.Graph) -> None:
    """Rearrange the small products of ``graph``."""
    if torch.get_float32_matmul_precision() != "highest":
        return
    for node in list(graph.nodes):
        args: Any = node.args
        if node.target is _aten.addmm.default and not node.kwargs and _is_small(node, args[1]):
            _add_bias_behind(graph, node)
        elif node.target is _aten.mm.default and _is_small(node, args[0]) and _is_result(node):
            rows, columns = node.meta["val"].shape
            if rows < columns:
                _transpose(graph, node)


def _is_small(node: fx.Node, left: fx.Node) -> bool:
    value, length = node.meta["val"], left.meta["val"].shape[1]
    sizes = (*value.shape, length)
    fixed = all(type(size) is int for size in sizes)
    suits = fixed and value.device.type == _DEVICE and value.dtype == torch.float32
    return bool(suits and value.numel() <= MOST and length >= LEAST)


def _is_result(node: fx.Node) -> bool:
    """Whether nothing but the caller gets a product, maybe transposed: as the gradient of a weight."""
    users: List[fx.Node] = [*node.users]
    while len(users) == 1 and users[0].target in (_aten.permute.default, _aten.t.default):
        users = [*users[0].users]
    return len(users) == 1 and users[0].op == "output"


def _add_bias_behind(graph: fx.Graph, node: fx.Node) -> None:
    args: Any = node.args
    bias, left, right = args
    if bias.meta["val"].shape != node.meta["val"].shape[1:]:
        return
    with graph.inserting_before(node):
        product = _call(graph, _aten.mm.default, left, right)
        # a dimension between the two: the compiler makes a product with a bias of mm and add
        found = _call(graph, _aten.add.Tensor, _call(graph, _aten.unsqueeze.default, product, 0), bias)
        node.replace_all_uses_with(_call(graph, _aten.squeeze.dim, found, 0))
    graph.erase_node(node)


def _transpose(graph: fx.Graph, node: fx.Node) -> None:
    args: Any = node.args
    left, right = args
    with graph.inserting_before(node):
        sides = [_call(graph, _aten.permute.default, side, [1, 0]) for side in (right, left)]
        product = _call(graph, _aten.mm.default, *sides)
        # contiguous, as the weight: autograd copies a gradient that lies in another way
        found = _call(graph, _aten.permute.default, product, [1, 0])
        found = _call(graph, _aten.clone.default, found, memory_format=torch.contiguous_format)
        node.replace_all_uses_with(found)
    graph.erase_node(node)


def _call(graph: fx.Graph, target: Any, *args: Any, **keywords: Any) -> fx.Node:
    node = graph.call_function(target, args, keywords)
    values: Any = fx.node.map_arg(args, lambda one: one.meta["val"])
    mode = next(value.fake_mode for value in values if isinstance(value, Tensor))  # type: ignore[attr-defined]  # fake
    with mode:
        node.meta["val"] = target(*values, **keywords)
    return node
