"""Many processes train the network that one process trains: DistributedDataParallel, FSDP2, torch's pipelines."""

from __future__ import annotations

import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
from torch import distributed

import engines
import several
from engines import TORCH

if not (distributed.is_available() and getattr(distributed, "is_gloo_available", lambda: True)()):
    pytest.skip("this build of torch has no gloo, with which CPUs talk", allow_module_level=True)

pytestmark = pytest.mark.slow
#: Of weights, relative to the largest one of their tensor.
CLOSE = 1e-6
shards = pytest.mark.skipif(TORCH < (2, 6), reason="before torch 2.6 fully_shard is private")
pipelines = pytest.mark.skipif(TORCH < (2, 5), reason="torch has torch.distributed.pipelining from 2.5 on")

DDP = {
    "as it comes": ("training_model", {}),
    "with static_graph": ("multi", {"static_graph": True}),
    "over single steps": ("single", {}),
    "with accumulated gradients": ("accumulated", {}),
    "with a parameter that leaves its range": ("ranges", {}),
}
FSDP = {
    "whole": ("root", "multi", True),
    "each layer": ("each", "multi", True),
    "each layer, kept gathered": ("each", "multi", False),
    "over single steps": ("each", "single", True),
}
#: Schedules of torch's pipelines, with time from an encoder and with time first.
SCHEDULES = [("gpipe", True), ("1f1b", False)]


def jobs(folder: Path) -> Dict[str, Any]:
    """The work of two processes, in this order."""
    listed: List[Any] = [(f"ddp {name}", engines.ddp, ("torch", how), more) for name, (how, more) in DDP.items()]
    listed += [(f"ddp carried {static}", engines.ddp_carried, ("torch", static), {}) for static in (False, True)]
    if TORCH >= (2, 6):
        listed += [(f"fsdp {name}", engines.fsdp, ("torch", *how), {}) for name, how in FSDP.items()]
        listed.append(("fsdp ranges", engines.fsdp_ranges, ("torch",), {}))
    if TORCH >= (2, 5):
        for schedule, encoder in SCHEDULES:
            listed.append((f"pipeline {schedule} {encoder}", engines.pipeline, ("torch", schedule, encoder), {}))
    stores = [f"{folder}/store-{number}" for number in range(len(listed))]
    return {name: (job, (store, *args), more) for store, (name, job, args, more) in zip(stores, listed)}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The results of two processes."""
    folder = tmp_path_factory.mktemp("two")
    return several.run(folder, 2, jobs(folder))


def check(found: Any) -> None:
    assert isinstance(found, float), found
    assert found <= CLOSE


class TestTwoProcesses:
    """Weights after ten steps are those of one process."""

    @pytest.mark.parametrize("how", DDP)
    def test_replicas(self, two, how):
        """DistributedDataParallel."""
        check(two[f"ddp {how}"])

    @pytest.mark.parametrize("static_graph", [False, True])
    def test_carried(self, two, static_graph):
        """Gradients through two calls of DistributedDataParallel, of which the second goes on from the first."""
        if static_graph and TORCH < (2, 1):
            pytest.skip("torch 2.0 refuses several calls in one graph with static_graph=True")
        check(two[f"ddp carried {static_graph}"])

    @shards
    @pytest.mark.parametrize("how", [*FSDP, "ranges"])
    def test_shards(self, two, how):
        """FSDP2; neurons compute with gathered, plain parameters, which may leave their range."""
        check(two[f"fsdp {how}"])

    @pipelines
    @pytest.mark.parametrize(("schedule", "encoder"), SCHEDULES)
    def test_pipeline(self, two, schedule, encoder):
        """Weights, and outputs as well."""
        check(two[f"pipeline {schedule} {encoder}"])


PROGRAMS = ["ddp.py", *(["fsdp.py"] if TORCH >= (2, 6) else []), *(["pipelining.py"] if TORCH >= (2, 5) else [])]
#: Ten steps.
SHORT = ["--device", "cpu", "--backend", "torch", "--hidden", "64", "--epochs", "2", "--limit", "5"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Outputs of the programs, and their output folders: in one go, stopped by a signal to one process, resumed."""
    pytest.importorskip("safetensors", reason="the training programs need the extra `train`")
    folder = tmp_path_factory.mktemp("programs")
    listed: Dict[str, Any] = {}
    servers = several.rendezvous(3 * len(PROGRAMS))
    ports = [one.port for one in servers]
    for number, name in enumerate(PROGRAMS):
        more = [["--schedule", kind] for kind in ("gpipe", "1f1b")] if name == "pipelining.py" else [[], []]
        signals = {1: (7, int(signal.SIGTERM if number else signal.SIGINT))}
        out = ["--out", str(folder / name)]
        listed[f"{name} in one go"] = ({}, name, *SHORT, *more[0], *out)
        listed[f"{name} stopped"] = (signals, name, *SHORT, *more[1], *out[:1], f"{out[1]}-stopped")
        listed[f"{name} resumed"] = ({}, name, *SHORT, *more[1], "--resume", *out[:1], f"{out[1]}-stopped")
    jobs: Dict[str, Any] = {}
    for name, args in listed.items():
        jobs[name] = several.program, (ports.pop(), *args), {}
    return several.run(folder, 2, jobs), folder


def weights(folder: Path) -> Dict[str, Any]:
    """Of a checkpoint."""
    return torch.load(str(folder / "checkpoint.pt"), weights_only=True)["net"]


@pytest.mark.parametrize("name", PROGRAMS)
class TestPrograms:
    """The programs in examples/, each in two processes."""

    def test_weights_are_those_of_one_process(self, programs, name, tmp_path, monkeypatch):
        """Ten steps with torchrun's variables, and without them in one process."""
        results, folder = programs
        found = results[f"{name} in one go"]
        assert isinstance(found, dict), found
        assert found["code"] == 0, found["said"]
        assert re.search(r"test accuracy  [\d.]+% .*\n(?:.*\n)*?processes      2 on cpu\n", found["said"])
        monkeypatch.syspath_prepend(str(several.EXAMPLES))
        monkeypatch.setattr(sys, "argv", [name, *SHORT, "--out", str(tmp_path)])
        runpy.run_path(str(several.EXAMPLES / name), run_name="__main__")
        assert engines.difference(weights(folder / name), weights(tmp_path)) <= CLOSE

    def test_stopped_and_resumed(self, programs, name):
        """A signal to process 1 ends both after the same batch; the run goes on to the weights of one in one go."""
        results, folder = programs
        stopped, resumed = results[f"{name} stopped"], results[f"{name} resumed"]
        assert isinstance(stopped, dict), stopped
        assert stopped["code"] == 1
        assert "stopped: 1 epochs and 2 batches are in " in stopped["said"]
        assert isinstance(resumed, dict), resumed
        assert resumed["code"] == 0, resumed["said"]
        found = engines.difference(weights(folder / f"{name}-stopped"), weights(folder / name))
        assert found == 0.0 if name != "pipelining.py" else found <= CLOSE  # there with the other schedule
