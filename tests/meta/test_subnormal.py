"""Differences beside subnormal numbers alone are told from those that are not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from spikecore.testing._compare import Mismatch
from spikecore.testing._subnormal import ALONE, beside, foremost


def test_beside() -> None:
    """Every number that differs needs a subnormal one beside it, in the dtype of arithmetic."""
    wrong = np.array([True, False, True])
    x, y = np.array([1e-40, 1.0, 2.0]), np.array([0.0, 0.0, -1e-45])
    assert beside(wrong, [x, y]) == ALONE
    assert beside(wrong, [x]) == ""
    assert beside(np.array([True, True, True]), [x, y]) == ""
    assert beside(wrong, [x, y], np.float64) == ""
    assert beside(wrong, [np.array([1e-310, 1.0, np.nan]), np.array([np.inf, 0.0, 1e-320])], np.float64) == ALONE
    assert beside(wrong, [np.array([0.0, 1.0, -0.0])]) == ""


def test_the_foremost_failure_is_another_one() -> None:
    """A difference that is not beside subnormal numbers is told, wherever it stands."""
    ran = []

    def check(text: str) -> None:
        ran.append(text)
        if text:
            raise Mismatch(text)

    def checks(*texts: str) -> Any:
        return [partial(check, text) for text in texts]

    foremost(checks("", ""), Mismatch)
    with pytest.raises(Mismatch, match=f"first {ALONE}"):
        foremost(checks("", f"first {ALONE}", f"second {ALONE}", ""), Mismatch)
    assert len(ran) == 6
    with pytest.raises(Mismatch, match="^another$"):
        foremost(checks(f"first {ALONE}", "another", "third"), Mismatch)
    with pytest.raises(Mismatch, match=ALONE):  # any other exception ends it at once
        foremost(checks(ALONE), ValueError)
