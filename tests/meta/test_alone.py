"""A failure that hangs on cases before it says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest

from plain_loop import Loop, Plain
from spikecore.backend import BackendError
from spikecore.plugins.registry import default_registry
from spikecore.testing import CASES, BackendConformance, check_backend, installed

#: Cases of no consequence.
OTHERS = ["forward/if-hard", "forward/if-soft", "forward/leaky-hard", "forward/plif-hard", "forward/qif-hard"]
CULPRIT, VICTIM = "forward/alif-hard", "forward/lif-hard"


class Grudge(Plain):
    """Wrong for LIF once this object has compiled ALIF."""

    name = "grudge"

    def compile(self, program: Any, spec: Any) -> Any:
        """Zeros."""
        self.seen: List[str] = [*getattr(self, "seen", []), program.name]
        made = super().compile(program, spec)
        if program.name != "LIF" or "ALIF" not in self.seen:
            return made
        return lambda *args: tuple(tuple(x * 0 for x in part) if i == 0 else part for i, part in enumerate(made(*args)))


def failed(backend: Any, *ids: str) -> Any:
    """The result of the last of these cases."""
    with installed(backend) as name:
        result = check_backend(name, cases=list(ids))[-1]
    assert result.outcome == "failed", result
    return result


def test_a_failure_after_others_says_so() -> None:
    """The message says that it passes alone, and names the cases before it."""
    result = failed(Grudge, *OTHERS[:3], CULPRIT, *OTHERS[3:], VICTIM)
    assert "alone, on a fresh backend object, it passes, twice: it fails after others, or by chance" in result.message
    assert f"6 ran before it, the last: {', '.join([*OTHERS[1:3], CULPRIT, *OTHERS[3:]])}\n" in result.message
    assert result.message.endswith("again with them: spikecore conformance grudge")
    assert "all values that came are 0" in result.message


def test_a_failure_of_its_own_says_nothing_of_others() -> None:
    """It fails alone, and the command runs it alone."""

    class Wrong(Loop):
        def operate(self, node: Any, args: Any) -> Any:
            value = super().operate(node, args)
            return value * 0 if node.op == "spike" else value

    result = failed(type("Plain", (Plain,), {"name": "plain", "loop": Wrong}), *OTHERS[:1], VICTIM)
    assert "others" not in result.message
    assert result.message.endswith(f"again: spikecore conformance plain --case {VICTIM}")


def test_a_backend_that_cannot_be_made_again_says_so() -> None:
    """The failure stays, with the reason."""

    class Single(Grudge):
        name = "single"
        made: List[bool] = []

        def __init__(self) -> None:
            self.made.append(True)
            if len(self.made) > 1:
                raise RuntimeError("the device is taken")

    result = failed(Single, CULPRIT, VICTIM)
    assert "it could not be run again alone" in result.message
    assert "the device is taken" in result.message


def test_fresh_is_another_object_for_the_block_alone() -> None:
    """Neurons made in the block use it, and afterwards the one before is there with what it had."""
    with installed(Grudge) as name:
        registry = default_registry()
        before = registry.get(name, "a test")
        with registry.fresh(name, "a test") as made:
            assert made is not before
            assert registry.get(name, "a test") is made
        assert registry.get(name, "a test") is before
        with pytest.raises(ZeroDivisionError), registry.fresh(name, "a test"):
            raise ZeroDivisionError
        assert registry.get(name, "a test") is before
    with pytest.raises(BackendError, match="unknown backend"), default_registry().fresh("nobody", "a test"):
        pass


def test_a_backend_that_is_installed_again_gets_a_session_of_its_own() -> None:
    """A fixture around the class may end and begin again between cases: the neurons have another object then."""
    case = next(one for one in CASES if one.id == OTHERS[0])
    request: Any = SimpleNamespace(node=SimpleNamespace())
    of_class = type("OfClass", (BackendConformance,), {"backend": Plain.name})()
    for _ in range(2):
        with installed(Plain):
            of_class.test_case(case, request)
            assert request.node.spikecore["outcome"] == "passed"
