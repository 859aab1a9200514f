"""Stages and their devices, and the parts of a batch: its split, and inputs, outputs and states of parts and whole.

Outside a call the state of a neuron that continues is that of the whole batch, as in a network on one device:
``sc.reset``, ``sc.detach``, ``neuron.state`` and another split at the next call need nothing of their own. Within a
call it is cut into parts along its first dimension, the batch; each part goes on from its own, and at the end they are
joined. Gradients pass both.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore import batches
from spikecore.backend import Unsupported
from spikecore.batches import flattened, tree_map
from spikecore.core.state import State, Stateful, put
from spikecore.words import a_kind, shown

# -- stages and their devices


def checked_stages(stages: Any) -> List[Tuple[nn.Module, torch.device]]:
    """The stages with their devices. Raises TypeError or ValueError that names the stage and what is wrong with it."""
    if isinstance(stages, (str, nn.Module)) or not isinstance(stages, Iterable):
        raise TypeError(f"Pipeline: stages={shown(stages)} must be a list of pairs, [(stage, device), ...]")
    placed: List[Tuple[nn.Module, torch.device]] = []
    owners: Dict[nn.Module, int] = {}
    for position, pair in enumerate(stages):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise TypeError(
                f"Pipeline: stages[{position}]={shown(pair)} must be a pair (stage, device), as in (net, 'cuda:0')"
            )
        stage, device = pair
        if not isinstance(stage, nn.Module):
            kind = f"the class {stage.__name__}" if isinstance(stage, type) else a_kind(stage)
            raise TypeError(f"Pipeline: stage {position} is {kind}; give a module (an nn.Module)")
        placed.append((stage, _device(position, device)))
        for name, module in stage.named_modules():
            first = owners.setdefault(module, position)
            if first != position:
                where = name and f", {name!r} in stage {position},"
                raise ValueError(
                    f"Pipeline: stages {first} and {position} share {a_kind(module)}{where} which can be on "
                    "one device and have one state only; make one for each stage, or put both places in one stage"
                )
    if not placed:
        raise ValueError("Pipeline: stages=[] has no stage; give a list of pairs, [(stage, device), ...]")
    return placed


def _device(position: int, device: Any) -> torch.device:
    """A device that is here. ``"cuda"`` is the current one, whose number is kept."""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    here = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)} here"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(
            f"Pipeline: the device of stage {position}, {device!r}, must be a torch.device or its name, such as "
            f"'cuda:0' or 'cpu'; {here}"
        )
    if str(device).startswith("ipu"):
        raise ValueError(
            f"Pipeline: stage {position} asks for {str(device)!r}; PopTorch places the layers of a network on IPUs "
            "itself: spikecore_ipu.pipeline(net, {name: ipu})"
        )
    try:
        place = torch.device(device)
        if place.type != "cuda":
            return torch.empty(0, device=place).device
        # not by trying: a wrong number is an error of the driver
        index = torch.cuda.current_device() if place.index is None else place.index
        if index >= torch.cuda.device_count():
            raise RuntimeError(f"there is no GPU {index}")
        return torch.device("cuda", index)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch raises any of these for what is not there
        raise ValueError(f"Pipeline: stage {position} asks for {str(device)!r}, which is not there; {here}") from error


# -- sizes


class Split(NamedTuple):
    """A split as its user gave it; with neither, a batch is one part."""

    chunks: Optional[int] = None
    split_sizes: Union[int, Tuple[int, ...], None] = None

    def sizes(self, batch: int, where: str) -> Tuple[int, ...]:
        """The sizes of the parts of a batch. Raises ValueError for one that is not split so; ``where`` names the batch.

        ``where``: words such as "dimension batch_dim=1 of the input, shape (8, 64, 10)".
        """
        divisors = ", ".join(str(n) for n in range(1, batch + 1) if batch % n == 0)
        if isinstance(self.split_sizes, tuple):
            total = sum(self.split_sizes)
            if total != batch:
                raise ValueError(
                    f"split_sizes={list(self.split_sizes)} are {total} together, and the batch is {batch} ({where}); "
                    f"give sizes whose sum is {batch}, or one that divides it: {divisors}"
                )
            return self.split_sizes
        name, number, what = "chunks", self.chunks or 1, "numbers of equal parts"
        if self.split_sizes is not None:
            name, number, what = "split_sizes", self.split_sizes, "sizes"
        if batch % number:
            raise ValueError(
                f"{name}={number} does not divide the batch of {batch} ({where}); {what} that do: {divisors}; or give "
                f"split_sizes, a list of sizes whose sum is {batch}, or let the loader drop a short last batch "
                "(drop_last=True)"
            )
        return (batch // number,) * number if name == "chunks" else (number,) * (batch // number)

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
    if isinstance(split_sizes, Sequence) and not isinstance(split_sizes, str):
        if not split_sizes:
            raise ValueError("split_sizes=[] has no part; give the size of each part, or None for one part")
        return Split(None, tuple(_count(f"split_sizes[{k}]", n, "a size") for k, n in enumerate(split_sizes)))
    return Split(
        _count("chunks", chunks, "a number of equal parts"),
        _count("split_sizes", split_sizes, "the size of a part, or a list of sizes"),
    )


def _count(name: str, value: Any, what: str) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name}={value!r} must be {what}, a whole number, or None")
    if value is not None and value < 1:
        raise ValueError(f"{name}={value} must be at least 1, or None")
    return value


# -- inputs and outputs


def checked_dims(batch_dim: Any) -> Tuple[int, int]:
    """``batch_dim`` of input and output. Raises ValueError."""
    pair = batch_dim if isinstance(batch_dim, (tuple, list)) else (batch_dim, batch_dim)
    if len(pair) != 2 or any(isinstance(dim, bool) or not isinstance(dim, int) or dim < 0 for dim in pair):
        raise ValueError(
            f"batch_dim={batch_dim!r} must be the number of a dimension, from 0 on, as in 1 for [T, B, ...], or a "
            "pair, of input and output"
        )
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
    return [filled(x, [piece[part] for piece in pieces]) for part in range(len(sizes))]


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
    return filled(first, [torch.cat(column, dim) for column in map(list, zip(*leaves))])


def filled(like: Any, values: Sequence[Tensor]) -> Any:
    """The structure of ``like`` with other tensors."""
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
            for module, state in self._whole.items():
                put(module, state)
            raise

    @contextmanager
    def of(self, stage: int, part: int) -> Iterator[None]:
        """Have the neurons of a stage go on from the states of a part in this block, and keep those they end with."""
        modules = self._stages[stage] if self._parts else []
        for module in modules:
            put(module, self._parts[module][part])
        yield
        for module in modules:
            self._parts[module][part] = module.state

    def join(self) -> None:
        """Make the states of the parts those of the whole batch."""
        for module, parts in self._parts.items():
            states = [state for state in parts if state is not None]
            put(module, {name: torch.cat([state[name] for state in states]) for name in states[0]} if states else None)

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
