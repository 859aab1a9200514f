"""The support table of the documentation is what a run of the suite says."""

from __future__ import annotations

from pathlib import Path

from spikecore.testing.support import is_stale


def test_the_table_is_fresh():
    """docs/support.md equals the table made from a run now; the message says how to make it anew."""
    stale = is_stale(str(Path(__file__).parents[2] / "docs" / "support.md"))
    assert stale is None, stale
