"""Random neurons in fixed point, and those of spikecore: C has the bits of the reference."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from c_programs import CHECKED, differing
from drawn_neurons import INPUTS, exact
from spikecore.neurons import MODELS, example
from spikecore_chips.quant import fixed

#: Random neurons of one program in C, and how many programs: 500 neurons.
TOGETHER, PROGRAMS = 50, 10


class Sum(nn.Module):
    """One output of each of some neurons, added. Their differences would cancel out only by chance."""

    def __init__(self, neurons: List[Tuple[Any, int]]) -> None:
        super().__init__()
        self.neurons = nn.ModuleList([neuron for neuron, _ in neurons])
        self.outputs = [output for _, output in neurons]

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for neuron, output in zip(self.neurons, self.outputs):
            value = neuron(x)
            total = total + (value if output < 0 else value[output])
        return total


def drawn_inputs(steps: int, neurons: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(-1024, 1024, (steps, 1, neurons), generator=generator) / 256).to(dtype)


@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize("program", range(PROGRAMS))
def test_random_neurons(program: int, tmp_path: Path) -> None:
    """Spikes and other outputs of drawn programs, in 10 to 16 bits, rounded to the nearest and down."""
    dtype = (torch.float32, torch.float64)[program % 2]
    neurons = [*islice(exact(program, dtype), TOGETHER)]
    net = Sum(neurons).eval()
    x = drawn_inputs(40, 24, dtype)
    with torch.no_grad():
        assert sum(len(neuron(x)[output].unique()) > 1 for neuron, output in neurons) > TOGETHER // 2
    sc.export_c(net, x, tmp_path, inputs=INPUTS)
    assert differing(tmp_path, "test", CHECKED) == (0, 40 * 24)


#: Neurons with functions that change from step to step, and their tables.
TABLES = {"CLIF": {"sigmoid": (-8.0, 8.0, 32)}, "EIF": {"exp": (-8.0, 8.0, 64)}}
#: Its oscillation is slow, and stays small.
CHANGED = {"BRF": {"threshold": 0.0625}}


@pytest.mark.matrix(turn=2)
@pytest.mark.parametrize(
    "name", [name for name in MODELS if len(example(name).inputs) == 1 and not example(name).vectors]
)
def test_every_neuron(name: str, tmp_path: Path) -> None:
    """A thousand steps of each neuron that spikecore has, for numbers that make it fire."""
    neuron = fixed(example(name, **CHANGED.get(name, {})), word=16, tables=TABLES.get(name, {}), dtype=torch.float64)
    x = drawn_inputs(1000, 4, torch.float64)
    net = Sum([(neuron, -1)]).eval()
    with torch.no_grad():
        assert len(neuron(x).unique()) > 1
    sc.export_c(net, x, tmp_path, inputs=INPUTS)
    assert differing(tmp_path, "test", CHECKED) == (0, 4000)
