"""Spikes kept as bits within a compiled network: a pass over the graph of forward and backward together.

AOTAutograd traces both into one graph before it decides what to save. There a spike is the output of a registered
kernel whose program says so, and operations that move numbers or add a few lead to small whole numbers, by the rules of
:mod:`spikecore.training._packed.origin`. The graph has no writes in place, so this is exact. Where backward reads such
a value, it reads it from bits instead, which are then all that is saved. Packing and unpacking are operations of ATen,
which the compiler fuses.
"""

from __future__ import annotations

import math
import operator
from contextlib import nullcontext
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from spikecore._base import bits as numbers
from spikecore._base.bits import Whole
from spikecore.backend import Unsupported
from spikecore.kernels._registered import ONE, spiking_outputs, summing_outputs
from spikecore.training._packed import bits as packing
from spikecore.training._packed import origin
from spikecore.training._packed.bits import LEAST, is_dense
from spikecore.training._packed.origin import DTYPES, added, averaged, joined, multiplied

_aten, _prims = torch.ops.aten, torch.ops.prims

#: Operations that give some numbers of their first argument, in some order, as often as may be.
_MOVES = frozenset(
    "view _unsafe_view reshape permute transpose t slice select squeeze unsqueeze expand clone alias flip index_select "
    "split split_with_sizes unbind convert_element_type _to_copy max_pool2d_with_indices max_pool3d_with_indices "
    "_low_memory_max_pool_with_offsets _low_memory_max_pool2d_with_offsets".split()
)
#: Those of them that have every number once, so that bits of the argument are bits of the result.
_VIEWS = frozenset("view _unsafe_view reshape permute transpose t squeeze unsqueeze alias".split())
#: Results of these come as tuples, whose first entry has the numbers.
_POOLS = frozenset(name for name in _MOVES if "max_pool" in name)


def compiling_options() -> Dict[str, Any]:
    """Options of ``torch.compile`` that have this done; raises Unsupported where torch is too old."""
    try:
        import torch._inductor.config as config
        from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

        config.joint_custom_post_pass  # noqa: B018  # older versions have no such pass
    except (ImportError, AttributeError) as error:
        raise Unsupported(
            f"a compiled network packs with a newer torch than {torch.__version__}; use compile=False, or "
            "pack_spikes=False"
        ) from error

    class PackSpikes(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            pack(graph)

        def uuid(self) -> Any:
            # what torch has compiled and kept on disk is made again where the rules have changed
            return get_hash_for_files((__file__, packing.__file__, numbers.__file__, origin.__file__))

    return {"joint_custom_post_pass": PackSpikes()}


def pack(graph: fx.Graph) -> int:
    """Have backward read spikes from bits; gives the number of tensors that are packed."""
    backward = _backward(graph)
    held: Dict[fx.Node, Optional[Whole]] = {}
    packs = _Packs(graph, held)
    for node in list(graph.nodes):
        if node in backward:
            continue
        whole = held[node] = _whole(node, held)
        readers = [user for user in node.users if user in backward]
        if whole is None or not readers or not _is_worth(node, whole):
            continue
        with graph.inserting_before(_first(graph, readers)):
            unpacked = packs.unpacked(node)
        for user in readers:
            user.replace_input_with(node, unpacked)
    graph.lint()
    return len(packs.made)


def _backward(graph: fx.Graph) -> Set[fx.Node]:
    """What depends on a cotangent."""
    found: Set[fx.Node] = set()
    for node in graph.nodes:
        cotangent = node.op == "placeholder" and "tangents" in str(node.target)
        if cotangent or (node.op != "output" and any(one in found for one in node.all_input_nodes)):
            found.add(node)
    return found


def _first(graph: fx.Graph, nodes: List[fx.Node]) -> fx.Node:
    wanted = set(nodes)
    found: fx.Node = next(node for node in graph.nodes if node in wanted)
    return found


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _name(node: fx.Node) -> str:
    """The name of an operation without its overload; empty for others."""
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "") if str(node.target).startswith(("aten.", "prims.")) else ""


def _whole(node: fx.Node, held: Dict[fx.Node, Optional[Whole]]) -> Optional[Whole]:
    """What a node of the forward pass holds."""
    if node.op != "call_function":
        return None
    args: Tuple[Any, ...] = node.args
    if node.target is operator.getitem:
        source, index = args
        if index in spiking_outputs(source.target, source.args):
            return Whole(1)
        shortcut = summing_outputs(source.target, source.args).get(index)
        if shortcut is not None:
            return added([Whole(1), held.get(source.args[1][shortcut])])
        return held.get(source) if index == 0 or _name(source) not in _POOLS else None
    if str(node.target) == ONE:
        return Whole(1) if spiking_outputs(node.target, args) else None
    name = _name(node)
    value = _value(node)
    if isinstance(value, Tensor) and value.dtype not in DTYPES:
        return None
    if name in _MOVES:
        return held.get(args[0])
    if name in ("add", "mul", "maximum") and len(args) == 2 and not node.kwargs:
        both = [held.get(one) if isinstance(one, fx.Node) else None for one in args]
        rule: Callable[[List[Optional[Whole]]], Optional[Whole]]
        rule = {"add": added, "mul": multiplied, "maximum": joined}[name]
        return rule(both)
    if name in ("cat", "stack"):
        return joined([held.get(one) for one in args[0]])
    if name == "avg_pool2d":
        return _average(args, held.get(args[0]))
    return None


def _average(args: Tuple[Any, ...], whole: Optional[Whole]) -> Optional[Whole]:
    every: List[Any] = [*args, *[None, [], [0], False, True, None][len(args) - 1 :]]
    _, kernel, _, padding, ceil, counts, divisor = every
    if ceil or (any(padding) and not counts) or divisor is not None:
        return None
    return averaged(whole, math.prod(kernel) if len(kernel) > 1 else kernel[0] ** 2)


def _is_worth(node: fx.Node, whole: Whole) -> bool:
    """Whether a tensor is to be packed: large, dense, with a whole number of bytes, and of sizes that are fixed."""
    value = _value(node)
    if not isinstance(value, Tensor) or not all(type(size) is int for size in (*value.shape, *value.stride())):
        return False
    count = value.numel()
    return count >= LEAST and count * whole.bits % 8 == 0 and is_dense(tuple(value.shape), value.stride())


class _Packs:
    """Nodes that pack and unpack, at most one pair for each value."""

    def __init__(self, graph: fx.Graph, held: Dict[fx.Node, Optional[Whole]]) -> None:
        self.graph, self.held = graph, held
        #: In which operations compute shapes, and nothing else.
        self.mode: Any = next(
            (_value(node).fake_mode for node in graph.nodes if isinstance(_value(node), FakeTensor)), nullcontext()
        )
        self.made: Dict[fx.Node, fx.Node] = {}

    def unpacked(self, node: fx.Node) -> fx.Node:
        """What backward reads in place of a node."""
        source = node.args[0] if _name(node) in _VIEWS else None
        whole = self.held[node]
        if isinstance(source, fx.Node) and whole is not None and self.held.get(source) and _is_worth(source, whole):
            return self._call(node.target, self.unpacked(source), *node.args[1:], again=True)
        if whole is None:
            raise RuntimeError(f"{node} is not known to hold whole numbers")
        if node not in self.made:
            with self.graph.inserting_after(node):
                self.made[node] = self._pack(node, whole)
        return self._unpack(self.made[node], _value(node), whole)

    def _pack(self, node: fx.Node, whole: Whole) -> fx.Node:
        value, bits = _value(node), whole.bits
        chain = _Chain(self, node)
        small = chain(_aten.permute.default, node, _order(value))
        if bits == 1:
            small = chain(_aten.ne.Scalar, small, 0)
        elif whole.unit != 1.0:
            small = chain(_aten.mul.Tensor, small, 1 / whole.unit)
        small = chain(_prims.convert_element_type.default, small, torch.uint8)
        if bits == 8:
            return chain(_aten.view.default, small, [value.numel()])
        dim = _dim_of_places(value.device)
        sizes = [value.numel() * bits // 8]
        sizes.insert(dim, 8 // bits)
        small = chain(_aten.view.default, small, sizes)
        moved = chain(_aten.bitwise_left_shift.Tensor, small, self._places(chain, value.device, bits))
        return chain(_aten.sum.dim_IntList, moved, [dim], dtype=torch.uint8)

    def _unpack(self, data: fx.Node, value: Tensor, whole: Whole) -> fx.Node:
        bits, order = whole.bits, _order(value)

        def call(*args: Any) -> fx.Node:
            return self._call(*args, again=True)

        numbers = data
        if bits < 8:
            beside = call(_aten.unsqueeze.default, data, _dim_of_places(value.device))
            moved = call(_aten.bitwise_right_shift.Tensor, beside, self._places(call, value.device, bits))
            numbers = call(_aten.bitwise_and.Scalar, moved, (1 << bits) - 1)
        numbers = call(_prims.convert_element_type.default, numbers, value.dtype)
        if whole.unit != 1.0:
            numbers = call(_aten.mul.Tensor, numbers, whole.unit)
        numbers = call(_aten.view.default, numbers, [value.shape[dim] for dim in order])
        return call(_aten.permute.default, numbers, [order.index(dim) for dim in range(len(order))])

    def _places(self, call: Callable[..., fx.Node], device: torch.device, bits: int) -> fx.Node:
        """By how many bits each number of a byte is shifted."""
        places = call(_prims.iota.default, 8 // bits, 0, bits, torch.uint8, device, False)
        return places if _dim_of_places(device) == 1 else call(_aten.unsqueeze.default, places, 1)

    def _call(self, target: Any, *args: Any, again: bool = False, **kwargs: Any) -> fx.Node:
        """A node at the place of insertion. ``again``: it is computed in backward, and never saved."""
        if target is _prims.iota.default:
            size, start, step, dtype, device, gradient = args
            args = (size,)
            kwargs = {"start": start, "step": step, "dtype": dtype, "device": device, "requires_grad": gradient}
        node = self.graph.call_function(target, args, kwargs)
        with self.mode:
            node.meta["val"] = target(*fx.node.map_arg(args, _value), **kwargs)
        if again:
            from torch.utils.checkpoint import CheckpointPolicy

            node.meta.update(recompute=CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=0)
        return node


class _Chain:
    """Calls, each inserted after the one before."""

    def __init__(self, packs: _Packs, last: fx.Node) -> None:
        self.packs, self.last = packs, last

    def __call__(self, *args: Any, **kwargs: Any) -> fx.Node:
        with self.packs.graph.inserting_after(self.last):
            self.last = self.packs._call(*args, **kwargs)
        return self.last


def _dim_of_places(device: torch.device) -> int:
    """Which dimension has the numbers of one byte: neighbours, but on a CPU numbers that lie far apart.

    torch.compile writes vector instructions for a CPU where neighbours go to different bytes. Where they go to one
    byte, it writes a loop over eight numbers for each, and the step takes three times as long.
    """
    return 0 if device.type == "cpu" else 1


def _order(value: Tensor) -> List[int]:
    """The dimensions in the order of memory: permuted so, a dense tensor is contiguous."""
    strides = value.stride()
    return sorted(range(value.ndim), key=lambda dim: (-strides[dim], dim))
