"""The ipu backend conforms, called eagerly and as PopTorch would compile it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from poptorch_emulator import traced
from spikecore.backend import Spec
from spikecore.lang import Program
from spikecore.testing import TIERS, BackendConformance, installed
from spikecore_ipu import backend


@pytest.mark.matrix(turn=2)
class TestIpu(BackendConformance):
    """Plain operations under torch's autograd; training steps on the emulator."""

    backend = "ipu"
    tiers = TIERS


class TracedBackend(backend.IpuBackend):
    """The same, but each call is recorded by the emulator and replayed, with PopART's derivatives."""

    name = "ipu_traced"

    def compile(self, program: Program, spec: Spec) -> Any:
        """A runner that compiles anew at each call, as for one shape."""
        walk = super().compile(program, spec)

        def run(inputs, state, params, record):
            # in a training step that is being compiled the outer trace records; PopTorch has no empty tensors
            if inputs[0].device.type == "ipu" or 0 in inputs[0].shape:
                return walk(inputs, state, params, record)
            tensors = [*inputs, *(state or ()), *(value for value in params if isinstance(value, torch.Tensor))]

            def call(*given):
                given = list(given)
                xs = tuple(given.pop(0) for _ in inputs)
                start = None if state is None else tuple(given.pop(0) for _ in state)
                values = tuple(given.pop(0) if isinstance(value, torch.Tensor) else value for value in params)
                return walk(xs, start, values, record)

            outputs, final, trace = traced(call, *tensors)(*tensors)
            once = backend.OnceDifferentiable.apply
            return (
                tuple(map(once, outputs)),
                None if final is None else tuple(map(once, final)),
                tuple(map(once, trace)),
            )

        return run


@pytest.fixture(scope="module")
def _traced():
    with installed(TracedBackend, devices=("cpu", "ipu")):
        yield


@pytest.mark.matrix(turn=0)
@pytest.mark.usefixtures("_traced")
class TestTraced(BackendConformance):
    """A compiled network has the values and the gradients of the equations."""

    backend = "ipu_traced"
    # each call records a graph: that takes minutes for the tiers generated and random (random programs are compiled
    # in tests/unit/testing/test_random_programs.py), and recordings count as memory in the tier of sequences
    tiers = tuple(tier for tier in TIERS if tier not in ("generated", "random", "sequences"))
