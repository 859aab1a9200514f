"""Where the tests run: on the GPU if there is one, else in Triton's interpreter on the CPU, without the tests of a GPU.

Kernels are kept beside pytest's own cache, between runs, unless the environment names a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
import torch

import shares
from each_test import pytest_pycollect_makemodule, pytest_pyfunc_call, pytest_runtest_setup  # noqa: F401
from shares import pytest_report_header  # noqa: F401
from spikecore.lang.operations import ROWS
from spikecore.neurons import MODELS, example

GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


def pytest_configure(config: pytest.Config) -> None:
    """Choose, before any backend is made."""
    if not GPU:
        os.environ["TRITON_INTERPRET"] = "1"
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ.setdefault("SPIKECORE_CACHE_DIR", str(config.cache.mkdir("spikecore-kernels")))


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none, and of each matrix what is not of this run's share."""
    shares.pytest_collection_modifyitems(config, items)
    for item in items:
        if not GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))


@pytest.fixture(scope="session")
def device() -> str:
    """Where tensors must be for the backend to take them."""
    return "cuda" if GPU else "cpu"


@pytest.fixture(scope="session")
def arithmetic() -> List[str]:
    """Neurons made of + - * / and comparisons alone."""
    exact = {row.name for row in ROWS if row.exact} - {"sqrt"}
    return [name for name in MODELS if all(node.is_leaf or node.op in exact for node in example(name).program.nodes)]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[List[Dict[str, Any]]], List[Dict[str, Any]]]:
    """Results of compilers for cases of compile_kernels.py, in a process without the interpreter."""
    cache = os.environ.get("SPIKECORE_CACHE_DIR")  # not set without pytest's cache
    folder = Path(cache) if cache else tmp_path_factory.mktemp("kernels")

    def compiled(cases: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        env["TRITON_CACHE_DIR"] = str(folder / "compiled")
        program = str(Path(__file__).with_name("compile_kernels.py"))
        command = [sys.executable, program, json.dumps(cases)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        answers: List[Dict[str, Any]] = json.loads(done.stdout)
        return answers

    return compiled
