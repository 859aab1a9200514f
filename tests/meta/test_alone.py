"""A failure that hangs on cases before it says so, and how to bring it back."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, List

import pytest

from spikecore._plugins.registry import default_registry
from spikecore.backend import BackendError
from spikecore.testing import CASES, BackendConformance, check_backend
from spikecore.testing._conformance import _session
from spikecore.testing._loopback import Loop, Loopback, installed
from spikecore.testing._runner import Session, prepare

#: Cases of no consequence.
OTHERS = ["forward/if-hard", "forward/if-soft", "forward/leaky-hard", "forward/plif-hard", "forward/qif-hard"]
CULPRIT, VICTIM = "forward/alif-hard", "forward/lif-hard"


class Grudge(Loopback):
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


def test_a_failure_after_others_says_after_which() -> None:
    """The message names the one case that it takes, and the command runs the two in order and fails."""
    result = failed(Grudge, *OTHERS[:3], CULPRIT, *OTHERS[3:], VICTIM)
    assert "only after others: alone, on a fresh backend object, it passes" in result.message
    assert f"it fails again after: {CULPRIT}\n" in result.message
    (command,) = re.findall(r"again: (.*)", result.message)
    assert command == f"spikecore conformance grudge --case {CULPRIT} --case {VICTIM}"
    again = failed(Grudge, *command.split(" --case ")[1:])
    assert "all values that came are 0" in again.message


def test_a_failure_of_its_own_says_nothing_of_others() -> None:
    """It fails alone, and the command runs it alone."""

    class Wrong(Loop):
        def operate(self, node: Any, args: Any, t: int) -> Any:
            value = super().operate(node, args, t)
            return value * 0 if node.op == "spike" else value

    result = failed(type("Plain", (Loopback,), {"name": "plain", "loop": Wrong}), *OTHERS[:1], VICTIM)
    assert "others" not in result.message
    assert result.message.endswith(f"again: spikecore conformance plain --case {VICTIM}")


def test_a_failure_that_nothing_brings_back_says_so() -> None:
    """It came once in this process."""

    class Once(Grudge):
        name = "once"
        done: List[bool] = []

        def compile(self, program: Any, spec: Any) -> Any:
            if program.name == "LIF" and not self.done:
                self.done.append(True)
                self.seen = ["ALIF"]
            return super().compile(program, spec)

    result = failed(Once, *OTHERS, VICTIM)
    assert "5 ran before it, the last: " in result.message
    assert "none of the lists of earlier cases that were tried brings it back" in result.message
    assert "it may also be chance" in result.message
    assert "only after others" not in result.message
    assert result.message.endswith("again: spikecore conformance once")


def test_a_failure_that_comes_and_goes_is_called_chance() -> None:
    """Every third run of the case fails, whatever ran before it: no list of cases is named."""

    class Third(Loop):
        runs: List[int] = []

        def __call__(self, *args: Any) -> Any:
            outputs, final, trace = super().__call__(*args)
            if self.program.name == "LIF":
                self.runs.append(1)
                outputs = (outputs[0] * (len(self.runs) % 3 != 1),)
            return outputs, final, trace

    result = failed(type("Flaky", (Loopback,), {"name": "flaky", "loop": Third}), "forward/if-hard", VICTIM)
    assert "it fails after others, or by chance" in result.message
    assert "it may also be chance" in result.message


def test_it_takes_no_longer_than_it_may() -> None:
    """Without time left a failure is what it was."""
    with installed(Grudge) as name:
        session = Session(prepare(name), patience=0.0)
        for id in (CULPRIT, VICTIM):
            case: Any = CASES.get(id)
            result = session.run(case)
    assert result.outcome == "failed"
    assert "others" not in result.message


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
    of_class = type("OfClass", (BackendConformance,), {"backend": Loopback.name})()
    benches = []
    for _ in range(2):
        with installed(Loopback):
            session = _session(of_class, request)
            assert session is _session(of_class, request)
            assert session.run(case).outcome == "passed"
            benches.append(session.bench)
    assert benches[0].backend is not benches[1].backend
