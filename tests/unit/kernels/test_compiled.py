"""Compiled networks give the numbers of eager ones."""

from __future__ import annotations

import sys
from typing import Any, List, Sequence

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Loop, bound, image
from spikecore._base.versions import COMPILES

pytestmark = pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
compiled = pytest.mark.skipif(sys.version_info >= (3, 14), reason="this torch does not compile")

#: Whether this torch can leave out guards of modules; 2.0 has no torch.compiler.
_LEAVES_OUT = hasattr(getattr(torch, "compiler", None), "skip_guard_on_inbuilt_nn_modules_unsafe")

C = SHAPE[1]
NEURONS = {
    "numbers": sc.LIF,
    "scalar": lambda: sc.LIF(learn=("tau", "threshold")),
    "channels": lambda: sc.LIF(torch.linspace(2, 3, C), learn=("tau",)),
    "full": lambda: sc.LIF(torch.linspace(2, 3, C).view(C, 1, 1).expand(SHAPE).clone(), learn=("tau",)),
    "not learnt": lambda: sc.LIF(torch.linspace(2, 3, C)),
}


def results(call: Any, neuron: nn.Module, x: torch.Tensor) -> Any:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = call(x)
    grads = torch.autograd.grad(out, [x, *neuron.parameters()], torch.cos(x.detach()))
    return [out.detach(), *grads]


@compiled
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("kind", sorted(NEURONS))
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
@pytest.mark.skipif(torch.__version__ < "2.6", reason="older compilers break the graph at a neuron")
@pytest.mark.parametrize("final", [False, True], ids=["rest", "forward"])
def test_a_compiled_cotangent_lies_as_the_kernels_read_it(final: bool) -> None:
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
        out, state = neuron.run(x) if final else (neuron(x), None)
        pooled = torch.nn.functional.adaptive_avg_pool2d(out.flatten(0, 1), 1)
        return pooled if state is None else pooled.sum() + state["v"].sum()

    x, grads = LAYOUTS["channels-last"](image(6)), []
    for run in (means, torch.compile(means, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        grads.append(torch.autograd.grad(torch.cos(run(leaf)).sum(), leaf)[0])
    torch.testing.assert_close(grads[1], grads[0])
    assert strides == [x.stride()]


@compiled
def test_a_repeated_input_of_a_graph_has_a_gradient_at_every_step() -> None:
    """What comes into a graph may be a leaf, or what a hook looks at."""
    torch._dynamo.reset()
    neuron = bound(sc.LIF(), Loop(4))
    x = image(1).expand(6, *SHAPE)
    grads = []
    for call in (neuron, torch.compile(neuron, backend="aot_eager", fullgraph=True)):
        leaf = x.detach().requires_grad_()
        grads.append(torch.autograd.grad(call(leaf), leaf, torch.cos(image(6)))[0])
    assert torch.equal(*grads)


@compiled
def test_no_step_compiles_again() -> None:
    """Twenty steps of training take the graphs of the first one, though parameters change."""
    torch._dynamo.reset()
    neuron = bound(sc.LIF(learn=("tau",)), Loop(4))
    net = nn.Sequential(nn.Linear(5, 5), neuron)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    call = torch.compile(net, backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(20):
        optimizer.zero_grad()
        call(image(6)).sum().backward()
        optimizer.step()
    assert counter.frame_count == 1


@compiled
@pytest.mark.parametrize("x", [torch.zeros(0, 2, C, 2, 2), torch.zeros(3, 2, C, 2, 2)[..., 0]])
def test_other_inputs_of_a_compiled_neuron(x: torch.Tensor) -> None:
    """No steps, and one dimension less than before."""
    torch._dynamo.reset()
    neuron = bound(sc.LIF(), Loop())
    call = torch.compile(neuron, backend="aot_eager", fullgraph=True)
    call(image(3))
    assert torch.equal(call(x), neuron(x))


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


@compiled
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_neuron_refuses_a_number_at_its_first_call(whole: bool) -> None:
    """In the words of an eager one, also where the graph must be whole; the compiler once asked for the steps first."""
    torch._dynamo.reset()
    call = torch.compile(bound(sc.LIF(), Loop()), backend="aot_eager", fullgraph=whole)
    with pytest.raises(Exception, match="x has no dimensions"):
        call(torch.tensor(1.0))


@compiled
@pytest.mark.skipif(not _LEAVES_OUT, reason="needs a torch that can leave out guards")
def test_what_a_compiled_neuron_guards() -> None:
    """Its parameters, its program, and the key of its op; nothing else of runners, and nothing of checks, whose guards
    took longer than the kernel.
    """
    torch._dynamo.reset()
    guarded: Any = []

    def seen(entries: Any) -> Any:
        guarded.extend((entry.guard_type, entry.name) for entry in entries)
        return [True] * len(entries)

    neuron = bound(sc.LIF(), Loop())
    call = torch.compile(neuron, options={"guard_filter_fn": seen}, backend="inductor")
    with torch.no_grad():
        assert torch.equal(call(image(3)), neuron(image(3)))
    names = {name for _, name in guarded}
    assert any("threshold" in name for name in names)
    assert any("stamp" in name for name in names)
    assert not [name for name in names if "checks" in name or "parameters'" in name]
    # type and key of one runner, and that no object of that type has the methods which are called as attributes
    assert {name.rpartition(")]")[2] for name in names if "runners[" in name} == {"", ".graph_key"}
    assert len([name for _, name in guarded if "runners" in name]) <= 8


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
