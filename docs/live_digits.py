"""The network of docs/live.md, and the part of the page that shows it: a field to draw in, and what each step computes.

``python docs/live_digits.py FOLDER`` trains the network on scikit-learn's digits, has ``sc.export_c`` write it,
compiles it as WebAssembly (ziglang of the extra docs, or clang with its linker), and writes ``FOLDER/index.html``. That
has all of it, so that it needs no server. The page's own program is ``_ext/live.js``, and ``_ext/live.py`` puts all
into the site.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Tuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spikecore as sc

PARTS = Path(__file__).parent / "_ext"
NAME, HIDDEN, STEPS = "digits", 128, 8
#: Turns over the training images, in floats and then in integers.
TURNS = (60, 10)


class Live(NamedTuple):
    """The trained network, its images ``[360, 8, 8]`` of 0 to 16 that it did not see, and its program."""

    net: nn.Module
    images: Tensor
    labels: Tensor
    folder: Path

    @property
    def accuracy(self) -> float:
        """The part of the images whose digit has most spikes."""
        return sc.metrics.accuracy(self.net(over_time(self.images, STEPS)), self.labels)


def over_time(images: Tensor, steps: int) -> Tensor:
    """Images of 0 to 16 as the network's input: the same numbers at each step."""
    return (images.flatten(1) / 16).expand(steps, -1, -1).contiguous()


def build(folder: Path, turns: Tuple[int, int] = TURNS) -> Live:
    """Train, export, compile."""
    data = load_digits()
    images, labels = torch.tensor(data.images).float(), torch.tensor(data.target).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        seen, unseen = torch.randperm(len(images)).split([1437, 360])
        net: nn.Module = nn.Sequential(nn.Linear(64, HIDDEN), sc.LIF(), nn.Linear(HIDDEN, 10), sc.LIF())
        _fit(net, images[seen], labels[seen], turns[0], 4e-3)
        net = sc.quant.prepare(net, over_time(images[seen], STEPS), weights=8, word=16)
        _fit(net, images[seen], labels[seen], turns[1], 4e-4)
    sc.export_c(net.eval(), over_time(images[unseen[:16]], STEPS), folder, name=NAME)
    compiled(folder)
    return Live(net, images[unseen], labels[unseen], folder)


def _fit(net: nn.Module, images: Tensor, labels: Tensor, turns: int, rate: float) -> None:
    """Train on images whose parts are darker or lighter, half of them a pixel to the left or right."""
    step = sc.training_model(net, sc.losses.ce_count, torch.optim.Adam(net.parameters(), rate))
    for turn in range(turns):
        for batch in torch.randperm(len(images)).split(180):
            x = images[batch] * (0.75 + 0.5 * torch.rand(len(batch), 8, 8))
            if turn % 2:
                x = nn.functional.pad(x, (1, 1))[..., 2 * (turn // 2 % 2) :][..., :8]
            step(over_time(x.round().clamp(max=16), STEPS), labels[batch])


def compiled(folder: Path) -> bytes:
    """The program of ``sc.export_c`` as WebAssembly."""
    command = ["make", "-s", "-C", str(folder), "web"]
    if find_spec("ziglang") is not None:
        command.append(f"WASM={sys.executable} -m ziglang cc -target wasm32-freestanding")
    elif not shutil.which("clang") or not shutil.which("wasm-ld"):
        raise RuntimeError("docs/live.md needs a compiler for WebAssembly: pip install ziglang, or clang and lld")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return (folder / "web" / f"{NAME}.wasm").read_bytes()


def html(live: Live) -> str:
    """The part of a page: what one sees, the program and its WebAssembly."""
    program = (live.folder / "web" / f"{NAME}.mjs").read_text(encoding="utf-8")
    wasm = base64.b64encode((live.folder / "web" / f"{NAME}.wasm").read_bytes()).decode()
    chosen = [int((live.labels == digit).nonzero()[0]) for digit in range(10)]
    samples = [[int(n) for n in live.images[k].flatten()] for k in chosen]
    text, script = ((PARTS / file).read_text(encoding="utf-8") for file in ("live.html", "live.js"))
    given = f'const WASM = "{wasm}";\nconst SAMPLES = {samples};\nconst HIDDEN = {HIDDEN};'
    return f'{text}<script type="module">\n{program}\n{given}\n{script}</script>\n'


def page(live: Live) -> str:
    """A page of its own."""
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Digits</title>\n{html(live)}</html>\n'


if __name__ == "__main__":
    where = Path(sys.argv[1])
    made = build(where)
    (where / "index.html").write_text(page(made), encoding="utf-8")
    print(f"{made.accuracy:.1%} of {len(made.labels)} images; {where / 'index.html'}")
