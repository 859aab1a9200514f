"""The recorder of a run: calls of layers and neurons, what is kept of them, and edits."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.inspect.record import Call, record

ALWAYS = "always_call" in inspect.signature(nn.Module.register_forward_hook).parameters


class Looped(nn.Module):
    """Linear layer and neuron, called for each step; the neuron once more by ``run``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lif = nn.Linear(3, 4), sc.LIF(step="single", backend="torch")

    def forward(self, x: Tensor) -> Tensor:
        for step in x:
            self.lif(self.linear(step))
        y: Tensor = self.lif.run(self.linear(x))[0]
        return y


def test_calls_are_recorded_in_the_order_in_which_they_end() -> None:
    """Names, numbers and modes; a neuron that is watched is seen in ``run``, too; tensors are kept as asked for."""
    net, x = Looped(), torch.rand(2, 5, 3)
    with record(net, states=("v",)) as run:
        y = net(x)
    seen = [(call.name, call.number, call.step) for call in run.calls]
    step = [[("linear", k, ""), ("lif", k, "single")] for k in (1, 2)]
    assert seen == [*step[0], *step[1], ("linear", 3, ""), ("lif", 3, "multi"), ("", 1, "")]
    assert run.calls[-1].inputs == (x,)
    assert run.calls[-1].outputs[0] is y
    assert run.calls[0].output is run.calls[1].inputs[0]
    assert torch.equal(run.calls[-2].states["v"], net.lif.run(net.linear(x), record=("v",))[2]["v"])
    assert [call.states["v"].shape for call in run.calls if call.name == "lif"] == [(1, 5, 4), (1, 5, 4), (2, 5, 4)]
    with record(net, layers=[("lif", net.lif)]) as run:
        net(x)
    assert [call.name for call in run.calls] == ["lif", "lif"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_what_ends_is_given_is_not_kept() -> None:
    """Functions get every call with its tensors, as it begins and as it ends; T and B where they are one dimension."""
    net = nn.Sequential(sc.layers.TimeBatched(nn.Linear(3, 4), nn.ReLU()), nn.Identity())
    began: List[Call] = []
    ended: List[Call] = []
    with record(net, begins=began.append, ends=ended.append) as run:
        y = net(torch.rand(6, 5, 3))
    assert run.calls == []
    assert [call.name for call in began][:3] == ["", "0", "0.module"]
    assert all(call.output is None for call in began)
    assert ended[-1].output is y
    assert {call.name: call.folded for call in ended if "module." in call.name} == {
        "0.module.0": (6, 5),
        "0.module.1": (6, 5),
    }
    assert {call.folded for call in ended if "module" not in call.name} == {(0, 0)}


def test_edits_take_the_place_of_inputs_and_outputs() -> None:
    """Those of the layers that are named; without ``edits`` a result is ignored."""
    net, x = nn.Sequential(nn.Identity(), nn.ReLU()), torch.tensor([-1.0, 2.0])

    def doubled(call: Call) -> Any:
        return [2 * value for value in call.inputs] if call.output is None else call.output + 1.0

    for edits, wanted in ((True, [1.0, 5.0]), (False, [0.0, 2.0])):
        with record(net, layers=[("1", net[1])], begins=doubled, ends=doubled, edits=edits):
            assert net(x).tolist() == wanted


@pytest.mark.parametrize(
    "layer", [sc.LIF(backend="torch"), sc.Recurrent(sc.LIF(), nn.Linear(3, 3)), sc.Delay(nn.Linear(3, 3), 2)], ids=type
)
def test_edits_of_run_are_those_of_a_call(layer: Any) -> None:
    """A neuron that is called by ``run`` gets the inputs, and its caller the output, that a call would have."""

    class Runs(nn.Module):
        def __init__(self, by_run: bool) -> None:
            super().__init__()
            self.layer, self.by_run = layer, by_run

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer.run(x)[0] if self.by_run else self.layer(x)
            return y

    def changed(call: Call) -> Any:
        return [3 * value for value in call.inputs] if call.output is None else call.output + 0.5

    x, seen = torch.rand(4, 2, 3), {}
    wanted = layer(3 * x) + 0.5
    for by_run in (False, True):
        net, named = Runs(by_run), [("layer", layer)]
        with record(net, layers=named, neurons=named, begins=changed, ends=changed, edits=True):
            assert torch.equal(net(x), wanted)
        with record(net, layers=named, neurons=named, begins=changed) as run:
            seen[by_run] = net(x)
        assert run.calls[0].inputs == (x,)
    assert torch.equal(seen[True], seen[False])


def test_a_layer_that_raises_leaves_no_call_open() -> None:
    """A network may catch its error."""

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.identity = nn.Linear(3, 3), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.linear(x)  # type: ignore[no-any-return]  # a tensor
            except RuntimeError:
                return self.identity(x)  # type: ignore[no-any-return]  # a tensor

    net = Catches()
    with record(net) as run:
        net(torch.rand(2, 4))
        assert run.current is None
    assert [call.name for call in run.calls] == ["identity", ""]


def test_run_that_raises_leaves_no_call_open() -> None:
    """The next call of a watched neuron has its own inputs."""

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif = sc.LIF(backend="torch")

        def forward(self, x: Tensor) -> Any:
            with suppress(TypeError):
                self.lif.run(x.long())
            return self.lif.run(x)[0]

    net, x = Catches(), torch.rand(3, 2, 4)
    with record(net, states=("v",)) as run:
        net(x)
    assert [call.name for call in run.calls] == ["lif", ""]
    assert run.calls[0].inputs == (x,)


@pytest.mark.skipif(not ALWAYS, reason="torch calls no hook where forward raised before 2.1")
def test_a_call_that_raises_ends_at_once() -> None:
    """Later calls are not within it: neither for ``current``, nor for T and B of ``TimeBatched``."""
    net = nn.ModuleDict({"timed": sc.layers.TimeBatched(nn.Linear(3, 4)), "lif": sc.LIF(backend="torch")})
    with record(net, states=("v",)) as run:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                net["timed"](torch.rand(6, 5, 4))
            with pytest.raises(TypeError, match="takes 1 input"):
                net["lif"](torch.rand(6, 5, 4), torch.rand(6, 5, 4))
            assert run.current is None
        net["lif"].run(torch.rand(6, 5, 4))
        net["lif"](torch.rand(6, 5, 4))
    assert [(call.name, call.folded, [*call.states]) for call in run.calls] == [("lif", (0, 0), ["v"])] * 2
