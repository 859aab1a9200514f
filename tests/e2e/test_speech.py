"""The speech example: utterances of different lengths from their files, trained and shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from programs import EXAMPLES, runner

pytest.importorskip("matplotlib", reason="the training programs need the extra `train`")

#: One training of each network, small.
SHORT = ("--data", "made-up", "--epochs", "6", "--hidden", "32", "--dropout", "0.1", "--seeds", "0")
#: Utterances of the files below: steps and speaker of each.
SPOKEN = {"JapaneseVowels_TRAIN.ts": ((3, 9), (5, 1)), "JapaneseVowels_TEST.ts": ((7, 2),)}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return runner(monkeypatch, capsys)


@pytest.fixture
def vowels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that reads the utterances, with the sizes of the files below."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import vowels

    monkeypatch.setattr(vowels, "FILES", {name: len(spoken) for name, spoken in SPOKEN.items()})
    return vowels


def value(name: str, utterance: int, coefficient: int, step: int) -> float:
    """Values in the files below, all different and exact in float32."""
    return (name == "JapaneseVowels_TEST.ts") * 64 + utterance * 16 + coefficient + step / 32 * (coefficient + 1)


def write(folder: Path) -> Path:
    """The two files in the format of theirs, with a comment and a head."""
    for name, spoken in SPOKEN.items():
        lines = ["#Japanese vowels: a comment, with a colon", "@problemName JapaneseVowels", "@data"]
        for place, (steps, speaker) in enumerate(spoken):
            rows = [",".join(str(value(name, place, c, t)) for t in range(steps)) for c in range(12)]
            lines.append(":".join([*rows, str(speaker)]))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_both_networks_learn_and_are_shown(run, tmp_path):
    """Six epochs tell made-up speakers apart; results.json has what is printed, and pictures are there."""
    text = run("speech.py", *SHORT, "--out", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert "data           made-up utterances: 180 to train on, 180 to test with, 7 to 29 steps" in text
    for name, printed in (("alif", "recurrent ALIF"), ("lstm", "nn.LSTM")):
        found = results["networks"][name]
        (one,) = found["runs"]
        assert found["test accuracy"] == one["curves"]["test accuracy"][-1] > 0.5  # guessing gives a ninth
        assert one["curves"]["loss"][-1] < one["curves"]["loss"][0]
        assert [len(curve) for curve in one["curves"].values()] == [6, 6, 6]
        assert re.search(rf"{printed} +{found['test accuracy']:.2%} of .* {found['parameters']} parameters", text)
    assert results["networks"]["alif"]["parameters"] == 12 * 32 + 32 + 32 * 32 + 3 * 32 + 32 * 9 + 9 + 1
    assert 0.0 < results["networks"]["alif"]["spikes a neuron and step"] < 1.0
    assert results["options"]["epochs"] == 6
    assert "backend        torch on cpu (auto: the built-in for cpu tensors)" in text
    for picture in ("learning-curve.png", "utterance.png", "confusion.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_utterances_are_read_from_their_files(vowels, tmp_path):
    """Every number at its place, standardised by the real steps to train on, 0 behind the end, which the mask says."""
    sets = vowels.load(write(tmp_path))
    assert sets.training.speakers.tolist() == [8, 0]
    assert sets.test.speakers.tolist() == [1]
    for part, lengths in ((sets.training, [3, 5]), (sets.test, [7])):
        assert part.x.shape == (len(lengths), 7, 12)
        assert part.mask.sum(1).tolist() == lengths
        assert torch.equal(part.mask, torch.arange(7) < torch.tensor(lengths).unsqueeze(-1))
        assert torch.equal(part.x[~part.mask], torch.zeros_like(part.x[~part.mask]))
    seen = [
        [value("JapaneseVowels_TRAIN.ts", u, c, t) for c in range(12)]
        for u, steps in ((0, 3), (1, 5))
        for t in range(steps)
    ]
    seen = torch.tensor(seen, dtype=torch.float64)
    for name, part in (("JapaneseVowels_TRAIN.ts", sets.training), ("JapaneseVowels_TEST.ts", sets.test)):
        for utterance, (steps, _) in enumerate(SPOKEN[name]):
            for step in range(steps):
                raw = torch.tensor([value(name, utterance, c, step) for c in range(12)], dtype=torch.float64)
                wanted = (raw - seen.mean(0)) / seen.std(0)
                torch.testing.assert_close(part.x[utterance, step].double(), wanted, rtol=1e-5, atol=1e-5)
