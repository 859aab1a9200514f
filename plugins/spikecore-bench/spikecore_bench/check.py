"""Comparison of a layer with the reference: spikes, input gradients, gradients of learnt parameters.

It is asked before anything is timed, on the very input that is timed.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.testing import TOLERANCES, Tolerance

#: The backend that says what is right.
REFERENCE = "torch"
#: Of a learnt parameter's gradient; absolute in units of the sum of the sizes of all input gradients, since a sum of
#: millions of terms that cancel is known no better.
PARAMETER = Tolerance(1e-3, 1e-6)


class Observed(NamedTuple):
    """Results of one forward and backward pass."""

    spikes: Tensor
    gradient: Tensor
    learnt: Tuple[Tensor, ...]


def observe(layer: nn.Module, x: Tensor, cotangent: Tensor) -> Observed:
    """Run a layer forwards and backwards once."""
    parameters = tuple(layer.parameters())
    spikes = layer(x)
    gradient, *learnt = torch.autograd.grad(spikes, (x, *parameters), cotangent)
    return Observed(spikes.detach(), gradient, tuple(learnt))


def differences(got: Observed, expected: Observed) -> Optional[str]:
    """Difference of the first from the second, in words with numbers; None if there is none.

    Spikes must be equal. Gradients are compared, within the tolerance of the conformance suite, for neurons all of
    whose spikes are: a spike more or less is another gradient.
    """
    pairs = (("spikes", got.spikes, expected.spikes), ("input gradient", got.gradient, expected.gradient))
    for what, mine, reference in pairs:
        if mine.shape != reference.shape:
            return f"{what} of shape {list(mine.shape)} instead of {list(reference.shape)}"
        if mine.dtype != reference.dtype:
            return f"{what} in {mine.dtype} for an input in {reference.dtype}".replace("torch.", "")
    found = [_spikes(got.spikes, expected.spikes), _gradient(got, expected), *_learnt(got, expected)]
    return "; ".join(filter(None, found)) or None


def _spikes(got: Tensor, expected: Tensor) -> Optional[str]:
    wrong = int((got != expected).sum())
    return f"{wrong:,} of {got.numel():,} spikes differ ({wrong / got.numel():.2g} of all)" if wrong else None


def _gradient(got: Observed, expected: Observed) -> Optional[str]:
    rtol, atol = TOLERANCES[str(got.gradient.dtype).replace("torch.", ""), "input gradient"]
    agree = (got.spikes == expected.spikes).all(dim=0)
    scale = max(1.0, float(expected.gradient.abs().max()))
    counts: List[Tensor] = []
    largest: List[Tensor] = []
    # step by step, which keeps what is made on the way small
    for mine, reference in zip(got.gradient, expected.gradient):
        mine, reference = mine.float(), reference.float()
        off = (mine - reference).abs()
        wrong = ~(off <= rtol * reference.abs() + atol * scale) & agree
        counts.append(wrong.sum())
        largest.append(torch.where(wrong, off, torch.zeros_like(off)).max())
    count = int(torch.stack(counts).sum())
    if not count:
        return None
    by, total = float(torch.stack(largest).max()), got.gradient.numel()
    return f"{count:,} of {total:,} input gradients differ, by up to {by:.2g} where the largest is {scale:.2g}"


def _learnt(got: Observed, expected: Observed) -> List[Optional[str]]:
    if len(got.learnt) != len(expected.learnt):
        return [f"{len(got.learnt)} learnt parameters instead of {len(expected.learnt)}"]
    if not expected.learnt:
        return []
    size = float(expected.gradient.float().abs().sum())
    found: List[Optional[str]] = []
    for mine, reference in zip(got.learnt, expected.learnt):
        off, largest = float((mine.float() - reference.float()).abs().max()), float(reference.abs().max())
        if not off <= PARAMETER.rtol * largest + PARAMETER.atol * size:
            found.append(f"the gradient of a learnt parameter is off by {off:.2g} where it is {largest:.2g}")
    return found
