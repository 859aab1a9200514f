"""Calls: threads, order, chance, single steps, a graph that is run backwards again."""

from __future__ import annotations

import threading
import time

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import drawn, lif
from spikecore.testing._loopback import Loop


def in_threads(gradient: bool):
    """One neuron in four threads at once."""

    def program(backend: str) -> object:
        neuron = sc.LIF(backend=backend)
        found = [None] * 4

        def work(k: int) -> None:
            x = drawn((12, 3, 5), k).requires_grad_(gradient)
            out = neuron(x)
            found[k] = torch.autograd.grad(out.sum(), x)[0] if gradient else out

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    return program


def again(backend: str) -> object:
    """The same step twice, to the bit."""
    found = []
    for _ in range(2):
        neuron = lif(learn=("tau",))(backend)
        neuron(drawn((6, 3, 5))).sum().backward()
        found.append(neuron.tau.grad.item())
    return found[0] == found[1]


def backward_again(backend: str) -> object:
    """A graph that is kept."""
    x = drawn((4, 3)).requires_grad_()
    out = sc.LIF(backend=backend)(x).sum()
    return [torch.autograd.grad(out, x, retain_graph=True)[0] for _ in range(2)]


def step_by_step(backend: str) -> object:
    """Single steps with a gradient through time."""
    neuron = sc.LIF(step="single", backend=backend)
    x = drawn((5, 3)).requires_grad_()
    outs = torch.stack([neuron(row) for row in x])
    outs.sum().backward()
    return outs.detach(), x.grad


@mutant("robust/deterministic", says=("computed again",), shows=again)
class Random(Loop):
    """Sums in an order of its own, every time."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        self.turn = getattr(self, "turn", 0) + 1
        noise = 1 + 1e-6 * (self.turn * 0.618 % 1)
        return made * noise + made.detach() * (1 - noise) if made.requires_grad else made


@mutant("robust/threads", says=("in a thread",), shows=in_threads(False))
class SharedScratch(Loop):
    """One buffer for all threads."""

    def read(self, x, t):
        self.scratch = super().read(x, t)
        time.sleep(0.0005)
        return self.scratch


@mutant("robust/threads-gradient", shows=in_threads(True))
class SharedScratchInBackward(Tape):
    """One buffer for the cotangents of all threads."""

    def carry(self, before, now, t):
        self.scratch = super().carry(before, now, t)
        time.sleep(0.0005)
        return self.scratch


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        """The same."""
        ctx.used = False
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        """Nothing the second time."""
        ctx.used, again = True, ctx.used
        return grad * (not again)


@mutant("robust/backward-twice", says=("backward number 2",), shows=backward_again)
class BackwardOnce(Loop):
    """The second backward through a kept graph gives zeros."""

    def written(self, output):
        return _Once.apply(super().written(output))


@mutant("single-step/*", "state/single-gradient", shows=step_by_step)
class QuickStepWithoutState(Loop):
    """The quick way of a single step starts at rest every time."""

    def one_step(self, inputs, state, params):
        """One step."""
        outputs, final, _ = self(tuple(x.unsqueeze(0) for x in inputs), None, params, ())
        return tuple(out.squeeze(0) for out in outputs), final


@mutant("state/single-gradient", shows=step_by_step)
class QuickStepWithoutGradient(Loop):
    """The quick way of a single step gives the carried state without its gradient."""

    def one_step(self, inputs, state, params):
        """One step."""
        outputs, final, _ = self(tuple(x.unsqueeze(0) for x in inputs), state, params, ())
        return tuple(out.squeeze(0) for out in outputs), tuple(v.detach() for v in final)
