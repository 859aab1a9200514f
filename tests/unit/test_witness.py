"""While a case of the conformance suite runs, every quick way of a runner is taken, and counted."""

from __future__ import annotations

from typing import Any, List

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import SHAPE, Loop, bound, image
from spikecore._base.versions import COMPILES
from spikecore.kernels import KernelRunner
from spikecore.layers import NormNeuron
from spikecore.testing._context import Witness


def seen_by(backend: Loop, call: Any) -> List[str]:
    with Witness(backend) as witness:
        call()
    return witness.calls


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("the runner was called")


def test_direct_calls_are_taken_and_counted(monkeypatch: Any) -> None:
    """Of a neuron, and of one that normalises, whose statistics are the backend's."""
    backend, found = Loop(), []
    monkeypatch.setattr(KernelRunner, "__call__", refused)
    monkeypatch.setattr(KernelRunner, "moments", lambda self, x: found.append(x))
    neuron = bound(sc.LIF(), backend)
    assert seen_by(backend, lambda: neuron(image())) == ["LIF"]
    layer = NormNeuron(nn.BatchNorm2d(SHAPE[1]), bound(sc.LIF(), backend), fused=True)
    assert seen_by(backend, lambda: layer(image())) == ["LIF"]
    assert len(found) == 1


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
def test_the_op_of_a_compiled_call_is_taken_and_counted(monkeypatch: Any) -> None:
    """Once, when the call is traced."""
    monkeypatch.setattr(KernelRunner, "__call__", refused)
    backend = Loop()
    neuron = bound(sc.LIF(), backend)
    torch._dynamo.reset()
    compiled = torch.compile(neuron, backend="eager", fullgraph=True)
    assert seen_by(backend, lambda: compiled(image())) == ["LIF"]
