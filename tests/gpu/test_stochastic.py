"""Random numbers in equations on a GPU: the bits of the CPU's, and new ones at each replay of a CUDA graph."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from escape import check_escape
from spikecore.stochastic import uniform

pytestmark = pytest.mark.gpu


def usable(backend):
    return any(status.name == backend and status.state == "ready" for status in sc.backends(probe=True))


class Drawn(sc.stochastic.Stochastic):
    """Its random number."""

    inputs, drawn = ("x", "u"), ("u",)

    def dynamics(self, x, s, p):
        return x.u + 0.0 * x.x, {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_key_gives_the_numbers_of_the_cpu(dtype):
    """Integer operations of torch give the same bits on both."""
    key = torch.tensor([3000000000, 17])
    wanted = uniform(key, 5, (3, 333), 1, dtype)
    assert torch.equal(uniform(key.cuda(), 5, (3, 333), 1, dtype).cpu(), wanted)


@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("backend", ["torch", "cupy", "triton"])
def test_escape_noise_is_the_loop(backend, reset):
    """With a generator of the CPU, spikes and gradients are those of the equations by hand on the CPU."""
    if not usable(backend):
        pytest.skip(f"{backend} is not usable here")
    check_escape(backend, reset, device="cuda")


def test_each_replay_of_a_graph_draws_anew():
    """A captured call draws what eager calls draw one after the other."""
    neuron, x = Drawn(backend="torch").cuda(), torch.zeros(4, 50, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        neuron(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = neuron(x)
    torch.cuda.manual_seed(5)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(static.clone())
    torch.cuda.manual_seed(5)
    assert all(torch.equal(one, neuron(x)) for one in replayed)
    assert not torch.equal(replayed[0], replayed[1])
