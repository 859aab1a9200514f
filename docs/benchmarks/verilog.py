"""Steps of neurons in Verilog beside Python's integers and C, and two trained networks as Verilog.

    python docs/benchmarks/verilog.py neurons [--rows 10000] [--nanoseconds 10]
    python docs/benchmarks/verilog.py drawn --number 200
    python docs/benchmarks/verilog.py networks --data FOLDER --weights FILE --synth

``neurons``: those of spikecore with one input, and one of a user's. ``drawn``: random ones. The module of a step that
``sc.export_verilog`` wrote gets random inputs and states, and runs by itself from rest; its outputs and next states are
those of Python's integers (``tests/shared/integers.py``) for as many rows and steps. The program in C and PyTorch run
from rest, too. ``networks``: that of ``examples/microcontroller.py`` for digits, and that of ``examples/ecg.py``, with
its data and weights.

Needs Verilator, or with ``--simulator icarus`` Icarus Verilog. The exit status is 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Tuple

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/shared"))

import fixed_point

import microcontroller
import spikecore as sc
from common import data, heartbeats
from drawn_neurons import INPUTS, exact
from integers import Integers, fixed_model
from spikecore.lang import Node
from spikecore.neurons import MODELS, example
from verilog_programs import modules

#: Modules that one simulation holds.
TOGETHER = 25


class Own(sc.Neuron):
    """A synapse, a potential, and steps that it pauses."""

    states = {"i": 0.0, "v": 0.0, "r": 0.0}
    params = {"decay": 0.85, "leak": 0.9, "threshold": 1.0, "pause": 3.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """A step."""
        i = p.decay * s.i + x
        u = sc.ops.where(s.r > 0.0, s.v, p.leak * s.v + i)
        z = self.spike(u - p.threshold)
        r = sc.ops.select(z, p.pause, sc.ops.maximum(s.r - 1.0, 0.0))
        return z, {"i": i, "v": sc.ops.select(z, -0.25, u), "r": r}


class Output(nn.Module):
    """One output of a neuron."""

    def __init__(self, neuron: Any, at: int) -> None:
        super().__init__()
        self.neuron, self.at = neuron, at

    def forward(self, x: Tensor) -> Tensor:
        """All steps."""
        values = self.neuron(x)
        return values[self.at] if isinstance(values, tuple) else values


class Neuron(NamedTuple):
    """A neuron in fixed point, one of its outputs, and the dtype of its arithmetic."""

    label: str
    module: Any
    output: int = 0
    dtype: torch.dtype = torch.float32


class Case(NamedTuple):
    """A module, the bits of its ports, and its rows as integers: inputs and states, outputs and next states."""

    name: str
    text: str
    latency: int
    bits: Tuple[List[int], List[int]]
    rows: Tuple[np.ndarray, np.ndarray]


def known() -> Iterator[Neuron]:
    """Each neuron with one input."""
    for name in MODELS:
        if len(example(name).inputs) == 1 and not example(name).vectors:
            yield Neuron(name, fixed_model(name))
    yield Neuron("Own", sc.quant.fixed(Own(), word=16))


def drawn(number: int) -> Iterator[Neuron]:
    """Random neurons, half of them in float64."""
    for program, dtype in enumerate((torch.float32, torch.float64)):
        for k, (neuron, output) in enumerate(islice(exact(program, dtype), number // 2)):
            yield Neuron(f"drawn {program}.{k}", neuron, output, dtype)


def numbers(format: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of a format: half of them anywhere, half of them near 0."""
    frac, low, high = int(format.frac or 0), int(format.low), int(format.high)
    small = np.clip(np.rint(rng.normal(0.0, 0.7 * 2.0**frac, count)), low, high)
    return np.where(rng.random(count) < 0.5, rng.integers(low, high + 1, count), small) * 2.0**-frac


def case(name: str, of: Neuron, options: argparse.Namespace) -> Case:
    """A neuron's module and rows. C and PyTorch are compared here."""
    label, neuron, output, dtype = of
    rng, program = np.random.default_rng(0), neuron.program
    formats = sc.quant.analyse(program, {program.inputs[0]: INPUTS}, dtype)
    params = {key: float(torch.as_tensor(value).detach()) for key, value in neuron.named_values().items()}
    integers = Integers(program, params, np.float64 if dtype == torch.float64 else np.float32)
    of_states = [formats[Node("state", (), state)] for state in program.states]

    x = numbers(INPUTS, options.rows, rng)
    states = [numbers(format, options.rows, rng) for format in of_states]
    outputs, following = integers.run([x[None]], formats, states)
    over_time = numbers(INPUTS, options.rows, rng)
    rest = [np.full(1, float(integers.coefficients[node])) for node in program.initial]
    made, trace = integers.run([over_time[:, None]], formats)

    net, xs = Output(neuron, output).eval(), torch.from_numpy(over_time).to(dtype).view(-1, 1, 1)
    with tempfile.TemporaryDirectory() as place, torch.no_grad():
        core = sc.export_verilog(net, xs[:8], place, name=name, nanoseconds=options.nanoseconds, inputs=INPUTS)
        texts = {k: v for k, v in modules((Path(place) / f"{name}.v").read_text()).items() if k.endswith("__step")}
        in_c = sc.export_c(net, xs[:8], Path(place) / "c", name=name, inputs=INPUTS).load().run(xs[:, 0])
        for what, other in (("PyTorch", net(xs)), ("C", in_c)):
            if not np.array_equal(np.asarray(other).reshape(-1), made[output][:, 0]):
                sys.exit(f"{label}: {what} differs from integers")
    (key, text), (latency,) = *texts.items(), core.latency.values()
    given, wanted = (re.findall(rf"{side} signed \[(\d+):0\]", text) for side in ("input", "output"))
    bits = [int(high) + 1 for high in given], [int(high) + 1 for high in wanted]
    scales = [2.0 ** int(format.frac or 0) for format in (INPUTS, formats[program.outputs[output]], *of_states)]
    before = [np.concatenate([x, over_time])]
    before += [np.concatenate([s, r, t[:-1, 0]]) for s, r, t in zip(states, rest, trace)]
    after = [np.concatenate([a[0], b[:, 0]]) for a, b in zip([outputs[output], *following], [made[output], *trace])]
    return Case(
        label,
        f"module {key}{text}endmodule",
        latency,
        bits,
        (
            np.stack([a * s for a, s in zip(before, [scales[0], *scales[2:]])], 1),
            np.stack([a * s for a, s in zip(after, scales[1:])], 1),
        ),
    )


BENCH = """
module case{n}(input clk, output reg over = 0);
    reg [{given}-1:0] given [0:{all}-1];
    reg [{wanted}-1:0] wanted [0:{all}-1];
    reg [{states}-1:0] state;
    reg [{given}-1:0] now;
    wire [{wanted}-1:0] made;
    integer row = 0, count = 0, wrong = 0;
    {module} step(.clk(clk){ports});
    initial begin
        $readmemh("given{n}.hex", given); $readmemh("wanted{n}.hex", wanted);
    end
    // from rest a step takes the states that the last one made
    always @* now = row > {rows} ? {{given[row][{given}-1:{states}], state}} : given[row];
    always @(posedge clk) if (!over) begin
        count <= count == {latency} ? 0 : count + 1;
        if (count == {latency}) begin
            if (made !== wanted[row]) wrong <= wrong + 1;
            state <= made[{states}-1:0];
            row <= row + 1;
            over <= row == {all} - 1;
            if (row == {all} - 1) $display("{n}: %0d differ", wrong + (made !== wanted[row]));
        end
    end
endmodule
"""
TOP = """
module bench;
    reg clk = 0;
    wire [{count}-1:0] over;
    {cases}
    always #1 clk = !clk;
    always @(posedge clk) if (&over) $finish;
endmodule
"""


def words(rows: np.ndarray, bits: List[int]) -> str:
    """Rows of a memory, the first number in the highest bits."""
    lines = []
    for row in rows:
        word = 0
        for n, size in zip(row, bits):
            if not -(1 << (size - 1)) <= n < 1 << (size - 1):
                raise ValueError(f"{n} has more than {size} bits")
            word = word << size | int(n) & ((1 << size) - 1)
        lines.append(f"{word:x}\n")
    return "".join(lines)


def simulated(cases: List[Case], rows: int, simulator: str) -> List[int]:
    """How many rows of each case differ."""
    with tempfile.TemporaryDirectory() as place:
        texts = []
        for n, each in enumerate(cases):
            ports, sizes = "", [sum(bits) for bits in each.bits]
            for side, name, at in zip(("input", "output"), ("now", "made"), sizes):
                for high, port in re.findall(rf"{side} signed \[(\d+):0\] (\w+)", each.text):
                    at -= int(high) + 1
                    ports += f", .{port}({name}[{at} +: {int(high) + 1}])"
            found = re.search(r"module (\w+)", each.text)
            texts += [
                each.text,
                BENCH.format(
                    n=n, module=found[1] if found else "", ports=ports, rows=rows, all=2 * rows, latency=each.latency,
                    given=sizes[0], wanted=sizes[1], states=sum(each.bits[0][1:]),
                ),
            ]  # fmt: skip
            for file, numbers_of, bits in zip(("given", "wanted"), each.rows, each.bits):
                (Path(place) / f"{file}{n}.hex").write_text(words(numbers_of, bits))
        of_top = "\n    ".join(f"case{n} c{n}(.clk(clk), .over(over[{n}]));" for n in range(len(cases)))
        (Path(place) / "bench.v").write_text("\n".join([*texts, TOP.format(count=len(cases), cases=of_top)]))
        command = "verilator --binary --timing -fno-life -j 1 -O1 -Wno-fatal -Wno-lint --top-module bench bench.v"
        command += " > build.txt 2>&1 && obj_dir/Vbench"
        if simulator == "icarus":
            command = "iverilog -g2005 -s bench -o bench bench.v && vvp -n bench"
        done = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True, check=False)
        found_in = dict(re.findall(r"^(\d+): (\d+) differ", done.stdout, re.MULTILINE))
        if len(found_in) != len(cases):
            build = Path(place) / "build.txt"
            sys.exit(done.stdout + done.stderr + (build.read_text()[-3000:] if build.exists() else ""))
    return [int(found_in[str(n)]) for n in range(len(cases))]


def steps(neurons: Iterator[Neuron], options: argparse.Namespace) -> bool:
    """Compare the steps of neurons. True if no row differs."""
    differ = total = 0
    while True:
        group = list(islice(neurons, TOGETHER))
        if not group:
            break
        cases = [case(f"n{n}", each, options) for n, each in enumerate(group)]
        for each, wrong in zip(cases, simulated(cases, options.rows, options.simulator)):
            rate = float((each.rows[1][:, 0] != 0).mean())
            print(f"{each.name}: {each.latency} stages, outputs not 0 {rate:.3f}, {wrong} rows differ", flush=True)
            differ, total = differ + wrong, total + 1
    print(f"{total} neurons, {options.rows} rows and {options.rows} steps from rest each: {differ} differ")
    return not differ


def digits(options: argparse.Namespace) -> Tuple[nn.Module, Tensor]:
    """The network of examples/microcontroller.py, trained, in integers, and test images over time."""
    torch.manual_seed(0)
    order = torch.Generator().manual_seed(0)
    training, test = (part.tensors for part in data.digits()[1:3])
    net = microcontroller.network()
    microcontroller.train(net, training, options.epochs, 4e-3, order)
    fixed = sc.quant.prepare(net, microcontroller.over_time(training[0][:256]))
    microcontroller.train(fixed, training, max(1, options.epochs // 4), 4e-4, order)
    print(f"digits: {microcontroller.accuracy(fixed, test):.1%} of the test images", flush=True)
    return fixed, microcontroller.over_time(test[0][:4])


def ecg(options: argparse.Namespace) -> Tuple[nn.Module, Tensor]:
    """The network of examples/ecg.py with published weights, in integers, and a sequence."""
    task = fixed_point.Heartbeats(0, options)
    x = next(iter(task.batches()))[0].double()
    fixed = sc.quant.prepare(task.net.double().eval(), x, dtype=torch.float64).eval()
    print(f"ecg: {task.accuracy(fixed):.1%} of the test steps", flush=True)
    return fixed, x[:, :1]


def networks(options: argparse.Namespace) -> bool:
    """Trained networks, simulated, and synthesised where that is asked for. True if no bit differs."""
    right = True
    for make in (digits, ecg):
        name, (net, x) = make.__name__, make(options)
        with tempfile.TemporaryDirectory() as place:
            core = sc.export_verilog(net, x, place, name=name, nanoseconds=options.nanoseconds)
            print(f"{name}: {core.weights} bits of weights, {core.memory} of memory, {core.clocks} clocks at most")
            for target in ("test", *(("synth", "synth-ice40") if options.synth else ())):
                done = subprocess.run(["make", "-s", "-C", place, target], capture_output=True, text=True, check=False)
                print(target, done.stdout + done.stderr, sep="\n", flush=True)
                # a chip may be too small
                right = right and (target != "test" or not done.returncode)
    return right


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Verilog beside Python's integers, C and PyTorch.")
    parser.add_argument("what", choices=("neurons", "drawn", "networks"))
    parser.add_argument("--rows", type=int, default=10_000, help="random rows, and steps from rest")
    parser.add_argument("--number", type=int, default=200, help="of drawn neurons")
    parser.add_argument("--nanoseconds", type=float, default=10.0, help="between registers")
    parser.add_argument("--simulator", choices=("verilator", "icarus"), default="verilator")
    parser.add_argument("--epochs", type=int, default=8, help="of the digits in floats")
    parser.add_argument("--data", default=heartbeats.MADE_UP, help="the folder of the electrocardiograms")
    parser.add_argument("--weights", type=Path, help="of the electrocardiograms' network")
    parser.add_argument("--synth", action="store_true", help="networks on an ECP5-25k and an iCE40 UP5K, too")
    options = parser.parse_args()
    if options.what == "networks":
        right = networks(options)
    else:
        right = steps(known() if options.what == "neurons" else drawn(options.number), options)
    sys.exit(not right)


if __name__ == "__main__":
    main()
