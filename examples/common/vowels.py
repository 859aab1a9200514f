"""Japanese Vowels: nine speakers, each utterance 7 to 29 steps of 12 coefficients; and a similar made-up set.

The set (Kudo, Toyama and Shimbo, 1999, https://archive.ics.uci.edu/dataset/128) has utterances of /ae/: 270 to train
on, 30 of each speaker, and 370 to test with, 24 to 88 of each. The package ``aeon`` contains it as two text files.
Nothing else of the package is needed, and it is not imported: ``pip install --no-deps aeon`` is enough.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import spikecore as sc
from common.files import DataError, missing

COEFFICIENTS, SPEAKERS = 12, 9
#: The files, and how many utterances each has.
FILES = {"JapaneseVowels_TRAIN.ts": 270, "JapaneseVowels_TEST.ts": 370}
INSIDE_AEON = Path("datasets", "data", "JapaneseVowels")
WAY_OUT = (
    "Get it with pip install --no-deps aeon, or name a folder that has the files with --folder, or take --data made-up"
)
#: Of one utterance, ``[steps, 12]``, and its speaker.
Utterance = Tuple[Tensor, int]


class Part(NamedTuple):
    """Utterances side by side, the batch first."""

    x: Tensor  # [B, T, 12], 0 behind the end of an utterance
    speakers: Tensor  # [B]
    mask: Tensor  # bool [B, T], True at real steps

    def of(self, rows: Tensor) -> Part:
        """Some of the utterances."""
        return Part(*(values[rows] for values in self))


class Vowels(NamedTuple):
    """Utterances to train on, and others to test with."""

    about: str
    training: Part
    test: Part


def load(folder: Optional[Path] = None) -> Vowels:
    """Japanese Vowels from the folder of its two files, by default that of an installed aeon.

    Raises :class:`common.files.DataError` where they are not there, or are not what they should be.
    """
    folder = _inside_aeon() if folder is None else folder
    if not all((folder / name).is_file() for name in FILES):
        raise missing("Japanese Vowels", list(FILES), [folder], way_out=WAY_OUT)
    return Vowels("Japanese Vowels", *_standardised(*(_read(folder / name, count) for name, count in FILES.items())))


def made_up(each: int = 20) -> Vowels:
    """Nine made-up speakers: every coefficient of each swings with a frequency and a phase of its own, in noise."""
    generator = torch.Generator().manual_seed(0)
    frequency, phase = torch.rand(2, SPEAKERS, COEFFICIENTS, generator=generator) * torch.tensor([0.5, 6.3]).view(
        2, 1, 1
    )

    def utterances() -> List[Utterance]:
        found = []
        for speaker in range(SPEAKERS):
            for _ in range(each):
                steps = int(torch.randint(7, 30, (), generator=generator))
                time = torch.arange(float(steps)).unsqueeze(-1)
                clean = torch.sin(frequency[speaker] * time + phase[speaker])
                found.append((clean + 0.3 * torch.randn(steps, COEFFICIENTS, generator=generator), speaker))
        return found

    return Vowels("made-up utterances", *_standardised(utterances(), utterances()))


def _inside_aeon() -> Path:
    # not imported: that takes seconds, and what it imports may not be installed
    found = importlib.util.find_spec("aeon")
    places = [] if found is None else list(found.submodule_search_locations or ())
    if not places:
        raise DataError(f"Japanese Vowels comes with the package aeon, which is not installed. {WAY_OUT}")
    return Path(places[0]) / INSIDE_AEON


def _read(path: Path, count: int) -> List[Utterance]:
    """The utterances of a ``.ts`` file: behind ``@data`` one a line, ``:`` between coefficients, the speaker last."""
    try:
        head, _, body = path.read_text(encoding="utf-8").partition("@data")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. {WAY_OUT}") from error
    found = []
    for number, line in enumerate(body.split("\n")[1:], head.count("\n") + 2):
        if line.strip():
            try:
                *coefficients, speaker = line.split(":")
                x = torch.tensor([[float(value) for value in one.split(",")] for one in coefficients]).T
                if x.shape[1] != COEFFICIENTS or not x.isfinite().all() or not 1 <= int(speaker) <= SPEAKERS:
                    raise ValueError(f"{x.shape[1]} coefficients, speaker {int(speaker)}")
                found.append((x.contiguous(), int(speaker) - 1))
            except (ValueError, IndexError) as error:
                raise DataError(f"{path}, line {number} is no utterance: {error}; get the file again") from error
    if len(found) != count:
        raise DataError(f"{path} has {len(found)} utterances, not {count}; get the file again")
    return found


def _standardised(training: List[Utterance], test: List[Utterance]) -> Tuple[Part, Part]:
    """Padded to the longest of both; each coefficient with mean 0 and deviation 1 over the real steps to train on."""
    steps = torch.cat([x for x, _ in training])
    mean, deviation = steps.mean(0), steps.std(0)
    longest = max(len(x) for x, _ in training + test)

    def part(utterances: List[Utterance]) -> Part:
        lengths = [len(x) for x, _ in utterances]
        x = pad_sequence([(x - mean) / deviation for x, _ in utterances], batch_first=True)
        x = torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[1]))
        mask = sc.functional.mask_of(lengths, longest)
        return Part(x, torch.tensor([speaker for _, speaker in utterances]), mask.T.contiguous())

    return part(training), part(test)


def lengths(part: Part) -> str:
    """How many steps the utterances have."""
    steps = part.mask.sum(1)
    return f"{int(steps.min())} to {int(steps.max())}"
