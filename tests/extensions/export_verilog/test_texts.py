"""Traps of Verilog: widths, signs, the last line of a file, names; and faults that the recorded test notices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from c_programs import SPIKES, lif, on_grid, spikes
from spikecore.lang.dialects import VERILOG_WORDS
from spikecore_chips.quant import Format, fixed
from verilog_programs import changed, differing, made, modules

GRADED = Format(4, -128, 127)


def graded(*shape: int) -> torch.Tensor:
    """Random numbers of :data:`GRADED`, ``[T, 2, ...]``."""
    drawn = torch.randint(-128, 128, (shape[0], 2, *shape[1:]), generator=torch.Generator().manual_seed(0)).float()
    return drawn / 16


def layer() -> nn.Module:
    """A layer whose rows have grids of their own."""
    rows = on_grid(nn.Linear(6, 5))
    with torch.no_grad():
        rows.weight.mul_(2.0 ** torch.tensor([[1.0], [0.0], [-2.0], [0.0], [1.0]]))
    return rows.eval()


def network() -> nn.Module:
    """Two layers, and neurons with a product that is rounded."""
    thresholds = torch.tensor([0.25, 0.5, 0.25, 0.75, 1.0])
    second = on_grid(nn.Linear(5, 3), seed=1)
    return nn.Sequential(
        layer(), lif(tau=3.7, threshold=thresholds), second, fixed(sc.LI(tau=4.0), word=10, frac=6)
    ).eval()


@pytest.mark.parametrize("lanes", [1, 4])
def test_files_of_memories(lanes: int, tmp_path: Path) -> None:
    """Each has the words that its memory has, no wider than it, and its last line ends."""
    program = sc.export_verilog(network(), graded(4, 6), tmp_path, lanes=lanes, inputs=GRADED)
    memory = re.compile(r"reg \[(\d+):0\] (\w+) \[0:(\d+)\];\n(?:.*\n)?\s*initial \$readmemh\(\"(.+)\", \2\);")
    found = memory.findall((tmp_path / "network.v").read_text())
    assert {file for *_, file in found} == {file for file in program.files if re.fullmatch(r"\w+\.hex", file)}
    for high, _, last, file in found:
        text = (tmp_path / file).read_text()
        assert text.endswith("\n")
        words = [int(line, 16) for line in text.splitlines()]
        assert len(words) == int(last) + 1
        assert max(words) < 2 ** (int(high) + 1)
    assert program.weights == sum((int(high) + 1) * (int(last) + 1) for high, _, last, _ in found)


def test_registers_of_products_have_their_width(tmp_path: Path) -> None:
    """Weights from -128 to 127 and inputs from -128 to 127 make products of 16 bits: a wider register would repeat the
    sign, and yosys drops such bits of an iCE40's multiplier.
    """
    ends = nn.Linear(6, 4, bias=False)
    with torch.no_grad():
        ends.weight.copy_(torch.tensor([-128.0, 127.0, 5.0, 0.0, 1.0, 2.0]).expand(4, 6) / 128)
    sc.export_verilog(ends.eval(), graded(4, 6), tmp_path, inputs=GRADED)
    text = modules((tmp_path / "network.v").read_text())["network_linear"]
    assert re.search(r"reg \[15:0\] added4;", text)
    assert "added4[n*16 +: 16] <= $signed(weight3[n*8 +: 8]) * v3;" in text


def test_no_operand_without_a_sign(tmp_path: Path) -> None:
    """A part of a word has no sign, and takes it from the others of an expression."""
    sc.export_verilog(network(), graded(4, 6), tmp_path, inputs=GRADED)
    for name, text in modules((tmp_path / "network.v").read_text()).items():
        if name.endswith("__step"):
            values = re.sub(r"\$signed\(\{[^}]*\}\)", "", "".join(re.findall(r" = (.+);", text)))
            assert "[" not in values, values
            assert not re.search(r"(?<!s)(?<!s\d)[dhb]\d", values), values


class Words(sc.Neuron):
    """States and parameters that are words of Verilog, names of ports, or equal but for letters."""

    states = {"reg": 0.0, "logic": 0.0, "clk": 0.0, "next_0": 0.0, "out": 0.25}
    params = {"module": 0.75, "Reg": 0.5, "wire": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        begin = p.module * s.reg + x
        z = self.spike(begin + s.logic * p.Reg - p.wire)
        return z, {"reg": begin * (1.0 - z), "logic": s.clk, "clk": s.next_0, "next_0": s.out, "out": begin * p.Reg}


def test_names(tmp_path: Path) -> None:
    """Words of Verilog and of SystemVerilog are no names, and a user's names are."""
    net = nn.Sequential(fixed(Words(Reg=torch.tensor([0.5, 0.25, 0.75])), word=12, frac=6))
    sc.export_verilog(net.eval(), graded(20, 3), tmp_path, inputs=GRADED)
    text = modules((tmp_path / "network.v").read_text())["network_words_0__step"]
    names = re.findall(r"signed \[\d+:0\] (\w+)", text)
    assert not VERILOG_WORDS.intersection(names)
    assert {"reg_", "logic_", "clk_", "next_0_"} <= {*names}
    assert differing(tmp_path)[0] == 0


def test_a_table_is_a_memory(tmp_path: Path) -> None:
    """Sixteen pieces are read by their number, and compared with no border."""
    neuron = fixed(sc.EIF(threshold=0.5), word=12, tables={"exp": (-4.0, 4.0, 16)})
    sc.export_verilog(nn.Sequential(neuron).eval(), graded(40, 3), tmp_path, inputs=GRADED)
    text = modules((tmp_path / "network.v").read_text())["network_eif_0__step"]
    assert [cases.count(" = ") for cases in re.findall(r"case(.*?)endcase", text, re.DOTALL)] == [16, 16]
    assert text.count(">=") == 1
    assert differing(tmp_path)[0] == 0


def test_inputs_that_are_0(tmp_path: Path) -> None:
    """A layer needs those that are not 0; neurons, and a maximum of what may be negative, need all."""
    pool = sc.layers.TimeBatched(nn.MaxPool2d(2)).eval()
    wanted = {"linear": (nn.Linear(4, 4), (4,), "those that are not 0"), "pool": (pool, (1, 4, 4), "all of them")}
    wanted["neuron"] = (nn.Sequential(fixed(sc.LIF(), word=12, frac=6)), (4,), "all of them")
    for name, (net, shape, words) in wanted.items():
        sc.export_verilog(on_grid(net), graded(4, *shape), tmp_path / name, inputs=GRADED)
        assert f"Before it write the inputs, {words}:" in (tmp_path / name / "network.v").read_text()


def replaced(old: str, new: str) -> Callable[[str], str]:
    """A change of a text at its first place."""
    return lambda text: re.sub(old, new, text, count=1)


class Visible(sc.Neuron):
    """A neuron whose potential is seen: that of its product, its reset and its ends."""

    states = {"v": 0.25}
    params = {"leak": 0.75, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = p.leak * s.v + x
        return v, {"v": v - self.spike(v - p.threshold) * p.threshold}


def neurons() -> nn.Module:
    thresholds = torch.tensor([0.25, 0.5, 0.25, 0.75, 1.0])
    return nn.Sequential(fixed(Visible(threshold=thresholds), word=8, frac=4)).eval()


def first_word(change: int) -> Callable[[str], str]:
    """A change of the first word of a memory."""
    return lambda text: f"{int(text.split()[0], 16) ^ change:x}" + text[text.index("\n") :]


#: Name -> the network, the file, and what is wrong in it.
FAULTS: Dict[str, Tuple[Callable[[], nn.Module], str, Callable[[str], str]]] = {
    "a weight": (layer, "network_linear_weights.hex", first_word(16)),
    "an offset": (layer, "network_linear_offsets.hex", first_word(1)),
    "a shift": (layer, "network.v", replaced(r" <<< shift3\[n\*\d \+: \d\]", "")),
    "a sign of a weight": (layer, "network.v", replaced(r"\$signed\(weight2\[n\*8 \+: 8\]\)", "weight2[n*8 +: 8]")),
    "a sum of another place": (layer, "network.v", replaced(r"at3 <= at2;", "at3 <= at1;")),
    "a list that grows": (layer, "network.v", replaced(r"if \(clear\) count <= 0;", "if (clear === 1'bx) count <= 0;")),
    "a number of a neuron": (neurons, "network_visible_0_values.hex", first_word(1)),
    "ties": (neurons, "network.v", replaced(r" \+ \$signed\(\{1'b0, \w+\[\d+\]\}\);", ";")),
    "an end": (neurons, "network.v", replaced(r"(\w+) > (\d+'sd\d+) \? \2 : \1;", r"\1;")),
    "a border": (neurons, "network.v", replaced(r">= 1'sd0", "> 1'sd0")),
    "a coefficient": (neurons, "network.v", lambda text: re.sub(r"(\d+)'sd(\d+) \* ", more, text)),
    "rest": (neurons, "network.v", replaced(r"fresh \? \d'sd\d+ :", "fresh && 0 ? 1'sd0 :")),
    "a stage": (neurons, "network.v", replaced(r"(\w+)_q1 <= \1;", r"\1_q1 <= -\1;")),
}


def more(found: Any) -> str:
    """A coefficient that is 1 / 16 more."""
    return f"{found[1]}'sd{int(found[2]) * 17 // 16} * "


@pytest.mark.parametrize("name", [*FAULTS])
def test_a_fault_is_noticed(name: str, tmp_path: Path) -> None:
    """The recorded steps differ, and the exit status says so."""
    make, file, change = FAULTS[name]
    net = make()
    x = graded(30, 5 if make is neurons else 6)
    sc.export_verilog(net, x, tmp_path, inputs=GRADED)
    changed(tmp_path / file, change)
    done = made(tmp_path, "test-icarus")
    assert done.returncode != 0
    assert re.search(r" [1-9]\d* of \d+ outputs differ|no end of step", done.stdout), done.stdout + done.stderr


def test_the_bench_reads_what_was_recorded(tmp_path: Path) -> None:
    """One wrong output of the recorded ones is one that differs."""
    sc.export_verilog(network(), graded(8, 6), tmp_path, inputs=GRADED)
    assert differing(tmp_path) == (0, 8 * 2 * 3)
    changed(tmp_path / "test/outputs.hex", lambda text: text[: text.rindex("\n", 0, -1) + 1] + "1ff\n")
    assert differing(tmp_path) == (1, 8 * 2 * 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_the_cells_of_a_chip(kind: str, tmp_path: Path) -> None:
    """A netlist for the iCE40 has the bits of the text, its multipliers included."""
    convolution = sc.layers.TimeBatched(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    net, shape = (network(), (6,)) if kind == "linear" else (on_grid(convolution, bits=5).eval(), (1, 4, 4))
    sc.export_verilog(net, graded(4, *shape), tmp_path, inputs=GRADED)
    assert differing(tmp_path, "test-netlist")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["synth", "synth-ice40"])
def test_size_and_speed(target: str, tmp_path: Path) -> None:
    """Cells that a chip needs, and its clock: no less than 25 MHz."""
    net = on_grid(nn.Sequential(nn.Linear(6, 16), lif(), nn.Linear(16, 4)))
    sc.export_verilog(net.eval(), spikes(4, 6), tmp_path, inputs=SPIKES)
    text = made(tmp_path, target).stdout
    found: List[str] = re.findall(r"(?:TRELLIS_COMB|ICESTORM_LC): *(\d+)/", text)
    assert len(found) == 1, text
    assert 100 < int(found[0]) < 2000
    assert float(re.findall(r"([\d.]+) MHz", text)[0]) > 25
