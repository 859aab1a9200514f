"""Exported programs of any number of steps: outputs that differ, and sizes and times beside unrolled programs.

    python docs/benchmarks/any_steps.py [--tables bits times] [--unrolled 25 100] [--rounds 20] [--web]

The first table has one file for each neuron and network, at three numbers of steps and samples: outputs that are not
PyTorch's, in a saved and loaded ``.pt2``, in ONNX Runtime, and with ``--web`` in Node and headless Chromium
(onnxruntime-web, as ``make test-web`` installs it). The second has sizes and times. Times are the least of rounds in
which all take turns, on one thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

sys.path.append(str(Path(__file__).parents[2] / "tests" / "shared"))
from browsers import in_chromium, in_node, onnxruntime_web

TimeBatched = sc.layers.TimeBatched
#: Steps and samples of calls of one file.
SIZES = ((1, 3), (25, 1), (100, 5))
CHANNELS = 16
#: Steps and samples of calls that are timed.
TIMED = ((100, 1), (100, 32))
JAVASCRIPT = """
import * as ort from "onnxruntime-web";
ort.env.wasm.numThreads = 1;
const results = {};
for (const { name, calls, rounds } of given) {
  const session = await ort.InferenceSession.create(await file(`${name}.onnx`), { executionProviders: ["wasm"] });
  results[name] = [];
  for (const { x, sizes } of calls) {
    const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", Float32Array.from(x), sizes) };
    let y, least = Infinity;
    for (let k = 0; k < rounds; k++) {
      const start = performance.now();
      y = (await session.run(feeds))[session.outputNames[0]];
      least = Math.min(least, performance.now() - start);
    }
    results[name].push({ y: rounds > 1 ? [] : [...y.data], least });
  }
}
answer(results);
"""


class Alone(nn.Module):
    """A neuron as a network of one input: other inputs are the first, backwards over channels."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.neuron = sc.neurons.example(name)
        self.vector = len(self.neuron.inputs) if isinstance(type(self.neuron).inputs, dict) else 0

    def forward(self, x: Tensor) -> Any:
        """Its spikes."""
        if self.vector:
            return self.neuron(x.unsqueeze(-1).expand(*x.shape, self.vector))
        return self.neuron(x, *[x.flip(-1)] * (len(self.neuron.inputs) - 1))


def networks() -> Dict[str, Tuple[nn.Module, Sequence[int]]]:
    """Name -> the network, and the shape of a step."""
    late = sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(32, 32), 5, learn=()))
    conv = [TimeBatched(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)), sc.LIF()]
    more = [TimeBatched(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)), sc.PLIF(), TimeBatched(nn.Flatten(), nn.Linear(288, 10))]
    fused = sc.fuse(nn.Sequential(TimeBatched(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8)), sc.LIF()))
    late_inputs = sc.Delay(nn.Linear(20, 32), 8, learn=())
    return {
        **{name: (Alone(name), (CHANNELS,)) for name in sc.neurons.MODELS},
        "dense": (nn.Sequential(nn.Linear(20, 32), sc.LIF(), nn.Linear(32, 10), sc.LIF()), (20,)),
        "convolutional": (nn.Sequential(*conv, *more, sc.LIF()), (2, 16, 16)),
        "fused convolution": (fused, (2, 16, 16)),
        "Recurrent(LIF)": (nn.Sequential(nn.Linear(20, 32), sc.Recurrent(sc.LIF(), nn.Linear(32, 32))), (20,)),
        "Recurrent(ALIF), LI": (
            nn.Sequential(nn.Linear(20, 32), sc.Recurrent(sc.ALIF(), nn.Linear(32, 32)), nn.Linear(32, 5), sc.LI()),
            (20,),
        ),
        "Recurrent with Delay": (nn.Sequential(nn.Linear(20, 32), late), (20,)),
        "Delay": (nn.Sequential(late_inputs, sc.LIF()), (20,)),
        "SpikingLSTM": (sc.layers.SpikingLSTM(20, 16), (20,)),
    }


def firing(net: nn.Module) -> nn.Module:
    """The network in eval(), with weights that make it fire."""
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight.data.mul_(3)
            if module.bias is not None:
                module.bias.data.add_(0.5)
    return net.eval()


def exported(net: nn.Module, x: Tensor, path: Path, steps: int = 0) -> Tuple[float, float]:
    """Seconds of torch.export and of torch.onnx.export; ``steps`` for an unrolled program."""
    dynamic: Dict[int, Any] = {1: torch.export.Dim("batch")}
    if not steps:
        dynamic[0] = torch.export.Dim("steps", min=2)
    start = time.perf_counter()
    program = torch.export.export(nn.Sequential(net), (x,), dynamic_shapes=(dynamic,))
    middle = time.perf_counter()
    file, how = f"{path}.onnx", {"dynamo": True, "verbose": False, "external_data": False, "optimize": not steps}
    with torch.no_grad():  # and not around torch.export, whose program could not be saved then
        torch.onnx.export(program, (), file, **how)
    end = time.perf_counter()
    torch.export.save(program, f"{path}.pt2")
    return middle - start, end - middle


def session(path: Path) -> Callable[[Tensor], Tensor]:
    """A file in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    of = onnxruntime.InferenceSession(f"{path}.onnx", options)
    name = of.get_inputs()[0].name
    return lambda x: torch.from_numpy(of.run(None, {name: x.numpy()})[0])


def inputs(shape: Sequence[int], sizes: Sequence[Tuple[int, int]]) -> List[Tensor]:
    """Random inputs; those of a neuron by itself are small for the first channel and large for the last."""
    scale = torch.logspace(-0.3, 1.6, CHANNELS) if tuple(shape) == (CHANNELS,) else torch.tensor(2.0)
    return [torch.randn(*size, *shape) * scale for size in sizes]


def apart(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    """Outputs that differ, and by how much at most."""
    gaps = torch.cat([(a - b).abs().flatten() for a, b in zip(got, wanted)])
    count = int(gaps.count_nonzero())
    return f"{count} (by {float(gaps.max()):.0e})" if count else "0"


def in_browsers(folder: Path, given: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """What Node and Chromium answer; without the one that is not here."""
    (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
    table = '{"imports": {"onnxruntime-web": "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs"}}'
    read = 'import { readFile } from "node:fs/promises";\nconst file = readFile;\n'
    places = {
        "Node": lambda: in_node(folder, f'{read}const given = JSON.parse(await file("given.json"));\n{JAVASCRIPT}'),
        "Chromium": lambda: in_chromium(
            folder,
            f'const file = (n) => n;\nconst given = await (await fetch("given.json")).json();\n{JAVASCRIPT}',
            f'<script type="importmap">{table}</script>',
        ),
    }
    answers = {}
    for place, run in places.items():
        try:
            answers[place] = run()
        except pytest.skip.Exception as reason:
            print(f"without {place}: {reason}", file=sys.stderr)
    return answers


def bits(folder: Path, web: bool) -> None:
    """The first table."""
    wanted: Dict[str, List[Tensor]] = {}
    rows: Dict[str, List[str]] = {}
    given = []
    for number, (name, (net, shape)) in enumerate(networks().items()):
        firing(net)
        path = folder / str(number)
        took = exported(net, torch.randn(3, 2, *shape), path)
        xs = inputs(shape, SIZES)
        program, run = torch.export.load(f"{path}.pt2").module(), session(path)
        with torch.no_grad():
            wanted[name] = [net(x) for x in xs]
            saved = apart([program(x) for x in xs], wanted[name])
        rate = float(torch.cat([y.flatten() for y in wanted[name]]).ne(0).float().mean())
        rows[name] = [f"{rate:.2f}", saved, apart([run(x) for x in xs], wanted[name]), f"{took[0]:.1f} + {took[1]:.1f}"]
        given.append({"name": str(number), "rounds": 1, "calls": calls(xs)})
        print(name, *rows[name], sep=" | ", file=sys.stderr, flush=True)
    answers = in_browsers(folder, given) if web else {}
    print(f"\n| | outputs not 0 | pt2 | ONNX Runtime | {''.join(f'{place} | ' for place in answers)}export, s |")
    print("|---|" + "---|" * (4 + len(answers)))
    for number, (name, row) in enumerate(rows.items()):
        for answer in answers.values():
            got = [torch.tensor(call["y"], dtype=torch.float32) for call in answer[str(number)]]
            row.insert(-1, apart(got, [y.flatten() for y in wanted[name]]))
        print(f"| {name} | {' | '.join(row)} |")


def calls(xs: Sequence[Tensor]) -> List[Dict[str, Any]]:
    """Inputs for JavaScript."""
    return [{"x": x.flatten().tolist(), "sizes": [*x.shape]} for x in xs]


def least(runs: Sequence[Callable[[], object]], rounds: int) -> List[float]:
    """Milliseconds of each."""
    times = [float("inf")] * len(runs)
    for _ in range(rounds):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            run()
            times[k] = min(times[k], time.perf_counter() - start)
    return [1e3 * value for value in times]


def times(folder: Path, unrolled: Sequence[int], rounds: int, web: bool) -> None:
    """The second table."""
    layers = {
        "Linear 128-128, LIF": (nn.Sequential(nn.Linear(128, 128), sc.LIF()), 128),
        "700-256-20, LIF": (nn.Sequential(nn.Linear(700, 256), sc.LIF(), nn.Linear(256, 20), sc.LIF()), 700),
        "Recurrent(LIF) of 128": (nn.Sequential(nn.Linear(128, 128), sc.Recurrent(sc.LIF(), nn.Linear(128, 128))), 128),
    }
    print("\n| | | export, s | ONNX, kB | load, ms | T = 100: B = 1, ms | B = 32, ms |\n|---|---|---|---|---|---|---|")
    for number, (title, (net, width)) in enumerate(layers.items()):
        firing(net)
        sc.set_backend(net, "numba")
        xs = inputs((width,), TIMED)
        rows: Dict[str, List[str]] = {}
        runs: Dict[str, List[Callable[[], object]]] = {}
        for steps in (0, *unrolled):
            path = folder / f"timed_{number}_{steps}"
            took = exported(net, torch.randn(steps or 3, 2, width), path, steps)
            (load,) = least([lambda path=path: session(path)], 5)
            run = session(path)
            kind = f"unrolled, T = {steps}" if steps else "scan, any T"
            size = Path(f"{path}.onnx").stat().st_size / 1e3
            rows[kind] = [f"{sum(took):.1f}", f"{size:.0f}", f"{load:.0f}"]
            if steps in (0, TIMED[0][0]):
                runs[kind] = [lambda x=x, run=run: run(x) for x in xs]
                program = torch.export.load(f"{path}.pt2").module()
                runs[f"{kind}, pt2 in PyTorch"] = [lambda x=x, run=program: run(x) for x in xs]
        runs["PyTorch with numba"] = [lambda x=x, run=net: run(x) for x in xs]
        with torch.no_grad():
            for k in range(len(xs)):
                for kind, took in zip(runs, least([each[k] for each in runs.values()], rounds)):
                    rows.setdefault(kind, ["", "", ""]).append(f"{took:.2f}")
        given = [{"name": f"timed_{number}_0", "rounds": rounds, "calls": calls(xs)}]
        for place, answer in (in_browsers(folder, given) if web else {}).items():
            rows[f"scan, in {place}"] = ["", "", "", *(f"{call['least']:.2f}" for call in answer[given[0]["name"]])]
        for kind, row in rows.items():
            print(f"| {title} | {kind} | {' | '.join([*row, '', ''][:5])} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", nargs="*", default=["bits", "times"])
    parser.add_argument("--unrolled", type=int, nargs="*", default=[25, 100], help="steps of unrolled programs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--web", action="store_true", help="also in Node and Chromium")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # torch warns of its own modules
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        if options.web:
            onnxruntime_web(folder)
        if "bits" in options.tables:
            bits(folder, options.web)
        if "times" in options.tables:
            times(folder, options.unrolled, options.rounds, options.web)


if __name__ == "__main__":
    main()
