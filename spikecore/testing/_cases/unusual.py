"""Programs as nobody writes them by hand: names that a kernel might use for itself, and hundreds of operations."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._tolerances import TOLERANCES
from spikecore.testing.naming import Naming, awkward, namings, results, usable

#: Names of kernels' own values, of C, Python, NumPy, CUDA and Triton: as many for each of the five roles.
NAMES = "j i t0 n N T out grad_x sum count begin at M_PI INFINITY tl np math auto range float32".split()
_NEEDS = (
    "gradients", "parameter_gradients", "state_gradients", "channel_parameters", "full_parameters", "record",
    "several_outputs", "several_inputs",
)  # fmt: skip


class Deep(sc.Neuron):
    """Hundreds of operations, one in the other, of inputs and of parameters alone.

    ``y = r^220 x + (1 + r + ... + r^219) v`` and ``v' = (1 + 1/4 + ... + 1/4^60) a x``.
    """

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """Both sums, term by term."""
        y, c = x, p.a
        for k in range(220):
            y = y * RATIO + s.v
            c = c * 0.25 + p.a if k < 60 else c
        return y, {"v": x * c}


#: Of one term to the next in :class:`Deep`.
RATIO = 0.99


#: Inputs, outputs and states of :class:`Many`; it has twice as many parameters.
COUNT = 18


class Many(sc.Neuron):
    """``y_k = s_k + p_k x_k`` and ``s_k' = s_k / 2 + q_k x_(k + 1)``, for each k."""

    inputs = tuple(f"x{k}" for k in range(COUNT))
    states = {f"s{k}": 0.0 for k in range(COUNT)}
    params = {**{f"p{k}": 1.0 for k in range(COUNT)}, **{f"q{k}": 1.0 for k in range(COUNT)}}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One after the other."""
        xs = [getattr(x, f"x{k}") for k in range(COUNT)]
        outputs = tuple(getattr(s, f"s{k}") + xs[k] * getattr(p, f"p{k}") for k in range(COUNT))
        after = {f"s{k}": getattr(s, f"s{k}") * 0.5 + xs[(k + 1) % COUNT] * getattr(p, f"q{k}") for k in range(COUNT)}
        return outputs, after


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of the language."""
    cases.add("language/names", "language", "a user's names may be those of anything in a kernel", names, _NEEDS)
    long = "names may be long, beyond ASCII, and no identifiers for a class"
    cases.add("language/long-names", "language", long, long_names, _NEEDS[:-1])
    needs = ("gradients", "parameter_gradients", "channel_parameters")
    all_ = f"{COUNT} inputs, states and outputs and {2 * COUNT} parameters: each has its own value and gradient"
    two = ("gradients", "parameter_gradients", "several_inputs", "several_outputs")
    cases.add("language/many", "language", all_, many, two)
    cases.add("language/deep", "language", "hundreds of operations, one in the other, are computed", deep, needs)


def many(context: Context) -> None:
    """Whole numbers and halves, to the bit, against the sums written out."""
    rng = np.random.default_rng(1)
    x, g = (rng.integers(-4, 5, (3, COUNT, 5)).astype(float) for _ in range(2))
    p, q = (rng.integers(1, 9, COUNT) / 2 for _ in range(2))
    values = {**{f"p{k}": p[k] for k in range(COUNT)}, **{f"q{k}": q[k] for k in range(COUNT)}}
    given = {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}
    made: Any = Many
    neuron = context.place(made(**given, learn=tuple(given), backend=context.name))
    xs = [context.tensor(x[:, k], grad=True) for k in range(COUNT)]
    outputs, final = neuron.run(*xs)
    state, seen = np.zeros((COUNT, 5)), []
    for now in x:
        seen.append(state + now * p[:, None])
        state = state / 2 + np.roll(now, -1, 0) * q[:, None]
    backward(repr(neuron), list(outputs), [context.tensor(g[:, k]) for k in range(COUNT)])
    back, of_x, of_p, of_q = np.zeros((COUNT, 5)), [], np.zeros(COUNT), np.zeros(COUNT)
    for now, coming in zip(x[::-1], g[::-1]):
        of_x.append(coming * p[:, None] + np.roll(back * q[:, None], 1, 0))
        of_p += (coming * now).sum(1)
        of_q += (back * np.roll(now, -1, 0)).sum(1)
        back = back / 2 + coming
    right = np.stack(of_x[::-1])
    for k in range(COUNT):
        same(f"output {k} of {COUNT}", repr(neuron), as_array(outputs[k]), np.stack(seen)[:, k])
        same(f"final s{k} of {COUNT}", repr(neuron), as_array(final[f"s{k}"]), state[k], axes="n")
        for what, leaf, gradient in (
            (f"input x{k}", xs[k], right[:, k]),
            (f"parameter p{k}", getattr(neuron, f"p{k}"), of_p[k]),
            (f"parameter q{k}", getattr(neuron, f"q{k}"), of_q[k]),
        ):
            if leaf.grad is None:
                raise Mismatch(f"{what} of {neuron!r} got no gradient")
            same(f"gradient of {what}", repr(neuron), as_array(leaf.grad), np.asarray(gradient), axes="")


def names(context: Context) -> None:
    """Every name in every role: local variable, parameter, state, input, field of a surrogate."""
    for naming in namings(usable(NAMES), len(NAMES)):
        _as_under_harmless_names(context, naming)


def long_names(context: Context) -> None:
    """500 letters, Greek and German ones, and a class whose name has quotes and a line break."""
    _as_under_harmless_names(context, awkward())


def _as_under_harmless_names(context: Context, naming: Naming) -> None:
    device = str(context.device)
    found, expected = results(naming, context.name, device), results(naming.harmless(), context.name, device)
    for (what, value), (_, right) in zip(found.items(), expected.items()):
        kind = "parameter gradient" if what.startswith("gradient") else "output"
        same(
            f"{what}, as under other names,",
            repr(naming),
            as_array(value),
            as_array(right),
            TOLERANCES["float32", kind],
        )


def deep(context: Context) -> None:
    """Values and gradients against the closed form. Python's parser, for one, stops at 200 parentheses."""
    x = np.random.default_rng(0).random((3, 2, 3))
    a = np.asarray([0.25, 0.5, 0.75])
    neuron = context.place(Deep(a=torch.tensor(a, dtype=torch.float32), learn=("a",), backend=context.name))
    leaf = context.tensor(x, grad=True)
    output, end = neuron.run(leaf)
    backward(repr(neuron), [output, end["v"]], [torch.ones_like(output), torch.ones_like(end["v"])])
    whole, quarters = (1 - RATIO**220) / (1 - RATIO), (1 - 0.25**61) / 0.75
    before = np.concatenate([np.zeros((1, 2, 3)), x[:-1] * a * quarters])
    # v' reaches the next output, or is the final state
    reaches = np.asarray([whole, whole, 1.0]).reshape(3, 1, 1)
    rows = [
        ("output", output, RATIO**220 * x + whole * before, "output"),
        ("final v", end["v"], x[-1] * a * quarters, "output"),
        ("gradient of x", leaf.grad, RATIO**220 + a * quarters * reaches, "input gradient"),
        ("gradient of a", neuron.a.grad, (quarters * x * reaches).sum((0, 1)), "parameter gradient"),
    ]
    for what, ours, right, kind in rows:
        same(what, repr(neuron), as_array(ours), np.broadcast_to(right, ours.shape), TOLERANCES["float32", kind])
