"""One input at every time step: what ``Pipeline.constant_forward`` checks, and what it does with states and outputs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, List

import torch
from torch import nn

from spikecore._base.batches import flattened, tree_map
from spikecore._shell.state import Stateful, carry, carry_no_more, keep, slot_of
from spikecore.encode import Encoder
from spikecore.functional import check_places, stateful_modules
from spikecore.neuron import Neuron
from spikecore.parallel import _dims as dims


def check(net: nn.Module, x: Any, T: Any, reduce: Any) -> bool:
    """Whether the neurons are multi-step ones. Raises TypeError or ValueError for what cannot be repeated."""
    if isinstance(T, bool) or not isinstance(T, int):
        raise TypeError(f"constant_forward: T={T!r} must be a number of time steps")
    if T < 1:
        raise ValueError(f"constant_forward: T={T} must be at least 1")
    if not isinstance(reduce, bool):
        raise TypeError(f"constant_forward: reduce={reduce!r} must be True (sum over time) or False (stack)")
    dims.tensors(x)
    for name, module in net.named_modules():
        if isinstance(module, Encoder):
            raise ValueError(
                f"constant_forward gives x at every step, and {name!r} is an encoder, {type(module).__name__}; leave "
                "it out, or call the pipeline itself"
            )
        if isinstance(module, Neuron) and module.makes_time:
            raise ValueError(
                f"constant_forward gives x at every step, and {name!r} is {type(module).__name__} with repeat="
                f"{module.repeat}; set repeat=None, or call the pipeline itself"
            )
    check_places(net, carries=True)
    modes = {module.step: module for module in dims.outermost(net)}
    if len(modes) > 1:
        raise ValueError(
            f"constant_forward: {type(modes['single']).__name__} has step='single' and "
            f"{type(modes['multi']).__name__} has step='multi'; give all neurons of the stages one mode"
        )
    return "multi" in modes


@contextmanager
def alone(net: nn.Module) -> Iterator[None]:
    """Raise RuntimeError if another thread is in this block with the same network."""
    # an atomic operation of dict, past __setattr__ of modules
    if net.__dict__.setdefault("_streaming", threading.get_ident()) != threading.get_ident():
        raise RuntimeError(
            "constant_forward of this Pipeline runs in another thread, and its neurons hold their state from step to "
            "step; give each thread a copy, copy.deepcopy(pipeline), or call them one after the other"
        )
    try:
        yield
    finally:
        net.__dict__.pop("_streaming", None)


@contextmanager
def from_rest(net: nn.Module, several: bool) -> Iterator[None]:
    """Begin at rest and leave no state behind, unless ``carry_state`` is active; multi-step neurons go on within."""
    modules = stateful_modules(net)
    carried = modules if several else []
    _to_rest(modules)
    for module in carried:
        carry(module)
    try:
        yield
    finally:
        for module in carried:
            carry_no_more(module)
        _to_rest(modules)


def _to_rest(modules: List[Stateful]) -> None:
    for module in modules:
        # of the slot: in a checkpointed region that runs again, carry_state is active if it was when the region began
        if not slot_of(module)["_carrying"]:
            keep(module, None)


def with_time(x: Any) -> Any:
    """One step as a sequence of one."""
    return tree_map(lambda value: value.unsqueeze(0), x)


def summed(made: Iterable[Any], several: bool) -> Any:
    """The sum of the outputs of all steps, from the first to the last."""
    total: Any = None
    for output in made:
        counts = tree_map(_count, output)
        total = counts if total is None else _added(total, counts)
    return tree_map(lambda value: value.squeeze(0), total) if several else total


def stacked(made: Iterable[Any], several: bool) -> Any:
    """The outputs of all steps, with time first."""
    outputs = list(made)
    rows: List[List[torch.Tensor]] = [flattened(output) for output in outputs]
    left = iter([(torch.cat if several else torch.stack)(list(column)) for column in zip(*rows)])
    return tree_map(lambda _: next(left), outputs[0])


def _count(value: torch.Tensor) -> torch.Tensor:
    """What torch.sum adds: of whole numbers and of truth values, 64-bit integers."""
    return value if value.is_floating_point() or value.is_complex() else value.long()


def _added(total: Any, output: Any) -> Any:
    left = iter(flattened(output))
    return tree_map(lambda value: value + next(left), total)
