"""Expected failures cover subnormal numbers, and no wrong number beside them."""

from __future__ import annotations

from typing import Any, Callable, Dict

import jax.numpy as jnp
import pytest
from jax import lax

from spikecore.testing import CASES, check_backend
from spikecore_jax.backend import JaxBackend
from spikecore_jax.operations import Table

Mutant = Callable[[Callable[..., Any]], Callable[..., Any]]
#: Case -> (operation, what is wrong with it). Each is right at every subnormal number, and wrong at one other number
#: that comes behind the first subnormal one, so that the first difference in the text is the one that is expected.
MUTANTS: Dict[str, Any] = {
    "edges/log": ("log", lambda of: lambda a: jnp.where(a == 1.5, 0.75, of(a))),
    "edges/sqrt": ("sqrt", lambda of: lambda a: jnp.where(a == 1.5, 1.25, of(a))),
    "edges/mul": ("mul", lambda of: lambda a, b: jnp.where((a == 1.5) & (b == 1.5), 4.5, of(a, b))),
    "edges/div-gradient": ("div", lambda of: lambda a, b: jnp.where(b == 1000.0, 0.0, of(a, b))),
    "edges/constant-zero": ("add", lambda of: lambda a, b: jnp.where(a == 1.5, 2.5, of(a, b))),
    "edges/input-gradient-bfloat16": ("mul", lambda of: lambda a, b: jnp.where(lax.abs(b) == 9.0, 0.0, of(a, b))),
    "robust/subnormal": ("add", lambda of: lambda a, b: jnp.where(a == 0.0, 1.0, of(a, b))),
}


@pytest.mark.parametrize("case", list(MUTANTS))
def test_a_wrong_number_is_not_expected(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails in another way, though the same case has a failure that is expected."""
    (before,) = check_backend("jax", cases=[case])
    assert before.outcome == "xfailed", before.message
    op, wrong = MUTANTS[case]
    functions = Table._all

    def mutated(self: Table) -> Dict[str, Callable[..., Any]]:
        found = functions(self)
        return {**found, op: wrong(found[op])}

    monkeypatch.setattr(Table, "_all", mutated)
    monkeypatch.setattr(JaxBackend, "runner", JaxBackend.compile)  # which compiles anew
    (after,) = check_backend("jax", cases=[case])
    assert after.outcome == "failed", after.message
    assert "it was expected to fail, and fails in another way" in after.message


def test_every_expected_failure_is_of_the_cpu_and_says_how() -> None:
    """None is excused by its reason alone, and none on another device."""
    for id, one in JaxBackend.expected_failures.items():
        assert CASES.get(id) is not None
        assert one.devices == ("cpu",)
        assert not one.any_text
        assert not one.holds_on("cuda:0", "NVIDIA H200")
