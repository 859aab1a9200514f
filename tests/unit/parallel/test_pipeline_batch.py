"""Which dimension a pipeline splits where nobody says it, and that a wrong guess is an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, N = 8, 4, 3


class Loop(nn.Module):
    """Loops over a dimension of its input, as networks written for snnTorch do."""

    def __init__(self, dim=0, reads=False):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.neuron, self.dim, self.reads = nn.Linear(N, N), sc.LIF(step="single"), dim, reads

    def forward(self, x):
        if self.reads and x.sum() < 0:
            return x
        return torch.stack([self.neuron(self.linear(v)) for v in x.unbind(self.dim)], self.dim)


def inputs():
    return torch.rand(T, B, N, generator=torch.Generator().manual_seed(1)) * 9


def made(*stages, **kwargs):
    return sc.Pipeline([(stage, "cpu") for stage in stages], **kwargs)


@pytest.mark.parametrize("chunks", [2, 4, 8])
@pytest.mark.parametrize("steps", [4, 8])
def test_a_loop_over_the_first_dimension(chunks, steps):
    """Stages that loop over time would be given parts of the time: refused before anything runs, batch_dim named."""
    loop, x = Loop(), inputs()[:steps]
    if chunks > steps:
        chunks = steps
    with pytest.raises(ValueError, match=r"they loop over that dimension, as over time.*batch_dim=1\) for \[T, B"):
        made(loop, Loop(), chunks=chunks)(x)
    assert loop.neuron.state is None
    told = made(loop, chunks=2, batch_dim=1)
    assert torch.equal(told(x), Loop()(x))
    assert torch.equal(made(Loop())(x), Loop()(x))  # nothing is split


def test_with_the_batch_of_the_output_given():
    """The batch dimension of the output alone does not say that of the input."""
    with pytest.raises(ValueError, match="they loop over that dimension"):
        made(Loop(), chunks=2, batch_dim=(None, 1))(inputs())


def test_a_loop_over_another_dimension():
    """A loop over the second dimension, or of a fixed number of steps, leaves the first one the batch."""

    class Repeat(nn.Module):
        def __init__(self):
            super().__init__()
            self.neuron = sc.IF(step="single")

        def forward(self, x):
            return sum(self.neuron(x) for _ in range(3))

    x = inputs()
    assert torch.equal(made(Loop(dim=1), chunks=2)(x), Loop(dim=1)(x))
    assert torch.equal(made(Repeat(), chunks=2)(x[0]), Repeat()(x[0]))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_loop_that_cannot_be_run_without_data(dim):
    """Where the stages cannot be run before, an input of three dimensions and single-step neurons need batch_dim."""
    with pytest.raises(ValueError, match=r"could not be run without data.*batch_dim=1\).*batch_dim=0 for \[B"):
        made(Loop(reads=True, dim=1 - dim), chunks=2)(inputs())
    wanted = Loop(dim=1 - dim)(inputs())
    assert torch.equal(made(Loop(reads=True, dim=1 - dim), chunks=2, batch_dim=(dim, dim))(inputs()), wanted)


class Turned(nn.Module):
    """Time and batch change places."""

    def forward(self, x):
        return x.transpose(0, 1)


@pytest.mark.parametrize("steps", [4, 2])
def test_a_stage_that_got_another_layer(steps):
    """A layer that is appended, or set to do something else, may move the batch of the output, which is found again."""
    x, back = inputs()[:steps], nn.Sequential(sc.LIF())
    many = made(nn.Linear(N, N), back, chunks=2)
    assert many(x).shape == (steps, B, N)
    back.append(Turned())
    wanted = nn.Sequential(*many)(x)
    assert torch.equal(many(x), wanted)


def test_a_layer_that_does_something_else_since():
    """Outputs that do not have the sizes of the parts where the dry run found the batch: it is found again."""

    class Maybe(nn.Module):
        turn = False

        def forward(self, x):
            return x.transpose(0, 1) if self.turn else x

    last, x = Maybe(), inputs()
    many = made(nn.Linear(N, N), nn.Sequential(sc.LIF(), last), chunks=2)
    assert many(x).shape == (T, B, N)
    last.turn = True
    assert many(x).shape == (B, T, N)
    assert torch.equal(many(x), nn.Sequential(*many)(x))
