"""Random programs against the oracle: on the reference, on ipu's operations, and compiled by its emulator."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, List

import pytest
import torch

import spikecore as sc
from spikecore.lang import eager
from spikecore.testing import CASES, check_backend
from spikecore.testing.drawing import calls, drawn
from spikecore.testing.random_programs import Difference, check_many
from spikecore_torch.backend import TorchRunner


def some(count: int, seed: int) -> List[Any]:
    """Programs of a seed, each with a call."""
    return drawn(calls(lambda name: True, ("float32", "float16", "bfloat16", "float64")), count, seed)


def test_the_reference_gives_what_the_oracle_gives() -> None:
    """Values, traces, final states and gradients of random programs; the seed is new in each run, and printed."""
    check_many("torch", 60)


def test_the_tier_has_programs_of_a_new_seed_which_every_result_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is the environment's, else one for all cases of the process."""
    monkeypatch.delenv("SPIKECORE_SEED", raising=False)
    seeds = [check_backend("torch", cases=["random/programs"])[0].seeds["random"] for _ in range(2)]
    assert seeds[0] == seeds[1]
    monkeypatch.setenv("SPIKECORE_SEED", "41")
    results = check_backend("torch", tiers=["random"])
    assert [(result.id, result.outcome, result.seeds) for result in results] == [
        ("random/programs", "passed", {"random": 41}),
        ("random/fixed-programs", "passed", {"random": 41}),
    ]


@pytest.mark.slow
def test_a_program_of_the_tier_that_differs_says_how_to_run_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has a case of that seed, which fails again."""
    monkeypatch.setenv("SPIKECORE_SEED", "5001")
    monkeypatch.setitem(eager.TORCH, "add", lambda a, b: a + b + 1e-3)  # a mapping to its readers
    failed, _ = check_backend("torch", tiers=["random"])
    again = re.search(r"these programs alone: spikecore conformance torch --case (random/seed-\d+)", failed.message)
    (repeated,) = check_backend("torch", cases=[again[1]])
    assert repeated.message.splitlines()[0] == failed.message.splitlines()[0]
    with pytest.raises(ValueError, match="no case is called 'random/12': there is random/programs, random/seed-N, and"):
        CASES.select(ids=["random/12"])


def test_a_backend_without_gradients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right values that have lost their graph are a difference."""
    walk = TorchRunner.__call__

    def detached(self: TorchRunner, *args: Any) -> object:
        outputs, final, trace = walk(self, *args)
        bare = [None if part is None else tuple(value.detach() for value in part) for part in (outputs, final, trace)]
        return tuple(bare)

    monkeypatch.setattr(TorchRunner, "__call__", detached)
    with pytest.raises(AssertionError, match="gradient of"):
        check_many("torch", 20)


def test_the_operations_of_the_ipu_backend_give_what_the_oracle_gives() -> None:
    """The same, called eagerly, without PopTorch."""
    check_many("ipu", 30)


@pytest.mark.parametrize("backend", ["ipu", "torch"])
def test_models_give_what_the_oracle_gives(backend: str) -> None:
    """In a network that ``inference_model`` and ``training_model`` run: the emulator records, replays and trains it."""
    check_many(backend, 20, step=True)


@pytest.mark.slow
def test_what_is_wrong_on_the_device_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that PopTorch computes otherwise is a difference of the compiled network, and none of a call."""
    from spikecore_ipu.backend import PLAIN

    right = PLAIN["add"]

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return right(a, b) + (1e-3 if any(getattr(x, "device", None) == torch.device("ipu", 0) for x in (a, b)) else 0)

    monkeypatch.setitem(PLAIN, "add", wrong)  # a mapping to its readers
    check_many("ipu", 20, 0)
    with pytest.raises(Difference, match=r"call=model(.|\n)*SPIKECORE_SEED=\d+ python -m .* --step"):
        check_many("ipu", 20, 0, step=True)


def test_gradients_that_do_not_reach_the_weights_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right outputs and an optimiser that changes nothing are a difference."""
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)
    with pytest.raises(Difference, match=r"gradient of .*training_model"):
        check_many("torch", 20, 0, step=True)


def test_a_seed_is_its_programs() -> None:
    """A seed gives the same programs and calls each time; another seed others."""
    assert some(5, 11) == some(5, 11) != some(5, 12)


@pytest.mark.slow
def test_every_corner_is_drawn() -> None:
    """Three hundred programs have every dtype, layout, kind of parameter and number of inputs, and no steps at all."""
    seen = set()
    for program, config in some(300, 1):
        seen |= {config.dtype, config.x, config.params, len(program.inputs), f"{config.shape[0]} steps", config.call}
        seen |= {"given" if config.state else "rest"}
        seen |= {word for word in ("select", "where", "clamp", "detach", "power", "self.spike") if word in str(program)}
    corners = {"float32", "float16", "bfloat16", "float64", "transposed", "batch-first", "strided", "part"}
    corners |= {"expanded-steps", "number", "scalar", "channel", "full", 1, 2, 3, "0 steps", "33 steps", "given"}
    corners |= {"select", "where", "clamp", "detach", "power", "self.spike", "run", "short", "rest"}
    assert corners <= seen, corners - seen


def test_source_is_what_a_person_would_write() -> None:
    """The class that a program makes is an ordinary neuron, with its names."""
    program = some(3, 3)[-1][0]
    model = program.model()
    neuron = model.neuron(surrogate=model.surrogate.library())
    assert isinstance(neuron, sc.Neuron)
    assert tuple(neuron.program.inputs) == program.inputs
    assert dataclasses.is_dataclass(neuron.surrogate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("minimum", lambda a, b: torch.minimum(a, b) + 1e-3),
        ("add", lambda a, b: a + b + 1e-3),
        ("round", torch.floor),
        ("detach", lambda x: x),
        ("clamp", lambda x, low, high: torch.maximum(torch.minimum(x, high), low)),
        ("ge", torch.gt),
    ],
)
def test_a_wrong_operation_is_found(op: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is wrong in one operation differs within some hundred programs, and says how to see it again."""
    monkeypatch.setitem(eager.TORCH, op, wrong)  # a mapping to its readers
    with pytest.raises(Difference, match=r"def dynamics\(self, x, s, p\):(.|\n)*SPIKECORE_SEED=\d+ python -m"):
        # three seeds: what a seed draws depends on the modules that are loaded
        _ = [check_many("torch", 400, seed) for seed in range(3)]
