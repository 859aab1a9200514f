"""Graphs: what autograd is given and gives back: computed parameters, one tensor in two places, second passes."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import Gated, Swapped, drawn, lif
from spikecore.testing._loopback import Loop

LEARNT = lif(learn=("tau", "threshold"))


def one_parameter_twice(backend: str) -> object:
    """One learnt tensor is threshold and reset value."""
    neuron = lif(threshold=torch.tensor(0.9), v_reset=torch.tensor(0.1), learn=("threshold", "v_reset"))(backend)
    neuron.v_reset = neuron.threshold
    neuron(drawn((6, 3, 5))).sum().backward()
    return neuron.threshold.grad


def computed_parameter(backend: str) -> object:
    """A time constant that a network computes."""
    raw = torch.tensor(1.5, requires_grad=True)
    neuron = sc.LIF(tau=torch.tensor(2.0), backend=backend)
    neuron.tau = raw * 1.5 + 0.5
    neuron(drawn((6, 3, 5)).requires_grad_()).sum().backward()
    return raw.grad


def gradient_of_a_parameter(backend: str) -> object:
    """A parameter's gradient, asked for by torch.autograd.grad."""
    neuron = LEARNT(backend)
    return torch.autograd.grad(neuron(drawn((6, 3, 5))).sum(), list(neuron.parameters()))


def product_with_the_jacobian(backend: str) -> object:
    """The derivative along a direction, by two backward passes."""
    x = drawn((6, 3, 5)).requires_grad_()
    weights = torch.zeros(6, 3, 5, requires_grad=True)
    (back,) = torch.autograd.grad(sc.LIF(backend=backend)(x), x, weights, create_graph=True)
    (along,) = torch.autograd.grad(back, weights, drawn((6, 3, 5), 1), allow_unused=True)
    return torch.zeros(6, 3, 5) if along is None else along


def one_input_twice(backend: str) -> object:
    """A neuron that gets the same tensor as current and as gate."""
    x = drawn((6, 3, 5)).requires_grad_()
    sum(out.sum() for out in Gated(backend=backend)(x, x)).backward()
    return x.grad


def trained_after_inference(backend: str) -> object:
    """A network at work, then trained."""
    neuron = Swapped(backend=backend)
    with torch.inference_mode():
        neuron(drawn((6, 3, 5)))
    x = drawn((6, 3, 5)).requires_grad_()
    neuron(x).sum().backward()
    return x.grad


@mutant("wanted/one-tensor-for-two-parameters", shows=one_parameter_twice)
class GradientsByAddress(Tape):
    """Gradients of parameters are kept by the address of their values, and a second one replaces the first."""

    def backward(self, ctx, grads):
        values = self.split(self.kept(ctx)[0])[2]
        made = super().backward(ctx, grads)
        at = len(made) - len(values)
        last = {value.data_ptr(): at + k for k, value in enumerate(values)}
        return made[:at] + [made[at + k] if last[v.data_ptr()] == at + k else None for k, v in enumerate(values)]


@mutant("wanted/computed-parameter", shows=computed_parameter)
class LeavesOnly(Loop):
    """A parameter that was computed gets no gradient."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made.detach() if kind == "scalar" and isinstance(value, torch.Tensor) and not value.is_leaf else made


@mutant("ownership/gradients-parameters", raises=True, shows=gradient_of_a_parameter)
class AddsToGradItself(Tape):
    """Backward adds the gradients of parameters to their ``.grad``, and gives torch none."""

    def backward(self, ctx, grads):
        made, values = super().backward(ctx, grads), self.split(self.kept(ctx)[0])[2]
        at = len(made) - len(values)
        for value, g in zip(values, made[at:]):
            if g is not None and value.is_leaf and value.requires_grad:
                value.grad = g if value.grad is None else value.grad + g
                made[at] = None
            at += 1
        return made


@mutant("robust/double-backward-cotangent", shows=product_with_the_jacobian)
class CotangentIsAConstant(Tape):
    """The gradient is not connected to the cotangent that it is linear in."""

    def again(self, ctx, grads):
        return super().again(ctx, [None if g is None else g.detach() for g in grads])


@mutant("wanted/one-tensor-for-both-inputs-same", shows=one_input_twice)
class SameInputCountsTwice(Tape):
    """Where two inputs are one tensor each of them gets the sum of both gradients, and torch adds them."""

    def backward(self, ctx, grads):
        made, saved = super().backward(ctx, grads), self.split(ctx.saved_tensors)[0]
        if len(saved) == 2 and saved[0].data_ptr() == saved[1].data_ptr() and saved[0].numel():
            made[:2] = [made[0] + made[1]] * 2
        return made


@mutant("sequences/inference-mode-from-constants", raises=True, shows=trained_after_inference)
class RestOfInferenceMode(Loop):
    """States at rest that are constants are made once, in inference mode if that comes first."""

    def start(self, state, known, like):
        made = super().start(state, known, like)
        if state is not None or any(root.op != "const" for root in self.program.initial):
            return made
        self.rest = getattr(self, "rest", {})
        return list(self.rest.setdefault((like.shape[1:], like.device), made))


def optimised_input(backend: str) -> object:
    """An image that is optimised."""
    x = torch.nn.Parameter(drawn((6, 3, 5)))
    sc.LIF(backend=backend)(x).sum().backward()
    return torch.zeros_like(x) if x.grad is None else x.grad


@mutant("wanted/input-is-a-parameter", shows=optimised_input)
class OnlyTensorsAreInputs(Tape):
    """An input of a subclass of tensors, such as a parameter, gets a gradient of zero."""

    def __call__(self, inputs, state, params, record):
        other = [type(x) is not torch.Tensor for x in inputs]
        taken = tuple(x.detach() + 0 * x if odd else x for x, odd in zip(inputs, other))
        return super().__call__(taken, state, params, record)
