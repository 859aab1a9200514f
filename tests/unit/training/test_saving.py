"""Checkpoint files are whole or not there; load_state_dict of a step changes everything or nothing."""

from __future__ import annotations

import copy
import errno
import os
import pathlib
import signal

import numpy as np
import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
import warm

SETTINGS = {"epochs": 4, "rate": 1e-3, "data": "digits"}


def test_what_is_written_is_read(tmp_path):
    """Every part comes back by name, with every bit; nothing else is left in the folder."""
    weights = {"w": torch.randn(3, dtype=torch.float64), "half": torch.randn(2).half()}
    sc.save_checkpoint(
        tmp_path / "run.pt", SETTINGS, net=weights, epoch=3, curves=[0.5, 0.25], random=torch.get_rng_state()
    )
    found = sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)
    assert sorted(found) == ["curves", "epoch", "net", "random"]
    assert all(torch.equal(found["net"][name], value) for name, value in weights.items())
    assert (found["epoch"], found["curves"]) == (3, [0.5, 0.25])
    assert torch.equal(found["random"], torch.get_rng_state())
    assert os.listdir(str(tmp_path)) == ["run.pt"]


def test_other_settings(tmp_path):
    """Each setting that differs, is missing or is new is named with both values."""
    sc.save_checkpoint(tmp_path / "run.pt", {**SETTINGS, "old": 1}, epoch=1)
    text = r"with epochs=4 \(now 5\), old=1 \(now 'nothing'\), new='nothing' \(now 2\); give the same, or begin"
    with pytest.raises(ValueError, match=text):
        sc.load_checkpoint(tmp_path / "run.pt", {**SETTINGS, "epochs": 5, "new": 2})


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off"])
def test_no_checkpoint(tmp_path, content):
    """A file of something else says so."""
    (tmp_path / "run.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"run.pt is no checkpoint of sc.save_checkpoint"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)


class Attack:
    """Makes a file, where a pickle runs code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_runs_no_code(tmp_path, zipped):
    """In today's format, and in torch's older one, which is not even looked into."""
    torch.save(
        {"settings": SETTINGS, "epoch": Attack(tmp_path / "ran")},
        str(tmp_path / "run.pt"),
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(ValueError, match="UnpicklingError" if zipped else "it is no zip file"):
        sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)
    assert os.listdir(str(tmp_path)) == ["run.pt"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are those of POSIX")
def test_a_private_file_is_never_public(tmp_path, monkeypatch):
    """The file that takes its place has no more permissions while it is written."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    path.chmod(0o640)
    modes, sync = set(), os.fsync

    def look(handle):
        modes.add(os.fstat(handle).st_mode & 0o777)
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    sc.save_checkpoint(path, SETTINGS, epoch=2)
    assert modes == {0o600}
    assert path.stat().st_mode & 0o777 == 0o640
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 2


def test_a_full_disk_is_an_error_of_the_file(tmp_path):
    """OSError with the path, and the old file stays: here a limit of the process stands for the disk."""
    resource = pytest.importorskip("resource", reason="limits of files are those of POSIX")
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"run\.pt") as raised:
            sc.save_checkpoint(path, SETTINGS, weights=torch.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert sc.load_checkpoint(path, SETTINGS) == {"epoch": 1}
    assert os.listdir(str(tmp_path)) == ["run.pt"]


def test_an_exception_leaves_the_old_file(tmp_path):
    """A state that cannot be written leaves the checkpoint before it, and nothing half done."""
    sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=1)
    with pytest.raises(TypeError, match=r"sc.load_checkpoint could not read this back \(.*lambda"):
        sc.save_checkpoint(tmp_path / "run.pt", SETTINGS, epoch=lambda: 2)
    assert sc.load_checkpoint(tmp_path / "run.pt", SETTINGS)["epoch"] == 1
    assert os.listdir(str(tmp_path)) == ["run.pt"]


def test_a_kill_leaves_a_whole_file(tmp_path):
    """Killed just before the file is replaced."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    code = (
        f"import os, signal, torch, spikecore as sc\n"
        f"os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sc.save_checkpoint({str(path)!r}, {SETTINGS!r}, epoch=2)\n"
    )
    done = warm.run("-c", code)
    assert done.returncode == -signal.SIGKILL
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float64(0.5), r"numpy.*; give numbers, texts and tensors"),
        (np.zeros(2), r"numpy.*of numpy value\.item\(\) or torch\.from_numpy\(value\)"),
        (pathlib.Path("data"), r"pathlib.*str\(value\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_read_back_takes_no_place(tmp_path, value, text):
    """The error names the type, in a part and in a setting; the old file stays."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, SETTINGS, epoch=1)
    for settings, part in ((SETTINGS, {"curves": [1, (2, value)]}), ({**SETTINGS, "rate": value}, 2)):
        with pytest.raises(TypeError, match=rf"(?s)could not read this back.*{text}"):
            sc.save_checkpoint(path, settings, best=part)
    assert sc.load_checkpoint(path, SETTINGS)["epoch"] == 1
    assert os.listdir(str(tmp_path)) == ["run.pt"]


def test_no_such_place(tmp_path):
    """A missing folder, or a folder in the place of the file, is named, and no file that nobody asked for."""
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*/none for the checkpoint: '.*/none/run\.pt'$"):
        sc.save_checkpoint(tmp_path / "none" / "run.pt", SETTINGS, epoch=1)
    with pytest.raises(IsADirectoryError, match=r"takes the place of a file, and this is none: '.*'$") as caught:
        sc.save_checkpoint(tmp_path, SETTINGS, epoch=1)
    assert caught.value.filename == str(tmp_path)


def test_a_part_that_is_missing(tmp_path):
    """Parts that the caller asks for and the file lacks are an error that names all of them, and what there is."""
    path = tmp_path / "run.pt"
    sc.save_checkpoint(path, {}, epoch=1, step={})
    assert sc.load_checkpoint(path, {}, ("epoch",)) == {"epoch": 1, "step": {}}
    with pytest.raises(
        ValueError, match=r"run.pt has no 'losses' and no 'order', but 'epoch', 'step': another version"
    ):
        sc.load_checkpoint(path, {}, ("losses", "epoch", "order"))


class Scaler:
    """A scaler as torch's, with a scale that is changed in place."""

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


def everything(step):
    """All that a step holds, as a flat list of what can be compared."""
    state = step.state_dict()
    optimizer = state["optimizer"]
    found = [*state["net"].values(), *(v for one in optimizer["state"].values() for v in one.values())]
    found += [value for group in optimizer["param_groups"] for value in group.values()]
    found += [module.tau for module in step.net if isinstance(module, sc.LIF)]
    return copy.deepcopy([*found, state.get("scaler")])


def same(a, b):
    """True if two such lists are equal to the bit."""
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


def trained(build, seed=0, steps=2):
    """A step with two groups of parameters, one of them without a gradient."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), sc.LIF(), nn.Linear(6, 3), sc.LIF())
    net.register_parameter("unused", nn.Parameter(torch.ones(2)))
    optimizer = build([{"params": net[0].parameters()}, {"params": [*net[2].parameters(), net.unused]}])
    step = sc.training_model(net, sc.losses.ce_count, optimizer)
    for i in range(steps):
        generator = torch.Generator().manual_seed(10 * seed + i)
        step(torch.rand(5, 2, 4, generator=generator) * 4, torch.tensor([0, 1]))
    return step


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
        (lambda s: without(s, "scaler"), ValueError, "state has no 'scaler'.*Nothing was loaded"),
        (lambda s: {**s, "epoch": 3}, ValueError, "has 'epoch', which this step has not"),
        (lambda s: s["net"], ValueError, "has no 'net' and has no 'optimizer' and has no 'scaler' and has '0.wei"),
        (lambda s: [s], TypeError, "is a list; give what state_dict.. of a step returned"),
        (lambda s: without(s, "optimizer", "param_groups"), ValueError, r"this Adam: it has no 'param_groups'\. Make"),
        (lambda s: {**s, "net": 3}, ValueError, r"state\['net'\] is an int, and no dict"),
        (lambda s: without(s, "net", "2.bias"), RuntimeError, r'Missing key.*"2.bias"'),
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


def test_another_optimizer():
    """Groups of other sizes, and of another class, are refused."""
    step, other = made(0), made(1).state_dict()
    before = everything(step)
    fewer = copy.deepcopy(other)
    fewer["optimizer"]["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match=r"does not fit this Adam: .*doesn't match the size.*Nothing was loaded"):
        step.load_state_dict(fewer)
    of_sgd = trained(lambda ps: torch.optim.SGD(list(ps[0]["params"]) + ps[1]["params"], 0.1)).state_dict()["optimizer"]
    missing = r"its groups have no 'betas' and no 'eps'|it has no 'step'"  # torch 2.0 looks for the step first
    with pytest.raises(ValueError, match=f"not fit this Adam: ({missing})"):
        step.load_state_dict({**other, "optimizer": of_sgd})
    assert same(everything(step), before)


OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1),
    "Adam": torch.optim.Adam,
    "RMSprop with all": lambda ps: torch.optim.RMSprop(ps, momentum=0.9, centered=True),
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


test_refused = refusals.table(__file__, globals())
