"""Noted calls: a call that passed every check goes straight to its plan when one of its signature comes again.

Neurons, ``NormNeuron`` and the feedback of ``Recurrent`` note their calls in one table of the dispatch, by signatures
that differ. Numbers are arguments of a kernel, and no part of a signature. Parameters that are tensors are compared
with those of the noted call. ``extra`` are tensors that a call gives the program beside the neuron's parameters: inputs
that are the same at every step, normalisations, a matrix of feedback.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from spikecore._base.running import BoundCall, bound, one_step
from spikecore.backend import ParamValue, Runner, Tensors

__all__ = ["NotedCall"]


class PlacedTensor(NamedTuple):
    """A parameter that is a tensor, as it was, and how it was viewed over the neurons of one time step."""

    position: int
    name: str
    #: The table of its neuron that has it.
    table: str
    kind: Type[Any]
    shape: torch.Size
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learnt: bool
    view: Tuple[int, ...]


class NotedCall:
    """A call that passed every check, for later ones of its signature.

    named: the neuron's parameters. placed: the same over one time step. at: the position of ``extra`` among them.
    single: inputs and outputs are one time step, ``[*N]``.
    """

    def __init__(
        self,
        runner: Runner,
        named: Sequence[Tuple[str, ParamValue]],
        placed: Sequence[ParamValue],
        neuron: Any,
        at: int = 0,
        single: bool = False,
    ) -> None:
        self.runner, self.at, self.single = runner, at, single
        #: True if the input is the first parameter of the program, because it is the same at every step.
        self.repeats = False
        #: Bound call; None if the runner itself takes the call.
        self.call: Optional[BoundCall] = None
        self.tensors = tuple(
            PlacedTensor(
                position,
                name,
                "_parameters" if name in neuron._parameters else "_buffers",
                type(value),
                value.shape,
                value.stride(),
                value.dtype,
                value.device,
                value.requires_grad,
                tuple(view.shape),
            )
            for position, ((name, value), view) in enumerate(zip(named, placed))
            if isinstance(value, Tensor) and isinstance(view, Tensor)
        )
        numbers = [(name, value) for name, value in named if not isinstance(value, Tensor)]
        #: Reader of the neuron's numbers from its attributes, and the numbers of the surrogate.
        self._read = _reader([name for name, _ in numbers if name in neuron.params])
        self._of_surrogate = tuple([value for name, value in numbers if name not in neuron.params])

    def bind(
        self, inputs: Tensors, state: Optional[Tensors], values: Sequence[ParamValue], placed: Sequence[ParamValue]
    ) -> bool:
        """Bind the call of these tensors to its plan; False where the runner itself takes it.

        values, placed: all parameters with ``extra``, as :meth:`results` has them, and over one time step.
        """
        views = [tuple(value.shape) if isinstance(value, Tensor) else None for value in placed]
        self.call = bound(self.runner, inputs, state, tuple(values), views, self.single)
        return self.call is not None

    def results(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        values: Tuple[ParamValue, ...],
        extra: Tensors = (),
        record: Tuple[str, ...] = (),
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Outputs, states after the last step, and recorded states, for the result of :meth:`values`."""
        values = values if self.call is not None else self.placed(values)
        if extra:
            values = (*values[: self.at], *extra, *values[self.at :])
        if self.call is not None:
            return (*self.call(inputs, state, values), ())
        if self.single:
            return (*one_step(self.runner, inputs, state, values), ())
        return self.runner(inputs, state, values, record)

    def values(self, neuron: Any) -> Optional[Tuple[ParamValue, ...]]:
        """The parameters as the neuron has them; None if there is another tensor than there was."""
        attributes = neuron.__dict__
        try:
            numbers = (*self._read(attributes), *self._of_surrogate)
        except KeyError:  # a number became a parameter or a buffer
            return None
        if not self.tensors:
            return numbers
        values = list(numbers)
        for position, name, table, kind, shape, strides, dtype, device, learnt, _ in self.tensors:
            value: Any = attributes[table].get(name)
            if type(value) is not kind or value.shape != shape or value.dtype is not dtype:
                return None
            if value.stride() != strides or value.device != device or value.requires_grad is not learnt:
                return None
            values.insert(position, value)  # in ascending order, so each has its place
        return tuple(values)

    def placed(self, values: Tuple[ParamValue, ...]) -> Tuple[ParamValue, ...]:
        """The result of :meth:`values`, viewed as the runner takes it."""
        if not self.tensors:
            return values
        views: List[Any] = list(values)
        for tensor in self.tensors:
            if tensor.view != tensor.shape:
                views[tensor.position] = views[tensor.position].view(tensor.view)
        return tuple(views)


def _reader(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Tuple[Any, ...]]:
    """A function that gives the values of these keys of a mapping."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda mapping: tuple([mapping[name] for name in names])
