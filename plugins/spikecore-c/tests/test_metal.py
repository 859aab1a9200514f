"""Metal source: what it asks of Apple's compiler, and refusals. The suite runs it on the CPU (metal_host.py)."""

from __future__ import annotations

import re
from typing import Any, Dict

import pytest
import torch
from metal_host import probe

import spikecore as sc
import spikecore_c
from spikecore.backend import Spec
from spikecore.neurons import MODELS, example
from spikecore_c.metal import MetalBackend

needs_compiler = pytest.mark.skipif(probe() is not None, reason=str(probe()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [4, 100])
@pytest.mark.parametrize("learnt", [False, True], ids=["numbers", "learnt"])
def test_every_neuron_is_printed(name: str, steps: int, learnt: bool) -> None:
    """Products are not contracted, mathematics is not fast, and a quotient is the precise one."""
    neuron = example(name, learn=tuple(example(name).params) if learnt else ())
    for direction, text in _texts(neuron, steps).items():
        body = text.partition("kernel void")[2]
        assert "#pragma METAL fp math_mode(safe)\n#pragma METAL fp contract(off)\n" in text, direction
        assert body.count("[[thread_position_in_grid]]") == 1
        assert not re.search(r"\bdouble\b|[^/]/[^/*]", body), (name, direction)


def _texts(neuron: sc.Neuron, steps: int) -> Dict[str, str]:
    program = neuron.program
    learnt = tuple(name for name, value in neuron.named_parameters() if name in program.params)
    kinds = tuple("scalar" if name in learnt else "number" for name in program.params)
    return MetalBackend().source(program, Spec(torch.float32, steps, kinds, learnt))


@needs_compiler
def test_functions_that_metal_lacks() -> None:
    """Their formulas are right to some units in the last place, near zero and far from it."""

    class Functions(sc.Neuron):
        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            return (sc.ops.erf(x), sc.ops.expm1(x), sc.ops.log1p(sc.ops.abs(x)), sc.ops.softplus(x)), {}

    large = torch.logspace(-40, 1.9, 20_000, base=10.0)
    x = torch.cat([-large, large, torch.tensor([0.0, -0.0, float("inf"), -float("inf")])])[None]
    right = Functions(backend="torch")(x.double())
    for found, wanted in zip(Functions(backend="metal_host")(x), right):
        wanted = wanted.float()
        assert torch.equal(found.isfinite(), wanted.isfinite())
        finite = wanted.isfinite()
        error = (found - wanted)[finite].abs() / wanted[finite].abs().clamp(min=2.0**-126)
        assert error.max() <= 4 * 2.0**-23


def test_a_machine_without_such_a_gpu() -> None:
    """The backend is not ready, and says why; with one there is nothing to say."""
    _, info = spikecore_c.spikecore_backends()
    assert (info.probe() is None) == torch.backends.mps.is_available()
    assert info.devices == ("mps",)
