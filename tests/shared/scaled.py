"""A neuron whose definition reads one number, from wherever a test puts it."""

from __future__ import annotations

import torch

import spikecore as sc

X = torch.full((3, 2), 0.75)


class Scaled(sc.Neuron):
    """Its input times what ``factor`` finds."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x, s, p):
        v = x * self.factor()
        return v, {"v": v}


class Within(Scaled):
    """A number within something else."""

    def __init__(self, held, read):
        super().__init__()
        self._held, self._how = held, read

    def factor(self):
        return self._how(self._held)
