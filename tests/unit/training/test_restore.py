"""load_state_dict of a training step changes everything or nothing, and says what is missing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from restoring import everything, same, trained, without


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
        (lambda s: without(s, "optimizer", "param_groups"), ValueError, r"not fit this Adam: 'param_groups'\. Make"),
        (lambda s: {**s, "optimizer": [1]}, ValueError, r"state\['optimizer'\] is a list, and no dict"),
        (lambda s: {**s, "net": 3}, ValueError, r"state\['net'\] is an int, and no dict"),
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
    """Groups of other sizes, and of another class, are refused."""
    step, other = made(0), made(1).state_dict()
    before = everything(step)
    fewer = copy.deepcopy(other)
    fewer["optimizer"]["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match=r"does not fit this Adam: .*doesn't match the size.*Nothing was loaded"):
        step.load_state_dict(fewer)
    of_sgd = trained(lambda ps: torch.optim.SGD(list(ps[0]["params"]) + ps[1]["params"], 0.1)).state_dict()["optimizer"]
    with pytest.raises(ValueError, match=r"not fit this Adam: its groups have no 'betas' and no 'eps'"):
        step.load_state_dict({**other, "optimizer": of_sgd})
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


class Wrapping(torch.optim.SGD):
    """An optimiser with a form of its own for what it saves."""

    def state_dict(self):
        return {"inner": super().state_dict(), "count": 3}

    def load_state_dict(self, state):
        super().load_state_dict(state["inner"])


def test_a_form_of_its_own():
    """Of what an optimiser saves in a form of its own, the parts are checked by name, and the rest is its own."""
    step, other = (trained(lambda ps: Wrapping(ps, 0.1, momentum=0.9), seed) for seed in (0, 1))
    state = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"does not fit this Wrapping: 'inner'\. Make"):
        step.load_state_dict(without(state, "optimizer", "inner"))
    step.load_state_dict(state)
    for one in (step, other):
        one(torch.ones(5, 2, 4) * 4, torch.tensor([0, 1]))
    assert all(torch.equal(a, b) for a, b in zip(step.net.parameters(), other.net.parameters()))


class Signs(torch.optim.Optimizer):
    """An optimiser that torch does not know, which moves by the sign of an average."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p]
                    kept["count"] = kept.get("count", 0) + 1
                    kept["mean"] = kept.get("mean", torch.zeros_like(p)).mul(0.9).add(p.grad)
                    p.data.sub_(kept["mean"].sign() * group["lr"])


OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1),
    "SGD with momentum": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
    "Adam": torch.optim.Adam,
    "Adam with amsgrad": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "RMSprop with all": lambda ps: torch.optim.RMSprop(ps, momentum=0.9, centered=True),
    "Adagrad": torch.optim.Adagrad,
    "Rprop": torch.optim.Rprop,
    "of somebody else": Signs,
}


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "trained"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_state_goes_on(name, frozen, steps):
    """A state trains on to the bit, with and without a first parameter that never had a gradient."""
    source, step = trained(OPTIMIZERS[name], 1, steps), trained(OPTIMIZERS[name], 0, steps)
    batch = torch.rand(5, 2, 4) * 4, torch.tensor([0, 1])
    for one in (source, step):
        one.net[0].weight.requires_grad_(not frozen)
    source(*batch)
    step.load_state_dict(copy.deepcopy(source.state_dict()))
    for _ in range(2):
        assert same(everything(step), everything(source))
        step(*batch)
        source(*batch)


def test_what_old_and_scheduled_states_have():
    """A state of an older torch lacks options that torch fills in, and a schedule's entries come and go."""
    old = copy.deepcopy(trained(torch.optim.Adam, 1).state_dict())
    for group in old["optimizer"]["param_groups"]:
        del group["maximize"], group["foreach"]
        group["initial_lr"] = 0.1
    step = trained(torch.optim.Adam)
    step.load_state_dict(old)
    assert step.optimizer.param_groups[1]["initial_lr"] == 0.1
    torch.optim.lr_scheduler.OneCycleLR(step.optimizer, 0.1, total_steps=10)
    step.load_state_dict(trained(torch.optim.Adam, 1).state_dict())


def test_a_loaded_state_stays_as_it_is():
    """Training on does not change the moments of the state that was loaded, nor those of the step it came from."""
    source = trained(torch.optim.Adam, 1)
    state = source.state_dict()
    before = everything(source)
    step = trained(torch.optim.Adam)
    step.load_state_dict(state)
    step(torch.rand(5, 2, 4) * 4, torch.tensor([0, 1]))
    assert same(everything(source), before)
    step.load_state_dict(state)
    assert same(everything(step), before)
