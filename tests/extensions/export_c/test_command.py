"""``spikecore export`` writes what ``sc.export_c`` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import spikecore as sc
from c_programs import SPIKES, spikes
from spikecore.cli import app

MODEL = """
import torch
from torch import nn

import spikecore as sc
from spikecore_chips.quant import fixed


def net():
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(24.0).view(4, 6).sub(12) / 16)
        layer.bias.fill_(0.125)
    return nn.Sequential(layer, fixed(sc.LIF(), word=16, frac=8))


broken = nn.Sequential(nn.GELU())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c_model.py").write_text(MODEL)
    torch.save(spikes(5, 6), tmp_path / "data.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_same_program(folder: Path) -> None:
    arguments = "export c_model:net --example data.pt --out digits --name digits --inputs 0,0,1".split()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "make -C digits test" in done.output
    import c_model

    program = sc.export_c(c_model.net().eval(), spikes(5, 6), folder / "again", name="digits", inputs=SPIKES)
    for file in program.files:
        assert (folder / "digits" / file).read_bytes() == (folder / "again" / file).read_bytes()
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert (facts["flash"], facts["memory"], facts["inputs"]) == (program.flash, program.memory, "0 to 1, times 2^0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("c_model:broken --example data.pt --dtype float32", "there is no C for GELU"),
        ("c_model:net --example data.pt", "or say what the input is, --inputs 0,0,1 for spikes"),
        ("c_model:nothing --example data.pt", "c_model has no 'nothing'"),
        ("c_model:net --example none.pt", "none.pt"),
        ("c_model:net --example data.pt --inputs 1", "--inputs '1' must be FRAC,LOW,HIGH: 0,0,1 for spikes"),
    ],
)
def test_errors_are_sentences(arguments: str, words: str, folder: Path) -> None:
    done = CliRunner().invoke(app, ["export", *arguments.split(), "--out", "out"])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert not (folder / "out").exists()
