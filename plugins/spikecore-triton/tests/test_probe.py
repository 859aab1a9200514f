"""Description of the plugin, without heavy imports."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import spikecore as sc
import spikecore_triton
from spikecore.backend import BackendInfo
from spikecore_triton.backend import TritonBackend


def info() -> BackendInfo:
    """The plugin's one backend."""
    (only,) = spikecore_triton.spikecore_backends()
    return only


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels count as compiled, without the interpreter."""
    monkeypatch.setattr(spikecore_triton, "INTERPRETED", False)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cuda": None, "hip": None}, "without CUDA and without ROCm"),
        ({"cuda": "13.0", "available": False}, "finds no GPU"),
        ({"cuda": "13.0", "available": True, "capability": (7, 5)}, "compute capability 7.5, 8.0 is the lowest"),
        ({"cuda": "13.0", "available": True, "capability": (9, 0)}, None),
        ({"cuda": None, "hip": "6.4", "available": True, "capability": (6, 1)}, None),
    ],
)
def test_the_reason_is_in_words(changes: Any, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe says what stands in the way, and nothing where nothing does."""
    monkeypatch.setattr(torch.version, "cuda", changes.get("cuda"))
    monkeypatch.setattr(torch.version, "hip", changes.get("hip"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: changes.get("available", False))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: changes["capability"])
    reason = info().probe()
    assert (words in str(reason)) if words else reason is None


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the interpreter was asked for."""
    monkeypatch.setattr(spikecore_triton.importlib.util, "find_spec", lambda name: None)
    assert info().probe() == "triton is not installed"


def test_an_old_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divisions of older ones flush subnormal numbers."""
    for version, words in (("3.5.1", "triton 3.5.1 is too old, 3.6 is the oldest"), ("3.6.0+git1234", None)):
        monkeypatch.setattr(spikecore_triton.importlib.metadata, "version", lambda name, version=version: version)
        monkeypatch.setattr(spikecore_triton, "INTERPRETED", True)
        reason = info().probe()
        assert (words in str(reason)) if words else reason is None


def test_listing_imports_neither_triton_nor_the_backend() -> None:
    """The list is known without them; the interpreter computes on the CPU, and only where it is asked for."""
    program = (
        "import sys, spikecore_triton\n"
        "(info,) = spikecore_triton.spikecore_backends()\n"
        "info.probe()\n"
        "print(info.devices, info.capabilities.bfloat16, 'triton' in sys.modules)"
    )
    for asked, said in (("1", "('cpu',) False False"), ("0", "('cuda',) True False")):
        env = {**os.environ, "TRITON_INTERPRET": asked}
        done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=env)
        assert done.stdout.strip() == said, done.stderr


def test_float64_is_refused(device: str) -> None:
    """It is not declared."""
    with pytest.raises(sc.backend.Unsupported, match="float64"):
        sc.LIF(backend="triton")(torch.zeros(2, 3, dtype=torch.float64, device=device))


def test_the_backend_is_found_by_name(device: str) -> None:
    """Installed, it is there."""
    neuron = sc.LIF(backend="triton")
    neuron(torch.zeros(2, 3, device=device))
    assert TritonBackend.capabilities is spikecore_triton.CAPABILITIES
    assert "triton" in repr(neuron)
