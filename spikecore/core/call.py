"""The way of a call of a neuron: from its tensors to a runner of its :class:`~spikecore.core.dispatch.Dispatch`.

- :func:`call` determines the tracing mode once and passes it down. A call in eager mode whose signature is that of one
  that passed every check, and whose tensors are as those were, goes straight to its plan. Numbers are arguments of a
  kernel, and no part of a signature.
- Any other call goes through :func:`execute`: it is checked, its parameters are placed, its runner is found or made,
  and the call is noted for later ones (:class:`NotedCall`).
- :func:`arguments` says what the runner of a call must do: which parameters it learns, which gradients it takes. It
  serves neurons, batch normalisation in front of one (``NormNeuron``), and feedback (``Recurrent``).
"""

from __future__ import annotations

import functools
import inspect
import operator
from operator import itemgetter
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.running import BoundCall, bound, in_graph, one_step
from spikecore.backend import MAX_STATIC_STEPS, ParamValue, Runner, Tensors
from spikecore.context import COMPILED, EAGER, PLAIN, TRANSFORMED, compile_time, world
from spikecore.core import checks, modules, observe, parameters, vectors
from spikecore.core.dispatch import Dispatch, SpecKey
from spikecore.core.observe import Results
from spikecore.dtypes import compute_dtype
from spikecore.lang.transform import Transform
from spikecore.scan import is_any_length

_STRIDED = torch.strided


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
    mode = world()
    if mode is EAGER and not record:
        key = signature(inputs, neuron.states, state, (final, 0 if single else neuron._repeat()))
        noted: Optional[NotedCall] = neuron._dispatch.noted.get(key)
        values = None if noted is None else noted.values(neuron)
        if noted is not None and values is not None:
            start = None if state is None else tuple(state.values())
            outputs, end = (noted.straight or noted.again)(tuple(inputs), start, values)
            return outputs, None if end is None else dict(zip(neuron.states, end)), ()
    elif mode is COMPILED and len(inputs) == 1 and state is None and not (record or final or single):
        results = _in_graph(neuron, inputs[0])
        if results is not None:
            return results
    return execute(neuron, inputs, state, record, final, single, mode)


def named_state(neuron: Any, end: Optional[Tensors]) -> Optional[Dict[str, Tensor]]:
    """The states of a program as those of its neuron, by name."""
    return None if end is None else dict(zip(neuron.states, vectors.together(neuron, neuron.states, end)))


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
    owner, repeat = type(neuron).__name__, 1 if single else neuron._repeat()
    # where an input is one time step
    setting = "" if repeat is None else "step='single'" if single else f"repeat={repeat}"
    as_steps = [x.unsqueeze(0) if setting and isinstance(x, Tensor) else x for x in inputs]
    timed, shape = checks.broadcasting(owner, neuron.inputs, as_steps, setting)
    shape = (repeat or shape[0], *shape[1:])
    device = timed[0].device.type
    named = tuple([name for name in record if name not in neuron.states])
    settled: Dispatch = neuron._settled().recording(named)
    if mode is COMPILED:
        reason = settled.leaves_graph(device, settled.stamp)
        if reason:
            _leave_graph(reason)
            return _leaving[reason](neuron, inputs, state, record, final, single, False)
    dispatch: Dispatch = settled
    as_they_are = mode is EAGER and all(a.dtype is b.dtype for a, b in zip(inputs, timed))
    constants: Tensors = ()
    # no comparison with an unknown T, which torch.compile would fix
    if (repeat or len(timed) > 1) and shape[0] != 1 and any(x.shape[0] == 1 for x in timed):
        dispatch, timed, constants = _repeated(neuron, settled, timed, shape, mode)
    whole = timed if len(timed) == 1 else (timed[0].expand(shape), *timed[1:])
    start = checked_state(neuron, state, whole[0], named)
    program_record = vectors.recorded(neuron, record)
    front = list(zip(filter(None, dispatch.front), constants))
    args = arguments(neuron, dispatch, whole, start, final, mode, front=front)
    kind = dispatch.find(device, *args.kind, bool(record), settled.stamp, transformed=mode is TRANSFORMED)
    runner = dispatch.runners[kind]
    # only runners of spikecore.kernels have the attribute, which is no part of the contract
    takes_broadcast = mode is EAGER and getattr(runner, "broadcasts", False) and 0 not in shape
    if not (takes_broadcast and any(x.shape == shape for x in timed)):
        timed = checks.expanded(timed, shape)
    steps = tuple([x.squeeze(0) for x in timed]) if single else timed
    # noted where inputs need no more than another shape
    if as_they_are and not (record or neuron.vectors):
        noted = NotedCall(runner, args.named, args.values, neuron, single=single)
        noted.note_shapes(inputs, inputs if single else as_steps, steps, dispatch.front)
        values, taken, own = tuple([value for _, value in args.named]), steps, constants
        if len(inputs) > 1 and repeat is None:
            taken, own = noted.arranged(inputs, bound=True)
        if not noted.bind(taken, start, (*own, *values), (*constants, *args.values)):
            taken, own = steps, constants
        # as later ones: a checkpointed call must save the same tensors when it is computed again
        outputs, end, trace = noted.results(taken, start, values, own)
        if state is None or all(map(operator.is_, state.values(), start or ())):  # none was of another dtype
            settled.note(signature(inputs, neuron.states, state, (final, 0 if single else repeat)), noted)
    elif single and not (mode is COMPILED or record):
        outputs, end, trace = (*one_step(runner, steps, start, args.values), ())
    else:
        outputs, end, trace = runner(timed, start, (*constants, *args.values), program_record)
        outputs = tuple([out.squeeze(0) for out in outputs]) if single else outputs
    return outputs, named_state(neuron, end), vectors.together(neuron, record, trace)


def checked_state(
    neuron: Any, state: Optional[Mapping[str, Tensor]], x: Tensor, values: Collection[str]
) -> Optional[Tensors]:
    """The state of a neuron, for a call with input ``x`` that records these named values, as that of its program."""
    carried = state is not None and state is neuron._state
    shapes = vectors.shapes(neuron, x.shape[1:])
    start = vectors.apart(neuron, checks.state(type(neuron).__name__, neuron.states, state, x, carried, shapes))
    return with_values(start, values, x) if start is not None and values else start


def with_values(start: Tensors, values: Collection[str], x: Tensor) -> Tensors:
    """A state at the start of a call, and for each named value that it records the 0 that no step reads."""
    return (*start, *[torch.zeros(x.shape[1:], dtype=compute_dtype(x.dtype), device=x.device) for _ in values])


def _repeated(
    neuron: Any, settled: Dispatch, inputs: Tensors, shape: Sequence[int], mode: str
) -> Tuple[Dispatch, Tensors, Tensors]:
    """Dispatch of a call of this shape some of whose inputs are the same at every step, ``[1, ...]``, the inputs of
    its program over time, and those that are its parameters: all such that it reads, where the backend has such
    parameters and their gradients.
    """
    once = [k for k, x in enumerate(inputs) if x.shape[0] == 1]
    timed = [x.expand(shape[0], *x.shape[1:]) for x in inputs]
    learnt = torch.is_grad_enabled() and any(inputs[k].requires_grad for k in once)
    if not settled.repeats(inputs[0].device.type, learnt, settled.stamp, mode is TRANSFORMED):
        return settled, tuple(timed), ()
    how = (tuple([neuron.inputs[k] for k in once]),)
    dispatch = settled.by_name[settled.by_fields("repeated", how, settled.stamp)]
    left = [x for x, name in zip(timed, dispatch.front) if not name] or [timed[0].detach()]  # which no step reads
    left = [left[0].expand(shape)] if len(left) == 1 else left
    return dispatch, tuple(left), tuple([inputs[k].squeeze(0) for k in once if dispatch.front[k]])


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
    instead: Mapping[str, Tensor] = {},
) -> Arguments:
    """The parameters of a call with these inputs ``[T, *N]``, and what it asks of a runner.

    ``front``: inputs that are parameters of the program. ``behind``: other tensors that may be learnt. ``instead``: in
    the place of parameters of these names.
    """
    x, owner, named = inputs[0], type(neuron).__name__, dispatch.values(neuron, dispatch.stamp)
    named = [(name, instead.get(name, value)) for name, value in named]
    checks.same_device(owner, x.device, named)
    if mode is not COMPILED:
        modules.check_gathered(owner, x, named)
    values, kinds = parameters.place(owner, named, x.shape[1:], neuron.channel_dim)
    grad = torch.is_grad_enabled()
    gradients = grad and any(value.requires_grad for value in inputs)
    learnable = [(name, value) for name, value in (*front, *named, *behind) if isinstance(value, Tensor)]
    learn = tuple([name for name, value in learnable if grad and value.requires_grad])
    # a gradient may come in through a state that is handed out
    of_state = any(value.requires_grad for value in start or ()) or (final and (gradients or bool(learn)))
    own = len(kinds) - len(dispatch.numbers)
    kinds = (*["full"] * len(front), *kinds[:own], *["channel"] * len(dispatch.behind), *kinds[own:])
    spec = (x.dtype, _fixed(x), kinds, learn, final)
    return Arguments(named, values, (spec, gradients, grad and of_state))


def _fixed(x: Tensor) -> Optional[int]:
    """The number of steps of an input; None where there are too many for a kernel of their own, or any number."""
    if is_any_length(x):
        return None
    # index: torch.compile, which may take T for a variable, is to fix it here
    return operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None


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
    if not all(isinstance(value, float) for value in values):
        return None
    gradients = torch.is_grad_enabled() and x.requires_grad
    kind = dispatch.graph_kind(x.dtype, x.device.type, x.layout, _fixed(x), gradients, dispatch.stamp)
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


# -- noted calls: a call that passed every check goes straight to its plan when one of its signature comes again
#
# Neurons, ``NormNeuron`` and the feedback of ``Recurrent`` note their calls in one table of the dispatch, by signatures
# that differ. Numbers are arguments of a kernel, and no part of a signature. Parameters that are tensors are compared
# with those of the noted call. ``extra`` are tensors that a call gives the program beside the neuron's parameters:
# inputs that are the same at every step, normalisations, a matrix of feedback.


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
        #: The same where inputs stay as they are: :meth:`again` in one call.
        self.straight: Optional[BoundCall] = None
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
        self.straight = None if self._shapes else self.call
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

    def again(
        self, inputs: Tensors, state: Optional[Tensors], values: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """Outputs, and states after the last step, for inputs as the call has them and the result of :meth:`values`."""
        steps, constant = self.arranged(inputs)
        return self.results(steps, state, values, constant)[:2]

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
            numbers = self._read(attributes) + self._of_surrogate
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
        elif type(value) in PLAIN and value.layout is _STRIDED and not value.is_nested:
            key.append((value.shape, value.stride(), value.dtype, value.device, value.requires_grad))
        else:
            return None
    return tuple(key)


def layout_of(tensor: Tensor) -> Tuple[Any, ...]:
    """Class, shape, strides, dtype, device and ``requires_grad`` of a tensor."""
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _reader(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Tuple[Any, ...]]:
    """A function that gives the values of these keys of a mapping."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda mapping: tuple([mapping[name] for name in names])
