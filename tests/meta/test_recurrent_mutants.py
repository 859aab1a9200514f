"""Feedback that is wrong on purpose: the conformance case that passes on it as it is passes on none of these.

Kernels of cupy with a planted fault are built for the CPU. Launches of each step, and what is torch's in both, have
faults in Python.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple, Type

import pytest
import torch

from kernel_loop import Loop
from spikecore.kernels import _feedback_steps, _recurrent
from spikecore.testing import Result, check_backend, installed
from spikecore_cupy.host import HostClusters, HostClustersBackend, reason

needs_compiler = pytest.mark.skipif(reason() is not None, reason=str(reason()))
#: Six chunks of a kernel's steps, and two of launches of each step.
CHUNKS = "recurrent/steps-45"


def result_of(backend: Type[Any], case: str) -> Result:
    """What the case comes to."""
    with installed(backend, devices=("cpu",)) as name:
        (result,) = check_backend(name, cases=[case])
    return result


# -- kernels of all steps

#: name -> (which kernel, a line of its text, what stands there instead)
IN_KERNELS: Dict[str, Tuple[str, str, str]] = {
    "a state does not start at rest": ("lif_forward", "v[j] = v_reset;", "v[j] = v_reset + 0.5f;"),
    "there was an output before the first step": ("lif_forward", "gave[j] = 0.0f;", "gave[j] = 1.0f;"),
    "states before chunks are stored in the wrong order": (
        "lif_forward",
        "store(v_saved + (chunk - 1) * neurons + i, v);",
        "store(v_saved + ((steps - 1) / T - chunk) * neurons + i, v);",
    ),
    "the first chunk starts where the last one does": (
        "lif_backward",
        "v_next[j] = v_reset;",
        "v_next[j] = v_saved[(chunks - 2) * neurons + i.at(j)];",
    ),
    "a chunk starts where the one behind it does": (
        "lif_backward",
        "v_next = load<V>(v_saved + ((chunk - 2) - 1) * neurons + i);",
        "v_next = load<V>(v_saved + (chunk - 2) * neurons + i);",
    ),
    "a chunk goes on from the one that was computed before it": ("lif_backward", "v = v_next;", ""),
    "the gradient of a state ends at the border of a chunk": (
        "lif_backward",
        "begin -= T;",
        "begin -= T; for (int j = 0; j < V; ++j) grad_v[j] = 0.0f;",
    ),
    "the gradient through the weight ends at the border of a chunk": (
        "lif_backward",
        "i.product(t % 2, back);",
        "i.product(t % 2, back); for (int j = 0; j < V && t == T - 1; ++j) back[j] = 0.0f;",
    ),
    "the bias's gradient lacks the last step of each chunk": (
        "lif_backward",
        "total[j] += gave[j];",
        "if (t < T - 1) total[j] += gave[j];",
    ),
    "the bias's gradient has the first step of each chunk twice": (
        "lif_backward",
        "total[j] += gave[j];",
        "total[j] += t ? gave[j] : 2.0f * gave[j];",
    ),
}


def planted(where: str, old: str, new: str) -> Type[Any]:
    """The backend whose kernel of this name has another line."""

    class Planted(HostClusters):
        def _whole(self, name: str, text: str, types: Any) -> str:
            if name == where:
                assert text.count(old) == 1, f"stands {text.count(old)} times in the kernel, and must once: {old}"
                text = text.replace(old, new)
            return super()._whole(name, text, types)

    return type("PlantedBackend", (HostClustersBackend,), {"feedback_kernel": Planted})


@needs_compiler
def test_kernels_of_more_than_one_chunk_pass() -> None:
    """The control; and a kernel that does not compile is told without a GPU."""
    result = result_of(HostClustersBackend, CHUNKS)
    assert result.outcome == "passed", result.message


@needs_compiler
@pytest.mark.kernels
@pytest.mark.parametrize("fault", IN_KERNELS)
def test_a_fault_of_a_kernel_is_caught(fault: str) -> None:
    """The case that passes without it finds a difference."""
    result = result_of(planted(*IN_KERNELS[fault]), CHUNKS)
    assert result.outcome == "failed", f"{result.outcome}: {result.message}"


# -- launches of each step, and what is torch's


def beside_rest(start: Callable[..., Any]) -> Callable[..., Any]:
    """States that do not start at rest."""
    return lambda *args: tuple([value + 0.5 for value in start(*args)])


def from_rest(again: Callable[..., Any]) -> Callable[..., Any]:
    """Steps that are computed again as if each chunk began at rest."""

    def fault(self: Any, fed: Any, us: Any, checkpoints: Any, t: int) -> Any:
        return again(self, fed, us, [torch.zeros_like(value) for value in checkpoints], t)

    return fault


def ends_at_the_border(back: Callable[..., None]) -> Callable[..., None]:
    """What goes back through the weight, but from a chunk to the one before it."""

    def fault(self: Any, step: int, following: Any, arriving: Any) -> None:
        back(self, step, None if (step + 1) == _feedback_steps.chunk_of(45) else following, arriving)

    return fault


def without_a_step(step: int) -> Callable[..., Any]:
    """A gradient that lacks what one step adds to it."""

    def fault(of: Callable[..., Any]) -> Callable[..., Any]:
        def lacks(gu: Any, *args: Any) -> Any:
            gu = gu.clone()
            gu[step] = 0.0
            return of(gu, *args)

        return lacks

    return fault


def first_twice(of_weight: Callable[..., Any]) -> Callable[..., Any]:
    """The weight's gradient with the part of the output before the first step twice."""
    return lambda gu, fed, *args: of_weight(gu, fed._replace(first=2 * fed.first), *args)


#: name -> (where, what, the fault, the case that catches it)
IN_PYTHON: Dict[str, Any] = {
    "a state does not start at rest": (_recurrent.FedRunner, "_start", beside_rest, CHUNKS),
    "a chunk is computed again from rest": (_feedback_steps.FeedbackSteps, "_again", from_rest, CHUNKS),
    "the gradient ends at the border of a chunk": (_feedback_steps._Back, "__call__", ends_at_the_border, CHUNKS),
    "the weight's gradient lacks the last step": (_recurrent, "_of_weight", without_a_step(-1), CHUNKS),
    "the weight's gradient lacks the first output": (_recurrent, "_of_weight", without_a_step(0), "recurrent/states"),
    "the weight's gradient has the first output twice": (_recurrent, "_of_weight", first_twice, "recurrent/states"),
    "the bias's gradient lacks the first step": (_recurrent, "_of_bias", without_a_step(0), CHUNKS),
}


@pytest.mark.parametrize("case", [CHUNKS, "recurrent/states"])
def test_launches_of_each_step_pass(case: str) -> None:
    """The control."""
    result = result_of(Loop, case)
    assert result.outcome == "passed", result.message


@pytest.mark.parametrize("fault", IN_PYTHON)
def test_a_fault_around_launches_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that passes without it finds a difference."""
    where, what, wrong, case = IN_PYTHON[fault]
    monkeypatch.setattr(where, what, wrong(getattr(where, what)))
    result = result_of(Loop, case)
    assert result.outcome == "failed", f"{result.outcome}: {result.message}"
