"""What else the values of a call might be: the oracle with one thing changed, the likeliest first.

A suspect is another argument of the same thing (a surrogate's own default, a parameter's), memory read in another
order, or an array that is already there; neurons and surrogates of other kinds come last, since some of them are near
each other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Tuple

import numpy as np
from torch import Tensor

from spikecore.testing._compare import as_array
from spikecore.testing._hints import Suspects, in_words, misread, orders
from spikecore.testing._models import ALL_RESETS
from spikecore.testing._oracle import SURROGATES, Array, Derivative, Trajectory, run
from spikecore.testing._oracle.surrogates import OTHER_ARGUMENTS

if TYPE_CHECKING:
    from spikecore.testing._subject import Subject

Compute = Callable[[], Any]


@np.errstate(all="ignore")  # parameters may be infinite
def of_outputs(s: Subject, output: int) -> Suspects:
    """What an output might be."""

    def seen(**changed: Any) -> Compute:
        return lambda: _run(s, **changed).outputs[output]

    found: Dict[str, Compute] = {}
    if not s.shape[0]:
        return found  # without a step there is nothing to take for something else
    for name, x in zip(s.twin.inputs, s.inputs):
        found[f"of the input {name} itself: does the result share its memory?"] = partial(np.asarray, x)
    for i, other in enumerate(s.seen.outputs):
        if i != output:
            found[f"of output {i}: do the two share memory, or change places?"] = partial(np.asarray, other)
    for name, values in s.seen.states.items():
        found[f"of the state {name}: does the result share its memory?"] = partial(np.asarray, values)
    found.update({phrase: seen(params=params) for phrase, params in _parameters(s)})
    if s.state is not None:
        found["of a start at rest, not from the state that was given"] = seen(state=None)
    resets = [reset for reset in ALL_RESETS if reset != s.reset and reset in s.model.resets]
    found.update({f"of reset={reset!r}": seen(reset=reset) for reset in resets})
    given = s.given
    if given is not None and not given.is_contiguous():
        phrase = "for an input whose strides were ignored: its memory was read as if contiguous"
        found[phrase] = lambda: _run(s, inputs=[as_array(as_if_contiguous(given))]).outputs[output]
    for order in orders(len(s.shape)):
        inputs = partial(lambda order: [misread(x, order) for x in s.inputs], order)
        found[f"for an input that was misread: {in_words(order, 't')}"] = partial(
            lambda make: _run(s, inputs=make()).outputs[output], inputs
        )
    return found


@np.errstate(all="ignore")  # parameters may be infinite
def of_states(s: Subject, name: str, trace: bool) -> Suspects:
    """What a final state, or a recorded one, might be."""
    found: Dict[str, Compute] = {}
    if s.state is not None:
        found["of a start at rest, not from the state that was given"] = lambda: _of(_run(s, state=None), name, trace)
    if not s.shape[0]:
        return found
    for other, values in s.seen.states.items():
        if other != name:
            found[f"of the state {other}: do the two change places?"] = partial(_last, values, trace)
    if not trace:
        if len(s.seen.states[name]) > 1:
            found["of the state before the last step"] = partial(np.asarray, s.seen.states[name][-2])
        found["of the state before the first step"] = partial(np.asarray, s.seen.start[name])
    for i, output in enumerate(s.seen.outputs):
        found[f"of output {i}: does the state share its memory?"] = partial(_last, output, trace)
    for phrase, params in _parameters(s):
        found[phrase] = partial(lambda params: _of(_run(s, params=params), name, trace), params)
    return found


@np.errstate(all="ignore")  # parameters may be infinite
def of_gradients(s: Subject, *cotangents: Any) -> Suspects:
    """What the gradient of the first input might be, for cotangents of outputs, final states and trace."""
    output, final, trace = (*cotangents, None, None, None)[:3]

    def of(changed: Any = None, **run_with: Any) -> Compute:
        return lambda: s.gradients_of(
            _run(s, **run_with), output if changed is None else changed(), final, trace
        ).inputs[0]

    found: Dict[str, Compute] = {}
    if output is not None and not isinstance(output, (list, tuple)) and tuple(output.shape) != s.shape:
        return found  # of a sum, for one
    if _single(output):
        found["of the gradient that came in, unchanged"] = lambda: as_array(output)
    for derivative in _same_class(s.surrogate):
        found[f"of the surrogate {_call(derivative)}"] = of(surrogate=derivative)
    found[f"of detach_reset={not s.detach}"] = of(detach=not s.detach)
    found.update({phrase: of(params=params) for phrase, params in _parameters(s)})
    if _single(output):
        if not output.is_contiguous():
            phrase = "for an incoming gradient whose strides were ignored: its memory was read as if contiguous"
            found[phrase] = of(lambda: as_if_contiguous(output))
        found["for an incoming gradient in reversed order of time"] = of(lambda: output.flip(0))
        found["for an incoming gradient one step late"] = of(lambda: output.roll(1, 0))
        found["for an incoming gradient one step early"] = of(lambda: output.roll(-1, 0))
        found["for an incoming gradient whose first value is used for all"] = of(lambda: _first_of(output))
        for order in orders(output.ndim):
            phrase = f"for an incoming gradient that was misread: {in_words(order, 't')}"
            found[phrase] = of(partial(lambda order: output.permute(order).reshape(output.shape), order))
    for name, other in SURROGATES.items():
        if name != s.surrogate.name:
            found[f"of the surrogate {name}"] = of(surrogate=other)
    return found


def _run(s: Subject, **changed: Any) -> Trajectory:
    inputs = changed.pop("inputs", s.inputs)
    params, state = changed.pop("params", s.spread), changed.pop("state", s.state)
    given = {"reset": s.reset, "surrogate": s.surrogate, "detach": s.detach, **changed}
    return run(s.model.twin(**given), inputs, params, state)


def _parameters(s: Subject) -> Iterator[Tuple[str, Mapping[str, Any]]]:
    """Parameters of more than one value read in another way, all of them; one number at a value from elsewhere."""
    many = {name: np.asarray(value) for name, value in s.spread.items() if np.size(value) > 1}
    readings: Dict[str, Callable[[Array], Any]] = {
        "the first value": lambda value: value.flat[0],
        "the last value": lambda value: value.flat[-1],
        "the mean": np.mean,
    }
    if many:
        names = ", ".join(many)
        for what, read in readings.items():
            yield f"with {what} of {names} for all neurons", {**s.spread, **{n: read(v) for n, v in many.items()}}
        for axis, size in enumerate(s.shape[1:]):
            shape = [size if i == axis else 1 for i in range(len(s.shape) - 1)]
            along = {name: np.resize(value.reshape(-1), size).reshape(shape) for name, value in many.items()}
            yield f"with {names} taken by the position along axis {axis + 1} of the input", {**s.spread, **along}
    defaults: Mapping[str, Any] = getattr(s.model.neuron, "params", {})
    for name, value in s.spread.items():
        others = {"the default of its class": defaults.get(name), "that of other neurons": s.model.params.get(name)}
        for whose, other in others.items():
            if isinstance(other, (int, float)) and np.size(value) == 1 and float(np.ravel(value)[0]) != other:
                phrase = f"with {name}={float(other):.6g}, {whose}, instead of {float(np.ravel(value)[0]):.6g}"
                yield f"{phrase}: is an earlier value kept?", {**s.spread, name: other}


@np.errstate(all="ignore")  # parameters may be infinite
def of_parameter_gradient(s: Subject, name: str, cotangent: Any) -> Suspects:
    """What the gradient of a parameter might be: a part of the neurons', or their mean."""
    shape = s.shape[1:]
    given = np.shape(s.params[name])
    if not all(s.shape):
        return {}

    def part(choose: Callable[[Array], None], mean: bool = False) -> Compute:
        def compute() -> Array:
            full = {key: np.broadcast_to(value, shape) for key, value in s.spread.items()}
            each = np.array(s.gradients_of(_run(s, params=full), cotangent, None, None).params[name]).reshape(shape)
            mask = np.zeros(shape)
            choose(mask)
            over = np.zeros(np.shape(s.spread[name]))
            axes = tuple(i for i in range(-len(shape), 0) if i < -over.ndim or over.shape[i] == 1)
            found = (each * mask).sum(axis=axes, keepdims=True).reshape(given)
            return np.asarray(found * (over.size / each.size) if mean else found)

        return compute

    def some(index: Any, value: float = 1.0) -> Callable[[Array], None]:
        def choose(mask: Array) -> None:
            mask[...] = 1.0 - value
            mask[index] = value

        return choose

    first, last = (0,) * len(shape), (-1,) * len(shape)
    return {
        "of the first neuron alone: is it summed over all?": part(some(first)),
        "of the last neuron alone: is it summed over all?": part(some(last)),
        "of all neurons but the first": part(some(first, 0.0)),
        "of all neurons but the last: is the tail of an odd size handled?": part(some(last, 0.0)),
        "of the first of the batch alone: is it summed over the batch?": part(some(0)),
        "of the last of the batch alone: is it summed over the batch?": part(some(-1)),
        "divided by the number of neurons: the mean instead of the sum": part(some(...), mean=True),
    }


def _same_class(surrogate: Derivative) -> Iterator[Derivative]:
    """The surrogate's class with other arguments: its defaults, and those of the suite's other cases."""
    for other in (SURROGATES.get(surrogate.name), OTHER_ARGUMENTS.get(surrogate.name)):
        if other is not None and other.arguments != surrogate.arguments:
            yield other


def as_if_contiguous(x: Tensor) -> Tensor:
    """What is seen of a tensor by one who takes its memory for contiguous; 0 beyond its end."""
    there = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    count = min(there, x.numel())
    flat = x.new_zeros(x.numel())
    flat[:count] = x.detach().as_strided((count,), (1,))
    return flat.view(x.shape)


def _call(derivative: Derivative) -> str:
    return f"{derivative.name}({', '.join(f'{name}={value:g}' for name, value in derivative.arguments.items())})"


def _of(seen: Trajectory, name: str, trace: bool) -> Array:
    return seen.states[name] if trace else seen.final[name]


def _last(values: Array, trace: bool) -> Array:
    return values if trace else values[-1]


def _single(output: Any) -> bool:
    """Whether a cotangent is one tensor."""
    return output is not None and not isinstance(output, (list, tuple))


def _first_of(output: Any) -> Any:
    return output.flatten()[:1].expand(output.numel()).reshape(output.shape)
