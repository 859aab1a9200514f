"""Cases that a planted fault asked for (``tests/meta/mutants.txt``): no other case catches it, or one by chance."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Callable, ContextManager, Iterator, Optional

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context

STEPS, TAU = 6, 2.75


def add_to(cases: Collection) -> None:
    """Add the cases to the tier robust."""

    def add(name: str, holds: str, run: Callable[[Context], None], *needs: str, **more: Any) -> None:
        cases.add(f"robust/{name}", "robust", holds, run, needs, **more)

    add(
        "double-backward-parameter",
        "the gradient of an input is differentiable in a learnt parameter",
        penalty,
        *("gradients", "parameter_gradients", "double_backward"),
        undeclared="RuntimeError",
    )
    add(
        "spikes-then-currents",
        "an input that begins as spikes and goes on as currents is read as it is",
        partial(integrated, inputs=spikes_first),
    )
    add("silent-steps", "a state decays in steps without any input, too", partial(integrated, inputs=silent_steps))
    add(
        "no-dimensions",
        "one neuron without dimensions begins with the state that is given",
        partial(integrated, inputs=lambda x: x[:, 0, 0], start=0.5),
    )
    add("no-grad-state", "the final state is right under torch.no_grad", partial(integrated, within=torch.no_grad))
    add(
        "inference-mode-state",
        "the final state is right in torch's inference mode",
        partial(integrated, within=torch.inference_mode),
    )
    add(
        "default-dtype-state",
        "the final state does not depend on torch's default dtype",
        partial(integrated, within=lambda: default_dtype(torch.float64)),
    )
    lanes = "neurons that fill whole vectors: outputs and gradients of 64 and of 96 neurons"
    add("whole-vectors", lanes, whole_vectors, "gradients")


def penalty(context: Context) -> None:
    """Of a leaky integrator: with a = 1 / tau the input of step k is in output t as a (1 - a)^(t - k)."""
    dtype = torch.float64 if context.declares("float64") else torch.float32
    neuron = context.place(sc.LI(tau=torch.tensor(TAU, dtype=dtype), learn=("tau",), backend=context.name))
    rng = np.random.default_rng(35)
    x, cotangent, weight = (rng.normal(size=(STEPS, 3)) for _ in range(3))
    leaf = context.tensor(x, dtype, grad=True)
    (slope,) = torch.autograd.grad(neuron(leaf), leaf, context.tensor(cotangent, dtype), create_graph=True)
    found = None
    if slope.requires_grad:
        (found,) = torch.autograd.grad(slope, neuron.tau, context.tensor(weight, dtype), allow_unused=True)
    if found is None:
        raise Mismatch(f"the input gradient of {neuron!r} is not connected to tau, though create_graph=True")
    a = 1 / TAU
    lag = np.arange(STEPS)[:, None] - np.arange(STEPS)[None]
    by_a = np.where(lag < 0, 0.0, (1 - a) ** lag - lag * a * (1 - a) ** (lag - 1.0))
    expected = -(a**2) * float(np.einsum("tn,tk,kn->", cotangent, by_a, weight))
    if abs(found.item() - expected) > 1e-4 * abs(expected):
        raise Mismatch(f"the input gradient of {neuron!r}, by tau: got {found.item()}, expected {expected}")


def spikes_first(x: Any) -> Any:
    """Zeros and ones in the first step, and of the first neuron."""
    x[0], x[:, 0, 0] = x[0] > 0, x[:, 0, 0] > 0
    return x


def silent_steps(x: Any) -> Any:
    """Nothing in two steps."""
    x[[2, 5]] = 0
    return x


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within the block torch has this default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def integrated(
    context: Context,
    inputs: Callable[[Any], Any] = lambda x: x,
    start: Optional[float] = None,
    within: Callable[[], ContextManager[Any]] = nullcontext,
) -> None:
    """A leaky integrator of eighths: outputs and final state to the bit, and their dtype."""
    x = inputs(np.random.default_rng(36).integers(-8, 9, (STEPS, 2, 5)) / 8.0)
    given = context.tensor(x)
    state = None if start is None else {"v": context.tensor(np.full(x.shape[1:], start))}
    neuron = sc.LI(tau=2.0, backend=context.name)
    with within():
        output, final = neuron.run(given, state=state)
    v, expected = np.full(x.shape[1:], start or 0.0), []
    for step in x:
        v = v + (step - v) / 2
        expected.append(v)
    for what, result, right in (("output", output, np.stack(expected)), ("final state", final["v"], v)):
        wrong = int((result.detach().cpu().double().numpy() != right).sum())
        if wrong or result.dtype != torch.float32:
            raise Mismatch(
                f"{what} of {neuron!r} on float32 input {list(x.shape)}: {wrong} of {right.size} differ from "
                f"v + (x - v) / 2, and the dtype is {result.dtype}"
            )


def whole_vectors(context: Context) -> None:
    """A leaky integrator of eighths, to the bit: the gradient of a step is half of all that follows, decayed."""
    rng = np.random.default_rng(37)
    for shape in ((STEPS, 64), (STEPS, 2, 3, 16)):
        x, cotangent = (rng.integers(-8, 9, shape) / 8.0 for _ in range(2))
        leaf = context.tensor(x, grad=True)
        neuron = sc.LI(tau=2.0, backend=context.name)
        output = neuron(leaf)
        (gradient,) = torch.autograd.grad(output, leaf, context.tensor(cotangent))
        v, after = np.zeros(shape[1:]), np.zeros(shape[1:])
        outputs, gradients = np.empty(shape), np.empty(shape)
        for t in range(STEPS):
            outputs[t] = v = (v + x[t]) / 2
        for t in reversed(range(STEPS)):
            gradients[t] = after = (cotangent[t] + after) / 2
        for what, result, right in (("output", output, outputs), ("input gradient", gradient, gradients)):
            wrong = int((result.detach().cpu().double().numpy() != right).sum())
            if wrong:
                raise Mismatch(f"{what} of {neuron!r} on input {list(shape)}: {wrong} of {right.size} differ")
