"""The suite `documents` of the bench: tables of published tutorials, what they print beside what is measured."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spikecore.bench import _documents as documents
from spikecore.bench._report import from_json
from spikecore.bench._run import measure, prepare
from spikecore.bench._settings import Settings
from spikecore.cli._bench_tables import show

TINY = Settings(
    ("documents",), "cpu", ("torch",), peers=False, neurons=("LIF", "IF"), compile_steps=0, repetitions=1, quick=True
)


@pytest.fixture(scope="module")
def report():
    """A run of one case of each table."""
    found, jobs = prepare(TINY)
    measure(found, jobs)
    return found


def test_every_table_has_a_case(report):
    """With the size of the CPU where the table's is for a whole GPU."""
    cases = [dict(case) for case, _ in report.cases("documents")]
    assert cases == [
        {"neuron": "LIF", "dtype": "float32", "steps": 8, "neurons": 40},
        {"neuron": "IF", "dtype": "float32", "steps": 2, "neurons": 4096},
        {"neuron": "IF", "dtype": "float16", "steps": 2, "neurons": 4096},
    ]


def test_printed_figures_stand_beside_measured_ones(report):
    """The speed of the first tutorial's implementations is relative to its own loop; that of the second is printed."""
    lif, single, half = ({row.implementation: row for row in rows} for _, rows in report.cases("documents"))
    fused = lif["printed: cext, all steps at once, RTX 2080"]
    assert (fused.status, fused.figures["training_ms"]) == ("printed", 0.3305)
    assert fused.figures["training_speedup"] == pytest.approx(4.833 / 0.3305)
    for rows, ratio in ((single, 0.59), (half, 0.68)):
        assert rows["printed: its CuPy kernels, Quadro RTX 6000"].figures == {"training_speedup": ratio}
    for rows in (lif, single, half):
        assert rows["torch"].status == "ok", rows["torch"].detail
        # the loop of the other library takes no part here: the reference stands for it
        assert rows["torch"].figures["training_speedup"] == 1.0


def test_printed_rows_are_shown_and_kept(report):
    """In the table, dimmed and without a note; and in the JSON."""
    console = Console(file=io.StringIO(), width=120)
    show(from_json(report.to_json()), console)
    text = console.file.getvalue()
    assert "printed: cext, step by step, RTX 2080" in text
    assert "printed: its CuPy kernels, Quadro RTX 6000" in text
    assert "RTX 2080 printed:" not in text


def test_a_neuron_that_is_not_asked_for_is_left_out():
    """As in the other suites."""
    _, jobs = prepare(Settings(("documents",), "cpu", ("torch",), peers=False, neurons=("LIF",)))
    assert [job.label for job in jobs] == [f"documents: LIF float32 T={t} N=40" for t in (8, 16, 32, 64, 128)]


def test_every_table_is_whole():
    """Each of its implementations has a figure for each of its numbers of steps."""
    for document in documents.DOCUMENTS:
        assert all(tuple(one.figures) == document.steps for one in document.printed)
