"""Spikes as bits: bits that are lost, and wrong numbers that are taken for right."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc
from mutants.registry import mutant
from mutants.use import drawn
from spikecore.testing._loopback import Loopback


def trained(change=lambda z: z):
    """The gradient of a layer that saves what is made of spikes, as bits."""

    def program(backend: str) -> object:
        torch.manual_seed(0)
        layer, neuron = nn.Linear(401, 3), sc.LIF(backend=backend)
        with sc.packed_spikes():
            out = layer(change(neuron(drawn((5, 3, 401)).requires_grad_())))
        out.square().sum().backward()
        return layer.weight.grad

    return program


def halved(z):
    """Written to without autograd's knowledge."""
    z.data.mul_(0.5)
    return z


def twice(backend: str) -> object:
    """One memory that is saved twice, with a write between that autograd does not see."""
    weight = torch.ones((), requires_grad=True)
    with sc.packed_spikes():
        z = sc.LIF(backend=backend)(drawn((5, 3, 401)).requires_grad_())
        first = (z * weight).sum()
        z.data.copy_(1 - z.data)
        second = (z * weight).sum()
    (first + 3 * second).backward()
    return weight.grad


@mutant("packed/numbers-*", "packed/gradients", shows=trained())
class ABitIsLost(Loopback):
    """The last bytes of what is packed have lost their highest bit."""

    def pack(self, numbers, whole, like=None):
        found = super().pack(numbers, whole, like)
        if like is None:
            found.data[-8:] &= 0x7F
        return found


@mutant("packed/numbers-*", "packed/gradients", shows=trained())
class NumbersOfABlockAreTurned(Loopback):
    """The numbers of a byte come back last one first."""

    def unpack(self, bits, whole, count, dtype):
        each = 8 // whole.bits
        found = super().unpack(bits, whole, -(-count // each) * each, dtype)
        return found.view(-1, each).flip(1).reshape(-1)[:count]


@mutant("packed/others", shows=trained(halved))
class OtherNumbersAreTakenForRight(Loopback):
    """What is not as it was said to be is packed all the same."""

    def pack(self, numbers, whole, like=None):
        found = super().pack(numbers, whole, like)
        return found._replace(right=torch.ones_like(found.right))


@mutant("packed/again", shows=twice)
class BitsAreNotComparedAgain(Loopback):
    """Numbers that are packed again are taken for those of the first time."""

    def pack(self, numbers, whole, like=None):
        found = super().pack(numbers, whole)
        return found if like is None else found._replace(data=like)
