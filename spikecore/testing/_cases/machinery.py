"""PyTorch's machinery around a neuron: copies, checkpoints, repeated backward passes, autocast, training."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same, unchanged
from spikecore.testing._context import Context
from spikecore.testing._oracle import run
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import TOLERANCES

_BACK = ("gradients",)
_LEARN = (*_BACK, "parameter_gradients")


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = (), **more: Any) -> None:
        cases.add(f"robust/{name}", "robust", holds, run, needs, **more)

    add("deepcopy", "a deep copy computes the same and shares nothing", deep_copy)
    add("pickle", "a neuron survives pickling, the state it carries included", pickled)
    add("state-dict", "parameters are saved and loaded, state is not", state_dict)
    add("checkpoint", "torch.utils.checkpoint gives the same gradients", checkpointed, _LEARN)
    add("backward-twice", "a graph that is kept can be run backwards twice", backward_twice, _BACK)
    add("gradients-add-up", "gradients of two calls add up", add_up, _LEARN)
    add("unused-output", "a call whose output is not used has no gradient, and disturbs none", unused, _BACK)
    add(
        "autocast", "under autocast state and arithmetic stay float32, the output in the input's dtype", autocast, _BACK
    )
    half = "16-bit activations of an autocast layer go in and come out"
    add("autocast-16-bit", half, autocast_half, dtype="bfloat16")
    twice = (*_BACK, "double_backward")
    add("double-backward", "second derivatives are right", double_backward, twice, undeclared="RuntimeError")
    linear = "a gradient is differentiable in its cotangent, in which it is linear"
    add("double-backward-cotangent", linear, along, twice, undeclared="RuntimeError")
    add("eval", "eval() changes nothing about outputs and gradients", evaluated, _BACK)
    add("training-step", "a training step moves the weights as the equations say", training_step, _BACK)


def deep_copy(context: Context) -> None:
    """Of a neuron that has been used and carries state."""
    s = Subject(context, "lif", "soft", step="single", values={"tau": np.asarray(2.7)})
    half = len(s.inputs[0]) // 2
    outputs = [s.neuron(x) for x in s.x()[:half]]
    twin = copy.deepcopy(s.neuron)
    for x in s.x()[:half]:
        s.neuron(x)  # the original goes on; its copy must not notice
    outputs += [twin(x) for x in s.x()[half:]]
    s.check_outputs(torch.stack(outputs), " of a copy")


def pickled(context: Context) -> None:
    """Likewise."""
    s = Subject(context, "alif", "soft", step="single")
    half = len(s.inputs[0]) // 2
    outputs = [s.neuron(x) for x in s.x()[:half]]
    back = pickle.loads(pickle.dumps(s.neuron))
    outputs += [back(x) for x in s.x()[half:]]
    s.check_outputs(torch.stack(outputs), " after pickling")


def state_dict(context: Context) -> None:
    """Into a neuron with other values."""
    s = Subject(context, "lif", "hard", values={"tau": np.asarray(2.75), "threshold": np.asarray(0.875)})
    other = Subject(context, "lif", "hard", values={"tau": np.asarray(9.0), "threshold": np.asarray(3.0)})
    s.neuron(s.x())
    other.neuron.load_state_dict(s.neuron.state_dict())
    if set(s.neuron.state_dict()) != {"tau", "threshold"}:
        raise Mismatch(f"state_dict of {s.of} has {sorted(s.neuron.state_dict())}, expected tau and threshold")
    s.check_outputs(other.neuron(s.x()), " after load_state_dict")


def checkpointed(context: Context) -> None:
    """Both kinds of checkpoint."""
    for reentrant in (False, True):
        s = Subject(context, "plif", "soft", learn=("w",))
        x = s.x(grad=True)
        output = checkpoint(s.neuron, x, use_reentrant=reentrant)
        s.check_outputs(output, " under checkpoint")
        cotangent = s.cotangent(output)
        s.backward(output, cotangent)
        expected = s.gradients(cotangent)
        s.check("input gradient", x.grad, expected.inputs[0], name="a checkpoint")
        s.check("parameter gradient", s.neuron.w.grad, expected.params["w"], name="w under checkpoint")


def backward_twice(context: Context) -> None:
    """With ``retain_graph``, and other cotangents."""
    s = Subject(context, "lif", "hard")
    x = s.x(grad=True)
    output = s.neuron(x)
    for again in range(2):
        x.grad, cotangent = None, s.cotangent(output)
        s.backward(output, cotangent, retain_graph=not again)
        s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name=f"backward number {again + 1}")


def add_up(context: Context) -> None:
    """One neuron called twice, one backward."""
    s = Subject(context, "lif", "hard", learn=("tau",))
    x = s.x(grad=True)
    first, second = s.neuron(x), s.neuron(x)
    one, two = s.cotangent(first), s.cotangent(second)
    backward(s.of, [first, second], [one, two])
    expected = s.gradients(one + two)
    s.check("input gradient", x.grad, expected.inputs[0], name="two calls")
    s.check("parameter gradient", s.neuron.tau.grad, expected.params["tau"], name="tau in two calls")


def unused(context: Context) -> None:
    """Two calls, one used."""
    s = Subject(context, "lif", "hard")
    x, other = s.x(grad=True), s.x(grad=True)
    output, _ = s.neuron(x), s.neuron(other)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0])
    if other.grad is not None:
        raise Mismatch(f"{s.of}: a gradient came to the input of a call whose output was not used")


def autocast(context: Context) -> None:
    """float32 input in an autocast region, against the oracle to the bit."""
    for model in ("lif", "plif", "eif"):
        s = Subject(context, model, "hard")
        x = s.x(grad=True)
        with torch.autocast(context.device.type, dtype=torch.bfloat16):
            output = s.neuron(x)
            _, final = s.neuron.run(x.detach())
        s.check_outputs(output, " under autocast")
        exact = s.model.arithmetic
        s.check_states(final, (s.bits() if exact else s.seen).final, "final state, under autocast,", exact)
        cotangent = s.cotangent(output)
        s.backward(output, cotangent)
        s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name="autocast")


def autocast_half(context: Context) -> None:
    """A linear layer in front, that gives bfloat16."""
    s = Subject(context, "lif", "soft", dtype="bfloat16")
    linear = nn.Linear(7, 7, bias=False)
    nn.init.eye_(linear.weight)
    with torch.no_grad(), torch.autocast(context.device.type, dtype=torch.bfloat16):
        now = context.place(linear)(s.x().float())
        output, final = s.neuron.run(now)
    s.check_outputs(output, " behind an autocast layer")
    s.check_states(final, s.bits().final, "final state, behind an autocast layer,", exact=True)


def double_backward(context: Context) -> None:
    """Against a central difference of the oracle's adjoint, in float64 where there is that.

    With a detached reset: else the second derivative has the surrogate in it, which no difference quotient sees.
    """
    dtype = "float64" if context.declares("float64") else "float32"
    s = Subject(context, "lif", "hard", detach=True, dtype=dtype, shape=(6, 3, 5))
    x = s.x(grad=True)
    output = s.neuron(x)
    cotangent, direction = s.cotangent(output), s.cotangent(output)
    kept = cotangent.clone()
    (first,) = torch.autograd.grad(output, x, cotangent, create_graph=True)
    unchanged("the gradient that came in", s.of, [cotangent], [kept])
    if not first.requires_grad:
        raise Mismatch(f"the gradient of {s.of} is not connected to its input, though create_graph=True")
    (second,) = torch.autograd.grad(first, x, direction)
    step = 1e-5
    d = as_array(direction)
    ends = [run(s.twin, [s.inputs[0] + sign * step * d], s.params) for sign in (1, -1)]
    if not np.array_equal(ends[0].outputs[0], ends[1].outputs[0]):
        raise AssertionError("a spike within the step of the difference quotient")
    up, down = (s.gradients_of(end, cotangent, None, None).inputs[0] for end in ends)
    s.check("second derivative", second, (up - down) / (2 * step))


def along(context: Context) -> None:
    """The product of Jacobian and direction by two backward passes: ``d (J' w) / d w`` along it."""
    s = Subject(context, "lif", "hard", shape=(6, 3, 5))
    x = s.x(grad=True)
    output = s.neuron(x)
    weights, direction = s.cotangent(output).requires_grad_(), s.cotangent(output)
    (back,) = torch.autograd.grad(output, x, weights, create_graph=True)
    (found,) = torch.autograd.grad(back, weights, direction, allow_unused=True)
    if found is None:
        raise Mismatch(f"the gradient of {s.of} is not connected to its cotangent, though create_graph=True")
    # <w, J d> is <J' w, d>: of each of some unit vectors w the oracle gives the left side
    for index in np.ndindex(*s.shape):
        if index[1:] == (1, 2):
            unit = torch.zeros_like(output)
            unit[index] = 1
            right = float((s.gradients(unit).inputs[0] * as_array(direction)).sum())
            s.check(
                "output", found[index].detach(), np.asarray(right), name=f"the Jacobian along a direction, {index},"
            )


def evaluated(context: Context) -> None:
    """In eval mode."""
    s = Subject(context, "lif", "hard")
    s.neuron.eval()
    x = s.x(grad=True)
    output = s.neuron(x)
    s.check_outputs(output, " in eval mode")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name="eval mode")


def training_step(context: Context) -> None:
    """Two steps of SGD on a linear layer before a LIF; loss: the sum of spikes, weighted."""
    s = Subject(context, "lif", "hard", shape=(6, 4, 7))
    linear = nn.Linear(7, 7, bias=False)
    nn.init.eye_(linear.weight)
    net = context.place(nn.Sequential(linear, s.neuron))
    weights = s.cotangent(s.x())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    step = sc.training_model(net, _weighted_sum, optimizer, backend=context.name)
    outputs, loss = step(s.x(), weights)
    s.check_outputs(outputs, " of a training step")
    expected = float((s.seen.outputs[0] * as_array(weights)).sum())
    same("loss", s.of, as_array(loss), np.asarray(expected), TOLERANCES["float32", "parameter gradient"], axes="")
    g_x = s.gradients(weights).inputs[0]
    g_weight = np.einsum("tbo,tbi->oi", g_x, s.inputs[0])
    same(
        "weight after one step",
        repr(net),
        as_array(linear.weight),
        np.eye(7) - 0.01 * g_weight,
        TOLERANCES["float32", "parameter gradient"],
        axes="out, in",
    )


def _weighted_sum(output: Tensor, weights: Tensor) -> Tensor:
    return (output * weights).sum()
