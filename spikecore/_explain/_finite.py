"""Where the numbers of a network stop being finite: in its input, a parameter, the output of a layer, or a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Collection, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from torch import Tensor, nn

from spikecore._base import finite

if TYPE_CHECKING:
    from spikecore._explain._watching import Seen

#: Steps and samples that are one dimension, ``steps * batch``; zeros where they are not.
Folded = Tuple[int, int]

_DATA = "Leave such samples out, or put a number in their place by torch.nan_to_num"
_WEIGHT = "Go on from a checkpoint with finite weights, or make the network anew"
_LAYER = "Look for a division by 0, a logarithm or root of 0 or less, or numbers too large for their dtype there"


class Spoilt(NamedTuple):
    """A tensor that is not finite."""

    #: Where it is.
    place: str
    #: How many numbers, and where the first one is.
    counts: str
    first: Tuple[int, ...]
    shape: Tuple[int, ...]
    folded: Folded
    #: The number of the call of a module that takes one step at a time; 0 for any other.
    call: int
    way_out: str = ""

    def when(self, times: Collection[int]) -> str:
        """The time step, where one can tell; ``times``: how many steps the neurons of the network take at once."""
        steps, batch = self.folded
        if self.call:
            return f", in call {self.call}"
        if not self.first:
            return ""
        if steps and self.shape[0] == steps * batch:
            return f", time step {self.first[0] // batch}"
        return f", time step {self.first[0]}" if self.shape[0] in times and len(self.shape) > 1 else ""


class Finite:
    """Looks for what is not finite while a network runs."""

    def __init__(self) -> None:
        #: Where it began; None while everything is finite.
        self.origin: Optional[Spoilt] = None
        #: Neurons that were given it, each with the first time.
        self.reached: List[Tuple[Seen, Spoilt]] = []
        #: Numbers of neurons whose input had infinities before that, which are legitimate.
        self._infinite: Set[int] = set()

    def look_at_inputs(self, inputs: Any) -> None:
        """The input of the network."""
        self._note_nan("the input:", finite.named_leaves("x", inputs), _DATA)

    def look_at_given(self, seen: Seen, given: Sequence[Tensor], folded: Folded) -> None:
        """What a layer is given, and a NaN in its parameters."""
        call = _call(seen)
        named = [("it", x) for x in given]
        self._note_nan(f"the input of {_named(seen)}, which no layer gave:", named, _LAYER, folded, call)
        if seen.calls == 1:
            self._note_nan("a parameter:", _own(seen), _WEIGHT)
        if seen.stateful is not None and all(one is not seen for one, _ in self.reached):
            spoilt = list(_first("its input has", given, folded, call))
            if self.origin is not None:
                self.reached += [(seen, each) for each in spoilt]
            elif spoilt:
                self._infinite.add(seen.number)

    def look_at_output(self, seen: Seen, given: Sequence[Tensor], results: Sequence[Tensor], folded: Folded) -> None:
        """What a layer gave, from inputs without NaN; an infinity begins there if they had none."""
        if self.origin is not None or all(map(finite.is_finite, results)):
            return
        infinite = not all(map(finite.is_finite, given))
        for x in results:
            if not infinite or finite.has_nan(x):
                place = f"the output of {_named(seen)}, whose input {_kind(infinite)}: it has"
                self._note(place, x, _LAYER, folded, _call(seen))

    def note_state(self, seen: Seen, counts: str, step: Optional[int]) -> None:
        """A state of a neuron whose input has no NaN; an infinity begins there if the input had none."""
        infinite = seen.number in self._infinite
        if self.origin is None and ("NaN" in counts or not infinite):
            when = "" if step is None else f", time step {step}"
            place = f"{_named(seen)}, whose input {_kind(infinite)}:"
            self.origin = Spoilt(place, counts + when, (), (), (0, 0), 0, _LAYER)

    def note_backward(self, gradients: Sequence[Tuple[str, Tensor]]) -> None:
        """Gradients of parameters, after a forward pass."""
        spoilt = finite.first(gradients)
        if spoilt is not None:
            way = "torch.autograd.set_detect_anomaly(True) around the step names the operation"
            self._note(f"the backward pass: the gradient of {spoilt[0]} has", spoilt[1], way)

    def _note_nan(
        self, place: str, named: Sequence[Tuple[str, Tensor]], way_out: str, folded: Folded = (0, 0), call: int = 0
    ) -> None:
        spoilt = finite.first_nan(named) if self.origin is None else None
        if spoilt is not None:
            self._note(f"{place} {spoilt[0]} has", spoilt[1], way_out, folded, call)

    def _note(self, place: str, x: Tensor, way_out: str, folded: Folded = (0, 0), call: int = 0) -> None:
        if self.origin is None:
            self.origin = next((each._replace(way_out=way_out) for each in _first(place, [x], folded, call)), None)


def _kind(infinite: bool) -> str:
    return "has infinities and no NaN" if infinite else "is finite"


def _first(place: str, tensors: Sequence[Tensor], folded: Folded, call: int) -> Iterator[Spoilt]:
    """The first of these that is not finite, if there is one."""
    for x in tensors:
        index = finite.first_index(x)
        if index is not None:
            yield Spoilt(place, finite.in_words(x), index, tuple(x.shape), folded, call)
            return


def _own(seen: Seen) -> List[Tuple[str, Tensor]]:
    """Parameters and buffers of a layer itself, by their names in the network; all of them where it takes time."""
    module: nn.Module = seen.module
    everything = seen.stateful is not None
    named = [*module.named_parameters(recurse=everything), *module.named_buffers(recurse=everything)]
    prefix = f"{seen.name}." if seen.name else ""
    return [(prefix + name, tensor) for name, tensor in named]


def _call(seen: Seen) -> int:
    return seen.calls if seen.stateful is not None and seen.stateful.step == "single" else 0


def _named(seen: Seen) -> str:
    kind = type(seen.module).__name__
    return f"{seen.name} ({kind})" if seen.name else kind


def in_words(found: Finite, times: Collection[int]) -> str:
    """Where it began and what it reached, as a piece of advice; "" where everything is finite."""
    origin = found.origin
    if origin is None:
        return ""
    what = "NaN" if "NaN" in origin.counts else "an infinity"
    reached = ""
    if found.reached:
        names = [_named(seen) + spoilt.when(times) for seen, spoilt in found.reached[:3]]
        more = len(found.reached) - len(names)
        reached = f" It reaches {'; '.join(names)}{f' and {more} more' if more > 0 else ''}."
    return (
        f"Numbers are not finite: {what} begins in {origin.place} {origin.counts}{origin.when(times)}.{reached} A "
        "neuron whose potential is NaN never fires again, and gradients behind it are NaN, so that no other "
        f"advice on rates is given. {origin.way_out}"
    )
