"""Networks that cannot be written as Verilog are refused by name, with the way out, before anything is written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import refusals
import spikecore as sc
from c_programs import SPIKES, lif, on_grid, spikes
from spikecore_chips.quant import Format, fixed


def exported(net: Any, example: Any = None, **options: Any) -> None:
    """An export, which leaves nothing where it is refused."""
    with tempfile.TemporaryDirectory() as place:
        try:
            x = spikes(4, 6) if example is None else example
            sc.export_verilog(net, x, Path(place) / "folder", **{"inputs": SPIKES, **options})
        finally:
            assert not (Path(place) / "folder").exists()


test_refused = refusals.table(__file__, globals(), nn, torch, lif, on_grid, Format, fixed)
