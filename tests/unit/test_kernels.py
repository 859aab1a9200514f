"""What every kernel backend inherits, shown with a backend whose kernels are a Python loop over plain memory."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from typing import Any, Dict, List, Sequence, Tuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import spikecore as sc
from spikecore.backend import Capabilities, Spec, Unsupported
from spikecore.kernels import (
    BackwardPlan,
    ForwardPlan,
    Geometry,
    KernelBackend,
    KernelRunner,
    layout_of,
    registered,
    with_reciprocals,
)
from spikecore.kernels.layout import Layout
from spikecore.lang import Node, topological
from spikecore.lang.eager import Straight
from spikecore.lang.node import const
from spikecore.selection import Resolved
from spikecore_torch.backend import TorchBackend

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

ALL = Capabilities(**{name: True for name in Capabilities.__dataclass_fields__ if name != "double_backward"})


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

    def _start(self, plan: Any, geometry: Geometry, state: Any, params: Any, like: Tensor) -> List[Tensor]:
        program = plan.program
        leaves = program.leaves[len(program.inputs) + len(program.states) :]
        start = [row(s, geometry) for s in state] if plan.given else Straight(leaves, program.rest)(params, like)
        return [s.expand(geometry.neurons).clone() for s in start]

    def forward(self, plan: ForwardPlan) -> Any:
        program = plan.program
        step = Straight(program.leaves, [*program.outputs, *program.next])

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
                x = [rows(value, geometry)[t].to(plan.compute) for value in inputs]
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
        step = Straight(program.leaves, program.next)
        cotangents = [Node("out_grad", (), i) for i, there in enumerate(plan.outputs) if there]
        cotangents += [Node("next_grad", (), name) for name in program.states]
        back = Straight([*program.leaves, *cotangents], [*adjoint.inputs, *adjoint.states, *adjoint.params])

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
                x = [rows(value, geometry)[t].to(plan.compute) for value in inputs]
                history.append([*x, *now, *params])
                now = [value.expand(geometry.neurons) for value in step(history[-1], like)]
            carry = [torch.zeros(geometry.neurons, dtype=plan.compute) for _ in program.states]
            if plan.final:
                carry = [row(g, geometry).clone() for g in grad_final]
            sums = [torch.zeros(geometry.neurons, dtype=plan.compute) for _ in plan.learn]
            for t in reversed(range(geometry.steps)):
                for g, name in zip(grad_trace, plan.trace):
                    index = program.states.index(name)
                    carry[index] = carry[index] + rows(g, geometry)[t]
                arriving = [rows(g, geometry)[t].to(plan.compute) for g in grad_outputs]
                found = [v.expand(geometry.neurons) for v in back([*history[t], *arriving, *carry], like)]
                to_inputs = [g for g, wants in zip(found, plan.inputs) if wants]
                for out, value in zip(grad_inputs, to_inputs):
                    rows(out, geometry)[t] = value.to(plan.dtype)
                n = len(program.inputs)
                carry = found[n : n + len(program.states)]
                sums = [total + value for total, value in zip(sums, found[n + len(program.states) :])]
            for out, value in zip(grad_state, carry):
                row(out, geometry)[:] = value
            return sums

        return launch


needs_ops = pytest.mark.skipif(not registered.SUPPORTED, reason="torch.compile through kernels needs torch 2.4")


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
    neuron._bound = {"cpu": Resolved(backend, "test", "test")}
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_grad", LAYOUTS)
def test_every_layout_gives_the_same(layout: str, of_grad: str) -> None:
    """Inputs and cotangents of any strides give the values and gradients of contiguous ones."""
    ours, theirs = twins(sc.LIF)
    x = LAYOUTS[layout](image()).requires_grad_()
    g = LAYOUTS[of_grad](image(seed=1))
    x_, g_ = x.detach().contiguous().requires_grad_(), g.contiguous()
    y, y_ = ours(x), theirs(x_)
    same(y, y_)
    same(torch.autograd.grad(y, x, g)[0], torch.autograd.grad(y_, x_, g_)[0])


def test_dense_layouts_are_kept_without_a_copy() -> None:
    """What is dense step by step stays where it is, and results lie as the input does."""
    for name in ("contiguous", "channels-last", "batch last", "part of a batch", "one step"):
        x = LAYOUTS[name](image())
        assert layout_of(x).fit_steps(x) is x, name
    x = channels_last(image())
    neuron = bound(sc.LIF(), Loop())
    assert neuron(x).stride() == x.stride()


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("T", [1, 6, 20])
def test_everything_at_once(chunk: int, layout: str, T: int) -> None:
    """Several inputs and outputs, state, record and learnt parameters of all kinds have the reference's values and
    gradients.
    """

    def make() -> sc.Neuron:
        generator = torch.Generator().manual_seed(3)
        return Gated(
            tau=2.0 + torch.rand(4, generator=generator),
            a=torch.rand(SHAPE[1:], generator=generator),
            start=torch.tensor(0.3),
            learn=("tau", "a", "start"),
        )

    ours, theirs = twins(make, chunk)
    found = []
    for neuron in (ours, theirs):
        for given in (False, True):
            xs = [LAYOUTS[layout](image(T, seed=s)).requires_grad_() for s in (0, 1)]
            state = {n: image(1, seed=s)[0].requires_grad_() for n, s in (("v", 5), ("w", 6))} if given else None
            (a, b), end, trace = neuron.run(*xs, state=state, record=("w", "v"))
            results = [a, b, end["w"], trace["v"]]
            cotangents = [image(T, seed=9), image(T, seed=10)[:1].expand_as(b), image(1, seed=11)[0], image(T, seed=12)]
            wanted = [*xs, *neuron.parameters(), *((state or {}).values())]
            found.append([*results, end["v"], trace["w"], *gradients(results, wanted, cotangents)])
    half = len(found) // 2
    for ours_, theirs_ in zip(found[:half], found[half:]):
        same(ours_, theirs_, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (3,), (0,), (5, 2, 0, 3)])
def test_empty_and_small(shape: Tuple[int, ...]) -> None:
    """No steps, no neurons and single ones are no special cases to the user."""
    ours, theirs = twins(lambda: sc.LIF(learn=("tau", "v_reset")))
    found = []
    for neuron in (ours, theirs):
        x = torch.ones(shape, requires_grad=True)
        y, end, trace = neuron.run(x, record=("v",))
        wanted = [x, *neuron.parameters()]
        found.append([y, end["v"], trace["v"], *gradients([y, end["v"]], wanted, [y + 1, end["v"] + 1])])
    same(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    """Outputs and input gradients have the input's dtype; state and parameter gradients that of arithmetic."""
    ours, theirs = twins(lambda: sc.LIF(learn=("tau",)))
    found = []
    for neuron in (ours, theirs):
        x = image(dtype=dtype).requires_grad_()
        y, end = neuron.run(x)
        g = gradients([y, end["v"]], [x, neuron.tau], [image(dtype=dtype, seed=2), torch.ones_like(end["v"])])
        assert (y.dtype, end["v"].dtype, g[0].dtype) == (dtype, sc.backend.compute_dtype(dtype), dtype)
        found.append([y, end["v"], *g])
    same(*found, rtol=1e-2, atol=1e-2) if dtype != torch.float64 else same(*found)


def test_gradient_for_some_only() -> None:
    """Each input, state and parameter alone gets its gradient, and no work is done for the others."""
    ours, theirs = twins(lambda: Gated(tau=torch.tensor(2.0), learn=("tau",)))
    for wants in ("x", "gate", "v", "w", "tau", "nothing"):
        found = []
        for neuron in (ours, theirs):
            x, gate, v, w = (image(seed=i) if i < 2 else image(1, seed=i)[0] for i in range(4))
            named = {"x": x, "gate": gate, "v": v, "w": w, "tau": neuron.tau.detach()}
            neuron.tau.requires_grad_(wants == "tau")
            target = neuron.tau if wants == "tau" else named.get(wants)
            if target is not None:
                target.requires_grad_()
            (_, b), end = neuron.run(x, gate, state={"v": v, "w": w})
            assert b.requires_grad == (wants != "nothing")
            if wants != "nothing":
                found.append(gradients([b, end["v"]], [target], [image(seed=7), image(1, seed=8)[0]]))
        if found:
            same(*found, rtol=1e-4, atol=1e-5)


def test_inference_saves_nothing() -> None:
    """Without gradients nothing is written for backward; with them, the checkpoints."""
    written = []

    class Watching(Loop):
        def forward(self, plan: ForwardPlan) -> Any:
            written.append(plan.checkpoints)
            return super().forward(plan)

    neuron = bound(sc.LIF(), Watching(chunk=4))
    x = torch.ones(20, 3, requires_grad=True)
    with torch.no_grad():
        assert neuron(x).grad_fn is None
    assert neuron(x.detach()).grad_fn is None
    assert neuron(x).grad_fn is not None
    assert written == [False, True]


class Counting(sc.Neuron):
    """A state that no gradient is computed from, before one that is."""

    states = {"count": 0.0, "v": 0.1}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0)
        count = s.count + z
        return count, {"count": count, "v": sc.ops.select(z, 0.0, h)}


@pytest.mark.parametrize("given", [False, True])
def test_forward_saves_the_states_that_backward_reads_and_no_other(given: bool) -> None:
    """Checkpoints are of those states alone, and gradients are right without the others."""
    ours, theirs = twins(lambda: Counting(learn=("tau",)), chunk=4)
    found = []
    for neuron in (ours, theirs):
        x = image(18).requires_grad_()
        state = {n: image(1, seed=2)[0].requires_grad_() for n in neuron.states} if given else None
        out, end, trace = neuron.run(x, state=state, record=("count", "v"))
        results, wanted = [out, *end.values(), *trace.values()], [x, neuron.tau, *(state or {}).values()]
        if neuron is ours:
            checkpoints = out.grad_fn.saved_tensors[len(wanted) :]  # behind what was given
            assert [saved.shape for saved in checkpoints] == [(18 // 4, *x.shape[1:])]
        found.append([*results, *gradients(results, wanted, [torch.ones_like(r) for r in results])])
    same(*found, rtol=1e-4, atol=1e-4)


def test_forward_saves_nothing_for_a_linear_neuron() -> None:
    """Its gradient depends on no state."""
    x = image(20).requires_grad_()
    assert len(bound(sc.LI(), Loop(chunk=4))(x).grad_fn.saved_tensors) == 1
    assert len(bound(sc.LIF(), Loop(chunk=4))(x).grad_fn.saved_tensors) == 2


@pytest.mark.parametrize("neuron", [sc.LIF(), sc.ALIF(), sc.Izhikevich(), sc.LI(), Gated(), Counting()], ids=repr)
def test_what_is_saved_is_enough_for_every_backward_pass(neuron: sc.Neuron) -> None:
    """Whatever cotangents arrive and gradients are wanted: what the pass recomputes was saved."""
    program, either = neuron.program, (False, True)
    spec = Spec(torch.float32, None, ("scalar",) * len(program.params), program.params)
    for given, final, out, into, learnt in itertools.product(either, repeat=5):
        plan = BackwardPlan(
            program,
            spec,
            given=given,
            outputs=(True,) * (len(program.outputs) - 1) + (out,),
            trace=program.states if final else (),
            final=final,
            inputs=(into,) * len(program.inputs),
            state=given and not into,
            learn=program.params[:1] if learnt else (),
        )
        assert set(plan.kept) <= set(plan.saved)


def test_divisions_by_what_is_fixed_become_products() -> None:
    """A reciprocal is a division of its own; the nodes that must stay exact stay, and so does any other division."""
    x, y, tau = (Node(*leaf) for leaf in (("input", (), "x"), ("state", (), "y"), ("param", (), "tau")))
    inside, moving = Node("div", (x, tau)), Node("div", (x, y))
    root = Node("add", (Node("div", (inside, tau)), moving))
    new = with_reciprocals(topological([root]), exact={inside}, fixed={tau})
    assert (new[inside], new[moving]) == (inside, moving)
    assert new[root] == Node("add", (Node("mul", (inside, Node("div", (const(1.0), tau)))), moving))


def test_input_changed_in_place_is_noticed() -> None:
    """Backward refuses an input that changed since forward."""
    neuron = bound(sc.LIF(), Loop())
    leaf = torch.ones(4, 3, requires_grad=True)
    x = leaf * 1.0
    y = neuron(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_derivative_is_refused_in_words() -> None:
    """create_graph alone is fine; differentiating the gradient says what would work."""
    neuron = bound(sc.LIF(), Loop())
    x = torch.ones(4, 3, requires_grad=True)
    (g,) = torch.autograd.grad(neuron(x).sum(), x, create_graph=True)
    with pytest.raises(Unsupported, match="first derivatives only.*backend='torch'"):
        g.square().sum().backward()


def test_backward_twice_through_a_kept_graph() -> None:
    """retain_graph works, and gives the same."""
    neuron = bound(sc.LIF(), Loop())
    x = torch.ones(4, 3, requires_grad=True)
    y = neuron(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    same(first, torch.autograd.grad(y, x))


class Restrided:
    """Saved-tensor hooks that give back tensors with other strides, as offloading to the host does."""

    @staticmethod
    def every(tensor: Tensor) -> Tensor:
        return tensor.contiguous()

    @staticmethod
    def large(tensor: Tensor) -> Tensor:
        return tensor.contiguous() if tensor.numel() > 3000 else tensor

    @staticmethod
    def small(tensor: Tensor) -> Tensor:
        return tensor if tensor.numel() > 3000 else tensor.contiguous()

    @staticmethod
    def apart(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor], -1)[..., 0]

    @staticmethod
    def late(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]] if tensor.ndim else tensor


@pytest.mark.parametrize("hook", ["every", "large", "small", "apart", "late"])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "batch last", "part of a batch", "one step"])
@pytest.mark.parametrize("given", [False, True])
def test_saved_tensor_hooks_may_restride(hook: str, layout: str, given: bool) -> None:
    """Whichever saved tensors come back with other strides, gradients are those without hooks."""
    found = []
    for hooked in (False, True):
        ours, _ = twins(lambda: Gated(tau=torch.full((4,), 2.5), learn=("tau",)), 4)
        xs = [LAYOUTS[layout](image(38, seed=s)).requires_grad_() for s in (0, 1)]
        start = {"v": channels_last(image(1, seed=5))[0], "w": image(1, seed=6)[0]} if given else None
        call = functools.partial(ours.run, *xs, state=start)
        if hooked:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, getattr(Restrided, hook)):
                (z, y), _ = call()
        else:
            (z, y), _ = call()
        cotangents = [channels_last(image(38, seed=8)), image(38, seed=9)]
        results = gradients([z, y], [*xs, ours.tau], cotangents)
        found.append(results)
    same(found[1], found[0], rtol=0, atol=0)


def test_saved_tensor_hooks_of_a_simple_call() -> None:
    """One input, outputs alone: the same holds on the short way."""
    found = []
    for hook in (Restrided.apart, None):
        neuron = bound(sc.LIF(), Loop(4))
        x = image(38).requires_grad_()
        if hook is None:
            y = neuron(x)
        else:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, hook):
                y = neuron(x)
        found.append(torch.autograd.grad(y, x, image(38, seed=2))[0])
    same(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    "hook", [lambda t: t.half(), lambda t: t[:1], lambda t: t.to("meta")], ids=["half", "cut", "device"]
)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_saved_tensor_hooks_may_not_change_numbers(hook: Any, layout: str) -> None:
    """A hook that gives back another dtype, shape or device is refused in words."""
    neuron = bound(sc.LIF(), Loop(4))
    x = LAYOUTS[layout](image(9)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, hook):
        y = neuron(x)
    with pytest.raises(
        RuntimeError, match="LIF: a saved-tensor hook gave back .* must have the dtype, shape and device"
    ):
        y.backward(image(9, seed=2))


@needs_ops
@pytest.mark.parametrize("hook", ["every", "large", "small", "apart"])
def test_saved_tensor_hooks_may_restride_what_the_registered_op_saved(hook: str) -> None:
    """The registered op keeps the layout of the forward pass, too."""
    neuron = Gated(tau=torch.full((4,), 2.0), learn=("tau",))
    spec = Spec(torch.float32, None, ("channel", *["number"] * (len(neuron.program.params) - 1)), ("tau",))
    runner, numbers = KernelRunner(Loop(4), neuron.program, spec), [0.5, 0.1, *neuron._numbers.values()]
    found = []
    for unpack in (lambda t: t, getattr(Restrided, hook)):
        tau = torch.full((1, 4, 1, 1), 2.0, requires_grad=True)
        xs = [channels_last(image(38, seed=s)).requires_grad_() for s in (0, 1)]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            outs = torch.ops.spikecore.forward(runner.key, [*xs, tau], numbers, [], False, True)
        found.append(gradients(outs[:2], [*xs, tau], [image(38, seed=8), image(38, seed=9)]))
    same(found[1], found[0], rtol=0, atol=0)


def test_carried_state_is_one_long_call() -> None:
    """Chunks of a sequence under carry_state give outputs and gradients of the whole."""
    ours, theirs = twins(lambda: sc.ALIF(2.5))
    x, x_ = (image(9).requires_grad_() for _ in range(2))
    with sc.carry_state(ours):
        y = torch.cat([ours(part) for part in x.split(4)])
    y_ = theirs(x_)
    same(y, y_)
    g = image(9, seed=4)
    same(torch.autograd.grad(y, x, g), torch.autograd.grad(y_, x_, g))


def test_autocast_takes_the_half_input_as_it_is() -> None:
    """Under autocast a neuron behind a linear layer runs on what the layer gives."""
    net = nn.Sequential(nn.Linear(5, 7), bound(sc.LIF(), Loop()))
    with torch.autocast("cpu", torch.bfloat16):
        y = net(torch.randn(4, 3, 5))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert net[0].weight.grad is not None


def test_a_program_has_one_name_everywhere() -> None:
    """The key of the registered ops depends on backend, program and spec alone."""
    spec = Spec(torch.float32, None, ("number",) * 5)
    key = KernelRunner(Loop(), sc.LIF().program, spec).key
    assert key == KernelRunner(Loop(), sc.LIF(3.0).program, spec).key
    assert key != KernelRunner(Loop(), sc.LIF(reset="soft").program, spec).key
    assert key != KernelRunner(Loop(), sc.LIF().program, Spec(torch.float32, 4, ("number",) * 5)).key


def test_layout_finds_the_channel() -> None:
    """Neuron i in the order of memory belongs to channel (i // inner) % C."""
    for name in ("contiguous", "channels-last", "batch last"):
        x = LAYOUTS[name](image())
        layout = layout_of(x)
        labels = torch.arange(4).view(1, 4, 1, 1).expand(SHAPE)
        memory = labels.permute(layout.order).flatten() if layout.order else labels.flatten()
        inner = layout.inner_of(1)
        assert torch.equal((torch.arange(memory.numel()) // inner) % 4, memory), name
    assert Layout((2, 3), None).inner_of(0) == 3


compiled = pytest.mark.skipif(
    not (registered.SUPPORTED and sys.version_info < (3, 14)), reason="this torch does not compile"
)


@needs_ops
@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "one step"])
def test_opcheck(chunk: int, layout: str) -> None:
    """The registered op has a schema, a fake and a derivative that torch agrees with, forward and backward."""
    neuron = Gated(tau=torch.full((4,), 2.0), learn=("tau",))
    spec = Spec(torch.float32, None, ("channel", *["number"] * (len(neuron.program.params) - 1)), ("tau",))
    runner, numbers = KernelRunner(Loop(chunk), neuron.program, spec), [0.5, 0.1, *neuron._numbers.values()]
    tau = torch.full((1, 4, 1, 1), 2.0, requires_grad=True)
    xs = [LAYOUTS[layout](image(6, seed=s)).requires_grad_() for s in (0, 1)]
    state = [image(1, seed=s)[0].requires_grad_(s == 5) for s in (5, 6)]
    for tensors, given in (([*xs, tau], False), ([*xs, *state, tau], True)):
        for record in ([], ["w"]):
            torch.library.opcheck(
                torch.ops.spikecore.forward.default, (runner.key, tensors, numbers, record, given, True)
            )
    outs = torch.ops.spikecore.forward(runner.key, [*xs, tau], numbers, ["w"], False, True)
    grads = [None, outs[1].detach() + 1, None, None, outs[4].detach()]
    saved = [out.detach() for out in outs[5:]]
    raw = [tensor.detach() for tensor in (*xs, tau)]
    torch.library.opcheck(
        torch.ops.spikecore.backward.default,
        (
            runner.key,
            raw,
            saved,
            grads,
            numbers,
            ["w"],
            False,
            [True, False, True],
            list(layout_of(xs[0]).order or ()),
        ),
    )


@compiled
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("cold", [True, False])
def test_fullgraph_compile_of_a_network(backend: str, cold: bool) -> None:
    """torch.compile(fullgraph=True) takes a network with a kernel neuron, called before or not, of changing sizes."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(5, 4), bound(sc.LIF(torch.full((4,), 2.5), learn=("tau", "v_reset")), Loop(chunk=4)))
    eager = copy.deepcopy(net)
    bound(eager[1], net[1].bound["cpu"].backend)
    if not cold:
        net(torch.randn(6, 3, 5))
    fast = torch.compile(net, fullgraph=True, backend=backend)
    for T, B in ((6, 3), (6, 7), (20, 3)):
        x = torch.randn(T, B, 5) * 3
        found = []
        for each in (fast, eager):
            each.zero_grad()
            y = each(x)
            (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum().backward()
            found.append([y, *(p.grad.clone() for p in (net if each is fast else eager).parameters())])
        same(*found)
        with torch.no_grad():
            same(fast(x), found[0][0])


@compiled
def test_fullgraph_compile_of_run() -> None:
    """State, record and several inputs and outputs go through the compiled graph, with all their gradients."""
    torch._dynamo.reset()
    neuron = bound(Gated(tau=torch.tensor(2.0), learn=("tau", "start")), Loop())

    def call(x: Tensor, gate: Tensor, v: Tensor, w: Tensor) -> Any:
        (a, b), end, trace = neuron.run(x, gate, state={"v": v, "w": w}, record=("v",))
        return a, b, end["w"], trace["v"]

    found = []
    for function in (torch.compile(call, fullgraph=True, backend="aot_eager"), call):
        xs = [channels_last(image(6, seed=s)).requires_grad_() for s in (0, 1)]
        state = [image(1, seed=s)[0].requires_grad_() for s in (5, 6)]
        results = function(*xs, *state)
        cotangents = [torch.ones_like(r) for r in results]
        found.append([*results, *gradients(results, [*xs, *state, neuron.tau], cotangents)])
    same(*found, rtol=1e-4, atol=1e-4)


@needs_ops
def test_tensors_without_memory_get_shapes() -> None:
    """Under FakeTensorMode a neuron says shapes and strides and runs nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    loop = Loop()
    neuron = bound(sc.LIF(), loop)
    with FakeTensorMode():
        y = neuron(channels_last(torch.empty(6, *SHAPE)))
    assert y.shape == (6, *SHAPE)
    assert y.stride() == channels_last(image()).stride()
    assert not loop.calls


@pytest.mark.filterwarnings("ignore")  # torch's about its own tracer
def test_what_cannot_follow_a_kernel_is_refused_in_words() -> None:
    """torch.func, tracing and forward-mode derivatives would see memory that nothing fills; they raise, and say why."""
    neuron = bound(sc.LIF(), Loop())
    x = image()
    with pytest.raises(Unsupported, match=r"torch\.func cannot look through the kernels of backend 'loop'"):
        torch.func.vmap(neuron)(x.unsqueeze(0))
    with pytest.raises(Unsupported, match=r"torch\.jit\.trace cannot look"):
        torch.jit.trace(neuron, (x,), check_trace=False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(Unsupported, match="forward-mode differentiation cannot look"):
            neuron(dual)
    assert neuron(x).shape == x.shape


def test_a_used_parametrized_neuron_is_copied() -> None:
    """deepcopy of a neuron whose parameter is parametrized works after a call, and the copy computes the same."""
    neuron, x = bound(sc.LIF(learn=("tau",)), Loop()), image()
    nn.utils.parametrize.register_parametrization(neuron, "tau", nn.Softplus())
    expected = neuron(x)
    assert torch.equal(copy.deepcopy(neuron)(x), expected)


@pytest.mark.skipif(not registered.SUPPORTED, reason="registered ops need torch 2.4")
def test_a_mode_that_watches_every_op_sees_the_kernel() -> None:
    """Recording a graph records the registered op, and not memory that nothing fills."""
    from torch.fx.experimental.proxy_tensor import make_fx

    neuron, x = bound(sc.LIF(), Loop()), image()
    graph = make_fx(neuron)(x)
    assert "spikecore" in graph.code
    assert torch.equal(graph(x), neuron(x))


@pytest.mark.parametrize("steps", [5, 20])
def test_zeros_without_memory_are_zeros(steps: int) -> None:
    """The zeros that autograd passes on have no memory: as input, state and cotangent they count as plain zeros."""
    zeros = torch.zeros(steps, 3)
    shadow = torch._efficientzerotensor((steps, 3), dtype=torch.float32)
    one, other = twins(sc.LIF, chunk=16)
    assert torch.equal(one(shadow), other(zeros))
    state = {"v": torch._efficientzerotensor((3,), dtype=torch.float32)}
    assert torch.equal(one.run(zeros + 1.7, state=state)[0], other.run(zeros + 1.7, state={"v": zeros[0]})[0])
    x = (zeros + 1.7).requires_grad_()
    one(x).backward(shadow)
    assert torch.equal(x.grad, zeros)


@pytest.mark.parametrize("which", ["freed", "fake", "kept from vmap"])
@pytest.mark.parametrize("role", ["input", "state", "cotangent"])
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_without_memory_is_refused(which: str, role: str) -> None:
    """Whatever its role: an error in words, before a kernel gets an address that is none."""
    if (which, role) in (("fake", "input"), ("kept from vmap", "input")):
        pytest.skip("torch dispatches on the first input, and says so itself")
    if (which, role) == ("fake", "cotangent") and TORCH < (2, 1):
        pytest.skip("before version 2.1 torch refuses the cotangent itself")
    x = torch.full((4, 3), 1.7).requires_grad_()
    bad = torch.ones(3) if role == "state" else torch.ones(4, 3)
    neuron = bound(sc.LIF(), Loop())
    y = neuron(x)
    if which == "fake":
        with FakeTensorMode():
            bad = torch.ones(bad.shape)
    elif which == "kept from vmap":
        kept: List[Tensor] = []
        torch.func.vmap(lambda row: kept.append(row) or row)(torch.ones(2, *bad.shape))
        bad = kept[0]
    else:
        bad.untyped_storage().resize_(0)
    calls = {
        "input": lambda: neuron(bad),
        "state": lambda: neuron.run(x, state={"v": bad}),
        "cotangent": lambda: y.backward(bad),
    }
    with pytest.raises((ValueError, RuntimeError), match="has no memory|escaped from inside a function being vmapped"):
        calls[role]()


def test_a_view_of_opposite_numbers_is_taken_for_what_it_says() -> None:
    """An input and a cotangent whose memory holds the opposite of their values."""
    neuron, reference = twins(sc.LIF)
    x, grad = image().requires_grad_(), image(seed=1)
    for one in (neuron, reference):
        one(torch._neg_view(-x)).backward(torch._neg_view(-grad))
    ours, x.grad = x.grad, None
    assert ours is not None
    reference(x).backward(2 * grad)
    same(ours, x.grad)


def test_no_steps_give_a_state_of_its_own() -> None:
    """With T = 0 the final state and the trace share no memory with what was given, nor within themselves."""
    neuron = bound(sc.LIF(), Loop())
    given = {"v": torch.rand(3, 4)}
    _, state, trace = neuron.run(torch.rand(0, 3, 4), state=given, record=("v",))
    state["v"].zero_()
    assert given["v"].abs().sum() > 0
    assert trace["v"].shape == (0, 3, 4)
    neuron.run(torch.rand(0, 3, 4))[1]["v"].add_(1.0)
