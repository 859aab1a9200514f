"""Facts about the machine and what is installed on it, for the head of a report."""

from __future__ import annotations

import platform
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Optional

import torch

import spikecore
from spikecore_bench.report import Fact

#: Libraries whose versions are reported, and the distributions that may bring them under other names.
_LIBRARIES = (
    *("numpy", "cupy", "triton", "numba", "spikingjelly", "snntorch", "norse", "sinabs", "rockpool"),
    *("jax", "spyx", "braintrace"),
)
_DISTRIBUTIONS = {
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy"),
    "triton": ("triton", "pytorch-triton"),
}


class Peak(NamedTuple):
    """Rates of a card by its data sheet."""

    #: Of products of float32 without TF32.
    float32_tflops: float
    #: Of products in 16 bits on the tensor cores, without sparsity.
    tensor_tflops: float
    memory_gb_s: float


#: By the name that the driver gives. Source: NVIDIA's data sheets of the SXM modules.
PEAKS: Mapping[str, Peak] = {
    "NVIDIA H100 80GB HBM3": Peak(67.0, 989.5, 3350.0),
    "NVIDIA H200": Peak(67.0, 989.5, 4800.0),
}


def version_of(*distributions: str) -> Optional[str]:
    """The version of the first of these distributions that is installed, or None."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def machine(device: torch.device) -> Dict[str, Fact]:
    """Machine, system and versions that a figure depends on, as far as they can be asked."""
    facts: Dict[str, Fact] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": str(device),
        "device_name": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "spikecore": spikecore.__version__,
        "torch": str(torch.__version__),
    }
    facts.update({name: version_of(*_DISTRIBUTIONS.get(name, (name,))) for name in _LIBRARIES})
    if device.type == "cuda":
        held = torch.cuda.get_device_properties(device)
        facts.update(
            processor=facts["device_name"],
            device_name=held.name,
            cuda=torch.version.cuda,
            memory_gib=round(held.total_memory / 2**30, 1),
            multiprocessors=held.multi_processor_count,
        )
    return facts


def _processor() -> str:
    """The processor's name, as people call it."""
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
