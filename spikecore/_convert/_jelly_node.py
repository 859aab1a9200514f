"""Nodes of SpikingJelly whose steps a neuron of spikecore computes, and containers that give it all steps at once.

A node keeps what SpikingJelly's tools know of it: memories (``v``), ``step_mode``, ``store_v_seq``, ``reset``, and the
functional form, which is what is written here. Its memories are the state of its neuron, too, so that ``sc.reset``,
``sc.detach`` and the steps of ``sc.training_model`` reach them: whichever changed last counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._hoisting import is_watched_itself
from spikecore._shell.state import State, keep
from spikecore.neuron import Neuron

Memories = Tuple[Any, ...]


class Swapped:
    """What classes made by :func:`swapped` share: copies and pickles find them by the class that they came from."""

    _was: ClassVar[Any]

    def __reduce__(self) -> Any:
        return _blank, (Swapped._kind(self), self._was), self.__dict__.copy()

    @staticmethod
    def _kind(module: Any) -> Any:
        return type(module).__mro__[1]


@lru_cache(maxsize=None)
def swapped(kind: Any, was: Any) -> Any:
    """The class ``was``, with the methods of ``kind`` before its own."""
    return type(was.__name__, (kind, was), {"_was": was, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _blank(kind: Any, was: Any) -> Any:
    made = swapped(kind, was)
    return made.__new__(made)


class Flat(Swapped):
    """A module whose entries in a ``state_dict`` are those of its child ``neuron``, under its own name."""

    #: A :class:`spikecore.Neuron`.
    neuron: Any

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the neuron."""
        return self.neuron.state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # the neuron, whose turn is next, looks below its own name
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}neuron.{key[len(prefix) :]}"] = state_dict.pop(key)


class Named(Flat):
    """A module whose attributes of old are those of its neuron."""

    #: Their attribute -> that of the neuron.
    _names: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__
        if name in held.get("_names", ()):
            return getattr(held["_modules"]["neuron"], held["_names"][name])
        self._before(name)
        return super().__getattr__(name)  # type: ignore[misc]  # of nn.Module, which is a base of every such class

    def __setattr__(self, name: str, value: Any) -> None:
        names = self.__dict__.get("_names", {})
        if name in names:
            setattr(self.neuron, names[name], value)
        elif name in ("v_reset", "surrogate_function"):
            ours = "reset and neuron.v_reset" if name == "v_reset" else "surrogate"
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be set since sc.convert; set neuron.{ours} of this module"
            )
        else:
            super().__setattr__(name, value)
            self._after(name)

    def _before(self, name: str) -> None:
        """Before an attribute is read that this module may not have yet."""

    def _after(self, name: str) -> None:
        """After an attribute was set."""


class Node(Named):
    """A spiking node. One call of one step or of all steps is one call of the neuron."""

    #: Their memory -> the neuron's state.
    _states: Mapping[str, str]
    step_mode: str
    store_v_seq: bool
    v_seq: Optional[Tensor]
    _memories: Dict[str, Any]
    _memories_rv: Dict[str, Any]
    #: The neuron's state when it was last that of the memories.
    _agreed: Optional[State] = None

    def _before(self, name: str) -> None:
        if name in self.__dict__.get("_states", ()):
            self._follow()

    def _after(self, name: str) -> None:
        if name in self.__dict__.get("_states", ()):
            self._agree()

    def __reduce__(self) -> Any:
        self._follow()
        build, made_of, held = super().__reduce__()
        memories = {name: _detached(value) for name, value in self._memories.items()}
        return build, made_of, {**held, "_memories": memories, "_agreed": None, "v_seq": _detached(self.v_seq)}

    def reset(self) -> None:
        """Memories are what they were at first."""
        super().reset()  # type: ignore[misc]  # of MemoryModule
        self._agree()

    @property
    def v_reset(self) -> Any:
        """None for a soft reset."""
        return self.neuron.v_reset if self.neuron.reset == "hard" else None

    @property
    def surrogate_function(self) -> Any:
        """The neuron's surrogate."""
        return self.neuron.surrogate

    def named_memories(self) -> Any:
        """Memories by name."""
        self._follow()
        yield from self._memories.items()

    def _follow(self) -> None:
        """Take the neuron's state for the memories, if something else than this node changed it."""
        state = self.neuron.state
        if state is not self._agreed:
            rest = self._memories_rv
            self._memories.update(
                {name: rest[name] if state is None else state[own] for name, own in self._states.items()}
            )
            self.__dict__["_agreed"] = state

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A call of one step or all steps, by ``step_mode``."""
        self._follow()
        out = super().forward(*args, **kwargs)  # type: ignore[misc]  # of MemoryModule
        self._agree()
        return out

    def _agree(self) -> None:
        memories = {own: self._memories[name] for name, own in self._states.items()}
        # numbers that SpikingJelly makes tensors of when it sees an input: rest, or what the user set
        state = memories if all(isinstance(value, Tensor) for value in memories.values()) else None
        keep(self.neuron, state)
        self.__dict__["_agreed"] = state

    def materialize_states(self, inputs: Sequence[Tensor], states: Memories, step_mode: str) -> Memories:
        """As they are: numbers become tensors within the call, and rest needs none."""
        return states

    def single_step_functional_forward(self, inputs: Sequence[Tensor], states: Memories, **_: Any) -> Any:
        """``((spikes,), memories)`` of one step ``[*N]``."""
        out, after, _trace = self._run(inputs[0].unsqueeze(0), states)
        return (out.squeeze(0),), after

    def multi_step_functional_forward(self, inputs: Sequence[Tensor], states: Memories, **_: Any) -> Any:
        """``((spikes,), memories)`` of all steps ``[T, *N]``."""
        out, after, _trace = self._run(inputs[0], states)
        return (out,), after

    def multi_step_forward(self, x_seq: Tensor) -> Tensor:
        """Spikes of all steps; the memories are those of the last one."""
        out, after, trace = self._run(x_seq, tuple(self._memories[name] for name in self._states), self.store_v_seq)
        self._memories.update(zip(self._states, after))
        if self.store_v_seq:
            self.v_seq = trace
        return out

    def all_steps(self, x_seq: Tensor) -> Tensor:
        """A call of all steps, whatever ``step_mode`` is."""
        self._follow()
        out = self.multi_step_forward(x_seq)
        self._agree()
        return out

    def _run(self, x: Tensor, memories: Memories, stored: bool = False) -> Tuple[Tensor, Memories, Optional[Tensor]]:
        state = self._start(x, memories)
        if stored:
            out, end, trace = self.neuron.run(x, state=state, record=("v",))
            return out, tuple(end[name] for name in self._states.values()), trace["v"]
        out, end = self.neuron.run(x, state=state)
        return out, tuple(end[name] for name in self._states.values()), None

    def _start(self, x: Tensor, memories: Memories) -> Optional[Dict[str, Tensor]]:
        """The neuron's state; None at rest. A memory of another shape is put to rest, as SpikingJelly does."""
        held = dict(zip(self._states, memories))
        shape, dtype = x.shape[1:], torch.float64 if x.dtype == torch.float64 else torch.float32
        rest = self._memories_rv
        for name, value in held.items():
            if isinstance(value, Tensor) and value.shape != shape:
                held[name] = rest[name]
        if all(not isinstance(value, Tensor) and value == rest[name] for name, value in held.items()):
            return None
        return {
            self._states[name]: value.to(x.device, dtype)
            if isinstance(value, Tensor)
            else torch.full(shape, float(value), dtype=dtype, device=x.device)
            for name, value in held.items()
        }

    def extra_repr(self) -> str:
        """The neuron says the rest."""
        return f"step_mode={self.step_mode}"


class ReadOut(Named):
    """``NonSpikingLIFNode``: potentials of all steps, from rest, and what ``decode`` makes of them."""

    decode: Optional[str]
    v: Tensor

    def forward(self, x_seq: Tensor) -> Any:
        """``[T, *N]``; without ``decode`` a list of the steps."""
        v = self.neuron(x_seq)
        self.v = v[-1]
        if self.decode == "max-mem":
            return v.max(0).values
        if self.decode == "max-abs-mem":
            high, low = v.max(0).values, v.min(0).values
            return high * (high.abs() > low.abs()) + low * (high.abs() <= low.abs())
        if self.decode == "mean-mem":
            return v.mean(0)
        return v[-1] if self.decode == "last_mem" else list(v.unbind(0))


class Steps(Swapped):
    """A container that calls its modules step by step: nodes get all steps at once, others one step after the other."""

    stateful = True
    step_mode = "m"
    #: The dimension of time.
    _time = 0

    def forward(self, x_seq: Tensor) -> Any:
        """As before, module after module instead of step after step."""
        if self.step_mode == "s" or not self.stateful:
            return super().forward(x_seq)  # type: ignore[misc]  # of the container
        y = x_seq.movedim(self._time, 0)
        for module in self:  # type: ignore[attr-defined]  # an nn.Sequential
            if isinstance(module, Node) and not (module.store_v_seq or _is_watched(module)):
                y = module.all_steps(y)
            else:
                y = torch.stack([module(now) for now in y.unbind(0)])
        return y.movedim(0, self._time)


def _is_watched(module: Any) -> bool:
    return is_watched_itself(module)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def become(module: nn.Module, kind: Any, neuron: Neuron, names: Mapping[str, str], states: Mapping[str, str]) -> None:
    """Make ``module`` one of ``kind`` that ``neuron`` computes. Their parameters are the neuron's already."""
    for name in (*names, "v_reset", "surrogate_function"):
        for held in (module.__dict__, module._parameters, module._modules):
            held.pop(name, None)
    module.__dict__["_names"], module.__dict__["_states"] = dict(names), dict(states)
    was: Any = type(module)
    module.__class__ = swapped(kind, was)
    module._modules["neuron"] = neuron
