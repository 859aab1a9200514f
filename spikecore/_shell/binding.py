"""Which backend computes a neuron, and the runners it compiled.

Rules of this module:

- What was asked is taken when a neuron is made; the backend is bound when the neuron first meets a device type; a
  runner is compiled for each kind of call. After that a call finds its runner with one look-up.
- Everything derived from the definition is forgotten when the definition changes, and is no part of a copy.
- Threads that come here together find the same runners.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from types import SimpleNamespace
from typing import Any, Container, Dict, Iterable, Mapping, Optional, Tuple

import torch
from torch import nn

from spikecore._plugins.registry import AUTO_NAME
from spikecore._plugins.selection import Request, Resolved, capture, resolve
from spikecore._shell import checks, definition
from spikecore._shell.automatic import Calls, automatic_runner
from spikecore._shell.earlier import Earlier
from spikecore._shell.needs import lacking
from spikecore._shell.state import Stateful
from spikecore._shell.watch import Watch
from spikecore.backend import Backend, Runner, Spec, Unsupported
from spikecore.lang import Program
from spikecore.lang._plain import is_compiling
from spikecore.lang._renewal import Renewal, renewed

#: Unique id of a definition until the hash of its program is known.
_definitions = itertools.count()
_UNTRACED = "definition "
#: What is no part of a copy.
_DERIVED = frozenset(
    ("_program", "_bound", "_names", "_compiled", "_quick", "_stamp", "_read", "_numbers", "_watched", "_renewal")
)


#: The fields of a Spec, in order.
SpecKey = Tuple[torch.dtype, Optional[int], Tuple[str, ...], Tuple[str, ...], bool]


class Bound(Stateful):
    """A stateful module with a program, and backends that run it."""

    _program: Optional[Program]
    _bound: Dict[str, Resolved]
    _names: Dict[Any, str]
    _compiled: SimpleNamespace
    #: Calls that passed every check, by their kind (see :mod:`spikecore._shell.earlier`).
    _quick: Dict[Tuple[Any, ...], Earlier]
    _stamp: str
    #: The numbers of the surrogates: the values of ``program.numbers``, by name.
    _numbers: Dict[str, float]
    #: Names of the attributes that the traced definition depends on; None before it is traced.
    _read: Optional[Container[str]] = None
    #: What was read, if it can change without being set.
    _watched: Optional[Watch] = None
    #: What gives the numbers of another surrogate without tracing.
    _renewal: Optional[Renewal] = None
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
        return dict(self._bound)

    def _ask(self, request: Request) -> None:
        self._request = request
        self._forget(binding=True)

    def _bind(self, device_type: str) -> Resolved:
        if device_type not in self._bound:
            self._bound[device_type] = resolve(self._request, device_type)
        return self._bound[device_type]

    def _forget(self, binding: bool = False) -> None:
        """Drop what was derived from the definition, and with ``binding`` the chosen backends, too."""
        stamp = f"{_UNTRACED}{next(_definitions)}"
        self.__dict__.update(_program=None, _names={}, _compiled=SimpleNamespace(), _quick={}, _stamp=stamp, _read=None)
        self.__dict__.update(_numbers={}, _watched=None, _renewal=None)
        if binding:
            self.__dict__["_bound"] = {}

    def _follow(self) -> None:
        """Trace the program again if the contents of something that it depends on have changed."""
        if self._watched is not None and self._watched.has_changed(self):
            before = dict(self.__dict__)
            self._forget()
            self._resume(before)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if self._depends_on(name):
            self._forget()

    def _depends_on(self, name: str) -> bool:
        """Whether the definition may read this attribute."""
        if name == "training":  # train() and eval() set it even if no definition reads it
            return self._read is not None and name in self._read
        if name in definition.SHELL:
            return False
        return not name.startswith("_") if self._read is None else name in self._read

    def _resume(self, before: Mapping[str, Any]) -> None:
        """Take back the runners of ``before`` (``__dict__`` as it was) if the program has at most other numbers now.

        Annealing then compiles nothing, torch.compile included, which guards the stamp; nor does an attribute that
        picks no other program.
        """
        if before.get("_program") is None:
            return
        try:
            program = self.program
        except Exception:  # the next call traces again, and says what is wrong
            return
        if program == before["_program"]:
            self.__dict__.update({name: before[name] for name in ("_program", "_names", "_compiled", "_stamp")})
            if [value.hex() for value in self._numbers.values()] == [v.hex() for v in before["_numbers"].values()]:
                self.__dict__["_quick"] = before["_quick"]

    def _renew(self, surrogate: Any) -> bool:
        """Take the numbers of another surrogate, if the program stays the same with it."""
        found = None if self._renewal is None or self._program is None else renewed(self._renewal, surrogate)
        if found is None or self._program is None:
            return False
        self.__dict__.update(_numbers={name: found[name] for name in self._program.numbers}, _quick={})
        return True

    def _settle(self) -> None:
        """Take the program's key as the stamp, so that neurons of one program share what torch.compile makes."""
        # not while torch.compile traces: what it guards must not change under it
        if self._stamp.startswith(_UNTRACED) and not is_compiling():
            self.__dict__["_stamp"] = self._traced().key

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in _DERIVED}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget(binding=True)

    # torch.compile runs these two when it meets them and takes what they return as a constant: hashing and loading
    # cannot be traced. What it compiled is used again while ``stamp``, which it guards, is the same.

    def _used(self, stamp: str) -> Tuple[str, ...]:
        """Names of the neuron's own parameters that the program reads; those of ``_numbers`` come behind them."""
        program = self._traced()
        return program.params[: len(program.params) - len(program.numbers)]

    def _find(
        self, device_type: str, spec: SpecKey, gradients: bool, state_gradients: bool, record: bool, stamp: str
    ) -> str:
        """The attribute of ``_compiled`` that holds the runner for calls of this kind."""
        key = (device_type, spec, gradients, state_gradients, record)
        name = self._names.get(key)
        if name is None:
            program, resolved, wanted = self._traced(), self._bind(device_type), Spec(*spec)
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
            # named by content: threads that come here together, and neurons of one program, agree on it
            name = "runner_" + hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()
            setattr(self._compiled, name, runner)
            self._names[key] = name
        return name

    # what torch.compiler.assume_constant_result sets, without importing the compiler with spikecore
    _used._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes
    _find._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above


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


def backend_on(neuron: Bound, device_type: str) -> Backend:
    """The backend that computes this neuron on devices of this type; it is bound now if it was not."""
    return neuron._bind(device_type).backend
