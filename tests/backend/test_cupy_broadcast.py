"""Inputs that broadcast are read by cupy's kernels where they lie, and blocks add up their gradients."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

import pytest
import torch

import spikecore as sc
from spikecore.testing import installed
from spikecore_cupy.host import HostBackend, HostBlocks, reason
from spikecore_cupy.sums import tiling

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

T, B, C = 20, 3, 12


class Threshold(sc.Neuron):
    """A leaky neuron whose threshold is an input."""

    inputs = ("x", "threshold")
    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = s.v + (x.x - s.v) / p.tau
        z = self.spike(v - x.threshold)
        return z, {"v": sc.ops.select(z, 0.0, v)}


@pytest.fixture
def launches() -> Iterator[List[Tuple[str, Sequence[Any]]]]:
    """The text and the arguments of each launch of a backend named "seen"."""
    seen: List[Tuple[str, Sequence[Any]]] = []

    class Kernel(HostBlocks):
        def __init__(self, name: str, text: str, *more: Any) -> None:
            super().__init__(name, text, *more)
            self.text = text

        def __call__(self, blocks: int, device: int, arguments: Sequence[Any], threads: int = 0) -> None:
            seen.append((self.text, arguments))
            super().__call__(blocks, device, arguments, threads)

    backend = type("Seen", (HostBackend,), {"name": "seen", "kernel": Kernel})
    with installed(backend, devices=("cpu",)):
        yield seen


@pytest.mark.parametrize("shape", [(T, 1, C), (T,), (1, B, C)], ids=str)
def test_nothing_is_copied(launches: List[Tuple[str, Sequence[Any]]], shape: Tuple[int, ...]) -> None:
    """Both kernels get the address of the input itself, and the second one adds up what its number is read by."""
    threshold = torch.rand(shape, requires_grad=True)
    neuron, x = Threshold(backend="seen"), torch.rand(T, B, C)
    for _ in range(2):
        launches.clear()
        neuron(x, threshold).sum().backward()
        (_, forward), (text, backward) = launches
        assert threshold.data_ptr() in forward
        assert threshold.data_ptr() in backward
        assert ("tile.add" in text) == (shape != (1, B, C))


@pytest.mark.parametrize("period", [0, 4, 12, 64, 252, 4096])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_tiles_have_every_neuron(period: int, width: int, rows: int) -> None:
    """Of each number of a period all rows, and no more partial sums than there are neurons."""
    neurons = (period or 4) * rows
    tiles = tiling(width, neurons, period, 128, 4)
    across = -(-(period or neurons) // tiles.tile)
    lines = tiles.blocks // across
    assert tiles.tile % width == 0
    assert lines * (128 * width // tiles.tile) * (period or neurons) >= neurons
    assert lines * (period or neurons) == tiles.numbers["period"] <= max(neurons, period)
