"""Which backend computes a neuron, and the runners it compiled.

Rules of this module:

- What was asked is taken when a neuron is made; the backend is bound when the neuron first meets a device type; a
  runner is compiled for each kind of call. After that a call finds its runner with one look-up.
- Everything derived from the definition is forgotten when the definition changes, and is no part of a copy.
- Threads that come here together find the same runners.
"""

from __future__ import annotations

import functools
import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Container, Dict, Iterable, Iterator, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from spikecore._plugins.registry import AUTO_NAME
from spikecore._plugins.selection import REFERENCE, Request, Resolved, capture, resolve
from spikecore._shell import checks, definition
from spikecore._shell.automatic import Calls, automatic_runner
from spikecore._shell.needs import lacking
from spikecore._shell.state import Stateful
from spikecore._shell.watch import Watch
from spikecore.backend import Backend, Feedback, Runner, Spec, Unsupported
from spikecore.lang import Program
from spikecore.lang._plain import is_compiling, is_exporting
from spikecore.lang._renewal import Renewal, renewed
from spikecore.lang._repeated import repeated

#: Unique id of a definition until the hash of its program is known.
_definitions = itertools.count()
_UNTRACED = "definition "


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
    #: Names of the attributes that the traced definition depends on; None before it is traced.
    read: Optional[Container[str]] = None
    #: What was read, if it can change without being set.
    watched: Optional[Watch] = None
    #: What gives the numbers of another surrogate without tracing.
    renewal: Optional[Renewal] = None
    #: Kind of call -> its runner. Keys are content: neurons of one program share compiled code, and agree on the keys.
    runners: Dict[CallKind, Runner] = field(default_factory=dict)
    #: The same of calls in which the neuron normalises its input (see :mod:`spikecore._shell.prologue`).
    fused: Dict[Any, Runner] = field(default_factory=dict)
    #: Calls that passed every check, by their kind: an :class:`~spikecore._shell.earlier.Earlier`, or where the neuron
    #: normalises its input a :class:`~spikecore._shell.fused.FusedCall`.
    quick: Dict[Tuple[Any, ...], Any] = field(default_factory=dict)

    def with_runners_of(self, before: DefinitionCache) -> DefinitionCache:
        """This cache with the runners of another one whose program is the same."""
        alike = [value.hex() for value in self.numbers.values()] == [v.hex() for v in before.numbers.values()]
        quick = before.quick if alike else {}
        return replace(
            self,
            stamp=before.stamp,
            program=before.program,
            runners=before.runners,
            fused=before.fused,
            quick=quick,
        )


class Bound(Stateful):
    """A stateful module with a program, and backends that run it."""

    #: What was derived from the definition; no part of a copy. This one is of a neuron that is not made yet.
    _cache: DefinitionCache = DefinitionCache("", {})
    _request: Request

    @property
    def program(self) -> Program:
        """What the backend compiles."""
        raise NotImplementedError(f"{type(self).__name__} must define program")

    def _traced(self) -> Program:
        """The program, without checking whether the contents of attributes that it depends on have changed."""
        return self.program

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
        self._request = request
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

    def _follow(self) -> None:
        """Trace the program again if the contents of something that it depends on have changed."""
        before = self._cache
        if before.watched is not None and before.watched.has_changed(self):
            self._forget()
            self._resume(before)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._depends_on(name):
            super().__setattr__(name, value)
            return
        before = self._cache
        if name == "surrogate" and before.renewal is not None:
            super().__setattr__(name, value)
            if self._renew(value):
                return
        self._forget()
        super().__setattr__(name, value)
        self._resume(before)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if self._depends_on(name):
            self._forget()

    def _depends_on(self, name: str) -> bool:
        """Whether the definition may read this attribute."""
        read = self._cache.read
        if name == "training":  # train() and eval() set it even if no definition reads it
            return read is not None and name in read
        if name in definition.SHELL:
            return False
        return not name.startswith("_") if read is None else name in read

    def _resume(self, before: DefinitionCache) -> None:
        """Take back the runners of ``before``, the cache as it was, if the program has at most other numbers now.

        Annealing then compiles nothing, torch.compile included, which guards the stamp; nor does an attribute that
        picks no other program.
        """
        if before.program is None:
            return
        try:
            program = self.program
        except Exception:  # the next call traces again, and says what is wrong
            return
        if program == before.program:
            self.__dict__["_cache"] = self._cache.with_runners_of(before)

    def _renew(self, surrogate: Any) -> bool:
        """Take the numbers of another surrogate, if the program stays the same with it."""
        now = self._cache
        found = None if now.renewal is None or now.program is None else renewed(now.renewal, surrogate)
        if found is None or now.program is None:
            return False
        numbers = {name: found[name] for name in now.program.numbers}
        self.__dict__["_cache"] = replace(now, numbers=numbers, quick={})
        return True

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

        ``constant``: the inputs are parameters of the program, see :mod:`spikecore.lang._repeated`.
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
            runner: Runner
            if resolved.source == AUTO_NAME:
                runner = automatic_runner(resolved, Calls(device_type, program, wanted, lacks))
            elif lacks(resolved.backend.capabilities_on(device_type)):
                missing = lacks(resolved.backend.capabilities_on(device_type))
                raise Unsupported(checks.unsupported(resolved, type(self).__name__, missing, device_type))
            else:
                runner = resolved.backend.runner(program, wanted)
            cache.runners[key] = runner
        return key

    def _constant_names(self, device_type: str, gradients: bool, stamp: str) -> Tuple[str, ...]:
        """For each input of a call with ``repeat`` the parameter in its place, "" if the program does not read it.
        Nothing where the backend has no such parameters, or no gradients of them.
        """
        has = self._computes(device_type).backend.capabilities_on(device_type)
        if not has.full_parameters or (gradients and not has.parameter_gradients):
            return ()
        return repeated(self._traced()).names

    # what torch.compiler.assume_constant_result sets, without importing the compiler with spikecore
    _used._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes
    _find._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
    _settle._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
    _constant_names._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above


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
            module._request = before
            module.__dict__["_cache"] = cache


def backend_on(neuron: Bound, device_type: str) -> Backend:
    """The backend that computes this neuron on devices of this type; it is bound now if it was not."""
    return neuron._bind(device_type).backend


def numbers_of(module: nn.Module) -> Dict[str, float]:
    """The numbers of a neuron's surrogates, by name; empty for another module, and before its definition is traced."""
    return module._cache.numbers if isinstance(module, Bound) else {}


def traced_program(module: nn.Module) -> Optional[Program]:
    """A neuron's program if its definition was traced, whether or not it has changed since."""
    return module._cache.program if isinstance(module, Bound) else None
