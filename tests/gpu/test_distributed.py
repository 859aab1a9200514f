"""The programs for several processes, with NCCL, one GPU each: weights after ten steps are those of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
import torch

import engines
from several import EXAMPLES

pytestmark = pytest.mark.gpu

PROGRAMS = ("ddp.py", "fsdp.py", "pipelining.py")
#: Ten steps, of a batch that two and four processes share out.
SHORT = ["--device", "cuda", "--hidden", "64", "--epochs", "2", "--limit", "5"]


def trained(folder: Path, name: str, processes: int, *more: str) -> Dict[str, Any]:
    """The weights that a program leaves."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    program = [str(EXAMPLES / name), *SHORT, *more, "--out", str(folder)]
    command = [sys.executable, *(torchrun if processes > 1 else []), *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = torch.load(str(folder / "checkpoint.pt"), weights_only=True)["net"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_weights_are_those_of_one_process(tmp_path: Path, name: str, processes: int) -> None:
    """DistributedDataParallel, FSDP2, and torch's pipelines in both schedules."""
    pytest.importorskip("tensorboard", reason="the training programs need the extra `train`")
    if torch.cuda.device_count() < processes:
        pytest.skip(f"needs {processes} GPUs, and {torch.cuda.device_count()} are here")
    wanted = trained(tmp_path / "one", name, 1)
    schedules = [["--schedule", one] for one in ("gpipe", "1f1b")] if name == "pipelining.py" else [[]]
    for number, more in enumerate(schedules):
        found = trained(tmp_path / f"many{number}", name, processes, *more)
        assert engines.difference(found, wanted) <= 1e-6
