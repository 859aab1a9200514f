"""A call of a neuron with its cotangents and the values that are right for it, and checks of one or several calls.

All that is expected is computed in NumPy when a call is described, before the backend runs: a backend that changes the
arithmetic of the whole process changes no expectation.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.testing._context import Context
from spikecore.testing._oracle import Gradients
from spikecore.testing._subject import Subject
from spikecore.testing.compare import backward


class Call:
    """A call of ``s.neuron`` with the input of ``s``, and its cotangents.

    which: words that tell this call from the others. From a given state it has cotangents of the final states, too.
    """

    def __init__(self, s: Subject, which: str, *, grad: bool = True) -> None:
        self.s, self.which = s, which
        self.x, self.start = s.x(grad), s.start(grad)
        self.cotangent = s.cotangent(s.x())
        held = torch.float64 if s.dtype_name == "float64" else torch.float32
        like = torch.empty(s.shape[1:], dtype=held)
        self.of_final: Dict[str, Tensor] = {name: s.cotangent(like) for name in self.start or {}}
        self.right: Gradients = s.gradients(self.cotangent, self.of_final)
        self.final: Mapping[str, Tensor] = {}

    def forward(self) -> Call:
        """Call the neuron, and keep what it returns."""
        if self.start is None:
            self.output = self.s.neuron(self.x)
        else:
            self.output, self.final = self.s.neuron.run(self.x, state=self.start)
        return self

    @property
    def results(self) -> List[Tensor]:
        """The results that have a cotangent."""
        return [self.output, *[self.final[name] for name in self.of_final]]

    @property
    def cotangents(self) -> List[Tensor]:
        """One for each of :attr:`results`."""
        return [self.cotangent, *self.of_final.values()]

    def backward(self, **options: Any) -> Call:
        """Run backwards from this call alone."""
        backward(f"{self.s.of}, {self.which}", self.results, self.cotangents, **options)
        return self

    def check(self, output: Optional[Tensor] = None) -> None:
        """Outputs are right, and after a backward pass the gradients of input, state and parameters. The call is made
        here, unless it gave ``output`` already.
        """
        if output is None:
            self.forward()
        else:
            self.output = output
        self.check_outputs().backward().check_inputs()
        check_parameters(self.s, [self], self.which)

    def check_outputs(self, when: str = "") -> Call:
        """The outputs, and final states that have cotangents, are those of this call's input."""
        self.s.check_outputs(self.output.detach(), f" of {self.which}{when}")
        if self.of_final:
            final = {name: value.detach() for name, value in self.final.items()}
            self.s.check_states(final, self.s.seen.final, f"final state of {self.which}", exact=False)
        return self

    def check_inputs(self, what: str = "", times: float = 1.0) -> None:
        """Gradients of input and state are this call's, ``times`` so large. ``what`` says what was done to them."""
        words = f"{self.which}{what}"
        self.s.check("input gradient", self.x.grad, times * self.right.inputs[0], name=words)
        for name, value in (self.start or {}).items():
            self.s.check("state gradient", value.grad, times * self.right.state[name], name=f"{name}, {words}")


def pair(s: Subject) -> Tuple[Call, Call]:
    """Two calls of the neuron of ``s`` that differ in every value."""
    other = Subject(s.context, replace(s.config, draw=1), values=s.params, neuron=s.neuron)
    return Call(s, "the first call"), Call(other, "the second call")


def backward_together(calls: Sequence[Call]) -> None:
    """One backward pass from all calls."""
    results = [result for call in calls for result in call.results]
    backward(calls[0].s.of, results, [value for call in calls for value in call.cotangents])


def check_each(calls: Sequence[Call], what: str = "") -> None:
    """The gradients of each call are its own, those of parameters the sums."""
    for call in calls:
        call.check_inputs(what)
    check_parameters(calls[0].s, calls, what or "summed over the calls")


def check_parameters(s: Subject, calls: Sequence[Call], what: str, learn: Optional[Sequence[str]] = None) -> None:
    """The gradients of the parameters are the sums of those of the calls."""
    for name in learn if learn is not None else [name for name, _ in s.neuron.named_parameters()]:
        right = sum((call.right.params[name] for call in calls[1:]), calls[0].right.params[name])
        s.check("parameter gradient", getattr(s.neuron, name).grad, right, name=f"{name}, {what}")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within the block torch has this default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def learnable(context: Context, *names: str) -> Tuple[str, ...]:
    """These names where the backend has gradients of parameters, else none: a case holds without them, too."""
    return names if context.declares("parameter_gradients") else ()
