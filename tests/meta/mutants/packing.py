"""Spikes as bits: bits that are lost, and wrong numbers that are taken for right."""

from __future__ import annotations

import torch

from mutants.registry import mutant
from spikecore._plugins.registry import default_registry
from spikecore.backend import Whole
from spikecore.testing._loopback import Loopback


def kept(number=1.0):
    """Numbers that a backend packs and unpacks, one of them as given."""

    def program(name: str) -> object:
        backend = default_registry().get(name, "test")
        numbers = torch.ones(401)
        numbers[::3] = 0
        numbers[7] = number
        return backend.unpack(backend.pack(numbers, Whole(1)), Whole(1), 401, numbers.dtype)

    return program


@mutant("packed/numbers-*", shows=kept())
class ABitIsLost(Loopback):
    """The last bytes of what is packed have lost their highest bit."""

    def pack(self, numbers, whole):
        found = super().pack(numbers, whole)
        found.data[-8:] &= 0x7F
        return found


@mutant("packed/numbers-*", shows=kept())
class NumbersOfABlockAreTurned(Loopback):
    """The numbers of a byte come back last one first."""

    def unpack(self, bits, whole, count, dtype):
        each = 8 // whole.bits
        found = super().unpack(bits, whole, -(-count // each) * each, dtype)
        return found.view(-1, each).flip(1).reshape(-1)[:count]


@mutant("packed/others", shows=kept(0.5))
class OtherNumbersAreTakenForRight(Loopback):
    """What is not as it was said to be is packed all the same."""

    def pack(self, numbers, whole):
        found = super().pack(numbers, whole)
        return found._replace(right=torch.ones_like(found.right))
