"""Capabilities on one device type and not on another: calls, automatic choice, loading and the suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import spikecore as sc
from plain_loop import EVERYTHING, Plain
from spikecore.backend import Capabilities, Unsupported
from spikecore.context import COMPILES
from spikecore.testing import check_backend, installed


class Partial(Plain):
    """Everything, but no recorded states on the CPU."""

    name = "partial"

    def capabilities_on(self, device_type: str) -> Capabilities:
        """No record on the CPU."""
        return replace(EVERYTHING, record=False) if device_type == "cpu" else EVERYTHING


def test_a_call_is_refused_on_the_device_that_lacks_it() -> None:
    """A capability of other devices only raises an error, whose sentence names the device."""
    with installed(Partial):
        neuron = sc.LIF(backend="partial")
        assert neuron(torch.ones(3, 2)).shape == (3, 2)
        with pytest.raises(Unsupported, match="'partial' .from argument. does not support record on cpu, which"):
            neuron.run(torch.ones(3, 2), record=("v",))


def test_the_suite_asks_for_the_device_under_test() -> None:
    """A case of a capability that this device lacks must be refused, and is counted as unsupported."""
    with installed(Partial):
        results = check_backend("partial", cases=["record/clif"])
    assert {result.outcome for result in results} == {"unsupported"}
    assert {result.lacking for result in results} == {("record",)}


@pytest.mark.skipif(not COMPILES, reason="torch says that it compiles from 2.3 on")
class TestCompiling:
    """torch.compile on a backend that does not declare ``torch_compile``: the plain loop."""

    def test_a_whole_graph_is_refused_by_name(self) -> None:
        """Before anything runs, in the sentence of every missing capability; torch's error was of a hash function."""
        with installed(Plain) as name:
            torch._dynamo.reset()
            net = torch.compile(sc.LIF(backend=name), fullgraph=True, backend="eager")
            with pytest.raises(Exception, match="'plain' .from argument. does not support torch_compile"):
                net(torch.ones(3, 2))

    # torch reads .grad of what a broken graph hands on, and warns of that itself
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
    @pytest.mark.parametrize("step", ["multi", "single"])
    def test_another_graph_breaks_at_the_neuron(self, step: str) -> None:
        """Values and gradients are those without torch.compile, in a network and when it is called again."""
        with installed(Plain) as name:
            torch._dynamo.reset()
            net = nn.Sequential(nn.Linear(3, 4), sc.LIF(backend=name, step=step), nn.Linear(4, 2))
            compiled, x = torch.compile(net, backend="eager"), torch.linspace(-3.0, 9.0, 24).view(4, 2, 3)
            for _ in range(2):
                found = []
                for module in (net, compiled):
                    sc.reset(net)
                    net.zero_grad()
                    out = module(x)
                    out.square().sum().backward()
                    found.append([out, *[p.grad for p in net.parameters()]])
                assert all(torch.equal(a, b) for a, b in zip(*found))


class Placing(Plain):
    """Takes only tensors that it has placed itself."""

    name = "placing"
    seen: Any = ()

    def place(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy that is remembered."""
        Placing.seen = (*Placing.seen, tensor.shape)
        return tensor.to(device).clone()


def test_the_suite_places_its_tensors_by_the_backend() -> None:
    """Inputs, states and the tensors of neurons go through place()."""
    Placing.seen = ()
    with installed(Placing):
        results = check_backend("placing", cases=["forward/lif-hard", "parameters/gradient-if-hard"])
    assert [result.outcome for result in results] == ["passed"] * 2
    assert torch.Size([]) in Placing.seen  # a learnt parameter
    assert torch.Size([12, 3, 7]) in Placing.seen
