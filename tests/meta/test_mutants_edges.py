"""Wrong backends at edges, in sizes, layouts, values and wanted gradients are caught by the cases of their kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from spikecore.testing import check_backend
from spikecore.testing.loopback import installed

sys.path.insert(0, str(Path(__file__).parent))

from mutants_edges import MUTANTS


@pytest.mark.parametrize("backend", MUTANTS, ids=lambda backend: backend.__name__)
def test_a_mutant_is_caught_by_the_cases_of_its_kind(backend: Any) -> None:
    """Every case that is named for it fails."""
    with installed(backend) as name:
        results = check_backend(name, cases=backend.caught_by)
    assert {result.id: result.outcome for result in results} == dict.fromkeys(backend.caught_by, "failed")
