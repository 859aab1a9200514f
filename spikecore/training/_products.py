"""Products of small matrices in a compiled network on a GPU, in float32: the bias is added behind the product.

A linear layer of few outputs, or of few rows, has a small result and a long sum. cuBLAS computes such a product by
parts of the sum at the same time (split-K), so that all multiprocessors have work, but not where it adds a bias, too.
The compiler adds a bias behind a product by itself where an operation of each number follows, as ReLU, and not where a
neuron's kernel does. On an H100, torch 2.11, a captured step of 784-1000-10 with LIF, T = 25, B = 128, takes 126 us so,
and 139 with the bias in the products; with ReLU 127.

Numbers are those of the product to rounding, as cuBLAS gives others on every GPU. Half types and TF32 are left as they
are: there a bias costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
#: Numbers of a result at most, and length of the sum at least. Within, products of six sizes on an H100 were 6 to 43 %
#: faster so; one of 128 x 4096 numbers was 14 % slower, and one with a sum of 256 took 10.4 us and not 9.1.
MOST, LEAST = 1 << 17, 512
#: Where products are by cuBLAS.
_DEVICE = "cuda"


def precision() -> str:
    """How products of float32 are computed on a GPU: "tf32", or another word of torch's."""
    settings: Any = torch.backends.cuda.matmul
    try:
        # not torch.get_float32_matmul_precision(), which raises once this was set
        found = settings.fp32_precision
    except AttributeError:  # before torch 2.9
        return "tf32" if settings.allow_tf32 else "ieee"
    return str(getattr(torch.backends, "fp32_precision", found) if found == "none" else found)


def change(graph: fx.Graph) -> None:
    """Rearrange the small products of ``graph``."""
    if precision() == "tf32":
        return
    for node in list(graph.nodes):
        if node.target is _aten.addmm.default and not node.kwargs and _is_small(node):
            _add_bias_behind(graph, node)


def _is_small(node: fx.Node) -> bool:
    args: Any = node.args
    bias, left = (one.meta["val"] for one in args[:2])
    value, length = node.meta["val"], left.shape[1]
    fixed = all(type(size) is int for size in (*value.shape, length))
    suits = fixed and value.device.type == _DEVICE and value.dtype == torch.float32
    return bool(suits and value.numel() <= MOST and length >= LEAST and bias.shape == value.shape[1:])


def _add_bias_behind(graph: fx.Graph, node: fx.Node) -> None:
    bias, *sides = node.args
    with graph.inserting_before(node):
        product = _call(node, _aten.mm.default, *sides)
        # a dimension between the two: the compiler makes a product with a bias of mm and add
        found = _call(node, _aten.add.Tensor, _call(node, _aten.unsqueeze.default, product, 0), bias)
        node.replace_all_uses_with(_call(node, _aten.squeeze.dim, found, 0))
    graph.erase_node(node)


def _call(instead: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A node at the place of insertion, with what is noted of the one in whose place it stands: for one, whether
    checkpointing computes it again in backward.
    """
    node = instead.graph.call_function(target, args)
    node.meta.update({name: of for name, of in instead.meta.items() if name not in ("val", "tensor_meta")})
    values: Any = fx.node.map_arg(args, lambda one: one.meta["val"])
    mode = next(value.fake_mode for value in values if isinstance(value, Tensor))  # type: ignore[attr-defined]  # fake
    with mode:
        node.meta["val"] = target(*values)
    return node
