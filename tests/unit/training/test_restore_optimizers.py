"""The states of optimizers: every one goes on from its state, and a malformed or foreign one is refused as a whole."""

from __future__ import annotations

import copy

import pytest
import torch

from restoring import everything, same, trained, without


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
    "SGD": (lambda ps: torch.optim.SGD(ps, 0.1), ()),
    "SGD with momentum": (lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9), ("momentum_buffer",)),
    "Adam": (torch.optim.Adam, ("step", "exp_avg", "exp_avg_sq")),
    "Adam with amsgrad": (lambda ps: torch.optim.Adam(ps, amsgrad=True), ("exp_avg", "max_exp_avg_sq")),
    "AdamW": (torch.optim.AdamW, ("step", "exp_avg", "exp_avg_sq")),
    "RMSprop": (torch.optim.RMSprop, ("step", "square_avg")),
    "RMSprop with all": (
        lambda ps: torch.optim.RMSprop(ps, momentum=0.9, centered=True),
        ("square_avg", "momentum_buffer", "grad_avg"),
    ),
    "NAdam": (torch.optim.NAdam, ("mu_product", "exp_avg")),
    "RAdam": (torch.optim.RAdam, ("exp_avg_sq",)),
    "Adamax": (torch.optim.Adamax, ("exp_inf",)),
    "Adagrad": (torch.optim.Adagrad, ("sum",)),
    "Adadelta": (torch.optim.Adadelta, ("acc_delta",)),
    "Rprop": (torch.optim.Rprop, ("prev", "step_size")),
    "ASGD": (torch.optim.ASGD, ("eta", "ax")),
    "of somebody else": (Signs, ("mean",)),
}


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "trained"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_state_goes_on_and_nothing_of_it_may_lack(name, steps):
    """A whole state trains on to the bit; without a moment, an option, an entry or a group it is refused by name."""
    build, kept = OPTIMIZERS[name]
    source = trained(build, 1)
    whole = copy.deepcopy(source.state_dict())
    step = trained(build, 0, steps)
    before = everything(step)
    spoilt = [(("optimizer", "state", 0, one), f"parameter 0 has no '{one}'") for one in kept]
    if kept:
        spoilt += [(("optimizer", "state", 2), r"no entry for parameter 2 \(\{.*\}, if that never had a gradient\)")]
    if name == "of somebody else" and not steps:
        spoilt = []  # nobody knows what it keeps before it has stepped
    spoilt += [
        (("optimizer", "param_groups", 1, "lr"), r"param_groups\[1\] has no 'lr'"),
        (("optimizer", "param_groups", 1), r"groups of \[2\] parameters, and this optimiser has groups of \[2, 3\]"),
        (("optimizer", "param_groups", 0, "params"), r"param_groups\[0\] has no 'params' that is a list"),
        (("optimizer", "state"), r"it has no 'state'"),
    ]
    for path, text in spoilt:
        with pytest.raises(
            ValueError, match=rf"does not fit this {type(step.optimizer).__name__}: .*{text}.*Nothing was"
        ):
            step.load_state_dict(without(whole, *path))
    assert same(everything(step), before)
    step.load_state_dict(copy.deepcopy(whole))
    assert same(everything(step), everything(source))
    batch = torch.rand(5, 2, 4) * 4, torch.tensor([0, 1])
    step(*batch)
    source(*batch)
    assert same(everything(step), everything(source))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_that_never_had_a_gradient(name):
    """A state of before the first step is loaded, and so is one whose first parameter is frozen; both go on alike."""
    build, _ = OPTIMIZERS[name]
    for frozen, steps in ((False, 0), (True, 1)):
        source, step = trained(build, 1, 0), trained(build, 0, 0)
        batch = torch.rand(5, 2, 4) * 4, torch.tensor([0, 1])
        for one in (source, step):
            one.net[0].weight.requires_grad_(not frozen)
        for _ in range(steps):
            source(*batch)
        step.load_state_dict(copy.deepcopy(source.state_dict()))
        assert same(everything(step), everything(source))
        step(*batch)
        source(*batch)
        assert same(everything(step), everything(source))


def spoilt(**changes):
    """A function that changes parts of an optimiser's state."""

    def spoil(state):
        state = copy.deepcopy(state)
        state["optimizer"].update({name: change(state["optimizer"]) for name, change in changes.items()})
        return state

    return spoil


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoilt(state=lambda s: 3), "its 'state' is an int, and no dict"),
        (spoilt(state=lambda s: {**s["state"], 0: 3}), "parameter 0 has 3, and no dict"),
        (spoilt(state=lambda s: {**s["state"], 9: {}}), "it has an entry for 9, which is no parameter of its groups"),
        (
            spoilt(state=lambda s: {**s["state"], 0: {**s["state"][0], "sum": torch.ones(6, 4)}}),
            "parameter 0 has 'sum', wh",
        ),
        (
            spoilt(state=lambda s: {**s["state"], 0: {**s["state"][0], "exp_avg": 3.0}}),
            "has exp_avg=3.0, which is no ten",
        ),
        (spoilt(state=lambda s: {**s["state"], 0: {**s["state"][0], "step": "a"}}), "has step='a', which is no number"),
        (
            spoilt(state=lambda s: {**s["state"], 0: {**s["state"][0], "exp_avg": torch.tensor(1.0)}}),
            r"has exp_avg of shape \[\] for parameter 0, where that is \[6, 4\]",
        ),
        (spoilt(param_groups=lambda s: {"lr": 1}), "its 'param_groups' is a dict, and no list of dicts"),
        (spoilt(param_groups=lambda s: [3, 4]), r"param_groups\[0\] is an int, and no dict"),
        (
            spoilt(param_groups=lambda s: [{**g, "lr": "fast"} for g in s["param_groups"]]),
            r"param_groups\[0\] has lr='fast', and this optimiser 0.001; param_groups\[1\] has lr='fast'",
        ),
        (
            spoilt(param_groups=lambda s: [{**g, "betas": (0.9,)} for g in s["param_groups"]]),
            r"has betas=\(0.9,\), and",
        ),
        (spoilt(param_groups=lambda s: [{**g, "momentum": 1} for g in s["param_groups"]]), r"\] has 'momentum', which"),
        (
            spoilt(param_groups=lambda s: [{**g, "params": [0, 0]} for g in s["param_groups"]]),
            r"a parameter twice: \[0, 0",
        ),
        (spoilt(schedule=lambda s: 3), "it has 'schedule', which this optimiser has not"),
    ],
)
def test_a_malformed_state_of_an_optimizer(spoil, text):
    """What it is instead is said, and nothing changes."""
    step = trained(torch.optim.Adam)
    before = everything(step)
    with pytest.raises(ValueError, match=text):
        step.load_state_dict(spoil(trained(torch.optim.Adam, 1).state_dict()))
    assert same(everything(step), before)


def test_the_state_of_another_class():
    """All that the one has and the other lacks is named."""
    step = trained(lambda ps: torch.optim.SGD(ps, 0.1))
    with pytest.raises(
        ValueError, match=r"no 'momentum'; .*no 'dampening'; .*has 'betas', which this optimiser has not"
    ):
        step.load_state_dict(trained(torch.optim.Adam).state_dict())


def test_what_old_and_scheduled_states_have():
    """A state of an older torch lacks options that torch fills in, and a schedule's entries come and go."""
    old = copy.deepcopy(trained(torch.optim.Adam, 1).state_dict())
    del old["optimizer"]["state"][4]  # of what had no gradient, which torch does not list
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
