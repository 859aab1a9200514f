"""Which backend computes a neuron, and the runners it compiled.

Rules of this module:

- What was asked is taken when a neuron is made; the backend is bound when the neuron first meets a device type; a
  runner is compiled for each kind of call. After that a call finds its runner with one look-up.
- The definition is traced at the first call, and again whenever an attribute of the neuron is set, deleted, registered,
  loaded or moved, and by :meth:`Bound.retrace`. Calls that passed their checks are forgotten then, and runners too,
  unless the program is the one that it was. A name with a leading underscore is data, and changes no definition.
  Nothing else that a definition reads is watched.
- The parameters of the program are its arguments: each call reads them from the neuron.
- What is derived is no part of a copy. Threads that come here together find the same runners.
"""

from __future__ import annotations

import functools
import itertools
import operator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore._base.running import in_graph
from spikecore._plugins.selection import REFERENCE, Request, Resolved, capture, resolve
from spikecore._shell import checks, compiled
from spikecore._shell.automatic import Calls, runner_of
from spikecore._shell.checks import lacking
from spikecore._shell.definition import Traced
from spikecore._shell.state import Stateful
from spikecore.backend import MAX_STATIC_STEPS, Backend, Feedback, Runner, Spec, Unsupported
from spikecore.dtypes import NAMES
from spikecore.lang import Program
from spikecore.lang._plain import is_compiling, is_exporting
from spikecore.lang._program import repeated

#: Unique id of a definition until the hash of its program is known.
_definitions = itertools.count()
_UNTRACED = "definition "
#: Types of values that never change. An attribute that is set to the object that it was has changed nothing.
_FIXED = (bool, int, float, str, type(None))


#: The fields of a Spec, in order; the last one where there is feedback.
SpecKey = Union[
    Tuple[torch.dtype, Optional[int], Tuple[str, ...], Tuple[str, ...], bool],
    Tuple[torch.dtype, Optional[int], Tuple[str, ...], Tuple[str, ...], bool, Feedback],
]
#: Behind the type of device in the kind of a call that torch.export traces.
EXPORTED = " (exported)"
#: Type of device, fields of the Spec, whether gradients, gradients of the state, and a record are asked for, and
#: whether the inputs are parameters of the program.
CallKind = Tuple[str, SpecKey, bool, bool, bool, bool]


@dataclass
class DefinitionCache:
    """All that was derived from a neuron's definition. It is replaced as a whole when the definition changes.

    A call reads it once: while another thread changes the definition, the call goes on with the one it began with.
    """

    #: What torch.compile guards: the key of the program once that is known, a unique id before.
    stamp: str
    #: Device type -> the backend that computes there. It stays when the definition changes.
    bound: Dict[str, Resolved]
    program: Optional[Program] = None
    #: The numbers of the surrogates: the values of ``program.numbers``, by name.
    numbers: Dict[str, float] = field(default_factory=dict)
    #: The values of ``configuration`` when it was traced.
    settings: Tuple[Any, ...] = ()
    #: Whether the program is the same in training and in ``eval()``.
    in_both_modes: bool = False
    #: Kind of call -> its runner. Keys are content: neurons of one program share compiled code, and agree on the keys.
    runners: Dict[CallKind, Runner] = field(default_factory=dict)
    #: The same of programs that other modules make of this one, by keys of their own: ``NormNeuron``.
    derived: Dict[Any, Runner] = field(default_factory=dict)
    #: Calls that passed every check, by their kind: an :class:`~spikecore._shell.earlier.Earlier`, or what such a
    #: module notes of its calls.
    quick: Dict[Tuple[Any, ...], Any] = field(default_factory=dict)


class Bound(Stateful):
    """A stateful module with a program, and backends that run it."""

    #: name -> default value.
    params: Mapping[str, Any] = {}

    #: What was derived from the definition; no part of a copy. This one is of a neuron that is not made yet.
    _cache: DefinitionCache = DefinitionCache("", {})
    _request: Request

    @property
    def program(self) -> Program:
        """This neuron's dynamics as a program, as they were when they were traced; see :meth:`retrace`."""
        return self._traced()

    def retrace(self) -> None:
        """Trace ``dynamics`` again, for what it reads beside attributes of the neuron.

        A program is what ``dynamics`` gave when it was traced: before the first call, and again whenever an attribute
        of the neuron is set, deleted, registered, loaded or moved. Call this after a change of anything else that it
        reads: an attribute with a leading underscore, a global, a closure, an attribute of a class, or what a list, a
        dict, an array, a module or another object holds, an attribute of the neuron or not. Where the program is the
        same, nothing is compiled again.
        """
        self._redefine()
        self._traced()

    def _trace(self) -> Traced:
        """The definition, traced now."""
        raise NotImplementedError(f"{type(self).__name__} must define _trace")

    def _settings(self) -> Tuple[Any, ...]:
        return tuple(map(self.__dict__.get, self.configuration))

    def _traced(self) -> Program:
        """The program, traced now if it was not, or if a setting was written past ``__setattr__``."""
        if self._cache.program is not None and self._cache.settings != self._settings():
            self._forget()
        cache = self._cache
        if cache.program is None:
            cache.settings = self._settings()
            found = self._trace()
            cache.numbers = found.numbers
            cache.program = found.program
            return found.program
        return cache.program

    @property
    def backend(self) -> Optional[str]:
        """The name that was asked for, by argument or context; None if context, environment and auto decide."""
        return self._request.name

    @backend.setter
    def backend(self, name: Optional[str]) -> None:
        ask(self.modules(), request(name, "set_backend()"))

    @property
    def bound(self) -> Mapping[str, Resolved]:
        """Device type -> the backend that computes there for this neuron, and why. Empty before the first call."""
        return dict(self._cache.bound)

    def _ask(self, request: Request) -> None:
        self.__dict__["_request"] = request
        self._forget(binding=True)

    def _bind(self, device_type: str) -> Resolved:
        bound = self._cache.bound
        if device_type not in bound:
            bound[device_type] = resolve(self._request, device_type)
        return bound[device_type]

    def _computes(self, device_type: str) -> Resolved:
        """The backend of the next call. An exported program is run elsewhere, without spikecore, whose kernels it
        cannot have: it gets the reference's operations, whatever backend was asked for.
        """
        return resolve(request(REFERENCE, "torch.export"), device_type) if is_exporting() else self._bind(device_type)

    def _forget(self, binding: bool = False) -> None:
        """Drop what was derived from the definition, and with ``binding`` the chosen backends, too."""
        bound = {} if binding or "_cache" not in self.__dict__ else self._cache.bound
        self.__dict__["_cache"] = DefinitionCache(f"{_UNTRACED}{next(_definitions)}", bound)

    @compiled.uncompiled
    def _redefine(self) -> None:
        """Forget what calls derived, and trace the definition again if it was traced.

        It is traced now and not in the next call, because torch.compile guards the stamp: of a program that is the same
        nothing is compiled again.
        """
        before = self._cache
        if before.program is None:
            return
        self._forget()
        cache = self._cache
        try:
            program = self._traced()
        except Exception:  # the next call traces again, and says what is wrong
            return
        if program == before.program and self._cache is cache:
            self.__dict__["_cache"] = replace(
                before, settings=cache.settings, numbers=cache.numbers, in_both_modes=False, quick={}
            )

    def _changed(self, name: str) -> None:
        """An attribute was set, deleted or registered; one with a leading underscore is data, and changes nothing."""
        if name.startswith("_") or name in self.params or "_cache" not in self.__dict__:
            return
        before = self._cache
        if name != "training":
            self._redefine()
        elif not before.in_both_modes:
            self._redefine()
            self._cache.in_both_modes = before.program is self._cache.program is not None

    def train(self, mode: bool = True) -> Any:
        """As of ``nn.Module``; ``dynamics`` may read the mode of a module in the neuron, which is set after its own."""
        super().train(mode)
        if self._modules:
            self._redefine()
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        held = self.__dict__
        before = held.get(name, held)
        super().__setattr__(name, value)
        after = held.get(name)
        if after is not before or type(after) not in _FIXED:
            self._changed(name)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._changed(name)

    def register_parameter(self, name: str, param: Optional[nn.Parameter]) -> None:
        """As of ``nn.Module``; see :meth:`retrace`."""
        super().register_parameter(name, param)
        self._changed(name)

    def register_buffer(self, name: str, tensor: Optional[Tensor], persistent: bool = True) -> None:
        """As of ``nn.Module``; see :meth:`retrace`."""
        super().register_buffer(name, tensor, persistent)
        self._changed(name)

    def add_module(self, name: str, module: Optional[nn.Module]) -> None:
        """As of ``nn.Module``; see :meth:`retrace`."""
        super().add_module(name, module)
        self._changed(name)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        result = super()._apply(fn, *args, **kwargs)
        self._redefine_if_read()
        return result

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._redefine_if_read()

    def _redefine_if_read(self) -> None:
        """After all tensors changed: those in ``params`` are arguments, so that only others can change the program."""
        if self._modules or not self.params.keys() >= {*self._parameters, *self._buffers}:
            self._redefine()

    def _stamp(self) -> str:
        """The stamp, settled first: torch.compile guards it, and would compile anew where a later call settles it."""
        if is_compiling():
            self._settle()
        return self._cache.stamp

    def _settle(self) -> None:
        """Take the program's key as the stamp, so that neurons of one program share what torch.compile makes."""
        if self._cache.stamp.startswith(_UNTRACED):
            key = self._traced().key
            self._cache.stamp = key

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_cache"}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget(binding=True)

    # torch.compile runs these when it meets them and takes what they return as a constant: hashing and loading
    # cannot be traced. What it compiled is used again while ``stamp``, which it guards, is the same.

    def _used(self, stamp: str) -> Tuple[str, ...]:
        """Names of the neuron's own parameters that the program reads; the surrogate's numbers come behind them."""
        program = self._traced()
        return program.params[: len(program.params) - len(program.numbers)]

    def _find(
        self,
        device_type: str,
        spec: SpecKey,
        gradients: bool,
        state_gradients: bool,
        record: bool,
        stamp: str,
        constant: bool = False,
    ) -> CallKind:
        """The key of ``runners`` for calls of this kind, whose runner is there afterwards.

        ``constant``: the inputs are parameters of the program, see :mod:`spikecore.lang._program`.
        """
        where = device_type + EXPORTED if is_exporting() else device_type
        key = (where, spec, gradients, state_gradients, record, constant)
        cache = self._cache
        if key not in cache.runners:
            program, resolved, wanted = self._traced(), self._computes(device_type), Spec(*spec)
            if constant:
                program = repeated(program).program
            lacks = functools.partial(
                lacking,
                program=program,
                spec=wanted,
                gradients=gradients,
                state_gradients=state_gradients,
                record=record,
            )
            calls = Calls(device_type, program, wanted, lacks)
            cache.runners[key] = runner_of(resolved, calls, type(self).__name__)
        return key

    def _constant_names(self, device_type: str, gradients: bool, stamp: str) -> Tuple[str, ...]:
        """For each input of a call with ``repeat`` the parameter in its place, "" if the program does not read it.
        Nothing where the backend has no such parameters, or no gradients of them.
        """
        has = self._computes(device_type).backend.capabilities_on(device_type)
        if not has.full_parameters or (gradients and not has.parameter_gradients):
            return ()
        return repeated(self._traced()).names

    def named_values(self) -> Dict[str, Union[float, Tensor]]:
        """The value of each parameter of :attr:`program`, by name and in its order: this neuron's own parameters as
        they are, numbers or tensors, and behind them the numbers of its surrogate.
        """
        self._traced()
        return dict(self._values())

    def _values(self) -> List[Tuple[str, Any]]:
        """The parameters of the program, by name: the neuron's own, and the numbers of its surrogate."""
        return [*[(name, getattr(self, name)) for name in self._used(self._stamp())], *self._cache.numbers.items()]

    def _in_graph(self, x: Tensor) -> Optional[Tensor]:
        """The output of a call at rest as one op of the graph that torch.compile makes; None for another call.

        Whatever is looked at here or in ``_execute``, torch guards in every call of the graph: a neuron with 260 guards
        took 12 us for them. What depends on the stamp alone is left to ``_graph_kind``, which torch does not look into.
        The runner is looked at: neurons of one stamp, and one neuron at two times, may have different backends.
        """
        if not x.ndim:  # refused where every call is checked
            return None
        values = [value for _, value in self._values()]
        for value in values:
            if not isinstance(value, float):
                return None
        steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
        grad = torch.is_grad_enabled()
        kind = self._graph_kind(
            x.dtype, x.device.type, x.layout, x.ndim, steps, grad and x.requires_grad, self._stamp()
        )
        return None if kind is None else in_graph(self._cache.runners[kind], x, values)

    def _graph_kind(
        self,
        dtype: torch.dtype,
        device_type: str,
        layout: torch.layout,
        dims: int,
        steps: Optional[int],
        gradients: bool,
        stamp: str,
    ) -> Optional[CallKind]:
        """The key of ``runners`` for calls at rest with one such input, whose parameters are numbers; None for a call
        that is checked as every other.
        """
        program = self._traced()
        # an input that is refused is refused where every call is checked
        if dtype not in NAMES or layout is not torch.strided or not dims or steps == 0 or len(program.inputs) != 1:
            return None
        if self._left_out(device_type, stamp):
            return None
        spec = (dtype, steps, ("number",) * len(program.params), (), False)
        return self._find(device_type, spec, gradients, False, False, stamp)

    def _left_out(self, device_type: str, stamp: str) -> bool:
        """Whether a call breaks the graph that torch.compile makes: the backend does not declare ``torch_compile``.

        Raises :class:`Unsupported` where the graph must be whole.
        """
        resolved = self._computes(device_type)
        if resolved.backend.capabilities_on(device_type).torch_compile:
            return False
        if compiled.must_be_whole():
            raise Unsupported(checks.unsupported(resolved, type(self).__name__, ("torch_compile",), device_type))
        return True

    # what torch.compiler.assume_constant_result sets, without importing the compiler with spikecore
    _used._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes
    _find._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
    _settle._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
    _constant_names._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
    _graph_kind._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
    _left_out._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above


def request(backend: Optional[str], source: str) -> Request:
    """The request for this backend, whose name is checked; ``source`` is who asks, in the words that errors use."""
    if backend is not None and not isinstance(backend, str):
        raise TypeError(f"backend={checks.shown(backend)} must be a backend's name, 'auto' or None")
    return Request(None, "") if backend is None else capture(backend, source)


def ask(modules: Iterable[nn.Module], asked: Request) -> None:
    """Ask for a backend in those modules that have a program."""
    for module in modules:
        if isinstance(module, Bound):
            module._ask(asked)


@contextmanager
def chosen_anew(modules: Iterable[nn.Module], asked: Optional[Request] = None) -> Iterator[None]:
    """Within the block neurons choose backends and make runners anew, under ``asked`` if given; then as before."""
    held = [(module, module._request, module._cache) for module in modules if isinstance(module, Bound)]
    try:
        for module, before, _ in held:
            module._ask(before if asked is None else asked)
        yield
    finally:
        for module, before, cache in held:
            module.__dict__.update(_request=before, _cache=cache)


def backend_on(neuron: Bound, device_type: str) -> Backend:
    """The backend that computes this neuron on devices of this type; it is bound now if it was not."""
    return neuron._bind(device_type).backend


def numbers_of(module: nn.Module) -> Dict[str, float]:
    """The numbers of a neuron's surrogates, by name; empty for another module, and before its definition is traced."""
    return module._cache.numbers if isinstance(module, Bound) else {}


def values_of(neuron: Bound) -> List[Tuple[str, Any]]:
    """The parameters of a neuron's program, by name: its own, and the numbers of its surrogate."""
    return neuron._values()
