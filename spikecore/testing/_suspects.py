"""Suspects: what else the values of a call might be, as the oracle with one thing changed; the likeliest first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Tuple

import numpy as np
from torch import Tensor

from spikecore.testing._compare import as_array
from spikecore.testing._hints import Suspects
from spikecore.testing._models import ALL_RESETS
from spikecore.testing._oracle import SURROGATES, Array, Trajectory, run
from spikecore.testing._oracle.surrogates import OTHER_ARGUMENTS

if TYPE_CHECKING:
    from spikecore.testing._subject import Subject

_STRIDES = "whose strides were ignored: memory was read as if contiguous"
_REST = "of a start at rest, not from the state that was given"


def of_outputs(s: Subject, output: int) -> Suspects:
    """What an output might be."""
    found: Dict[str, Callable[[], Any]] = {}
    if not s.shape[0]:
        return found  # without a step there is nothing to take for something else
    for name, values in {
        **{f"input {name}": x for name, x in zip(s.twin.inputs, s.inputs)},
        **{f"state {name}": values for name, values in s.seen.states.items()},
        **{f"output {i}": other for i, other in enumerate(s.seen.outputs) if i != output},
    }.items():
        found[f"of the {name}: does the result share its memory?"] = partial(np.asarray, values)
    changes: Dict[str, Any] = {phrase: {"params": params} for phrase, params in _parameters(s)}
    if s.state is not None:
        changes[_REST] = {"state": None}
    resets = [reset for reset in ALL_RESETS if reset != s.reset and reset in s.model.resets]
    changes.update({f"of reset={reset!r}": {"reset": reset} for reset in resets})
    if s.given is not None and not s.given.is_contiguous():
        changes[f"for an input {_STRIDES}"] = {"inputs": [as_array(as_if_contiguous(s.given))]}
    found.update({phrase: partial(_output, s, output, change) for phrase, change in changes.items()})
    return found


def of_states(s: Subject, name: str, trace: bool) -> Suspects:
    """What a final state, or a recorded one, might be."""
    found: Dict[str, Callable[[], Any]] = {}
    if s.state is not None:
        found[_REST] = lambda: (_run(s, state=None).states if trace else _run(s, state=None).final)[name]
    others = {f"state {other}": values for other, values in s.seen.states.items() if other != name}
    others.update({f"output {i}": output for i, output in enumerate(s.seen.outputs)})
    for what, values in others.items() if s.shape[0] else ():
        phrase = f"of {what}: do the two share memory, or change places?"
        found[phrase] = partial(np.asarray, values if trace else values[-1])
    if not trace and s.shape[0] > 1:
        found["of the state before the last step"] = partial(np.asarray, s.seen.states[name][-2])
    return found


def of_gradients(s: Subject, *cotangents: Any) -> Suspects:
    """What the gradient of the first input might be, for cotangents of outputs, final states and trace."""
    output, final, trace = (*cotangents, None, None, None)[:3]
    single = output is not None and not isinstance(output, (list, tuple))
    if single and tuple(output.shape) != s.shape:
        return {}  # of a sum, for one

    def of(changed: Any = None, **run_with: Any) -> Callable[[], Any]:
        given = output if changed is None else changed
        return lambda: s.gradients_of(_run(s, **run_with), given, final, trace).inputs[0]

    found: Dict[str, Callable[[], Any]] = {}
    for other in (SURROGATES.get(s.surrogate.name), OTHER_ARGUMENTS.get(s.surrogate.name)):
        if other is not None and other.arguments != s.surrogate.arguments:
            arguments = ", ".join(f"{name}={value:g}" for name, value in other.arguments.items())
            found[f"of the surrogate {other.name}({arguments})"] = of(surrogate=other)
    found[f"of detach_reset={not s.detach}"] = of(detach=not s.detach)
    found.update({phrase: of(params=params) for phrase, params in _parameters(s)})
    if single:
        found["of the gradient that came in, unchanged"] = lambda: as_array(output)
        if not output.is_contiguous():
            found[f"for an incoming gradient {_STRIDES}"] = of(as_if_contiguous(output))
        found["for an incoming gradient one step late"] = of(output.roll(1, 0))
    others = {name: other for name, other in SURROGATES.items() if name != s.surrogate.name}
    found.update({f"of the surrogate {name}": of(surrogate=other) for name, other in others.items()})
    return found


def of_parameter_gradient(s: Subject, name: str, cotangent: Any) -> Suspects:
    """What the gradient of a parameter might be: that of one neuron, or of one row of the batch."""
    shape, given = s.shape[1:], np.shape(s.params[name])
    if not all(s.shape) or not shape:
        return {}

    def part(index: Any) -> Array:
        full = {key: np.broadcast_to(value, shape) for key, value in s.spread.items()}
        each = np.array(s.gradients_of(_run(s, params=full), cotangent, None, None).params[name]).reshape(shape)
        mask, over = np.zeros(shape), np.zeros(np.shape(s.spread[name]))
        mask[index] = 1.0
        axes = tuple(i for i in range(-len(shape), 0) if i < -over.ndim or over.shape[i] == 1)
        return np.asarray((each * mask).sum(axis=axes, keepdims=True).reshape(given))

    return {
        "of the first neuron alone: is it summed over all?": partial(part, (0,) * len(shape)),
        "of the first of the batch alone: is it summed over the batch?": partial(part, 0),
    }


def of_parts(s: Subject, of: str, cotangents: Mapping[str, Tensor]) -> Suspects:
    """What the gradient of an input, a state or a parameter might be where a cotangent was misread or left out; they
    are by result, as ``"trace v"``.
    """
    kinds = {name.partition(" ")[0] for name in cotangents}
    groups = {f"{kind}s": [name for name in cotangents if name.startswith(kind)] for kind in sorted(kinds)}
    suspects: Dict[str, Callable[[], Any]] = {}
    for names in (list(cotangents), *([name] for name in cotangents)):
        strided = [name for name in names if not cotangents[name].is_contiguous()]
        if strided:
            read = {name: as_if_contiguous(g) if name in strided else g for name, g in cotangents.items()}
            phrase = f"for the cotangent of {' and '.join(strided)}, {_STRIDES}"
            suspects[phrase] = partial(_gradient, s, of, read)
    for words, names in (*groups.items(), *((name, [name]) for name in cotangents)):
        others = {name: g for name, g in cotangents.items() if name not in names}
        if others:
            phrase = f"without the cotangent of {words}: is it dropped where others come?"
            suspects[phrase] = partial(_gradient, s, of, others)
    return suspects


def _gradient(s: Subject, of: str, cotangents: Mapping[str, Tensor]) -> Array:
    outputs = [cotangents.get(f"output {i}") for i in range(len(s.seen.outputs))]
    final, trace = (
        {name: cotangents[f"{kind} {name}"] for name in s.twin.rest if f"{kind} {name}" in cotangents}
        for kind in ("final", "trace")
    )
    right = s.gradients(outputs, final, trace)
    return {**dict(zip(s.twin.inputs, right.inputs)), **right.state, **right.params}[of]


def _output(s: Subject, output: int, changed: Mapping[str, Any]) -> Array:
    return _run(s, **changed).outputs[output]


@np.errstate(all="ignore")  # parameters may be infinite
def _run(s: Subject, **changed: Any) -> Trajectory:
    inputs = changed.pop("inputs", s.inputs)
    params, state = changed.pop("params", s.spread), changed.pop("state", s.state)
    given = {"reset": s.reset, "surrogate": s.surrogate, "detach": s.detach, **changed}
    return run(s.oracle(**given), inputs, params, state, layer=None if s.layer is None else s.layer.oracle)


def _parameters(s: Subject) -> Iterator[Tuple[str, Mapping[str, Any]]]:
    """Parameters of more than one value read in another way, all of them; one number at its class's default."""
    many = {name: np.asarray(value) for name, value in s.spread.items() if np.size(value) > 1}
    if many:
        first = {name: value.flat[0] for name, value in many.items()}
        yield f"with the first value of {', '.join(many)} for all neurons", {**s.spread, **first}
        for axis, size in enumerate(s.shape[1:]):
            shape = [size if i == axis else 1 for i in range(len(s.shape) - 1)]
            along = {name: np.resize(value.reshape(-1), size).reshape(shape) for name, value in many.items()}
            yield (
                f"with {', '.join(many)} taken by the position along axis {axis + 1} of the input",
                {**s.spread, **along},
            )
    for name, value in s.spread.items():
        others = (getattr(s.model.neuron, "params", {}).get(name), s.model.params.get(name))
        for other in others if np.size(value) == 1 else ():
            if isinstance(other, (int, float)) and float(np.ravel(value)[0]) != other:
                phrase = f"with {name}={float(other):.6g} instead of {float(np.ravel(value)[0]):.6g}"
                yield f"{phrase}: is a default, or an earlier value, read?", {**s.spread, name: other}


def as_if_contiguous(x: Tensor) -> Tensor:
    """What is seen of a tensor by one who takes its memory for contiguous; 0 beyond its end."""
    there = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    count = min(there, x.numel())
    flat = x.new_zeros(x.numel())
    flat[:count] = x.detach().as_strided((count,), (1,))
    return flat.view(x.shape)
