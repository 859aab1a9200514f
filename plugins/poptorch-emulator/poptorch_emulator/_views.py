"""Views, which share memory in torch and do not in PopTorch.

In PopTorch a view is a separate value. An operation in place on a view changes that view, and its base in two cases
only: ``copy_`` (and so ``base[i] = x``) and random filling, through any chain of slices; and every operation in place,
through such a chain to an input, a parameter or a buffer. A base that is constant (``zeros``, ``ones`` and the like,
whatever tensor they take their shape from) is never changed, since PopTorch evaluates constants beforehand.

So after an operation in place some tensors have parts whose values differ between PopTorch and torch. Each tensor lists
its parts of this kind here, as boxes of indices into the tensor that owns the memory. To overwrite such a part makes it
equal again; to read it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Tuple

from ._errors import cpp_error, py_error
from ._tensor import Layout

#: First and last index (exclusive) in each dimension of the owner; None where a view is no box.
Box = Optional[Tuple[Tuple[int, int], ...]]

#: View operations whose change reaches the base, and those that are passed on the way to one.
SLICES = frozenset(("select", "slice", "narrow"))
RESHAPES = frozenset("view _reshape_alias reshape unsqueeze squeeze flatten".split())

#: They change the shape of their argument, and PopTorch has a handler for each.
RESHAPES_IN_PLACE = frozenset(("transpose_", "squeeze_"))
#: Other operations whose result is a view.
VIEWS = frozenset("permute transpose t expand unbind split split_with_sizes chunk diagonal as_strided".split())

LOST = (
    "in PopTorch a view has a value of its own, and a change in place does not reach the tensor that it is a view of. "
    "Compute a new tensor (y = y + 1), or assign the part: y[0] = y[0] + 1."
)
FOLDED = (
    "torch.zeros, ones, full, empty and the like are constants for PopTorch, zeros_like(x) too; it folds them, and "
    "their parts, before anything is written there, so that the constant itself would be read. Collect the parts in a "
    "list, and torch.stack them."
)
STEPPED = "In-place modification of slices with step size other than 1 is not supported."


@dataclass
class _View:
    """One tensor: whose memory it is a part of, and which of its parts differ from torch's."""

    owner: int
    base: Optional[int]
    kind: str
    box: Box
    constant: bool
    #: An input, a parameter or a buffer.
    outer: bool = False
    #: Parts whose values differ from torch's, and why.
    stale: List[Tuple[Box, str]] = field(default_factory=list)


class Views:
    """The tensors of one trace, by number."""

    def __init__(self) -> None:
        self._views: Dict[int, _View] = {}
        self._members: Dict[int, List[int]] = {}
        self._owners: Dict[int, Layout] = {}

    def constant(self, number: int) -> bool:
        """True if PopTorch knows the value when it compiles."""
        return self._views[number].constant

    def create(self, number: int, laid: Layout, constant: bool = False, outer: bool = False) -> None:
        self._owners[number] = laid
        self._members[number] = [number]
        self._views[number] = _View(number, None, "", tuple((0, size) for size in laid.shape), constant, outer)

    def derive(self, number: int, laid: Layout, base: int, kind: str) -> None:
        of = self._views[base]
        box = _box(laid, self._owners[of.owner])
        stale = [(part, why) for part, why in of.stale if _meet(part, box)]
        self._views[number] = _View(of.owner, base, kind, box, of.constant, of.outer, stale)
        self._members[of.owner].append(number)

    def check(self, number: int, reader: str) -> None:
        """Raise poptorch.Error if the tensor has a part that differs from torch's."""
        stale = self._views[number].stale
        if stale:
            raise py_error(f"{reader} reads a tensor after a part of it was changed in place: {stale[-1][1]}")

    def check_outer(self) -> None:
        """Raise poptorch.Error if an input, a parameter or a buffer would not be written back as it is in torch."""
        for number, view in self._views.items():
            if view.outer and view.base is None:
                self.check(number, "the host")

    def write(self, number: int, by_copy: bool, constant: bool) -> None:
        """The tensor was changed in place; ``constant`` if all that it was computed from is."""
        view = self._views[number]
        if (by_copy or view.outer) and view.kind == "slice by steps":
            raise cpp_error(STEPPED)
        reached = [number, *self._reached(view, by_copy)]
        why = FOLDED if view.base is not None and view.constant else LOST
        view.constant = view.constant and constant
        for other in self._members[view.owner]:
            one = self._views[other]
            if other in reached:
                one.stale = [(part, told) for part, told in one.stale if not _within(part, view.box)]
            elif _meet(one.box, view.box):
                one.stale.append((view.box, why))
        view.stale = []

    def _reached(self, view: _View, by_copy: bool) -> Iterator[int]:
        """The bases that get the new values."""
        if not (by_copy or view.outer):
            return
        while view.base is not None and view.kind in ("slice", "reshape"):
            base = self._views[view.base]
            if base.constant:
                return
            if view.kind == "slice":
                yield view.base
            view = base


def kind_of(name: str, args: Tuple[object, ...]) -> str:
    """The kind of view that an operation makes."""
    if name == "slice" and len(args) > 4 and args[4] != 1:
        return "slice by steps"
    if name in SLICES:
        return "slice"
    return "reshape" if name in RESHAPES else name


def _box(view: Layout, owner: Layout) -> Box:
    """The part of ``owner`` that a view is, if that is a box."""
    strides = owner.strides
    dims = [dim for dim in range(len(owner.shape)) if owner.shape[dim] > 1]
    offset = view.offset - owner.offset
    first: Dict[int, int] = {}
    for dim in sorted(dims, key=lambda dim: -strides[dim]):
        if strides[dim] == 0:
            return None
        first[dim], offset = divmod(offset, strides[dim])
    sizes = dict.fromkeys(dims, 1)
    by_stride = {strides[dim]: dim for dim in dims}
    for size, stride in zip(view.shape, view.strides):
        if size > 1:
            if stride not in by_stride:
                return None
            sizes[by_stride[stride]] = size
    if offset or any(first[dim] + sizes[dim] > owner.shape[dim] for dim in dims):
        return None
    return tuple((first.get(dim, 0), first.get(dim, 0) + sizes.get(dim, 1)) for dim in range(len(owner.shape)))


def _meet(one: Box, other: Box) -> bool:
    """True if two parts may have an element in common."""
    if one is None or other is None:
        return True
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other))


def _within(part: Box, whole: Box) -> bool:
    """True if a part surely is a part of another."""
    if part is None or whole is None:
        return False
    return all(c <= a and b <= d for (a, b), (c, d) in zip(part, whole))
