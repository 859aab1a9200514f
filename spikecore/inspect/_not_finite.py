"""Place where numbers of a run stop being finite: its input, a parameter, a layer, a state, or the backward pass."""

from __future__ import annotations

from typing import Any, Collection, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, nn

from spikecore._base import finite
from spikecore.core.neuron import Neuron
from spikecore.inspect.record import Call, stateful_of

_DATA = "Leave such samples out, or put a number in their place by torch.nan_to_num"
_WEIGHT = "Go on from a checkpoint with finite weights, or make the network anew"
_LAYER = "Look for a division by 0, a logarithm or root of 0 or less, or numbers too large for their dtype there"
_BACKWARD = "torch.autograd.set_detect_anomaly(True) around the step names the operation"


class Spoilt(NamedTuple):
    """A tensor that is not finite: where it is, what it has, and what to do about it."""

    place: str
    counts: str
    first: Tuple[int, ...] = ()
    shape: Tuple[int, ...] = ()
    #: Steps and samples that are one dimension; the number of the call of a module that takes one step at a time.
    folded: Tuple[int, int] = (0, 0)
    call: int = 0
    way_out: str = ""

    def when(self, times: Collection[int]) -> str:
        """The time step, where one can tell; ``times``: how many steps the neurons of the network take at once."""
        steps, batch = self.folded
        if self.call:
            return f", in call {self.call}"
        if steps and self.shape[:1] == (steps * batch,):
            return f", time step {self.first[0] // batch}"
        return f", time step {self.first[0]}" if len(self.shape) > 1 and self.shape[0] in times else ""


class NotFinite:
    """Notes the first place of numbers that are not finite, and the neurons that are given such numbers.

    ``origin``: None while all are finite. An infinity is meant in the input, in a neuron, such as in a threshold, and
    in a mask that is not learnt.
    """

    def __init__(self) -> None:
        self.origin: Optional[Spoilt] = None
        #: Neurons that such numbers reach, by title, and those whose input had infinities before anything was wrong.
        self._reached: List[Tuple[str, Spoilt]] = []
        self._infinite: Set[str] = set()

    @torch.no_grad()
    def look_at_data(self, net: nn.Module, inputs: Any) -> None:
        """Look at the input, the parameters and the buffers before a run."""
        self._look("the input:", finite.named_leaves("x", inputs), _DATA, nan=True)
        named = dict(net.named_parameters())
        meant = {p for part in net.modules() if isinstance(part, Neuron) for p in part.parameters()}
        self._look("a parameter:", [(n, p) for n, p in named.items() if p.requires_grad and p not in meant], _WEIGHT)
        self._look("a parameter:", named.items(), _WEIGHT, nan=True)
        self._look("a buffer:", net.named_buffers(), _WEIGHT, nan=True)

    def look_at_inputs(self, call: Call) -> None:
        """Look at a call that begins."""
        named = [("it", tensor) for tensor in call.inputs]
        self._look(f"the input of {call.title}, which no layer gave:", named, _LAYER, True, call)
        if stateful_of(call.layer) is None or any(title == call.title for title, _ in self._reached):
            return
        spoilt = finite.first(named)
        if spoilt is not None and self.origin is None:
            self._infinite.add(call.title)
        elif spoilt is not None:
            self._reached.append((call.title, _spoilt("its input has", spoilt[1], call)))

    def look_at_results(self, call: Call) -> None:
        """Look at a call that ended; an infinity begins there if its inputs had none."""
        if self.origin is None and not all(map(finite.is_finite, call.outputs)):
            infinite = not all(map(finite.is_finite, call.inputs))
            place = f"the output of {call.title}, whose input {_kind(infinite)}:"
            self._look(place, [("it", result) for result in call.outputs], _LAYER, infinite, call)

    def look_at_state(self, title: str, name: str, values: Tensor, number: int) -> None:
        """Look at a state of a neuron in a call of this number."""
        step = finite.first_index(values) if self.origin is None else None
        infinite = title in self._infinite
        if step is not None and not (infinite and not finite.has_nan(values)):
            place = f"{title}, whose input {_kind(infinite)}: its state {name!r} has"
            when = f"time step {step[0]} of call {number}"
            self.origin = Spoilt(place, f"{finite.in_words(values)}, {when}", way_out=_LAYER)

    def look_at_gradients(self, gradients: Sequence[Tuple[str, Tensor]]) -> None:
        """Look at gradients of parameters, after a forward pass in which nothing was wrong."""
        named = [(f"the gradient of {name}", gradient) for name, gradient in gradients]
        self._look("the backward pass:", named, _BACKWARD)

    def _look(
        self,
        place: str,
        named: Iterable[Tuple[str, Tensor]],
        way_out: str,
        nan: bool = False,
        call: Optional[Call] = None,
    ) -> None:
        """Note the first tensor that is not finite, or that has NaN, as the origin."""
        spoilt = None if self.origin is not None else (finite.first_nan if nan else finite.first)(named)
        if spoilt is not None:
            origin = _spoilt(f"{place} {spoilt[0]} has", spoilt[1], call)
            has_time = way_out in (_DATA, _LAYER)
            self.origin = origin._replace(way_out=way_out, shape=origin.shape if has_time else ())

    def in_words(self, times: Collection[int]) -> str:
        """Advice: the origin and the neurons that it reaches; "" if all numbers are finite."""
        origin = self.origin
        if origin is None:
            return ""
        what = "NaN" if "NaN" in origin.counts else "an infinity"
        names = [title + spoilt.when(times) for title, spoilt in self._reached[:3]]
        more = f" and {len(self._reached) - 3} more" if len(self._reached) > 3 else ""
        reached = f" It reaches {'; '.join(names)}{more}." if names else ""
        return (
            f"Numbers are not finite: {what} begins in {origin.place} {origin.counts}{origin.when(times)}.{reached} A "
            "neuron whose potential is NaN never fires again, and gradients behind it are NaN, so that no other "
            f"advice on rates is given. {origin.way_out}"
        )


def _spoilt(place: str, x: Tensor, call: Optional[Call]) -> Spoilt:
    counts, first, shape = finite.in_words(x), finite.first_index(x) or (), tuple(x.shape)
    if call is None:
        return Spoilt(place, counts, first, shape)
    return Spoilt(place, counts, first, shape, call.folded, call.number if call.step == "single" else 0)


def _kind(infinite: bool) -> str:
    return "has infinities and no NaN" if infinite else "is finite"
