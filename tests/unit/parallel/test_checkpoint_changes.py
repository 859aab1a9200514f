"""sc.checkpoint: what changes between forward and backward is refused, or has no effect on the second run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc

C = 4


def net(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(C, C), *layers, nn.Linear(C, C))


def inputs():
    return torch.randn(6, 3, C, generator=torch.Generator().manual_seed(1)) * 3


def changed_between(model, change, every=9):
    """Forward, a change, backward."""
    out = sc.checkpoint(model, every=every)(inputs()).square().sum()
    change(model)
    out.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("layer", [nn.Tanh, lambda: sc.LIF(backend="torch"), sc.LIF])
@pytest.mark.parametrize("every", [1, 9])
def test_a_parameter_that_was_written_to(layer, every):
    """A step of an optimiser between forward and backward raises and names the parameter, as plain torch raises."""

    def step(model):
        with torch.no_grad():
            model[2].weight.mul_(3)

    with pytest.raises(
        RuntimeError, match=r"the parameter 'weight' of Linear, shape \(4, 4\), was written to after.*optimizer.step"
    ):
        changed_between(net(layer()), step, every)


def test_a_learnt_parameter_of_a_neuron_that_was_written_to():
    """A number that is set where a parameter is learnt is written to the parameter."""

    def change(model):
        model[1].tau = 9.0

    with pytest.raises(RuntimeError, match="the parameter 'tau' of LIF.* was written to after"):
        changed_between(net(sc.LIF(learn=("tau",))), change)


def test_a_state_that_was_written_to():
    """A state that a group began with, and that was changed in place, is refused."""
    model = sc.checkpoint(net(sc.LIF(step="single")), every=9)
    model(inputs()[0])
    state = model[1].state["v"].detach()
    out = model(inputs()[1])
    state.add_(1)
    with pytest.raises(RuntimeError, match="the state 'v' of LIF.* was written to after"):
        out.sum().backward()


def test_functional_call():
    """The weights of functional_call are gone when backward computes the groups again: refused."""
    model = sc.checkpoint(net(sc.LIF()), every=9)
    doubled = {name: (2 * value).detach().requires_grad_() for name, value in model.named_parameters()}
    out = torch.func.functional_call(model, doubled, (inputs(),)).sum()
    with pytest.raises(RuntimeError, match="the parameter 'weight' of Linear.* is another tensor .*functional_call"):
        out.backward()


class Scale(nn.Module):
    """Multiplies by a buffer, and may replace it."""

    def __init__(self, replace):
        super().__init__()
        self.replace = replace
        self.register_buffer("k", torch.ones(()))

    def forward(self, x):
        y = x * x * self.k
        if self.replace:
            self.k = self.k * 3
        return y


def test_a_buffer_that_is_replaced_in_forward():
    """A new tensor in the place of a buffer is a changed buffer."""
    with pytest.raises(RuntimeError, match="Scale changes its buffer 'k' in forward"):
        changed_between(net(Scale(replace=True)), lambda model: None)


@pytest.mark.parametrize("replace", [True, False])
def test_a_buffer_that_changes_between(replace):
    """A buffer is compared again before the second run."""

    def change(model):
        if replace:
            model[1].k = model[1].k * 3
        else:
            model[1].k.mul_(3)

    how = "is another tensor than" if replace else "was written to after"
    with pytest.raises(RuntimeError, match=f"the buffer 'k' of Scale.* {how}"):
        changed_between(net(Scale(replace=False)), change)


class ByRunning(nn.BatchNorm1d):
    """A norm whose forward reads its running statistics in training."""

    def forward(self, x):
        scale = self.running_var.clone()
        return super().forward(x.flatten(0, 1)).view_as(x) / scale


def test_a_norm_with_a_forward_of_its_own():
    """Running statistics are left out of the check only where torch's own forward moves them and does not read them."""
    with pytest.raises(RuntimeError, match="ByRunning changes its buffer"):
        changed_between(net(ByRunning(C)), lambda model: None)


@pytest.mark.parametrize("first", [True, False])
def test_the_mode_of_the_first_run(first):
    """train() or eval() between forward and backward has no effect on gradients and statistics, and stays."""

    def made():
        return net(sc.layers.TimeBatched(nn.BatchNorm1d(C)), nn.Dropout(0.5), sc.LIF()).train(first)

    one = made()
    torch.manual_seed(3)
    out = one(inputs()).square().sum()
    out.backward()
    wanted = [*(parameter.grad for parameter in one.parameters()), *one.buffers()]
    many = made()
    torch.manual_seed(3)
    found = [*changed_between(many, lambda model: model.train(not first)), *many.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    assert {module.training for module in many.modules()} == {not first}


def test_running_statistics_that_are_loaded_between():
    """In evaluation a norm reads its running statistics, which are then compared as every other buffer."""
    model = net(sc.layers.TimeBatched(nn.BatchNorm1d(C))).eval()
    other = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="the (parameter|buffer) '.*' of .* was written to after"):
        changed_between(model, lambda net: net.load_state_dict(other))
    with pytest.raises(RuntimeError, match="the buffer 'running_mean' of BatchNorm1d.* was written to after"):
        changed_between(model, lambda net: net[1].module.running_mean.add_(1))
