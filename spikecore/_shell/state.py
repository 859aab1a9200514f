"""State between calls.

Rules of this module:

- State is a plain attribute: never a buffer (DistributedDataParallel would overwrite it), never in ``state_dict``.
- A multi-step call starts at rest and leaves nothing behind, unless :func:`spikecore.carry_state` is active. A
  single-step call continues from the last one until :func:`spikecore.reset`.
- Copies (``deepcopy``, ``pickle``) keep the values of a single-step state and drop its graph; ``.to()`` moves the state
  along.
- While torch computes a checkpointed part of a network again, state is that of the recomputation
  (:mod:`spikecore._shell.recompute`): ``slot_of`` says where it is held.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, ClassVar, Collection, Dict, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from spikecore._base.words import a_kind
from spikecore._shell import checks, compiled, freed, misnamed, processes, recompute, replicas, reuse, watchers
from spikecore.backend import BackendError
from spikecore.lang._plain import is_batched, is_compiling, is_transforming

State = Dict[str, Tensor]


#: What is known of a state, and holds for one that no call has made. ``_cut``: the region whose end its gradient cannot
#: pass, see :mod:`spikecore._shell.recompute`. ``_passed``: whether backward came through the call that made it, see
#: :mod:`spikecore._shell.freed`. ``_calls``: where this was called since it began at rest, see
#: :mod:`spikecore._shell.reuse`.
_AT_REST: Dict[str, Any] = {"_cut": 0, "_passed": None, "_calls": None}


class Stateful(nn.Module):
    """A module with state over time. ``step`` is ``"multi"`` (input ``[T, *N]``) or ``"single"`` (input ``[*N]``)."""

    step: str
    #: Attributes of configuration -> how their values are checked, in the constructor and whenever they are set.
    configuration: ClassVar[Mapping[str, checks.Check]] = {"step": checks.step}

    #: Whether it may be without a state although the network runs, as a dropout in ``eval()``.
    may_rest: ClassVar[bool] = False
    #: Whether a multi-step call ever continued: a recomputation may have to, although ``carry_state`` has ended.
    _has_carried = False
    _cut: int
    #: What is told of every call, see :mod:`spikecore._shell.watchers`.
    _watchers: Tuple[watchers.Watcher, ...] = ()

    def __init__(self, step: str = "multi") -> None:
        super().__init__()
        self.step = step
        self._state: Optional[State] = None
        self._carrying = 0
        self.__dict__.update(_AT_REST)

    @property
    def state(self) -> Optional[State]:
        """The state that the next call continues from, by name; None at rest."""
        state: Optional[State] = slot_of(self)["_state"]
        return state

    @property
    def continues(self) -> bool:
        """Whether a call continues from the last one."""
        return self.step == "single" or slot_of(self)["_carrying"] > 0

    @property
    def carrying(self) -> bool:
        """Whether a block of :func:`spikecore.carry_state` is active, single-step neurons included."""
        return self._carrying > 0

    @compiled.uncompiled
    def _eagerly(self, *inputs: Any) -> Any:
        """``forward``, as a break in a compiled graph, which knows the state of now only."""
        return self.forward(*inputs)

    def _begin(self) -> recompute.Slot:
        """Where a call of ``forward`` that may continue finds its state, which is checked."""
        slot = slot_of(self, calls=True)
        if not (self.step == "single" or slot["_carrying"]):
            return slot
        if is_compiling():
            compiled.check_exported(type(self).__name__, slot["_state"])
            self._check_traced(slot["_state"] is None)
            return slot
        if slot is self.__dict__:
            before = None if slot["_state"] is None else slot["_calls"]
            now = slot["_calls"] = reuse.check_call(self, before)
            if now is not before and before is not None and now.token is not before.token:
                processes.check_micro_batch(self)
        if slot["_passed"] is not None:
            slot["_state"] = freed.guarded(type(self).__name__, slot["_state"], slot["_passed"], self._constant_states)
        return slot

    def _check_traced(self, at_rest: bool) -> None:
        before = self.__dict__["_calls"]
        now = self.__dict__["_calls"] = reuse.check_traced_call(self, before)
        if not at_rest and (before is None or now.graph is None or before.graph is not now.graph):
            # the first call in this graph, and what the compiler reads in it has not been set yet
            compiled.check_exported_first(type(self).__name__, self.__dict__["_state"])

    # torch.compile calls it when it traces, rather than tracing it: it reads the stack
    _check_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes

    def _end(self, slot: recompute.Slot, outputs: Sequence[Tensor], state: Optional[State]) -> None:
        """Keep the state after a call."""
        if not is_compiling() and is_transforming() and any(is_batched(value) for value in (state or {}).values()):
            raise RuntimeError(
                f"{type(self).__name__} carries its state, which torch.func.vmap would leave with a dimension that it "
                "hides from later calls; give the state and take it: out, state = neuron.run(x, state=state), where "
                "x has time first"
            )
        slot["_state"] = state
        if not is_compiling():
            slot["_passed"] = freed.watched(outputs, state)

    def _state_names(self) -> Optional[Mapping[str, bool]]:
        """The names of its states, and whether each has the shape of one time step; None: they are not declared."""
        return None

    def _constant_states(self) -> Collection[str]:
        """The states that no gradient passes from one call to the next."""
        return ()

    def _own_names(self) -> Collection[str]:
        """Attributes that are for others to set."""
        return tuple(self.configuration)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in self.__dict__ or name.startswith("_") or hasattr(type(self), name)):
            misnamed.check_new(self, name, value, self._own_names())
        check = self.configuration.get(name)
        super().__setattr__(name, value if check is None else check(type(self).__name__, name, value))

    def _replicate_for_data_parallel(self) -> Any:
        replicas.check_replica(self, self.continues)
        return super()._replicate_for_data_parallel()

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        if self._state is not None:
            # dtypes stay, and so does every bit: state is float32 or float64 whatever the parameters are turned into
            self.__dict__["_state"] = {name: _moved(fn(value), value) for name, value in self._state.items()}
        return super()._apply(fn, *args, **kwargs)

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks for."""
        raise BackendError(
            f"torch.jit.script cannot compile {a_kind(self)}, whose program is made when it is called; use "
            "torch.compile or torch.export, or torch.jit.trace with backend='torch'"
        )

    def __getstate__(self) -> Dict[str, Any]:
        content = {**self.__dict__, **_AT_REST, "_carrying": 0}
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

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.update(_AT_REST)


def _moved(converted: Tensor, value: Tensor) -> Tensor:
    return converted if converted.dtype == value.dtype else value.to(converted.device)


# What other modules of spikecore, and backends with a training step of their own, do with the state of a module.


def keep(module: Stateful, state: Optional[State]) -> None:
    """Have the next call of ``module`` continue from ``state``; None: from rest."""
    # past nn.Module.__setattr__, which would look for parameters and modules on every step
    slot = slot_of(module)
    slot["_state"] = state
    if not is_compiling():
        slot["_cut"], slot["_passed"] = 0, None
        if state is None:
            slot["_calls"] = None


def cut_graph(module: Stateful) -> None:
    """Detach the state that ``module`` carries; its values stay."""
    state = module.state
    if state is not None:
        keep(module, {name: value.detach() for name, value in state.items()})


def carry(module: Stateful) -> None:
    """Have multi-step calls continue, from rest on, until :func:`carry_no_more` was called as often."""
    slot = slot_of(module)
    if module.step == "multi" and not slot["_carrying"]:
        keep(module, None)
    slot["_carrying"] += 1
    module.__dict__["_has_carried"] = True


def carry_no_more(module: Stateful) -> None:
    """End one :func:`carry`; the last one drops the state of a multi-step module."""
    slot = slot_of(module)
    slot["_carrying"] -= 1
    if module.step == "multi" and not slot["_carrying"]:
        keep(module, None)


def watch(module: Stateful, watcher: watchers.Watcher) -> None:
    """Tell ``watcher`` of every call of ``module`` until :func:`unwatch`."""
    module.__dict__["_watchers"] = (*module._watchers, watcher)
    watchers.count(1)


def unwatch(module: Stateful, watcher: watchers.Watcher) -> None:
    """End one :func:`watch`."""
    left = tuple([one for one in module._watchers if one is not watcher])
    if left:
        module.__dict__["_watchers"] = left
    else:
        module.__dict__.pop("_watchers", None)
    watchers.count(-1)


def has_watchers(module: Stateful) -> bool:
    """Whether anything watches the calls of a module."""
    return bool(module._watchers)


def check_replay(modules: Sequence[Stateful]) -> None:
    """Raise RuntimeError if one of ``modules`` is watched: a CUDA graph that is replayed calls none of them."""
    for module in modules if watchers.active else ():
        if module._watchers:
            watchers.refuse_graph(type(module).__name__)


def slot_of(module: Stateful, calls: bool = False) -> recompute.Slot:
    """Where the state of ``module`` is held for what runs now, see :mod:`spikecore._shell.recompute`.

    ``calls``: what runs now is a call of the module.
    """
    if is_compiling():
        return _slot_eagerly(module, calls) if compiled.breaks() else module.__dict__
    if not (module._cut or recompute.possible()):
        return module.__dict__
    return recompute.slot(module, calls)


@compiled.uncompiled
def _slot_eagerly(module: Stateful, calls: bool) -> recompute.Slot:
    return slot_of(module, calls)


def own_names(module: Stateful) -> Collection[str]:
    """The attributes of ``module`` that are for others to set."""
    return module._own_names()


def names_of_state(module: Stateful) -> Optional[Mapping[str, bool]]:
    """The names of the states of ``module``, and whether each has the shape of one time step; None: not declared."""
    return module._state_names()
