"""An expected failure excuses one kind of failure on the devices it names, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import refusals
import warm
from plain_loop import Loop, Plain
from spikecore.backend import Unsupported
from spikecore.testing import ExpectedFailure, check_backend, installed

CASE = "forward/lif-hard"


def broken(how: str) -> Any:
    """A backend that is wrong in one of three ways."""

    class Wrong(Loop):
        def operate(self, node, args):
            if how == "crash" and node.op == "spike":
                raise KeyError("no kernel of this name")
            if how == "refuse" and node.op == "spike":
                raise Unsupported("backend 'broken' has no spikes")
            value = super().operate(node, args)
            return value * 0 if node.op == "spike" else value

    return type("Broken", (Plain,), {"name": "broken", "loop": Wrong})


def ended(how: str, excuse: Any, device: Any = None) -> Any:
    """The result of one case under an excuse."""
    with installed(broken(how)) as name:
        (result,) = check_backend(name, cases=[CASE], expected_failures={CASE: excuse}, device=device)
    return result


@pytest.mark.parametrize(
    ("how", "excuse"),
    [
        ("differ", "a reason"),
        ("refuse", "a reason"),
        ("differ", ExpectedFailure("a reason")),
        ("differ", ExpectedFailure("a reason", match="all values that came are 0")),
        ("refuse", ExpectedFailure("a reason", raises="Unsupported", match="has no spikes")),
        ("crash", ExpectedFailure("a reason", raises=("KeyError",), match="no kernel of")),
        ("crash", ExpectedFailure("a reason", raises=(KeyError,), match="no kernel of")),
        ("differ", ExpectedFailure("a reason", devices=("cpu",))),
    ],
)
def test_the_failure_that_is_named_is_excused(how: str, excuse: Any) -> None:
    """A difference, a refusal, an exception by its class."""
    result = ended(how, excuse)
    assert (result.outcome, result.message) == ("xfailed", "a reason"), result.message


@pytest.mark.parametrize(
    ("how", "excuse", "words"),
    [
        ("crash", "a reason", "came: KeyError"),
        ("crash", ExpectedFailure("a reason", raises=("Mismatch", "Unsupported")), "came: KeyError"),
        ("crash", ExpectedFailure("a reason", raises=("KeyError",), match="another text"), "no kernel of this name"),
        ("refuse", ExpectedFailure("a reason"), "came: Unsupported"),
        ("differ", ExpectedFailure("a reason", raises=("Unsupported",)), "came: Mismatch"),
        ("differ", ExpectedFailure("a reason", match="rounding"), "all values that came are 0"),
    ],
)
def test_another_failure_under_an_excuse_is_a_failure(how: str, excuse: Any, words: str) -> None:
    """Both are said: what was expected, with its reason, and what came."""
    result = ended(how, excuse)
    assert result.outcome == "failed", result
    for said in ("fails in another way", "reason: a reason", words, "again: spikecore conformance broken"):
        assert said in result.message, result.message


@pytest.mark.parametrize(
    ("how", "excuse", "blanket"),
    [
        ("differ", "a reason", True),
        ("differ", ExpectedFailure("a reason"), True),
        ("differ", ExpectedFailure("a reason", match="all values that came are 0"), False),
        ("refuse", "a reason", False),
        ("crash", ExpectedFailure("a reason", raises=("KeyError",), match="."), False),
    ],
)
def test_an_excuse_for_any_number_is_known(how: str, excuse: Any, blanket: bool) -> None:
    """A difference without a pattern; no refusal, and no crash."""
    result = ended(how, excuse)
    assert (result.outcome, result.blanket) == ("xfailed", blanket)


def test_an_excuse_holds_on_its_devices_alone() -> None:
    """Elsewhere the case fails as if there were none, and one that passes there is not stale."""
    assert ended("differ", ExpectedFailure("a reason", devices=("cuda",))).outcome == "failed"
    with installed(Plain) as name:
        (result,) = check_backend(
            name, cases=[CASE], expected_failures={CASE: ExpectedFailure("a reason", devices=("cuda",))}
        )
    assert result.outcome == "passed"
    excuse = ExpectedFailure("a reason", devices=("cuda:1", "*H100*"))
    assert [excuse.holds_on(device, "NVIDIA A100") for device in ("cuda", "cuda:1", "cpu")] == [False, True, False]
    assert excuse.holds_on("cuda", "NVIDIA H100 80GB")


def test_a_name_is_the_class_itself() -> None:
    """Not a base of it: ``LookupError`` does not cover a ``KeyError``."""
    excuses = [ExpectedFailure("x", raises=(error,), match=".") for error in ("KeyError", "LookupError")]
    assert [ended("crash", excuse).outcome for excuse in excuses] == ["xfailed", "failed"]


def test_importing_it_does_not_load_the_suite() -> None:
    """A backend's module takes it from spikecore.testing, in programs that test nothing."""
    code = (
        "import sys\nfrom spikecore.testing import ExpectedFailure\n"
        "print([m for m in sys.modules if m.startswith(('spikecore.testing._cases', 'spikecore.testing._oracle'))])"
    )
    done = warm.run("-c", code, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


test_refused = refusals.table(__file__, globals())
