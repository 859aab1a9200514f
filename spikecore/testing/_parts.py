"""What a gradient is where a part of what it is made of was left out or misread: a cotangent, or steps."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from torch import Tensor

from spikecore.testing._compare import as_array
from spikecore.testing._hints import Suspects
from spikecore.testing._oracle import Array, Gradients, adjoint
from spikecore.testing._suspects import as_if_contiguous

if TYPE_CHECKING:
    from spikecore.testing._subject import Subject

#: Result, as ``"trace v"`` -> its cotangent.
Named = Mapping[str, Tensor]
#: Steps of a chunk.
_CHUNKS = (1, 8, 10, 16, 32, 64, 128)


def of_parts(s: Subject, of: str, cotangents: Named) -> Suspects:
    """What the gradient of an input, a state or a parameter might be for these cotangents of several results."""
    found: Dict[str, Callable[[], Any]] = {}
    for phrase, some in _some(cotangents, list(s.twin.rest)):
        found[phrase] = partial(_gradient, s, of, some)
    if of in s.params:
        steps = s.shape[0]
        for count in (count for count in _CHUNKS if count < steps):
            which = f"{count} steps" if count > 1 else "step"
            ends = {f"last {which}": range(steps - count, steps), f"first {which}": range(count)}
            for words, counted in ends.items():
                phrase = f"of the {words} alone: is it summed over all {steps}?"
                found[phrase] = partial(_gradient, s, of, cotangents, counted)
            if steps % count:
                tail = range(steps - steps % count, steps)
                found[f"of the last, incomplete chunk of {count} steps alone"] = partial(
                    _gradient, s, of, cotangents, tail
                )
                found[f"of all steps but the last, incomplete chunk of {count}"] = partial(
                    _gradient, s, of, cotangents, range(tail.start)
                )
    return found


def _some(cotangents: Named, states: Sequence[str]) -> Iterator[Tuple[str, Named]]:
    """Cotangents that were read in another way, all of them and each one; then some of them."""
    groups: Dict[str, List[str]] = {}
    for name in cotangents:
        groups.setdefault(name.partition(" ")[0], []).append(name)
    sets = [(f"{kind}s", names) for kind, names in groups.items() if len(names) > 1]
    sets += [(name, [name]) for name in cotangents]
    if len(groups) > 1 or len(cotangents) > 1:
        sets.insert(0, ("everything", list(cotangents)))
    for _, names in sets:
        laid = [name for name in names if not cotangents[name].is_contiguous()]
        if laid:
            read = {name: as_if_contiguous(g) if name in laid else g for name, g in cotangents.items()}
            words = f"the cotangent of {' and '.join(laid)}, whose strides were ignored"
            yield f"for {words}: memory was read as if contiguous", read
    for one, other in itertools.permutations(states, 2):
        for kind in ("trace", "final"):
            if f"{kind} {one}" in cotangents:
                kept = {name: g for name, g in cotangents.items() if name != f"{kind} {one}"}
                if f"{kind} {other}" not in kept:
                    moved = {**kept, f"{kind} {other}": cotangents[f"{kind} {one}"]}
                    yield f"for the cotangent of {kind} {one}, taken for that of {other}", moved
    for words, names in sets:
        if len(names) < len(cotangents):
            others = {name: g for name, g in cotangents.items() if name not in names}
            yield f"without the cotangent of {words}: is it dropped where others come?", others
            yield f"of the cotangent of {words} alone: are the others dropped?", {n: cotangents[n] for n in names}


def _gradient(s: Subject, of: str, cotangents: Named, counted: Optional[range] = None) -> Array:
    values = {name: as_array(g) for name, g in cotangents.items()}

    def those(kind: str) -> Dict[str, Array]:
        return {name: values[f"{kind} {name}"] for name in s.twin.rest if f"{kind} {name}" in values}

    outputs = [values.get(f"output {i}") for i in range(len(s.seen.outputs))]
    found: Gradients = adjoint(s.seen, outputs, those("final"), those("trace"), counted)
    if of in s.twin.inputs:
        return found.inputs[s.twin.inputs.index(of)]
    if of in found.state:
        return found.state[of]
    return np.reshape(found.params[of], np.shape(s.params[of]))
