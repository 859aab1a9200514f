"""Programs in C that Python calls, beside other ways to run the same networks: a step at a call, and sequences.

    python docs/benchmarks/loaded.py --out docs/benchmarks/cpu-loaded.json
    python docs/benchmarks/loaded.py [--seconds 3] [--only dense convolutional residual recurrent integers]

One sample and one thread, in float32 but for ``integers``. Times are those that the processor spends on the thread, the
least of rounds in which all ways take turns. It needs a C compiler, onnxruntime, snnTorch and SpikingJelly.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import onnxruntime
import snntorch
import torch
from spikingjelly.activation_based import functional, neuron
from torch import Tensor, nn

import spikecore as sc

#: Seconds of a turn at least.
TURN = 0.02
#: ``fire(k, current)``: what gives the output of neurons k.
Fire = Callable[[int, Tensor], Tensor]
#: A way -> all steps of a sample, from rest.
Ways = Dict[str, Callable[[], Any]]


class Network(nn.Module):
    """Layers and neurons. ``step`` says what a time step computes; the last neurons are leaky integrators."""

    #: Shapes of a sample of each neuron.
    shapes: Tuple[Tuple[int, ...], ...] = ()

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(wrap(*parts) for parts in self.parts())
        self.neurons = nn.ModuleList([*(sc.LIF() for _ in self.shapes[1:]), sc.LI()])

    def parts(self) -> List[List[nn.Module]]:
        """Modules of each layer."""
        raise NotImplementedError

    def step(self, x: Tensor, fire: Fire, past: Any = None) -> Any:
        """The output, and the past of a recurrent layer."""
        for k, layer in enumerate(self.layers):
            x = fire(k, layer(x))
        return x, past

    def forward(self, x: Tensor) -> Tensor:
        """All steps."""
        output, _ = self.step(x, lambda k, y: self.neurons[k](y))
        return output  # type: ignore[no-any-return]

    def begin(self) -> Any:
        """The past at rest."""
        return None


class Dense(Network):
    """As for spoken digits (SHD)."""

    shapes = ((512,), (512,), (20,))
    inputs, rate, steps, spread = (700,), 0.02, 100, (0.28, 0.21, 0.1)

    def parts(self) -> List[List[nn.Module]]:
        """Three linear layers."""
        return [[nn.Linear(700, 512)], [nn.Linear(512, 512)], [nn.Linear(512, 20)]]


class Convolutional(Network):
    """As for gestures before an event camera (DVS), in 34x34."""

    shapes = ((32, 34, 34), (64, 17, 17), (64, 8, 8), (10,))
    inputs, rate, steps, spread = (2, 34, 34), 0.02, 40, (1.9, 0.26, 0.15, 0.1)

    def parts(self) -> List[List[nn.Module]]:
        """Three convolutions, each behind a maximum pooling, and a linear layer."""
        convs = [nn.Conv2d(a, b, 3, padding=1) for a, b in ((2, 32), (32, 64), (64, 64))]
        pools = [[], [nn.MaxPool2d(2)], [nn.MaxPool2d(2)]]
        last = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)]
        return [*([*pool, conv] for pool, conv in zip(pools, convs)), last]


class Residual(Network):
    """Two blocks with a sum around two convolutions each."""

    shapes = (*[(32, 16, 16)] * 5, (10,))
    inputs, rate, steps, spread = (2, 16, 16), 0.05, 40, (1.4, 0.25, 0.25, 0.25, 0.25, 0.1)

    def parts(self) -> List[List[nn.Module]]:
        """Five convolutions and a linear layer behind the mean of the image."""
        convs = [nn.Conv2d(2 if k == 0 else 32, 32, 3, padding=1) for k in range(5)]
        return [*([conv] for conv in convs), [nn.AvgPool2d(16), nn.Flatten(), nn.Linear(32, 10)]]

    def step(self, x: Tensor, fire: Fire, past: Any = None) -> Any:
        """Spikes of a block are those of its sum."""
        x = fire(0, self.layers[0](x))
        for k in (1, 3):
            x = fire(k + 1, self.layers[k + 1](fire(k, self.layers[k](x))) + x)
        return fire(5, self.layers[5](x)), past


class Delayed(Network):
    """Feedback whose connections have delays of up to 8 steps."""

    shapes = ((256,), (20,))
    inputs, rate, steps, spread = (700,), 0.02, 100, (0.28, 0.1, 0.1)

    def __init__(self, wrap: Any) -> None:
        super().__init__(wrap)
        back = sc.Delay(nn.Linear(256, 256), 8, per="input", learn=(), generator=torch.Generator().manual_seed(0))
        self.neurons[0] = sc.Recurrent(sc.LIF(), back)

    def parts(self) -> List[List[nn.Module]]:
        """Two linear layers."""
        return [[nn.Linear(700, 256)], [nn.Linear(256, 20)]]

    def step(self, x: Tensor, fire: Fire, past: Any = None) -> Any:
        """``past``: the last outputs, the newest first; None where the layer has them itself."""
        current = self.layers[0](x)
        if past is None:
            return fire(1, self.layers[1](fire(0, current))), None
        back: Any = self.neurons[0].linear
        late = past.gather(0, back.whole.view(1, 1, -1))[0]
        spikes = fire(0, current + back.linear(late))
        return fire(1, self.layers[1](spikes)), torch.cat([spikes.unsqueeze(0), past[:-1]])

    def begin(self) -> Tensor:
        """The past at rest."""
        back: Any = self.neurons[0].linear
        return torch.zeros(int(back.whole.max()) + 1, 1, 256)


def made(kind: Any, wrap: Any) -> Any:
    """The network with weights for which some per cent of the neurons fire."""
    torch.manual_seed(0)
    net = kind(wrap).eval()
    weights = [p for p in net.parameters() if p.ndim > 1]
    with torch.no_grad():
        for weight, spread in zip(weights, kind.spread):
            weight.normal_(0.0, spread)
        for bias in (p for p in net.parameters() if p.ndim == 1):
            bias.zero_()
    return net


def cell_of(net: Network, k: int) -> Any:
    """The neurons themselves, without their feedback."""
    cell = net.neurons[k]
    return cell.neuron if isinstance(cell, sc.Recurrent) else cell


class Step(nn.Module):
    """One step with the states as inputs and outputs."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        """Outputs, and the next states, that of the past last."""
        after: List[Tensor] = []

        def fire(k: int, y: Tensor) -> Tensor:
            z, state = cell_of(self.net, k).run(y.unsqueeze(0), state={"v": states[k]})
            after.append(state["v"])
            return z.squeeze(0)  # type: ignore[no-any-return]

        count = len(self.net.shapes)
        y, past = self.net.step(x, fire, states[count] if len(states) > count else None)
        return (y, *after, *([] if past is None else [past]))


def session(folder: Path, name: str, *arguments: Any, **options: Any) -> Any:
    """A network in ONNX Runtime on one thread."""
    file = str(folder / f"{name}.onnx")
    torch.onnx.export(*arguments, file, dynamo=True, verbose=False, **options)
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = chosen.inter_op_num_threads = 1
    chosen.log_severity_level = 3
    return onnxruntime.InferenceSession(file, chosen)


def of_onnx(net: Network, whole: Network, x: Tensor, folder: Path) -> Tuple[Ways, Ways]:
    """ONNX Runtime: steps, and the scan over all of them."""
    past = net.begin()
    start = [*(torch.zeros(1, *shape) for shape in net.shapes), *([] if past is None else [past])]
    stepped = session(folder, "step", Step(net), (x[0], *start), optimize=False)
    names = [value.name for value in stepped.get_inputs()]
    rows, arrays = [row.numpy() for row in x], [value.numpy() for value in start]

    def steps() -> Any:
        state, outputs = arrays, []
        for row in rows:
            y, *state = stepped.run(None, dict(zip(names, (row, *state))))
            outputs.append(y)
        return outputs

    sizes = ({0: torch.export.Dim("steps", min=2)},)
    program = torch.export.export(whole, (x,), dynamic_shapes=sizes)
    scanned, array = session(folder, "scan", program, ()), x.numpy()
    name = scanned.get_inputs()[0].name
    return {"ONNX Runtime": steps}, {"ONNX Runtime": lambda: scanned.run(None, {name: array})[0]}


def of_numba(net: nn.Module, x: Tensor) -> Tuple[Ways, Ways]:
    """spikecore's kernels of numba."""
    sc.set_backend(net, "numba")
    single = sc.set_step(copy.deepcopy(net), "single")
    rows = [*x]

    def steps() -> Any:
        sc.reset(single)
        return [single(row) for row in rows]

    return {"numba": steps}, {"numba": lambda: net(x)}


def of_spikingjelly(net: Network, whole: Network, x: Tensor) -> Tuple[Ways, Ways]:
    """SpikingJelly's neurons around the same layers; its multi-step mode where there is no feedback."""

    def cells(mode: str) -> nn.ModuleList:
        thresholds = [*[1.0] * (len(net.shapes) - 1), 1e9]
        return nn.ModuleList(
            neuron.LIFNode(v_threshold=bound, step_mode=mode, store_v_seq=mode == "m" and bound > 1)
            for bound in thresholds
        ).eval()

    single, multi, rows = cells("s"), cells("m"), [*x]

    def steps() -> Any:
        functional.reset_net(single)
        past, outputs = net.begin(), []
        for row in rows:
            _, past = net.step(row, lambda k, y: single[k](y), past)
            outputs.append(single[-1].v)
        return outputs

    def sequence() -> Any:
        functional.reset_net(multi)
        whole.step(x, lambda k, y: multi[k](y))
        return multi[-1].v_seq

    return {"SpikingJelly": steps}, {} if net.begin() is not None else {"SpikingJelly": sequence}


def of_snntorch(net: Network, x: Tensor) -> Tuple[Ways, Ways]:
    """snnTorch's neurons around the same layers, whose currents are halved: it adds the whole input."""
    resets = [*["zero"] * (len(net.shapes) - 1), "none"]
    cells = [snntorch.Leaky(beta=0.5, reset_mechanism=reset) for reset in resets]
    rows = [*x]

    def steps() -> Any:
        potentials = [cell.init_leaky() for cell in cells]
        past, outputs = net.begin(), []

        def fire(k: int, y: Tensor) -> Tensor:
            z, potentials[k] = cells[k](0.5 * y, potentials[k])
            return z  # type: ignore[no-any-return]

        for row in rows:
            _, past = net.step(row, fire, past)
            outputs.append(potentials[-1])
        return outputs

    return {"snnTorch": steps}, {}


def of_c(net: nn.Module, x: Tensor, folder: Path, dtype: str) -> Tuple[Ways, Ways]:
    """``sc.export_c(...).load()``, whose recorded test must have no difference."""
    program = sc.export_c(net, x, folder, dtype=dtype)
    said = subprocess.run(["make", "-s", "-C", str(folder), "test"], capture_output=True, text=True, check=True)
    print("   ", said.stdout.strip(), flush=True)
    step = program.load()
    given = (
        x[:, 0] if program.inputs is None else (x[:, 0].double() * 2.0 ** (program.inputs.frac or 0)).to(torch.uint8)
    )
    rows, given = [row.contiguous() for row in given], given.contiguous()

    def steps() -> Any:
        step.reset()
        return [step(row) for row in rows]

    def sequence() -> Any:
        step.reset()
        return step.run(given)

    return {"C": steps}, {"C": sequence}


def stacked(outputs: Any) -> Tensor:
    """Outputs of a way as a tensor ``[T, outputs]``."""
    rows = [torch.as_tensor(row).reshape(1, -1) for row in outputs]
    return torch.cat(rows)


def least(ways: Ways, steps: int, seconds: float) -> Dict[str, float]:
    """Microseconds of a step."""
    times, counts = dict.fromkeys(ways, float("inf")), dict.fromkeys(ways, 1)
    end, rounds = time.perf_counter() + seconds * len(ways), 0
    while time.perf_counter() < end or rounds < 5:
        for way, call in ways.items():
            begun = time.thread_time()
            for _ in range(counts[way]):
                call()
            took = (time.thread_time() - begun) / counts[way]
            counts[way] = max(1, round(TURN / took))
            times[way] = min(times[way], took)
        rounds += 1
    return {way: 1e6 * value / steps for way, value in times.items()}


NETWORKS: Dict[str, Tuple[Any, str]] = {
    "dense": (Dense, "float32"),
    "convolutional": (Convolutional, "float32"),
    "residual": (Residual, "float32"),
    "recurrent": (Delayed, "float32"),
    "integers": (Dense, "fixed"),
}


@torch.no_grad()
def measure(name: str, seconds: float) -> List[Dict[str, Any]]:
    """The rows of a network."""
    kind, dtype = NETWORKS[name]
    plain, whole = made(kind, nn.Sequential), made(kind, sc.layers.TimeBatched)
    torch.manual_seed(1)
    x = (torch.rand(kind.steps, 1, *kind.inputs) < kind.rate).float()
    own = whole if dtype == "float32" else sc.quant.prepare(whole, x).eval()
    fires: List[str] = []
    handles = [
        cell.register_forward_hook(lambda _, args, out: fires.append(f"{out.mean():.1%}"))
        for cell in [*own.neurons][:-1]
    ]
    expected = stacked(own(x)[:, 0])
    for handle in handles:
        handle.remove()
    rows: List[Dict[str, Any]] = []
    print(f"{name}: {kind.rate:.0%} of the inputs, {', '.join(fires)} of the neurons fire", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        both = [
            of_c(own, x, folder / "c", dtype),
            of_numba(copy.deepcopy(own), x),
            of_onnx(plain, copy.deepcopy(whole), x, folder),
            of_snntorch(plain, x),
            of_spikingjelly(plain, whole, x),
        ]
        for what, chosen in (("a step at a call", 0), ("a sequence", 1)):
            ways = {way: call for each in both for way, call in each[chosen].items()}
            apart = {way: float((stacked(call()) - expected).abs().max()) for way, call in ways.items()}
            print(f"    apart from spikecore, of {expected.abs().max():.2f}:", apart, flush=True)
            for way, value in least(ways, kind.steps, seconds).items():
                print(f"    {what:18}{way:14}{value:10.1f} us", flush=True)
                rows.append({"network": name, "call": what, "way": way, "us": value, "apart": apart[way]})
    return rows


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description="Programs in C that Python calls.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way")
    parser.add_argument("--only", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    document: Dict[str, Any] = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "rows": []}
    for name in options.only:
        document["rows"] += measure(name, options.seconds)
    if options.out:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
