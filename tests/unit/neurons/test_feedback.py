"""Feedback of any shape: from several outputs, through any module of a step, into several inputs."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from ready import needs_backend
from spikecore.layers import Feedback

T, B, C = 7, 3, 4


class Two(sc.Neuron):
    """A smooth neuron of two inputs and two outputs, for gradients by finite differences."""

    inputs = ("e", "i")
    states = {"v": 0.0, "w": 0.25}  # as users write it
    params = {"decay": 0.8}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = p.decay * s.v + sc.ops.tanh(x.e) - 0.5 * s.w
        w = 0.5 * s.w + 0.2 * v * x.i
        return (sc.ops.tanh(v), w), {"v": v, "w": w}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(backend: str = "torch", **options: Any) -> Any:
    """Five ways back: of both outputs, to one input or to both, as constants or not, through layers and delays."""
    torch.manual_seed(0)
    ways = [
        Feedback(nn.Linear(C, 2 * C), into=("i", "e"), output=0),
        Feedback(nn.Linear(C, C, bias=False), into="e", output=1),
        Feedback(nn.Identity(), into="i", output=1, detach=True),
        Feedback(sc.Delay(nn.Linear(C, C), 3, delay=2.0, learn=()), into="e", output=0),
        Feedback(sc.Delay(nn.Linear(C, C), 1, delay=1.0, learn=(), per="input"), into="i", output=0, detach=True),
    ]
    return sc.Recurrent(Two(backend=backend), ways, **options).double()


def by_hand(net: Any, e: Tensor, i: Tensor) -> Dict[str, Tensor]:
    """The same equations as a loop over the steps, from rest."""
    both, single, _, late, later = [way.module for way in net.feedbacks]
    zero = torch.zeros_like(e[0])
    v, w, zs, ws = zero, zero + 0.25, [zero] * 4, [zero]
    for e_t, i_t in zip(e, i):
        to_i, to_e = both(zs[-1]).chunk(2, -1)
        e_t = e_t + to_e + single(ws[-1]) + late.linear(zs[-3])
        i_t = i_t + to_i + ws[-1].detach() + later.linear(zs[-2].detach())
        v = 0.8 * v + torch.tanh(e_t) - 0.5 * w
        w = 0.5 * w + 0.2 * v * i_t
        zs.append(torch.tanh(v))
        ws.append(w)
    past = torch.stack(zs[-4:-1], -1)
    ends = {"feedback.0": zs[-1], "feedback.1": w, "past.0": past}
    return {"z": torch.stack(zs[4:]), "out": torch.stack(ws[1:]), "v": v, "w": w, **ends}


def outcome(net: Any, results: Dict[str, Tensor], inputs: List[Tensor]) -> List[Tensor]:
    """Results, and the gradients of inputs and weights for random cotangents of the outputs."""
    outputs = [results["z"], results["out"]]
    cotangents = [drawn(*y.shape, seed=k + 5) for k, y in enumerate(outputs)]
    wanted = [*inputs, *net.parameters()]
    return [*results.values(), *torch.autograd.grad(outputs, wanted, cotangents)]


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_values_and_gradients_are_those_of_the_loop_by_hand(backend: str) -> None:
    """Outputs, states and every gradient, of all ways at once."""
    if backend == "numba":
        needs_backend("numba")
    net, inputs = made(backend), [drawn(T, B, C, seed=k).requires_grad_() for k in (1, 2)]
    (z, out), state = net.run(*inputs)
    expected = by_hand(net, *inputs)
    assert [*state] == ["v", "w", "feedback.0", "feedback.1", "past.0"]
    ours = {"z": z, "out": out, **{name: state[name] for name in [*expected][2:4]}}
    ours.update({name: state[name] for name in [*expected][4:]})
    for a, b in zip(outcome(net, ours, inputs), outcome(net, expected, inputs)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_gradients_are_finite_differences() -> None:
    """Through time, where nothing is a constant."""
    ways = [
        Feedback(nn.Linear(2, 4), into=("e", "i"), output=1),
        Feedback(nn.Tanh(), into="e", output=0),
        Feedback(nn.Tanh(), into="e", output=0),
    ]
    net = sc.Recurrent(Two(backend="torch"), ways, given=("i",)).double()
    x, weight = drawn(5, 2, 2).requires_grad_(), ways[0].module.weight

    def called(x: Tensor, weight: Tensor) -> Any:
        return torch.func.functional_call(net, {"feedbacks.0.module.weight": weight}, (x,))

    assert torch.autograd.gradcheck(called, (x, weight))


def test_calls_that_carry_their_state_are_one() -> None:
    """Pieces of a sequence, single steps, and a call from the state of another."""
    inputs = [drawn(T, B, C, seed=k) for k in (1, 2)]
    net = made()
    whole, end = net.run(*inputs)
    with sc.carry_state(net):
        pieces = [net(*[x[a:b] for x in inputs]) for a, b in ((0, 1), (1, 5), (5, T))]
    _, middle = net.run(*[x[:4] for x in inputs])
    rest, last = net.run(*[x[4:] for x in inputs], state=middle)
    sc.set_step(net, "single")
    steps = [net(*at) for at in zip(*inputs)]
    for k, y in enumerate(whole):
        torch.testing.assert_close(torch.cat([piece[k] for piece in pieces]), y, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(torch.stack([step[k] for step in steps]), y, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(rest[k], y[4:], rtol=1e-12, atol=1e-13)
    for name, value in end.items():
        torch.testing.assert_close(last[name], value, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(net.state[name], value, rtol=1e-12, atol=1e-13)
    sc.reset(net)
    assert torch.equal(net(*[x[0] for x in inputs])[0], steps[0][0])


def test_a_packed_input_is_its_parts() -> None:
    """One tensor with the inputs side by side, in the order of ``given``; what is not given is what comes back."""
    linear = nn.Linear(C, 2 * C).double()
    packed, apart, alone = (
        sc.Recurrent(Two(), linear, into=("i", "e"), output=1, **options).double()
        for options in ({"given": ("i", "e"), "packed": True}, {}, {"given": ("e",)})
    )
    e, i = drawn(T, B, C), drawn(T, B, C, seed=1)
    for ours, its in zip(packed(torch.cat([i, e], -1)), apart(e, i)):
        assert torch.equal(ours, its)
    for ours, its in zip(alone(e), apart(e, torch.zeros_like(i))):
        assert torch.equal(ours, its)
    assert [*packed.state_dict()] == ["linear.weight", "linear.bias"]
    assert [*made().state_dict()][:2] == ["feedbacks.0.module.weight", "feedbacks.0.module.bias"]


def test_a_convolution_shares_its_channels_out() -> None:
    """The dimension that the module makes k times as large is shared out."""
    conv = nn.Conv2d(2, 4, 3, padding=1).double()
    net = sc.Recurrent(Two(), conv, into=("e", "i"), output=0).double()
    e, i = drawn(2, B, 2, 5, 5), drawn(2, B, 2, 5, 5, seed=1)
    (z, out), _ = net.run(e, i)
    # what comes back of zeros is the bias
    first_e, first_i = conv(torch.zeros_like(e[0])).chunk(2, 1)
    (z0, _), state = net.neuron.run(e[:1] + first_e, i[:1] + first_i)
    to_e, to_i = conv(z0[0]).chunk(2, 1)
    (z1, out1), _ = net.neuron.run(e[1:] + to_e, i[1:] + to_i, state=state)
    assert torch.equal(z, torch.cat([z0, z1]))
    assert torch.equal(out[1:], out1)


def test_random_numbers_are_those_of_the_neuron() -> None:
    """Numbers of a stochastic neuron are drawn for all steps of a call, or given."""
    x, linear = drawn(T, B, C), nn.Linear(C, C).double()
    net = sc.Recurrent(sc.EscapeNoise(), linear).double()
    torch.manual_seed(1)
    out = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x, *net.neuron.draw(x)), out)
    net.step = "single"
    assert net(x[0]).shape == (B, C)


test_refused = refusals.table(__file__, globals())
