"""Inputs that are only added to an output: kept by nobody, and their gradient is the cotangent as it arrives."""

from __future__ import annotations

import copy
from typing import Any, List, Set, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import SHAPE, Loop, bound, image
from spikecore._base.versions import COMPILES
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan
from spikecore.kernels._call import added_inputs
from spikecore.layers import NormNeuron
from spikecore_torch.backend import TorchBackend

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
        (lambda z, h, skip: (z - skip, {"v": h}), ()),
        (lambda z, h, skip: (z + 2.0 * skip, {"v": h}), ()),
        (lambda z, h, skip: (z * skip, {"v": h}), ()),
        (lambda z, h, skip: (z + skip, {"v": h + skip}), ()),
        (lambda z, h, skip: (z + skip, {"v": h * sc.ops.detach(skip)}), ()),
        (lambda z, h, skip: ((z + skip, h + skip), {"v": h}), ()),
        (lambda z, h, skip: (z + sc.ops.detach(skip), {"v": h}), ()),
    ],
    ids=["spikes", "potential", "second output", "less", "twice", "times", "state", "read", "two outputs", "detached"],
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


def test_without_a_cotangent_there_is_no_gradient() -> None:
    """Of a loss on the state alone: no launch writes zeros for the shortcut."""
    backend = Noting()
    layer, x, skip = layer_of(backend), image(6).requires_grad_(), image(6, seed=1).requires_grad_()
    _, state = layer.run(x, skip)
    found = torch.autograd.grad(state["v"].sum(), (x, skip), allow_unused=True)
    assert found[0] is not None
    assert found[1] is None
    assert {inputs[1] for inputs in backend.inputs} == {False}


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


def test_saved_tensor_hooks_that_move_tensors() -> None:
    """What a hook gives back stands for the input alone: as many tensors are unpacked as were packed."""
    layer, counts = layer_of(Noting()), [0, 0]

    def pack(tensor: Tensor) -> Tensor:
        counts[0] += 1
        return tensor.clone()

    def unpack(tensor: Tensor) -> Tensor:
        counts[1] += 1
        return tensor.clone()

    x, skip = image(6).requires_grad_(), image(6, seed=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = layer(x, skip)
    y.square().sum().backward()
    assert counts[0] == counts[1] > 0
    other = layer_of(Noting())
    given = x.detach().clone().requires_grad_()
    other(given, skip.detach()).square().sum().backward()
    assert torch.equal(x.grad, given.grad)
