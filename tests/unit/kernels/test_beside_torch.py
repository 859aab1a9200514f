"""Kernels under torch.compile and other parts of torch that look through operations, and tensors without memory."""

from __future__ import annotations

import copy
import sys
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, channels_last, gradients, image, same, twins
from spikecore._base.versions import COMPILES
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import KernelRunner, layout_of

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


needs_ops = pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")


compiled = pytest.mark.skipif(not (COMPILES and sys.version_info < (3, 14)), reason="this torch does not compile")


@needs_ops
@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "one step"])
def test_opcheck(chunk: int, layout: str) -> None:
    """The registered op has a schema, a fake and a derivative that torch agrees with, forward and backward."""
    neuron = Gated(tau=torch.full((4,), 2.0), learn=("tau",))
    spec = Spec(torch.float32, None, ("channel", *["number"] * (len(neuron.program.params) - 1)), ("tau",))
    runner, numbers = KernelRunner(Loop(chunk), neuron.program, spec), [0.5, 0.1, *neuron._dispatch.numbers.values()]
    tau = torch.full((1, 4, 1, 1), 2.0, requires_grad=True)
    xs = [LAYOUTS[layout](image(6, seed=s)).requires_grad_() for s in (0, 1)]
    state = [image(1, seed=s)[0].requires_grad_(s == 5) for s in (5, 6)]
    for tensors, given in (([*xs, tau], False), ([*xs, *state, tau], True)):
        for record in ([], ["w"]):
            torch.library.opcheck(
                torch.ops.spikecore.forward.default, (runner.key, tensors, numbers, record, given, True)
            )
    with torch.no_grad():
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
            layout_of(xs[0]).encoded,
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
def test_what_cannot_follow_a_kernel_is_the_references() -> None:
    """torch.func, tracing and forward-mode derivatives would see memory that nothing fills: no kernel is launched."""
    loop = Loop()
    neuron, reference, x = bound(sc.LIF(), loop), sc.LIF(backend="torch"), image()
    assert torch.equal(torch.func.vmap(neuron)(x.unsqueeze(0))[0], reference(x))
    assert torch.equal(torch.jit.trace(neuron, (x,), check_trace=False)(x), reference(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangents = [torch.autograd.forward_ad.unpack_dual(one(dual)).tangent for one in (neuron, reference)]
        assert torch.equal(*tangents)
    assert not loop.calls
    assert torch.equal(neuron(x), reference(x))
    assert loop.calls


@pytest.mark.filterwarnings("ignore")  # torch's about its own tracer
def test_a_runner_that_is_followed_refuses_in_words() -> None:
    """As a plugin may call it."""
    neuron = bound(sc.LIF(), Loop())
    neuron(image())
    (runner,), values = neuron._dispatch.runners.values(), tuple(neuron.named_values().values())
    with pytest.raises(Unsupported, match=r"torch\.func cannot look through the kernels of backend 'loop'"):
        torch.func.vmap(lambda x: runner((x,), None, values, ())[0][0])(image().unsqueeze(0))


@pytest.mark.parametrize("how", ["grad", "jacobian"])
def test_several_gradients_at_once_are_refused_in_words(how: str) -> None:
    """Autograd batches them with a vmap of its own, which is no transform that could be seen before the call."""
    neuron, x = bound(sc.LIF(), Loop()), torch.rand(4, 3, 5, requires_grad=True)
    calls = {
        "grad": lambda: torch.autograd.grad(neuron(x), x, torch.rand(2, 4, 3, 5), is_grads_batched=True),
        "jacobian": lambda: torch.autograd.functional.jacobian(neuron, x, vectorize=True),
    }
    with pytest.raises(Unsupported, match="gradients of several outputs at once .*takes those of one; ask for one"):
        calls[how]()


def test_a_used_parametrized_neuron_is_copied() -> None:
    """deepcopy of a neuron whose parameter is parametrized works after a call, and the copy computes the same."""
    neuron, x = bound(sc.LIF(learn=("tau",)), Loop()), image()
    nn.utils.parametrize.register_parametrization(neuron, "tau", nn.Softplus())
    expected = neuron(x)
    assert torch.equal(copy.deepcopy(neuron)(x), expected)


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
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
