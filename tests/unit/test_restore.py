"""load_state_dict of a training step changes everything or nothing, and says what is missing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc


class Scaler:
    """As torch's gradient scaler, with a scale that is changed in place."""

    def __init__(self):
        self.factor = torch.tensor(8.0)

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        self.factor.mul_(2)

    def state_dict(self):
        return {"scale": self.factor.item()}

    def load_state_dict(self, state):
        self.factor.fill_(state["scale"])


class Refusing(nn.Linear):
    """A layer that cannot be loaded, once its neighbours have been."""

    def _load_from_state_dict(self, *args):
        super()._load_from_state_dict(*args)
        raise KeyboardInterrupt


def made(seed=0, hidden=6, last=nn.Linear, scaler=None):
    """A step that has trained twice, from weights of its own."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, hidden), sc.LIF(tau=2.0 + seed, learn=("threshold",)), last(hidden, 3), sc.LIF())
    optimizer = torch.optim.Adam(net.parameters(), 0.01 * (seed + 1))
    step = sc.training_model(net, sc.losses.ce_count, optimizer, options=sc.TrainingOptions(scaler=scaler))
    for i in range(2):
        generator = torch.Generator().manual_seed(10 * seed + i)
        step(torch.rand(5, 2, 4, generator=generator) * 4, torch.tensor([0, 1]))
    return step


def everything(step):
    """All that a step holds, as a flat list of what can be compared."""
    state = step.state_dict()
    optimizer = state["optimizer"]
    found = [*state["net"].values(), *(v for one in optimizer["state"].values() for v in one.values())]
    found += [value for group in optimizer["param_groups"] for value in group.values()]
    found += [module.tau for module in step.net if isinstance(module, sc.LIF)]
    return copy.deepcopy([*found, state.get("scaler")])


def same(a, b):
    """Whether two such lists are equal to the bit."""
    pairs = list(zip(a, b))
    return len(a) == len(b) and all(torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in pairs)


def without(state, *path):
    """A copy of a state that lacks one entry."""
    state = copy.deepcopy(state)
    held = state
    for key in path[:-1]:
        held = held[key]
    del held[path[-1]]
    return state


def test_a_whole_state_is_loaded():
    """Weights, optimiser and scaler are those of the other step afterwards."""
    one, other = made(0, scaler=Scaler()), made(1, scaler=Scaler())
    one.load_state_dict(copy.deepcopy(other.state_dict()))
    assert same(everything(one)[:-3], everything(other)[:-3])
    assert one.options.scaler.factor == other.options.scaler.factor


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (lambda s: without(s, "optimizer"), ValueError, "state has no 'optimizer': a step's state_dict.. has net, opt"),
        (lambda s: without(s, "net"), ValueError, "state has no 'net'"),
        (lambda s: without(s, "scaler"), ValueError, "state has no 'scaler'.*Nothing was loaded"),
        (lambda s: {**s, "epoch": 3}, ValueError, "has 'epoch', which this step has not"),
        (
            lambda s: s["net"],
            ValueError,
            "has no 'net' and has no 'optimizer' and has no 'scaler' and has '0.wei",
        ),
        (lambda s: [s], TypeError, "is a list; give what state_dict.. of a step returned"),
        (lambda s: without(s, "optimizer", "param_groups"), ValueError, r"state\['optimizer'\] has no 'param_groups'"),
        (lambda s: without(s, "net", "2.bias"), RuntimeError, r'Missing key.*"2.bias"'),
        (lambda s: {**s, "net": {**s["net"], "2.bias": torch.zeros(7)}}, RuntimeError, "size mismatch for 2.bias"),
        (lambda s: {**s, "net": {**s["net"], "9.bias": torch.zeros(7)}}, RuntimeError, r'Unexpected key.*"9.bias"'),
        (lambda s: {**s, "scaler": {}}, KeyError, "scale"),
        (lambda s: {**s, "net": {**s["net"], "1.threshold": torch.tensor([1.0, 2.0])}}, RuntimeError, "threshold"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(spoil, error, text):
    """It is refused with what is wrong about it, and not a bit is different then."""
    step = made(0, scaler=Scaler())
    before = everything(step)
    with pytest.raises(error, match=text):
        step.load_state_dict(spoil(made(1, scaler=Scaler()).state_dict()))
    assert same(everything(step), before)


def test_a_scaler_where_there_is_none():
    """The state of a step with a scaler says what to do in a step without."""
    step = made(0)
    before = everything(step)
    with pytest.raises(ValueError, match=r"has 'scaler', which this step has not.*TrainingOptions\(scaler=...\)"):
        step.load_state_dict(made(1, scaler=Scaler()).state_dict())
    assert same(everything(step), before)


def test_another_optimizer():
    """Groups of other sizes, and moments of other shapes, are refused before anything changes."""
    step, other = made(0), made(1).state_dict()
    before = everything(step)
    fewer = copy.deepcopy(other)
    fewer["optimizer"]["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match=r"groups of \[4\] parameters, and this optimiser has groups of \[5\]"):
        step.load_state_dict(fewer)
    narrow = {**other, "optimizer": made(1, hidden=5).state_dict()["optimizer"]}
    with pytest.raises(ValueError, match=r"has exp_avg of shape \[5, 4\] for parameter 0 of shape \[6, 4\]"):
        step.load_state_dict(narrow)
    assert same(everything(step), before)


def test_interrupted_midway():
    """Ctrl-C while it loads leaves what there was, and the step trains on."""
    step, other = made(0, last=Refusing, scaler=Scaler()), made(1, scaler=Scaler())
    before = everything(step)
    with pytest.raises(KeyboardInterrupt):
        step.load_state_dict(other.state_dict())
    assert same(everything(step), before)
    step(torch.rand(5, 2, 4) * 4, torch.tensor([0, 1]))
    assert not same(everything(step), before)
