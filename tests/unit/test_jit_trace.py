"""torch.jit.trace of neurons: what a trace computes, and what is fixed in it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import spikecore as sc

T = 4
NETS = {
    "LIF": lambda: sc.LIF(2.5, backend="torch"),
    "PLIF": lambda: sc.PLIF(2.5, backend="torch"),
    "of channels": lambda: sc.LIF(torch.tensor([2.0, 2.5, 3.0]), backend="torch"),
    "single steps": lambda: sc.LIF(2.5, step="single", backend="torch"),
    "layers": lambda: nn.Sequential(nn.Linear(3, 5), sc.ALIF(backend="torch"), nn.Linear(5, 2), sc.LI(backend="torch")),
}


def drive(steps: int, batch: int) -> torch.Tensor:
    return torch.rand(steps, batch, 3, generator=torch.Generator().manual_seed(batch)) * 4


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_a_trace_warns_of_nothing_and_serves_any_batch(make):
    """No warning of torch's, which -W error would make an error, and the values of the network for other batches."""
    torch.manual_seed(0)
    net = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated", DeprecationWarning)
        traced = torch.jit.trace(net, drive(T, 1), check_trace=False)
    for batch in (1, 2, 5):
        sc.reset(net)
        wanted = net(drive(T, batch))
        sc.reset(net)
        assert torch.equal(traced(drive(T, batch)), wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        NETS["layers"],
        lambda: sc.LIF(2.5, learn=("tau",), backend="torch"),
        lambda: sc.Recurrent(sc.ALIF(learn=("beta",), backend="torch"), nn.Linear(3, 3)),
        lambda: sc.Recurrent(sc.Leaky(0.9, backend="torch"), sc.Delay(nn.Linear(3, 3), 2)),
        lambda: sc.Recurrent(sc.Leaky(0.9, backend="torch"), sc.Delay(nn.Linear(3, 3), 2)).eval(),
    ],
)
def test_a_trace_of_what_learns_is_checked(make):
    """torch traces twice and compares the text of both graphs, which had the address of the surrogate's function."""
    torch.manual_seed(0)
    net = make()
    traced = torch.jit.trace(net, drive(T, 1))
    assert torch.equal(traced(drive(T, 5)), net(drive(T, 5)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_a_trace_is_of_one_number_of_time_steps():
    """Another number raises; the neuron itself takes it as before."""
    lif = sc.LIF(2.5, backend="torch")
    traced = torch.jit.trace(lif, drive(T, 2), check_trace=False)
    with pytest.raises(RuntimeError, match="Expected 4 elements in a list but found 7"):
        traced(drive(7, 2))
    assert lif(drive(7, 2)).shape == (7, 2, 3)


def test_warnings_of_others_are_kept():
    """What torch warns of in a layer of the user's is no affair of the neuron's."""

    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    net = nn.Sequential(Branch(), sc.LIF(2.5, backend="torch"))
    with pytest.warns(torch.jit.TracerWarning, match="Converting a tensor to a Python boolean"):
        torch.jit.trace(net, drive(T, 2), check_trace=False)
