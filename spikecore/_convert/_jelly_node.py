"""Nodes of SpikingJelly whose steps a neuron of spikecore computes, and containers that give it all steps at once.

A node keeps what SpikingJelly's tools know of it: memories (``v``), ``step_mode``, ``store_v_seq``, ``reset``, and the
functional form, which is what is written here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._convert._swapped import Carrying, Named, Swapped
from spikecore._shell.modules import is_watched_itself

Memories = Tuple[Any, ...]
FIXED = {"v_reset": "set neuron.reset and neuron.v_reset", "surrogate_function": "set neuron.surrogate"}


class Node(Carrying):
    """A spiking node. One call of one step or of all steps is one call of the neuron."""

    _fixed: ClassVar[Mapping[str, str]] = FIXED
    stays: ClassVar[Tuple[str, ...]] = ()
    step_mode: str
    store_v_seq: bool
    v_seq: Optional[Tensor]
    _memories: Dict[str, Any]
    _memories_rv: Dict[str, Any]

    def _held(self) -> Dict[str, Any]:
        return self._memories

    def _rest(self, name: str) -> Any:
        return self._memories_rv[name]

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A call of one step or all steps, by ``step_mode``."""
        self._check_carried()
        self._follow()
        out = super().forward(*args, **kwargs)  # type: ignore[misc]  # of MemoryModule
        self._agree()
        return out

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
        self._check_carried()
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

    stays: ClassVar[Tuple[str, ...]] = ()
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
