"""Kernels under torch.compile and other parts of torch that look through operations, and tensors without memory."""

from __future__ import annotations

import sys
from typing import Any, List, Sequence

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Gated, Loop, bound, channels_last, image
from spikecore.backend import Spec, Unsupported
from spikecore.context import COMPILES
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


def named(name: str) -> Loop:
    """A backend of this name: in a process a name stands for one backend."""
    kind: Any = type(name, (Loop,), {"name": name})
    return kind()


def counted(call: Any, loops: Sequence[Loop]) -> List[int]:
    """Numbers of kernels of each backend that a call launches."""
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
    calls = [torch.compile(neuron, backend="aot_eager", fullgraph=True) for neuron in neurons]
    assert [counted(call, loops) for call in calls] == [[1, 0], [0, 1]]
    assert [counted(call, loops) for call in calls] == [[1, 0], [0, 1]]


@needs_ops
def test_opcheck() -> None:
    """The registered op has a schema, a fake and a derivative that torch agrees with, forward and backward."""
    neuron = Gated(tau=torch.full((4,), 2.0), learn=("tau",))
    spec = Spec(torch.float32, None, ("channel", *["number"] * (len(neuron.program.params) - 1)), ("tau",))
    runner, numbers = KernelRunner(Loop(4), neuron.program, spec), list(neuron.named_values().values())[1:]
    tau = torch.full((1, 4, 1, 1), 2.0, requires_grad=True)
    xs = [channels_last(image(6, seed=s)).requires_grad_() for s in (0, 1)]
    state = [image(1, seed=s)[0].requires_grad_(s == 5) for s in (5, 6)]
    for tensors, record, given in (([*xs, tau], [], False), ([*xs, *state, tau], ["w"], True)):
        torch.library.opcheck(torch.ops.spikecore.forward.default, (runner.key, tensors, numbers, record, given, True))
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


def test_what_cannot_follow_a_kernel_is_the_references() -> None:
    """torch.func and forward-mode derivatives would see memory that nothing fills: no kernel is launched."""
    loop = Loop()
    neuron, reference, x = bound(sc.LIF(), loop), sc.LIF(backend="torch"), image()
    assert torch.equal(torch.func.vmap(neuron)(x.unsqueeze(0))[0], reference(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangents = [torch.autograd.forward_ad.unpack_dual(one(dual)).tangent for one in (neuron, reference)]
        assert torch.equal(*tangents)
    assert not loop.calls
    assert torch.equal(neuron(x), reference(x))
    assert loop.calls


test_refused = refusals.table(__file__, globals(), Unsupported)
