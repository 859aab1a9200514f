"""The process: modes, random numbers and threads that a call changes for everybody."""

from __future__ import annotations

import random
import warnings

import numpy as np
import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import drawn, lif
from spikecore.testing._loopback import Loop


def after(look, gradient=False):
    """What the user sees of the process after a call, or after its backward pass."""

    def program(backend: str) -> object:
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002  # the state that all share is what is looked at
        random.seed(1)
        out = lif(learn=("tau",))(backend)(drawn((4, 3)).requires_grad_())
        if gradient:
            out.sum().backward()
        return look()

    return program


def warned():
    """Whether a warning of the user's arrives."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("the user's own", UserWarning, stacklevel=1)
    return len(seen)


def backward_under_autocast(backend: str) -> object:
    """Forward and backward of a step within autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = drawn((6, 30)).requires_grad_()
        neuron = lif(learn=("tau",))(backend)
        neuron(x).sum().backward()
    return neuron.tau.grad


def forward_under_autocast(backend: str) -> object:
    """A call within autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return sc.LI(backend=backend)(drawn((6, 30)))


class Changes(Loop):
    """Changes something at each call."""

    def change(self):
        """What it changes."""

    def __call__(self, inputs, state, params, record):
        made = super().__call__(inputs, state, params, record)
        self.change()
        return made


@mutant("ownership/process-subnormals", shows=after(lambda: torch.tensor(1e-40) * 0.5 > 0))
class FlushToZeroForAll(Changes):
    """Subnormal numbers are flushed to zero, from then on and everywhere."""

    def change(self):
        torch.set_flush_denormal(True)


@mutant("ownership/process-random", shows=after(lambda: torch.rand(3)))
class TakesRandomNumbers(Changes):
    """A random number is taken from torch's generator."""

    def change(self):
        torch.rand(1)


@mutant("ownership/process-random", shows=after(lambda: torch.rand(3)))
class SeedsTheGenerator(Changes):
    """torch's generator is seeded."""

    def change(self):
        torch.manual_seed(0)


@mutant("ownership/process-random", shows=after(lambda: torch.rand(3), gradient=True))
class TakesRandomNumbersInBackward(Tape):
    """A random number is taken from torch's generator in backward."""

    def backward(self, ctx, grads):
        torch.rand(1)
        return super().backward(ctx, grads)


@mutant("ownership/process-torch", shows=after(torch.get_num_threads))
class ChangesTheThreads(Changes):
    """torch has another number of threads from then on."""

    def change(self):
        torch.set_num_threads(torch.get_num_threads() % 2 + 1)


@mutant("ownership/process-torch", shows=after(torch.is_grad_enabled))
class LeavesGradientsOff(Changes):
    """Gradients are off from then on."""

    def change(self):
        torch.set_grad_enabled(False)


@mutant("ownership/process-torch", shows=after(lambda: torch.ones(1).dtype == torch.float64))
class ChangesTheDefaultDtype(Changes):
    """New tensors are float64 from then on."""

    def change(self):
        torch.set_default_dtype(torch.float64)


@mutant("ownership/process-random", shows=after(np.random.rand))
class TakesRandomNumbersOfNumPy(Changes):
    """A random number is taken from NumPy's generator."""

    def change(self):
        np.random.rand()  # noqa: NPY002


@mutant("ownership/process-random", shows=after(random.random))
class TakesRandomNumbersOfPython(Changes):
    """A random number is taken from Python's generator."""

    def change(self):
        random.random()


@mutant("ownership/process-torch", shows=after(torch.are_deterministic_algorithms_enabled))
class AsksForDeterminism(Changes):
    """torch is told to use deterministic algorithms from then on."""

    def change(self):
        torch.use_deterministic_algorithms(True)


@mutant("ownership/process-torch", shows=after(lambda: np.geterr()["divide"]))
class QuietensNumPy(Changes):
    """NumPy's errors are ignored from then on."""

    def change(self):
        np.seterr(all="ignore", divide="raise")


@mutant("sequences/autocast-both", shows=backward_under_autocast)
class AutocastLeaksIntoBackward(Tape):
    """A parameter's gradient is a product with ones, which autocast lowers to bfloat16."""

    def total(self, sum_, value):
        if value.ndim or not sum_.numel() or sum_.dtype != torch.float32:
            return super().total(sum_, value)
        flat = sum_.reshape(1, -1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.lowered):
            return (flat @ torch.ones(flat.shape[1], 1)).reshape(()).float()

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        self.lowered = (torch.eye(2) @ torch.eye(2)).dtype == torch.bfloat16


@mutant("robust/autocast", says=("under autocast",), shows=forward_under_autocast)
class AutocastLeaksIn(Loop):
    """Under autocast the state is bfloat16."""

    def carry(self, before, now, t):
        probe = torch.eye(2) @ torch.eye(2)  # autocast lowers a product of matrices
        return [v.bfloat16().float() for v in now] if probe.dtype == torch.bfloat16 else now
