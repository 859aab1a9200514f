"""A function that is computed again in backward, by ``torch.utils.checkpoint``, and what it keeps until then.

Torch restores its random numbers and autocast. :class:`_Again`, its ``context_fn``, restores the rest: the states that
neurons carried, the modes of layers and the states of generators; running statistics move only in the first run. A
normalisation within a neuron has the mean and variance of the first run, too (:func:`spikecore.context.once`). An
argument that is said to hold spikes or counts is kept as bits, as :class:`spikecore.layers.PackedLinear` keeps it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils import checkpoint as torch_checkpoint

from spikecore import context
from spikecore._base.bits import Whole, memory_order
from spikecore.context import PLAIN, is_transforming, require_compiler
from spikecore.core.checks import check_network
from spikecore.core.state import State, Stateful, carried, put_back
from spikecore.dtypes import NAMES

Contexts = Tuple[ContextManager[Any], ContextManager[Any]]


def computed_again(
    run: Callable[..., Any],
    again: Callable[..., Any],
    modules: Sequence[nn.Module],
    args: Sequence[Any],
    packed: Sequence[Optional[Packed]],
    preserve_rng_state: bool,
) -> Any:
    """Result of ``run(*args)``, of which nothing but arguments is kept for backward.

    again: what runs in backward, with results or without. modules: what ``run`` calls. packed: of each argument what is
    kept in its place (:func:`pack`); None, as for those that it has none for: itself.
    """
    forms = [packed[number] if number < len(packed) else None for number in range(len(args))]
    first: List[Sequence[Any]] = [args]
    kept: List[Any] = []
    for value, form in zip(args, forms):
        kept += (value,) if form is None else (form.data, form.right)

    def run_again(*kept: Any) -> Any:
        if first:
            return run(*first.pop())
        rest = iter(kept)
        return again(*[next(rest) if form is None else _unpacked(form, next(rest), next(rest)) for form in about])

    about = [None if form is None else form._replace(data=None, right=None) for form in forms]
    return torch_checkpoint.checkpoint(
        run_again,
        *kept,
        use_reentrant=False,
        preserve_rng_state=preserve_rng_state,
        context_fn=lambda: _contexts(modules),
    )


def checkpoint_contexts(net: nn.Module) -> Callable[[], Contexts]:
    """Value of ``context_fn`` of ``torch.utils.checkpoint`` for a network that carries its state::

        y = torch.utils.checkpoint.checkpoint(
            net, x, use_reentrant=False, context_fn=sc.parallel.checkpoint_contexts(net)
        )

    Without it neurons that carry their state go on, when the region is computed again, from the state of then: torch
    does not say so, and gradients would be wrong. Neurons at rest need nothing. Raises Unsupported before torch 2.6.
    """
    check_network("checkpoint_contexts", net)
    require_compiler("sc.checkpoint")
    return lambda: _contexts([net])


def _contexts(modules: Sequence[nn.Module]) -> Contexts:
    results: context.Results = []
    return context.running(context.FIRST, results), _Again(modules, results)


# -- arguments


class Packed(NamedTuple):
    """A tensor as bits: its numbers, whether they are right, and what they are the numbers of."""

    data: Any
    right: Any
    shape: torch.Size
    stride: Tuple[int, ...]
    order: List[int]
    whole: Whole
    dtype: torch.dtype
    requires_grad: bool


def pack(x: Any, whole: Optional[Whole]) -> Optional[Packed]:
    """A value as bits; None for one that is kept as it is.

    Raises ValueError on a CPU for numbers that are not of the range.
    """
    if whole is None or type(x) not in PLAIN or x.dtype not in NAMES or not x.numel() or is_transforming():
        return None
    order = memory_order(x)
    if not x.permute(order).is_contiguous():
        return None  # numbers that overlap, or with gaps: another layout would give other bits
    data, right = torch.ops.spikecore.pack_spikes(x.detach(), order, *whole)
    return Packed(data, right, x.shape, x.stride(), order, whole, x.dtype, x.requires_grad)


def _unpacked(form: Packed, data: Tensor, right: Tensor) -> Tensor:
    with torch.no_grad():
        x: Tensor = torch.ops.spikecore.unpack_spikes(data, right, form.shape, form.order, *form.whole, form.dtype)
        x = x.as_strided(form.shape, form.stride)
    return x.requires_grad_(form.requires_grad)


# -- what surrounds a run


class _Again:
    """Context of each run of modules in backward, which begins as the first run, the next one, begins now.

    It is entered more than once under ``retain_graph=True``.
    """

    def __init__(self, modules: Sequence[nn.Module], results: context.Results) -> None:
        self._results = results
        self._parts = [*dict.fromkeys(part for module in modules for part in module.modules())]
        self._norms = [part for part in self._parts if part.training and isinstance(part, _NormBase)]
        self._neurons = [part for part in self._parts if isinstance(part, Stateful)]
        self._generators = [
            # isinstance takes ten times as long: its class has one of Python
            value
            for part in self._parts
            for value in vars(part).values()
            if torch.Generator in type(value).__mro__
        ]
        #: Parametrisations that move their buffers in a call, as spectral normalisation does, and what these were.
        self._moving = [
            (inner, _clones(inner._buffers))
            for part in self._parts
            if isinstance(part, ParametrizationList)
            for inner in part
            if inner.training and inner._buffers
        ]
        self._beginning = self._current()

    def __enter__(self) -> None:
        self._block = self._restored()
        self._block.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._block.__exit__(*error)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        moving = {module for module, value in self._results if value is None}
        still = {module for module, _ in self._results} - moving
        others = [(norm, norm._buffers) for norm in self._norms if norm not in still] + self._moving
        current, there = self._current(), [dict(module._buffers) for module, _ in others]
        for module, buffers in others:
            module._buffers.update(_clones(buffers))
        modes, drawn, carrying = self._beginning
        self._begin((modes, drawn, [(carries, _as_leaves(state)) for carries, state in carrying]))
        try:
            with context.running(context.AGAIN, self._results):
                yield
        finally:
            self._begin(current)
            for (module, _), buffers in zip(others, there):
                module._buffers.update(buffers)

    def _current(self) -> Tuple[List[Any], ...]:
        """Modes of the parts, states of the generators, and what the neurons carry, with their states."""
        return (
            [part.training for part in self._parts],
            [generator.get_state() for generator in self._generators],
            [(carried(neuron), neuron.state) for neuron in self._neurons],
        )

    def _begin(self, beginning: Sequence[List[Any]]) -> None:
        modes, drawn, carrying = beginning
        for part, mode in zip(self._parts, modes):
            if part.training != mode:
                part.training = mode
        for generator, state in zip(self._generators, drawn):
            generator.set_state(state)
        for neuron, (carries, values) in zip(self._neurons, carrying):
            put_back(neuron, carries, values)


def _clones(buffers: Dict[str, Optional[Tensor]]) -> Dict[str, Optional[Tensor]]:
    return {name: value if value is None else value.clone() for name, value in buffers.items()}


def _as_leaves(state: Optional[State]) -> Optional[State]:
    """The values of a state without their graph, which ask for gradients where they did."""
    if state is None:
        return None
    return {name: value.detach().requires_grad_(value.requires_grad) for name, value in state.items()}
