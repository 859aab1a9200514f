"""A network streams: single steps give the bits of a call of all steps, and their state is saved and loaded by name."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import NormNeuron, TimeBatched

T, B = 8, 3


def dyadic(net):
    """Weights with which no sum is rounded, since torch chooses its order by the number of samples."""
    generator = torch.Generator().manual_seed(0)
    for name, value in net.named_parameters():
        if value.ndim > 1 or name.endswith("bias"):
            value.data = torch.randint(-4, 5, value.shape, generator=generator).float() / 8
    return net


def network(**keywords):
    """Convolutions, delays, feedback, and a read-out, as a user trains them."""
    return dyadic(
        nn.Sequential(
            TimeBatched(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)),
            sc.LIF(threshold=0.25, **keywords),
            TimeBatched(nn.MaxPool2d(2)),
            TimeBatched(nn.Conv2d(6, 6, 3, padding=1)),
            NormNeuron(nn.BatchNorm2d(6), sc.ALIF(threshold=0.0625, **keywords)),
            TimeBatched(nn.Flatten()),
            sc.Delay(nn.Linear(24, 10), 3, learn=()),
            sc.LIF(threshold=0.25, **keywords),
            sc.Recurrent(sc.LIF(threshold=0.25, **keywords), nn.Linear(10, 10, bias=False)),
            sc.Recurrent(sc.LIF(threshold=0.25, **keywords), sc.Delay(nn.Linear(10, 10, bias=False), 2, learn=())),
            nn.Linear(10, 4, bias=False),
            sc.LI(**keywords),
        )
    )


def frames(seed=1):
    """Whole numbers, ``[T, B, 2, 4, 4]``."""
    return torch.randint(-3, 5, (T, B, 2, 4, 4), generator=torch.Generator().manual_seed(seed)).float()


def trained(net):
    """In ``eval()``, with running statistics that are powers of 2 and not those of a new network."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.fill_(0.5)
            module.running_var.fill_(4.0 - module.eps)
    return net.eval()


def stream(net, x):
    with torch.no_grad():
        return torch.stack([net(step) for step in x])


@pytest.mark.parametrize("fused", [False, True])
def test_single_steps_give_the_bits_of_a_call(fused):
    """Convolutions, pooling, normalisation, delays, feedback; and back again. Reset begins anew."""
    net = trained(network(backend="auto"))
    with torch.no_grad():
        rates = [net[: k + 1](frames()).mean() for k in (1, 4, 7, 8, 9)]
    assert all(0.02 < rate < 0.95 for rate in rates)
    if fused:
        sc.fuse(net)
    with torch.no_grad():
        expected = net(frames())
    keys = list(net.state_dict())
    assert sc.set_step(net, "single") is net
    for _ in range(2):
        assert torch.equal(stream(net, frames()), expected)
        sc.reset(net)
    assert not torch.equal(stream(net, frames().flip(0)), expected)
    assert list(net.state_dict()) == keys
    sc.set_step(net, "multi")
    with torch.no_grad():
        assert torch.equal(net(frames()), expected)


def test_gradients_are_those_of_a_call():
    """Backward through single steps: the gradient of every parameter and of the input."""
    net, x = trained(network()).double(), frames().double().requires_grad_()
    weight = torch.rand(T, B, 4, dtype=torch.float64)
    wanted = [x, *net.parameters()]
    expected = torch.autograd.grad((net(x) * weight).sum(), wanted)
    sc.set_step(net, "single")
    found = torch.autograd.grad((torch.stack([net(step) for step in x]) * weight).sum(), wanted)
    assert any(one.ne(0).any() for one in expected)
    torch.testing.assert_close(found, expected)


def test_encoders():
    """Constant gives its input, Poisson draws a step."""
    image = torch.rand(B, 5)
    net = sc.set_step(nn.Sequential(sc.encode.Constant(6), nn.Linear(5, 4), sc.LIF()), "single")
    found = torch.stack([net(image) for _ in range(6)])
    assert torch.equal(found, sc.set_step(net, "multi")(image))
    drawing = sc.encode.Poisson(50)
    torch.manual_seed(0)
    sc.set_step(drawing, "single")
    steps = torch.stack([drawing(image) for _ in range(400)])
    assert steps.shape == (400, B, 5)
    assert set(steps.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(steps.mean(0), image, atol=0.1, rtol=0)


def test_what_counts_dimensions_or_steps_is_refused():
    """By its name, and nothing is changed; where nothing would change it is not."""
    net = nn.Sequential(sc.LIF(), nn.Softmax(1), TimeBatched(nn.Flatten()))
    with pytest.raises(ValueError, match=r"'1' is Softmax\(dim=1.*counts dimensions from the front"):
        sc.set_step(net, "single")
    assert (net[0].step, net[2].step) == ("multi", "multi")
    sc.set_step(net, "multi")
    net = nn.Sequential(sc.LIF(), nn.Flatten(-3), sc.LIF(), nn.Softmax(-1))
    assert sc.set_step(net, "single")[2].step == "single"
    sc.set_step(net, "multi")
    with sc.carry_state(net), pytest.raises(RuntimeError, match=r"'0' is within sc\.carry_state\(net\); leave the blo"):
        sc.set_step(net, "single")


@pytest.mark.parametrize("single", [True, False])
def test_the_state_is_saved_and_loaded(single):
    """A stream that is cut in the middle, saved to a file and loaded into another copy goes on with the same bits."""
    net = trained(network())
    sc.set_step(net, "single" if single else "multi")
    other, x = copy.deepcopy(net), frames()

    def call(which, part):
        return stream(which, part) if single else which(part).detach()

    file = io.BytesIO()
    with sc.carry_state(net), sc.carry_state(other):
        assert sc.get_state(net) == {}
        expected = call(net, x)
        sc.reset(net)
        first = call(net, x[:5])
        state = sc.get_state(net)
        torch.save(state, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        rest = call(net, x[5:])
        call(other, x[:2])
        sc.set_state(other, loaded)
        assert torch.equal(call(other, x[5:]), rest)
        assert torch.equal(torch.cat((first, rest)), expected)
        sc.set_state(net, {})
        assert torch.equal(call(net, x), expected)
    names = ["1.v", "4.neuron.v", "4.neuron.a", "6.past", "7.v", "8.v", "8.feedback", "9.v", "9.feedback", "9.past"]
    assert list(state) == [*names, "11.v"]
    assert all(value.grad_fn is None for value in state.values())


def test_what_does_not_fit_is_named():
    """Keys, shapes and types; nothing is changed then."""
    net = sc.set_step(network(), "single")
    stream(net, frames()[:2])
    state = sc.get_state(net)

    def without(*keys):
        return {key: value for key, value in state.items() if key not in keys}

    for wrong, error, text in (
        (without("4.neuron.a", "9.past"), KeyError, r"missing: 4\.neuron\.a, 9\.past\. Give the state"),
        (without("1.v"), KeyError, r"missing: 1\.v\. .*or strict=False"),
        ({**state, "12.v": state["1.v"]}, KeyError, r"network, unexpected: 12\.v\."),
        ({**without("1.v"), "1.u": state["1.v"]}, KeyError, r"missing: 1\.v; unexpected: 1\.u"),
        ({**state, "1.v": 0.5}, TypeError, r"1\.v must be a floating-point tensor, got float"),
        ({**state, "1.v": state["1.v"].long()}, TypeError, r"1\.v must be a floating-point tensor, got torch\.int64"),
        ([], TypeError, r"state=\[\] is a list; give what sc\.get_state\(net\) gave"),
    ):
        with pytest.raises(error, match=text):
            sc.set_state(net, wrong)
        assert all(torch.equal(value, state[key]) for key, value in sc.get_state(net).items())
    sc.set_state(net, without("1.v"), strict=False)
    assert net[1].state is None
    smaller = {key: value[:2] for key, value in state.items()}
    sc.set_state(net, smaller)
    with pytest.raises(ValueError, match=r"call sc\.reset\(net\)"):
        net(frames()[0])


test_refused = refusals.table(__file__, globals())
