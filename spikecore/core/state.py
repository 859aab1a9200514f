"""State between calls.

Rules of this module:

- State is a plain attribute: never a buffer (DistributedDataParallel would overwrite it), never in ``state_dict``.
- A multi-step call starts at rest and leaves nothing behind, unless :func:`spikecore.carry_state` is active. A
  single-step call continues from the last one until :func:`spikecore.reset`.
- Copies (``deepcopy``, ``pickle``) keep the values of a single-step state and drop its graph; ``.to()`` moves the state
  along.
- A region of activation checkpointing that runs again begins with the state that it began with:
  :mod:`spikecore.parallel._checkpoint` puts that state here, and puts the state of now back.
- Calls that continue are counted since the last reset. :mod:`spikecore.functional` compares the counts of a network.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Collection, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.context import PLAIN, compile_time, is_batched, is_compiling, is_exporting, is_transforming
from spikecore.core import checks

State = Dict[str, Tensor]


#: The attribute that counts calls that continued since the last reset, on which no result depends.
CALL_COUNT = "_calls"
#: Members for authors of layers and tools, which completion does not show.
FOR_AUTHORS = frozenset(
    "carrying configuration continues follows makes_time may_rest named_values recordable transforms under "
    "vectors".split()
)


class Stateful(nn.Module):
    """A module with state over time.

    step: ``"multi"`` (input ``[T, *N]``) or ``"single"`` (input ``[*N]``).
    """

    step: str
    #: Attributes of configuration -> how their values are checked, in the constructor and whenever they are set.
    configuration: ClassVar[Mapping[str, checks.Check]] = {"step": checks.step}

    #: True if it may be without a state although the network runs, as a dropout in ``eval()``.
    may_rest: ClassVar[bool] = False
    #: Observers of every call, see :mod:`spikecore.core.observe`.
    _watchers: Tuple[Any, ...] = ()

    def __init__(self, step: str = "multi") -> None:
        """Arguments are those in the docstring of the class."""
        super().__init__()
        self.step = step
        self._state: Optional[State] = None
        self._carrying = 0
        self._calls = 0

    def __dir__(self) -> List[str]:
        """Names for completion: those that a user writes."""
        return sorted({*super().__dir__()} - FOR_AUTHORS)

    @property
    def state(self) -> Optional[State]:
        """The state that the next call continues from, by name; None at rest."""
        return self._state

    @property
    def continues(self) -> bool:
        """True if a call continues from the last one."""
        return self.step == "single" or self._carrying > 0

    @property
    def carrying(self) -> bool:
        """True within a block of :func:`spikecore.carry_state`, for single-step neurons, too."""
        return self._carrying > 0

    def _begin(self) -> Optional[State]:
        """The state that a call of ``forward`` continues from, which is checked."""
        state = self._state
        if is_compiling():
            self._check_traced(state is None)
        elif state is not None and torch.is_grad_enabled():
            constant = self._constant_states()
            if constant:  # backward would come through a graph that it has freed, for a gradient that is 0
                state = {name: value.detach() if name in constant else value for name, value in state.items()}
                self.__dict__["_state"] = state
        return state

    @compile_time  # it asks for the state of now
    def _check_traced(self, at_rest: bool) -> None:
        if not at_rest:
            # what the compiler reads in this graph has not been set yet: a state here is one from before
            check_exported(type(self).__name__, self._state)

    def _end(self, state: Optional[State]) -> None:
        """Keep the state after a call."""
        if not is_compiling():
            if is_transforming() and any(is_batched(value) for value in (state or {}).values()):
                raise RuntimeError(
                    f"{type(self).__name__} carries its state, which torch.func.vmap would leave with a dimension that "
                    "it hides from later calls; give the state and take it: out, state = neuron.run(x, state=state), "
                    "where x has time first"
                )
            self.__dict__["_calls"] += 1
        # past nn.Module.__setattr__, which would look for parameters and modules on every step
        self.__dict__["_state"] = state

    def _state_names(self) -> Optional[Collection[str]]:
        """The names of its states; None: they are not declared."""
        return None

    def _constant_states(self) -> Collection[str]:
        """The states that no gradient passes from one call to the next."""
        return ()

    if TYPE_CHECKING:  # a parameter may be a number, which nn.Module's own annotation leaves out

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        check = self.configuration.get(name)
        super().__setattr__(name, value if check is None else check(type(self).__name__, name, value))

    def _replicate_for_data_parallel(self) -> Any:
        raise RuntimeError(
            f"{type(self).__name__} is in an nn.DataParallel, which splits time and forgets the state of its replicas; "
            "use nn.parallel.DistributedDataParallel, or sc.parallel.Pipeline for a network that one GPU does not hold"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        if self._state is not None:
            # dtypes stay, and so does every bit: state is float32 or float64 whatever the parameters are turned into
            self.__dict__["_state"] = {name: _moved(fn(value), value) for name, value in self._state.items()}
        return super()._apply(fn, *args, **kwargs)

    def __getstate__(self) -> Dict[str, Any]:
        content = {**self.__dict__, "_calls": 0, "_carrying": 0}
        content.pop("_watchers", None)  # nobody asked to watch a copy
        if self.step == "multi":
            content["_state"] = None  # a copy made inside carry_state is not in its block, which could never end for it
        elif self._state is not None:
            content["_state"] = {name: value.detach() for name, value in self._state.items()}
        return content

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        # the class that torch.nn.utils.parametrize makes refuses __getstate__, and copies the whole __dict__ unless
        # there is a __deepcopy__
        kind: Any = type(self)
        made = [base for base in kind.__mro__ if base.__module__ == "torch.nn.utils.parametrize"]
        content = super(made[-1], self).__getstate__() if made else self.__getstate__()
        copied = kind.__new__(kind)
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(content, memo))
        return copied


def _moved(converted: Tensor, value: Tensor) -> Tensor:
    return converted if converted.dtype == value.dtype else value.to(converted.device)


# What torch.export must know of the state that a module carries.


def check_exported(owner: str, state: Optional[Mapping[str, Any]]) -> None:
    """Refuse a state from before torch.export, which the program would continue from in every call."""
    # what torch.export computed itself is of a type of its own
    if is_exporting() and any(type(value) in PLAIN for value in (state or {}).values()):
        raise RuntimeError(
            f"{owner} carries a state, which would be a constant of the exported program, whose calls all begin with "
            "it; call sc.reset(net) before torch.export"
        )


# What other modules of spikecore, and backends with a training step of their own, do with the state of a module.


def names_of_state(module: Stateful) -> Optional[Collection[str]]:
    """The names of the states of a module; None for a class that declares none."""
    return module._state_names()


def keep(module: Stateful, state: Optional[State]) -> None:
    """Have the next call of ``module`` continue from ``state``; None: from rest."""
    # past nn.Module.__setattr__, which would look for parameters and modules on every step
    module.__dict__["_state"] = state
    if state is None and not is_compiling():
        module.__dict__["_calls"] = 0


#: Attributes of a module that a continuing call reads and writes.
_CARRIED = ("_state", "_carrying", "_calls")


def carried(module: Stateful) -> Dict[str, Any]:
    """Carried attributes of ``module``, for :func:`put_back`."""
    return {name: module.__dict__[name] for name in _CARRIED}


def put_back(module: Stateful, before: Mapping[str, Any], state: Optional[State]) -> None:
    """Have ``module`` carry what it carried before, but with this state, whose graph is that of no call."""
    module.__dict__.update(before, _state=state)


def put(module: Stateful, state: Optional[State]) -> None:
    """Replace the state of ``module`` by that of another micro-batch; does not count as a call."""
    module.__dict__.update(_state=state)


def cut_graph(module: Stateful) -> None:
    """Detach the state that ``module`` carries; its values stay."""
    state = module.state
    if state is not None:
        keep(module, {name: value.detach() for name, value in state.items()})


def carry(module: Stateful) -> None:
    """Have multi-step calls continue, from rest on, until :func:`carry_no_more` was called as often."""
    if module.step == "multi" and not module._carrying:
        keep(module, None)
    module.__dict__["_carrying"] += 1


def carry_no_more(module: Stateful) -> None:
    """End one :func:`carry`; the last one drops the state of a multi-step module."""
    module.__dict__["_carrying"] -= 1
    if module.step == "multi" and not module._carrying:
        keep(module, None)


class Stepped(nn.Module):
    """A module whose input is ``[T, ...]`` with ``step="multi"``, and that of one step with ``step="single"``."""

    #: Reason why this module takes no single steps, and the way out; "" if it does.
    only_multi: ClassVar[str] = ""
    #: True if its output at one step depends on which step it is or on the others, so that it cannot stand where time
    #: and batch are one dimension.
    mixes_time: ClassVar[bool] = False
    _step = "multi"

    @property
    def step(self) -> str:
        """``"multi"`` or ``"single"``."""
        return self._step

    @step.setter
    def step(self, value: str) -> None:
        value = checks.step(type(self).__name__, "step", value)
        if value == "single" and self.only_multi:
            raise ValueError(f"{type(self).__name__}: step='single' is not possible: {self.only_multi}")
        self._step = value


# A module that draws: its generator, when it is copied and pickled.


def without_generator(state: Mapping[str, Any]) -> Dict[str, Any]:
    """The attributes of a module with device and state of its generator, which torch 2.0 cannot copy or pickle."""
    generator = state["generator"]
    return {**state, "generator": generator and (str(generator.device), generator.get_state())}


def with_generator(state: Mapping[str, Any]) -> Dict[str, Any]:
    """The attributes from :func:`without_generator`, with a generator again."""
    if state["generator"] is None:
        return dict(state)
    device, numbers = state["generator"]
    generator = torch.Generator(device=device)
    generator.set_state(numbers)
    return {**state, "generator": generator}
