"""The state of neurons while the parts of a batch go through a pipeline.

Outside a call the state of a neuron that continues is that of the whole batch, as in a network on one device:
``sc.reset``, ``sc.detach``, ``neuron.state`` and another split at the next call need nothing of their own. Within a
call it is cut into parts along its first dimension, the batch; each part goes on from its own, and at the end they are
joined. Gradients pass both.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._shell.freed import Passed
from spikecore._shell.state import Stateful, slot_of

#: The state of a part, and what is known of the graph that it has.
_Part = Tuple[Optional[Dict[str, Tensor]], Any]


class _AnyPassed(Passed):
    """Whether backward came through the call of any part; see :mod:`spikecore._shell.freed`."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    @property
    def seen(self) -> bool:  # type: ignore[override]  # it is read only
        """Whether backward came through one of them."""
        return any(part.seen for part in self._parts)


class PartStates:
    """The states of the neurons of all stages, part by part, while one call lasts."""

    def __init__(self, stages: Sequence[nn.Module], sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._stages: List[List[Stateful]] = [[] for _ in stages]
        self._parts: Dict[Stateful, List[_Part]] = {}
        self._whole: Dict[Stateful, _Part] = {}
        for modules, stage in zip(self._stages, stages):
            modules += [module for module in stage.modules() if isinstance(module, Stateful) and module.continues]
            for module in modules:
                slot = slot_of(module)
                self._whole[module] = slot["_state"], slot["_passed"]
        if len(sizes) == 1:
            self._stages = [[] for _ in stages]  # one part goes on from the state of the whole batch
            return
        for module in self._whole:
            self._parts[module] = self._cut(module)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Leave every neuron with the state it had before, if an error ends the block."""
        try:
            yield
        except BaseException:
            for module, (state, passed) in self._whole.items():
                slot = slot_of(module)
                slot["_state"], slot["_passed"] = state, passed
            raise

    def enter(self, stage: int, part: int) -> None:
        """Give the neurons of a stage the states of a part."""
        for module in self._stages[stage]:
            slot = slot_of(module)
            slot["_state"], slot["_passed"] = self._parts[module][part]

    def leave(self, stage: int, part: int) -> None:
        """Take them, as the call of the stage left them."""
        for module in self._stages[stage]:
            slot = slot_of(module)
            self._parts[module][part] = slot["_state"], slot["_passed"]

    def join(self) -> None:
        """Make the states of the parts those of the whole batch."""
        joined = {module: self._joined(module) for module in self._parts}
        for module, (state, passed) in joined.items():
            slot = slot_of(module)
            slot["_state"], slot["_passed"] = state, passed

    def _cut(self, module: Stateful) -> List[_Part]:
        state, passed = self._whole[module]
        if state is None:
            return [(None, None) for _ in self._sizes]
        batch = sum(self._sizes)
        for name, value in state.items():
            if value.ndim == 0 or value.shape[0] != batch:
                raise ValueError(
                    f"{type(module).__name__} carries a state {name!r} of shape {tuple(value.shape)}, and the batch of "
                    f"this call is {batch}, which its first dimension must be; call sc.reset(net) to begin at rest"
                )
        pieces = {name: value.split(list(self._sizes)) for name, value in state.items()}
        return [({name: piece[part] for name, piece in pieces.items()}, passed) for part in range(len(self._sizes))]

    def _joined(self, module: Stateful) -> _Part:
        states = [state for state, _ in self._parts[module]]
        held = [state for state in states if state is not None]
        if not held:
            return None, None
        if len(held) < len(states):
            raise RuntimeError(
                f"{type(module).__name__} carries its state, and was called for some parts of the batch and not for "
                "others; in a Pipeline of several parts every call of a stage must call it"
            )
        for state, size in zip(held, self._sizes):
            for name, value in state.items():
                if value.ndim == 0 or value.shape[0] != size:
                    raise RuntimeError(
                        f"{type(module).__name__} carries its state, and for a part of {size} its state {name!r} has "
                        f"shape {tuple(value.shape)}, whose first dimension is not the batch; the states of parts can "
                        "be joined along the first dimension only: use chunks=1; or say which dimension of the input "
                        "is the batch, Pipeline(..., batch_dim=1) for [T, B, ...]"
                    )
        known = list({id(passed): passed for _, passed in self._parts[module] if passed is not None}.values())
        whole = {name: torch.cat([state[name] for state in held]) for name in held[0]}
        return whole, _AnyPassed(known) if known else None
