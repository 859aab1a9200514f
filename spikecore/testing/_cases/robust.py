"""What happens around a computation: odd values, repetition, threads, wrong calls."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, same
from spikecore.testing._context import Context
from spikecore.testing._models import BY_NAME, spread
from spikecore.testing._oracle import run
from spikecore.testing._subject import Subject
from spikecore.testing._threads import at_once

_ODD = (float("nan"), float("inf"), float("-inf"))
_NON_FINITE = (("if", "soft"), ("lif", "hard"), ("lif", "soft"), ("klif", "hard"), ("leaky", "hard"), ("li", "none"))


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = ()) -> None:
        cases.add(f"robust/{name}", "robust", holds, run, needs)

    odd = "NaN and infinite inputs do to a neuron what IEEE arithmetic does, and nothing to its neighbours"
    for model, reset in _NON_FINITE:
        add(f"non-finite-{model}-{reset}", odd, partial(non_finite, model=model, reset=reset))
    add(
        "non-finite-parameters",
        "NaN and infinite parameters do to a neuron what IEEE arithmetic does, and nothing to its neighbours",
        non_finite_parameters,
        ("full_parameters",),
    )
    add("large", "very large and very small potentials neither overflow in between nor vanish", large)
    add(
        "large-beside-small",
        "a gradient that is large in one neuron costs no other neuron its digits",
        large_beside_small,
        ("gradients",),
    )
    add("subnormal", "subnormal numbers are kept", subnormal)
    again = "the same call twice gives the same bits, gradients of shared parameters included"
    add("deterministic", again, deterministic, ("gradients", "parameter_gradients"))
    add("threads", "neurons compute the same from several threads at once", threads)
    add("threads-gradient", "gradients are the same from several threads at once", threads_gradient, ("gradients",))
    add("nothing-kept", "after a call nothing keeps the input alive", nothing_kept)
    add("errors", "a wrong call raises, names what is wrong, and leaves the neuron in order", errors)


def non_finite(context: Context, model: str, reset: str) -> None:
    """Each of NaN, inf, -inf at some step of some neuron."""
    s = Subject(context, model, reset, shape=(6, 3, 7))
    x = s.inputs[0].copy()
    for i, value in enumerate(_ODD):
        x[i, 0, i] = x[2 * i + 1, 1, i + 3] = x[5, 2, i] = value
    s.inputs = (x,)
    right = s.bits()
    output, final = s.neuron.run(context.tensor(x))
    # the state first: it tells more
    s.check_states(final, right.final, "final state, with NaN and infinities,", exact=True)
    same("outputs with NaN and infinities", s.of, as_array(output), right.outputs[0], tested=right.tested)


def non_finite_parameters(context: Context) -> None:
    """Each of NaN, inf, -inf as tau, threshold and v_reset of some neuron."""
    names = ("tau", "threshold", "v_reset")
    values = {name: spread(BY_NAME["lif"].params[name], (3, 7)) for name in names}
    s = Subject(context, "lif", "hard", values=values, shape=(6, 3, 7), bounds=None)
    for i, name in enumerate(names):
        for k, value in enumerate(_ODD):
            s.params[name][i, 2 * k] = s.spread[name][i, 2 * k] = value
            getattr(s.neuron, name)[i, 2 * k] = value
    s.takes(s.inputs)
    right = s.bits()
    output, final = s.neuron.run(s.x())
    s.check_states(final, right.final, "final state, with parameters of NaN and infinities,", exact=True)
    same("outputs with parameters of NaN and infinities", s.of, as_array(output), right.outputs[0], tested=right.tested)


def large(context: Context) -> None:
    """Potentials near the ends of float32."""
    s = Subject(context, "lif", "none", shape=(3, 7))
    x = np.outer([1.0, -0.5, 0.25], [1e30, -1e30, 1e37, 1e-30, -1e-30, 1e-37, 1e4])
    s.inputs = (x,)
    right = run(s.twin, [np.asarray(x, np.float32)], s.params, dtype=np.float32)
    output, final = s.neuron.run(context.tensor(x))
    same("spikes", s.of, as_array(output), right.outputs[0], tested=right.tested)
    s.check_states(final, right.final, "final state", exact=True)


def large_beside_small(context: Context) -> None:
    """A cotangent ten thousand times as large in one neuron."""
    s = Subject(context, "lif", "soft")
    x = s.x(grad=True)
    output = s.neuron(x)
    cotangent = s.cotangent(output)
    cotangent[:, 0, 0] *= 1e4
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name="a large cotangent in one neuron")


def subnormal(context: Context) -> None:
    """IF adds numbers below the smallest normal one."""
    s = Subject(context, "if", "none", values={"threshold": 3e-39, "v_reset": 0.0}, shape=(4, 3))
    x = np.asarray([[1e-39, 2e-39, 5e-40]] * 4, np.float32)
    right = run(s.twin, [x], s.params, dtype=np.float32)
    output, final = s.neuron.run(context.tensor(x))
    same("final v of subnormal inputs", s.of, as_array(final["v"]), right.final["v"], axes="n")
    same("spikes of subnormal inputs", s.of, as_array(output), right.outputs[0])


def deterministic(context: Context) -> None:
    """Five times."""
    s = Subject(context, "lif", "hard", shape=(8, 31, 67), learn=("tau", "threshold"))
    cotangent = s.cotangent(s.x())
    seen: List[Dict[str, Tensor]] = []
    for _ in range(5):
        s.neuron.zero_grad(set_to_none=True)
        x = s.x(grad=True)
        output = s.neuron(x)
        s.backward(output, cotangent)
        grads = {name: p.grad.clone() for name, p in s.neuron.named_parameters() if p.grad is not None}
        seen.append({"output": output.detach(), **({} if x.grad is None else {"input gradient": x.grad}), **grads})
    for again in seen[1:]:
        for name, value in again.items():
            same(
                f"{name}, computed again,",
                s.of,
                as_array(value),
                as_array(seen[0][name]),
                axes="",
                right="the first time",
            )


def threads(context: Context) -> None:
    """One neuron for all, not used before, so that its first use is a race too; and one for each."""
    shared = Subject(context, "synaptic", "hard")
    own = [Subject(context, "lif", reset) for reset in ("hard", "soft", "none", "hard")]
    x = shared.x()

    def work(i: int) -> None:
        for _ in range(5):
            shared.check_outputs(shared.neuron(x), " in a thread")
            own[i].check_outputs(own[i].neuron(own[i].x()), " in a thread")

    at_once(work)


def threads_gradient(context: Context) -> None:
    """Forward and backward in each thread."""
    subjects = [Subject(context, "lif", reset) for reset in ("hard", "soft", "none", "hard")]
    cotangents = [s.cotangent(s.x()) for s in subjects]

    def work(i: int) -> None:
        s = subjects[i]
        for _ in range(5):
            x = s.x(grad=True)
            s.backward(s.neuron(x), cotangents[i])
            s.check("input gradient", x.grad, s.gradients(cotangents[i]).inputs[0], name="a thread")

    at_once(work)


def nothing_kept(context: Context) -> None:
    """The input is gone once it and the output are."""
    s = Subject(context, "lif", "hard")
    grad = context.declares("gradients")
    x = s.x(grad)
    output = s.neuron(x)
    if grad:
        s.backward(output, torch.ones_like(output))
    gone = weakref.ref(x)
    del x, output
    gc.collect()
    if not context.settles(lambda: gone() is None):
        raise Mismatch(f"{s.of}: the input of a finished call is kept alive")


def errors(context: Context) -> None:
    """Each wrong call, and a right one after it."""
    s = Subject(context, "lif", "hard")
    x = s.x()
    wrong: List[Tuple[str, Type[BaseException], Any]] = [
        ("whole numbers as input", TypeError, lambda: s.neuron(x.long())),
        ("no tensor as input", TypeError, lambda: s.neuron([1.0])),
        ("two inputs for one", TypeError, lambda: s.neuron(x, x)),
        ("a state of another shape", ValueError, lambda: s.neuron.run(x, state={"v": x[0, :1]})),
        ("a state of another name", ValueError, lambda: s.neuron.run(x, state={"u": x[0]})),
        ("an unknown state to record", ValueError, lambda: s.neuron.run(x, record=("w",))),
    ]
    for what, kind, call in wrong:
        try:
            call()
        except kind as error:
            if s.model.neuron.__name__ not in str(error):
                raise Mismatch(f"{what}: the error does not say of which neuron: {error}") from error
        else:
            raise Mismatch(f"{what} raised nothing; {kind.__name__} was expected")
    s.check_outputs(s.neuron(x), " after wrong calls")
