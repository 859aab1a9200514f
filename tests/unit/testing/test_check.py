"""``sc.testing.check``: a neuron on every backend beside a plain loop over its dynamics."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import refusals
import spikecore as sc
from plain_loop import Loop, Plain
from spikecore.testing import check, installed


class Branched(sc.Neuron):
    """Two inputs of which one is a vector, two states of which one is a vector, two outputs."""

    inputs = {"x": sc.vector(3), "gate": None}
    states = {"b": sc.vector(3, initial="start"), "v": 0.25}
    params = {"tau": sc.vector(3, initial=(2.0, 3.0, 4.0)), "start": 0.5, "theta": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        b = s.b + (x.x - s.b) / p.tau
        h = 0.5 * s.v + sc.ops.sum(b) + b[0] * x.gate
        z = self.spike(h - p.theta)
        return (z, b[1] * h), {"b": b * 0.75, "v": sc.ops.select(z, 0.0, h)}


class Frozen(sc.Neuron):
    """Its dynamics count their own calls, which a program does not."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        self._calls = getattr(self, "_calls", 0) + 1
        v = 0.5 * s.v + self._calls * x
        return v, {"v": v}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Inputs at which neurons fire."""
    return 2.0 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype) + 0.5


X = drawn(12, 3, 5)
NOISY = sc.stochastic.EscapeNoise(learn=("rate",))
NEURONS = {
    "vectors": (Branched(learn=("tau", "theta", "start"), detach_reset=True), drawn(12, 3, 5, 3), X),
    "float64": (sc.ALIF(learn=("tau", "beta")), drawn(12, 3, 5, dtype=torch.float64)),
    "channels": (sc.LIF(torch.linspace(2.0, 5.0, 5), learn=("tau",), step="single"), X),
    "repeat": (sc.PLIF(repeat=3), X),
    "detached": (sc.SynapticLeaky(0.9, 0.8, reset_delay=False, detach_reset=True), X),
    "drawn": (NOISY, X, *NOISY.draw(X)),
    "no derivative": (sc.ILIF(), X),
}


@pytest.mark.parametrize("case", NEURONS)
def test_every_backend_is_as_the_loop(case: str) -> None:
    """Each one that is ready has a row; the neuron is left as it is."""
    neuron, *inputs = NEURONS[case]
    before = copy.deepcopy(neuron.state_dict()), repr(neuron)
    result = check(neuron, *inputs)
    dtype = str(inputs[0].dtype).partition(".")[2]
    ready = [each.name for each in sc.backends(probe=True) if each.state == "ready" and dtype in each.capabilities]
    assert [row.way for row in result.rows] == ready
    assert result.ok, result
    assert (str(neuron.state_dict()), repr(neuron)) == (str(before[0]), before[1])


@pytest.mark.parametrize("part", [0, 1])
def test_a_wrong_backend_is_named(part: int) -> None:
    """Outputs or gradients that are 1 % too large."""

    class Off(Loop):
        def forward(self, tensors: Any, record: Any) -> Any:
            first, *rest = super().forward(tensors, record)
            return [first * (1.01 if part == 0 else 1.0), *rest]

        def backward(self, tensors: Any, record: Any, grads: Any) -> Any:
            return [g if g is None or part == 0 else 1.01 * g for g in super().backward(tensors, record, grads)]

    with installed(type("Off", (Plain,), {"name": "off", "loop": Off})):
        result = check(sc.LIF(learn=("tau",)), X)
    rows = {row.way: row for row in result.rows}
    assert [row.way for row in result.rows if not row.ok] == ["off"]
    assert [rows["off"].outputs, rows["off"].gradients][1 - part] == 0.0
    assert [rows["off"].outputs, rows["off"].gradients][part] > 5e-3
    assert not result.ok
    assert result.rows[0].way in str(result)


def test_dynamics_that_depend_on_more_than_their_arguments() -> None:
    """A program has what they gave when they were traced."""
    result = check(Frozen(), X)
    assert not any(row.ok for row in result.rows)


def test_what_a_backend_does_not_support_is_said() -> None:
    """It is no fault of the neuron."""

    class Narrow(Plain):
        name = "narrow"

        def compile(self, program: Any, spec: Any) -> Any:
            raise sc.backend.Unsupported("narrow: computes no neuron")

    with installed(Narrow):
        result = check(sc.LIF(), X)
    (row,) = [row for row in result.rows if row.way == "narrow"]
    assert row.remark.startswith("not supported: ")
    assert result.ok


test_refused = refusals.table(__file__, globals())
