"""Kernels run where PyTorch's own would: on the current stream and device, in its threads and graphs."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = [
    pytest.mark.gpu,
    # torch's advice to those who use a parameter on two streams, which these tests are about
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match"),
]

#: Cycles of a GPU that is made to wait: about 20 ms.
A_WHILE = 40_000_000
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

Noise = Callable[..., Tensor]


def learner(**options: Any) -> sc.LIF:
    """A LIF layer with a learnt time constant."""
    return sc.LIF(torch.tensor(2.5), learn=("tau",), backend="cupy", **options).to("cuda")


def step(neuron: nn.Module, x: Tensor) -> Tuple[Tensor, ...]:
    """Outputs, and the gradients of the input and of what is learnt."""
    x = x.detach().requires_grad_()
    out = neuron(x)
    return (out, *torch.autograd.grad((out * x.detach()).sum(), [x, *neuron.parameters()]))


def same(ours: Tuple[Tensor, ...], theirs: Tuple[Tensor, ...]) -> bool:
    """True if all are equal, wherever they are."""
    return len(ours) == len(theirs) and all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(ours, theirs))


def test_kernels_wait_for_the_current_stream(noise: Noise) -> None:
    """Forward and backward on a side stream see what that stream computes first."""
    neuron, right = learner(), noise(20, 100_000)
    expected = step(neuron, right)
    x, stream = torch.zeros_like(right), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(A_WHILE)
        x.copy_(right)
        found = step(neuron, x)
    stream.synchronize()
    assert same(found, expected)


def test_calls_do_not_wait_for_the_device(noise: Noise) -> None:
    """Forward and backward return while the GPU is busy with what came before."""
    neuron, x = learner(), noise(20, 1000)
    step(neuron, x)
    done = torch.cuda.Event()
    torch.cuda.synchronize()
    torch.cuda._sleep(20 * A_WHILE)
    done.record()
    step(neuron, x)
    assert not done.query()
    torch.cuda.synchronize()


@two_gpus
def test_the_tensors_choose_the_device(noise: Noise) -> None:
    """A kernel runs where its tensors are, whichever device is current; the current one stays."""
    x = noise(20, 1001)
    expected = step(learner(), x)
    for current in (0, 1):
        with torch.cuda.device(current):
            assert same(step(learner().to("cuda:1"), x.to("cuda:1")), expected)
            assert torch.cuda.current_device() == current


@pytest.mark.parametrize("steps", [4, 40])
def test_a_graph_captures_forward_and_backward(steps: int, noise: Noise) -> None:
    """A captured step, replayed on other numbers, gives what a direct call gives."""
    neuron, x = learner(), noise(steps, 1001)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(neuron, x)  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(neuron, x)
    for seed in (1, 2):
        x.copy_(noise(steps, 1001, seed=seed))
        with torch.no_grad():
            neuron.tau.add_(0.25)
        graph.replay()
        assert same(captured, step(neuron, x))


def test_backward_may_run_in_any_thread(noise: Noise) -> None:
    """A graph made in one thread is differentiated in another, one that never touched the GPU."""
    neuron, x = learner(), noise(20, 1001)
    expected = step(neuron, x)
    leaf = x.clone().requires_grad_()
    out = neuron(leaf)
    found: List[Tuple[Tensor, ...]] = []
    seen: List[int] = []
    leaf.register_hook(lambda grad: seen.append(threading.get_ident()))

    def differentiate() -> None:
        found.append(torch.autograd.grad((out * x).sum(), [leaf, neuron.tau]))

    thread = threading.Thread(target=differentiate)
    thread.start()
    thread.join()
    assert same((out.detach(), *found[0]), expected)
    assert seen
    assert threading.get_ident() not in seen
