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
from typing import Any, Callable, Collection, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.running import in_graph, one_step
from spikecore.backend import MAX_STATIC_STEPS, ParamValue, Tensors
from spikecore.context import COMPILED, EAGER, TRANSFORMED, compile_time, world
from spikecore.core import checks, modules, observe, parameters
from spikecore.core.dispatch import Dispatch, SpecKey
from spikecore.core.noted import NotedCall
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
    if watched and neuron._watchers:
        compute = functools.partial(call, neuron, watched=False)
        return observe.recorded(neuron, compute, inputs, state, record, final, single)  # type: ignore[no-any-return]
    mode, results = world(), None
    if mode is EAGER and len(inputs) == 1 and not record:
        results = _as_noted(neuron, inputs[0], state, final, single)
    elif mode is COMPILED and len(inputs) == 1 and state is None and not (record or final or single):
        results = _in_graph(neuron, inputs[0])
    return execute(neuron, inputs, state, record, final, single, mode) if results is None else results


def _as_noted(
    neuron: Any, x: Tensor, state: Optional[Mapping[str, Tensor]], final: bool, single: bool
) -> Optional[Results]:
    """Results of an eager call like one that passed every check; None for another call."""
    if type(x) is not Tensor or x.layout is not torch.strided or x.is_nested:
        return None
    repeat = None if single else neuron._repeat()
    start = None if state is None else _state_as_it_is(neuron.states, state, x, single or repeat is not None)
    if state is not None and start is None:
        return None
    noted: Optional[NotedCall] = neuron._dispatch.noted.get(_signature(x, start, final, 0 if single else repeat))
    values = None if noted is None else noted.values(neuron)
    if noted is None or values is None:
        return None
    x, constant = (x, ()) if repeat is None else _over_time(x, repeat, noted.repeats)
    outputs, end, _ = noted.results((x,), start, values, constant)
    return outputs, _named(neuron, end), ()


def _named(neuron: Any, end: Optional[Tensors]) -> Optional[Dict[str, Tensor]]:
    return None if end is None else dict(zip(neuron.states, end))


def execute(
    neuron: Any,
    inputs: Sequence[Tensor],
    state: Optional[Mapping[str, Tensor]],
    record: Tuple[str, ...],
    final: bool,
    single: bool,
    mode: str,
) -> Results:
    """A call that passes every check, under a tracing mode of :func:`~spikecore.context.world`."""
    owner, repeat = type(neuron).__name__, None if single else neuron._repeat()
    is_step = single or repeat is not None  # an input is one time step
    as_steps = [x.unsqueeze(0) if is_step and isinstance(x, Tensor) else x for x in inputs]
    timed: Tensors = checks.inputs(owner, neuron.inputs, as_steps)
    device = timed[0].device.type
    settled: Dispatch = neuron._settled()
    if mode is COMPILED:
        reason = settled.leaves_graph(device, settled.stamp)
        if reason:
            _leave_graph(reason)
            return _leaving[reason](neuron, inputs, state, record, final, single, False)
    dispatch: Dispatch = settled
    constants: Tensors = ()
    if repeat is not None:
        dispatch, timed, constants = _repeated(settled, timed, repeat, mode)
    start = checks.state(owner, neuron.states, state, timed[0], carried=state is not None and state is neuron._state)
    front = list(zip(filter(None, dispatch.front), constants))
    args = arguments(neuron, dispatch, timed, start, final, mode, front=front)
    kind = dispatch.find(device, *args.kind, bool(record), settled.stamp, transformed=mode is TRANSFORMED)
    runner, steps = dispatch.runners[kind], tuple([x.squeeze(0) for x in timed]) if single else timed
    if mode is EAGER and len(inputs) == 1 and not record:
        noted = NotedCall(runner, args.named, args.values, neuron, single=single)
        noted.repeats = bool(constants)
        values = tuple([value for _, value in args.named])
        noted.bind(steps, start, (*constants, *values), (*constants, *args.values))
        # as later ones: a checkpointed call must save the same tensors when it is computed again
        outputs, end, trace = noted.results(steps, start, values, constants)
        settled.note(_signature(inputs[0], start, final, 0 if single else repeat), noted)
    elif single and not (mode is COMPILED or record):
        outputs, end, trace = (*one_step(runner, steps, start, args.values), ())
    else:
        outputs, end, trace = runner(timed, start, (*constants, *args.values), record)
        outputs = tuple([out.squeeze(0) for out in outputs]) if single else outputs
    return outputs, _named(neuron, end), trace


def _repeated(settled: Dispatch, inputs: Tensors, repeat: int, mode: str) -> Tuple[Dispatch, Tensors, Tensors]:
    """Dispatch of a call whose inputs are the same at every step, the inputs over time, and those inputs that are
    parameters of its program: all that it reads, where the backend has such parameters and their gradients.
    """
    learnt = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    dispatch = settled
    if settled.repeats(inputs[0].device.type, learnt, settled.stamp, mode is TRANSFORMED):
        dispatch = settled.by_name[settled.by_fields("repeated", (), settled.stamp)]
    names = dispatch.front or [""] * len(inputs)
    steps = [_over_time(x.squeeze(0), repeat, bool(name)) for x, name in zip(inputs, names)]
    return dispatch, tuple([x for x, _ in steps]), tuple([value for _, values in steps for value in values])


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


def _in_graph(neuron: Any, x: Tensor) -> Optional[Results]:
    """Results of a call at rest as one op of the graph that torch.compile makes; None for another call.

    Whatever is looked at here or in ``execute``, torch guards in every call of the graph: a neuron with 260 guards took
    12 us for them. What depends on the stamp alone is left to ``graph_kind``, which torch does not look into. The
    runner is looked at: neurons of one stamp, and one neuron at two times, may have different backends.
    """
    if not isinstance(x, Tensor) or not x.ndim or neuron._repeat() is not None:  # checked as every other call
        return None
    dispatch = neuron._settled()
    values: Any = [value for _, value in dispatch.values(neuron, dispatch.stamp)]
    for value in values:
        if not isinstance(value, float):
            return None
    steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
    gradients = torch.is_grad_enabled() and x.requires_grad
    kind = dispatch.graph_kind(x.dtype, x.device.type, x.layout, steps, gradients, dispatch.stamp)
    output = None if kind is None else in_graph(dispatch.runners[kind], x, values)
    return None if output is None else ((output,), None, ())


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


# -- the signature of a call


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
