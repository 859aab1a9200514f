"""shortcut and fused of a NormNeuron, set after it was made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import spikecore as sc
from fused_layers import norm
from kernel_loop import Loop, bound, image
from spikecore.layers import NormNeuron


def layer(**settings: Any) -> NormNeuron:
    return NormNeuron(norm(), bound(sc.LIF(), Loop()), **settings)


def again(one: NormNeuron, *inputs: Tensor) -> Any:
    """What a copy gives, so that running statistics stay."""
    return copy.deepcopy(one)(*inputs)


@pytest.mark.parametrize("after", [None, "before", "after"])
@pytest.mark.parametrize("before", [None, "before", "after"])
def test_a_shortcut_counts_from_the_next_call_on(before: Any, after: Any) -> None:
    """The layer computes, prints and takes what one does that was made so."""
    changed, made = layer(shortcut=before), layer(shortcut=after)
    made.load_state_dict(changed.state_dict())
    x, skip = image(), torch.rand_like(image())
    again(changed, x, *[skip] * (before is not None))
    changed.shortcut = after
    inputs = (x, skip) if after else (x,)
    assert torch.equal(again(changed, *inputs), again(made, *inputs))
    assert changed.extra_repr() == made.extra_repr()
    assert changed.shortcut == after
    with pytest.raises(TypeError, match="which normalises its input, takes"):
        changed(*inputs, skip)


def test_fused_counts_from_the_next_call_on() -> None:
    """As one program, and not."""
    one = layer()
    for value, reason in ((None, ""), (False, "fused=False was asked for"), (True, ""), (None, "")):
        one.fused = value
        assert one.fused is value
        one(image())
        assert one.reason == reason  # type: ignore[union-attr]  # it has one


def test_values_are_checked_when_they_are_set() -> None:
    """As the constructor checks them; the layer keeps what it had."""
    one = layer(shortcut="after", fused=True)
    with pytest.raises(ValueError, match="shortcut='behind' must be None, 'before'"):
        one.shortcut = "behind"
    with pytest.raises(TypeError, match="fused='no' must be True, False or None"):
        one.fused = "no"  # type: ignore[assignment]
    assert (one.shortcut, one.fused) == ("after", True)
