"""Kernels under torch.compile and other parts of torch that look through operations, and tensors without memory."""

from __future__ import annotations

import copy
import sys
from typing import Any, List, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, channels_last, gradients, image, same, twins
from spikecore._base.versions import COMPILES
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import KernelRunner, layout_of

compiled = pytest.mark.skipif(not (COMPILES and sys.version_info < (3, 14)), reason="this torch does not compile")
needs_ops = pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")

C = SHAPE[1]
NEURONS = {
    "scalar": lambda: sc.LIF(learn=("tau", "threshold")),
    "channels": lambda: sc.LIF(torch.linspace(2, 3, C), learn=("tau",)),
    "full": lambda: sc.LIF(torch.linspace(2, 3, C).view(C, 1, 1).expand(SHAPE).clone(), learn=("tau",)),
}


def results(call: Any, neuron: nn.Module, x: torch.Tensor) -> Any:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = call(x)
    grads = torch.autograd.grad(out, [x, *neuron.parameters()], torch.cos(x.detach()))
    return [out.detach(), *grads]


@compiled
@pytest.mark.parametrize(
    ("kind", "layout"), [("scalar", "contiguous"), ("channels", "channels-last"), ("full", "contiguous")]
)
def test_a_compiled_neuron_gives_the_bits_and_layouts_of_an_eager_one(kind: str, layout: str) -> None:
    """With checkpoints and without, forward and backward; and a number that is set needs no other op."""
    torch._dynamo.reset()
    neuron = bound(NEURONS[kind](), Loop(4))
    call = torch.compile(neuron, backend="aot_eager", fullgraph=True)
    for T in (3, 6):
        x = LAYOUTS[layout](image(T))
        for ours, theirs in zip(results(call, neuron, x), results(neuron, neuron, x)):
            assert torch.equal(ours, theirs)
            assert ours.stride() == theirs.stride()
        with torch.no_grad():
            assert torch.equal(call(x), neuron(x))
    neuron.threshold = 0.5
    assert torch.equal(call(x).detach(), neuron(x).detach())


@compiled
def test_what_a_compiled_graph_holds() -> None:
    """One op each way."""
    from functorch.compile import aot_module_simplified, make_boxed_func

    torch._dynamo.reset()
    graphs = []

    def seen(graph: Any, _: Any) -> Any:
        graphs.append({str(node.target) for node in graph.graph.nodes if "spikecore" in str(node.target)})
        return make_boxed_func(graph.forward)

    neuron = bound(sc.LIF(), Loop())
    call = torch.compile(neuron, backend=lambda g, x: aot_module_simplified(g, x, fw_compiler=seen), fullgraph=True)
    results(call, neuron, image(3))
    assert graphs == [{"spikecore.forward.default"}, {"spikecore.backward.default"}]


@compiled
def test_a_compiled_cotangent_lies_as_the_kernels_read_it() -> None:
    """The graph, whose compiler writes it so, and not the op copies the cotangent of channels-last images to their
    layout.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    strides: List[Sequence[int]] = []

    def keep(graph: Any, _: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if node.target is torch.ops.spikecore.backward.default]
        strides.extend(node.args[3][0].meta["val"].stride() for node in nodes)
        return make_boxed_func(graph.forward)

    neuron = bound(sc.LIF(), Loop(4))

    def means(x: Any) -> Any:
        out, state = neuron.run(x)
        return torch.nn.functional.adaptive_avg_pool2d(out.flatten(0, 1), 1).sum() + state["v"].sum()

    x, grads = LAYOUTS["channels-last"](image(6)), []
    for run in (means, torch.compile(means, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        grads.append(torch.autograd.grad(torch.cos(run(leaf)).sum(), leaf)[0])
    torch.testing.assert_close(grads[1], grads[0])
    assert strides == [x.stride()]


@compiled
def test_no_step_compiles_again() -> None:
    """Steps of training take the graphs of the first one, though parameters change."""
    torch._dynamo.reset()
    neuron = bound(sc.LIF(learn=("tau",)), Loop(4))
    net = nn.Sequential(nn.Linear(5, 5), neuron)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    call = torch.compile(net, backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        call(image(6)).sum().backward()
        optimizer.step()
    assert counter.frame_count == 1


@compiled
def test_a_compiled_neuron_refuses_what_an_eager_one_refuses() -> None:
    """In the same words, whichever of its calls come first."""
    torch._dynamo.reset()
    neuron = bound(sc.LIF(), Loop())
    call = torch.compile(neuron, backend="aot_eager")
    call(image(3))
    with pytest.raises(Exception, match="x has dtype torch.int64; give floating-point input"):
        call(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(Exception, match="x has no dimensions"):
        call(torch.tensor(1.0))


def named(name: str) -> Loop:
    """A backend of this name: in a process a name stands for one backend."""
    kind: Any = type(name, (Loop,), {"name": name})
    return kind()


def counted(call: Any, loops: Sequence[Loop]) -> List[int]:
    """How many kernels of each backend a call launches."""
    before = [len(loop.calls) for loop in loops]
    call(image(3))
    return [len(loop.calls) - count for loop, count in zip(loops, before)]


@compiled
def test_neurons_of_one_program_with_different_backends_are_compiled_apart() -> None:
    """Both were called before, so they have one stamp; the second ran the op of the first one's backend."""
    torch._dynamo.reset()
    loops = named("one"), named("other")
    neurons = [bound(sc.LIF(), loop) for loop in loops]
    for neuron in neurons:
        neuron(image(3))
    assert neurons[0]._dispatch.stamp == neurons[1]._dispatch.stamp
    calls = [torch.compile(neuron, backend="aot_eager", fullgraph=True) for neuron in neurons]
    assert [counted(call, loops) for call in calls] == [[1, 0], [0, 1]]
    assert [counted(call, loops) for call in calls] == [[1, 0], [0, 1]]


@compiled
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
def test_a_compiled_neuron_follows_to_another_backend() -> None:
    """An eager call on the new backend gives the neuron its old stamp; the compiled one then ran the old backend."""
    torch._dynamo.reset()
    loops = named("before"), named("after")
    neuron = bound(sc.LIF(), loops[0])
    neuron(image(3))
    call = torch.compile(neuron, backend="aot_eager")
    assert counted(call, loops) == [1, 0]
    sc.set_backend(neuron, None)
    bound(neuron, loops[1])
    neuron(image(3))
    assert counted(call, loops) == [0, 1]
    sc.set_backend(neuron, "torch")
    neuron(image(3))
    assert counted(call, loops) == [0, 0]


@needs_ops
@pytest.mark.parametrize(("chunk", "layout"), [(0, "contiguous"), (4, "channels-last")])
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
@pytest.mark.parametrize("cold", [True, False])
def test_fullgraph_compile_of_a_network(cold: bool) -> None:
    """torch.compile(fullgraph=True) takes a network with a kernel neuron, called before or not, of changing sizes."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(5, 4), bound(sc.LIF(torch.full((4,), 2.5), learn=("tau", "v_reset")), Loop(chunk=4)))
    eager = copy.deepcopy(net)
    bound(eager[1], net[1].bound["cpu"].backend)
    if not cold:
        net(torch.randn(6, 3, 5))
    fast = torch.compile(net, fullgraph=True, backend="aot_eager")
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


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
def test_a_mode_that_watches_every_op_sees_the_kernel() -> None:
    """Recording a graph records the registered op, and not memory that nothing fills."""
    from torch.fx.experimental.proxy_tensor import make_fx

    neuron, x = bound(sc.LIF(), Loop()), image()
    graph = make_fx(neuron)(x)
    assert "spikecore" in graph.code
    assert torch.equal(graph(x), neuron(x))


def test_zeros_without_memory_are_zeros() -> None:
    """The zeros that autograd passes on have no memory: as input, state and cotangent they count as plain zeros."""
    zeros = torch.zeros(20, 3)
    shadow = torch._efficientzerotensor((20, 3), dtype=torch.float32)
    one, other = twins(sc.LIF, chunk=16)
    assert torch.equal(one(shadow), other(zeros))
    state = {"v": torch._efficientzerotensor((3,), dtype=torch.float32)}
    assert torch.equal(one.run(zeros + 1.7, state=state)[0], other.run(zeros + 1.7, state={"v": zeros[0]})[0])
    x = (zeros + 1.7).requires_grad_()
    one(x).backward(shadow)
    assert torch.equal(x.grad, zeros)


@pytest.mark.parametrize(
    ("which", "role"), [("freed", "input"), ("freed", "cotangent"), ("fake", "state"), ("kept from vmap", "state")]
)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_without_memory_is_refused(which: str, role: str) -> None:
    """Whatever its role: an error in words, before a kernel gets an address that is none."""
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
