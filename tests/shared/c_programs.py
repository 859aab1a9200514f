"""Programs that ``sc.export_c`` wrote, built and run: on this machine, on an emulated Cortex-M4, as WebAssembly."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_chips.quant import Format, fixed

#: Target of the Makefile -> the programs that it needs.
TOOLS = {
    "test": ("make", "cc"),
    "test-cortex-m4": ("make", "arm-none-eabi-gcc", "qemu-system-arm"),
    "test-wasm": ("make", "clang", "wasm-ld", "node"),
}
SPIKES = Format(0, 0, 1)
#: Overflows and shifts that C leaves undefined end the program.
CHECKED = "FLAGS=-fsanitize=undefined -fno-sanitize-recover=all"


def needs(target: str) -> None:
    """Skip where a tool of a target is missing."""
    missing = [tool for tool in TOOLS[target] if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"make {target} needs {', '.join(missing)}, which this machine does not have")


def made(folder: Path, target: str = "test", *more: str) -> subprocess.CompletedProcess[str]:
    """The output of a target of a program's Makefile."""
    needs(target)
    return subprocess.run(
        ["make", "-s", "-B", "-C", str(folder), target, *more], capture_output=True, text=True, check=False, timeout=300
    )


def differing(folder: Path, target: str = "test", *more: str) -> Tuple[int, int]:
    """Numbers of outputs that differ, and of all outputs. The program must compile without a warning and run."""
    done = made(folder, target, *more)
    # an emulator writes what a chip says to its standard error
    counts = re.search(r"(\d+) of (\d+) outputs differ", done.stdout + done.stderr)
    assert counts, done.stdout + done.stderr
    assert (done.returncode == 0) or int(counts[1]), done.stderr
    return int(counts[1]), int(counts[2])


def on_grid(net: nn.Module, bits: int = 8, seed: int = 0) -> nn.Module:
    """The network with weights and biases of so many bits, drawn so that neurons fire."""
    generator = torch.Generator().manual_seed(seed)
    frac = bits - 1
    with torch.no_grad():
        for value in (
            p for m in net.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d)) for p in m.parameters()
        ):
            size = 2.0 ** (bits - 1)
            fan = max(1, value[0].numel())
            drawn = torch.randn(value.shape, generator=generator) * (2.0 / fan**0.5 if value.ndim > 1 else 0.25)
            value.copy_((drawn * 2.0**frac).round().clamp(-size, size - 1) * 2.0**-frac)
    return net.eval()


def spikes(*shape: int, rate: float = 0.3, seed: int = 0) -> Tensor:
    """Random spikes ``[T, 1, ...]``."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < rate).float().unsqueeze(1)


def lif(**options: Any) -> nn.Module:
    """A neuron in fixed point."""
    return fixed(sc.LIF(**{"tau": 2.0, "threshold": 0.25, **options}), word=16, frac=10)
