"""Batch normalisation within a kernel backend's program: two backward passes, and nothing normalised is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import SHAPE, Loop, bound, image
from spikecore.backend import Unsupported
from spikecore.layers import NormNeuron
from spikecore.testing import installed

C = SHAPE[1]


def norm(dtype: torch.dtype = torch.float32, **options: Any) -> nn.BatchNorm2d:
    """Batch normalisation whose scale and shift are not those it begins with."""
    made = nn.BatchNorm2d(C, **options)
    if made.affine:
        with torch.no_grad():
            made.weight.copy_(torch.linspace(0.6, 1.8, C))
            made.bias.copy_(torch.linspace(-0.2, 0.5, C))
    return made.to(dtype)


def around(first: nn.BatchNorm2d, neuron: sc.Neuron, shortcut: Optional[str], **options: Any) -> NormNeuron:
    """A layer; with the shortcut "normalised" it is that, before the neuron."""
    if shortcut == "normalised":
        options.update(shortcut_norm=norm(first.weight.dtype, eps=1e-3))
        shortcut = "before"
    return NormNeuron(first, neuron, shortcut=shortcut, **options)


def pair(
    backend: Any = None, dtype: torch.dtype = torch.float32, shortcut: Optional[str] = None, **options: Any
) -> List[NormNeuron]:
    """The same layer as one program of the loop, and computed one after the other in float64."""
    made = [around(norm(dtype), sc.LIF(**options), shortcut, fused=True)]
    made.append(around(norm(torch.float64), sc.LIF(backend="torch", **options), shortcut, fused=False))
    bound(made[0].neuron, backend or Loop())
    return made


class Without(Loop):
    """A backend without the capability."""

    name = "without"
    capabilities = replace(Loop.capabilities, normalisation=False)


class OfOneInput(Loop):
    """A backend of an older contract, which normalises the first input alone."""

    name = "of_one_input"
    capabilities = replace(Loop.capabilities, normalised_shortcut=False)


def test_a_backend_may_normalise_the_first_input_alone() -> None:
    """A normalised shortcut is computed one after the other there, and the reason names the capability."""
    with installed(OfOneInput) as name:
        neuron = sc.LIF(backend=name)
        layer = NormNeuron(norm(), neuron, shortcut="before")
        layer(image(), image())
        assert layer.reason == ""
        layer.shortcut_norm = norm()
        layer(image(), image())
        assert "does not support normalised_shortcut" in str(layer.reason)


def test_why_two_layers_are_computed_is_said() -> None:
    """On the reference, by wish, in calls that torch traces; fused=True raises instead, in words."""
    x = image()
    layer = NormNeuron(norm(), sc.LIF(backend="torch"))
    layer(x)
    assert "computes one operation after the other" in str(layer.reason)
    layer = NormNeuron(norm(), sc.LIF(backend="torch"), fused=True)
    layer(x)
    assert layer.reason == ""
    with installed(Without) as name:
        layer = NormNeuron(norm(), sc.LIF(backend=name), fused=True)
        with pytest.raises(
            Unsupported, match=r"LIF was to normalise within its kernel \(fused=True\): backend 'without'"
        ):
            layer(x)
    assert int(layer.norm.num_batches_tracked) == 0
    layer = NormNeuron(norm(), bound(sc.LIF(), Loop()), fused=False)
    layer(x)
    assert layer.reason == "fused=False was asked for"
    layer = pair()[0]
    layer(x)
    assert layer.reason == ""
    other = NormNeuron(norm(), bound(sc.LIF(tau=torch.full((5,), 2.0), channel_dim=3), Loop()))
    other(x)
    assert other.reason == "channel_dim=3, and a parameter is a tensor"
    with pytest.raises(Unsupported, match="is no plain input of the normalisation"):
        layer(x[..., :0])  # no number to normalise over
    layer.fused = None
    assert layer(x[..., :0]).shape == x[..., :0].shape
    assert "is no plain input of the normalisation" in str(layer.reason)
    with pytest.raises(TypeError, match="fused='yes' must be True, False or None"):
        NormNeuron(norm(), sc.LIF(), fused="yes")


def test_an_eps_of_nothing_is_left_to_torch() -> None:
    """A kernel gave no spikes, in silence, where a channel is constant and where torch refuses the number."""
    layer = NormNeuron(norm(eps=0.0), sc.LIF(), fused=True)
    bound(layer.neuron, Loop())
    with pytest.raises(Unsupported, match=r"eps=0\.0 of the normalisation is not above 0"):
        layer(image())


def test_the_interpreter_derives_statistics() -> None:
    """The suite's cases of normalisation run on the reference, too; it has second derivatives beside."""
    layer = NormNeuron(nn.BatchNorm2d(2).double(), sc.LI(tau=2.7, backend="torch"), fused=True)
    x = (image(2, torch.float64)[:, :2, :2, :1, :2] * 2.0).requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (x,))
