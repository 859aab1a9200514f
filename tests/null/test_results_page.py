"""docs/results.md is what docs/results/page.py makes of the runs that programs kept."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Dict

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> Dict[str, Any]:
    """The script, as a module's names."""
    return runpy.run_path(str(DOCS / "results/page.py"))


def test_the_page_is_made_of_the_files(page: Dict[str, Any]) -> None:
    """No figure is written by hand."""
    assert (DOCS / "results.md").read_text(encoding="utf-8") == page["render"](DOCS / "results/training")


def test_a_row(page: Dict[str, Any]) -> None:
    """The median, the range and the time of three seeds; the clock where a GPU computes, whose host waits."""
    same = {"data": "MNIST", "library": "spikecore 1.0", "network": "784-10", "parameters": 7850, "epochs": 2}
    same.update(machine="Some(R) CPU @ 2 GHz", command="python examples/mnist.py")
    each = [(0.97, 5.0, 7.0), (0.99, 6.0, 9.0), (0.98, 7.0, 8.0)]
    runs = [{"accuracy": score, "seconds": clock, "processor_seconds": used} for score, clock, used in each]
    begin, end = ["MNIST", "784-10", "7,850", "2", "**98.00** (97.00 to 99.00)"], "<br>`python examples/mnist.py`"
    for backend, time in (("numba on cpu", "8 s"), ("cupy on cuda:0", "6 s")):
        made = page["row"]([{**same, **run, "backend": backend} for run in runs])
        assert made == [*begin, time, f"{backend}, Some @ 2 GHz{end}"]
