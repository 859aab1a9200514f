"""Spiking LSTM and GRU beside SpikingJelly's and snnTorch's, with their weights."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = pytest.mark.peers

T, B, SIZE = 20, 4, 6


def check(ours: List[Tensor], theirs: List[Tensor]) -> None:
    """Outputs and gradients agree to the last digits of float32."""
    for mine, its in zip(ours, theirs):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["SpikingLSTM", "SpikingGRU"])
def test_spikingjelly(name: str) -> None:
    """A checkpoint loads in order; outputs have the same bits."""
    from spikingjelly.activation_based import rnn

    torch.manual_seed(0)
    theirs, ours = getattr(rnn, name)(7, SIZE, 1), getattr(sc.layers, name)(7, SIZE)
    sc.load_weights(ours, theirs.state_dict(), order=True)
    x = (2.0 * torch.randn(T, B, 7)).requires_grad_()
    out, its = ours(x), theirs(x)[0]
    assert torch.equal(out, its)
    cotangent = torch.randn_like(out)
    gradients = torch.autograd.grad(out, [x, *ours.parameters()], cotangent)
    check([*gradients], [*torch.autograd.grad(its, [x, *theirs.parameters()], cotangent)])


@pytest.mark.parametrize(("reset", "named"), [("none", "none"), ("soft", "subtract"), ("hard", "zero")])
def test_snntorch(reset: str, named: str) -> None:
    """Of as many inputs as neurons: for other numbers snnTorch 1.0 begins anew at each step."""
    import snntorch as snn

    torch.manual_seed(0)
    theirs = snn.SLSTM(SIZE, SIZE, threshold=0.1, reset_mechanism=named, learn_threshold=True)
    ours: Any = sc.layers.SLSTM(SIZE, SIZE, threshold=0.1, reset=reset, learn=("threshold",))
    cell = theirs.lstm_cell
    weights = [cell.weight_ih, cell.bias_ih, cell.weight_hh, cell.bias_hh]
    mine = [*ours.linear.parameters(), *ours.recurrent.linear.parameters()]
    for p, value in zip(mine, weights):
        p.data.copy_(value)
    x = (2.0 * torch.randn(T, B, SIZE)).requires_grad_()
    (syn, mem), rows = theirs.init_slstm(), []
    for at in x:
        spikes, syn, mem = theirs(at, syn, mem)
        rows.append(spikes)
    out, its = ours(x), torch.stack(rows)
    check([out], [its])
    cotangent = torch.randn_like(out)
    gradients = torch.autograd.grad(out, [x, ours.recurrent.neuron.threshold, *mine], cotangent)
    check([*gradients], [*torch.autograd.grad(its, [x, theirs.threshold, *weights], cotangent)])


@pytest.mark.parametrize(("reset", "named"), [("none", "none"), ("soft", "subtract"), ("hard", "zero")])
def test_snntorch_of_images(reset: str, named: str) -> None:
    """Its one convolution is two."""
    import snntorch as snn

    torch.manual_seed(0)
    theirs = snn.SConv2dLSTM(2, 3, 3, threshold=0.1, reset_mechanism=named)
    ours: Any = sc.layers.SConv2dLSTM(2, 3, 3, threshold=0.1, reset=reset)
    ours.linear.module.weight.data.copy_(theirs.conv.weight[:, :2])
    ours.linear.module.bias.data.copy_(theirs.conv.bias)
    ours.recurrent.linear.weight.data.copy_(theirs.conv.weight[:, 2:])
    x, rows = torch.randn(5, B, 2, 6, 6), []
    syn, mem = theirs.init_sconv2dlstm()
    for at in x:
        spikes, syn, mem = theirs(at, syn, mem)
        rows.append(spikes)
    assert torch.equal(ours(x), torch.stack(rows))


class Network(nn.Module):
    """A gated layer of SpikingJelly between others, whose states come from the call before."""

    def __init__(self, gated: nn.Module) -> None:
        super().__init__()
        self.first, self.gated, self.last = nn.Linear(5, 7), gated, nn.Linear(SIZE, 3)

    def forward(self, x: Tensor) -> List[Tensor]:
        y, states = self.gated(self.first(x[:9]))
        z, states = self.gated(self.first(x[9:]), states)
        return [self.last(torch.cat([y, z])), *(states if isinstance(states, tuple) else [states])]


class Loop(nn.Module):
    """A gated layer of snnTorch behind another one, a step at a time; spikes and states."""

    def __init__(self, first: nn.Module, gated: Any) -> None:
        super().__init__()
        self.first, self.gated = first, gated

    def forward(self, x: Tensor) -> List[Tensor]:
        (syn, mem), rows = self.gated.reset_mem(), []
        for at in x:
            spikes, syn, mem = self.gated(self.first(at), syn, mem)
            rows.append((spikes, syn, mem))
        return [torch.stack(values) for values in zip(*rows)]


def lstm(size: int, **options: Any) -> Tuple[nn.Module, Tuple[int, ...]]:
    import snntorch as snn

    return Loop(nn.Linear(5, size), snn.SLSTM(size, SIZE, threshold=0.1, **options)), (T, B, 5)


def convolved(**options: Any) -> Tuple[nn.Module, Tuple[int, ...]]:
    import snntorch as snn

    return Loop(nn.Conv2d(1, 2, 3), snn.SConv2dLSTM(2, 3, 3, threshold=0.05, **options)), (5, B, 1, 7, 7)


def gated(name: str, **options: Any) -> Tuple[nn.Module, Tuple[int, ...]]:
    from spikingjelly.activation_based import rnn

    return Network(getattr(rnn, name)(7, SIZE, 1, **options)), (T, B, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gated("SpikingLSTM"),
        lambda: gated("SpikingLSTM", bias=False),
        lambda: gated("SpikingGRU"),
        lambda: lstm(SIZE, learn_threshold=True),
        lambda: lstm(7, bias=False),  # snnTorch begins anew at each step, as the sizes differ
        lambda: lstm(SIZE, reset_mechanism="subtract"),
        lambda: convolved(reset_mechanism="zero"),
        lambda: convolved(bias=False, learn_threshold=True),
    ],
)
def test_converted(make: Callable[[], Tuple[nn.Module, Tuple[int, ...]]]) -> None:
    """Outputs, states and gradients are those of before, and parameters, their order and the checkpoint stay."""
    torch.manual_seed(0)
    net, shape = make()
    theirs, parameters = copy.deepcopy(net), [*net.parameters()]
    assert list(sc.convert(net, strict=True).replaced) == ["gated"]
    assert all(mine is its for mine, its in zip(net.parameters(), parameters))
    assert list(net.state_dict()) == list(theirs.state_dict())
    with torch.no_grad():
        for value in theirs.parameters():
            value.mul_(1.1)
    net.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(net.state_dict())
    x = 3.0 * torch.randn(shape)
    ours, its = net(x), theirs(x)
    assert torch.equal(ours[0], its[0])
    assert its[0].std() > 0.1
    check(ours, its)
    cotangents = [torch.randn_like(value) for value in its]
    check(
        [*torch.autograd.grad(ours, [*net.parameters()], cotangents)],
        [*torch.autograd.grad(its, [*theirs.parameters()], cotangents)],
    )
    broken = theirs.state_dict()
    key = next(name for name in broken if name.startswith("gated") and "weight" in name)
    del broken[key]
    with pytest.raises(RuntimeError, match=f'Missing key.*"{key}"'):
        net.load_state_dict(broken)
