"""torch.jit.trace of neurons: what a trace computes, and what is fixed in it."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import spikecore as sc

T = 4
NETS = {
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
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated")
        traced = torch.jit.trace(net, drive(T, 1), check_trace=False)
    for batch in (1, 2, 5):
        sc.reset(net)
        expected = net(drive(T, batch))
        sc.reset(net)
        assert torch.equal(traced(drive(T, batch)), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sc.LIF(2.5, learn=("tau",), backend="torch"),
        lambda: sc.Recurrent(sc.Leaky(0.9, backend="torch"), sc.Delay(nn.Linear(3, 3), 2)),
    ],
)
def test_a_trace_of_what_learns_is_checked(make):
    """torch traces again within no_grad, and compares the text of both graphs."""
    torch.manual_seed(0)
    net = make()
    traced = torch.jit.trace(net, drive(T, 1))
    assert torch.equal(traced(drive(T, 5)), net(drive(T, 5)))


#: Runs a saved trace in a process that cannot import spikecore, and saves outputs and gradients of all parameters.
LOADING = """
import sys, torch
sys.modules["spikecore"] = None
trace, (x, cotangent) = torch.jit.load(sys.argv[1] + "/net.pt"), torch.load(sys.argv[1] + "/given.pt")
out = trace(x)
wanted = [p for p in trace.parameters() if p.requires_grad]
torch.save([out.detach(), *torch.autograd.grad(out, wanted, cotangent)] if wanted else [out], sys.argv[1] + "/made.pt")
"""


@pytest.mark.parametrize("frozen", [False, True])
def test_a_saved_trace_needs_no_spikecore(tmp_path, frozen):
    """A spike, a choice, a clamp and ties were functions of Python, which torch cannot save."""
    torch.manual_seed(0)
    neurons = [sc.LIF(2.5), sc.SynapticLeaky(0.9, 0.8, learn=("beta",)), sc.TernaryLIF(), sc.KLIF()]
    net = nn.Sequential(*[part for neuron in neurons for part in (nn.Linear(3, 3), neuron)], sc.LI())
    trace = torch.jit.trace(net.eval(), drive(T, 2))
    if frozen:
        trace = torch.jit.freeze(trace)
    trace.save(str(tmp_path / "net.pt"))
    x, cotangent = drive(T, 5) * 2.0, torch.randn(T, 5, 3)
    if frozen:  # no gradient is asked for
        x[0, 0], x[1, 1] = torch.inf, torch.nan
    torch.save([x, cotangent], tmp_path / "given.pt")
    subprocess.run([sys.executable, "-W", "ignore", "-c", LOADING, str(tmp_path)], check=True, timeout=300)
    out, *gradients = torch.load(tmp_path / "made.pt")
    sc.set_backend(net, "torch")
    wanted = net(x)
    assert torch.equal(out.nan_to_num(7.0), wanted.nan_to_num(7.0))
    if gradients:
        torch.testing.assert_close(gradients, list(torch.autograd.grad(wanted, [*net.parameters()], cotangent)))
