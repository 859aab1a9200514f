"""A machine with one device: two executors cannot hold it, and a forked process finds its lock free."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
from poptorch_emulator import devices
from poptorch_emulator.devices import Lock


def inference(net=None, options=None):
    executor = poptorch.inferenceModel(nn.Linear(3, 2) if net is None else net, options)
    executor.compile(torch.ones(1, 3))
    return executor


class TestMachine:
    """PopTorch's ``Failed to acquire``, while the device is held."""

    def test_second_executor(self):
        """One device: the second model is not compiled, and is once the first lets go."""
        first = inference()
        second = poptorch.inferenceModel(nn.Linear(3, 2))
        with pytest.raises(poptorch.Error, match=r"Failed to acquire 1 IPU\(s\)[\s\S]*detachFromDevice"):
            second.compile(torch.ones(1, 3))
        assert not second.isCompiled()
        first.detachFromDevice()
        second.compile(torch.ones(1, 3))
        with pytest.raises(poptorch.Error, match="Failed to acquire"):
            first.attachToDevice()
        assert not first.isAttachedToDevice()

    def test_lost_device(self):
        """An executor whose attach failed can only be compiled anew: in PopTorch it has a null pointer for a device."""
        first = inference()
        first.detachFromDevice()
        second = inference()
        with pytest.raises(poptorch.Error, match="Failed to acquire"):
            first.attachToDevice()
        second.destroy()
        with pytest.raises(poptorch.Error, match=r"found no device.*Call destroy\(\) and compile again"):
            first.attachToDevice()
        with pytest.raises(poptorch.Error, match=r"found no device"):
            first(torch.ones(1, 3))
        first.destroy()
        first(torch.ones(1, 3))

    def test_dropped(self):
        """An executor that is gone holds nothing."""
        first = inference()
        del first
        inference()

    def test_several_devices(self, monkeypatch):
        """One executor for each device."""
        monkeypatch.setenv(devices.VARIABLE, "2")
        held = [inference(), inference()]
        with pytest.raises(poptorch.Error, match="has 2 device"):
            inference()
        assert all(executor.isAttachedToDevice() for executor in held)

    def test_number_of_devices(self, monkeypatch):
        """It is a number of 1 or above."""
        monkeypatch.setenv(devices.VARIABLE, "0")
        with pytest.raises(poptorch.Error, match=f"{devices.VARIABLE}=0 must be a number"):
            inference()

    def test_named_devices(self):
        """``useIpuId`` names one, which one executor holds."""
        held = [inference(options=poptorch.Options().useIpuId(number)) for number in (0, 1)]
        with pytest.raises(poptorch.Error, match="Failed to acquire device Id 1"):
            inference(options=poptorch.Options().useIpuId(1))
        assert len(held) == 2

    def test_simulator_and_on_demand(self):
        """Graphcore's simulator is no device; ``OnDemand`` takes one at the first call."""
        held = inference()
        inference(options=poptorch.Options().useIpuModel(True))
        late = inference(options=poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand))
        with pytest.raises(poptorch.Error, match="Failed to acquire"):
            late(torch.ones(1, 3))
        held.destroy()
        late.destroy()
        late(torch.ones(1, 3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_is_free_in_a_child():
    """A child finds the lock free that another thread held, and goes on with one that its own thread held."""
    others, mine, holds, ends = Lock(), Lock(), threading.Event(), threading.Event()

    def hold():
        with others:
            holds.set()
            ends.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(60)
    with mine:
        child = os.fork()
        if not child:
            os._exit(0 if others._lock.acquire(blocking=False) and mine._lock.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    ends.set()
    thread.join()
    assert status == 0
