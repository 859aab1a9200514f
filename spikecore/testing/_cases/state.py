"""State, beside the rows: carried from call to call, cut off, and of no steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._oracle import adjoint, run
from spikecore.testing._subject import Subject

_BACK = ("gradients", "state_gradients")


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    one = "state"
    cases.add("state/carried", one, "calls that carry their state give what one long call gives", carried)
    holds = "nothing is rounded on the way from call to call"
    cases.add("state/carried-16-bit", one, holds, partial(carried, dtype="float16"), dtype="float16")
    holds = "a detached state lets the value through and no gradient"
    cases.add("state/truncated", one, holds, truncated, _BACK)
    holds = "without steps the final state is the given one, and its cotangent that one's gradient"
    cases.add("state/no-steps-gradient", one, holds, no_steps, _BACK)
    cases.add("state/not-asked", one, "outputs are the same whether or not the final state is", not_asked)


def carried(context: Context, dtype: str = "float32") -> None:
    """Pieces of 16, 1, 0, 7 and 16 steps."""
    for model in ("lif", "synaptic", "leaky"):
        s = Subject(context, model, "soft", shape=(40, 3, 5), dtype=dtype)
        with sc.carry_state(s.neuron):
            pieces = [s.neuron(piece) for piece in s.x().split([16, 1, 0, 7, 16])]
            state = dict(s.neuron.state or {})
        s.check_outputs(torch.cat(pieces), " of the pieces")
        s.check_states(state, s.bits().final, "carried state", exact=True)
        if s.neuron.state is not None:
            raise Mismatch(f"{s.of} keeps a state after carry_state ended")


def truncated(context: Context) -> None:
    """Backward in two pieces."""
    s = Subject(context, "lif", "soft", shape=(12, 3, 5))
    x = s.x(grad=True)
    first, middle = s.neuron.run(x[:7])
    second, _ = s.neuron.run(x[7:], state={name: value.detach() for name, value in middle.items()})
    s.check_outputs(torch.cat([first, second]), " of the pieces")
    cotangent = s.cotangent(torch.cat([first, second]))
    backward(s.of, [first, second], [cotangent[:7], cotangent[7:]])
    head = s.gradients(torch.cat([cotangent[:7], torch.zeros_like(cotangent[7:])])).inputs[0]
    tail = run(s.twin, [x[7:] for x in s.inputs], s.params, {n: v[6] for n, v in s.seen.states.items()})
    behind = adjoint(tail, [as_array(cotangent[7:])]).inputs[0]
    s.check("input gradient", x.grad, np.concatenate([head[:7], behind]), name="truncated")


def not_asked(context: Context) -> None:
    """``neuron(x)`` against ``neuron.run(x)``."""
    s = Subject(context, "synaptic", "hard")
    same("spikes without final state", s.of, as_array(s.neuron(s.x())), as_array(s.neuron.run(s.x())[0]))


def no_steps(context: Context) -> None:
    """An empty part of a stream, of neurons with one state and with two."""
    for model in ("lif", "alif"):
        s = Subject(context, model, "hard", shape=(0, 3, 5), state=True)
        start = s.start(grad=True) or {}
        final = s.neuron.run(s.x(), state=start)[1]
        s.check_states({name: value.detach() for name, value in final.items()}, s.seen.final, "final state", exact=True)
        cotangents = {name: s.cotangent(value) for name, value in final.items()}
        backward(s.of, list(final.values()), list(cotangents.values()))
        for name, value in start.items():
            s.check("state gradient", value.grad, as_array(cotangents[name]), name=f"the initial {name}, of no steps,")
