"""Batch normalisation in front of a neuron, as one program: ``NormNeuron(norm, neuron, fused=True)``."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.dtypes import NARROW
from spikecore.layers import NormNeuron
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, same
from spikecore.testing._context import Context
from spikecore.testing._models import BY_NAME
from spikecore.testing._oracle import Array, normalised
from spikecore.testing._subject import SHAPE, Subject
from spikecore.testing._tolerances import OTHER_DTYPES

_FORWARD = ("normalisation", "channel_parameters")
_BACK = (*_FORWARD, "gradients", "parameter_gradients")
_IMAGE = (6, 2, 3, 2, 5)


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of parameters."""

    def add(name: str, holds: str, run: Any, needs: Sequence[str] = _BACK, dtype: str = "float32") -> None:
        cases.add(f"normalised/{name}", "parameters", holds, run, needs, dtype=dtype)

    one = "input, weight and bias get the gradients of batch normalisation in front of the neuron"
    for model in ("lif", "if", "plif", "alif", "synaptic", "li"):
        add(f"training-{model}", one, partial(training, model=model))
    for name, shape in (("image", _IMAGE), ("steps-1", (1, 4, 3)), ("steps-33", (33, 2, 3)), ("wide", (5, 37, 113))):
        add(name, f"{one}, {name}", partial(training, shape=shape))
    for dtype in OTHER_DTYPES:
        add(dtype, f"{one}, in this dtype", partial(training, dtype=dtype), dtype=dtype)
    add("channels-last", f"{one}, channels innermost", partial(training, shape=_IMAGE, channels_last=True))
    add("learnt", "the neuron's own parameters learn beside them", partial(training, learn=True))
    add("affine-false", "without weight and bias the input gets its gradient", partial(training, affine=False))
    add("frozen", "weight and bias that are not learnt get none", partial(training, frozen=True))
    add("input-alone", "weight and bias get theirs where the input needs none", partial(training, wanted=False))
    add("soft", f"{one}, with detached resets", partial(training, reset="soft", detach=True))
    shortcut = (*_BACK, "several_inputs")
    for name, where in (("shortcut", "before"), ("shortcut-behind", "after")):
        holds = f"a shortcut {'in front of' if where == 'before' else 'behind'} the neuron gets its gradient"
        image = partial(training, skip=where, shape=_IMAGE, channels_last=True)
        add(name, holds, partial(training, skip=where), shortcut)
        add(f"{name}-image", f"{holds}: an image, channels innermost", image, shortcut)
    alone = "a shortcut behind the neuron gets its gradient where nothing else does"
    add("shortcut-alone", alone, shortcut_alone, shortcut)
    add("state", "from a given state, with its gradient", state, (*_BACK, "state_gradients"))
    add("running", "running statistics move once a call, by momentum or as an average", running, _FORWARD)
    add("eval", "in eval mode the running statistics normalise, and stay", evaluation)


def training(
    context: Context,
    model: str = "lif",
    shape: Sequence[int] = SHAPE,
    dtype: str = "float32",
    reset: Optional[str] = None,
    detach: bool = False,
    learn: bool = False,
    affine: bool = True,
    frozen: bool = False,
    wanted: bool = True,
    skip: str = "",
    channels_last: bool = False,
) -> None:
    """One call in training, forward and backward, against the oracle."""
    own = tuple(BY_NAME[model].params) if learn else ()
    s = Subject(
        context,
        model,
        reset or BY_NAME[model].resets[0],
        shape=shape,
        dtype=dtype,
        detach=detach,
        learn=own,
        values={"tau": np.linspace(1.5, 3.0, shape[2])} if learn else {},  # one per channel
    )
    shortcut = _shortcut(s) if skip else None
    layer, x, k = _layer(s, affine, shortcut, skip)
    norm: Any = layer.norm
    if frozen:
        norm.requires_grad_(False)
    given = [_laid(context.tensor(x, s.dtype), channels_last).requires_grad_(wanted)]
    if shortcut is not None:
        given.append(_laid(context.tensor(shortcut, s.dtype), channels_last).requires_grad_())
    output = layer(*given)
    # of quarters the difference is exact
    s.check_outputs(output - given[1].detach() if skip == "after" else output)
    cotangent = s.cotangent(output)
    s.backward(output, _laid(cotangent, channels_last))
    expected = s.gradients(cotangent)
    to_x, to_weight, to_bias = normalised.back(k, expected.inputs[0])
    if wanted:
        s.check("input gradient", given[0].grad, to_x, suspects=_suspects(k, expected.inputs[0]))
    if shortcut is not None:
        to_skip = expected.inputs[0] if skip == "before" else as_array(cotangent)
        s.check("input gradient", given[1].grad, to_skip, name="skip")
    if affine and not frozen:
        s.check("parameter gradient", norm.weight.grad, to_weight, name="weight")
        s.check("parameter gradient", norm.bias.grad, to_bias, name="bias")
    for name in own:
        s.check("parameter gradient", getattr(s.neuron, name).grad, expected.params[name], name=name)


def shortcut_alone(context: Context) -> None:
    """A call whose shortcut alone needs a gradient: it is the cotangent."""
    s = Subject(context, "lif", "hard")
    shortcut = _shortcut(s)
    layer, x, _ = _layer(s, True, shortcut, "after")
    layer.requires_grad_(False)
    skip = context.tensor(shortcut, s.dtype, True)
    output = layer(context.tensor(x, s.dtype), skip)
    s.check_outputs(output - skip.detach())
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("input gradient", skip.grad, as_array(cotangent), name="skip")


def state(context: Context) -> None:
    """run() of a layer that normalises."""
    s = Subject(context, "lif", "hard", state=True)
    layer, x, k = _layer(s, True, None)
    given, start = context.tensor(x, s.dtype, True), s.start(True)
    output, final = layer.run(given, state=start)
    s.check_outputs(output)
    s.check_states(final, s.seen.final, "final state", exact=False)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    expected = s.gradients(cotangent)
    s.check("input gradient", given.grad, normalised.back(k, expected.inputs[0])[0])
    s.check("state gradient", start["v"].grad, expected.state["v"], name="v")  # type: ignore[index]  # it was drawn


def running(context: Context) -> None:
    """Three calls with a momentum, and three with none, which is the average of all."""
    for momentum in (0.25, None):
        s = Subject(context, "lif", "hard")
        layer, x, _ = _layer(s, True, None)
        norm: Any = layer.norm
        norm.momentum = momentum
        mean, variance = np.zeros(SHAPE[2]), np.ones(SHAPE[2])
        for call in range(3):
            now = x * (call + 1)
            # another scale of the input leaves what is normalised as it is, but for eps
            s.check_outputs(layer(context.tensor(now, s.dtype)), f" of call {call}")
            k = normalised.forward(normalised.Norm(mean, mean, norm.eps), now)
            factor = 1.0 / (call + 1) if momentum is None else momentum
            mean, variance = mean + factor * (k.mean - mean), variance + factor * (k.variance - variance)
        for what, value, right in (("mean", norm.running_mean, mean), ("variance", norm.running_var, variance)):
            s.check("output", value, right, name=f"running {what}, momentum {momentum}")
        if int(norm.num_batches_tracked) != 3:
            raise Mismatch(f"after 3 calls of {s.of} num_batches_tracked is {int(norm.num_batches_tracked)}")


def evaluation(context: Context) -> None:
    """Running statistics of another batch: mean and variance are constants, in backward, too."""
    s = Subject(context, "lif", "hard")
    layer, x, k = _layer(s, True, None)
    norm: Any = layer.norm
    with torch.no_grad():
        norm.running_mean.copy_(context.tensor(k.mean))
        norm.running_var.copy_(context.tensor(1.0 / k.rstd**2 - norm.eps))
    before = [as_array(value) for value in layer.buffers()]
    layer.eval()
    given = context.tensor(x, s.dtype, True)
    output = layer(given)
    s.check_outputs(output)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    expected = s.gradients(cotangent)
    s.check("input gradient", given.grad, normalised.back_given(k.norm.weight, k.rstd, expected.inputs[0]))
    _, to_weight, to_bias = normalised.back(k, expected.inputs[0])
    s.check("parameter gradient", norm.weight.grad, to_weight, name="weight")
    s.check("parameter gradient", norm.bias.grad, to_bias, name="bias")
    for kept, now in zip(before, layer.buffers()):
        same("a running statistic in eval mode", s.of, as_array(now), kept)


def _shortcut(s: Subject) -> Array:
    """Quarters, which are exact in every dtype."""
    return np.random.default_rng(5).integers(-2, 3, s.inputs[0].shape) / 4.0


def _layer(
    s: Subject, affine: bool, skip: Optional[Array], where: str = ""
) -> Tuple[NormNeuron, Array, normalised.Passed]:
    """The layer around the subject's neuron that gives it the subject's input, and the input that it takes for that."""
    y = s.inputs[0] - (skip if skip is not None and where == "before" else 0.0)
    # 16-bit numbers times a power of two are 16-bit numbers
    scale, shift = (0.5, 0.0) if s.dtype_name in NARROW else (0.5, 3.0)
    norm, x = normalised.Norm(y, y, 1e-5).inverse(y, scale, shift)
    kinds = {3: nn.BatchNorm1d, 4: nn.BatchNorm1d, 5: nn.BatchNorm2d}
    made: Any = kinds[y.ndim](y.shape[2], affine=affine)
    made = made.double() if s.dtype_name == "float64" else made
    if affine:
        with torch.no_grad():
            made.weight.copy_(torch.tensor(norm.weight))
            made.bias.copy_(torch.tensor(norm.bias))
    else:
        # what it normalises to is the subject's input from now on
        norm = normalised.Norm(np.ones(y.shape[2]), np.zeros(y.shape[2]), norm.eps)
        s.takes([normalised.forward(norm, x).hat])
    layer = NormNeuron(s.context.place(made), s.neuron, shortcut=where or None, fused=True)
    return layer, x, normalised.forward(norm, x)


def _laid(x: Tensor, channels_last: bool) -> Tensor:
    """The tensor with channels innermost in memory."""
    if not channels_last:
        return x
    return x.movedim(2, -1).contiguous().movedim(-1, 2).detach()


def _suspects(k: normalised.Passed, g: Array) -> Any:
    """What the gradient of the input may be instead."""
    given = normalised.back_given(k.norm.weight, k.rstd, g)
    return {
        "statistics are taken for constants: the gradient lacks the parts through mean and variance": lambda: given,
        "the cotangent of what is normalised: it is not multiplied by weight / standard deviation": lambda: g,
    }
