"""The way of a call of a neuron: from its tensors to a runner of its :class:`~spikecore._shell.binding.Dispatch`.

- :func:`call` asks once what follows the call, and passes the answer on. A call in eager mode whose signature is that
  of one that passed every check, and whose parameters are as those were, goes straight to its plan.
- Any other call goes through :func:`execute`: it is checked, its parameters are placed, its runner is found or made,
  and the call is noted for later ones.
- :func:`arguments` says what the runner of a call must do: which parameters it learns, which gradients it takes. It
  serves neurons, batch normalisation in front of one (``NormNeuron``), and feedback (``Recurrent``).
"""

from __future__ import annotations

import functools
import operator
from operator import itemgetter
from typing import Any, Callable, Collection, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.caches import CALLS
from spikecore._base.running import BoundCall, bound, in_graph
from spikecore._shell import checks, modules, observe, parameters
from spikecore._shell.binding import COMPILED, EAGER, TRANSFORMED, SpecKey, uncompiled, values_of, world
from spikecore._shell.observe import Results
from spikecore.backend import MAX_STATIC_STEPS, BackendError, ParamValue, Runner, Tensors, one_step
from spikecore.dtypes import compute_dtype
from spikecore.lang._plain import with_traced_sizes


def call(
    neuron: Any,
    inputs: Sequence[Tensor],
    state: Optional[Mapping[str, Tensor]],
    record: Tuple[str, ...],
    final: bool,
    single: bool = False,
    watched: bool = True,
) -> Results:
    """Outputs, state after the last step if ``final``, and recorded states of a call of ``neuron``.

    ``single``: inputs and outputs are those of one time step, ``[*N]``. ``watched``: whether watchers are told.
    """
    if neuron._watchers and watched:
        compute = functools.partial(call, neuron, watched=False)
        return observe.recorded(neuron, compute, inputs, state, record, final, single)  # type: ignore[no-any-return]
    now, repeat = world(), None if single else neuron._repeat()
    one = single or repeat is not None  # whether an input is one time step
    x: Any = inputs[0] if len(inputs) == 1 else None
    if now is COMPILED and isinstance(x, Tensor) and state is None and not (one or final or record):
        output = _in_graph(neuron, x)
        if output is not None:
            return (output,), None, ()
    if now is not EAGER or record or type(x) is not Tensor or x.layout is not torch.strided or x.is_nested:
        return execute(neuron, inputs, state, record, final, single, now)
    start = None if state is None else _state_as_before(neuron.states, state, x, one)
    if not (one or x.ndim) or (start is None and state is not None):
        return execute(neuron, inputs, state, record, final, single, now)
    quick, signature = neuron._dispatch.quick, _signature(x, start, final, 0 if single else repeat)
    earlier = quick.get(signature)
    values = None if earlier is None else values_as_before(earlier, neuron, x, one)
    if earlier is None or values is None:
        return execute(neuron, inputs, state, record, final, single, now)
    constant: Tensors = ()
    if repeat is not None:
        x, constant = _over_time(x, repeat, earlier.constant)
    if earlier.call is not None:
        try:
            outputs, end = earlier.call((x,), start, (*constant, *values) if constant else values)
        except BackendError:  # the runner raises it again, or falls back
            quick.pop(signature, None)
            return execute(neuron, inputs, state, record, final, single, now)
    elif single:
        outputs, end = one_step(earlier.runner, (x,), start, placed(earlier, values))
    else:
        outputs, end = earlier.runner((x,), start, (*constant, *placed(earlier, values)), ())[:2]
    return outputs, dict(zip(neuron.states, end)) if end is not None else None, ()


@with_traced_sizes
def execute(
    neuron: Any,
    inputs: Sequence[Tensor],
    state: Optional[Mapping[str, Tensor]],
    record: Tuple[str, ...],
    final: bool,
    single: bool,
    now: str,
) -> Results:
    """A call that passes every check. ``now`` is what :func:`~spikecore._shell.binding.world` says."""
    given, owner = inputs, type(neuron).__name__
    repeat = None if single else neuron._repeat()
    if single or repeat is not None:
        inputs = [x.unsqueeze(0) if isinstance(x, Tensor) else x for x in inputs]
    inputs = checks.inputs(owner, neuron.inputs, inputs)
    device = inputs[0].device.type
    stamp, dispatch = neuron._stamp(), neuron._dispatch
    quick = dispatch.quick  # a concurrent change replaces it, and the new one must not get this call
    if now is COMPILED and dispatch.leaves_graph(device, stamp):
        return _call_eagerly(neuron, given, state, record, final, single, False)  # type: ignore[no-any-return]  # as call
    # the inputs that the program has as parameters, and their names
    constant: Tensors = ()
    names: Tuple[str, ...] = ()
    if repeat is not None:
        learnt = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        names = dispatch.repeated_names(device, learnt, stamp, now is TRANSFORMED)
        steps = [_over_time(x.squeeze(0), repeat, bool(name)) for x, name in zip(inputs, names or [""] * len(inputs))]
        inputs = tuple([x for x, _ in steps])
        constant = tuple([value for _, values in steps for value in values])
    x = inputs[0]
    start = checks.state(owner, neuron.states, state, x, carried=state is not None and state is neuron._state)
    asked = arguments(neuron, inputs, start, final, now, front=[*zip(filter(None, names), constant)])
    kind = dispatch.find(
        device, *asked.kind, bool(record), stamp, transformed=now is TRANSFORMED, repeats=bool(constant)
    )
    runner, values = dispatch.runners[kind], asked.values
    trace: Tensors = ()
    taken = tuple([x.squeeze(0) for x in inputs]) if single else inputs
    earlier, results = None, None
    if now is EAGER and len(inputs) == 1 and not record:
        earlier = noted(runner, asked, x, neuron, bool(constant))
        earlier, results = _first_call(earlier, taken, start, constant, asked, single)
    if results is not None:
        outputs, end = results
    elif single and not (now is COMPILED or record):
        outputs, end = one_step(runner, taken, start, values)
    else:
        outputs, end, trace = runner(inputs, start, (*constant, *values), record)
        outputs = tuple([out.squeeze(0) for out in outputs]) if single else outputs
    if earlier is not None:
        if len(quick) >= CALLS:
            quick.clear()
        quick[_signature(given[0], start, final, 0 if single else repeat)] = earlier
    return outputs, dict(zip(neuron.states, end)) if end is not None else None, trace


#: A break in a compiled graph, of a call whose watchers are told already.
_call_eagerly = uncompiled(call)


def _over_time(x: Tensor, repeat: int, constant: bool) -> Tuple[Tensor, Tensors]:
    """One step ``[*N]`` as the input ``[repeat, *N]``; ``constant``: and as the parameter that has its gradient."""
    if not constant:
        return x.expand(repeat, *x.shape), ()
    return x.detach().expand(repeat, *x.shape), (x.to(compute_dtype(x.dtype)),)


class Arguments(NamedTuple):
    """The parameters of a call, and what its runner must do."""

    #: The parameters of the program by name, and as they lie over one of the time steps.
    named: Sequence[Tuple[str, Any]]
    values: Tuple[ParamValue, ...]
    #: The fields of the Spec, and whether gradients, and gradients of the state, are asked for.
    kind: Tuple[SpecKey, bool, bool]


def arguments(
    neuron: Any,
    inputs: Tensors,
    start: Optional[Tensors],
    final: bool,
    now: str,
    front: Sequence[Tuple[str, Any]] = (),
    behind: Sequence[Tuple[str, Any]] = (),
) -> Arguments:
    """The parameters of a call with these inputs ``[T, *N]``, and what it asks of a runner.

    ``front``: inputs that are parameters of the program. ``behind``: other tensors that may be learnt.
    """
    x, owner, named = inputs[0], type(neuron).__name__, values_of(neuron)
    checks.same_device(owner, x.device, named)
    if now is not COMPILED:
        modules.check_gathered(owner, x, named)
    values, kinds = parameters.place(owner, named, x.shape[1:], neuron.channel_dim)
    grad = torch.is_grad_enabled()
    gradients = grad and any(value.requires_grad for value in inputs)
    learnable = [*front, *named, *behind] if grad else []
    learn = tuple([name for name, value in learnable if isinstance(value, Tensor) and value.requires_grad])
    # a gradient may come in through a state that is handed out
    state_gradients = grad and (
        (start is not None and any(value.requires_grad for value in start)) or (final and (gradients or bool(learn)))
    )
    # index: torch.compile, which may take T for a variable, is to fix it here
    steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
    spec = (x.dtype, steps, (*["full"] * len(front), *kinds), learn, final)
    return Arguments(named, values, (spec, gradients, state_gradients))


def _in_graph(neuron: Any, x: Tensor) -> Optional[Tensor]:
    """The output of a call at rest as one op of the graph that torch.compile makes; None for another call.

    Whatever is looked at here or in ``execute``, torch guards in every call of the graph: a neuron with 260 guards took
    12 us for them. What depends on the stamp alone is left to ``graph_kind``, which torch does not look into. The
    runner is looked at: neurons of one stamp, and one neuron at two times, may have different backends.
    """
    if not x.ndim:  # refused where every call is checked
        return None
    values: Any = [value for _, value in values_of(neuron)]
    for value in values:
        if not isinstance(value, float):
            return None
    steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
    gradients = torch.is_grad_enabled() and x.requires_grad
    dispatch = neuron._dispatch
    kind = dispatch.graph_kind(x.dtype, x.device.type, x.layout, steps, gradients, dispatch.stamp)
    return None if kind is None else in_graph(dispatch.runners[kind], x, values)


# -- calls that passed every check


class PlacedTensor(NamedTuple):
    """A parameter that is a tensor, as it was, and how it was viewed over the neurons of one time step."""

    position: int
    name: str
    #: The table of its neuron that has it.
    table: str
    shape: torch.Size
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learnt: bool
    view: Tuple[int, ...]


class Earlier(NamedTuple):
    """A call that passed every check."""

    runner: Runner
    #: What reads the settings and the parameters that are numbers from the attributes of a neuron, and what it read.
    read: Callable[[Mapping[str, Any]], Tuple[Any, ...]]
    seen: Tuple[Any, ...]
    #: The parameters: numbers, and None for each of ``tensors``.
    values: Tuple[Any, ...]
    tensors: Tuple[PlacedTensor, ...]
    #: One time step of the input, which tensors were placed on; None if all parameters are numbers.
    shape: Optional[torch.Size]
    #: Whether the input is the first parameter of the program, because it is the same at every step.
    constant: bool
    #: What runs the call; None where that is the runner.
    call: Optional[BoundCall] = None


def _signature(x: Tensor, start: Optional[Tensors], final: bool, steps: Optional[int]) -> Tuple[Any, ...]:
    """What decides how a call with one input and without a record is computed, beside the parameters.

    ``steps``: for how many the input is repeated, 0 for a call of one step, None where the input has time.
    """
    grad = torch.is_grad_enabled()
    state = None if start is None else tuple([(value.stride(), grad and value.requires_grad) for value in start])
    return (x.shape, x.stride(), x.dtype, x.device, grad and x.requires_grad, grad, final, steps, state)


def _state_as_before(names: Collection[str], state: Mapping[str, Any], x: Tensor, one: bool) -> Optional[Tensors]:
    """A state in the order of ``names`` if there is nothing to check or convert about it, else None.

    ``one``: the input is one time step.
    """
    if type(state) is not dict or len(state) != len(names):
        return None
    shape, dtype, device = x.shape if one else x.shape[1:], compute_dtype(x.dtype), x.device
    start = tuple([state.get(name) for name in names])
    for value in start:
        if type(value) is not Tensor or value.shape != shape or value.dtype != dtype or value.device != device:
            return None
        if value.layout is not torch.strided:
            return None
    return start  # type: ignore[return-value]  # no None among them


def noted(runner: Runner, asked: Arguments, x: Tensor, neuron: Any, constant: bool = False) -> Earlier:
    """A call that passed every check, with its parameters as they are and as they were placed."""
    tensors = tuple(
        PlacedTensor(
            position,
            name,
            "_parameters" if name in neuron._parameters else "_buffers",
            value.shape,
            value.stride(),
            value.dtype,
            value.device,
            value.requires_grad,
            tuple(placed.shape),
        )
        for position, ((name, value), placed) in enumerate(zip(asked.named, asked.values))
        if isinstance(value, Tensor) and isinstance(placed, Tensor)
    )
    names = [*neuron.configuration, *[name for name in neuron.params if not isinstance(getattr(neuron, name), Tensor)]]
    read = itemgetter(*[name for name in names if name in neuron.__dict__])
    numbers = tuple([None if isinstance(value, Tensor) else value for value in asked.values])
    return Earlier(runner, read, read(neuron.__dict__), numbers, tensors, x.shape[1:] if tensors else None, constant)


def _first_call(
    earlier: Earlier, inputs: Tensors, start: Optional[Tensors], constant: Tensors, asked: Arguments, single: bool
) -> Tuple[Optional[Earlier], Optional[Tuple[Tensors, Optional[Tensors]]]]:
    """The call bound to its plan, and its results, which are computed as those of later calls: a checkpointed call must
    save the same tensors when it is computed again. Without results where the call is the runner's.
    """
    params = (*constant, *[value for _, value in asked.named])
    views = [tuple(value.shape) if isinstance(value, Tensor) else None for value in (*constant, *asked.values)]
    try:
        bound_call = bound(earlier.runner, inputs, start, params, views, single)
        if bound_call is None:
            return earlier, None
        return earlier._replace(call=bound_call), bound_call(inputs, start, params)
    except BackendError:  # the runner raises it again, or falls back
        return None, None


def values_as_before(earlier: Earlier, neuron: nn.Module, x: Tensor, one: bool) -> Optional[Tuple[ParamValue, ...]]:
    """The parameters as the neuron has them; None if one is not as it was. ``one``: the input is one time step."""
    attributes = neuron.__dict__
    try:
        if earlier.read(attributes) != earlier.seen:
            return None
    except KeyError:  # one was deleted, or is a tensor now
        return None
    if not earlier.tensors:
        return earlier.values
    if (x.shape if one else x.shape[1:]) != earlier.shape:
        return None
    values = list(earlier.values)
    for position, name, table, shape, strides, dtype, device, learnt, _ in earlier.tensors:
        value: Optional[Tensor] = attributes[table].get(name)
        if value is None or value.shape != shape or value.dtype is not dtype:
            return None
        if value.stride() != strides or value.device != device or value.requires_grad is not learnt:
            return None
        values[position] = value
    return tuple(values)


def placed(earlier: Earlier, values: Tuple[ParamValue, ...]) -> Tuple[ParamValue, ...]:
    """The parameters that :func:`values_as_before` gave, as the runner takes them."""
    if not earlier.tensors:
        return values
    views: List[Any] = list(values)
    for tensor in earlier.tensors:
        if tensor.view != tensor.shape:
            views[tensor.position] = views[tensor.position].view(tensor.view)
    return tuple(views)
