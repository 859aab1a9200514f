"""Outputs that come back through a matrix, in one call: ``Recurrent(neuron, nn.Linear(H, H), fused=True)``.

What a step is given, ``u[t] = x[t] + W y[t-1] + b``, is drawn as any input; ``x`` is what makes it. So outputs and
states are those of the neuron's oracle on ``u``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, same
from spikecore.testing._context import Context
from spikecore.testing._fed import Fed, multiplies, near, steps_of
from spikecore.testing._inputs import generator
from spikecore.testing._models import BY_NAME
from spikecore.testing._oracle import recurrent
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import OTHER_DTYPES

_FORWARD = ("recurrent",)
_BACK = (*_FORWARD, "gradients", "parameter_gradients", "state_gradients")
_SHAPE = (12, 3, 7)


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of states."""

    def add(name: str, holds: str, run: Any, needs: Sequence[str] = _BACK, dtype: str = "float32") -> None:
        cases.add(f"recurrent/{name}", "state", holds, run, needs, dtype=dtype)

    one = "outputs, and gradients of input, weight and bias, are those of the loop"
    for model in ("lif", "if", "plif", "alif", "synaptic", "li"):
        add(model, one, partial(feeds_back, model=model))
    for name, shape in (
        ("steps-1", (1, 3, 7)),
        ("steps-17", (17, 3, 7)),
        ("steps-33", (33, 2, 5)),
        ("width-1", (12, 4, 1)),
        ("width-37", (6, 3, 37)),
        ("width-300", (5, 2, 300)),
        ("width-1100", (3, 1, 1100)),
        ("batch-1", (12, 1, 9)),
        ("no-batch", (12, 9)),
        ("two-batches", (8, 2, 3, 5)),
    ):
        add(name, f"{one}, {name}", partial(feeds_back, shape=shape))
    for dtype in OTHER_DTYPES:
        add(dtype, f"{one}, in this dtype", partial(feeds_back, dtype=dtype), dtype=dtype)
    add("no-bias", "without a bias nothing is added", partial(feeds_back, bias=False))
    add("detach", "resets without gradient leave that of the feedback", partial(feeds_back, reset="soft", detach=True))
    add(
        "learnt",
        "parameters of each neuron learn beside the matrix",
        partial(feeds_back, learn=True),
        (*_BACK, "channel_parameters"),
    )
    add("frozen", "a matrix that is not learnt gets no gradient", partial(feeds_back, frozen=True))
    add("input-alone", "the matrix learns where the input needs no gradient", partial(feeds_back, wanted=False))
    add("states", "from a given state, to the final one and the recorded ones, with their gradients",
        states, (*_BACK, "record"))  # fmt: skip
    add("last-output", "the last output has a gradient as part of the final state", last_output)
    add("bits", "with sums that are exact, the bits are those of one step after the other", bits, _FORWARD)
    add("carried", "two calls that carry their state are one, and sc.detach cuts between them", carried)
    add("single", "single steps give the bits of one call", single)
    add("rest", "every call starts at rest; without steps or neurons there is nothing to compute", rest, _FORWARD)
    add("strides", "inputs and cotangents of any strides give the same", strides)
    add("masked", "a weight that a parametrisation computes gets its gradient through it", masked)
    add("autocast", "under autocast the product has its dtype", autocast)


def feeds_back(
    context: Context,
    model: str = "lif",
    shape: Sequence[int] = _SHAPE,
    dtype: str = "float32",
    reset: Optional[str] = None,
    detach: bool = False,
    bias: bool = True,
    learn: bool = False,
    frozen: bool = False,
    wanted: bool = True,
) -> None:
    """One call, forward and backward, against the oracle."""
    dtype = dtype if multiplies(context, dtype) else "float32"
    own = tuple(BY_NAME[model].params) if learn else ()
    s = Subject(
        context,
        model,
        reset or BY_NAME[model].resets[0],
        shape=shape,
        dtype=dtype,
        detach=detach,
        learn=own,
        values={"tau": np.linspace(1.5, 3.0, shape[-1])} if learn else {},
    )
    fed = Fed(s, bias)
    if frozen:
        fed.net.linear.requires_grad_(False)
    x = context.tensor(fed.x, s.dtype, wanted)
    output = fed.net(x)
    s.check_outputs(output)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    found = fed.check(x, cotangent)
    for name in own:
        value = found.params[name].reshape(np.shape(s.params[name]))
        s.check("parameter gradient", getattr(s.neuron, name).grad, value, name=name)
    if frozen and fed.net.linear.weight.grad is not None:
        raise Mismatch(f"the weight of {fed.net!r} is not learnt, and has a gradient")


def states(context: Context) -> None:
    """run() from a given state with a record, and a cotangent for everything that it gives."""
    s = Subject(context, "alif", "hard", state=True)
    first = generator("recurrent", "first").integers(0, 2, s.shape[1:]).astype(float)
    fed = Fed(s, first=first)
    x, start = context.tensor(fed.x, s.dtype, True), s.start(True) or {}
    start["feedback"] = context.tensor(first, torch.float32, True)
    output, final, trace = fed.net.run(x, state=start, record=("v", "a"))
    s.check_outputs(output)
    s.check_states(final, s.seen.final, "final state", exact=False)
    s.check_states(trace, s.seen.states, "recorded state", exact=False)
    same("final state feedback", s.of, as_array(final["feedback"]), s.seen.outputs[0][-1], axes="n")
    names = [*s.seen.start, "feedback"]
    given: List[Tensor] = [output, *[final[name] for name in names], trace["v"], trace["a"]]
    cotangents = [s.cotangent(value) for value in given]
    torch.autograd.backward(given, cotangents)
    arrays = [as_array(value) for value in cotangents]
    ends = dict(zip(names, arrays[1:]))
    found = recurrent.adjoint(s.seen, fed.matrix, arrays[0], ends, {"v": arrays[-2], "a": arrays[-1]})
    s.check("input gradient", x.grad, found.inputs, suspects={})
    fed.check_matrix(found)
    for name in names:
        s.check("state gradient", start[name].grad, found.state[name], name=name)


def last_output(context: Context) -> None:
    """A loss of the final state's last output alone."""
    s = Subject(context, "lif", "soft")
    fed = Fed(s)
    x = context.tensor(fed.x, s.dtype, True)
    final = fed.net.run(x)[1]
    cotangent = s.cotangent(final["feedback"])
    s.backward(final["feedback"], cotangent)
    found = recurrent.adjoint(s.seen, fed.matrix, None, {"feedback": as_array(cotangent)})
    s.check("input gradient", x.grad, found.inputs, suspects={})
    fed.check_matrix(found)


def bits(context: Context) -> None:
    """Potentials of an exact neuron meet the threshold; outputs and states to the bit."""
    s = Subject(context, "if", "soft", exact=True, shape=(12, 5, 9))
    fed = Fed(s)
    x = context.tensor(fed.x, s.dtype)
    output, final = fed.net.run(x)
    s.check_outputs(output, exact=True)
    s.check_states(final, s.seen.final, "final state", exact=True)
    fed.net.fused = False
    apart, ends = fed.net.run(x)
    same("output", s.of, as_array(output), as_array(apart), right="a loop over the steps")
    for name, value in ends.items():
        same(f"final state {name}", s.of, as_array(final[name]), as_array(value), axes="n", right="a loop")


def carried(context: Context) -> None:
    """Two parts of a sequence; the gradient of the second one reaches the first, or does not."""
    for cut in (False, True):
        s = Subject(context, "lif", "hard", shape=(11, 3, 6))
        fed = Fed(s)
        x = context.tensor(fed.x, s.dtype, True)
        with sc.carry_state(fed.net):
            first = fed.net(x[:5])
            if cut:
                sc.detach(fed.net)
            second = fed.net(x[5:])
        output = torch.cat([first, second])
        s.check_outputs(output, " of two calls")
        cotangent = s.cotangent(output)
        if not cut:
            s.backward(output, cotangent)
            fed.check(x, cotangent, " over two calls")
            continue
        s.backward(output, cotangent)
        g, whole = as_array(cotangent), s.seen.outputs[0]
        parts = [
            recurrent.adjoint(part, fed.matrix._replace(first=before), g[at])
            for part, before, at in (
                (steps_of(s, slice(0, 5)), fed.matrix.first, slice(0, 5)),
                (steps_of(s, slice(5, 11)), whole[4], slice(5, 11)),
            )
        ]
        s.check("input gradient", x.grad, np.concatenate([part.inputs for part in parts]), suspects={})
        weight = sum(part.weight for part in parts)
        s.check("parameter gradient", fed.net.linear.weight.grad, np.asarray(weight), name="weight of two parts")


def single(context: Context) -> None:
    """A net in single-step mode, step by step."""
    s = Subject(context, "lif", "soft")
    fed = Fed(s)
    x = context.tensor(fed.x, s.dtype, True)
    whole = fed.net(x)
    fed.net.step = "single"
    output = torch.stack([fed.net(now) for now in x])
    same("output", s.of, as_array(output), as_array(whole), right="one call")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    fed.check(x, cotangent, " of single steps")


def rest(context: Context) -> None:
    """Other calls before leave nothing behind."""
    s = Subject(context, "lif", "hard")
    fed = Fed(s)
    x = context.tensor(fed.x, s.dtype)
    fed.net(x + 3.0)
    for _ in range(2):
        s.check_outputs(fed.net(x), " of a later call")
    out, state = fed.net.run(x[:0])
    if out.shape != x[:0].shape:
        raise Mismatch(f"{fed.net!r} without steps gives shape {list(out.shape)}")
    for name, value in {**s.seen.start, "feedback": np.zeros(s.shape[1:])}.items():
        same(f"state {name} without steps", s.of, as_array(state[name]), np.array(value, np.float32), axes="n")
    if fed.net(x[:, :0]).shape != x[:, :0].shape:
        raise Mismatch(f"{fed.net!r} without neurons gives another shape than its input")


def strides(context: Context) -> None:
    """Batch first in memory, every second step, and a cotangent that is one number."""
    s = Subject(context, "alif", "hard")
    fed = Fed(s)
    plain = context.tensor(fed.x, s.dtype)
    spread = torch.stack([plain, plain + 1.0], 1).flatten(0, 1)[::2]
    for x in (plain.transpose(0, 1).contiguous().transpose(0, 1), spread, plain.transpose(1, 2).contiguous().mT):
        given = x.detach().requires_grad_()
        fed.net.zero_grad()
        output = fed.net(given)
        s.check_outputs(output, f" of strides {list(x.stride())}")
        output.sum().backward()
        fed.check(given, torch.ones_like(output), f" of strides {list(x.stride())}")


class _Mask(nn.Module):
    """Every other weight is 0."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with its mask."""
        keep = torch.arange(weight.numel(), device=weight.device).view(weight.shape) % 2
        return weight * keep.to(weight.dtype)


def masked(context: Context) -> None:
    """A mask by torch.nn.utils.parametrize."""
    s = Subject(context, "lif", "hard")
    width = s.shape[-1]
    keep = (np.arange(width * width) % 2).reshape(width, width)
    fed = Fed(s)
    nn.utils.parametrize.register_parametrization(fed.net.linear, "weight", _Mask())
    fed.matrix = fed.matrix._replace(weight=fed.matrix.weight * keep)
    x = context.tensor(s.inputs[0] - fed.matrix.back(s.seen.outputs[0]), s.dtype, True)
    output = fed.net(x)
    s.check_outputs(output)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    found = recurrent.adjoint(s.seen, fed.matrix, as_array(cotangent))
    s.check("input gradient", x.grad, found.inputs, suspects={})
    original = fed.net.linear.parametrizations.weight.original
    s.check("parameter gradient", original.grad, found.weight * keep, name="weight behind a mask")


def autocast(context: Context) -> None:
    """Weights that bfloat16 holds: the outputs are those without autocast, the weight's gradient is near."""
    s = Subject(context, "if", "soft", exact=True, shape=(12, 5, 9))
    fed = Fed(s)
    x = context.tensor(fed.x, s.dtype, True)
    with torch.autocast(context.device.type, dtype=torch.bfloat16):
        output = fed.net(x)
    s.check_outputs(output, exact=True)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    found = recurrent.adjoint(s.seen, fed.matrix, as_array(cotangent))
    weight: Any = fed.net.linear.weight
    near("input", as_array(x.grad), found.inputs, s.of)  # type: ignore[arg-type]  # backward gave one
    near("weight", as_array(weight.grad), found.weight, s.of)
