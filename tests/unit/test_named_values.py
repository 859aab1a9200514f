"""Values that a definition names: recorded by run, monitor and sc.record, and differentiated by regularisers."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from spikecore.lang import TraceError


class Stated(sc.LIF):
    """LIF whose potential before the spike is a state."""

    states = {"v": "v_reset", "before": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = self.charge(x, s, p)
        z = self.spike(h - p.threshold)
        return z, {"v": self.after_spike(h, z, p), "before": h}


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2


# -- regularisers, each a line


def rmp(h: Tensor) -> Tensor:
    """RMP-Loss (Guo et al., ICCV 2023): how far potentials are from 0 or the threshold, the nearer of them."""
    return torch.minimum(h.abs(), (1.0 - h).abs()).mean()


def im(h: Tensor) -> Tensor:
    """IM-Loss (Guo et al., NeurIPS 2022): how far the mean potential is from the threshold."""
    return (h.mean() - 1.0).square()


def block(neuron: Callable[[], sc.Neuron]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(sc.layers.MSBlock(3, 4, neuron, stride=2), neuron())


@pytest.mark.parametrize("penalty", [rmp, im])
def test_regularisers_of_potentials_in_a_block(penalty: Callable[[Tensor], Tensor]) -> None:
    """Value and gradients are those of potentials that are states of a neuron written for it."""
    x, totals, grads = images(4, 2, 3, 6, 6), [], []
    for kind, name in ((sc.LIF, "h"), (Stated, "before")):
        net = block(lambda kind=kind: kind(backend="torch"))  # type: ignore[misc]  # bound now
        with sc.record(net, name) as seen:
            out = net(x)
            values = seen.take()
            total = out.sum() + sum(penalty(h) for h in values.values())
        assert len(values) == 3
        totals.append(total)
        grads.append(torch.autograd.grad(total, [*net.parameters()]))
    assert torch.equal(*totals)
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    (without,) = torch.autograd.grad(net(x).sum(), [next(net.parameters())])
    assert not torch.equal(without, grads[0][0])


def test_a_training_step_has_a_regulariser() -> None:
    """``take`` gives the values of each step, and nothing adds up."""
    net = block(lambda: sc.LIF(backend="torch"))
    x, sizes = images(4, 2, 3, 6, 6), []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        values = seen.take()
        sizes.append({layer: tuple(h.shape[:2]) for layer, h in values.items()})
        return (outputs - targets).square().mean() + sum(rmp(h) for h in values.values())

    before = copy.deepcopy(net.state_dict())
    with sc.record(net, "h") as seen:
        step = sc.training_model(net, loss, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(2):
            step(x, torch.zeros(4, 2, 4, 3, 3))
    assert sizes == [dict.fromkeys(seen.layers, (4, 2))] * 2
    assert any(not torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert seen.take() == {}


def test_calls_add_up_until_they_are_taken() -> None:
    """Of single steps, and of several calls, one after the other."""
    net = nn.Sequential(sc.LIF(step="single"), sc.LI(step="single"))
    x = images(3, 2, 5)
    right = sc.LIF().run(x, record=("h",))[2]["h"]
    with sc.record(net, "h") as seen:
        for step in x:
            net(step)
        assert seen.layers == ("0",)
        assert torch.equal(seen.take()["0"], right)
    net(x[0])
    assert seen.take() == {}


def test_batches_of_two_sizes_are_taken_one_by_one() -> None:
    """Together they are refused with the layer and the shapes."""
    net = nn.Sequential(nn.Linear(3, 4), sc.LIF())
    with sc.record(net, "h") as seen:
        for size in (2, 3):
            net(torch.rand(5, size, 3))
        said = r"^record: calls of layer '1' recorded shapes \[5, 2, 4\] and \[5, 3, 4\], .* call take\(\) after each"
        with pytest.raises(ValueError, match=said):
            seen.take()
        for size in (2, 3):
            net(torch.rand(5, size, 3))
            assert seen.take()["1"].shape == (5, size, 4)


def test_what_is_not_asked_for_costs_nothing() -> None:
    """Outputs, states and the text of kernels are those of the same equations without a name."""

    class Plain(sc.LIF):
        def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
            h = self.charge(x, s, p)
            z = self.spike(h - p.threshold)
            return z, {"v": self.after_spike(h, z, p)}

    ours, plain = sc.LIF().program, Plain().program
    assert (ours.outputs, ours.next, ours.states) == (plain.outputs, plain.next, plain.states)
    assert tuple(sc.LIF().run(images(4, 3))[1]) == ("v",)
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert ours.named == pickle.loads(pickle.dumps(ours)).named


def test_a_definition_by_hand_gets_its_value() -> None:
    x = images(3)
    assert sc.ops.named("h", x) is x
    assert sc.ops.named("h", 1.0) == 1.0


def neuron(write: Callable[[Any, Any], Any], **declared: Any) -> sc.Neuron:
    def dynamics(self: Any, x: Any, s: Any, p: Any) -> Any:
        return x + s.v, {"v": s.v + write(x, p)}

    kind = type("Own", (sc.Neuron,), {"states": {"v": 0.0}, "dynamics": dynamics, **declared})
    made: sc.Neuron = kind()
    return made


test_refused = refusals.table(__file__, globals(), TraceError, neuron)
