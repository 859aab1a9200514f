"""A machine with one device: the programs of one network, and of several threads, take turns on it."""

from __future__ import annotations

import gc
import runpy
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Identity(), nn.Linear(3, 2), sc.LIF(threshold=0.1, repeat=4, backend="ipu"))


def trainer(net, **keywords):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    return sc.training_model(net, sc.losses.ce_count, optimizer, backend="ipu", **keywords)


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(4, 3, generator=generator), torch.tensor([0, 1, 1, 0])


class TestTurns:
    """``training_model`` and ``inference_model`` share the device."""

    def test_trains_on_as_if_nothing_had_been(self):
        """Predicting between two updates changes neither weights nor the optimiser's state."""
        net, alone = network(), network()
        step, predict = trainer(net), sc.inference_model(net, backend="ipu")
        for _ in range(3):
            step(*batch())
            predict(batch()[0])
            assert not step.executor.isAttachedToDevice()
        step.destroy(), predict.destroy()
        plain = trainer(alone)
        for _ in range(3):
            plain(*batch())
        plain.destroy()
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), alone.parameters()))

    def test_checkpoint_while_detached(self):
        """``state_dict`` has the optimiser's state, whoever holds the device."""
        net = network()
        step, predict = trainer(net), sc.inference_model(net, backend="ipu")
        step(*batch())
        attached = step.state_dict()["optimizer"]["ipu_state"]
        predict(batch()[0])
        detached = step.state_dict()["optimizer"]["ipu_state"]
        assert attached.keys() == detached.keys()
        assert attached
        assert all(torch.equal(attached[name], detached[name]) for name in attached)

    def test_weights_loaded_while_detached(self):
        """They are what the next update begins with."""
        net, other = network(), network()
        step, predict = trainer(net), sc.inference_model(net, backend="ipu")
        step(*batch())
        predict(batch()[0])
        net.load_state_dict(other.state_dict())
        _, loss = step(*batch())
        with sc.use_backend("ipu"):
            assert torch.allclose(loss, sc.losses.ce_count(other(batch()[0]), batch()[1]))

    def test_devices_of_their_own(self):
        """With ``useIpuId`` on both neither lets go."""
        net = network()
        step = trainer(net, options=poptorch.Options().useIpuId(0))
        predict = sc.inference_model(net, backend="ipu", options=poptorch.Options().useIpuId(1))
        step(*batch())
        predict(batch()[0])
        assert step.executor.isAttachedToDevice()
        assert predict.executor.isAttachedToDevice()


class Calling(nn.Module):
    """Hands its input on, and calls a function when it is compiled."""

    def __init__(self, run):
        super().__init__()
        self.run = [run]  # no submodule

    def forward(self, x):
        for run in self.run:
            run()
        return x


class TestThreads:
    """Calls of several threads wait for each other, as PopTorch needs it."""

    def test_many_threads_take_turns(self):
        """Steps of four networks on four threads end with the weights that they have alone."""
        steps = [trainer(network()) for _ in range(4)]
        errors = []

        def train(step):
            try:
                for _ in range(3):
                    step(*batch())
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=train, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        alone = trainer(network())
        train(alone)
        for step in steps:
            assert all(torch.equal(a, b) for a, b in zip(step.net.parameters(), alone.net.parameters()))

    def test_dropped_while_another_is_compiled(self):
        """A step that is collected meanwhile is ended afterwards: its weights are read, and the network is free."""
        net = network()
        kept = [trainer(net)]
        kept[0](*batch())
        wrapped, seen = type(net[1].weight), []

        def drop():
            kept.clear()
            gc.collect()
            seen.append(type(net[1].weight) is wrapped)

        sc.inference_model(nn.Sequential(Calling(drop), nn.Linear(3, 2)), backend="ipu")(torch.ones(1, 3))
        assert seen == [True]
        assert type(net[1].weight) is nn.Parameter
        alone = trainer(network())
        alone(*batch())
        alone.destroy()
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), alone.net.parameters()))


def test_the_example(monkeypatch, capsys, tmp_path):
    """``examples/mnist_ipu.py`` trains and evaluates on a machine with one device."""
    monkeypatch.setenv("SPIKECORE_BACKEND", "ipu")
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    monkeypatch.setattr(sys, "argv", ["mnist_ipu.py", "--epochs", "1", "--batch-size", "360", "--out", str(tmp_path)])
    example = runpy.run_path(str(examples / "mnist_ipu.py"))
    example["main"].__globals__["num_steps"] = 2
    example["main"]()
    assert "ipu on ipu" in capsys.readouterr().out
