"""load_state_dict of a training step changes everything or nothing, and says what is missing."""

from __future__ import annotations

import copy
import signal
import sys

import pytest
import torch
from torch import nn

import spikecore as sc
from restoring import everything, same, trained, without
from spikecore.training import _restore as restore


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
        (lambda s: without(s, "optimizer", "param_groups"), ValueError, r"this Adam: it has no 'param_groups'\. Make"),
        (lambda s: {**s, "optimizer": [1]}, ValueError, r"state\['optimizer'\] is a list, and no dict"),
        (lambda s: {**s, "net": 3}, ValueError, r"state\['net'\] is an int, and no dict"),
        (lambda s: without(s, "net", "2.bias"), RuntimeError, r'Missing key.*"2.bias"'),
        (lambda s: {**s, "net": {**s["net"], "2.bias": torch.zeros(7)}}, RuntimeError, "size mismatch for 2.bias"),
        (lambda s: {**s, "net": {**s["net"], "9.bias": torch.zeros(7)}}, RuntimeError, r'Unexpected key.*"9.bias"'),
        (lambda s: {**s, "scaler": {}}, ValueError, r"state\['scaler'\] has no 'scale': it has scale\. Nothing was"),
        (lambda s: {**s, "scaler": {"scale": 1.0, "x": 2}}, ValueError, "has 'x', which this scaler has not"),
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
    with pytest.raises(ValueError, match=r"has exp_avg of shape \[5, 4\] for parameter 0, where that is \[6, 4\]"):
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


class Clones(torch.utils._python_dispatch.TorchDispatchMode):
    """The sizes of all tensors that are copied."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.clone.default:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fits", [True, False])
def test_a_network_is_loaded_without_a_copy(fits):
    """Of weights that torch alone loads none are kept twice, and one that does not fit changes nothing all the same."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), sc.LIF(torch.full((30,), 2.0), learn=("tau",)), sc.LIF())
    step = sc.training_model(net, lambda out, _: out.sum(), torch.optim.SGD(net.parameters(), 0.1))
    state = copy.deepcopy(step.state_dict())
    for value in state["net"].values():
        value.add_(1)
    state["net"]["3.tau"] = torch.tensor(5.0)
    before = everything(step)
    with Clones() as clones:
        if fits:
            step.load_state_dict(state)
        else:
            state["net"]["2.tau"].fill_(-1.0)
            with pytest.raises(RuntimeError, match=r"2\.tau holds -1"):
                step.load_state_dict(state)
    assert max(clones.sizes, default=0) <= 1
    assert same(everything(step), before) != fits
    assert net[3].tau == (5.0 if fits else 2.0)
    if fits:
        assert all(torch.equal(value, state["net"][name]) for name, value in net.state_dict().items())


class Own(nn.Linear):
    """A layer that loads in a way of its own, so that the network is put back from a copy."""

    def _load_from_state_dict(self, *args):
        super()._load_from_state_dict(*args)


@pytest.mark.parametrize("last", [nn.Linear, Own])
def test_a_graph_of_before_a_refused_state(last):
    """It can still be run backwards: nothing was loaded, so nothing that it needs has changed."""
    step, state = made(0, last=last), made(1, last=last).state_dict()
    del state["net"]["2.bias"]
    net = step.net
    loss = net(torch.rand(5, 2, 4) * 4).sum()
    versions = [tensor._version for tensor in net.parameters()]
    with pytest.raises(RuntimeError, match="2.bias"):
        step.load_state_dict(state)
    assert [tensor._version for tensor in net.parameters()] == versions
    loss.backward()
    held = made(1, last=last).state_dict()
    loss = net(torch.rand(5, 2, 4) * 4).sum()
    step.load_state_dict(held)  # this one is loaded
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_network_is_whole_while_it_is_loaded():
    """No dict of a module is ever empty meanwhile: another thread may be calling the network."""
    step, other = made(0), made(1)
    live = [held for module in step.net.modules() for held in (vars(module), module._parameters, module._buffers)]
    emptied = []

    def watch(frame, event, arg):
        if event == "c_call" and arg.__name__ == "clear" and any(arg.__self__ is held for held in live):
            emptied.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        step.load_state_dict(other.state_dict())
    finally:
        sys.setprofile(None)
    assert emptied == []
    assert same(everything(step)[:-3], everything(other)[:-3])


@pytest.mark.parametrize(("a", "b"), [("a", "b"), (torch.ones(2), torch.ones(2))], ids=["names", "tensors"])
@pytest.mark.parametrize("change", ["set", "new", "gone", "moved"])
def test_a_dict_is_put_back(change, a, b):
    """Values, names and their order, whatever happened to it meanwhile; an optimiser's state has tensors as names."""
    held = {a: 1, b: 2}
    put_back = restore._put_back(held, dict(held))
    if change == "set":
        held[a] = 3
    elif change == "new":
        held["c"] = 3
    else:
        del held[a]
        if change == "moved":
            held[a] = 1
    put_back()
    assert [*map(id, held)] == [id(a), id(b)]
    assert [*held.values()] == [1, 2]


def test_an_interrupt_while_it_is_loaded(monkeypatch):
    """Ctrl-C comes up when the state is whole: all of it is loaded."""
    step, other = made(0), made(1)
    load = step.optimizer.load_state_dict

    def pressed(state):
        signal.raise_signal(signal.SIGINT)
        load(state)

    monkeypatch.setattr(step.optimizer, "load_state_dict", pressed)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            step.load_state_dict(copy.deepcopy(other.state_dict()))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert same(everything(step)[:-3], everything(other)[:-3])


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
    with pytest.raises(ValueError, match=r"does not fit this Wrapping: it has no 'inner'\. Make"):
        step.load_state_dict(without(state, "optimizer", "inner"))
    step.load_state_dict(state)
    for one in (step, other):
        one(torch.ones(5, 2, 4) * 4, torch.tensor([0, 1]))
    assert all(torch.equal(a, b) for a, b in zip(step.net.parameters(), other.net.parameters()))
