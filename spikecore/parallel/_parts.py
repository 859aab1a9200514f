"""The parts of a batch: how it is split, inputs and states of a part, and outputs and states of the whole batch.

Outside a call the state of a neuron that continues is that of the whole batch, as in a network on one device:
``sc.reset``, ``sc.detach``, ``neuron.state`` and another split at the next call need nothing of their own. Within a
call it is cut into parts along its first dimension, the batch; each part goes on from its own, and at the end they are
joined. Gradients pass both.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore._base import batches
from spikecore._base.batches import flattened, tree_map
from spikecore._shell.checks import shown
from spikecore._shell.state import State, Stateful, put
from spikecore.backend import Unsupported

#: So many numbers that would work are listed.
_LISTED = 16


# -- sizes


class Split(NamedTuple):
    """A split as its user gave it; with neither, a batch is one part."""

    chunks: Optional[int] = None
    split_sizes: Union[int, Tuple[int, ...], None] = None

    def sizes(self, batch: int, where: str) -> Tuple[int, ...]:
        """The sizes of the parts of a batch. Raises ValueError for one that is not split so; ``where`` names the batch.

        ``where``: words such as "dimension batch_dim=1 of the input, shape (8, 64, 10)".
        """
        if isinstance(self.split_sizes, tuple):
            total = sum(self.split_sizes)
            if total != batch:
                raise ValueError(
                    f"split_sizes={list(self.split_sizes)} are {total} together, and the batch is {batch} ({where}); "
                    f"give sizes whose sum is {batch}, or one that divides it: {_divisors(batch, batch)}"
                )
            return self.split_sizes
        if batch == 0:
            raise ValueError(f"the batch is empty ({where}); there is nothing to split")
        if self.split_sizes is not None:
            if batch % self.split_sizes:
                raise ValueError(
                    f"split_sizes={self.split_sizes} does not divide the batch of {batch} ({where}); sizes that do: "
                    f"{_divisors(batch, self.split_sizes)}; or give a list of sizes whose sum is {batch}, or let the "
                    "loader drop a short last batch (drop_last=True)"
                )
            return (self.split_sizes,) * (batch // self.split_sizes)
        chunks = 1 if self.chunks is None else self.chunks
        if batch % chunks:
            raise ValueError(
                f"chunks={chunks} does not divide the batch of {batch} ({where}); numbers of equal parts that do: "
                f"{_divisors(batch, chunks)}; or give split_sizes, a list whose sum is {batch}, or let the loader drop "
                "a short last batch (drop_last=True)"
            )
        return (batch // chunks,) * chunks

    def words(self) -> str:
        """The split for a ``repr``."""
        if self.split_sizes is not None:
            return f"split_sizes={list(self.split_sizes) if isinstance(self.split_sizes, tuple) else self.split_sizes}"
        return f"chunks={self.chunks}"


def checked_split(chunks: Any, split_sizes: Any) -> Split:
    """The split that both arguments say. Raises TypeError or ValueError for what says none, or two."""
    if chunks is not None and split_sizes is not None:
        raise ValueError(
            f"chunks={chunks!r} and split_sizes={split_sizes!r} each say how a batch is split; give one of them"
        )
    if chunks is not None:
        return Split(chunks=_count("chunks", chunks, "a number of equal parts"))
    if split_sizes is None:
        return Split()
    if isinstance(split_sizes, Sequence) and not isinstance(split_sizes, str):
        if not split_sizes:
            raise ValueError("split_sizes=[] has no part; give the size of each part, or None for one part")
        return Split(split_sizes=tuple(_count(f"split_sizes[{k}]", n, "a size") for k, n in enumerate(split_sizes)))
    return Split(split_sizes=_count("split_sizes", split_sizes, "the size of a part, or a list of sizes"))


def _count(name: str, value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be {what}, a whole number, or None")
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1, or None")
    return value


def _divisors(batch: int, wanted: int) -> str:
    """The divisors of a batch in words, or those nearest to the one that was wanted."""
    every: List[int] = [n for n in range(1, batch + 1) if batch % n == 0]
    near = sorted(sorted(every, key=lambda n: abs(n - wanted))[:_LISTED])
    return ", ".join(map(str, near)) + ("" if len(near) == len(every) else " and others")


# -- inputs and outputs


def checked_dims(batch_dim: Any) -> Tuple[int, int]:
    """``batch_dim`` of input and output. Raises TypeError or ValueError."""
    pair = batch_dim if isinstance(batch_dim, (tuple, list)) else (batch_dim, batch_dim)
    if len(pair) != 2:
        raise ValueError(f"batch_dim={batch_dim!r} must be one number, or two: of the input and of the output")
    for dim in pair:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(
                f"batch_dim={batch_dim!r} must be the number of a dimension, as in 1 for [T, B, ...], or a pair, of "
                "input and output"
            )
        if dim < 0:
            raise ValueError(f"batch_dim={batch_dim!r} must count from the first dimension, which is 0")
    return pair[0], pair[1]


def check_input(x: Any) -> None:
    """Raise TypeError for an input without a tensor, Unsupported for one that PopTorch traces."""
    tensors = flattened(x)
    if not tensors:
        raise TypeError(f"a Pipeline takes a tensor, or a tuple, list or dict of tensors, got {shown(x)}")
    if any(tensor.device.type == "ipu" for tensor in tensors):
        raise Unsupported(
            "a Pipeline cannot be run by PopTorch, which places the layers of a network on IPUs itself: give it "
            "nn.Sequential(*pipeline), and spikecore_ipu.pipeline(net, {name: ipu}) for several IPUs"
        )


def sizes_of(split: Split, x: Any, dim: int) -> Tuple[int, ...]:
    """The sizes of the parts of an input. Raises ValueError if it has no batch, or one that is not split so."""
    tensors = [tensor for tensor in flattened(x) if tensor.ndim]
    for tensor in tensors:
        if tensor.ndim <= dim:
            raise ValueError(
                f"the batch is dimension batch_dim={dim} of the input, and x has shape {tuple(tensor.shape)}; give "
                "[T, B, ...], or say which dimension is the batch: Pipeline(..., batch_dim=0)"
            )
    batches = sorted({tensor.shape[dim] for tensor in tensors})
    if len(batches) != 1:
        raise ValueError(f"the tensors of the input have batches of {batches} in dimension batch_dim={dim}")
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    return split.sizes(batches[0], f"dimension batch_dim={dim} of the input, shape {shapes}")


def cut(x: Any, dim: int, sizes: Sequence[int]) -> List[Any]:
    """The parts of an input; each gets all of what is no tensor, and of tensors without dimensions."""
    pieces = [tensor.split(list(sizes), dim) if tensor.ndim else [tensor] * len(sizes) for tensor in flattened(x)]
    return [_filled(x, [piece[part] for piece in pieces]) for part in range(len(sizes))]


def joined(outputs: Sequence[Any], dim: int, sizes: Sequence[int]) -> Any:
    """The outputs of all parts as one. Raises TypeError or ValueError where they cannot be put together."""
    first = outputs[0]
    leaves = [flattened(output) for output in outputs]
    if any(len(list(batches.leaves(output, object))) != len(leaves[0]) for output in outputs) or not leaves[0]:
        raise TypeError(
            f"the last stage gives {shown(first)}, of which not everything is a tensor; the outputs of parts can be "
            "put together only if they are tensors: use chunks=1, or return tensors"
        )
    for row, size in zip(leaves, sizes):
        for tensor in row:
            if tensor.ndim <= dim or tensor.shape[dim] != size:
                raise ValueError(
                    f"the last stage gives shape {tuple(tensor.shape)} for a part of {size}, in which dimension {dim} "
                    "is not the batch. Say which one is, of input and output, as in Pipeline(..., batch_dim=(1, 0)); "
                    "what joins the samples (a loss, a mean over the batch) is to stand outside of the stages, or use "
                    "chunks=1"
                )
    return _filled(first, [torch.cat(column, dim) for column in map(list, zip(*leaves))])


def _filled(like: Any, values: Sequence[Tensor]) -> Any:
    left = iter(values)
    return tree_map(lambda _: next(left), like)


# -- states


class PartStates:
    """The states of the neurons of all stages, part by part, while one call lasts."""

    def __init__(self, stages: Sequence[nn.Module], sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._stages: List[List[Stateful]] = [
            [module for module in stage.modules() if isinstance(module, Stateful) and module.continues]
            for stage in stages
        ]
        self._whole = {module: module.state for modules in self._stages for module in modules}
        # one part goes on from the state of the whole batch
        self._parts = {module: self._cut(module) for module in self._whole} if len(sizes) > 1 else {}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Leave every neuron with the state it had before, if an error ends the block."""
        try:
            yield
        except BaseException:
            _put(self._whole)
            raise

    def enter(self, stage: int, part: int) -> None:
        """Give the neurons of a stage the states of a part."""
        if self._parts:
            _put({module: self._parts[module][part] for module in self._stages[stage]})

    def leave(self, stage: int, part: int) -> None:
        """Take them, as the call of the stage left them."""
        if self._parts:
            for module in self._stages[stage]:
                self._parts[module][part] = module.state

    def join(self) -> None:
        """Make the states of the parts those of the whole batch."""
        _put({module: self._joined(module) for module in self._parts})

    def _cut(self, module: Stateful) -> List[Optional[State]]:
        state = self._whole[module]
        if state is None:
            return [None for _ in self._sizes]
        batch = sum(self._sizes)
        for name, value in state.items():
            if value.ndim == 0 or value.shape[0] != batch:
                raise ValueError(
                    f"{type(module).__name__} carries a state {name!r} of shape {tuple(value.shape)}, and the batch of "
                    f"this call is {batch}, which its first dimension must be; call sc.reset(net) to begin at rest"
                )
        pieces = {name: value.split(list(self._sizes)) for name, value in state.items()}
        return [{name: piece[part] for name, piece in pieces.items()} for part in range(len(self._sizes))]

    def _joined(self, module: Stateful) -> Optional[State]:
        states = [state for state in self._parts[module] if state is not None]
        if not states:
            return None
        if len(states) < len(self._sizes):
            raise RuntimeError(
                f"{type(module).__name__} carries its state, and was called for some parts of the batch and not for "
                "others; in a Pipeline of several parts every call of a stage must call it"
            )
        for state, size in zip(states, self._sizes):
            for name, value in state.items():
                if value.ndim == 0 or value.shape[0] != size:
                    raise RuntimeError(
                        f"{type(module).__name__} carries its state, and for a part of {size} its state {name!r} has "
                        f"shape {tuple(value.shape)}, whose first dimension is not the batch; the states of parts can "
                        "be joined along the first dimension only: use chunks=1; or say which dimension of the input "
                        "is the batch, Pipeline(..., batch_dim=0) for [B, ...]"
                    )
        return {name: torch.cat([state[name] for state in states]) for name in states[0]}


def _put(states: Dict[Stateful, Optional[State]]) -> None:
    for module, state in states.items():
        put(module, state)
