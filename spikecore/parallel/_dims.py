"""Which dimension of inputs and outputs is the batch, and how outputs of parts are put together along it."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base import structure
from spikecore._base.batches import flattened, tree_map
from spikecore._shell.checks import shown
from spikecore._shell.replicas import makes_time
from spikecore._shell.state import Stateful
from spikecore.backend import Unsupported
from spikecore.functional import stateful_modules
from spikecore.parallel._dry import shapes


class OfOutput(NamedTuple):
    """The dimension that is the batch in each tensor of an output, if it is known; else the usual one, or the given."""

    known: Optional[Tuple[int, ...]]
    usual: int
    given: str


def checked(batch_dim: Any) -> Tuple[Optional[int], Optional[int]]:
    """``batch_dim`` for input and output; None where it is to be found out. Raises TypeError or ValueError."""
    pair = batch_dim if isinstance(batch_dim, (tuple, list)) else (batch_dim, None)
    if len(pair) != 2:
        raise ValueError(f"batch_dim={batch_dim!r} must be one number, or two: of the input and of the output")
    for dim in pair:
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
            raise TypeError(
                f"batch_dim={batch_dim!r} must be the number of a dimension, as in 1 for [T, B, ...], a pair of them "
                "for input and output, or None"
            )
        if dim is not None and dim < 0:
            raise ValueError(f"batch_dim={batch_dim!r} must count from the first dimension, which is 0")
    return pair[0], pair[1]


def outermost(net: nn.Module) -> List[Stateful]:
    """The stateful modules of a network that are in no other one."""
    every = stateful_modules(net)
    inner = {part for module in every for part in module.modules() if part is not module}
    return [module for module in every if module not in inner]


def of_input(net: nn.Module) -> int:
    """Dimension of the batch in what a network takes, where its user does not say it: see :class:`Pipeline`."""
    multi = any(module.step == "multi" for module in outermost(net))
    return 1 if multi and not makes_time(net) else 0


def of_output(net: nn.Module, dim: int) -> int:
    """The same for what it gives, where neither its user nor a dry run says it; ``dim`` is that of the input."""
    return 1 if makes_time(net) else dim


def tensors(x: Any, name: str = "x") -> List[Tensor]:
    """The tensors of an input. Raises TypeError if there is none."""
    found = flattened(x)
    if not found:
        raise TypeError(f"{name} must be a tensor, or a tuple, list or dict of tensors, got {shown(x)}")
    if any(tensor.device.type == "ipu" for tensor in found):
        raise Unsupported(
            "a Pipeline cannot be run by PopTorch, which places the layers of a network on IPUs itself: give it "
            "nn.Sequential(*pipeline), and spikecore_ipu.pipeline(net, {name: ipu}) for several IPUs"
        )
    return found


def batch(x: Any, dim: int) -> int:
    """The size of the batch of an input. Raises TypeError or ValueError if it has none."""
    found = tensors(x)
    for tensor in found:
        if tensor.ndim <= dim:
            raise ValueError(
                f"the batch is dimension batch_dim={dim} of the input, and x has shape {tuple(tensor.shape)}; give "
                "[T, B, ...], or say which dimension is the batch: Pipeline(..., batch_dim=0)"
            )
    sizes = {tensor.shape[dim] for tensor in found}
    if len(sizes) > 1:
        raise ValueError(f"the tensors of the input have batches of {sorted(sizes)} in dimension batch_dim={dim}")
    return found[0].shape[dim]


def where(x: Any, dim: int) -> str:
    """The batch of an input in words, for errors."""
    return f"dimension batch_dim={dim} of the input, {shapes(x)}"


def hollow(x: Any, dim: int, size: int) -> Any:
    """The structure of a part of ``x`` of this size, without data."""

    def one(tensor: Tensor) -> Tensor:
        shape = [size if k == dim else n for k, n in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return tree_map(one, x)


def cut(x: Any, dim: int, sizes: Sequence[int]) -> List[Any]:
    """The parts of an input."""
    if len(sizes) == 1:
        return [x]
    pieces = [tensor.split(list(sizes), dim) for tensor in flattened(x)]
    return [_filled(x, [piece[part] for piece in pieces]) for part in range(len(sizes))]


def found(one: Any, other: Any, size: int, larger: int) -> Tuple[int, ...]:
    """For each tensor of an output the dimension that is the batch, from outputs for batches of two sizes.

    Raises ValueError if there is none.
    """
    dims: List[int] = []
    for a, b in zip(flattened(one), flattened(other)):
        moved = [k for k in range(a.ndim) if a.ndim == b.ndim and (a.shape[k], b.shape[k]) == (size, larger)]
        if len(moved) != 1:
            raise ValueError(
                f"the last stage gives shape {tuple(a.shape)} for a part of {size} and {tuple(b.shape)} for one of "
                f"{larger}: no dimension of it is the batch, along which the outputs of parts are put together. Leave "
                "what joins the samples (a loss, a mean over the batch) out of the stages, or use chunks=1"
            )
        dims += moved
    return tuple(dims)


def fits(parts: Sequence[Any], sizes: Sequence[int], of_output: OfOutput) -> bool:
    """Whether the outputs of parts have the sizes of the parts in the dimensions that a dry run found."""
    known = of_output.known
    if known is None or len(parts) == 1:
        return True
    rows = [flattened(part) for part in parts]
    return all(
        len(row) == len(known) and all(x.ndim > dim and x.shape[dim] == size for x, dim in zip(row, known))
        for row, size in zip(rows, sizes)
    )


def joined(parts: Sequence[Any], sizes: Sequence[int], of_output: OfOutput) -> Any:
    """The outputs of all parts as one. Raises TypeError or ValueError where they cannot be put together."""
    first = parts[0]
    if len(parts) == 1:
        return first
    leaves = [flattened(part) for part in parts]
    if any(len(list(structure.leaves(part, object))) != len(leaves[0]) for part in parts) or not leaves[0]:
        raise TypeError(
            f"the last stage gives {shown(first)}, of which not everything is a tensor; the outputs of parts can be "
            "put together only if they are tensors: use chunks=1, or return tensors"
        )
    columns = [[row[k] for row in leaves] for k in range(len(leaves[0]))]
    known = of_output.known
    along = known if known is not None else [_sure(column, sizes, of_output) for column in columns]
    return _filled(first, [torch.cat(column, dim) for column, dim in zip(columns, along)])


def _sure(parts: Sequence[Tensor], sizes: Sequence[int], of_output: OfOutput) -> int:
    """The dimension that is the batch in outputs of parts, where it is said or no other one could be."""
    fits = [k for k in range(parts[0].ndim) if all(x.ndim > k and x.shape[k] == n for x, n in zip(parts, sizes))]
    usual = of_output.usual
    if usual not in fits or (len(fits) > 1 and not of_output.given):
        how = "several dimensions could be" if usual in fits else f"dimension {usual} is not"
        raise ValueError(
            f"the last stage gives shape {tuple(parts[0].shape)} for a part of {sizes[0]}, in which {how} the batch; "
            "say which one is, of input and output: Pipeline(..., batch_dim=(1, 0))"
        )
    return usual


def _filled(like: Any, values: Sequence[Tensor]) -> Any:
    left = iter(values)
    return tree_map(lambda _: next(left), like)
