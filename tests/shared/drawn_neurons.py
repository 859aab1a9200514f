"""Random neurons in operations that fixed point has."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from typing import Any, Iterator, Sequence, Tuple

import torch

import spikecore as sc
from spikecore_chips.quant import Format, Inexact, fixed

#: Numbers of 12 bits, 8 of them fractional.
INPUTS = Format(8, -2048, 2047)


class Expressions:
    """Random expressions in operations that fixed point has, as functions of a definition's values."""

    def __init__(self, rng: random.Random, states: Sequence[str], params: Sequence[str]) -> None:
        self.rng, self.states, self.params = rng, states, params

    def leaf(self) -> Any:
        kind = self.rng.choice("xss")
        if kind == "x" or not self.states:
            return lambda x, s, p: x
        name = self.rng.choice(self.states)
        return lambda x, s, p: getattr(s, name)

    def number(self) -> Any:
        name, value = self.rng.choice([*self.params, ""]), self.rng.choice((0.5, 0.3, 1.7, 2.0, -0.9, 1e-2, 0.0))
        return (lambda x, s, p: getattr(p, name)) if name else (lambda x, s, p: value)

    def value(self, depth: int) -> Any:
        if depth <= 0:
            return self.leaf()
        rng, a, b, c = self.rng, self.value(depth - 1), self.value(depth - 1), self.number()
        divisor = rng.choice(self.params)
        kinds = {
            "add": lambda x, s, p: a(x, s, p) + b(x, s, p),
            "offset": lambda x, s, p: a(x, s, p) - c(x, s, p),
            "scale": lambda x, s, p: c(x, s, p) * a(x, s, p),
            "divide": lambda x, s, p: a(x, s, p) / getattr(p, divisor),
            "product": lambda x, s, p: a(x, s, p) * b(x, s, p),
            "gate": lambda x, s, p: sc.ops.where((a(x, s, p) > c(x, s, p)) | (b(x, s, p) <= 0.25), 1.0, a(x, s, p)),
            "extremum": lambda x, s, p: sc.ops.maximum(a(x, s, p), sc.ops.minimum(b(x, s, p), c(x, s, p))),
            "clamp": lambda x, s, p: sc.ops.clamp(a(x, s, p), -1.0, 0.75),
            "flat": lambda x, s, p: sc.ops.floor(a(x, s, p)) + sc.ops.sign(b(x, s, p)),
            "unary": lambda x, s, p: -abs(a(x, s, p)),
        }
        return kinds[rng.choice([*kinds])]

    def neuron(self) -> Any:
        """A neuron with a spike and these states."""
        potential, outputs, reset = self.value(2), self.value(1), self.rng.choice(self.states)
        following = {name: self.value(2) for name in self.states}
        strict = self.rng.random() < 0.5
        initial = {name: self.rng.choice((0.0, 0.3, self.params[0])) for name in self.states}
        params = {name: self.rng.choice((0.4, 1.25, 2.0, 3.0)) for name in self.params}

        def dynamics(self: Any, x: Any, s: Any, p: Any) -> Any:
            z = self.spike(potential(x, s, p) - p.a, strict=strict)
            after = {name: value(x, s, p) * 0.75 for name, value in following.items()}
            after[reset] = sc.ops.select(z, p.b * 0.5, after[reset])
            return (z, outputs(x, s, p)), after

        kind = type("Drawn", (sc.Neuron,), {"states": initial, "params": params, "dynamics": dynamics})
        return kind()


def drawn(seed: int) -> Any:
    """A random neuron in floats."""
    rng = random.Random(seed)
    return Expressions(rng, ("v", "w")[: rng.randint(1, 2)], ("a", "b", "c")).neuron()


def exact(program: int, dtype: torch.dtype) -> Iterator[Tuple[Any, int]]:
    """Drawn neurons that this dtype holds, and which output to take."""
    for seed in count(1000 * program):
        word, rounding = (10, 12)[seed % 2], ("nearest", "floor")[seed // 2 % 2]
        word += 4 if dtype == torch.float64 else 0
        with suppress(Inexact):
            yield fixed(drawn(seed), word=word, frac=word - 5, rounding=rounding, dtype=dtype), seed // 4 % 2
