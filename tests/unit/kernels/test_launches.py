"""Launches: what they are called with and what they return, and inputs that are only added to an output."""

from __future__ import annotations

import copy
import pkgutil
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, image
from spikecore._base.versions import COMPILES
from spikecore.backend import BackendError, Spec, Unsupported
from spikecore.kernels import BackwardBuffers, BackwardPlan, ForwardBuffers, ForwardPlan, Geometry
from spikecore.kernels._call import added_inputs
from spikecore.kernels.writing import (
    input_leaf,
)
from spikecore.lang import Node, Program
from spikecore.layers import NormNeuron
from spikecore.testing._loopback import installed
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form
from spikecore_torch.backend import TorchBackend

T, CHUNK = 6, 4
#: Checkpoints before every chunk but the first.
K = (T - 1) // CHUNK
#: A shape of ``params`` by its kind; a scalar is one number of any shape.
PARAMS: Dict[str, Optional[Tuple[int, ...]]] = {"channel": (SHAPE[1],), "full": SHAPE}


class Watching(Loop):
    """Checks what its launches get."""

    def __init__(self) -> None:
        super().__init__(CHUNK)
        self.seen: List[str] = []

    def forward(self, plan: ForwardPlan) -> Any:
        launch = super().forward(plan)

        def watched(geometry: Geometry, *groups: Any) -> None:
            buffers = ForwardBuffers(*groups)
            self._common(plan, geometry, buffers)
            check(buffers.outputs, len(plan.program.outputs), (T, *SHAPE), plan.dtype)
            check(buffers.final, len(plan.program.states) if plan.final else 0, SHAPE, plan.compute)
            check(buffers.trace, len(plan.record), (T, *SHAPE), plan.compute)
            check(buffers.checkpoints, len(plan.saved), (K, *SHAPE), plan.compute)
            launch(geometry, *groups)

        return watched

    def backward(self, plan: BackwardPlan) -> Any:
        launch = super().backward(plan)

        def watched(geometry: Geometry, *groups: Any) -> List[Tensor]:
            buffers = BackwardBuffers(*groups)
            states = len(plan.program.states)
            self._common(plan, geometry, buffers)
            check(buffers.checkpoints, len(plan.saved), (K, *SHAPE), plan.compute)
            check(buffers.grad_outputs, len(plan.arriving), (T, *SHAPE), plan.dtype)
            check(buffers.grad_final, states if plan.final else 0, SHAPE, plan.compute)
            check(buffers.grad_trace, len(plan.trace), (T, *SHAPE), plan.compute)
            check(buffers.grad_inputs, len(plan.wanted), (T, *SHAPE), plan.dtype)
            check(buffers.grad_state, states if plan.state else 0, SHAPE, plan.compute)
            found: List[Tensor] = launch(geometry, *groups)
            return found

        return watched

    def _common(self, plan: Any, geometry: Geometry, buffers: Any) -> None:
        assert geometry[:2] == (T, SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3])
        check(buffers.inputs, len(plan.program.inputs), (T, *SHAPE), plan.dtype)
        check(buffers.state, len(plan.program.states) if plan.has_initial_state else 0, SHAPE, plan.compute)
        for kind, value in zip(plan.spec.params, buffers.params):
            if kind == "number":
                assert isinstance(value, float)
            elif kind == "scalar":
                assert value.numel() == 1
            else:
                check([value], 1, PARAMS[kind], plan.compute)
            self.seen.append(kind)


def check(group: Sequence[Tensor], count: int, shape: Optional[Tuple[int, ...]], dtype: torch.dtype) -> None:
    """A group has so many tensors of a shape and dtype."""
    assert [(tuple(value.shape), value.dtype) for value in group] == [(shape, dtype)] * count


@pytest.mark.parametrize(("layout", "dtype"), [("contiguous", torch.float16), ("channels-last", torch.float32)])
def test_every_group_has_the_shapes_that_its_docstring_says(layout: str, dtype: torch.dtype) -> None:
    """Forward and backward, with a parameter of each kind, in two layouts: a full one has the user's shape."""
    a = torch.rand(SHAPE[1])
    neuron = Gated(tau=torch.rand(SHAPE) + 1.0, a=a, learn=("tau", "a", "start"))
    backend = Watching()
    x, gate = (LAYOUTS[layout](image(T, dtype, seed)).requires_grad_() for seed in (0, 1))
    state = {name: torch.rand(SHAPE).requires_grad_() for name in neuron.states}
    outputs, final, trace = bound(neuron, backend).run(x, gate, state=state, record=("v", "w"))
    results = [*outputs, *final.values(), *trace.values()]
    torch.autograd.backward(results, [torch.rand(result.shape).to(result.dtype) for result in results])
    assert {"number", "scalar", "channel", "full"} <= {*backend.seen}
    assert backend.calls == ["forward", "backward"]


_module: Any = types.ModuleType("flat")
_text = (pkgutil.get_data("spikecore._scaffold", "templates/kernel.template") or b"").decode()
exec(_text.replace("@Class@", "Flat").replace("@name@", "flat").replace("@package@", "flat"), _module.__dict__)
Flat: Any = _module.Flat


@pytest.fixture
def backend() -> Iterator[Callable[..., str]]:
    """Installs a backend, beside the built-ins, until the test ends."""
    blocks: List[Any] = []

    def install(made: Any) -> str:
        blocks.append(installed(made, ("cpu",)))
        return blocks[-1].__enter__()

    yield install
    for block in reversed(blocks):
        block.__exit__(None, None, None)


def called(name: str, x: torch.Tensor, **options: Any) -> List[torch.Tensor]:
    """Outputs, final state, trace and every gradient of one call of an adaptive neuron."""
    torch.manual_seed(0)
    rho = torch.rand(x.shape[2])
    neuron = sc.ALIF(tau=2.0, rho=rho, learn=("rho", "tau"), backend=name)
    x = x.detach().requires_grad_()
    state = {name: torch.rand(x.shape[1:]).requires_grad_() for name in neuron.states}
    out, final, trace = neuron.run(x, state=state, record=("v",), **options)
    results = [out, *final.values(), trace["v"]]
    grads = [torch.rand(one.shape).to(one.dtype) for one in results]
    wanted = [x, *state.values(), *neuron.parameters()]
    return [*results, *torch.autograd.grad(results, wanted, grads)]


@pytest.mark.parametrize(
    ("steps", "dtype", "layout"),
    [
        (1, torch.float32, "contiguous"),
        (33, torch.float64, "channels last"),
        (5, torch.float16, "expanded"),
        (5, torch.float32, "part"),
    ],
)
def test_flat_results_take_the_shape_of_the_call(
    backend: Callable[..., str], steps: int, dtype: torch.dtype, layout: str
) -> None:
    """Whatever layout and dtype: values and gradients of everything are the reference's, in tensors of their own."""
    x = torch.rand(steps, 2, 3, 4, 5)
    x = {
        "contiguous": x,
        "channels last": x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3),
        "expanded": x[:1].expand(x.shape),
        "part": torch.rand(steps, 4, 3, 4, 5)[:, 1:3],
    }[layout].to(dtype)
    name = backend(Flat)
    found = called(name, x)
    for ours, right in zip(found, called("torch", x)):
        assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
        torch.testing.assert_close(ours, right, rtol=2e-3 if dtype == torch.float16 else 1e-4, atol=1e-5)
    assert len({one.untyped_storage().data_ptr() for one in found}) == len(found)


def test_an_output_may_be_changed_in_place(backend: Callable[..., str]) -> None:
    """A result is no view of the flat tensor that was returned, of which autograd would refuse a change in place."""
    x = torch.rand(4, 2, 3, 5).permute(0, 2, 1, 3).requires_grad_()
    out = sc.LIF(backend=backend(Flat))(x)
    out.mul_(2.0)
    out.sum().backward()
    right = x.detach().requires_grad_()
    (sc.LIF(backend="torch")(right) * 2.0).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)


def test_no_steps_and_no_neurons_need_no_launch(backend: Callable[..., str]) -> None:
    """Empty calls have empty results and gradients; no launch sees an empty tensor."""
    name = backend(Flat)
    for shape in ((0, 3, 2), (4, 0, 2)):
        x = torch.zeros(shape, requires_grad=True)
        sc.PLIF(backend=name)(x).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == shape


class Chunked(Flat):  # type: ignore[misc]  # its base is made of text
    """Returns checkpoints every four steps, and checks those that backward gets."""

    name = "chunked"
    chunk = 4
    kept: List[Any] = []

    def forward(self, plan: Any) -> Any:
        launch, walk = super().forward(plan), _module.walker(plan)

        def with_checkpoints(geometry: Any, *tensors: Any) -> Any:
            before, _, _ = walk(geometry, *tensors)
            places = [plan.program.states.index(name) for name in plan.saved]
            kept = [torch.stack([before[t][i] for t in range(4, geometry.steps, 4)]) for i in places]
            self.kept = [value.clone() for value in kept]
            return (*launch(geometry, *tensors)[:3], kept)

        return with_checkpoints

    def backward(self, plan: Any) -> Any:
        launch = super().backward(plan)

        def with_checkpoints(geometry: Any, inputs: Any, state: Any, params: Any, checkpoints: Any, *grads: Any) -> Any:
            assert len(checkpoints) == len(self.kept) == len(plan.saved)
            assert all(torch.equal(a, b) for a, b in zip(checkpoints, self.kept))
            return launch(geometry, inputs, state, params, checkpoints, *grads)

        return with_checkpoints


def test_returned_checkpoints_reach_backward(backend: Callable[..., str]) -> None:
    """Checkpoints that forward returns arrive flat in backward as they were, in any order of dimensions."""
    x = torch.rand(11, 2, 3, 4).transpose(2, 3)
    for ours, right in zip(called(backend(Chunked), x), called("torch", x)):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


def changed(**launches: Callable[..., Any]) -> Any:
    """The backend with what its forward or backward launch returns changed by a function of (results, arguments)."""

    def method(direction: str) -> Any:
        def make(self: Any, plan: Any) -> Any:
            launch = getattr(Flat, direction)(self, plan)
            return lambda *arguments: launches[direction](launch(*arguments), arguments)

        return make

    return type("Wrong", (Flat,), {"name": "wrong", **{direction: method(direction) for direction in launches}})


FORWARD = "the forward launch of backend 'wrong' for PLIF "
BACKWARD = "the backward launch of backend 'wrong' for PLIF "


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (changed(forward=lambda r, a: r[:3]), FORWARD + r"must return groups of 1, 1, 0, 0 tensors, got \[1, 1, 0\]"),
        (
            changed(forward=lambda r, a: ([r[0][0].double()], *r[1:])),
            FORWARD + r"returned torch.float64 \[4, 6\] on cpu as output 0, expected torch.float32 \[4, 6\] on cpu",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].reshape(4, 3, 2)], *r[1:])),
            FORWARD + r"returned torch.float32 \[4, 3, 2\] on cpu as output 0, expected torch.float32 \[4, 6\]",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].numpy()], *r[1:])),
            FORWARD + "returned a ndarray as output 0, not a tensor",
        ),
        (
            changed(backward=lambda r, a: (*r[:2], [])),
            BACKWARD + r"must return groups of 1, 0, 1 tensors, got \[1, 0, 0\]",
        ),
        (
            changed(backward=lambda r, a: (*r[:2], [r[2][0].double()])),
            BACKWARD + "returned torch.float64 .* as gradient of parameter .*, expected torch.float32 of any shape",
        ),
    ],
)
def test_what_is_returned_is_checked(backend: Callable[..., str], made: Any, words: str) -> None:
    """A wrong number, kind, shape, dtype or device of results is an error that names launch and result."""
    neuron = sc.PLIF(backend=backend(made))
    x = torch.rand(4, 3, 2, requires_grad=True)
    with pytest.raises(BackendError, match=words):
        torch.autograd.grad(neuron.run(x)[0].exp(), [x, *neuron.parameters()], torch.rand(4, 3, 2))


class Sized(Flat):  # type: ignore[misc]  # its base is made of text
    """Counts what it compiles, and checks that a kernel runs with the sizes it was compiled for."""

    name = "sized"
    sizes = 2
    compiled: List[Any] = []

    def _made(self, direction: str, plan: Any, launch: Any) -> Any:
        Sized.compiled.append((direction, plan.geometry))

        def checked(geometry: Any, *tensors: Any) -> Any:
            assert plan.geometry in (None, geometry)
            return launch(geometry, *tensors)

        return checked

    def forward(self, plan: Any) -> Any:
        return self._made("forward", plan, super().forward(plan))

    def backward(self, plan: Any) -> Any:
        return self._made("backward", plan, super().backward(plan))


def test_few_sizes_get_kernels_of_their_own(backend: Callable[..., str]) -> None:
    """The first sizes of a plan are compiled for, once each; all others share one kernel, and results stay right."""
    Sized.compiled = []
    neuron = sc.LIF(tau=torch.rand(3) + 1.5, backend=backend(Sized))
    right = sc.LIF(tau=neuron.tau, backend="torch")
    for batch in (1, 2, 1, 4, 5, 2, 4):
        x = torch.rand(3, batch, 3, requires_grad=True)
        grads = [torch.autograd.grad(one(x).exp().sum(), x)[0] for one in (neuron, right)]
        torch.testing.assert_close(*grads)
    sizes = [(direction, geometry and (geometry.steps, geometry.neurons)) for direction, geometry in Sized.compiled]
    each = [(direction, size) for size in ((3, 3), (3, 6), None) for direction in ("forward", "backward")]
    assert sizes == each
    assert Sized.compiled[0][1].channels[neuron.program.params.index("tau")] == (1, 3)


C = SHAPE[1]


class Two(sc.Neuron):
    """A leaky neuron with a second input, which ``join`` joins to spikes, potential and next state."""

    inputs = ("x", "skip")
    states = {"v": 0.0}
    params = {"tau": 2.0}

    def __init__(self, join: Any, **options: Any) -> None:
        self.join = join
        super().__init__(**options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v + (x.x - s.v) / p.tau
        z = self.spike(h - 1.0)
        return self.join(z, h, x.skip)


@pytest.mark.parametrize(
    ("join", "added"),
    [
        (lambda z, h, skip: (z + skip, {"v": h}), ((1, 0),)),
        (lambda z, h, skip: (skip + h, {"v": h}), ((1, 0),)),
        (lambda z, h, skip: ((h, z + skip), {"v": h}), ((1, 1),)),
        (lambda z, h, skip: (z + 2.0 * skip, {"v": h}), ()),
        (lambda z, h, skip: (z * skip, {"v": h}), ()),
        (lambda z, h, skip: (z + skip, {"v": h + skip}), ()),
        (lambda z, h, skip: (z + skip, {"v": h * sc.ops.detach(skip)}), ()),
        (lambda z, h, skip: ((z + skip, h + skip), {"v": h}), ()),
        (lambda z, h, skip: (z + sc.ops.detach(skip), {"v": h}), ()),
    ],
    ids=["spikes", "potential", "second output", "twice", "times", "state", "read", "two outputs", "detached"],
)
def test_which_inputs_pass(join: Any, added: Tuple[Tuple[int, int], ...]) -> None:
    """Those that are added as they are to one output and read nowhere else."""
    neuron = Two(join)
    spec = Spec(torch.float32, 4, ("number",) * len(neuron.program.params), (), False)
    assert added_inputs(neuron.program, spec) == added
    x, skip = (torch.rand(4, 2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    its = copy.deepcopy(neuron)
    grads = []
    for one in (bound(neuron, Loop(3)), bound(its, TorchBackend())):
        outputs = one(x, skip)
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        total = torch.stack([(out * (k + 1)).sum() for k, out in enumerate(given)]).sum()
        grads.append(torch.autograd.grad(total, (x, skip), materialize_grads=True))
    for mine, reference in zip(*grads):
        torch.testing.assert_close(mine, reference)


class Noting(Loop):
    """Notes which gradients of inputs its backward launches give."""

    def __init__(self) -> None:
        super().__init__(4)
        self.inputs: List[Tuple[bool, ...]] = []

    def backward(self, plan: BackwardPlan) -> Any:
        launch = super().backward(plan)

        def noted(*arguments: Any) -> Any:
            self.inputs.append(plan.inputs)
            return launch(*arguments)

        return noted


def layer_of(backend: Any) -> NormNeuron:
    layer = NormNeuron(nn.BatchNorm2d(C), sc.LIF(), shortcut="after", fused=True)
    bound(layer.neuron, backend)
    return layer


FORMS = ["direct", "runner", *["compiled"] * COMPILES]


def run(form: str, layer: NormNeuron, x: Tensor, skip: Tensor) -> Tensor:
    """The layer's output on each of the ways to kernels."""
    if form == "compiled":
        torch._dynamo.reset()
        return torch.compile(layer, backend="aot_eager", fullgraph=True)(x, skip)  # type: ignore[no-any-return]
    if form == "runner":
        return layer.run(x, skip)[0]  # type: ignore[no-any-return]
    return layer(x, skip)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", FORMS)
def test_a_shortcut_behind_the_neuron_costs_backward_nothing(form: str) -> None:
    """No launch writes its gradient, which is the cotangent; and autograd keeps no number of it."""
    backend = Noting()
    layer, x, skip = layer_of(backend), image(6).requires_grad_(), image(6, seed=1).requires_grad_()
    kept: Set[int] = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.add(t.data_ptr()) or t, lambda t: t):
        y = run(form, layer, x, skip)
    assert x.data_ptr() in kept
    assert skip.data_ptr() not in kept
    weights = torch.linspace(-1.0, 2.0, y.numel()).view(y.shape)
    y.backward(weights)
    assert torch.equal(skip.grad, weights)
    assert backend.inputs == [(False, False), (True, False)]
    its = copy.deepcopy(layer)
    bound(its.neuron, TorchBackend())
    given = x.detach().clone().requires_grad_()
    z = its(given, image(6, seed=1))
    z.backward(weights)
    torch.testing.assert_close(x.grad, given.grad, rtol=1e-4, atol=2e-5)
    assert torch.equal(y, z)


@pytest.mark.parametrize("form", FORMS)
def test_where_the_shortcut_alone_needs_a_gradient_nothing_is_launched(form: str) -> None:
    """Frozen parameters, and an input without a gradient."""
    backend = Noting()
    layer = layer_of(backend).requires_grad_(False)
    x, skip = image(6), image(6).requires_grad_()
    kept: List[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = run(form, layer, x, skip)
    assert [one.shape for one in kept] == []
    before = y.detach().clone()
    x.zero_()  # nobody needs it for backward
    y.backward(2 * before)
    assert backend.inputs == []
    torch.testing.assert_close(skip.grad, 2 * before)


def test_second_derivatives() -> None:
    """The gradient of the shortcut under create_graph is a function of the cotangent; that of the input has none where
    the backend was asked for by name, as without a shortcut.
    """
    layer, x, skip = layer_of(Noting()), image(6).requires_grad_(), image(6, seed=1).requires_grad_()
    y = layer(x, skip)
    (first,) = torch.autograd.grad(y.pow(3).sum(), skip, create_graph=True)
    torch.testing.assert_close(first, 3 * y**2)
    (second,) = torch.autograd.grad(first.sum(), y, retain_graph=True)
    torch.testing.assert_close(second, 6 * y)
    (of_input,) = torch.autograd.grad(layer(x, skip).pow(3).sum(), x, create_graph=True)
    with pytest.raises(sc.Unsupported, match="derives first derivatives only"):
        of_input.sum().backward()


def test_an_operation_without_a_text_is_refused_by_name_in_a_kernel() -> None:
    """A language with one more operation: the kernel of a program that uses it is Unsupported, not a KeyError."""
    novel = Node("novel", (input_leaf("x"),))
    program = Program("Novel", inputs=("x",), states=(), outputs=[novel], next=[], initial=[])
    spec = Spec(torch.float32, 4, ())
    with pytest.raises(Unsupported, match="CudaPrinter has no text for the operation 'novel'"):
        print_kernel(ForwardPlan(program, spec), Form(1))
