"""Every neuron compiled for TPUs by libtpu, which contains the compiler: compiled, never run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

import spikecore as sc


def library() -> Optional[Path]:
    """libtpu's file: of the environment, or in the folder ``libtpu`` beside it, where the Makefile installs it."""
    spec = importlib.util.find_spec("libtpu")
    beside = Path(sys.prefix) / "libtpu" / "libtpu"
    folder = Path(spec.origin).parent if spec and spec.origin else beside
    return folder / "libtpu.so" if (folder / "libtpu.so").is_file() else None


@pytest.mark.parametrize(
    ("target", "kind", "steps", "params"),
    [("v5e", "TPU v5 lite", 16, "scalar"), ("v6e", "TPU v6 lite", 300, "channel")],
    ids=["v5e", "v6e"],
)
def test_every_neuron_compiles(target: str, kind: str, steps: int, params: str) -> None:
    """Outputs, states and all gradients; time is a loop, however many steps there are; divisions are still there."""
    found = library()
    if found is None:
        pytest.skip("libtpu, which compiles for TPUs, is not installed; its wheels are for Linux on x86-64")
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_LIBRARY_PATH": str(found),
        # there is no TPU to ask what it is
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": {"v5e": "v5litepod-4", "v6e": "v6e-4"}[target],
    }
    command = [sys.executable, str(Path(__file__).with_name("compile_tpu.py")), target, str(steps), params]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert set(answers) == {*sc.neurons.MODELS, "EscapeNoise"}
    for name, answer in answers.items():
        assert answer["kind"] == kind
        # of the states that are carried, forward and backward are two loops
        assert answer["operations"].get("while", 0) >= 2, name
    divides = [name for name in answers if answers[name]["operations"].get("divide")]
    assert {"LIF", "EIF", "Izhikevich"} <= set(divides)
