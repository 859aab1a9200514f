"""Shapes and memory layouts, of inputs and of incoming gradients: none of them may change a value."""

from __future__ import annotations

from functools import partial
from typing import Dict, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array
from spikecore.testing._context import Context
from spikecore.testing._models import spread
from spikecore.testing._strides import EXPANDED, LAYOUTS, Layout, channels_last, strided
from spikecore.testing._subject import Subject

#: Name -> shape ``[T, *N]``. No steps, one; no neurons, one, odd counts, counts beside a power of two.
SHAPES: Dict[str, Tuple[int, ...]] = {
    "no-steps": (0, 3, 5),
    "one-step": (1, 3, 5),
    "no-neurons": (4, 0, 5),
    "no-steps-no-neurons": (0, 0),
    "one-neuron": (4, 1),
    "a-neuron-without-dimension": (4,),
    "odd": (3, 7, 11),
    "prime": (5, 127),
    "next-to-a-block": (2, 257),
    "past-several-blocks": (2, 3, 1031),
    "image": (4, 2, 3, 5, 7),
    "one-by-one-image": (3, 2, 5, 1, 1),
}
_IMAGE = (4, 2, 3, 6, 5)


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for name, shape in SHAPES.items():
        cases.add(
            f"layouts/{name}",
            "layouts",
            "this shape gives the oracle's outputs and states",
            partial(shaped, shape=shape),
        )
        cases.add(
            f"layouts/{name}-gradient",
            "layouts",
            "this shape gives the oracle's gradients",
            partial(shaped_gradient, shape=shape),
            ("gradients", "parameter_gradients"),
        )
    cases.add("layouts/no-steps-state", "layouts", "no steps give back the state that was given", no_steps_state)
    for name, layout in LAYOUTS.items():
        cases.add(
            f"layouts/input-{name}",
            "layouts",
            "an input of these strides is read where it lies",
            partial(laid_out, layout=layout),
        )
        cases.add(
            f"layouts/input-{name}-gradient",
            "layouts",
            "the gradient of an input of these strides is right",
            partial(laid_out_gradient, layout=layout),
            ("gradients",),
        )
        cases.add(
            f"layouts/input-{name}-float16",
            "layouts",
            "also in 16 bits, where several values share a word",
            partial(laid_out, layout=layout, dtype="float16"),
            dtype="float16",
        )
    cases.add("layouts/input-expanded", "layouts", "an expanded input is read as what it stands for", expanded)
    cases.add(
        "layouts/input-expanded-gradient",
        "layouts",
        "and the gradients of its copies are summed",
        expanded_gradient,
        ("gradients",),
    )
    for name, layout in {**LAYOUTS, **EXPANDED}.items():
        cases.add(
            f"layouts/incoming-{name}",
            "layouts",
            "an incoming gradient of these strides is read as what it stands for",
            partial(incoming, layout=layout),
            ("gradients",),
        )
    cases.add(
        "layouts/sum",
        "layouts",
        "output.sum(), whose gradient is one number expanded, has the right gradient",
        summed,
        ("gradients",),
    )
    cases.add("layouts/state", "layouts", "a given state of any strides is read where it lies", state)
    cases.add(
        "layouts/state-incoming",
        "layouts",
        "so are the gradients of the final state",
        state_incoming,
        ("gradients", "state_gradients"),
    )
    cases.add(
        "layouts/channels-last-channel",
        "layouts",
        "one value per channel goes with channels-last",
        channels_last_parameter,
        ("gradients", "parameter_gradients", "channel_parameters"),
    )


def shaped(context: Context, shape: Sequence[int]) -> None:
    """From rest."""
    for model in ("lif", "alif"):
        s = Subject(context, model, "hard", shape=shape)
        output, final = s.neuron.run(s.x())
        s.check_outputs(output)
        s.check_states(final, s.seen.final, "final state", exact=False)


def shaped_gradient(context: Context, shape: Sequence[int]) -> None:
    """Input and shared parameter."""
    s = Subject(context, "lif", "soft", shape=shape, learn=("tau",))
    x = s.x(grad=True)
    output = s.neuron(x)
    cotangent = s.cotangent(output)
    if output.requires_grad:
        s.backward(output, cotangent)
    expected = s.gradients(cotangent)
    got = torch.zeros_like(x) if x.grad is None and not x.numel() else x.grad
    s.check("input gradient", got, expected.inputs[0])
    tau = dict(s.neuron.named_parameters())["tau"]
    if tau.grad is not None or expected.params["tau"].any():
        s.check("parameter gradient", tau.grad, expected.params["tau"], name="tau")


def no_steps_state(context: Context) -> None:
    """LIF and ALIF."""
    for model in ("lif", "alif"):
        s = Subject(context, model, "hard", shape=(0, 3, 5), state=True)
        output, final = s.neuron.run(s.x(), state=s.start())
        s.check_outputs(output)
        s.check_states(final, s.seen.final, "final state", exact=True)


def laid_out(context: Context, layout: Layout, dtype: str = "float32") -> None:
    """An image."""
    s = Subject(context, "lif", "hard", shape=_IMAGE, dtype=dtype)
    output, final = s.neuron.run(s.gives(layout(s.x())))
    s.check_outputs(output)
    s.check_states(final, s.bits().final, "final state", exact=True)


def laid_out_gradient(context: Context, layout: Layout) -> None:
    """The gradient of the laid out tensor itself."""
    s = Subject(context, "lif", "hard", shape=_IMAGE)
    x = s.gives(layout(s.x())).detach().requires_grad_()
    output = s.neuron(x)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0])


def expanded(context: Context) -> None:
    """One column for all, and one step for all."""
    s = Subject(context, "lif", "hard", shape=(6, 3, 5))
    for layout in EXPANDED.values():
        thin = layout(s.x())
        got, full = s.neuron(thin), s.neuron(thin.contiguous())
        _equal(s, got, full, "spikes of an expanded input against those of its copy")
    column = Subject(context, "lif", "hard", shape=(6, 1))
    wide = column.x().expand(6, 9)
    for i, output in enumerate(column.neuron(wide).unbind(1)):
        column.check_outputs(output[:, None], f", copy {i} of an expanded input")


def _equal(s: Subject, got: Tensor, right: Tensor, what: str) -> None:
    from spikecore.testing._compare import same

    same(what, s.of, as_array(got), as_array(right))


def expanded_gradient(context: Context) -> None:
    """Nine copies of a column."""
    s = Subject(context, "lif", "hard", shape=(6, 1))
    x = s.x(grad=True)
    output = s.neuron(x.expand(6, 9))
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    total = cotangent.sum(1, keepdim=True)
    # the adjoint is linear in the cotangent, so the sum of nine gradients is the gradient of the summed cotangent
    s.check("input gradient", x.grad, s.gradients(total).inputs[0], name="nine copies")


def incoming(context: Context, layout: Layout) -> None:
    """A cotangent in that layout."""
    s = Subject(context, "lif", "hard", shape=_IMAGE)
    x = s.x(grad=True)
    output = s.neuron(x)
    cotangent = layout(s.cotangent(output))
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name="a gradient of other strides")


def summed(context: Context) -> None:
    """The commonest of all expanded gradients."""
    s = Subject(context, "lif", "soft")
    x = s.x(grad=True)
    output = s.neuron(x)
    s.backward(output.sum(), torch.ones((), device=context.device))
    s.check("input gradient", x.grad, s.gradients(torch.ones_like(output)).inputs[0], name="output.sum()")


def state(context: Context) -> None:
    """Strided and expanded."""
    s = Subject(context, "lif", "hard", shape=(6, 4, 5), state=True)
    v = (s.start() or {})["v"]
    for name, given in (("strided", strided(v)), ("transposed", v.T.contiguous().T)):
        output, final = s.neuron.run(s.x(), state={"v": given})
        s.check_outputs(output, f" from a {name} state")
        s.check_states(final, s.bits().final, f"final state, from a {name} state,", exact=True)
    zero = torch.zeros((), device=context.device).expand(4, 5)
    from_zero = Subject(context, "lif", "hard", shape=(6, 4, 5), values={"v_reset": 0.0})
    from_zero.check_outputs(from_zero.neuron.run(from_zero.x(), state={"v": zero})[0], " from an expanded state")


def state_incoming(context: Context) -> None:
    """``final.sum()`` and a transposed cotangent."""
    s = Subject(context, "lif", "hard", shape=(6, 4, 5), state=True)
    for layout in (lambda g: torch.ones_like(g[:1, :1]).expand(g.shape), lambda g: g.T.contiguous().T):
        x = s.x(grad=True)
        _, final = s.neuron.run(x, state=s.start())
        cotangent = layout(s.cotangent(final["v"]))
        s.backward(final["v"], cotangent)
        s.check("input gradient", x.grad, s.gradients(None, {"v": cotangent}).inputs[0], name="the final state")


def channels_last_parameter(context: Context) -> None:
    """tau per channel, learnt; input and cotangent channels-last."""
    s = Subject(context, "lif", "hard", shape=_IMAGE, values={"tau": spread(2.7, (3,))}, learn=("tau",))
    x = channels_last(s.x()).detach().requires_grad_()
    output = s.neuron(x)
    s.check_outputs(output)
    cotangent = channels_last(s.cotangent(output))
    s.backward(output, cotangent)
    expected = s.gradients(cotangent)
    s.check("input gradient", x.grad, expected.inputs[0])
    tau = dict(s.neuron.named_parameters())["tau"]
    if tau.grad is None:
        raise Mismatch(f"tau of {s.of} got no gradient")
    s.check("parameter gradient", tau.grad, expected.params["tau"], name="tau")
