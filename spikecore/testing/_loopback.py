"""The smallest whole backend, and a way to have one in this process without installing it.

:class:`Loopback` is found and chosen as a plugin is, and computes everything, with an interpreter of its own. It is the
suite's control: it must pass every case, and each of its deliberately wrong subclasses must not.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

import spikecore
from spikecore._plugins import registry
from spikecore.backend import ANY_DEVICE, Backend, BackendInfo, Capabilities, ParamValue, Runner, Spec, Tensors
from spikecore.interpreter import FeedbackLoop, step_spec, through_statistics
from spikecore.lang import Node, Program
from spikecore.lang.eager import function_of, operands

EVERYTHING = replace(Capabilities(**dict.fromkeys(Capabilities.__dataclass_fields__, True)), torch_compile=False)


class Loop:
    """A runner: evaluates the program's nodes, step by step. Each method is a place where a mutant can go wrong."""

    def __init__(self, program: Program, spec: Spec) -> None:
        self.program, self.spec = program, spec
        self.dtype, self.compute = spec.dtype, spec.compute

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
        program, shape = self.program, inputs[0].shape[1:]
        if program.normalised:
            # converted once, so that the parts of a 16-bit input's gradient add up in float32
            inputs = tuple([x.to(self.compute) for x in inputs])
        params = self.statistics(inputs, params)
        known = {
            leaf: self.parameter(v, kind, inputs[0]) for leaf, v, kind in zip(self._params(), params, self.spec.params)
        }
        now = self.start(state, known, inputs[0])
        steps = inputs[0].shape[0]
        seen: List[List[Tensor]] = [[] for _ in program.outputs]
        trace: Dict[str, List[Tensor]] = {name: [] for name in record}
        for t in range(steps):
            leaves = dict(zip(program.leaves, [*(self.read(x, t) for x in inputs), *now]))
            values = {**known, **leaves}
            before = now
            outputs = [self.evaluate(root, values, t) for root in program.outputs]
            now = [self.evaluate(root, values, t).expand(shape) for root in program.next]
            now = self.carry(before, now, t)
            for row, value in zip(seen, outputs):
                row.append(value.expand(shape))
            for name, value in zip(program.states, self.recorded(before, now)):
                if name in trace:
                    trace[name].append(value)
        empty = inputs[0].new_empty((0, *shape), dtype=self.compute)
        stacked = [torch.stack(row) if row else empty for row in seen]
        return (
            tuple(self.written(out) for out in stacked),
            # a state may be an argument, another state or an expanded number
            tuple(value.clone() for value in now),
            tuple(torch.stack(trace[name]) if trace[name] else empty for name in record),
        )

    def statistics(self, inputs: Tensors, params: Tuple[ParamValue, ...]) -> Tuple[ParamValue, ...]:
        """The parameters, mean and rstd of the inputs as functions of them."""
        return through_statistics(self.program, inputs, params)

    def _params(self) -> Sequence[Node]:
        return [Node("param", (), name) for name in self.program.params]

    def parameter(self, value: ParamValue, kind: str, like: Tensor) -> Tensor:
        """A parameter as a tensor of the arithmetic's dtype."""
        if isinstance(value, Tensor):
            return value.to(self.compute)
        return _number(value, self.compute, like.device)

    def start(self, state: Optional[Tensors], known: Dict[Node, Tensor], like: Tensor) -> List[Tensor]:
        """The states before the first step."""
        if state is not None:
            return list(state)
        return [self.evaluate(root, dict(known), -1, like).expand(like.shape[1:]) for root in self.program.initial]

    def read(self, x: Tensor, t: int) -> Tensor:
        """One step of an input."""
        return x[t].to(self.compute)

    def evaluate(self, root: Node, values: Dict[Node, Tensor], t: int, like: Optional[Tensor] = None) -> Tensor:
        """The value of a node; ``values`` has those that are known, and gets the others."""
        if root not in values:
            if root.op == "const":
                some = like if like is not None else next(iter(values.values()))
                number = float(root.attr)  # type: ignore[arg-type]  # of a constant it is a number
                values[root] = _number(number, self.compute, some.device)
            else:
                values[root] = self.operate(root, [self.evaluate(arg, values, t, like) for arg in operands(root)], t)
        return values[root]

    def operate(self, node: Node, args: List[Tensor], t: int) -> Tensor:
        """The value of an operation, of its operands."""
        return function_of(node)(*args)

    def carry(self, before: List[Tensor], now: List[Tensor], t: int) -> List[Tensor]:
        """What goes on to the next step."""
        return now

    def recorded(self, before: List[Tensor], now: List[Tensor]) -> List[Tensor]:
        """What the trace gets."""
        return now

    def written(self, output: Tensor) -> Tensor:
        """An output ``[T, *N]`` as it is given back."""
        return output.to(self.dtype)


def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number rounded to ``dtype``: infinite where it is too large for that, which ``torch.full`` refuses."""
    return torch.tensor(value, dtype=torch.float64).to(dtype).to(device)


class Loopback(Backend):
    """A backend of :class:`Loop`."""

    name = "loopback"
    capabilities = EVERYTHING
    loop: Type[Loop] = Loop
    feedback: Type[FeedbackLoop] = FeedbackLoop

    def compile(self, program: Program, spec: Spec) -> Runner:
        """A loop over the program."""
        if spec.feedback is not None:
            return self.feedback(program, self.loop(program, step_spec(program, spec)), spec.feedback)
        return self.loop(program, spec)


_classes = SimpleNamespace()


@contextmanager
def installed(
    backend: Type[Backend], devices: Tuple[str, ...] = (ANY_DEVICE,), reason: Optional[str] = None
) -> Iterator[str]:
    """Within the block this backend is there, beside the built-ins, as if a distribution provided it; gives its name.

    ``reason``: why it cannot be used here, if so. Meant for tests, from one thread.
    """
    name = backend.name
    info = BackendInfo(name, f"{__name__}:_classes.{name}", devices, backend.capabilities, lambda: reason)

    class Plugin:
        @spikecore.backend.hookimpl
        def spikecore_backends(self) -> List[BackendInfo]:
            return [info]

    point: Any = SimpleNamespace(name=name, value=f"in process: {backend.__qualname__}", dist=None, load=Plugin)
    setattr(_classes, name, backend)
    before = registry.replace_default(registry.Registry(registry.default_registry().builtins, entry_points=[point]))
    try:
        yield name
    finally:
        registry.replace_default(before)
        delattr(_classes, name)
