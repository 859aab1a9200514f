"""One input at every time step, streamed through the stages: the loop over steps on one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc

T, B, N, C = 7, 4, 5, 3


def stages(step="single"):
    torch.manual_seed(0)
    front = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4))
    back = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 4, C))
    if step == "multi":
        front, back = sc.layers.TimeBatched(front), sc.layers.TimeBatched(back)
    return [
        nn.Sequential(front, sc.LIF(2.5, threshold=0.3, learn=("tau",), step=step)),
        nn.Sequential(back, sc.PLIF(1.7, threshold=0.2, step=step)),
        sc.Recurrent(sc.LI(3.0), nn.Linear(C, C), step=step),
    ]


def pipeline(step="single", **kwargs):
    return sc.parallel.Pipeline([(stage, "cpu") for stage in stages(step)], **kwargs)


def images():
    return torch.rand(B, 1, 4, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()


def looped(net, x, steps=T):
    """The loop of the page of the seeds: reset, then the same image at every step."""
    sc.reset(net)
    outputs = [net(x) for _ in range(steps)]
    sc.reset(net)
    return torch.stack(outputs)


def states(net):
    return [module.state for module in sc.functional.stateful_modules(net)]


@pytest.mark.parametrize("step", ["single", "multi"])
@pytest.mark.parametrize("reduce", [True, False])
def test_the_loop_on_one_device(step, reduce):
    """Sum or stack of the outputs, gradients and running statistics are those of the loop over single steps."""
    one, many, x, y = nn.Sequential(*stages()), pipeline(step), images(), images()
    wanted = looped(one, x)
    wanted = sum(wanted.unbind()) if reduce else wanted
    found = many.constant_forward(y, T, reduce=reduce)
    assert found.shape == ((B, C) if reduce else (T, B, C))
    assert torch.allclose(found, wanted, rtol=1e-6, atol=1e-6)
    wanted.square().sum().backward()
    found.square().sum().backward()
    for a, b in zip([y.grad, *(p.grad for p in many.parameters())], [x.grad, *(p.grad for p in one.parameters())]):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max()
    # names differ by the TimeBatched of multi-step networks
    for a, b in zip(many.buffers(), one.buffers()):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("step", ["single", "multi"])
def test_begins_at_rest_and_leaves_nothing(step):
    """A state from before does not count, and none is left."""
    many, x = pipeline(step).eval(), images()
    wanted = many.constant_forward(x, T)
    if step == "single":
        many(x)
        assert any(state is not None for state in states(many))
    assert torch.equal(many.constant_forward(x, T), wanted)
    assert states(many) == [None] * len(states(many))


@pytest.mark.parametrize("step", ["single", "multi"])
def test_carried(step):
    """Within carry_state it goes on from the call before, and gradients pass from one call to the next."""
    many, x, y = pipeline(step).eval(), images(), images()
    wanted = many.constant_forward(x, T, reduce=False)
    with sc.carry_state(many):
        found = torch.cat([many.constant_forward(y, 3, reduce=False), many.constant_forward(y, T - 3, reduce=False)])
    assert torch.allclose(found, wanted)
    wanted[-1].sum().backward()
    found[-1].sum().backward()
    assert torch.allclose(y.grad, x.grad)


def test_the_page_of_the_seeds():
    """A subclass whose forward is constant_forward trains by training_model, as SpikingFlow's Net did."""

    class Net(sc.parallel.Pipeline):
        def forward(self, x):
            return self.constant_forward(x, T) / T

    one, many = nn.Sequential(*stages()), Net([(stage, "cpu") for stage in stages()])
    targets = torch.tensor([0, 1, 2, 0])
    loss = nn.CrossEntropyLoss()
    step = sc.training_model(many, loss, torch.optim.SGD(many.parameters(), 0.1))
    for _ in range(2):
        found, _ = step(images().detach(), targets)
        wanted = looped(one, images().detach()).sum(0) / T
        assert torch.allclose(found, wanted, atol=1e-6)
        one.zero_grad()
        loss(wanted, targets).backward()
        with torch.no_grad():
            for parameter in one.parameters():
                parameter -= 0.1 * parameter.grad
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(many.parameters(), one.parameters()))


class TestRefused:
    """A network that would not be the loop over time is refused, before anything runs."""

    def test_a_mean_over_time(self):
        """A layer that reads several steps cannot get them one by one."""

        class Rate(nn.Module):
            def forward(self, x):
                return x.mean(0)

        many = sc.parallel.Pipeline([(sc.LIF(), "cpu"), (Rate(), "cpu")])
        with pytest.raises(ValueError, match=r"for one step the stages give shape \(4, 5\).*Leave that layer out"):
            many.constant_forward(torch.rand(B, N), T)


test_refused = refusals.table(__file__, globals())
