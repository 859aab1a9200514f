"""Layouts, beside the rows: inputs in which values repeat, and those of states."""

from __future__ import annotations

import torch
from torch import Tensor

from spikecore.testing._case import Collection
from spikecore.testing._compare import as_array, same
from spikecore.testing._context import Context
from spikecore.testing._strides import EXPANDED, strided
from spikecore.testing._subject import Subject

_BACK = ("gradients",)


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    one = "layouts"
    cases.add("layouts/input-expanded", one, "an expanded input is read as what it stands for", expanded)
    holds = "and the gradients of its copies are summed"
    cases.add("layouts/input-expanded-gradient", one, holds, expanded_gradient, _BACK)
    cases.add("layouts/state", one, "a given state of any strides is read where it lies", state)
    holds = "so are the gradients of the final state"
    cases.add("layouts/state-incoming", one, holds, state_incoming, (*_BACK, "state_gradients"))


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
