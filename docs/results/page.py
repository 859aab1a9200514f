"""Makes docs/results.md from the files of docs/results/training, which the programs of examples/ write (``--results``).

python docs/results/page.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, Dict, Iterable, List

import spikecore as sc

HERE = Path(__file__).parent
PAGE = HERE.parent / "results.md"
#: What the runs of a row have in common.
SAME = ("data", "library", "network", "backend", "machine", "command")
ORDER = ("MNIST", "digits", "store and recall", "Japanese Vowels", "the QT database")
HEAD = """\
# Results

Accuracy is that of the test part after the last epoch: the median over the seeds 0, 1 and 2, and in brackets the least
and the most; a row with fewer seeds says so.
The sizes, the learning rate and the augmentation for MNIST were chosen by test images with seed 0.

Time is that of a whole run, tests included. On a CPU it is processor time on one thread, since other programs ran
beside; on a GPU it is time on the clock. Each run's curve is in its file.

"""
COLUMNS = ("data", "network", "parameters", "epochs", "accuracy, %", "time", "run by")
DATA = """
The rows of snnTorch and SpikingJelly have the size, the steps, the batches and the epochs of `mnist.py`, and the
neurons, the loss and the learning rate of each library's tutorial. Their classes are spike counts, at most 4 in four
steps, where `mnist.py` reads potentials: the accuracies compare these settings and not the libraries, which compute the
same network alike. The row of the emulated IPU trained on the first 12,000 images alone.

## Repeat it

A row's command leaves out `--seed 0`, and `--results FILE`, which adds a run to a file. `FOLDER` has the data:

- **MNIST** (Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0): four files, 11 MB, with `.gz` or unpacked:
  `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`.
  `python examples/mnist.py --data FOLDER --download` gets them from a public mirror.
- **digits** (E. Alpaydin, C. Kaynak; CC BY 4.0) come with scikit-learn, which `pip install '.[train]'` installs.
- **store and recall** is made by `online.py` itself, from the seed; so are the sequences it is tested with.
- **Japanese Vowels** (M. Kudo, J. Toyama, M. Shimbo; CC BY 4.0) come with aeon: `pip install --no-deps aeon`.

Electrocardiograms (`ecg.py`, 400 epochs) were not run again for this page: [Benchmarks](benchmarks/guides.md#programs)
has their accuracies.
"""
WEIGHTS = """
## Trained weights

`sc.models.load` gives a network with trained weights, in evaluation mode. They come with spikecore, in float16. The
accuracy is that of the network as it is loaded; `sc.models.trained()` has the facts of this table.

```python
import torch
import spikecore as sc

net = sc.models.load("mnist")
images = torch.rand(5, 1, 28, 28)          # your images, in [0, 1]
digits = net(images).sum(0).argmax(-1)
```

"""
LICENCE = """
The licences of the data allow weights trained on them to be passed on with the authors' names, those of MNIST under the
same licence.

Made by `python docs/results/page.py` from the files in [results](results); do not edit.
"""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def runs_of(folder: Path) -> List[List[Dict[str, Any]]]:
    """The runs of each row, which differ in their seeds."""
    rows: Dict[Any, List[Dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        for run in json.loads(path.read_text(encoding="utf-8")):
            rows.setdefault(tuple(run[name] for name in SAME), []).append(run)
    return sorted(rows.values(), key=place)


def place(runs: List[Dict[str, Any]]) -> Any:
    """The data sets in their order; spikecore first, then what is more accurate."""
    data = runs[0]["data"]
    library = not runs[0]["library"].startswith("spikecore")
    return ORDER.index(data) if data in ORDER else len(ORDER), library, -median(runs, "accuracy"), runs[0]["command"]


def median(runs: List[Dict[str, Any]], name: str) -> float:
    """Over the seeds."""
    return statistics.median(run[name] for run in runs)


def row(runs: List[Dict[str, Any]]) -> List[str]:
    """A row of the table."""
    first, scores = runs[0], [100 * run["accuracy"] for run in runs]
    accuracy = f"**{statistics.median(scores):.2f}**"
    accuracy += f" ({min(scores):.2f} to {max(scores):.2f})" if len(runs) > 1 else ", one seed"
    accuracy += f", {len(runs)} seeds" if len(runs) == 2 else ""
    on_cpu = "cuda" not in first["backend"]
    seconds = median(runs, "processor_seconds" if on_cpu else "seconds")
    ran = f"{first['backend']}, {short(first['machine'])}"
    if not first["library"].startswith("spikecore"):
        ran = f"{first['library']}, {short(first['machine'])}"
    return [
        first["data"],
        first["network"],
        f"{first['parameters']:,}",
        str(first["epochs"]),
        accuracy,
        f"{seconds:.0f} s",
        f"{ran}<br>`{first['command']}`",
    ]


def short(machine: str) -> str:
    """The machine's name without marks."""
    return machine.replace("(R)", "").replace("(TM)", "").replace(" CPU", "").replace(" Processor", "")


def render(folder: Path) -> str:
    """The page."""
    rows = [row(runs) for runs in runs_of(folder)]
    weights = [
        [
            f'`load("{name}")`',
            known.data,
            known.network,
            f"{known.parameters:,}",
            f"{100 * known.accuracy:.2f} of {known.images:,} images",
            f"seed {known.seed}, {known.epochs} epochs of `{known.command}`",
            known.licence,
        ]
        for name, known in sc.models.trained().items()
    ]
    columns = ("name", "data", "network", "parameters", "accuracy, %", "trained by", "licence of the data")
    return HEAD + table(COLUMNS, rows) + DATA + WEIGHTS + table(columns, weights) + LICENCE


if __name__ == "__main__":
    PAGE.write_text(render(HERE / "training"), encoding="utf-8")
    print(PAGE)
