"""From the operations that torch's profiler saw to what each layer moved and copied.

A layer's forward pass lies within a range of its name. An operation of the backward pass belongs to the layer whose
operation made its node: both have one sequence number.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

#: Begins the names of ranges; the number of a layer follows.
RANGE = "spikecore.explain layer "
#: Ranges of what ``explain`` itself computes.
ASIDE = "spikecore.explain aside"
#: What counts for no layer: also packing, one pass of a kernel, which is several operations without one.
_ASIDE = frozenset({ASIDE, "spikecore::pack_spikes", "spikecore::unpack_spikes"})
_BACKWARD = "autograd::engine::evaluate_function: "

#: Operations that move no numbers: views, allocations, questions.
_STILL = frozenset(
    f"aten::{name}"
    for name in (
        "_efficientzerotensor _has_compatible_shallow_copy_type _local_scalar_dense _reshape_alias _unsafe_view alias "
        "as_strided as_strided_ broadcast_tensors chunk conj contiguous detach detach_ diagonal dropout empty "
        "empty_like empty_strided equal expand expand_as feature_dropout flatten is_nonzero is_same_size item "
        "lift_fresh "
        "movedim narrow new_empty new_empty_strided numpy_T ones_like permute ravel reshape resize_ resolve_conj "
        "resolve_neg result_type select set_ size slice split split_with_sizes squeeze squeeze_ stride sym_numel "
        "sym_size sym_stride t t_ tensor_split to transpose transpose_ type_as unbind unflatten unfold unsqueeze "
        "unsqueeze_ view view_as view_as_complex view_as_real zeros_like"
    ).split()
)
#: Operations that call ``copy_`` to lay numbers out anew.
_LAYS_OUT = frozenset(f"aten::{name}" for name in "clone contiguous flatten ravel repeat reshape tile".split())
_CONVERTS = frozenset(("aten::to", "aten::_to_copy"))
_SUMS = frozenset(
    f"aten::{name}"
    for name in (
        "all amax amin any batch_norm_stats batch_norm_update_stats linalg_vector_norm mean norm sum var var_mean"
    ).split()
)


class Moved(NamedTuple):
    """A copy within a layer: the operations around it, from the outside in, and the numbers that it copied."""

    backward: bool
    converts: bool
    within: Tuple[str, ...]
    numbers: int


class Traffic:
    """What one layer did through operations of torch."""

    def __init__(self) -> None:
        #: Numbers read and written.
        self.words = 0
        self.copies: List[Moved] = []


def traffic(events: Sequence[Any]) -> Dict[int, Traffic]:
    """What each layer did, by its number."""
    makers: Dict[int, Tuple[float, int]] = {}
    for event in events:
        layer = _within(event)
        if layer is not None and event.sequence_nr >= 0:
            # an operation that makes no node has the number of the next one: the last to begin is the one that made it
            begin = event.time_range.start
            if event.sequence_nr not in makers or begin >= makers[event.sequence_nr][0]:
                makers[event.sequence_nr] = begin, layer
    found: Dict[int, Traffic] = {}
    for event in events:
        # what an operation is made of counts, and not the operation as well
        if not _moves(event) or any(map(_moves_within, event.cpu_children)):
            continue
        layer, backward = _within(event), False
        if layer is None and not _is_aside(event):
            top = _top(event)
            if top.name.startswith(_BACKWARD) and top.sequence_nr in makers:
                layer, backward = makers[top.sequence_nr][1], True
        if layer is not None:
            _add(found.setdefault(layer, Traffic()), event, backward)
    return found


def _add(into: Traffic, event: Any, backward: bool) -> None:
    sizes = _sizes(event.input_shapes)
    if not sizes:
        return
    into.words += _words(event.name, sizes)
    within = _around(event)
    converts = not _CONVERTS.isdisjoint(within)
    if event.name == "aten::copy_" and sizes[0] > 1 and (converts or not _LAYS_OUT.isdisjoint(within)):
        into.copies.append(Moved(backward, converts, within, sizes[0]))


def _words(name: str, sizes: List[int]) -> int:
    """Numbers that an operation reads and writes, from the sizes of what it was given."""
    if name == "aten::copy_":
        return 2 * sizes[0]
    if name in ("aten::fill_", "aten::zero_"):
        return sizes[0]
    if name == "aten::cat":
        return 2 * sum(sizes)
    if name in _SUMS:
        return sizes[0]
    return sum(sizes) + (sizes[0] if name.endswith("_") else max(sizes))


def _sizes(shapes: Any) -> List[int]:
    """How many numbers each tensor argument has; lists of tensors are nested."""
    found: List[int] = []
    for shape in shapes or ():
        if shape and isinstance(shape[0], (list, tuple)):
            found += _sizes(shape)
        elif shape and all(isinstance(size, int) for size in shape):
            count = 1
            for size in shape:
                count *= size
            found.append(count)
    return found


def _moves(event: Any) -> bool:
    return event.name.startswith("aten::") and event.name not in _STILL


def _moves_within(event: Any) -> bool:
    return _moves(event) or any(map(_moves_within, event.cpu_children))


def _around(event: Any) -> Tuple[str, ...]:
    """The operations around an event, within its layer, from the outside in."""
    names: List[str] = []
    event = event.cpu_parent
    while event is not None and not event.name.startswith(RANGE):
        names.append(event.name)
        event = event.cpu_parent
    return tuple(reversed(names))


def _within(event: Any) -> Optional[int]:
    """The number of the innermost layer around an event of a forward pass."""
    while event is not None:
        if event.name in _ASIDE:
            return None
        if event.name.startswith(RANGE):
            return int(event.name[len(RANGE) :])
        event = event.cpu_parent
    return None


def _is_aside(event: Any) -> bool:
    """Whether an operation counts for no layer, in the forward or the backward pass."""
    while event is not None and event.name not in _ASIDE:
        event = event.cpu_parent
    return event is not None


def _top(event: Any) -> Any:
    while event.cpu_parent is not None:
        event = event.cpu_parent
    return event
