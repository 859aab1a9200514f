"""The support table of the documentation is what a run of the suite says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spikecore.backend import BackendError
from spikecore.registry import default_registry
from spikecore.testing.support import is_stale, read

PAGE = Path(__file__).parents[2] / "docs" / "support.md"


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
    reason="the table is made where neurons compile, from torch 2.6 on",
)
@pytest.mark.parametrize("name", read(PAGE.read_text(encoding="utf-8")))
def test_the_table_is_fresh(name):
    """A column equals what a run says now; the message says how to make it anew."""
    try:
        default_registry().get(name, "the support table")
    except BackendError as error:
        pytest.skip(f"the column stays as it was last run: {error}")
    stale = is_stale(str(PAGE), [name])
    assert stale is None, stale
