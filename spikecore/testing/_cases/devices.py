"""Where a device computes: the stream that is current, and the device of the tensors. A CPU has one of each."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable

import torch

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject

#: Products of two matrices of this size that keep a stream busy for some milliseconds.
_TIMES, _SIZE = 40, 2048


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of robust."""

    def add(name: str, holds: str, run: Callable[[Context], None], *needs: str) -> None:
        cases.add(f"robust/{name}", "robust", holds, run, ("gradients", *needs))

    add("stream", "forward and backward are computed in the order of the stream that is current", on_a_stream)
    add("other-device", "the device of the tensors counts, whichever is current", elsewhere, "state_gradients")


def _module(context: Context) -> Any:
    """``torch.cuda`` or its like; None for a CPU, where there is nothing to choose."""
    return None if context.device.type == "cpu" else getattr(torch, context.device.type, None)


def on_a_stream(context: Context) -> None:
    """An input that a busy stream writes at last; the default stream would read zeros."""
    s = Subject(context, "lif", "soft")
    ready, given = s.x(), torch.zeros_like(s.x())
    s.neuron(ready)  # compiled before
    module = _module(context)
    stream: Any = module.Stream() if hasattr(module, "Stream") else None
    if stream is not None:
        stream.wait_stream(module.current_stream())
    cotangent = s.cotangent(given)
    context.synchronize()
    with nullcontext() if stream is None else module.stream(stream):
        if stream is not None:
            work = torch.zeros(_SIZE, _SIZE, device=context.device)
            for _ in range(_TIMES):
                work = work @ work
        given.copy_(ready)
        x = given.requires_grad_()
        output = s.neuron(x)
        (gradient,) = torch.autograd.grad(output, x, cotangent)
    context.synchronize()
    s.check_outputs(output.detach(), " on a stream of its own (zeros as input give those of the default stream)")
    s.check("input gradient", gradient, s.gradients(cotangent).inputs[0], name="a call on a stream of its own")


def elsewhere(context: Context) -> None:
    """The last device of this kind, while another is current; where there is but one, that one."""
    module = _module(context)
    count = module.device_count() if hasattr(module, "device_count") else 1
    there = context
    if count > 1:
        index = count - 1 if context.device.index != count - 1 else 0
        there = Context(context.backend, f"{context.device.type}:{index}", context.witness, context.seeds)
    s = Subject(there, "alif", "hard")
    x = s.x(grad=True)
    output, final = s.neuron.run(x)
    for name, value in {"the output": output, **{f"the final {name}": v for name, v in final.items()}}.items():
        if value.device != x.device:
            raise Mismatch(f"{name} of {s.of} is on {value.device}, the input on {x.device}")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    there.synchronize()
    s.check_outputs(output.detach(), f" on {x.device}")
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name=f"a call on {x.device}")
