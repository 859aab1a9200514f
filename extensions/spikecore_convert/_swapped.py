"""Modules in the places of those of other libraries, with their classes, keys, attributes and states; and the report of
a conversion.

The states that such a module keeps are those of its neuron, too, so that ``sc.reset``, ``sc.detach`` and the steps of
``sc.training_model`` reach them: whichever changed last counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import (
    Any,
    Callable,
    ClassVar,
    Container,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import torch
from torch import Tensor, nn

from spikecore.context import compile_time
from spikecore.core.state import State, Stateful, check_exported, keep
from spikecore.lang.render import on_one_line
from spikecore.layers import NormNeuron
from spikecore.words import shown

T = TypeVar("T")
#: Change of a network: called, it gives a module that stands in the place of another one, and its description.
Change = Callable[[], Tuple[nn.Module, str]]


class Left(Exception):
    """The reason why a module stays as it is, one sentence without its end."""


def built(what: str, build: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``build(*args, **kwargs)``; a module whose numbers it refuses is left."""
    try:
        return build(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise Left(f"{what} are refused here: {error}") from error


def not_converted(kind: type, package: str, known: Container[str]) -> Left:
    """The reason why a neuron of a class that has no row stays as it is."""
    base = next((base.__name__ for base in kind.__mro__ if base.__module__.startswith(package)), "")
    if not kind.__module__.startswith(package) and base in known:
        return Left(f"a class of its own, which may compute something else than the {base} that it inherits")
    return Left("no neuron here has its equations")


_IN_PLACE = "sc.convert(net) changes net in place and gives a report, so do not write net = sc.convert(net)"


@dataclass(frozen=True)
class Conversion:
    """Report of :func:`spikecore.convert`. Printed, it is one line for each module.

    replaced: name of a module in the network -> its class, and what computes it now: ``"LIFNode -> LIF(tau=2, ...)"``.
    left: name of a module of the other library that keeps a state of its own, or is a neuron, and runs as before -> its
        class and the reason.

    Names are those of ``net.named_modules()``; that of the network itself is empty. A neuron in a plain list or dict
    has that of its place, ``"layers[0]"``. Layers and containers without state
    (``layer.Conv2d``, ``SeqToANNContainer``) are in neither: they are PyTorch's computation, and run as before.
    """

    replaced: Dict[str, str]
    left: Dict[str, str]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Conversion has no attribute {name!r}; {_IN_PLACE}")

    def __call__(self, *inputs: Any) -> None:
        """Raises TypeError, for ``net = sc.convert(net)``."""
        raise TypeError(f"a Conversion is no network; {_IN_PLACE}")

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.left)} left"]
        for mark, rows in (("", self.replaced), ("left: ", self.left)):
            lines += [f"  {name or 'the network itself'}: {mark}{what}" for name, what in rows.items()]
        return "\n".join(map(on_one_line, lines))


class Swapped:
    """Base of the classes that :func:`swapped` makes: copies and pickles find them by the class that they came from."""

    #: The methods that were put before those of the class :attr:`_was`.
    _kind: ClassVar[Any]
    _was: ClassVar[Any]
    #: A neuron of spikecore computes it.
    is_converted = True

    def __reduce__(self) -> Any:
        return _blank, (self._kind, self._was), self.__dict__.copy()


@lru_cache(maxsize=None)
def swapped(kind: Any, was: Any) -> Any:
    """The class ``was``, with the methods of ``kind`` before its own."""
    known = {"_kind": kind, "_was": was, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(was.__name__, (kind, was), known)


def _blank(kind: Any, was: Any) -> Any:
    made = swapped(kind, was)
    return made.__new__(made)


class Named(Swapped):
    """A module with a neuron, whose entries in ``state_dict`` and attributes of old are partly the neuron's."""

    #: A :class:`spikecore.Neuron`, or what has its state.
    neuron: Any
    #: Their attribute -> that of the neuron.
    _names: Mapping[str, str]
    #: The keys of ``state_dict`` in the order that they had before.
    _keys: Tuple[str, ...] = ()
    #: Attributes that would change nothing -> what to set instead.
    _fixed: ClassVar[Mapping[str, str]] = {}

    @property
    def cell(self) -> Any:
        """The neuron itself, without the normalisation that :func:`spikecore.fuse` gives it."""
        neuron = self.__dict__["_modules"]["neuron"]
        return neuron.neuron if isinstance(neuron, NormNeuron) else neuron

    @property
    def _path(self) -> str:
        """The path of the neuron itself, and a dot behind it."""
        return "neuron." if self.cell is self.__dict__["_modules"]["neuron"] else "neuron.neuron."

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__
        if name in attributes.get("_names", ()):
            return getattr(self.cell, attributes["_names"][name])
        self._before(name)
        return super().__getattr__(name)  # type: ignore[misc]  # of nn.Module, which is a base of every such class

    def __setattr__(self, name: str, value: Any) -> None:
        names = self.__dict__.get("_names", {})
        if name in names:
            setattr(self.cell, names[name], value)
        elif name in self._fixed:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set since sc.convert: {self._fixed[name]}")
        else:
            self._check(name, value)
            super().__setattr__(name, value)
            self._after(name)

    def _before(self, name: str) -> None:
        """Before an attribute is read that this module may not have yet."""

    def _check(self, name: str, value: Any) -> None:
        """Before an attribute is set."""

    def _after(self, name: str) -> None:
        """After an attribute was set."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Entries of the neuron stand under the name of this module, all of them in the order that they had."""
        prefix = kwargs.get("prefix", "")
        entries = super().state_dict(*args, **kwargs)  # type: ignore[misc]  # of nn.Module
        theirs, path = {ours: name for name, ours in self._names.items()}, self._path
        renamed = {}
        for key in [key for key in entries if key.startswith(prefix)]:
            name = key[len(prefix) :]
            if name.startswith(path):
                name = theirs.get(name[len(path) :], name[len(path) :])
            renamed[name] = entries.pop(key)
        for name in (*self._keys, *[name for name in renamed if name not in self._keys]):
            if name in renamed:
                entries[prefix + name] = renamed[name]
        return entries

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # the neuron, whose turn is next, looks below its own name
        ours = {*self.__dict__["_parameters"], *self.__dict__["_buffers"], *self.__dict__["_modules"]}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key[len(prefix) :]
            if name.partition(".")[0] not in ours:
                state_dict[f"{prefix}{self._path}{self._names.get(name, name)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]  # of nn.Module
        missing, unexpected, errors = args[-3:]
        self.__dict__["_load_report"] = _LoadReport(prefix, missing, unexpected, errors, len(errors))


class _LoadReport(NamedTuple):
    """The lists of a ``load_state_dict`` that runs, and how many errors there were before the neuron's turn."""

    prefix: str
    missing: List[str]
    unexpected: List[str]
    errors: List[str]
    before: int


def _report_old_names(module: Any, _incompatible: Any) -> None:
    """After a ``load_state_dict``: what the neuron said of its entries, by the names that ``state_dict`` has."""
    prefix, missing, unexpected, errors, before = module.__dict__.pop("_load_report")
    inner = re.compile(rf"(?<![\w.]){re.escape(prefix + module._path)}((?:[\w.]*\w)?)")
    theirs = {ours: name for name, ours in module._names.items()}
    for names, start in ((missing, 0), (unexpected, 0), (errors, before)):
        names[start:] = [
            inner.sub(lambda match: prefix + theirs.get(match[1], match[1]), name) for name in names[start:]
        ]


class Carrying(Named):
    """A module that continues from its last call, as its neuron would with ``step="single"``."""

    #: Their name of a state -> the neuron's.
    _states: Mapping[str, str]
    #: Attributes that the module keeps beside states.
    _beside: ClassVar[Tuple[str, ...]] = ()
    #: The neuron's state when it was last that of this module.
    _agreed: Optional[State] = None

    def __repr__(self) -> str:
        """Without the neuron's ``step='single'``, by which it carries its state: this module says what a call takes."""
        return super().__repr__().replace(", step='single'", "")

    def _storage(self) -> Dict[str, Any]:
        """Storage of the states."""
        raise NotImplementedError

    def _rest(self, name: str) -> Any:
        """The value of a state at rest."""
        raise NotImplementedError

    def _check_carried(self) -> None:
        """Refuse a state from before torch.export, as a neuron with ``step="single"`` does."""
        self._check_traced(self.cell.state is None)

    @compile_time  # it asks for the state of now
    def _check_traced(self, at_rest: bool) -> None:
        if not at_rest:
            # what the compiler reads in this graph has not been set yet: a state here is one from before
            check_exported(type(self).__name__, self.cell.state)

    def _follow(self) -> None:
        """Take the neuron's state, if something else than this module changed it."""
        state = self.cell.state
        if state is self._agreed:
            return
        memory = self._storage()
        for name, ours in self._states.items():
            memory[name] = self._rest(name) if state is None else _as_stored(memory[name], state[ours])
        for name in self._beside:
            memory[name] = self._rest(name) if state is None else _detached(memory[name])
        self.__dict__["_agreed"] = state

    def _agree(self) -> None:
        memory = self._storage()
        state = None
        if any(isinstance(memory[name], Tensor) or memory[name] != self._rest(name) for name in self._states):
            # a number stands for a tensor that is made when the next input gives its shape; as a state that is not
            # None it is one that sc.reset takes back
            state = {ours: _tensor(memory[name]) for name, ours in self._states.items()}
        keep(self.cell, state)
        self.__dict__["_agreed"] = state

    def _before(self, name: str) -> None:
        if name in self.__dict__.get("_states", ()) or name in self._beside:
            self._follow()

    def _check(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_states", ()) and not isinstance(value, (Tensor, Real)):
            raise TypeError(
                f"{type(self).__name__}.{name} is a state, a tensor or a number, got {shown(value)}; to put it to "
                "rest, call sc.reset"
            )

    def _after(self, name: str) -> None:
        if name in self.__dict__.get("_states", ()):
            self._agree()

    def __reduce__(self) -> Any:
        self._follow()
        build, made_of, content = super().__reduce__()
        without_graph = {key: dict(value) for key, value in content.items() if value is self._storage()}
        for memory in without_graph.values():
            memory.update({name: _detached(memory[name]) for name in (*self._states, *self._beside)})
        seen = {"v_seq": _detached(content["v_seq"])} if "v_seq" in content else {}
        # not None, which sc.reset of the copy would not change: the copy asks its neuron first
        return build, made_of, {**content, **without_graph, **seen, "_agreed": {}}


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(float(value))


def _as_stored(before: Any, value: Tensor) -> Any:
    """A state of the neuron as the other library keeps it: of a number that was set, :func:`_tensor` made ``value``."""
    if value.ndim or (isinstance(before, Tensor) and not before.ndim):
        return value
    number = value.item()
    # the number itself, which may have more digits
    return before if not isinstance(before, Tensor) and _tensor(before).item() == number else number


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


#: Tables of the hooks of calls, to which the handles of hooks refer.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def counterpart(module: nn.Module, kind: Any) -> Any:
    """Another module with the content of ``module``, whose class has the methods of ``kind`` before those of its own.
    Tensors, parts and hooks are the same, so that the handle of a hook removes it; ``module`` stays as it is.
    """
    made = _blank(kind, type(module))
    made.__dict__.update(
        {
            name: value.copy() if isinstance(value, dict) and not name.startswith(_HOOKS) else value
            for name, value in vars(module).items()
        }
    )
    return made


def with_neuron(
    module: nn.Module,
    kind: Any,
    neuron: Stateful,
    names: Mapping[str, str],
    states: Mapping[str, str],
    learnt: Sequence[str] = (),
) -> Any:
    """The :func:`counterpart` of ``module`` of ``kind``, which ``neuron`` computes.

    The neuron gets its parameters, ``learnt`` and others, such as one of a layer of feedback: so ``net.parameters()``
    keeps its order, by which a saved optimiser finds them. ``net.state_dict()`` keeps the order of its keys.
    """
    made = counterpart(module, kind)
    for name in learnt:
        neuron.register_parameter(name, made._parameters[name])
    names = {**{name: name for name in made._parameters}, **names}
    for name, value in made._parameters.items():
        neuron._parameters[names[name]] = neuron._parameters.pop(names[name], value)
    for name in (*names, *kind._fixed):
        if name not in kind.stays:
            for table in (made.__dict__, made._parameters, made._buffers, made._modules):
                table.pop(name, None)
    # parameters of a module come before those of its children
    parts = {"neuron": neuron, **made._modules}
    made.__dict__.update(_names=names, _states=dict(states), _keys=tuple(module.state_dict()), _modules=parts)
    made.register_load_state_dict_post_hook(_report_old_names)
    return made
