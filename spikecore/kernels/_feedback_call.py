"""The tensors of a call with feedback: :class:`FeedbackCall` is what a call has, :class:`Cotangents` what arrives for
its backward pass; :class:`Delays` says at which step each output comes back. How a call is computed:
:mod:`spikecore.kernels._feedback_steps`.
"""

from __future__ import annotations

from math import prod
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Feedback
from spikecore.kernels._call import Call
from spikecore.kernels._plan import Geometry


class Delays(NamedTuple):
    """Delays of each neuron's output in the feedback: at which step it comes back, and where its cotangent goes.

    The output ``y[s]`` of neuron ``j`` comes back at step ``s + 1 + lags[j]``. Outputs are kept in one tensor, the
    history: first those before the call, ``y[-longest - 1]`` to ``y[-1]``, then those of its steps.
    """

    #: ``[H]``, whole numbers from 0 to ``longest``.
    lags: Tensor
    longest: int
    #: The outputs before the last one before the call, ``[*N, longest]``, the newest last.
    past: Tensor

    @property
    def rows(self) -> int:
        """The steps that may still come back: the last one and the past."""
        return self.longest + 1

    def history(self, first: Tensor, steps: int) -> Tensor:
        """``[longest + 1 + steps, *N]``, with what was before the call; ``first`` is the last output before it."""
        history = first.new_empty((self.rows + steps, *first.shape))
        history[: self.longest] = self.past.movedim(-1, 0)
        history[self.longest] = first
        return history

    def arriving(self, history: Tensor, start: int, count: int) -> Tensor:
        """Delayed outputs that arrive at ``count`` steps from ``start`` on, ``[count, *N]``."""
        steps = torch.arange(start, start + count, device=history.device)
        return history.gather(0, self._spread(steps.unsqueeze(-1) + self.longest - self.lags, history.shape[1:]))

    def sent(self, later: Tensor, step: int) -> Tensor:
        """The cotangent of the output of a step, from the later step at which it comes back, ``[*N]``. ``later`` has a
        row for each step, and ``longest + 1`` more behind the last one.
        """
        window = later[step + 1 : step + 1 + self.rows]
        return window.gather(0, self._spread(self.lags.unsqueeze(0), later.shape[1:]))[0]

    def to_earlier(self, came: Tensor, of_past: Optional[Tensor]) -> Tensor:
        """The cotangents of the outputs before the call, ``[longest + 1, *N]``: ``came`` are those of what came back at
        the first steps, ``of_past`` that of the past behind the call, where outputs before the call are still in it.
        """
        rows = torch.arange(self.rows, device=came.device).unsqueeze(-1)
        steps = rows - self.longest + self.lags
        there = (steps >= 0) & (steps < came.shape[0])
        index = self._spread(steps.clamp(0, came.shape[0] - 1), came.shape[1:])
        total = came.gather(0, index).masked_fill_(~self._spread(there, came.shape[1:]), 0.0)
        if of_past is not None:
            total[self.rows - of_past.shape[0] :] += of_past
        return total

    def behind(self, history: Tensor) -> Tensor:
        """The past behind the steps of a history."""
        steps = history.shape[0] - self.rows
        return history[steps : steps + self.longest].movedim(0, -1).clone(memory_format=torch.contiguous_format)

    def _spread(self, index: Tensor, shape: Sequence[int]) -> Tensor:
        """``[K, H]`` as ``[K, *N]``."""
        sizes = [index.shape[0], *[1] * (len(shape) - 1), index.shape[1]]
        return index.view(sizes).expand(index.shape[0], *shape)


class Memory(NamedTuple):
    """Memory of the fed-back output: with delays it lies behind the outputs before the call."""

    history: Any
    output: Optional[Tensor]

    def outputs(self, fed: FeedbackCall, like: Tensor, count: int) -> List[Tensor]:
        """The outputs of a call, to be filled."""
        outputs = [like.new_empty(fed.shape) for _ in range(count)]
        if self.output is not None:
            outputs[fed.feedbacks[0].output] = self.output
        return outputs


class Drives(NamedTuple):
    """The inputs that something comes back to, and how one tensor has them all: ``[T, ..., k * H]`` where there is one
    feedback, a call is given its inputs so, and the backend takes them side by side; else ``[k, T, ..., H]``.
    """

    numbers: Tuple[int, ...]
    side_by_side: bool

    def new(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Memory for drives of this shape."""
        count = len(self.numbers)
        return like.new_empty((*shape[:-1], count * shape[-1]) if self.side_by_side else (count, *shape))

    def parts(self, whole: Tensor) -> Sequence[Tensor]:
        """Each drive."""
        if len(self.numbers) == 1:  # fast path
            return (whole,)
        return whole.chunk(len(self.numbers), -1) if self.side_by_side else whole.unbind(0)

    def of(self, whole: Tensor, feedback: Feedback) -> Sequence[Tensor]:
        """The drives of a feedback in its order: side by side they are one."""
        if self.side_by_side:
            return (whole,)
        return [whole[self.numbers.index(number)] for number in feedback.inputs]


class FeedbackCall(NamedTuple):
    """A call with feedback: its tensors, in natural layout."""

    #: The call of its steps, from a given state.
    call: Call
    #: ``[T, ..., H]``.
    shape: Tuple[int, ...]
    #: Inputs as given. Backward does not read those that something comes back to.
    inputs: Sequence[Tensor]
    #: The first states of the program, and before the first step each output that comes back; contiguous. None of them
    #: at rest, if a launch takes all steps and there are no delays.
    state: Sequence[Tensor]
    firsts: Sequence[Tensor]
    #: Parameters as a kernel takes them.
    params: Tuple[Any, ...]
    channels: Tuple[Tuple[int, int], ...]
    #: Weight and bias of each feedback.
    matrices: Sequence[Tuple[Tensor, Optional[Tensor]]]
    feedbacks: Tuple[Feedback, ...]
    #: Numbers of the outputs that come back, and the inputs that they come back to.
    backs: Tuple[int, ...]
    drives: Drives
    delays: Optional[Delays] = None
    #: The drives as they are given: side by side.
    packed: Optional[Tensor] = None

    @property
    def weight(self) -> Tensor:
        """The first matrix."""
        return self.matrices[0][0]

    @property
    def is_stacked(self) -> bool:
        """True if one feedback goes to several inputs, whose drives lie one behind the other."""
        return len(self.feedbacks) == 1 and not self.drives.side_by_side

    @property
    def first(self) -> Any:
        """The first of the outputs before the first step; None at rest."""
        return self.firsts[0] if self.firsts else None

    def rows(self, value: Tensor) -> Tuple[Tensor, ...]:
        """Each step of a tensor whose rows lie evenly, as rows of neurons; one step of a tensor stands for all."""
        each = value.view(len(value), -1, value.shape[-1]).unbind(0)
        return each if len(each) == self.shape[0] else each * self.shape[0]

    def with_drives(self, values: Sequence[Any], whole: Tensor) -> List[Any]:
        """Values for each input, with the drives in their places."""
        return replaced(values, self.drives.numbers, self.drives.parts(whole))

    def pairs(self, number: int, whole: Tensor, rows: Optional[Tensor] = None) -> List[Tuple[Tensor, Tensor]]:
        """The drives of a feedback, and for each its rows of the weight, or of another tensor of its rows."""
        of: Tensor = self.matrices[number][0] if rows is None else rows
        if self.drives.side_by_side:  # torch.split takes longer than the product of a small weight
            return [(whole, of)]
        return [*zip(self.drives.of(whole, self.feedbacks[number]), of.split(self.shape[-1]))]

    def sent(self, output: int, whole: Tensor) -> List[Tuple[Tensor, Tensor]]:
        """Drives to which an output comes back with its gradient, and the rows of a weight for each."""
        sends = [feedback.output == output and not feedback.detach for feedback in self.feedbacks]
        return [pair for number, there in enumerate(sends) if there for pair in self.pairs(number, whole)]

    def memory(self, steps: Optional[int] = None) -> Memory:
        """Memory that the fed-back output is written to."""
        if self.delays is None:
            return Memory(None, None)
        history = self.delays.history(self.first, self.shape[0] if steps is None else steps)
        # no view, which autograd would treat in a way of its own
        at, shape = self.delays.rows * history[0].numel(), (history.shape[0] - self.delays.rows, *self.shape[1:])
        return Memory(history, history.new_empty(0).set_(history.untyped_storage(), at, shape, history.stride()))

    def with_ends(
        self, outputs: Sequence[Optional[Tensor]], ends: Sequence[Optional[Tensor]]
    ) -> Tuple[List[Optional[Tensor]], Optional[Tensor]]:
        """The cotangents of the outputs, with those of the states that are outputs, too; and, in rows, what is for
        outputs before the call.
        """
        every, steps, of_past = [*outputs], self.shape[0], None
        past = ends[-1] if ends and self.delays is not None else None
        for output, last in zip(self.backs, ends):
            if last is None and past is None:
                continue
            total, arriving = self.inputs[self.drives.numbers[0]].new_zeros(self.shape), outputs[output]
            every[output] = total if arriving is None else total.copy_(arriving)
            if last is not None:
                total[-1] += last
            if past is not None:
                rows = past.movedim(-1, 0)
                inside = min(steps - 1, len(rows))
                total[steps - 1 - inside : steps - 1] += rows[len(rows) - inside :]
                of_past = rows[: len(rows) - inside]
        return every, of_past

    def to_firsts(self, gu: Optional[Tensor], of_past: Optional[Tensor], needed: bool) -> List[Optional[Tensor]]:
        """The gradients of the outputs before the call. ``gu`` is that of the drives, None where outputs are
        constants.
        """
        if not self.firsts:
            return []
        if self.delays is None:
            sent = [self.sent(output, gu) if needed and gu is not None else [] for output in self.backs]
            came = [[through(drive[0], rows) for drive, rows in each] for each in sent]
            return [sum(each[1:], each[0]) if each else None for each in came]
        if not needed or (gu is None and of_past is None):
            return [None, None]
        late = (
            self.first.new_zeros((1, *self.shape[1:])) if gu is None else through(gu[: self.delays.rows], self.weight)
        )
        total = self.delays.to_earlier(late, of_past)
        return [total[-1], total[:-1].movedim(0, -1)]

    def geometry(self, steps: int) -> Geometry:
        """The sizes of a launch of so many steps."""
        period = self.shape[-1] if self.beside else 0
        return Geometry(steps, prod(self.shape[1:]), self.channels, period=period)

    @property
    def beside(self) -> Tuple[int, ...]:
        """Inputs that lie beside one another for a launch."""
        return self.drives.numbers if self.drives.side_by_side and len(self.drives.numbers) > 1 else ()


class Cotangents(NamedTuple):
    """The cotangents of a call, and which gradients are wanted."""

    outputs: Sequence[Optional[Tensor]]
    #: Of the program's states, and of those that were recorded.
    final: Tuple[Optional[Tensor], ...]
    trace: Tuple[Optional[Tensor], ...]
    #: True if the gradients of the first states are wanted; and flags of parameters that are tensors.
    state: bool
    learn: Tuple[bool, ...]
    #: Flags of the tensors of the call whose gradient is wanted, inputs first.
    needs: Sequence[bool]

    def needed_inputs(self, count: int, drives: Sequence[int]) -> Tuple[bool, ...]:
        """Of which of so many inputs a kernel finds the gradient: always of those that something comes back to."""
        return tuple([wants or k in drives for k, wants in enumerate(self.needs[:count])])


def through(step: Tensor, weight: Tensor) -> Tensor:
    """The cotangent of an output from that of the next input."""
    return (step.to(weight.dtype) @ weight).to(step.dtype)


def replaced(inputs: Sequence[Any], into: Sequence[int], drives: Iterable[Any]) -> List[Any]:
    """Inputs, with the drives in the places of those that something comes back to."""
    every = dict(zip(into, drives))
    return [every.get(k, value) for k, value in enumerate(inputs)]
