"""Random programs against the oracle: on the reference, on ipu's operations, and compiled by its emulator."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

import spikecore as sc
from spikecore.lang import eager
from spikecore.testing import CASES, check_backend
from spikecore.testing.random_programs import Difference, check_many
from spikecore.testing.random_programs._case import draw, rounded
from spikecore.testing.random_programs._tree import built, source
from spikecore_torch.backend import TorchRunner


def test_the_reference_gives_what_the_oracle_gives() -> None:
    """Values, traces, final states and gradients of random programs; the seed is new in each run, and printed."""
    check_many("torch", 60)


def test_the_tier_has_programs_of_a_new_seed_which_every_result_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is the environment's, else one for all cases of the process."""
    monkeypatch.delenv("SPIKECORE_SEED", raising=False)
    seeds = {result.seeds["random"] for result in check_backend("torch", cases=["random/0", "random/1"])}
    assert len(seeds) == 1
    monkeypatch.setenv("SPIKECORE_SEED", "41")
    (result,) = check_backend("torch", cases=["random/0"])
    assert (result.outcome, result.seeds) == ("passed", {"random": 41})


def test_a_program_of_the_tier_that_differs_says_how_to_run_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has a case of that seed, which fails again."""
    monkeypatch.setenv("SPIKECORE_SEED", "5000")
    monkeypatch.setitem(eager.TORCH, "add", lambda a, b: a + b + 1e-3)  # a mapping to its readers
    failed = [result for result in check_backend("torch", tiers=["random"]) if result.outcome == "failed"]
    assert failed
    again = re.search(r"this program alone: spikecore conformance torch --case (random/seed-\d+)", failed[0].message)
    (repeated,) = check_backend("torch", cases=[again[1]])
    assert repeated.message.splitlines()[0] == failed[0].message.splitlines()[0]


def test_a_program_that_there_is_not() -> None:
    """The error names those that there are."""
    with pytest.raises(ValueError, match="no case is called 'random/12': there are random/0 to random/11, and"):
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
        check_many("torch", 10)


def test_the_operations_of_the_ipu_backend_give_what_the_oracle_gives() -> None:
    """The same, called eagerly, without PopTorch."""
    check_many("ipu", 30)


def test_what_the_emulator_compiles_gives_what_the_oracle_gives() -> None:
    """The same in a network that ``inference_model`` and ``training_model`` compile: recorded, replayed, trained."""
    check_many("ipu", 20, step=True)


def test_a_training_step_of_the_reference_gives_what_the_oracle_gives() -> None:
    """The eager ``inference_model`` and ``training_model``."""
    check_many("torch", 20, step=True)


def test_what_is_wrong_on_the_device_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that PopTorch computes otherwise is a difference of the compiled network, and none of a call."""
    from spikecore_ipu.backend import PLAIN

    right = PLAIN["add"]

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return right(a, b) + (1e-3 if any(getattr(x, "device", None) == torch.device("ipu", 0) for x in (a, b)) else 0)

    monkeypatch.setitem(PLAIN, "add", wrong)  # a mapping to its readers
    check_many("ipu", 20, 0)
    with pytest.raises(Difference, match=r"_model: (.|\n)*SPIKECORE_SEED=\d+ python -m .* --step"):
        check_many("ipu", 20, 0, step=True)


def test_gradients_that_do_not_reach_the_weights_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right outputs and an optimiser that changes nothing are a difference."""
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)
    with pytest.raises(Difference, match="training_model: gradient of"):
        check_many("torch", 10, 0, step=True)


def test_a_seed_is_one_program() -> None:
    """A seed gives the same source, arguments and expectation each time; another seed another one."""
    one, again, other = draw(11), draw(11), draw(12)
    assert source(one.tree) == source(again.tree) != source(other.tree)
    assert all(np.array_equal(a, b) for a, b in zip(one.inputs, again.inputs))
    assert all(np.array_equal(a, b) for a, b in zip(one.expected.outputs, again.expected.outputs))


def test_every_corner_is_drawn() -> None:
    """A hundred seeds draw every dtype, layout, kind of parameter and number of inputs, and no steps at all."""
    seen = set()
    for seed in range(100):
        case = draw(seed)
        seen |= {case.dtype, *case.layouts, *case.kinds.values(), len(case.inputs), f"{len(case.inputs[0])} steps"}
        seen |= {"given"} if case.state is not None else {"rest"}
        seen |= {
            word for word in ("select", "where", "clamp", "detach", "power", "self.spike") if word in source(case.tree)
        }
    wanted = {"float32", "float16", "bfloat16", "float64", "permuted", "batch first", "every other", "part", "one step"}
    wanted |= {"number", "scalar", "channel", "full", 1, 2, 3, "0 steps", "70 steps", "given", "rest"}
    wanted |= {"select", "where", "clamp", "detach", "power", "self.spike"}
    assert wanted <= seen, wanted - seen


def test_source_is_what_a_person_would_write() -> None:
    """The class that a case makes is an ordinary neuron, with its names."""
    tree = draw(3).tree
    kind, surrogate = built(tree)
    neuron = kind(surrogate=surrogate)
    assert isinstance(neuron, sc.Neuron)
    assert tuple(neuron.program.inputs) == tree.inputs
    assert dataclasses.is_dataclass(surrogate)


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
        check_many("torch", 300, 0)


def test_16_bit_numbers_are_rounded_as_torch_does() -> None:
    """The oracle's own rounding to float16 and bfloat16, ties and subnormals included."""
    values = np.concatenate(
        [np.random.default_rng(0).normal(size=2000), np.ldexp(1.0, np.arange(-30, 16)), [0.0, -0.0]]
    )
    values = np.concatenate([values, np.nextafter(values, math.inf)]).astype(np.float32)
    for name in ("float16", "bfloat16"):
        expected = torch.from_numpy(values).to(getattr(torch, name)).float().numpy()
        assert np.array_equal(rounded(values, name), expected)
