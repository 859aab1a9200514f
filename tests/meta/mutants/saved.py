"""What a call keeps: versions of what it saved, hooks, memory that is never given back."""

from __future__ import annotations

import gc
import weakref

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import Gated, drawn, lif
from spikecore.testing._loopback import Loop

KEPT = []


class Unnoticed(Tape):
    """Keeps tensors beside autograd, which then cannot see what becomes of them."""

    def keep(self, ctx, tensors, states):
        """All of them, as they are."""
        super().keep(ctx, [t.detach().clone() for t in tensors], states)
        ctx.aside = self.aside(tensors)

    def aside(self, tensors):
        """What is kept without a copy."""
        return {}

    def kept(self, ctx):
        """With what is kept aside in its place."""
        tensors, states = super().kept(ctx)
        tensors = [ctx.aside.get(k, v) for k, v in enumerate(tensors)]
        return tensors, [list(self.split(tensors)[1]), *states[1:]]

    def again(self, ctx, grads):
        """Not of interest here."""
        return super().again(ctx, grads)


def overwritten(make, which):
    """An argument is overwritten between forward and backward: refused, or right all the same."""

    def program(backend: str) -> object:
        neuron = make(backend)
        leaves = [drawn((6, 3, 5), k).requires_grad_() for k in range(len(neuron.inputs))]
        inputs = [leaf * 2 for leaf in leaves]
        start = {name: drawn((3, 5), 8) for name in neuron.states}
        outputs = neuron.run(*inputs, state=start)[0]
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        right = torch.autograd.grad(sum(o.sum() for o in outputs), leaves, retain_graph=True)
        with torch.no_grad():
            {"input": inputs[-1], "state": start["v"], "parameter": next(iter(neuron.parameters()), None)}[which].fill_(
                9
            )
        try:
            found = torch.autograd.grad(sum(o.sum() for o in outputs), leaves)
        except RuntimeError:
            return True
        return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, right))

    return program


def kept_alive(what):
    """Whether something of a call outlives it."""

    def program(backend: str) -> object:
        neuron = sc.LIF(backend=backend)
        x = drawn((6, 3, 5)).requires_grad_()
        cotangent = drawn((6, 3, 5), 3)
        inner = x * 1
        out = neuron(inner)
        out.backward(cotangent)
        watched = weakref.ref({"output": out, "input": inner, "cotangent": cotangent}[what])
        gc.disable()
        try:
            del out, cotangent, inner
            return watched() is None
        finally:
            gc.enable()

    return program


def memory_of_calls(backend: str) -> object:
    """Tensors that are left when calls and their results are gone."""
    neuron = sc.LIF(backend=backend)
    for _ in range(3):
        neuron(drawn((6, 3, 5)).requires_grad_()).sum().backward()
    gc.collect()
    before = sum(type(o) is torch.Tensor for o in gc.get_objects())
    for k in range(12):
        neuron(drawn((6, 3, 5), k).requires_grad_()).sum().backward()
    gc.collect()
    return sum(type(o) is torch.Tensor for o in gc.get_objects()) - before > 8


def backward_without_graph(backend: str) -> object:
    """A second backward pass through a graph that was not kept is refused."""
    out = sc.LIF(backend=backend)(drawn((6, 3, 5)).requires_grad_())
    out.sum().backward()
    try:
        out.sum().backward()
    except RuntimeError:
        return True
    return False


@mutant("sequences/in-place-input", shows=overwritten(lambda backend: Gated(backend=backend), "input"))
class InputChangedUnnoticed(Unnoticed):
    """Backward reads the input as it is by then."""

    def aside(self, tensors):
        return dict(enumerate(t.detach() for t in self.split(tensors)[0]))


@mutant("sequences/in-place-parameter-learnt", shows=overwritten(lif(learn=("tau",)), "parameter"))
class ParameterChangedUnnoticed(Unnoticed):
    """Backward reads a learnt parameter as it is by then, after an optimiser's step."""

    def aside(self, tensors):
        at = len(tensors) - len(self.program.params)
        return {k: t.detach() for k, t in enumerate(tensors) if k >= at}


@mutant("sequences/in-place-state", shows=overwritten(lif(), "state"))
class StateChangedUnnoticed(Unnoticed):
    """Backward reads the given state as it is by then."""

    def aside(self, tensors):
        inputs, states = len(self.program.inputs), len(self.program.states)
        return {k: t.detach() for k, t in enumerate(tensors) if inputs <= k < inputs + states}


@mutant("robust/nothing-kept", says=("kept alive",), shows=kept_alive("input"))
class KeepsItsInput(Loop):
    """The last input is remembered."""

    def __call__(self, inputs, state, params, record):
        self.last = inputs
        return super().__call__(inputs, state, params, record)


@mutant("sequences/freed-unused", shows=kept_alive("output"))
class KeepsItsOutput(Loop):
    """The last outputs are remembered."""

    def __call__(self, inputs, state, params, record):
        self.last = super().__call__(inputs, state, params, record)
        return self.last


@mutant("sequences/freed-gradients", shows=kept_alive("cotangent"))
class KeepsTheCotangent(Tape):
    """The last cotangents are remembered."""

    def backward(self, ctx, grads):
        self.last = grads
        return super().backward(ctx, grads)


@mutant("sequences/steady", shows=memory_of_calls)
class KeepsEveryTape(Tape):
    """What each call keeps for backward stays in a list."""

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        KEPT.extend(value for row in states[1:-1] for value in row)


class SavesBesideAutograd(Tape):
    """What backward needs is kept on the graph's node, where no hook sees it."""

    def keep(self, ctx, tensors, states):
        ctx.aside = tuple(t.detach().clone() for t in tensors), [list(row) for row in states[:-1]]

    def kept(self, ctx):
        return ctx.aside

    def again(self, ctx, grads):
        return self.backward(ctx, grads)


@mutant("sequences/freed-after-backward", shows=backward_without_graph)
class GraphNeverFreed(SavesBesideAutograd):
    """A second backward pass through a graph that was not kept is let through."""
