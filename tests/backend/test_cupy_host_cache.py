"""Libraries of host-built kernels: one for all numbers of a surrogate, verified before they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
import torch

import spikecore as sc
from spikecore._base.caches import Recent
from spikecore.testing._loopback import installed
from spikecore_cupy import device, host

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(host.reason() is not None, reason=str(host.reason()))]


def test_annealing_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A surrogate with other numbers has the kernels of the one before; another formula shares the forward kernel. A
    library that is cut short is built again, and never loaded.
    """
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    built = []
    run = host.subprocess.run
    monkeypatch.setattr(host.subprocess, "run", lambda *a, **k: built.append(a) or run(*a, **k))
    x = torch.rand(3, 5).mul(3).requires_grad_()

    def gradient(alpha: float, name: str) -> torch.Tensor:
        neuron = sc.LIF(threshold=0.75, surrogate=sc.surrogate.ATan(alpha), backend=name)
        (found,) = torch.autograd.grad(neuron(x).sum(), x)
        return found

    for again in range(2):
        monkeypatch.setattr(device, "_kernels", Recent(8))
        with installed(host.HostBackend) as name:
            for alpha in (2.0, 3.5, 1e-3, 1e30):
                torch.testing.assert_close(gradient(alpha, name), gradient(alpha, "torch"), rtol=1e-6, atol=1e-7)
        assert len(built) == 2 * (again + 1)
        for path in (tmp_path / "compiled-kernels").glob("cupy-host.*.so"):
            path.write_bytes(path.read_bytes()[:4000])


def test_what_was_verified_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a folder of the process: whoever exchanges the entry after the check changes nothing."""
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    text = 'extern "C" int seven() { return 7; }'
    assert host._loaded("seven", text).seven() == 7
    read = host.cache.read

    def exchange(kind: str, name: str) -> Optional[bytes]:
        content = read(kind, name)
        for path in (tmp_path / "compiled-kernels").glob("cupy-host.*"):
            path.write_bytes(b"another library")
        return content

    monkeypatch.setattr(host.cache, "read", exchange)
    monkeypatch.setattr(host.subprocess, "run", None)
    assert host._loaded("seven", text).seven() == 7
