"""What brings the rate of a layer of neurons into a usable range, tried on the input that the layer had.

Rules of this module:

- Nothing is advised that was not tried: a copy of the layer, with one setting changed, runs on the recorded input.
- Settings come from the neuron itself: each parameter, upwards and downwards within its range, each setting that is
  True or False, and the size of its input. There is no table of neurons.
- Of each setting the smallest change counts that brings the rate into the range.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, cast

import torch
from torch import Tensor, nn

from spikecore._base import finite
from spikecore._shell.ranges import Interval
from spikecore.layers import NormNeuron
from spikecore.layers.norm_neuron import stateful_of
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: Rates within which a layer of neurons says something about its input, and learns.
USABLE = (0.01, 0.4)
#: The least rate that is looked for: below it a change in steps goes on.
_AIM = 0.05
#: Below this rate, or this near to 1, a layer says next to nothing.
HARDLY = 0.001
#: Changes that are tried, in factors of two.
_CHANGES = (1, 2, 3, 4, 6, 8, 10)
#: How often a step of a factor of two is halved that jumps over the range.
_HALVED = 4
#: So many settings of a neuron are named.
_MOST = 3

#: What a layer was given in each call of a run: its inputs, ``[T, *N]``, or ``[*N]`` of a single-step one.
Calls = Sequence[Sequence[Tensor]]


class Trial(NamedTuple):
    """A setting, as a user writes it, and the rate that it gave."""

    setting: str
    rate: float
    #: By how many factors of two it differs.
    change: float


class Outcome(NamedTuple):
    """What a layer gave when it ran again."""

    #: Spikes per output.
    rate: float
    #: What is not finite of its states, in words, and the first time step of that.
    spoilt: str = ""
    step: Optional[int] = None


#: A setting by the strength of its change: its words, and what sets it; None where the neuron has no such value.
_Knob = Callable[[float], Optional[Tuple[str, Callable[[Any], Any]]]]


def is_silent(rate: float) -> bool:
    """Whether a layer never fires, or hardly ever."""
    return rate < HARDLY


def is_saturated(rate: float) -> bool:
    """Whether a layer fires at every step, or at nearly every one."""
    return rate > 1.0 - HARDLY


def tried(module: nn.Module, calls: Calls, silent: bool) -> List[Trial]:
    """The settings that bring a layer into the range, the smallest change first; the size of its input comes last."""
    own = [_along(module, calls, knob, silent) for knob in _knobs(module)]
    of_input = [_along(module, calls, _of_input(sign), silent) for sign in (-1, 1)]
    smallest = sorted([trial for trial in own if trial is not None], key=lambda trial: trial.change)[:_MOST]
    return [*smallest, *[trial for trial in of_input if trial is not None]]


def run_again(module: nn.Module, calls: Calls, record: bool = False) -> Outcome:
    """What a layer of neurons gives on the inputs of ``calls``, from rest. ``record``: look at its states, too."""
    run = cast(Any, module).run
    spikes = outputs = 0
    names = tuple(_neuron(module).states) if record else ()
    with torch.no_grad():
        for given in _sequences(module, calls):
            y, _, *traced = run(*given, record=names) if names else run(*given)
            first = y[0] if isinstance(y, tuple) else y
            if isinstance(module, NormNeuron) and module.shortcut == "after" and len(given) > 1:
                first = first - given[1]
            spikes += int((first != 0).sum())
            outputs += first.numel()
            for name, values in (traced[0] if traced else {}).items():
                if not finite.is_finite(values):
                    index = finite.first_index(values)
                    step = index[0] if index else None
                    return Outcome(0.0, f"its state {name!r} has {finite.in_words(values)}", step)
    return Outcome(spikes / outputs if outputs else 0.0)


def _sequences(layer: nn.Module, calls: Calls) -> Iterator[Tuple[Tensor, ...]]:
    """The inputs of each call of ``run``: calls that continue one another are one sequence."""
    module: Any = stateful_of(layer)
    at_once = [[x.unsqueeze(0) for x in given] if module.step == "single" else list(given) for given in calls]
    shapes = {tuple(x.shape[1:] for x in given) for given in at_once}
    if module.continues and len(shapes) == 1:
        yield tuple(torch.cat(parts) for parts in zip(*at_once))
    else:
        yield from map(tuple, at_once)


def _along(module: nn.Module, calls: Calls, knob: _Knob, silent: bool) -> Optional[Trial]:
    """The smallest change of one setting that brings the rate into the range; None where none does."""

    def trial(change: float) -> Optional[Trial]:
        setting = knob(change)
        if setting is None:
            return None
        rate = _rate_with(module, calls, setting[1])
        return None if rate is None else Trial(setting[0], rate, change)

    best: Optional[Trial] = None
    less, more = 0.0, math.inf
    changes = list(map(float, _CHANGES))
    for _ in range(len(_CHANGES) + _HALVED):
        # upwards, until a change is too large; then between it and the last one that was too small
        change = changes.pop(0) if changes and more == math.inf else (less + more) / 2
        found = trial(change) if change < math.inf else None
        if found is None:
            return best
        too_much = found.rate > USABLE[1] if silent else found.rate < _AIM
        too_little = found.rate < _AIM if silent else found.rate > USABLE[1]
        if USABLE[0] <= found.rate <= USABLE[1]:
            best = found
        if not (too_much or too_little):
            return found
        less, more = (less, change) if too_much else (change, more)
    return best


def _rate_with(module: nn.Module, calls: Calls, change: Callable[[Any], Any]) -> Optional[float]:
    """The rate of a copy that was changed; None where the neuron refuses the value, or stops being finite."""
    other = copy.deepcopy(module)
    try:
        scale = change(_neuron(other))
    except ValueError:  # outside of its range, which may depend on other parameters
        return None
    if isinstance(scale, float):
        calls = [[given[0] * scale, *given[1:]] for given in calls]
    outcome = run_again(other, calls)
    return outcome.rate if math.isfinite(outcome.rate) else None


# -- settings


def _knobs(module: nn.Module) -> Iterator[_Knob]:
    """Each setting, in each direction."""
    neuron = _neuron(module)
    for name in neuron.params:
        if nn.utils.parametrize.is_parametrized(neuron, name):
            continue
        value = getattr(neuron, name)
        within = neuron.bounds.get(name, Interval())
        for sign in (-1, 1):
            if isinstance(value, Tensor) and value.numel() > 1:
                yield _of_tensor(name, value.detach(), within, sign)
            else:
                yield _of_number(name, _number(value), within, sign)
    for name in neuron.configuration:
        if name not in Neuron.configuration and isinstance(getattr(neuron, name), bool):
            yield _of_flag(name, getattr(neuron, name))


def _of_number(name: str, value: float, within: Interval, sign: int) -> _Knob:
    def at(change: float) -> Optional[Tuple[str, Callable[[Any], Any]]]:
        moved = _moved(value, within, sign * change)
        if moved is None:
            return None
        new = float(f"{moved:.2g}")
        if new == float(f"{value:.2g}") or not within.holds(new):
            new = float(f"{moved:.4g}")
        if new == value or not within.holds(new):
            return None
        return f"{name}={new:g}", lambda neuron: setattr(neuron, name, new)

    return at


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def _moved(value: float, within: Interval, change: float) -> Optional[float]:
    """A value whose distance to the end of its range grows or shrinks by ``2 ** change``."""
    low, high, factor = within.low, within.high, math.pow(2.0, change)
    if math.isfinite(high) and (change > 0 or not math.isfinite(low)):
        return high - (high - value) / factor
    if not math.isfinite(low):
        return value * factor if value and math.isfinite(value) else None
    if value == low:  # it has no distance to its end yet
        return low + math.pow(2.0, change - 4) * max(1.0, abs(low)) if change > 0 else None
    return low + (value - low) * factor


def _of_tensor(name: str, value: Tensor, within: Interval, sign: int) -> _Knob:
    def at(change: float) -> Optional[Tuple[str, Callable[[Any], Any]]]:
        factor = float(f"{2.0 ** (sign * change):.2g}")
        new = value * factor
        if not bool(torch.as_tensor(within.holds(new)).all()):
            return None

        def set_to(neuron: Any) -> None:
            if isinstance(getattr(neuron, name), nn.Parameter):
                getattr(neuron, name).data = new
            else:
                setattr(neuron, name, new)

        return f"{name} times {factor:g}", set_to

    return at


def _of_flag(name: str, value: bool) -> _Knob:
    def at(change: float) -> Optional[Tuple[str, Callable[[Any], Any]]]:
        # there is one change, and no larger one
        return (f"{name}={not value}", lambda neuron: setattr(neuron, name, not value)) if change == 1.0 else None

    return at


def _of_input(sign: int) -> _Knob:
    def at(change: float) -> Tuple[str, Callable[[Any], Any]]:
        factor = float(f"{2.0 ** (sign * change):.2g}")
        return f"its input times {factor:g} (weights and bias of the layer before)", lambda neuron: factor

    return at


def _neuron(module: Any) -> Any:
    """The neuron of a layer, whose settings count."""
    return module.neuron if isinstance(module, (Recurrent, NormNeuron)) else module
