"""Spiking LSTM and GRU beside the equations of SpikingJelly and snnTorch, as loops over the steps with autograd."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from ready import needs_backend

T, B, N, H = 9, 3, 5, 4

Step = Callable[[Any, Tensor, Tuple[Tensor, ...]], Tuple[Tensor, Tuple[Tensor, ...]]]


class Fired(torch.autograd.Function):
    """A spike where u is 0 or above, or above 0; its derivative is Erf's or ATan's, of steepness 2."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, strict: bool) -> Tensor:
        ctx.save_for_backward(u)
        ctx.strict = strict
        return (u > 0 if strict else u >= 0).to(u)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        erf = 2.0 / math.sqrt(math.pi) * torch.exp(-4.0 * u * u)
        atan = 1.0 / (1.0 + (math.pi * u) ** 2)
        return grads[0] * (atan if ctx.strict else erf), None


def lstm(net: Any, x: Tensor, state: Tuple[Tensor, ...]) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """``SpikingLSTMCell`` of SpikingJelly."""
    h, c = state
    i, f, g, o = Fired.apply(net.linear(x) + net.recurrent.linear(h), False).chunk(4, 1)
    c = c * f + i * g
    with torch.no_grad():
        torch.clamp_max_(c, 1.0)
    return c * o, (c * o, c)


def gru(net: Any, x: Tensor, state: Tuple[Tensor, ...]) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """``SpikingGRUCell`` of SpikingJelly."""
    (h, _), of_x = state, net.linear(x).chunk(3, 1)
    of_h = net.recurrent.linear(h).chunk(3, 1)
    r, z = (Fired.apply(of_x[k] + of_h[k], False) for k in (0, 1))
    n = Fired.apply(of_x[2] + r * of_h[2], False)
    h = (1.0 - z) * n + z * h
    return h, (h, h)


def firing(net: Any, gates: Tuple[Tensor, ...], state: Tuple[Tensor, ...]) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """``SLSTM`` of snnTorch behind its product: ``_state_function`` and ``fire``."""
    (mem, syn), (i, f, g, o), neuron = state, gates, net.recurrent.neuron
    fired = Fired.apply(mem - neuron.threshold, True).detach()
    syn = torch.sigmoid(f) * syn + torch.sigmoid(i) * torch.tanh(g)
    mem = torch.sigmoid(o) * torch.tanh(syn)
    if neuron.reset == "soft":
        mem = mem - fired * neuron.threshold
    if neuron.reset == "hard":
        mem = mem - mem * fired
    return Fired.apply(mem - neuron.threshold, True), (mem, syn)


def slstm(net: Any, x: Tensor, state: Tuple[Tensor, ...]) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """``SLSTM`` of snnTorch."""
    cell = nn.LSTMCell(N, H).to(x.dtype)
    of = (net.linear.weight, net.recurrent.linear.weight, net.linear.bias, net.recurrent.linear.bias)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    # torch's own cell says in which order the gates lie
    _, syn = torch.func.functional_call(cell, dict(zip(names, of)), (x, state))
    gates = (net.linear(x) + net.recurrent.linear(state[0])).chunk(4, 1)
    spikes, after = firing(net, gates, state)
    torch.testing.assert_close(after[1], syn)
    return spikes, after


def sconv(net: Any, x: Tensor, state: Tuple[Tensor, ...]) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """``SConv2dLSTM`` of snnTorch: one convolution of the inputs and ``mem``."""
    first = net.linear.module
    weight = torch.cat([first.weight, net.recurrent.linear.weight], 1)
    combined = torch.cat([x, state[0]], 1)
    i, f, o, g = nn.functional.conv2d(combined, weight, first.bias, padding=(1, 2)).chunk(4, 1)
    return firing(net, (i, f, g, o), state)


#: Name -> layer, its step, and the shapes of a step that it takes and gives.
LAYERS: Dict[str, Tuple[Callable[[], nn.Module], Step, Tuple[int, ...], Tuple[int, ...]]] = {
    "LSTM": (lambda: sc.layers.SpikingLSTM(N, H), lstm, (B, N), (B, H)),
    "GRU": (lambda: sc.layers.SpikingGRU(N, H), gru, (B, N), (B, H)),
    "GRU without a bias": (lambda: sc.layers.SpikingGRU(N, H, bias=False), gru, (B, N), (B, H)),
    "SLSTM": (lambda: sc.layers.SLSTM(N, H, threshold=0.1, learn=("threshold",)), slstm, (B, N), (B, H)),
    "SLSTM, soft": (
        lambda: sc.layers.SLSTM(N, H, threshold=0.1, reset="soft", learn=("threshold",)),
        slstm,
        (B, N),
        (B, H),
    ),
    "SLSTM, hard": (lambda: sc.layers.SLSTM(N, H, threshold=0.1, reset="hard"), slstm, (B, N), (B, H)),
    "SConv2dLSTM": (
        lambda: sc.layers.SConv2dLSTM(2, 3, (3, 5), threshold=0.1, reset="soft"),
        sconv,
        (B, 2, 4, 6),
        (B, 3, 4, 6),
    ),
}


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_equations(name: str, backend: str) -> None:
    """Outputs and all gradients in float64, of all steps, and of single ones."""
    if backend == "numba":
        needs_backend("numba")
    make, step, shape, size = LAYERS[name]
    torch.manual_seed(3)
    net: Any = make().double()
    sc.set_backend(net, backend)
    x = (2.0 * torch.randn(T, *shape, dtype=torch.float64)).requires_grad_()
    state: Tuple[Tensor, ...] = (torch.zeros(size, dtype=torch.float64),) * 2
    rows: List[Tensor] = []
    for at in x:
        out, state = step(net, at, state)
        rows.append(out)
    expected = torch.stack(rows)
    assert 0.05 < expected.mean() < 0.95
    cotangent = torch.randn_like(expected)
    ours = net(x)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)
    wanted = [x, *net.parameters()]
    its = torch.autograd.grad(expected, wanted, cotangent)
    for mine, other in zip(torch.autograd.grad(ours, wanted, cotangent), its):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)
    assert (net.recurrent.looped == "") == (name != "SConv2dLSTM")
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-13)
    last = net.run(x)[1]
    torch.testing.assert_close([*last.values()][-1], state[0], rtol=1e-12, atol=1e-13)
    sc.set_step(net, "single")
    torch.testing.assert_close(torch.stack([net(at) for at in x.detach()]), expected, rtol=1e-12, atol=1e-13)


def test_weights_begin_as_those_of_the_other_libraries() -> None:
    """Within the root of one over the numbers that a gate is a sum of; parts of a state are recorded."""
    net = sc.layers.SLSTM(700, 64)
    for p in net.parameters():
        assert 0.9 / 8 < p.abs().max() <= 1 / 8
    spikes, state, trace = net.run(torch.rand(T, B, 700), record=("mem",))
    assert torch.equal(spikes, (trace["mem"] > 1.0).float())
    assert torch.equal(state["feedback"], trace["mem"][-1])


test_refused = refusals.table(__file__, globals())
