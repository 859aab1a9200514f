"""The text of a program: names, sizes, and that it is the same each time."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import spikecore as sc
from c_programs import SPIKES, differing, lif, on_grid, spikes
from spikecore_chips.quant import Format


def test_the_same_text_each_time(tmp_path: Path) -> None:
    """Two exports write the same bytes, and leave the network as it was."""
    net, x = on_grid(nn.Sequential(nn.Linear(6, 4), lif())), spikes(20, 6)
    before = net(x)
    for name in ("one", "two"):
        program = sc.export_c(net, x, tmp_path / name, inputs=SPIKES)
    for file in program.files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert torch.equal(net(x), before)
    assert net[1].step == "multi"


def test_sizes_and_formats(tmp_path: Path) -> None:
    """Bytes of tables and state, as they are counted by hand, and the compiler's assertion."""
    net = on_grid(nn.Sequential(nn.Linear(6, 4), lif()))
    program = sc.export_c(net, spikes(3, 6), tmp_path, inputs=SPIKES)
    # weights of a byte, biases of one, sums and states of two bytes
    assert (program.flash, program.memory) == (24 + 4, 4 * 2 + 4 * 2)
    assert (program.inputs, program.outputs) == (SPIKES, Format(0, 0, 1))
    assert program.files[:2] == ("network.h", "network.c")
    assert differing(tmp_path)[0] == 0


def test_memory_is_used_again(tmp_path: Path) -> None:
    """A chain of layers needs the arrays of two neighbours, however long it is."""
    sizes = []
    for depth in (2, 6):
        net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(depth)], nn.Linear(16, 1)).eval()
        sizes.append(sc.export_c(net, spikes(3, 16), tmp_path, dtype="float32").memory)
    assert sizes == [2 * 16 * 4] * 2
    assert differing(tmp_path)[0] == 0
