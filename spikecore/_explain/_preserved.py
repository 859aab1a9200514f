"""A block after which a network is as it was before."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from spikecore._shell.state import Stateful
from spikecore.training._rehearsal import tensors_of, versions_kept

#: What a call changes of what is known of a neuron's state.
_STATE = ("_state", "_calls")


@contextmanager
def preserved(net: nn.Module, devices: Sequence[torch.device]) -> Iterator[None]:
    """After the block parameters, their gradients, buffers, train and eval modes, states of neurons and torch's random
    streams (on the CPU, on ``devices``, and of encoders) are what they were before it.

    Raises ValueError for a parameter that has no values yet (those of ``nn.LazyLinear``).
    """
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"net: {name!r} has no values before its first call; call net once, and explain it then")
    modules, held = list(net.modules()), tensors_of(net)
    values = [tensor.detach().clone() for tensor in held]
    gradients = [(tensor, tensor.grad) for tensor in held if tensor.is_leaf]
    tables = [(table, dict(table)) for module in modules for table in _tables(module)]
    slots = [vars(module) for module in modules if isinstance(module, Stateful)]
    states = [{name: slot[name] for name in _STATE if name in slot} for slot in slots]
    modes = [(module, module.training) for module in modules]
    streams = [(generator, generator.get_state()) for module in modules for generator in _generators(module)]
    cuda = sorted({_index(device) for device in devices if device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(cuda))
        # what is written back counts as never written to: graphs made before can still go backward
        stack.enter_context(versions_kept(held))
        try:
            yield
        finally:
            for table, content in tables:
                table.clear()
                table.update(content)
            with torch.no_grad():
                for tensor, value in zip(held, values):
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)
            for tensor, gradient in gradients:
                if tensor.grad is not gradient:
                    tensor.grad = gradient
            for module, mode in modes:
                module.training = mode
            for slot, state in zip(slots, states):
                slot.update(state)
            for generator, before in streams:
                generator.set_state(before)


def _tables(module: nn.Module) -> List[Dict[str, Any]]:
    return [module._parameters, module._buffers]


def _generators(module: nn.Module) -> List[torch.Generator]:
    return [value for value in vars(module).values() if isinstance(value, torch.Generator)]


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
