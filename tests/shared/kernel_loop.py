"""A kernel backend that loops over the neurons' equations in torch, and what tests of kernel backends compare."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import Capabilities
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, KernelBackend
from spikecore.lang import Node
from spikecore.lang.eager import StraightLine
from spikecore.plugins.selection import Resolved
from spikecore_torch.backend import TorchBackend

ALL = Capabilities(**dict.fromkeys(Capabilities.__dataclass_fields__, True))


def rows(tensor: Tensor, geometry: Geometry) -> Tensor:
    """All steps as a kernel sees them: step after step, in the order of memory."""
    return tensor.as_strided((geometry.steps, geometry.neurons), (tensor.stride(0), 1))


def row(tensor: Tensor, geometry: Geometry) -> Tensor:
    """One step in the order of memory."""
    return tensor.as_strided((geometry.neurons,), (1,))


class Loop(KernelBackend):
    """Kernels as a loop over steps, on memory alone: no shape, no autograd."""

    name = "loop"
    capabilities = ALL

    def __init__(self, chunk: int = 0) -> None:
        super().__init__()
        self.chunk = chunk
        self.calls: List[str] = []

    def _params(self, plan: Any, geometry: Geometry, params: Sequence[Any], like: Tensor) -> List[Tensor]:
        values = []
        neuron = torch.arange(geometry.neurons)
        for kind, value, (inner, channels) in zip(
            plan.spec.params, params, geometry.channels or [(0, 0)] * len(params)
        ):
            if kind == "number":
                value = torch.full((), value, dtype=like.dtype)
            elif kind == "scalar":
                value = value.as_strided((), ())
            elif kind == "channel":
                value = value.as_strided((channels,), (1,))[(neuron // inner) % channels]
            else:
                value = row(value, geometry)
            assert value.dtype == plan.compute
            values.append(value)
        return values

    def read(self, plan: Any, geometry: Geometry, index: int, value: Tensor) -> Tensor:
        """All steps of an input, with a number for each neuron."""
        kind = plan.broadcast[index] if plan.broadcast else ""
        if not kind:
            return rows(value, geometry)
        period = geometry.period if kind == "period" else 1
        return value.as_strided((geometry.steps, period), (value.stride(0), 1))[
            :, torch.arange(geometry.neurons) % period
        ]

    def add_up(self, parts: List[Tensor]) -> Tensor:
        """Partial sums ``[T, k * period]`` of the gradients of all neurons, from the last step to the first."""
        return torch.stack(parts[::-1])

    def _start(self, plan: Any, geometry: Geometry, state: Any, params: Any, like: Tensor) -> List[Tensor]:
        program = plan.program
        leaves = program.leaves[len(program.inputs) + len(program.states) :]
        start = (
            [row(s, geometry) for s in state]
            if plan.has_initial_state
            else StraightLine(leaves, program.initial)(params, like)
        )
        return [s.expand(geometry.neurons).clone() for s in start]

    def forward(self, plan: ForwardPlan) -> Any:
        program = plan.program
        step = StraightLine(program.leaves, [*program.outputs, *program.next])

        @torch.no_grad()
        def launch(
            geometry: Geometry, inputs: Any, state: Any, params: Any, outputs: Any, final: Any, trace: Any, saved: Any
        ) -> None:
            self.calls.append("forward")
            assert len(saved) == len(plan.saved)
            like = torch.empty((), dtype=plan.compute)
            params = self._params(plan, geometry, params, like)
            now = self._start(plan, geometry, state, params, like)
            for t in range(geometry.steps):
                if plan.checkpoints and t and t % self.chunk == 0:
                    for kept, value in zip(saved, [now[program.states.index(name)] for name in plan.saved]):
                        kept.as_strided((len(kept), geometry.neurons), (geometry.neurons, 1))[t // self.chunk - 1] = (
                            value
                        )
                x = [self.read(plan, geometry, k, value)[t].to(plan.compute) for k, value in enumerate(inputs)]
                found = [value.expand(geometry.neurons) for value in step([*x, *now, *params], like)]
                for out, value in zip(outputs, found):
                    rows(out, geometry)[t] = value.to(plan.dtype)
                now = found[len(outputs) :]
                for out, name in zip(trace, plan.record):
                    rows(out, geometry)[t] = now[program.states.index(name)]
            for out, value in zip(final, now):
                row(out, geometry)[:] = value

        return launch

    def backward(self, plan: BackwardPlan) -> Any:
        program = plan.program
        adjoint = plan.adjoint
        step = StraightLine(program.leaves, program.next)
        cotangents = [Node("out_grad", (), i) for i, there in enumerate(plan.outputs) if there]
        cotangents += [Node("next_grad", (), name) for name in program.states]
        back = StraightLine([*program.leaves, *cotangents], [*adjoint.inputs, *adjoint.states, *adjoint.params])

        @torch.no_grad()
        def launch(
            geometry: Geometry,
            inputs: Any,
            state: Any,
            params: Any,
            saved: Any,
            grad_outputs: Any,
            grad_final: Any,
            grad_trace: Any,
            grad_inputs: Any,
            grad_state: Any,
        ) -> List[Tensor]:
            self.calls.append("backward")
            assert len(grad_outputs) == sum(plan.outputs)
            assert len(grad_trace) == len(plan.trace)
            like = torch.empty((), dtype=plan.compute)
            params = self._params(plan, geometry, params, like)
            now = self._start(plan, geometry, state, params, like)
            history = []
            for t in range(geometry.steps):
                if self.chunk and t and t % self.chunk == 0:
                    now = [torch.full((geometry.neurons,), float("nan"), dtype=plan.compute) for _ in program.states]
                    for k, name in zip(saved, plan.saved):
                        steps = k.as_strided((len(k), geometry.neurons), (geometry.neurons, 1))
                        now[program.states.index(name)] = steps[t // self.chunk - 1]
                x = [self.read(plan, geometry, k, value)[t].to(plan.compute) for k, value in enumerate(inputs)]
                history.append([*x, *now, *params])
                now = [value.expand(geometry.neurons) for value in step(history[-1], like)]
            carry = [torch.zeros(geometry.neurons, dtype=plan.compute) for _ in program.states]
            if plan.final:
                carry = [row(g, geometry).clone() for g in grad_final]
            sums = [torch.zeros(geometry.neurons, dtype=plan.compute) for _ in plan.learn]
            parts: List[List[Tensor]] = [[] for _ in plan.summed]
            for t in reversed(range(geometry.steps)):
                for g, name in zip(grad_trace, plan.trace):
                    index = program.states.index(name)
                    carry[index] = carry[index] + rows(g, geometry)[t]
                arriving = [rows(g, geometry)[t].to(plan.compute) for g in grad_outputs]
                found = [v.expand(geometry.neurons) for v in back([*history[t], *arriving, *carry], like)]
                for out, index in zip(grad_inputs, plan.written):
                    rows(out, geometry)[t] = found[index].to(plan.dtype)
                for part, index in zip(parts, plan.summed):
                    part.append(found[index])
                n = len(program.inputs)
                carry = found[n : n + len(program.states)]
                sums = [total + value for total, value in zip(sums, found[n + len(program.states) :])]
            for out, value in zip(grad_state, carry):
                row(out, geometry)[:] = value
            return [*sums, *map(self.add_up, parts)]

        return launch


class Periods(Loop):
    """Reads inputs that broadcast where they lie, and sums their gradients."""

    name = "periods"
    reads_periods = True
    sums_periods = True


class Moving(Loop):
    """With a launch of its own that finds statistics and moves the running ones."""

    name = "moving"

    def __init__(self, chunk: int = 4) -> None:
        super().__init__(chunk)

    def forward(self, plan: Any) -> Any:
        return _of_its_steps(plan, super().forward(plan))

    def backward(self, plan: Any) -> Any:
        return _of_its_steps(plan, super().backward(plan))

    def statistics(self, spec: Any) -> Any:
        def launch(geometry: Any, x: Tensor, eps: float, running: Any) -> Any:
            ((inner, channels),), values = geometry.channels, rows(x.detach(), geometry).to(spec.compute)
            channel = torch.arange(geometry.neurons) // inner % channels
            apart = torch.stack([values[:, channel == k].flatten() for k in range(channels)])
            mean, variance = apart.mean(1), apart.var(1, unbiased=False)
            if running is not None:
                n = apart.shape[1]
                held, moved, count, factor = running
                with torch.no_grad():
                    held.data.lerp_(mean.to(held.dtype), factor)
                    moved.data.lerp_((variance * (n / (n - 1))).to(moved.dtype), factor)
                    if count is not None:
                        count.data.add_(1)
            return mean, torch.rsqrt(variance + eps)

        return launch


def _of_its_steps(plan: Any, launch: Any) -> Any:
    """The launch, which must get as many steps as it was made for."""

    def checked(geometry: Any, *groups: Any) -> Any:
        assert plan.spec.steps in (None, geometry.steps)
        return launch(geometry, *groups)

    return checked


class Gated(sc.Neuron):
    """Two inputs, two outputs, two states, a start that is a parameter."""

    inputs = ("x", "gate")
    states = {"v": "start", "w": 0.25}
    params = {"tau": 2.0, "a": 0.5, "start": 0.1}

    def dynamics(self, inputs: Any, s: Any, p: Any) -> Any:
        x, gate = inputs
        k = p.tau * p.tau + 1.0
        h = s.v + (x - p.a * s.w) / k
        z = self.spike(h - 1.0)
        return (z, gate * h), {"v": sc.ops.select(z, p.start * s.w, h), "w": s.w * gate + z}


def bound(neuron: sc.Neuron, backend: KernelBackend) -> sc.Neuron:
    """The neuron, computed by this backend."""
    neuron._dispatch.bound = {"cpu": Resolved(backend, "test", "test")}
    return neuron


def twins(make: Any, chunk: int = 0) -> Tuple[sc.Neuron, sc.Neuron]:
    """The same neuron on the loop and on the reference."""
    neuron = make()
    return bound(neuron, Loop(chunk)), bound(copy.deepcopy(neuron), TorchBackend())


SHAPE = (3, 4, 2, 5)


def image(T: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Input ``[T, B, C, H, W]``."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(T, *SHAPE, generator=generator) + 0.7).to(dtype)


def channels_last(x: Tensor) -> Tensor:
    return (
        torch.stack([step.contiguous(memory_format=torch.channels_last) for step in x]).permute(0, 1, 2, 3, 4)
        if not len(x)
        else x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    )


LAYOUTS: Dict[str, Any] = {
    "contiguous": lambda x: x.contiguous(),
    "channels-last": channels_last,
    "batch last": lambda x: x.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3),
    "batch first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "part of a batch": lambda x: torch.cat([x, x], 1)[:, 1 : 1 + x.shape[1]],
    "every other": lambda x: torch.stack([x, x], -1)[..., 1],
    "one step": lambda x: x[:1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1, :1, :1].expand_as(x),
    "one number per step": lambda x: x[:, :1, :1, :1, :1].expand_as(x),
    "unaligned": lambda x: torch.cat([x.flatten(), x.flatten()])[1 : 1 + x.numel()].view_as(x),
}


def gradients(results: Sequence[Tensor], wanted: Sequence[Tensor], cotangents: Sequence[Tensor]) -> List[Tensor]:
    pairs = [(r, c) for r, c in zip(results, cotangents) if r.requires_grad]
    found = torch.autograd.grad([r for r, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted)]


def same(ours: Any, theirs: Any, **tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, check_stride=False, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


class TwoEnds(sc.Neuron):
    """Spikes and the potential, of a current and what raises the threshold: a feedback has ends to choose from."""

    inputs = ("x", "y")
    params = {"tau": 2.0, "gain": 0.5}
    states = {"v": 0.0, "w": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = s.v + (x.x - s.v) / p.tau
        z = self.spike(v - 1.0 - s.w)
        return (z, v), {"v": v * (1.0 - z), "w": s.w * 0.5 + x.y * x.y * p.gain}
