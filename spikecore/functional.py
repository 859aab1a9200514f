"""What one does to the neurons of a network: reset, detach, carry state, choose a backend.

Each function takes any module and reaches the neurons inside it, nested ones included, and no others.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, List, Optional

from torch import nn

from spikecore.checks import shown
from spikecore.state import Stateful


def stateful_modules(net: nn.Module) -> List[Stateful]:
    """The modules of ``net`` that hold state, itself included."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is a {type(net).__name__}; give the network or neuron itself (an nn.Module)")
    return [module for module in net.modules() if isinstance(module, Stateful)]


def reset(net: nn.Module) -> None:
    """Put every neuron of ``net`` back to rest: the next call starts from the initial state."""
    for module in stateful_modules(net):
        module._keep(None)


def detach(net: nn.Module) -> None:
    """Cut the graph of the carried state of every neuron of ``net``; values stay. For truncated backpropagation."""
    for module in stateful_modules(net):
        module._detach()


@contextmanager
def carry_state(net: nn.Module) -> Iterator[None]:
    """Within the block, multi-step calls of ``net`` continue from the last state instead of starting at rest.

    ::

        with sc.carry_state(net):
            for chunk in stream:  # [T, B, ...] each
                loss = criterion(net(chunk), target)
                loss.backward()
                sc.detach(net)  # truncate the gradient here

    The first call starts at rest and leaving the block drops the state; blocks nest, and the outermost one counts.
    """
    modules = stateful_modules(net)
    for module in modules:
        if module.step == "multi" and not module._carrying:
            module._keep(None)
        module._carrying += 1
    try:
        yield
    finally:
        for module in modules:
            module._carrying -= 1
            if module.step == "multi" and not module._carrying:
                module._keep(None)


def set_backend(net: nn.Module, backend: Optional[str]) -> None:
    """Ask for ``backend`` in every neuron of ``net``; ``None`` goes back to context, environment and auto.

    The name is resolved on the next call; a name nobody knows raises :class:`~spikecore.backend.UnknownBackend` now.
    """
    from spikecore.neuron import Neuron
    from spikecore.registry import AUTO_NAME, default_registry
    from spikecore.selection import Request

    if backend is not None and not isinstance(backend, str):
        raise TypeError(f"backend={shown(backend)} must be a backend's name, 'auto' or None")
    if backend and backend != AUTO_NAME:
        default_registry().info(backend, "set_backend()")
    request = Request(backend or None, "set_backend()" if backend else "")
    for module in stateful_modules(net):
        if isinstance(module, Neuron):
            module._ask(request)
