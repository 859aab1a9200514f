"""What a call of a module does with its parts and with time, as far as its class says."""

from __future__ import annotations

from typing import Any, Set, Type

from torch import nn


def calls_as(module: nn.Module, base: Type[nn.Module]) -> bool:
    """Whether the class of ``module`` has the ``forward`` of ``base``, and no ``__call__`` of its own."""
    kind, plain = type(module), nn.Module
    same = kind.__call__ is plain.__call__ and kind._call_impl is plain._call_impl
    return isinstance(module, base) and kind.forward is base.forward and same


def in_turn(module: nn.Module) -> bool:
    """Whether a module calls what it holds one after the other, as ``nn.Sequential`` does.

    ``nn.Sequential.forward`` iterates over the module, so a class with an ``__iter__`` of its own may call other parts,
    or in another order.
    """
    return calls_as(module, nn.Sequential) and type(module).__iter__ is nn.Sequential.__iter__  # type: ignore[attr-defined]


def makes_time(net: Any) -> bool:
    """Whether the network makes time itself, so that dimension 0 of its input is the batch.

    A module that does so has a true attribute ``makes_time``: the encoders of :mod:`spikecore.encode`, neurons with
    ``repeat``, and networks whose own ``forward`` repeats or transposes their input, which nobody can tell from
    outside.
    """
    return isinstance(net, nn.Module) and any(
        getattr(module, "makes_time", False) and getattr(module, "step", "multi") == "multi" for module in net.modules()
    )


def time_makers(net: nn.Module) -> Set[nn.Module]:
    """The encoders and neurons of a network that make time: before the first of them is called, there is none."""
    return {module for module in net.modules() if makes_time(module) and not any(True for _ in module.children())}
