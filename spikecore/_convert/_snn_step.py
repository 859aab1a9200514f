"""Neurons of snnTorch whose step a neuron of spikecore computes: the same call, ``spk, mem = lif(x, mem)``."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor

from spikecore._convert._swapped import Carrying

FIXED = {
    "spike_grad": "set neuron.surrogate",
    "reset_mechanism": "set neuron.reset, 'soft' (by subtraction), 'hard' or 'none',",
    "reset_delay": "set neuron.reset_delay",
    "inhibition": "convert a network without it, or leave the neuron; it has no counterpart in neuron",
    "state_quant": "convert a network without it, or leave the neuron; it has no counterpart in neuron",
}
#: By ``reset_mechanism_val``.
RESETS = ("soft", "hard", "none")


class Step(Carrying):
    """One step of a neuron, with states as arguments or, with ``init_hidden=True``, within."""

    _fixed: ClassVar[Mapping[str, str]] = FIXED
    stays: ClassVar[Tuple[str, ...]] = ("reset_delay", "inhibition", "state_quant")
    #: Names of the states in the order of the arguments.
    _order: Tuple[str, ...]
    init_hidden: bool
    output: bool
    graded_spikes_factor: Tensor

    def _held(self) -> Dict[str, Any]:
        # no buffers: an empty one is refused by PopTorch, and one that a call replaces as well
        held: Dict[str, Any] = self.__dict__["_memory"]
        return held

    def _rest(self, name: str) -> Any:
        return torch.zeros(0, device="cpu")

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_memory", ()):
            self._follow()
            return self._held()[name]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_memory", ()):
            self._check(name, value)
            self._held()[name] = value
            self._after(name)
        else:
            super().__setattr__(name, value)

    def reset_mem(self) -> Any:
        """Go to rest, as snnTorch's ``init_leaky()`` and its like do; the states."""
        held = self._held()
        for name in held:
            held[name] = self._rest(name)
        self._agree()
        states = tuple(held.values())
        return states if len(states) > 1 else states[0]

    @property
    def spike_grad(self) -> Any:
        """The neuron's surrogate."""
        return self.neuron.surrogate

    def forward(self, input_: Tensor, *states: Optional[Tensor], **named: Optional[Tensor]) -> Any:
        """``(spk, *states)`` after one step; with ``init_hidden`` and without ``output`` the spikes alone."""
        if not any(value is not None for value in (*states, *named.values())):
            self._check_carried()
        if states or named:
            self._take(states, named)
        else:
            self._follow()
        held = self._held()
        fits = [held[name].shape == input_.shape for name in self._states]
        start = None
        if any(fits):
            dtype = torch.float64 if input_.dtype == torch.float64 else torch.float32
            start = {
                own: held[name].to(dtype) if fit else torch.zeros_like(input_, dtype=dtype)
                for (name, own), fit in zip(self._states.items(), fits)
            }
        out, end = self._step(input_.unsqueeze(0), start)
        spk = out.squeeze(0) * self.graded_spikes_factor
        for name, own in self._states.items():
            held[name] = end[own]
        self._keep(spk)
        self._agree()
        if self.init_hidden and not self.output:
            return spk
        return (spk, *[held[name] for name in self._order if name not in self._beside])

    def _take(self, states: Tuple[Optional[Tensor], ...], named: Mapping[str, Optional[Tensor]]) -> None:
        """The states that are given, for those that are kept."""
        kind = type(self).__name__
        if len(states) > len(self._order):
            raise TypeError(f"{kind} takes an input and {len(self._order)} states, got {len(states)} states")
        given = {**dict(zip(self._order, states)), **named}
        for name in named:
            if name not in self._order:
                raise TypeError(f"{kind} has no state {name!r}; states: {', '.join(self._order)}")
        given = {name: value for name, value in given.items() if value is not None}
        if given and self.init_hidden:
            what = " or ".join(f"`{name}`" for name in self._order)
            raise TypeError(f"{kind}: {what} should not be passed as an argument while `init_hidden=True`")
        self._follow()
        self._held().update(given)

    def _step(self, x: Tensor, start: Optional[Dict[str, Tensor]]) -> Any:
        return self.neuron.run(x, state=start)

    def _keep(self, spk: Tensor) -> None:
        """Nothing but the states is kept."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        errors = args[-1]
        value = state_dict.get(prefix + "reset_mechanism_val")
        if isinstance(value, Tensor) and RESETS[int(value)] != self.neuron.reset:
            errors.append(
                f"{prefix}reset_mechanism_val is {int(value)}, which means neuron.reset={RESETS[int(value)]!r}, and it "
                f"is {self.neuron.reset!r} in this network; set it, and load again"
            )
        for name in self._order:  # states, which snnTorch saved before 0.9
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class FedStep(Step):
    """One step of a neuron whose last spikes come back through its layer ``recurrent``."""

    _beside: ClassVar[Tuple[str, ...]] = ("spk",)
    recurrent: Any

    def _step(self, x: Tensor, start: Optional[Dict[str, Tensor]]) -> Any:
        held, now = self._held(), x[0]
        spk = held["spk"] if held["spk"].shape == now.shape else torch.zeros_like(now)
        fed = self.recurrent(spk)
        if fed.shape != now.shape:
            raise ValueError(
                f"{type(self).__name__}: recurrent gives shape {list(fed.shape)}, and the input has {list(now.shape)}"
            )
        return self.neuron.run(x, fed.unsqueeze(0), state=start)

    def _keep(self, spk: Tensor) -> None:
        self._held()["spk"] = spk
