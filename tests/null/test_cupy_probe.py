"""The cupy backend's probe: whether there can be kernels here, or why not, in words."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

import pytest
import torch

import spikecore as sc
from spikecore.plugins.registry import BUILTINS, Registry
from spikecore_cupy import device

World = Callable[..., None]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine with a GPU, a driver, torch and CuPy, none of which are here; arguments change one of them."""

    def make(
        cuda: Optional[str] = "13.0",
        gpu: bool = True,
        cupy: bool = True,
        driver: int = 13000,
        compiler: Tuple[int, int] = (13, 0),
        error: Optional[Exception] = None,
    ) -> None:
        def version() -> int:
            if error is not None:
                raise error
            return driver

        modules = {name: ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda")}
        api: Any = ModuleType("cupy_backends.cuda.api")
        libs: Any = ModuleType("cupy_backends.cuda.libs")
        api.runtime, libs.nvrtc = ModuleType("runtime"), ModuleType("nvrtc")
        api.runtime.driverGetVersion, libs.nvrtc.getVersion = version, lambda: compiler
        for module in (*modules.values(), api, libs):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(device, "find_spec", lambda name: object() if cupy else None)

    return make


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"driver": 13010, "compiler": (13, 2)}, None),
        ({"driver": 13000, "compiler": (12, 9)}, None),
        ({"cuda": None}, "was built without CUDA: install a torch that has CUDA first, then CuPy"),
        ({"gpu": False}, "sees no NVIDIA GPU"),
        ({"cupy": False}, "CuPy is not installed"),
        ({"driver": 12080}, "NVRTC of CUDA 13.0 makes kernels that the driver, of CUDA 12.8, cannot load"),
        (
            {"error": ImportError("libnvrtc.so.13: cannot open")},
            "CuPy does not work here: ImportError: libnvrtc.so.13: cannot open",
        ),
    ],
)
def test_the_reason_is_in_words(changes: Any, words: Optional[str], world: World) -> None:
    """The probe says what stands in the way, and nothing where nothing does."""
    world(**changes)
    reason = device.reason()
    assert (words in reason) if words and reason else reason is words


def test_the_way_out_is_named(world: World) -> None:
    """Asked for by name without CuPy, the error says what to install."""
    world(cupy=False)
    registry = Registry(BUILTINS, entry_points=(), environ={})
    with pytest.raises(
        sc.backend.BackendUnavailable, match=r"CuPy is not installed \(pip install 'spikecore\[cuda13\]'"
    ):
        registry.get("cupy", "argument")
