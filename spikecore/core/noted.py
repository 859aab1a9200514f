"""Noted calls: a call that passed every check goes straight to its plan when one of its signature comes again.

Neurons, ``NormNeuron`` and the feedback of ``Recurrent`` note their calls in one table of the dispatch, by signatures
that differ. Numbers are arguments of a kernel, and no part of a signature. Parameters that are tensors are compared
with those of the noted call. ``extra`` are tensors that a call gives the program beside the neuron's parameters: inputs
that are the same at every step, normalisations, a matrix of feedback.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, Collection, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.running import BoundCall, bound, one_step
from spikecore.backend import ParamValue, Runner, Tensors
from spikecore.context import PLAIN

__all__ = ["NotedCall"]


class PlacedTensor(NamedTuple):
    """A parameter that is a tensor: what must stay of it, and its view over the neurons of one time step."""

    position: int
    name: str
    #: The table of its neuron that has it.
    table: str
    layout: Tuple[Any, ...]
    #: The shape of the view; None where that is the tensor's own.
    view: Optional[Tuple[int, ...]]


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
        #: For each input of the runner which one it is of the call, its shape with all dimensions and that of the
        #: runner's; none where inputs stay as they are.
        self._shapes: Sequence[Tuple[int, Sequence[int], Sequence[int]]] = ()
        #: Those ``[T]`` beside inputs of more numbers, which a bound call takes as they are.
        self._alone: Sequence[int] = ()
        #: Inputs that are parameters of the program, and the shapes of a step of these.
        self._constant: Sequence[int] = ()
        self._of_step: Sequence[Tuple[int, ...]] = ()
        #: Bound call; None if the runner itself takes the call.
        self.call: Optional[BoundCall] = None
        self.tensors = tuple(
            PlacedTensor(
                position,
                name,
                "_parameters" if name in neuron._parameters else "_buffers",
                layout_of(value),
                None if view.shape == value.shape else tuple(view.shape),
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

    def note_shapes(
        self, given: Sequence[Tensor], inputs: Sequence[Tensor], steps: Sequence[Tensor], front: Sequence[str]
    ) -> None:
        """Note the shapes that inputs have for the runner: one alone, ``[T]``, has as many dimensions as the others.
        ``given``: inputs as a call has them, without time where it is repeated. ``front``: for each input the parameter
        that it is, "" for none.
        """
        self._constant = [k for k, name in enumerate(front) if name]
        left = [k for k in range(len(inputs)) if k not in self._constant] or [0]
        whole = [(*x.shape, *[1] * (steps[0].ndim - x.ndim)) for x in inputs]
        self._of_step = [whole[k][1:] for k in self._constant]
        if self._constant or any(given[k].shape != y.shape for k, y in zip(left, steps)):
            self._shapes = [(k, whole[k], y.shape) for k, y in zip(left, steps)]
        most = max([y.numel() for y in steps])
        self._alone = [k for k in left if given[k].shape == whole[k][:1] and given[k].numel() < most]

    def arranged(self, inputs: Sequence[Tensor], bound: bool = False) -> Tuple[Tensors, Tensors]:
        """Inputs of the noted shapes, and those that are parameters. ``bound``: for a bound call, which takes an input
        ``[T]`` and parameters as they are.
        """
        if not self._shapes:
            return tuple(inputs), ()
        bound = bound or self.call is not None
        steps = []
        for k, own, shape in self._shapes:
            x = inputs[k]
            # [T] is taken as it is where the runner's shape is [T, 1, ...]
            as_it_is = own == shape and (x.shape == shape or (bound and k in self._alone))
            x = x if as_it_is else x.view(own).expand(shape)
            steps.append(x.detach() if k in self._constant else x)
        if bound:
            return tuple(steps), tuple([inputs[k] for k in self._constant])
        return tuple(steps), tuple([inputs[k].view(shape) for k, shape in zip(self._constant, self._of_step)])

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
        for position, name, table, layout, _ in self.tensors:
            value: Any = attributes[table].get(name)
            if value is None or layout_of(value) != layout:
                return None
            values.insert(position, value)  # in ascending order, so each has its place
        return tuple(values)

    def placed(self, values: Tuple[ParamValue, ...]) -> Tuple[ParamValue, ...]:
        """The result of :meth:`values`, viewed as the runner takes it."""
        views: List[Any] = list(values)
        for position, *_, view in self.tensors:
            views[position] = views[position] if view is None else views[position].view(view)
        return tuple(views)


def signature(
    tensors: Iterable[Optional[Tensor]],
    names: Collection[str],
    state: Optional[Mapping[str, Tensor]],
    how: Sequence[Any],
) -> Optional[Tuple[Any, ...]]:
    """The key of an eager call, beside the neuron's parameters; None for one that is always checked.

    tensors: those of the call; None where there is none. names: those of ``state``, in order. how: what else decides
    the call.
    """
    key: List[Any] = [torch.is_grad_enabled(), state is None, *how]
    if state is not None:
        if type(state) is not dict or [*state] != [*names]:
            return None
        tensors = (*tensors, *state.values())
    for value in tensors:
        if value is None:
            key.append(None)
        elif type(value) not in PLAIN or value.layout is not torch.strided or value.is_nested:
            return None
        else:
            key.append((value.shape, value.stride(), value.dtype, value.device, value.requires_grad))
    return tuple(key)


def layout_of(tensor: Tensor) -> Tuple[Any, ...]:
    """Class, shape, strides, dtype, device and ``requires_grad`` of a tensor."""
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _reader(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Tuple[Any, ...]]:
    """A function that gives the values of these keys of a mapping."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda mapping: tuple([mapping[name] for name in names])
