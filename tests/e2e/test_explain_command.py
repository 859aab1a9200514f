"""``spikecore explain``: what it takes, what it prints, and what it says about wrong arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spikecore import cli

NET = """
import torch
from torch import nn
import spikecore as sc

LAYER = nn.Linear(6, 3)
WORD = "a word"


def network():
    return nn.Sequential(nn.Conv2d(2, 3, 3), sc.LIF(backend="torch"))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.neuron = sc.LIF(backend="torch")

    def forward(self, x, y):
        return self.neuron(x + y)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of networks, where the command runs."""
    (tmp_path / "nets_to_explain.py").write_text(NET, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["explain", *arguments])


def test_a_module_and_a_file(here: Path) -> None:
    """A network, a class, a function, by module and by path; several inputs."""
    found = run("nets_to_explain:LAYER", "--input", "4,6")
    assert found.exit_code == 0, found.output
    assert "Linear" in found.output
    found = run(str(here / "nets_to_explain.py") + ":Two", "--input", "4,2,6", "--input", "4,2,6", "--backend", "torch")
    assert found.exit_code == 0, found.output
    assert "asked for by explain()" in found.output


def test_json_is_all_that_is_found(here: Path) -> None:
    """For programs, in the words of the rows; options of the run are taken."""
    found = run("nets_to_explain:LAYER", "--input", "4,6", "--json", "--inference", "--autocast", "bfloat16")
    assert found.exit_code == 0, found.output
    read = json.loads(found.output)
    assert sorted(read) == ["advice", "device", "layers", "read", "training"]
    assert (read["training"], read["layers"][0]["dtype"]) == (False, "bfloat16")
    found = run("nets_to_explain:network", "--input", "4,2,6,5", "--json", "--channels-last", "--dtype", "float64")
    read = json.loads(found.output)
    assert (read["layers"][0]["layout_in"], read["layers"][0]["dtype"]) == ("channels-last", "float64")
