"""A module between the charge of neurons and their spikes, in a loop over the steps."""

from __future__ import annotations

from typing import Any, Collection, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Tensors
from spikecore.core import checks, observe, vectors
from spikecore.core.neuron import Neuron
from spikecore.core.state import State, Stateful
from spikecore.layers.feedback import check_one_step


class Between(Stateful):
    """Neurons in two parts with a module between them, which sees all neurons of a step: a loop over the steps::

        h, s    = charge(x[t], s)
        z[t], v = fire(module(h), h)        v is the next s

    ``[T, B, ...] -> [T, B, ...]``. Membrane potential batch normalisation (Guo et al., ICCV 2023) is
    ``Between(sc.LI(2.0), nn.BatchNorm1d(64), Fire())``, where ``Fire`` has the spike and the reset::

        class Fire(sc.Neuron):
            inputs = ("u", "h")

            def dynamics(self, x, s, p):
                z = self.spike(x.u - 1.0)
                return (z, sc.ops.select(z, 0.0, x.h)), {}

    A module that keeps the highest potentials is winner-take-all. Both parts are equations of yours, which any backend
    computes; each step is two calls and the module. A batch normalisation in training updates its statistics at each
    step. In 16 bits the potentials are rounded at each step.

    charge: a neuron, with the states of the layer; its first output goes through the module.
    module: any module without state that keeps the shape of one time step, ``[B, ...]``.
    fire: a neuron without states: its inputs are what the module gives and, if it has more of them, the outputs of
        ``charge`` in order. Its first output is that of the layer; others are the next values of the first states of
        ``charge``, in the place of what ``charge`` made of them.
    step: ``"multi"`` or ``"single"``, as of a neuron. State, ``run`` and ``sc.carry_state`` are those of neurons.

    Raises TypeError for a part that is no neuron, and ValueError for one in single steps or with ``repeat``, for a
    module with a state, for parts whose numbers of inputs, outputs and states do not fit, and for a module that changes
    the shape of a step.
    """

    #: For ``sc.explain``.
    looped = "its module sees all neurons of a step, and a kernel computes each neuron by itself"

    def __init__(self, charge: Neuron, module: nn.Module, fire: Neuron, *, step: str = "multi") -> None:
        super().__init__(step)
        for name, part in (("charge", charge), ("fire", fire)):
            if not isinstance(part, Neuron):
                raise TypeError(
                    f"Between: {name}={part!r} must be a neuron; the order is Between(charge, module, fire)"
                )
            if part.step != "multi" or part.repeat is not None:
                raise ValueError(f"Between: {name} has step='single' or repeat; give the step mode to Between instead")
        check_one_step("Between", "module", module)
        taken, made = len(vectors.named_inputs(fire)) - 1, len(charge.program.outputs)
        if fire.states or not 0 <= taken <= made:
            raise ValueError(
                f"Between: fire must have no states, and take what module gives and up to {made} outputs of charge; "
                f"{type(fire).__name__} has the states {list(fire.states)} and the inputs {list(fire.inputs)}"
            )
        changed, states = len(fire.program.outputs) - 1, [*charge.states]
        if changed > len(states) or any(name in charge.vectors for name in states[:changed]):
            raise ValueError(
                f"Between: fire gives {changed} next states beside its output, and charge has {states}, of which the "
                f"first {changed} must be no vectors"
            )
        self.charge, self.module, self.fire = charge, module, fire

    def forward(self, *inputs: Tensor) -> Tensor:
        """Output for ``[T, B, ...]``, or for ``[B, ...]`` of one step."""
        single = self.step == "single"
        timed = [x.unsqueeze(0) if single and isinstance(x, Tensor) else x for x in inputs]
        out, state = self.run(*timed, state=self._begin() if self.continues else None)
        if self.continues:
            self._end(state)
        return out.squeeze(0) if single else out

    def run(self, *inputs: Tensor, state: Optional[Mapping[str, Tensor]] = None) -> Tuple[Tensor, State]:
        """``(output, state)`` for ``[T, B, ...]``, as of a neuron; the state is that of ``charge``."""
        watchers = self._watchers
        seen: Sequence[Tensor] = observe.begin("Between", watchers, inputs, (), ())[1] if watchers else inputs
        out, end = self._steps(checks.inputs("Between", vectors.named_inputs(self.charge), seen), state)
        if watchers:
            (out,) = observe.tell(self, watchers, tuple(seen), (out,), {}, self.step == "single")
        return out, end

    def _steps(self, inputs: Tensors, state: Optional[Mapping[str, Tensor]]) -> Tuple[Tensor, State]:
        """One step after the other."""
        taken, names = len(vectors.named_inputs(self.fire)) - 1, [*self.charge.states]
        rows: List[Tensor] = []
        for t in range(len(inputs[0])):
            hs, after = _several(self.charge.run(*[x[t : t + 1] for x in inputs], state=state))
            u = self._between(hs[0].squeeze(0))
            (z, *changed), _ = _several(self.fire.run(u.unsqueeze(0), *hs[:taken]))
            state = {**after, **{name: value.squeeze(0).to(after[name].dtype) for name, value in zip(names, changed)}}
            rows.append(z)
        if rows:
            return torch.cat(rows), dict(state or {})
        hs, end = _several(self.charge.run(*inputs, state=state))
        return hs[0], end

    def _between(self, h: Tensor) -> Tensor:
        u: Any = self.module(h)
        if not isinstance(u, Tensor) or u.shape != h.shape:
            got = list(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(
                f"Between: module gives {got} for a step of {list(h.shape)}; give one that keeps the shape"
            )
        return u

    def _state_names(self) -> Collection[str]:
        return (*self.charge.states,)


def _several(results: Any) -> Tuple[Tensors, State]:
    """The outputs of a run as a tuple, and the state."""
    out, state = results
    return out if isinstance(out, tuple) else (out,), state
