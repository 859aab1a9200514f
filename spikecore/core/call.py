"""The way of a call of a neuron: from its tensors to a runner of its :class:`~spikecore.core.dispatch.Dispatch`.

- :func:`call` determines the tracing mode once and passes it down. A call in eager mode whose signature is that of one
  that passed every check, and whose tensors are as those were, goes straight to its plan. Numbers are arguments of a
  kernel, and no part of a signature.
- Any other call goes through :func:`execute`: it is checked, its parameters are placed, its runner is found or made,
  and the call is noted for later ones.
- :func:`arguments` says what the runner of a call must do: which parameters it learns, which gradients it takes. It
  serves neurons, batch normalisation in front of one (``NormNeuron``), and feedback (``Recurrent``).
"""

from __future__ import annotations

import functools
import inspect
import operator
from operator import itemgetter
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

from spikecore._base.running import BoundCall, bound, in_graph
from spikecore.backend import MAX_STATIC_STEPS, ParamValue, Runner, Tensors, one_step
from spikecore.context import COMPILED, EAGER, TRANSFORMED, compile_time, world
from spikecore.core import checks, modules, observe, parameters
from spikecore.core.dispatch import Dispatch, SpecKey
from spikecore.core.observe import Results
from spikecore.dtypes import compute_dtype
from spikecore.lang.transform import Transform


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
    mode, repeat = world(), None if single else neuron._repeat()
    is_step = single or repeat is not None  # whether an input is one time step
    x: Any = inputs[0] if len(inputs) == 1 else None
    if mode is COMPILED and isinstance(x, Tensor) and state is None and not (is_step or final or record):
        output = _in_graph(neuron, x)
        if output is not None:
            return (output,), None, ()
    if mode is not EAGER or record or type(x) is not Tensor or x.layout is not torch.strided or x.is_nested:
        return execute(neuron, inputs, state, record, final, single, mode)
    start = None if state is None else _state_as_it_is(neuron.states, state, x, is_step)
    if not (is_step or x.ndim) or (start is None and state is not None):
        return execute(neuron, inputs, state, record, final, single, mode)
    noted = neuron._dispatch.noted.get(_signature(x, start, final, 0 if single else repeat))
    values = None if noted is None else noted.values(neuron)
    if values is None:
        return execute(neuron, inputs, state, record, final, single, mode)
    repeated: Tensors = ()
    if repeat is not None:
        x, repeated = _over_time(x, repeat, noted.repeats)
    if noted.call is not None:
        outputs, end = noted.call((x,), start, (*repeated, *values) if repeated else values)
    elif single:
        outputs, end = one_step(noted.runner, (x,), start, noted.placed(values))
    else:
        outputs, end = noted.runner((x,), start, (*repeated, *noted.placed(values)), ())[:2]
    return outputs, dict(zip(neuron.states, end)) if end is not None else None, ()


def execute(
    neuron: Any,
    inputs: Sequence[Tensor],
    state: Optional[Mapping[str, Tensor]],
    record: Tuple[str, ...],
    final: bool,
    single: bool,
    mode: str,
) -> Results:
    """A call that passes every check. ``mode`` is what :func:`~spikecore.context.world` says."""
    as_called, owner = inputs, type(neuron).__name__
    repeat = None if single else neuron._repeat()
    if single or repeat is not None:
        inputs = [x.unsqueeze(0) if isinstance(x, Tensor) else x for x in inputs]
    inputs = checks.inputs(owner, neuron.inputs, inputs)
    device = inputs[0].device.type
    dispatch: Dispatch = neuron._settled()
    stamp = dispatch.stamp
    if mode is COMPILED:
        reason = dispatch.leaves_graph(device, stamp)
        if reason:
            _leave_graph(reason)
            return _leaving[reason](neuron, as_called, state, record, final, single, False)
    # the inputs that the program has as parameters, and their names
    repeated: Tensors = ()
    of_calls = dispatch
    if repeat is not None:
        learnt = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if dispatch.repeats(device, learnt, stamp, mode is TRANSFORMED):
            dispatch = dispatch.named[dispatch.made_by("repeated", (), stamp)]
        names = dispatch.front or [""] * len(inputs)
        steps = [_over_time(x.squeeze(0), repeat, bool(name)) for x, name in zip(inputs, names)]
        inputs = tuple([x for x, _ in steps])
        repeated = tuple([value for _, values in steps for value in values])
    x = inputs[0]
    start = checks.state(owner, neuron.states, state, x, carried=state is not None and state is neuron._state)
    args = arguments(neuron, dispatch, inputs, start, final, mode, front=[*zip(filter(None, dispatch.front), repeated)])
    kind = dispatch.find(device, *args.kind, bool(record), stamp, transformed=mode is TRANSFORMED)
    runner, values = dispatch.runners[kind], args.values
    trace: Tensors = ()
    step_inputs = tuple([x.squeeze(0) for x in inputs]) if single else inputs
    noted, results = None, None
    if mode is EAGER and len(inputs) == 1 and not record:
        noted = NotedCall(runner, args, neuron, len(repeated) > 0)
        results = _first_call(noted, step_inputs, start, repeated, args, single)
    if results is not None:
        outputs, end = results
    elif single and not (mode is COMPILED or record):
        outputs, end = one_step(runner, step_inputs, start, values)
    else:
        outputs, end, trace = runner(inputs, start, (*repeated, *values), record)
        outputs = tuple([out.squeeze(0) for out in outputs]) if single else outputs
    if noted is not None:
        of_calls.note(_signature(as_called[0], start, final, 0 if single else repeat), noted)
    return outputs, dict(zip(neuron.states, end)) if end is not None else None, trace


#: Reason why a call leaves the graph of torch.compile -> :func:`call`, disabled for the compiler with this reason.
_leaving: Dict[str, Callable[..., Results]] = {}


@compile_time
def _leave_graph(reason: str) -> None:
    """Put ``call`` under this reason into :data:`_leaving`.

    Where the graph must be whole, torch raises. From torch 2.7 on its error says the reason; before, torch takes none,
    and its error names :func:`call` alone.
    """
    if reason not in _leaving:
        disable = torch.compiler.disable
        options = {"reason": reason} if "reason" in inspect.signature(disable).parameters else {}
        _leaving[reason] = disable(call, **options)


def _over_time(x: Tensor, repeat: int, as_parameter: bool) -> Tuple[Tensor, Tensors]:
    """One step ``[*N]`` as the input ``[repeat, *N]``; ``as_parameter``: and as the parameter that has its gradient."""
    if not as_parameter:
        return x.expand(repeat, *x.shape), ()
    return x.detach().expand(repeat, *x.shape), (x,)


class Arguments(NamedTuple):
    """The parameters of a call, and what its runner must do."""

    #: The parameters of the program by name, and as they lie over one of the time steps.
    named: Sequence[Tuple[str, Any]]
    values: Tuple[ParamValue, ...]
    #: The fields of the Spec, and whether gradients, and gradients of the state, are asked for.
    kind: Tuple[SpecKey, bool, bool]


def arguments(
    neuron: Any,
    dispatch: Dispatch,
    inputs: Tensors,
    start: Optional[Tensors],
    final: bool,
    mode: str,
    front: Sequence[Tuple[str, Any]] = (),
    behind: Sequence[Tuple[str, Any]] = (),
    instead: Optional[Mapping[str, Tensor]] = None,
) -> Arguments:
    """The parameters of a call with these inputs ``[T, *N]``, and what it asks of a runner.

    ``front``: inputs that are parameters of the program. ``behind``: other tensors that may be learnt. ``instead``: in
    the place of parameters of these names.
    """
    x, owner, named = inputs[0], type(neuron).__name__, dispatch.values(neuron, dispatch.stamp)
    if instead:
        named = [(name, instead.get(name, value)) for name, value in named]
    checks.same_device(owner, x.device, named)
    if mode is not COMPILED:
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
    own = len(kinds) - len(dispatch.numbers)
    kinds = (*["full"] * len(front), *kinds[:own], *["channel"] * len(dispatch.behind), *kinds[own:])
    spec = (x.dtype, steps, kinds, learn, final)
    return Arguments(named, values, (spec, gradients, state_gradients))


def _in_graph(neuron: Any, x: Tensor) -> Optional[Tensor]:
    """The output of a call at rest as one op of the graph that torch.compile makes; None for another call.

    Whatever is looked at here or in ``execute``, torch guards in every call of the graph: a neuron with 260 guards took
    12 us for them. What depends on the stamp alone is left to ``graph_kind``, which torch does not look into. The
    runner is looked at: neurons of one stamp, and one neuron at two times, may have different backends.
    """
    if not x.ndim:  # refused where every call is checked
        return None
    dispatch = neuron._settled()
    values: Any = [value for _, value in dispatch.values(neuron, dispatch.stamp)]
    for value in values:
        if not isinstance(value, float):
            return None
    steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
    gradients = torch.is_grad_enabled() and x.requires_grad
    kind = dispatch.graph_kind(x.dtype, x.device.type, x.layout, steps, gradients, dispatch.stamp)
    return None if kind is None else in_graph(dispatch.runners[kind], x, values)


def run_by(
    neuron: Any,
    transform: Optional[Transform],
    inputs: Tensors,
    state: Optional[Mapping[str, Tensor]] = None,
    values: Mapping[str, Tensor] = {},
) -> Tuple[Tensors, Dict[str, Tensor]]:
    """Outputs and last states of the program that ``transform`` makes of a neuron's; None: of the neuron's own.

    It is pure, tells no watcher, and runs on the neuron's backend. inputs: ``[T, *N]`` each. state: by the names of
    that program. values: tensors in the place of parameters of these names.
    """
    settled: Dispatch = neuron._settled()
    dispatch = settled if transform is None else settled.of(transform)
    program: Any = dispatch.program
    start = tuple([state[name] for name in program.states]) if state else None
    args = arguments(neuron, dispatch, inputs, start, True, EAGER, instead=values)
    kind = dispatch.find(inputs[0].device.type, *args.kind, False, dispatch.stamp)
    outputs, end, _ = dispatch.runners[kind](inputs, start, args.values, ())
    return outputs, dict(zip(program.states, end or ()))


# -- calls that passed every check


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
    """A call that passed every check, for later ones of its signature."""

    def __init__(self, runner: Runner, args: Arguments, neuron: Any, repeats: bool = False) -> None:
        self.runner = runner
        #: True if the input is the first parameter of the program, because it is the same at every step.
        self.repeats = repeats
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
                tuple(placed.shape),
            )
            for position, ((name, value), placed) in enumerate(zip(args.named, args.values))
            if isinstance(value, Tensor) and isinstance(placed, Tensor)
        )
        numbers = [(name, value) for name, value in args.named if not isinstance(value, Tensor)]
        #: Reader of the neuron's numbers from its attributes, and the numbers of the surrogate.
        self._read = _reader([name for name, _ in numbers if name in neuron.params])
        self._of_surrogate = tuple([value for name, value in numbers if name not in neuron.params])

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


def _signature(x: Tensor, start: Optional[Tensors], final: bool, steps: Optional[int]) -> Tuple[Any, ...]:
    """The key of a call with one input and without a record, beside the parameters.

    ``steps``: for how many the input is repeated, 0 for a call of one step, None where the input has time.
    """
    grad = torch.is_grad_enabled()
    state = None if start is None else tuple([(value.stride(), grad and value.requires_grad) for value in start])
    return (x.shape, x.stride(), x.dtype, x.device, grad and x.requires_grad, grad, final, steps, state)


def _state_as_it_is(names: Collection[str], state: Mapping[str, Any], x: Tensor, is_step: bool) -> Optional[Tensors]:
    """A state in the order of ``names`` if there is nothing to check or convert about it, else None.

    ``is_step``: the input is one time step.
    """
    if type(state) is not dict or len(state) != len(names):
        return None
    shape, dtype, device = x.shape if is_step else x.shape[1:], compute_dtype(x.dtype), x.device
    start = tuple([state.get(name) for name in names])
    for value in start:
        if type(value) is not Tensor or value.shape != shape or value.dtype != dtype or value.device != device:
            return None
        if value.layout is not torch.strided:
            return None
    return start  # type: ignore[return-value]  # no None among them


def _first_call(
    noted: NotedCall, inputs: Tensors, start: Optional[Tensors], repeated: Tensors, args: Arguments, single: bool
) -> Optional[Tuple[Tensors, Optional[Tensors]]]:
    """The results of a call that is bound to its plan here, computed as those of later calls: a checkpointed call must
    save the same tensors when it is computed again. None where the call is the runner's.
    """
    params = (*repeated, *[value for _, value in args.named])
    views = [tuple(value.shape) if isinstance(value, Tensor) else None for value in (*repeated, *args.values)]
    noted.call = bound(noted.runner, inputs, start, params, views, single)
    return None if noted.call is None else noted.call(inputs, start, params)
