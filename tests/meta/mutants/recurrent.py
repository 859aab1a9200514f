"""Outputs that come back through a matrix: which output, to which step and to which row of the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import spikecore as sc
from mutants.registry import mutant
from mutants.use import drawn, lif
from spikecore.interpreter import FeedbackLoop
from spikecore.testing._loopback import Loopback


def fed(backend: str) -> Any:
    """Two calls of a recurrent layer, and their gradients."""
    linear = nn.Linear(4, 4)
    with torch.no_grad():
        linear.weight.copy_(drawn((4, 4), 7))
        linear.bias.copy_(drawn((4,), 8))
    net = sc.Recurrent(lif()(backend), linear)
    x, y = (drawn((7, 3, 4), seed).requires_grad_() for seed in range(2))
    first, second = net(x), net(y)
    (first * drawn(first.shape, 5) + 2 * second * drawn(first.shape, 6)).sum().backward()
    found = [first, second, x.grad, y.grad, linear.weight.grad, linear.bias.grad]
    return [value.detach().clone() for value in found]


def continued(backend: str) -> Any:
    """The gradients of a call that goes on from a given state."""
    linear = nn.Linear(4, 4)
    with torch.no_grad():
        linear.weight.copy_(drawn((4, 4), 7))
        linear.bias.copy_(drawn((4,), 8))
    net = sc.Recurrent(lif()(backend), linear)
    start = {"v": torch.zeros(3, 4), "feedback": torch.ones(3, 4).requires_grad_()}
    out, _ = net.run(drawn((5, 3, 4)), state=start)
    (out * drawn(out.shape, 5)).sum().backward()
    return [linear.weight.grad.clone(), start["feedback"].grad.clone()]


class Changed(FeedbackLoop):
    """Knows the step that it is at."""

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        self.at, self.steps, self.given = 0, len(inputs[0]), state is not None
        self.before = torch.zeros_like(inputs[0][0])
        return super().__call__(inputs, state, params, record)

    def through(self, last: Any, weight: Any, bias: Any = None) -> Any:
        found = self.changed(last, weight, bias)
        self.at, self.before = self.at + 1, last
        return found

    def plain(self, last: Any, weight: Any, bias: Any = None) -> Any:
        """What comes back, as it should."""
        return super().through(last, weight, bias)


@mutant("recurrent/lif", "recurrent/bits", "recurrent/carried", shows=fed)
class OfTheStepBefore(Loopback):
    """What comes back is the output of two steps ago."""

    class feedback(Changed):  # noqa: N801, D106  # an attribute of the backend
        def changed(self, last, weight, bias):
            return self.plain(self.before, weight, bias)


@mutant("recurrent/lif", "recurrent/learnt", "recurrent/masked", shows=fed)
class LastStepLost(Loopback):
    """The gradient of the weight lacks the last step."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        def changed(self, last, weight, bias):
            return self.plain(last, weight.detach() if self.at == self.steps - 1 else weight, bias)


@mutant("recurrent/states", shows=continued)
class FirstOutputLost(Loopback):
    """The gradient of the weight lacks the output that a call begins with."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        def changed(self, last, weight, bias):
            return self.plain(last, weight if self.at else weight.detach(), bias)


@mutant("recurrent/rest", shows=fed)
class StaleAtTheStart(Loopback):
    """A call at rest begins with the last output of the call before."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        kept: Any = None

        def changed(self, last, weight, bias):
            if self.at == 0 and not self.given and self.kept is not None and self.kept.shape == last.shape:
                last = self.kept
            return self.plain(last, weight, bias)

        def __call__(self, inputs, state, params, record):
            found = super().__call__(inputs, state, params, record)
            self.kept = found[0][0][-1].detach()
            return found


@mutant("recurrent/lif", "recurrent/no-bias", shows=fed)
class FromTheRowBefore(Loopback):
    """Rows of the batch get what the row before them gave."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        def changed(self, last, weight, bias):
            return self.plain(last.roll(1, 0) if last.ndim > 1 else last, weight, bias)


@mutant("recurrent/lif", "recurrent/alif", shows=fed)
class StateOfTheRowBefore(Loopback):
    """A row of the batch begins with the state that the row before it ended with."""

    class feedback(FeedbackLoop):  # noqa: N801, D106  # as above
        def __call__(self, inputs, state, params, record):
            found: Any = []
            for row in inputs[0].split(1, dim=1) if state is None and inputs[0].ndim == 3 else ():
                found.append(super().__call__((row,), found[-1][1] if found else None, params, record))
            if not found:
                return super().__call__(inputs, state, params, record)
            outputs, ends, traces = zip(*found)
            return (
                (torch.cat([each[0] for each in outputs], 1),),
                tuple([torch.cat(each) for each in zip(*ends)]),
                tuple([torch.cat(each, 1) for each in zip(*traces)]),
            )


@mutant("recurrent/batch-1", "recurrent/two-batches", shows=fed)
class Transposed(Loopback):
    """The matrix is transposed in forward."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        def changed(self, last, weight, bias):
            return self.plain(last, weight.t(), bias)


@mutant("recurrent/lif", "recurrent/alif", "recurrent/steps-17", shows=fed)
class OutputsDetached(Loopback):
    """The gradient does not go back through the outputs."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        def changed(self, last, weight, bias):
            return self.plain(last.detach(), weight, bias)


@mutant("recurrent/lif", "recurrent/steps-1", shows=fed)
class BiasOfEverySecondStep(Loopback):
    """The gradient of the bias lacks the first step, the third one, and so on."""

    class feedback(Changed):  # noqa: N801, D106  # as above
        def changed(self, last, weight, bias):
            return self.plain(last, weight, bias.detach() if bias is not None and not (self.at % 2) else bias)
