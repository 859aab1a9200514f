"""The reference on a device of torch that is neither CPU nor CUDA and has no float64: one that is built for this test.

It stands for what no machine of these tests has, Apple's GPUs for one: the conformance suite, and all of
``tests/shared/single/uses.py``, with the bits of the CPU. What it does not show is the arithmetic of such a device.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
#: What this device lacks, and a real one has.
LACKS = {"compile/inductor": "no code generation of Inductor's"}

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device is built by g++"),
    pytest.mark.skipif(
        tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11), reason="written for newer headers"
    ),
]


@pytest.fixture(scope="session")
def folder(request):
    """Where the built device is kept."""
    return request.config.cache.mkdir("spikecore-single")


def answered(*command):
    """A process that may register a device, which a process does once."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backends"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_suite_conforms(folder, tmp_path):
    """Every case passes that this device can hold, and float64 is what it does not declare."""
    report = tmp_path / "report.json"
    arguments = ["conformance", "torch", "--device", "single", "--json", report]
    done = answered(ROOT / "tests/shared/single/__init__.py", folder, *arguments)
    assert report.exists(), done.stderr[-3000:]
    rows = {row["id"]: row for row in json.loads(report.read_text())["results"]}
    assert {id for id, row in rows.items() if row["outcome"] in ("failed", "error", "stale")} == set(LACKS)
    unsupported = [row for row in rows.values() if row["outcome"] == "unsupported"]
    assert unsupported
    assert all(row["lacking"] == ["float64"] for row in unsupported)
    assert rows["edges/sqrt"]["outcome"] == "passed"


def test_what_people_call_has_the_bits_of_the_cpu(folder):
    """Neurons, losses, encoders, layers, training, monitor, counted operations, checkpoints."""
    done = answered(ROOT / "tests/shared/single/uses.py", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == {}
    assert found["uses"] >= 40
