"""Runners of a backend, and the ways to call one: for all steps, for one step, bound, and as an op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:
    from torch import Tensor

ParamValue = Union[float, "Tensor"]
Tensors = Tuple["Tensor", ...]
#: ``runner(inputs, state, params, record) -> (outputs, state, trace)``, see :meth:`spikecore.backend.Backend.compile`.
Runner = Callable[
    [Tensors, Optional[Tensors], Tuple[ParamValue, ...], Tuple[str, ...]],
    Tuple[Tensors, Optional[Tensors], Tensors],
]


def one_step(
    runner: Runner, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
) -> Tuple[Tensors, Optional[Tensors]]:
    """One time step of a runner: ``(outputs, state)`` for inputs ``[*N]``, without a dimension of time.

    A runner may have a method ``one_step(inputs, state, params)`` that is quicker than a call with one time step and
    gives the same bits.
    """
    step = getattr(runner, "one_step", None)
    if step is None:
        return by_call(runner, inputs, state, params)
    results: Tuple[Tensors, Optional[Tensors]] = step(inputs, state, params)
    return results


#: ``call(inputs, state, params) -> (outputs, final states)`` for calls of one signature: see :func:`bound`.
BoundCall = Callable[[Tensors, Optional[Tensors], Sequence[ParamValue]], Tuple[Tensors, Optional[Tensors]]]


def bound(
    runner: Runner,
    inputs: Tensors,
    state: Optional[Tensors],
    params: Tuple[ParamValue, ...],
    views: Sequence[Optional[Tuple[int, ...]]],
    single: bool,
) -> Optional[BoundCall]:
    """Bound call for the signature of this call: shapes, strides, dtypes and devices of its tensors, and which of them
    require gradients. None if the runner itself takes such calls.

    ``params`` are as the neuron holds them; ``views`` has for each the shape that it is viewed as over the neurons of
    one time step, None for a number. ``single``: inputs and outputs are one step, ``[*N]``.

    Only runners of :mod:`spikecore.kernels` and of the torch backend have the method ``bind``, which is no part of the
    contract.
    """
    make = getattr(runner, "bind", None)
    call: Optional[BoundCall] = None if make is None else make(inputs, state, params, views, single)
    return call


def in_graph(runner: Runner, x: Tensor, numbers: Sequence[float]) -> Optional[Tensor]:
    """The output of a call that begins at rest, with one input and parameters that are numbers, as one op in the graph
    of ``torch.compile``; None where the runner has no such op.

    Only runners of :mod:`spikecore.kernels` have the method ``in_graph(x, numbers)``, which is no part of the contract.
    """
    make = getattr(runner, "in_graph", None)
    output: Optional[Tensor] = None if make is None else make(x, numbers)
    return output


def packed(runner: Runner, numbers: Tuple[int, ...]) -> Runner:
    """The same runner for calls whose inputs of these numbers are one tensor: side by side along the last dimension, in
    this order. It is given first, and behind it the others.

    A runner of :mod:`spikecore.kernels` may have a method ``packed(numbers)`` that makes it where these are the inputs
    of one feedback and the backend takes them side by side, and else gives None. It is no part of the contract.
    """
    make = getattr(runner, "packed", None)
    made: Optional[Runner] = None if make is None else make(numbers)
    if made is not None:
        return made

    def apart(
        inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        return runner(unpacked(inputs, numbers), state, params, record)

    return apart


def unpacked(inputs: Sequence[Tensor], numbers: Sequence[int]) -> Tensors:
    """Inputs, each a tensor of its own, of which the first tensor has these side by side."""
    x, *others = inputs
    for number, part in sorted(zip(numbers, x.chunk(len(numbers), -1))):
        others.insert(number, part)
    return tuple(others)


def by_call(
    runner: Runner, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
) -> Tuple[Tensors, Optional[Tensors]]:
    """One time step by a call of the runner."""
    outputs, final, _ = runner(tuple([x.unsqueeze(0) for x in inputs]), state, params, ())
    return tuple([out.squeeze(0) for out in outputs]), final
