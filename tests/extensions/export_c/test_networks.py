"""Whole networks have the same bits in PyTorch, in C here, on a Cortex-M4 and as WebAssembly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import spikecore as sc
from c_programs import CHECKED, SPIKES, TOOLS, differing, lif, made, needs, on_grid, spikes
from spikecore_chips.quant import Format, fixed

STEPS = 1000
TimeBatched = sc.layers.TimeBatched


def leak(**options: object) -> nn.Module:
    return fixed(sc.LI(tau=4.0, **options), word=16, frac=8)


def delay(inputs: int, outputs: int, longest: int, **options: object) -> sc.Delay:
    generator = torch.Generator().manual_seed(1)
    return sc.Delay(nn.Linear(inputs, outputs), longest, learn=(), generator=generator, **options)


class Residual(nn.Module):
    """A sum of spikes and of what a branch makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(TimeBatched(nn.Conv2d(4, 4, 3, padding=1)), lif())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), lif(), nn.Linear(32, 5), leak())


def convolutional() -> nn.Module:
    thresholds = torch.tensor([0.125, 0.25, 0.375, 0.5])
    return nn.Sequential(
        TimeBatched(nn.Conv2d(2, 4, 3, padding=1, stride=2, bias=False)),
        lif(threshold=thresholds),
        TimeBatched(nn.AvgPool2d(2), nn.Conv2d(4, 4, 3, padding=1, groups=2)),
        lif(),
        TimeBatched(nn.Flatten(), nn.Linear(16, 3)),
        leak(),
    )


def residual() -> nn.Module:
    pooled = TimeBatched(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(TimeBatched(nn.Conv2d(1, 4, 3, padding=1)), lif(), Residual(), Residual(), pooled, leak())


def recurrent() -> nn.Module:
    return nn.Sequential(
        delay(12, 16, 5),
        sc.Recurrent(lif(), delay(16, 16, 7, per="input")),
        delay(16, 8, 4, per="input"),
        sc.Recurrent(lif(), nn.Linear(8, 8)),
        nn.Linear(8, 3),
        leak(),
    )


def tables() -> nn.Module:
    """Functions that change from step to step, by tables: no math.h."""
    exponential = fixed(sc.EIF(threshold=0.5), word=12, tables={"exp": (-4.0, 2.0, 12)})
    sigmoid = fixed(sc.CLIF(threshold=0.25), word=12, tables={"sigmoid": (-8.0, 8.0, 32)})
    return nn.Sequential(nn.Linear(12, 16), exponential, nn.Linear(16, 8), sigmoid, nn.Linear(8, 3), leak())


SHAPES = {dense: (20,), convolutional: (2, 8, 8), residual: (1, 4, 4), recurrent: (12,), tables: (12,)}


@pytest.fixture(scope="module", params=[*SHAPES], ids=lambda make: make.__name__)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network as a program, with a thousand recorded steps in which its read-out moves."""
    net, x = on_grid(request.param()), spikes(STEPS, *SHAPES[request.param])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        assert len(net(x).unique()) > 100
    torch.set_num_threads(threads)
    folder = tmp_path_factory.mktemp(request.param.__name__)
    sc.export_c(net, x, folder, name=request.param.__name__, inputs=SPIKES)
    return folder


@pytest.mark.parametrize("target", [*TOOLS])
def test_the_same_bits(exported: Path, target: str) -> None:
    """Every output of a thousand steps, on each machine."""
    wrong, count = differing(exported, target)
    assert wrong == 0
    assert count >= 3 * STEPS


def test_nothing_undefined(exported: Path) -> None:
    """No overflow of a signed number, and no shift that C leaves open."""
    assert differing(exported, "test", CHECKED)[0] == 0


def test_what_a_page_calls_compiles(exported: Path) -> None:
    """All arrays that web/NAME.mjs names are there, without a warning."""
    name = next(exported.glob("*.h")).stem
    arrays = [line for line in (exported / f"web/{name}.mjs").read_text().splitlines() if line.startswith("  [")]
    assert f"case {len(arrays) - 1}:" in (exported / "web/web.c").read_text()
    assert differing(exported, "test", f"SOURCES={name}.c test/recorded.c web/web.c")[0] == 0


def test_another_compiler(exported: Path) -> None:
    """Clang warns of nothing either, and has the same bits."""
    needs("test-wasm")
    assert differing(exported, "test", "CC=clang")[0] == 0


def test_a_wrong_weight_is_noticed(tmp_path: Path) -> None:
    """The recorded steps differ from those of a program with one other weight."""
    sc.export_c(on_grid(dense()), spikes(50, 20), tmp_path, inputs=SPIKES)
    source = tmp_path / "network.c"
    before, name, numbers = source.read_text().partition("linear_0_weight[640] = {\n    ")
    first, comma, rest = numbers.partition(",")
    source.write_text(f"{before}{name}{int(first) ^ 64}{comma}{rest}")
    done = made(tmp_path)
    assert done.returncode != 0
    assert int(done.stdout.split(" steps, ")[1].split()[0]) > 0


def test_webassembly_has_no_math_h(tmp_path: Path) -> None:
    """Floats that need it are refused with the way out."""
    sc.export_c(nn.Sequential(nn.Linear(6, 4), sc.EIF()).eval(), spikes(5, 6), tmp_path, dtype="float32")
    done = made(tmp_path, "test-wasm")
    assert done.returncode != 0
    assert "network calls functions of math.h, and there is no C library for wasm32" in done.stderr
    assert 'Export with dtype="fixed"' in done.stderr


def test_the_same_text_each_time(tmp_path: Path) -> None:
    """Two exports write the same bytes, and leave the network as it was."""
    net, x = on_grid(nn.Sequential(nn.Linear(6, 4), lif())), spikes(20, 6)
    before = net(x)
    for name in ("one", "two"):
        program = sc.export_c(net, x, tmp_path / name, inputs=SPIKES)
    for file in program.files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert torch.equal(net(x), before)
    assert net[1].step == "multi"


def test_sizes_and_formats(tmp_path: Path) -> None:
    """Bytes of tables and state, as they are counted by hand, and the compiler's assertion."""
    net = on_grid(nn.Sequential(nn.Linear(6, 4), lif()))
    program = sc.export_c(net, spikes(3, 6), tmp_path, inputs=SPIKES)
    # weights of a byte, biases of one, sums and states of two bytes
    assert (program.flash, program.memory) == (24 + 4, 4 * 2 + 4 * 2)
    assert (program.inputs, program.outputs) == (SPIKES, Format(0, 0, 1))
    assert program.files[:2] == ("network.h", "network.c")
    assert differing(tmp_path)[0] == 0


def test_memory_is_used_again(tmp_path: Path) -> None:
    """A chain of layers needs the arrays of two neighbours, however long it is."""
    sizes = []
    for depth in (2, 6):
        net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(depth)], nn.Linear(16, 1)).eval()
        sizes.append(sc.export_c(net, spikes(3, 16), tmp_path, dtype="float32").memory)
    assert sizes == [2 * 16 * 4] * 2
    assert differing(tmp_path)[0] == 0
