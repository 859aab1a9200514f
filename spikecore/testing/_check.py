"""Check of one neuron, for its author: the kernels of each backend beside a plain loop over ``dynamics``.

The loop calls ``dynamics`` with the tensors of each step, outside the language.
"""

from __future__ import annotations

import copy
import math
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendError
from spikecore.core import parameters, vectors
from spikecore.core.neuron import Neuron
from spikecore.functional import project
from spikecore.lang import Vector, ops
from spikecore.plugins.selection import backends
from spikecore.testing.tolerances import TOLERANCES, Tolerance
from spikecore.words import a_kind


class Row(NamedTuple):
    """One way to compute, its largest differences from the loop, and if these are no more than rounding."""

    way: str
    outputs: Optional[float]
    gradients: Optional[float]
    ok: bool
    remark: str = ""


@dataclass(frozen=True, repr=False)
class NeuronCheck:
    """Result of :func:`check`, which prints as a table."""

    neuron: str
    rows: Tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """True if every row is."""
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        cells = [("way", "outputs", "gradients", "ok", "")]
        for way, *numbers, ok, remark in self.rows:
            outputs, gradients = ("-" if each is None else f"{each:.1e}" for each in numbers)
            cells.append((way, outputs, gradients, "yes" if ok else "NO", remark))
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        return "\n".join([f"{self.neuron}: largest difference from a plain loop over dynamics", *lines])

    __repr__ = __str__  # what a notebook shows


def check(neuron: Neuron, *inputs: Tensor) -> NeuronCheck:
    """Compare a neuron, on every backend that is ready here, with a plain loop over its ``dynamics``.

    ::

        print(sc.testing.check(MyNeuron(learn=("tau",)), torch.randn(20, 4, 10)))

    The loop calls ``dynamics`` with the tensors of each step, and autograd differentiates it: no program, derived
    gradient or kernel takes part. Compared are outputs and last states, and the gradients of inputs and learnt
    parameters for random cotangents of all of these, by the tolerances of the conformance suite.

    neuron: any neuron, which stays as it is. Spikes are those of ``self.spike``.
    inputs: what a call takes, ``[T, *N]`` in float32 or float64, at which it fires; inputs that are drawn, too.

    A difference of 1 may be a spike at a potential within rounding of the threshold: try other inputs.

    Raises TypeError for what is no neuron or tensor and another number of inputs, ValueError for inputs of another
    dtype or without steps, for exact spike times and for fixed point, which such a loop has not.
    """
    _check_arguments(neuron, inputs)
    made = copy.deepcopy(neuron)
    project(made)
    made.step, made.repeat, made.backend = "multi", None, "torch"
    with torch.no_grad():
        made(*inputs)  # raises by name for inputs that do not fit
    x = inputs[0]
    if x.dtype not in (torch.float32, torch.float64) or not x.numel():
        raise ValueError(
            f"check: inputs are {x.dtype} of shape {list(x.shape)}; give [T, *N] in float32 or float64, with a step or "
            "more, such as torch.randn(20, 4, 10)"
        )
    learnt = {name: each for name, each in made.named_parameters() if name in made.params and each.requires_grad}
    leaves = {
        **{name: each.detach().clone().requires_grad_() for name, each in zip(type(made).inputs, inputs)},
        **learnt,
    }
    values, right = list(leaves.values()), _loop(made, leaves)
    expected = _gradients(right, values)
    dtype, device = str(x.dtype).partition(".")[2], x.device.type
    rows = []
    for status in backends(probe=True):
        if status.state != "ready" or dtype not in status.capabilities or not {device, "*"} & {*status.devices}:
            continue
        made.backend = status.name
        try:
            output, state = made.run(*values[: len(inputs)])
            results = dict(zip(right, (*(output if isinstance(output, tuple) else (output,)), *state.values())))
            grads = _gradients(results, values)
        except BackendError as error:
            rows.append(Row(status.name, None, None, True, f"not supported: {error}"))
            continue
        outputs, is_near = _far(list(results.values()), list(right.values()), TOLERANCES[dtype, "output"])
        gradients, are_near = _far(grads, expected, TOLERANCES[dtype, "parameter gradient"])
        rows.append(Row(status.name, outputs, gradients, is_near and are_near))
    return NeuronCheck(type(neuron).__name__, tuple(rows))


def _check_arguments(neuron: Any, inputs: Sequence[Any]) -> None:
    if not isinstance(neuron, Neuron):
        raise TypeError(f"check: neuron={neuron!r} is {a_kind(neuron)}; give a neuron, of sc.Recurrent its .neuron")
    name, wanted = type(neuron).__name__, list(type(neuron).inputs)
    if len(inputs) != len(wanted):
        more = f", {', '.join(neuron.drawn)} by neuron.draw(x)" if neuron.drawn else ""
        raise TypeError(f"check: {name} takes {', '.join(wanted)}, and got {len(inputs)} inputs; give all{more}")
    if neuron.gradient != "surrogate" or neuron.transforms:
        what = f"transforms={neuron.transforms}" if neuron.transforms else f"gradient={neuron.gradient!r}"
        raise ValueError(f"check: {name} has {what}, which a loop over dynamics has not; give the neuron without")


def _gradients(results: Dict[str, Tensor], leaves: Sequence[Tensor]) -> List[Tensor]:
    """The gradients of the sum of results times random numbers, which are the same in each call."""
    generator = torch.Generator().manual_seed(0)
    parts = [(each * torch.randn(each.shape, generator=generator).to(each)).sum() for each in results.values()]
    total = torch.stack(parts).sum()
    grads = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads)]


def _far(values: Sequence[Tensor], right: Sequence[Tensor], tolerance: Tolerance) -> Tuple[float, bool]:
    """The largest difference, and if all are within the tolerance; NaN is as NaN."""
    largest, near = 0.0, True
    for each, other in zip(values, right):
        a, b = each.detach().double(), other.detach().double()
        difference = (a - b).abs().nan_to_num(math.inf, math.inf).masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)
        size = b.abs().nan_to_num(0.0, 0.0)
        largest = max(largest, float(difference.max()))
        near = near and bool((difference <= tolerance.rtol * size + tolerance.atol * size.max().clamp(min=1.0)).all())
    return largest, near


# -- the loop


class _Values(Tensor):
    """A vector of a neuron: its values lie along the first dimension, as indices count them."""

    def unbind(self, dim: int = 0) -> Tuple[Tensor, ...]:  # sc.ops.sum asks for the last one
        return super().unbind(0)


def _loop(neuron: Neuron, leaves: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Outputs of all steps, and states after the last one, by names.

    leaves: the inputs, ``[T, *N]`` of one dtype, which is that of all arithmetic, and the learnt parameters.
    """
    kinds: Dict[str, Optional[Vector]] = vectors.sized(neuron, type(neuron).inputs)
    sizes = [leaves[name].shape[1 : leaves[name].ndim - (kind is not None)] for name, kind in kinds.items()]
    shape, like = torch.broadcast_shapes(*sizes), next(iter(leaves.values()))

    def tensor(value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)

    def spread(value: Any, kind: Optional[Vector]) -> Tensor:
        """The value of a parameter over one time step."""
        value = tensor(value)
        if kind is not None:
            parts = value.unbind(-1) if value.ndim else [value] * int(kind.n)
            return torch.stack([spread(part, None) for part in parts]).as_subclass(_Values)
        (placed,), _ = parameters.place(type(neuron).__name__, [("", value)], shape, neuron.channel_dim)
        return tensor(placed).expand(shape)

    def following(value: Any, before: Tensor) -> Tensor:
        """The next value of a state."""
        if isinstance(value, (list, tuple)):
            value = torch.stack([following(each, before[0]) for each in value])
        return tensor(value).expand(before.shape).as_subclass(type(before))

    p = {name: spread(leaves.get(name, getattr(neuron, name)), neuron.vectors.get(name)) for name in neuron.params}
    s: Dict[str, Tensor] = {}
    for name, declared in neuron.states.items():
        initial, kind = (declared.initial if isinstance(declared, Vector) else declared), neuron.vectors.get(name)
        start = p[initial] if isinstance(initial, str) else tensor(initial)
        s[name] = start.expand(shape) if kind is None else start.expand(int(kind.n), *shape).as_subclass(_Values)
    silent = copy.deepcopy(neuron)
    silent.__dict__["spike"] = lambda *args, **options: ops.detach(neuron.spike(*args, **options))
    cut = tuple(neuron.states) if neuron.reset_states is None else neuron.reset_states
    rows: List[Sequence[Tensor]] = []
    for t in range(len(like)):
        now = [leaves[name][t] for name in kinds]
        now = [x if kind is None else x.movedim(-1, 0).as_subclass(_Values) for x, kind in zip(now, kinds.values())]
        x = now[0] if len(now) == 1 else namedtuple("Inputs", kinds)(*now)
        arguments = x, SimpleNamespace(**s), SimpleNamespace(**p)
        outputs, after = neuron.dynamics(*arguments)
        if neuron.detach_reset:
            without = silent.dynamics(*arguments)[1]
            after = {**after, **{name: without[name] for name in cut}}
        rows.append([tensor(each).expand(shape) for each in (outputs if isinstance(outputs, tuple) else (outputs,))])
        s = {name: following(after[name], before) for name, before in s.items()}
    columns = [torch.stack(column) for column in zip(*rows)]
    named = {"output" if len(columns) == 1 else f"output {k}": column for k, column in enumerate(columns)}
    last = {name: value.movedim(0, -1) if name in neuron.vectors else value for name, value in s.items()}
    return {name: value.as_subclass(Tensor) for name, value in {**named, **last}.items()}
