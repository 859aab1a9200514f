"""Dispatch: the part of a neuron that has its program, the backends that compute it, and their runners.

Rules of this module:

- What was asked is taken when a neuron is made; the backend is bound when the neuron first meets a device type; a
  runner is compiled for each kind of call. After that a call finds its runner with one look-up.
- Calls that torch exports or transforms (vmap, grad, jvp) are computed by the reference, whatever backend was asked
  for: no transform looks through a kernel. :func:`spikecore.context.world` is the tracing mode of a call. An IPU, on
  which the reference does not compute, is the exception: there the backend itself emits operations of torch.
- The definition is traced at the first call, and again whenever an attribute of the neuron is set, deleted, registered,
  loaded or moved, and by :meth:`spikecore.Neuron.retrace`. The neuron then gets another :class:`Dispatch`, which has
  the runners of the one before if the program is the same. A call that has its runner goes on with it while another
  thread changes the definition.
- The parameters of the program are its arguments: each call reads them from the neuron.
- A copy of a neuron has a dispatch of its own, in which nothing but the request is that of the neuron.
"""

from __future__ import annotations

import itertools
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Type, Union

import torch
from torch import Tensor, nn

from spikecore._base.caches import CALLS
from spikecore.backend import Backend, Feedback, Runner, Spec, Unsupported
from spikecore.context import compile_time, is_exporting
from spikecore.core import checks, vectors
from spikecore.core.ranges import Interval
from spikecore.core.state import Stateful
from spikecore.dtypes import NAMES
from spikecore.lang import Numbers, Program, topological, trace
from spikecore.lang.spike_times import with_spike_times
from spikecore.lang.transform import Normalised, Recorded, Repeated, Transform
from spikecore.lang.vectors import leaf
from spikecore.plugins.registry import AUTO_NAME, default_registry
from spikecore.plugins.selection import REFERENCE, Request, Resolved, alternatives, capture, resolve
from spikecore.words import shown

# -- dispatch


#: The transforms that a call itself asks for, by name.
_OF_CALLS: Mapping[str, Type[Transform]] = {"repeated": Repeated, "normalised": Normalised, "recorded": Recorded}
#: Unique id of a definition until the hash of its program is known.
_definitions = itertools.count()
_UNTRACED = "definition "

#: The fields of a Spec, in order; the last two where there is feedback.
SpecKey = Union[
    Tuple[torch.dtype, Optional[int], Tuple[str, ...], Tuple[str, ...], bool],
    Tuple[torch.dtype, Optional[int], Tuple[str, ...], Tuple[str, ...], bool, Feedback, Tuple[Feedback, ...]],
]
#: Type of device, whether the reference must compute, fields of the Spec, whether gradients, gradients of the state,
#: and a record are asked for.
CallKind = Tuple[str, bool, SpecKey, bool, bool, bool]


#: Listeners of refusals: functions of the names of the refusing and of the next backend, and the error.
Listener = Callable[[str, str, Unsupported], None]
_listeners: List[Listener] = []


@contextmanager
def told_of_refusals(listener: Listener) -> Iterator[None]:
    """Within the block ``listener`` is called where a backend that was chosen automatically does not support a call."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Calls(NamedTuple):
    """Calls of one kind: what a runner is made for, and what it must be able to do."""

    device_type: str
    program: Program
    spec: Spec
    gradients: bool
    state_gradients: bool
    record: bool

    def lacks(self, backend: Backend) -> Tuple[str, ...]:
        """Names of the capabilities that these calls need and a backend does not have."""
        return checks.lacking(
            backend.capabilities_on(self.device_type),
            self.program,
            self.spec,
            gradients=self.gradients,
            state_gradients=self.state_gradients,
            record=self.record,
        )

    def runner(self, resolved: Resolved) -> Runner:
        """The runner of a backend. A backend that was asked for by name raises :class:`Unsupported` where it cannot do
        what these calls need. One that was chosen automatically leaves them to the next one of the order, and a warning
        says so: all this is known before anything runs. Any other error, such as that of a compiler, is the caller's.
        """
        refusal: Optional[Unsupported] = None
        others = alternatives(self.device_type, resolved.backend.name) if resolved.source == AUTO_NAME else ()
        for candidate in itertools.chain([resolved], others):
            missing = self.lacks(candidate.backend)
            try:
                if missing:
                    raise Unsupported(checks.unsupported(candidate, self.program.name, missing, self.device_type))
                runner = candidate.backend.runner(self.program, self.spec)
            except Unsupported as error:
                refusal = refusal or error
                continue
            if refusal is not None:
                _warn(resolved.backend.name, candidate.backend.name, refusal)
            return runner
        raise refusal  # type: ignore[misc]  # of the first candidate


def _warn(refusing: str, computing: str, refusal: Unsupported) -> None:
    if default_registry().first(("refused", refusing, str(refusal))):
        warnings.warn(
            f"backend {computing!r} computes instead of {refusing!r}, which was chosen automatically: {refusal}",
            RuntimeWarning,
            stacklevel=6,
        )
    for listener in tuple(_listeners):
        listener(refusing, computing, refusal)


@dataclass(eq=False)
class Dispatch:
    """Program, backends and runners of a neuron's calls. Replaced as a whole when definition or request changes."""

    #: The backend that was asked for, by argument or context.
    request: Request
    #: Device type -> the backend that computes there. It stays when the definition changes.
    bound: Dict[str, Resolved] = field(default_factory=dict)
    #: Guard of torch.compile: the key of the program once that is known, a unique id before.
    stamp: str = field(default_factory=lambda: f"{_UNTRACED}{next(_definitions)}")
    program: Optional[Program] = None
    #: Transforms that made the program from the traced one: those of the neuron, then those of calls.
    transforms: Tuple[Transform, ...] = ()
    of_calls: Tuple[Transform, ...] = ()
    #: The numbers of the surrogates: the values of ``program.numbers``, by name.
    numbers: Dict[str, float] = field(default_factory=dict)
    #: Kind of call -> its runner. Keys are content: neurons of one program share compiled code, and agree on the keys.
    runners: Dict[CallKind, Runner] = field(default_factory=dict)
    #: Calls that passed every check, by their signature: of :class:`~spikecore.core.call.NotedCall`.
    noted: Dict[Tuple[Any, ...], Any] = field(default_factory=dict)
    #: Dispatches of the transformed programs, by the transform (:meth:`of`), and by its name and fields
    #: (:meth:`by_fields`).
    by_transform: Dict[Transform, Dispatch] = field(default_factory=dict)
    by_name: Dict[Tuple[Any, ...], Dispatch] = field(default_factory=dict)
    #: Parameters that a transform put in front, "" for an input that the program does not read, and behind the neuron's
    #: own: calls give them.
    front: Tuple[str, ...] = ()
    behind: Tuple[str, ...] = ()

    def anew(self, of_calls: Optional[Tuple[Transform, ...]] = None) -> Dispatch:
        """A dispatch of the same request and backends, for another definition."""
        return Dispatch(self.request, self.bound, of_calls=self.of_calls if of_calls is None else of_calls)

    def define(self, neuron: Any) -> Program:
        """The program of ``neuron``, which is traced if it was not."""
        if self.program is None:
            self.transforms = (*neuron.transforms, *self.of_calls)
            program, self.numbers = _traced(neuron, self.transforms)
            self.program = program
            return program
        return self.program

    def settle(self, neuron: Any) -> None:
        """Take the program's key as the stamp, so that neurons of one program share what torch.compile makes."""
        if self.stamp.startswith(_UNTRACED):
            key = self.define(neuron).key
            self.stamp = key

    def of(self, transform: Transform) -> Dispatch:
        """The dispatch of the program that ``transform`` makes of this one's, on the same backends."""
        dispatch = self.by_transform.get(transform)
        if dispatch is None:
            before: Any = self.program
            program, behind, front = transform.apply(before)
            dispatch = Dispatch(self.request, self.bound, program.key, program, front=front, behind=behind)
            dispatch.transforms, dispatch.of_calls = (*self.transforms, transform), (*self.of_calls, transform)
            dispatch.numbers = {name: self.numbers[name] for name in program.numbers}
            self.by_transform[transform] = dispatch
        return dispatch

    # torch.compile does not follow what hashes a program, and takes numbers and words alone as constants

    @compile_time
    def by_fields(self, transform: str, how: Tuple[Any, ...], stamp: str) -> Tuple[Any, ...]:
        """The key of :attr:`by_name`, for :meth:`of` a transform given as its name and fields."""
        key = (transform, *how)
        if key not in self.by_name:
            self.by_name[key] = self.of(_OF_CALLS[transform](*how))
        return key

    def recording(self, values: Tuple[str, ...]) -> Dispatch:
        """The dispatch whose program has these named values as states."""
        return self.by_name[self.by_fields("recorded", (values,), self.stamp)] if values else self

    def adopt(self, before: Dispatch) -> None:
        """Share the runners of a dispatch of the same program, and of its transforms, which torch.compile guards."""
        self.runners = before.runners
        for transform, transformed in before.by_transform.items():
            self.of(transform).adopt(transformed)
        self.by_name.update({key: self.of(_OF_CALLS[key[0]](*key[1:])) for key in before.by_name})

    def bind(self, device_type: str) -> Resolved:
        """The backend for a type of device, chosen now if it was not."""
        if device_type not in self.bound:
            self.bound[device_type] = resolve(self.request, device_type)
        return self.bound[device_type]

    def computes(self, device_type: str, transformed: bool = False) -> Resolved:
        """The backend of a call: the reference where torch exports or transforms it."""
        if (transformed or is_exporting()) and default_registry().info(REFERENCE, AUTO_NAME).takes(device_type):
            return resolve(Request(REFERENCE, "a transform of torch"), device_type)
        return self.bind(device_type)

    # ``stamp`` is an argument of what follows so that torch guards it where it takes the results as constants.

    @compile_time
    def used(self, stamp: str) -> Tuple[str, ...]:
        """Names of the neuron's own parameters that the program reads; the surrogate's numbers come behind them."""
        program: Any = self.program
        own = program.params[: len(program.params) - len(program.numbers)]
        return tuple([name for name in own if name not in self.front and name not in self.behind])

    @compile_time
    def find(
        self,
        device_type: str,
        spec: SpecKey,
        gradients: bool,
        state_gradients: bool,
        record: bool,
        stamp: str,
        transformed: bool = False,
    ) -> CallKind:
        """The key of ``runners`` for calls of this kind, whose runner is there afterwards."""
        key = (device_type, transformed or is_exporting(), spec, gradients, state_gradients, record)
        if key not in self.runners:
            program: Any = self.program
            calls = Calls(device_type, program, Spec(*spec), gradients, state_gradients, record)
            for reason in filter(None, [transform.refuses(calls.spec.dtype) for transform in self.transforms]):
                raise ValueError(f"{program.name}: {reason}")
            self.runners[key] = calls.runner(self.computes(device_type, transformed))
        return key

    @compile_time
    def repeats(self, device_type: str, gradients: bool, stamp: str, transformed: bool) -> bool:
        """True if the backend takes inputs that are the same at every step as parameters."""
        has = self.computes(device_type, transformed).backend.capabilities_on(device_type)
        return bool(has.full_parameters and (has.parameter_gradients or not gradients))

    @compile_time
    def graph_kind(
        self,
        dtype: torch.dtype,
        device_type: str,
        layout: torch.layout,
        steps: Optional[int],
        gradients: bool,
        stamp: str,
    ) -> Optional[CallKind]:
        """The key of ``runners`` for calls at rest in a compiled graph, with one input and parameters that are numbers;
        None for a call that is checked as every other.
        """
        program: Any = self.program
        # an input that is refused is refused where every call is checked
        if dtype not in NAMES or layout is not torch.strided or steps == 0 or len(program.inputs) != 1:
            return None
        if self.leaves_graph(device_type, stamp):
            return None
        spec = (dtype, steps, ("number",) * len(program.params), (), False)
        kind: CallKind = self.find(device_type, spec, gradients, False, False, stamp)
        return kind

    @compile_time
    def leaves_graph(self, device_type: str, stamp: str) -> str:
        """Reason why a call breaks the graph of torch.compile: its backend does not declare ``torch_compile``. "" if it
        does.
        """
        resolved = self.computes(device_type)
        if resolved.backend.capabilities_on(device_type).torch_compile:
            return ""
        name = self.program.name if self.program else ""
        return checks.unsupported(resolved, name, ("torch_compile",), device_type)

    @compile_time
    def adds_to_spikes(self, device_type: str, asked: bool, stamp: str) -> bool:
        """True if a kernel adds a shortcut to spikes. ``asked``: one program was asked for."""
        program: Any = self.program
        if program.outputs[0].op != "spike":
            return False
        backend = self.bind(device_type).backend
        return asked or (backend.name != REFERENCE and backend.capabilities_on(device_type).several_inputs)

    @compile_time
    def find_normalised(
        self,
        device_type: str,
        kind: Tuple[SpecKey, bool, bool, bool],
        asked: bool,
        stamp: str,
    ) -> Union[str, CallKind]:
        """The key of ``runners`` for calls of this kind, with batch normalisation in front, or why there is none.

        ``asked``: whether one program was asked for.
        """
        program: Any = self.program
        spec, *demands = kind
        if len(spec[2]) != len(program.params):
            return "the dynamics do not read their input"
        resolved = self.bind(device_type)
        if resolved.backend.name == REFERENCE and not asked:
            # it runs a program operation by operation, and torch has one operation for the whole of a normalisation
            return f"backend {REFERENCE!r} computes one operation after the other, and is quicker so"
        missing = Calls(device_type, program, Spec(*spec), *demands).lacks(resolved.backend)
        if not resolved.backend.capabilities_on(device_type).normalisation:
            missing = missing or ("normalisation",)
        return (
            checks.unsupported(resolved, program.name, missing, device_type)
            if missing
            else self.find(device_type, *kind, stamp)
        )

    def values(self, neuron: Any, stamp: str) -> List[Tuple[str, Union[float, Tensor]]]:
        """The parameters of the program, by name: those of the neuron, and behind them the numbers of its surrogate."""
        return [*vectors.values(neuron, self.used(stamp)), *self.numbers.items()]

    def note(self, signature: Optional[Tuple[Any, ...]], call: Any) -> None:
        """Have later calls of this signature find ``call`` in :attr:`noted`; None: no call does."""
        if len(self.noted) >= CALLS:
            self.noted.clear()
        if signature is not None:
            self.noted[signature] = call


# -- from a neuron to its program


def _traced(neuron: Any, transforms: Iterable[Transform]) -> Tuple[Program, Dict[str, float]]:
    """The program that a neuron computes, and the values of its numbers."""
    program, values = equations(neuron, neuron._ranges)
    for transform in transforms:
        program = transform.apply(program).program
    return program, {name: values[name] for name in program.numbers}


def equations(neuron: Any, ranges: Mapping[str, Interval]) -> Tuple[Program, Dict[str, float]]:
    """The ``dynamics`` of a neuron as a program, and the values of its numbers. What is learnt is in its range."""
    numbers = Numbers(reserved=(*neuron.inputs, *neuron.states, *neuron.params))
    params = {name: leaf("param", name, neuron.vectors.get(name)) for name in neuron.params}
    for name, value in neuron._parameters.items():
        if name in ranges and value is not None:
            params[name] = ranges[name].equation(params[name], value.dtype)
    declared = vectors.sized(neuron, type(neuron).states)
    reset = declared if neuron.reset_states is None else neuron.reset_states
    # dynamics sees self.tau as p.tau, since as a number it would be a constant; and what it sets on self is lost
    twin = object.__new__(type(neuron))
    twin.__dict__.update(neuron.__dict__)
    twin.__dict__.update(params)
    program = trace(
        twin.dynamics,
        name=type(neuron).__name__,
        inputs=vectors.sized(neuron, type(neuron).inputs),
        states=declared,
        params=params,
        detached=tuple(reset) if neuron.detach_reset else (),
        numbers=numbers,
    )
    _check_learnt(neuron, program)
    if neuron.gradient == "spike_time":
        program = with_spike_times(program, *[name for name in neuron.states if name not in declared])
    return program, dict(numbers.values)


def _check_learnt(neuron: Any, program: Program) -> None:
    """Raise ValueError if a parameter is to be learnt that only surrogates read: it has no gradient."""
    nodes = topological([*program.outputs, *program.next, *program.initial])
    read = {str(node.attr) for node in nodes if node.op == "param"}
    learnt = tuple(dict.fromkeys((*neuron.learn, *neuron._parameters)))
    for name in vectors.recorded(neuron, learnt):
        if name in program.params and name not in read:
            raise ValueError(
                f"{program.name}: learn={learnt!r}: only the derivative of a spike reads {name!r}, and no "
                "gradient flows through that. Let the equations read it, too, as a width that follows a decay factor "
                f"(Lian et al., 2023); or leave {name!r} out of learn and set it between steps of training"
            )


# -- what others ask of the dispatch of a module


def request(backend: Optional[str], source: str) -> Request:
    """The request for this backend, whose name is checked; ``source`` is who asks, in the words that errors use."""
    if backend is not None and not isinstance(backend, str):
        raise TypeError(f"backend={shown(backend)} must be a backend's name, 'auto' or None")
    return Request(None, "") if backend is None else capture(backend, source)


def dispatch_of(module: nn.Module) -> Optional[Dispatch]:
    """The dispatch of a neuron; None for another module."""
    return module.__dict__.get("_dispatch") if isinstance(module, Stateful) else None


def ask(modules: Iterable[nn.Module], asked: Request) -> None:
    """Ask for a backend in those modules that have a program."""
    for module in modules:
        if dispatch_of(module) is not None:
            module.__dict__["_dispatch"] = Dispatch(asked)
