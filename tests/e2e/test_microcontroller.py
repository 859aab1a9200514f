"""The program that trains digits in integers and runs them in C."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from programs import runner

pytestmark = pytest.mark.slow
pytest.importorskip("sklearn", reason="the training programs need the extra `train`")


@pytest.mark.skipif(not shutil.which("cc") or not shutil.which("make"), reason="needs make and a C compiler")
def test_the_spikes_of_the_chip_are_those_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch is enough to be far above chance; all spikes of the program in C are equal."""
    text = runner(monkeypatch, capsys)("microcontroller.py", "--epochs", "2", "--out", str(tmp_path))
    assert float(re.search(r"integers: ([\d.]+)%", text)[1]) > 40
    assert "128 steps, 0 of 1280 outputs differ" in text
