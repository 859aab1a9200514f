"""Texts of kernels whose neurons have awkward names.

A kernel's text is right under any names if it is the text under harmless ones with each name replaced, never two by one
and never one by a word of the text itself: :func:`same_but_for_names`.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import torch

from spikecore.backend import Spec
from spikecore.core.neuron import Neuron
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.testing.naming import HARMLESS, KINDS, Naming, results, usable

Plan = Union[ForwardPlan, BackwardPlan]


def frame(*prints: Callable[[Neuron], str]) -> List[str]:
    """Every identifier of some kernels that is nobody's name."""
    plain = Naming(("h",), ("a", "b", "c", "d"), ("v",), ("x", "y"), ("alpha",)).harmless()
    neuron: Any = plain.neuron()
    texts = [print_text(neuron(surrogate=plain.surrogate())) for print_text in prints]
    return usable(name for text in texts for name in identifiers(text) if HARMLESS not in name.lower())


def identifiers(text: str) -> List[str]:
    """Every identifier of a text, in order; not those in comments and strings, nor what is looked up in another."""
    text = re.sub(r'""".*?"""|"[^"\n]*"|//[^\n]*|# [^\n]*', "", text, flags=re.DOTALL)
    return re.findall(r"(?<![\w.])[^\W\d]\w*", text)


def same_but_for_names(naming: Naming, print_text: Callable[[Neuron], str]) -> Mapping[str, str]:
    """The names of a text by what they are under harmless ones; raises ``AssertionError`` if the two texts differ in
    more, if two names became one, or if a word that is nobody's name changed.
    """
    plain = naming.harmless()
    before, after = (identifiers(print_text(n.neuron()(surrogate=n.surrogate()))) for n in (plain, naming))
    if len(before) != len(after):
        raise AssertionError(f"{naming} changes the text in more than names")
    found: Dict[str, str] = {}
    for old, new in zip(before, after):
        if found.setdefault(old, new) != new:
            raise AssertionError(f"{old} of the text is both {found[old]} and {new}, with {naming}")
        ours = HARMLESS in old.lower()
        # what kernels name beside users' values may give way to those
        if not ours and new.replace("_", "") != old.replace("_", ""):
            raise AssertionError(f"{old}, a word of the text, became {new}, with {naming}")
    if len({*found.values()}) != len(found):
        raise AssertionError(f"two names became one, with {naming}: {found}")
    return found


def plans(neuron: Neuron, steps: Optional[int] = None, dtype: torch.dtype = torch.float32) -> Tuple[Plan, Plan]:
    """The plans of a call that has and wants everything, with every kind of parameter."""
    program = neuron.program
    kinds = tuple(
        "number" if name in program.numbers else kind for kind, name in zip(itertools.cycle(KINDS), program.params)
    )
    learn = tuple(name for name, kind in zip(program.params, kinds) if kind != "number")
    spec = Spec(dtype, steps, kinds, learn, final=True)
    states, outputs = program.states, (True,) * len(program.outputs)
    inputs = (True,) * len(program.inputs)
    forward = ForwardPlan(program, spec, states, has_initial_state=True, final=True, checkpoints=steps is None)
    return forward, BackwardPlan(program, spec, True, outputs, states, True, inputs, True, learn)


def assert_like_torch(naming: Naming, backend: str, device: str = "cpu", steps: int = 5) -> None:
    """All values and gradients are those of the torch backend."""
    found, expected = results(naming, backend, device, steps), results(naming, "torch", device, steps)
    for what, value in expected.items():
        if not torch.allclose(found[what], value, rtol=1e-4, atol=1e-4):
            raise AssertionError(f"{what} differs from torch's, with {naming}:\n{found[what]}\nis not\n{value}")
