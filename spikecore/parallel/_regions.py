"""Activation checkpointing as a policy of a network: which of its layers are computed again in backward.

No layer is wrapped. A module that has the policy has an object of this file in the place of its ``forward``, as an
attribute of its own, which ``copy`` and ``pickle`` take along. What a group does when it is called, and when it is
computed again, is in :mod:`spikecore.parallel._reruns`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

from spikecore._base.batches import flattened
from spikecore._base.words import a_kind
from spikecore._shell.checks import shown
from spikecore._shell.in_turn import in_turn
from spikecore.backend import Unsupported
from spikecore.lang._plain import is_compiling
from spikecore.parallel._pipeline import Pipeline
from spikecore.parallel._reruns import Region


def checkpoint(net: nn.Module, every: Optional[int], modules: Optional[Sequence[str]] = None) -> nn.Module:
    """Let groups of ``every`` layers of ``net`` be computed again in backward; returns ``net``, which is changed.

    ::

        sc.checkpoint(net, every=2)  # of an nn.Sequential, layers two by two
        sc.checkpoint(net, every=1, modules=["layer1", "layer2"])  # of any network, the modules of these names
        sc.checkpoint(net, every=None)  # as it was

    A group keeps its input and output; what its layers save for backward is computed again from the input, group by
    group. With n layers of one size, groups of sqrt(n) take the least memory; the price is one more forward pass.

    What has groups: an ``nn.Sequential``, of its children; a :class:`spikecore.Pipeline`, in each stage; with
    ``modules``, each of these modules. One that is no ``nn.Sequential`` is a group as a whole, whatever ``every`` is.
    ``every=None`` ends the policy in ``net`` and all it contains (with ``modules``, in these).

    Outputs, gradients, states and running statistics are those of the plain network, bit for bit: with carried state
    and in single steps, under autocast, with dropout. Names in ``state_dict``, copies, pickles and several inputs and
    outputs are as before. Without gradients nothing is computed again. Forward hooks within a group run again
    with it.

    Raises TypeError or ValueError for a network without ``modules`` that is none of these, an unknown name, a module
    whose ``forward`` was replaced. When it runs: RuntimeError for a module that changes a buffer in forward, other than
    running statistics, or the input of its group in place (its second run would begin with the changed one), in
    ``nn.DataParallel``, whose copies would run the layers of the original, and under ``torch.compile`` (compile the
    layers: ``net[0].compile()``) and ``torch.export``, and AttributeError by ``torch.jit.script``. In backward:
    RuntimeError for a parameter or a buffer that was written to since forward, or is another tensor
    (``torch.func.functional_call``), and for a neuron whose settings changed. A call of ``train()`` or ``eval()``
    between changes nothing. An attribute that is no buffer and that ``forward`` changes (a moving average in a plain
    attribute) is not seen: it would change twice.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is {a_kind(net)}; give the network (an nn.Module)")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int)):
        raise TypeError(f"every={every!r} must be the number of layers in a group, or None to end the policy")
    if every is not None and every < 1:
        raise ValueError(f"every={every} must be at least 1, or None to end the policy")
    if every is None:
        for module in net.modules() if modules is None else _named(net, modules):
            _end(module)
        return net
    chosen = _chosen(net) if modules is None else _named(net, modules)
    for module in chosen:
        if not isinstance(vars(module).get("forward"), (_Groups, type(None))):
            raise ValueError(
                f"the forward of {type(module).__name__} was replaced, as an attribute of this one; sc.checkpoint puts "
                "its own there: write a subclass instead"
            )
    for module in chosen:
        # past __setattr__, where a neuron checks what is set
        module.__dict__["forward"] = _Groups(module, every)
        module.__dict__["_replicate_for_data_parallel"] = _refuse_replica
    return net


def _end(module: nn.Module) -> None:
    if isinstance(vars(module).get("forward"), _Groups):
        del module.__dict__["forward"], module.__dict__["_replicate_for_data_parallel"]


def _chosen(net: nn.Module) -> List[nn.Module]:
    """The modules of a network that have groups, where its user names none."""
    if isinstance(net, Pipeline):
        return list(net)
    if not in_turn(net):
        names = ", ".join(repr(name) for name, _ in net.named_children())
        raise TypeError(
            f"net is {a_kind(net)}, whose forward, __call__ or __iter__ is its own, so that its layers have no known "
            "order; name the modules to compute again, sc.checkpoint(net, every=1, modules=[...]); it has "
            f"{names or 'none'}"
        )
    return [net]


def _named(net: nn.Module, modules: Sequence[str]) -> List[nn.Module]:
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise TypeError(f"modules={modules!r} must be a list of names of modules, as in net.named_modules()")
    if not modules:
        raise ValueError("modules=[] names none; give names of modules, or leave it out for an nn.Sequential")
    known = dict(net.named_modules(remove_duplicate=False))
    for name in modules:
        if name not in known:
            some = ", ".join(repr(one) for one in known if one)
            raise ValueError(f"modules: {type(net).__name__} has no module {name!r}; it has {some or 'none'}")
    return [known[name] for name in modules]


def _refuse_replica() -> None:
    raise RuntimeError(
        "a network with sc.checkpoint is in nn.DataParallel, whose copies would run the layers of the original; use "
        "nn.parallel.DistributedDataParallel, or end it with sc.checkpoint(net, every=None)"
    )


def _refuse_compiler() -> None:
    raise RuntimeError(
        "torch.compile and torch.export cannot follow a network with sc.checkpoint; compile its layers, which are then "
        "computed again compiled: for layer in net: layer.compile(); or end it with sc.checkpoint(net, every=None)"
    )


# torch.compile calls it when it traces, rather than tracing it, so that the error is this one
_refuse_compiler._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes


#: What torch reads of a forward that it takes for a function.
_OF_FUNCTIONS = ("__code__", "__globals__")


class _Groups:
    """Stands for ``forward`` of a module: the same, with its layers in groups that are computed again in backward."""

    #: sc.fuse sees through it, unlike through other forwards of an object: it changes nothing between the layers.
    calls_in_order = True

    def __init__(self, module: nn.Module, every: int) -> None:
        self.module = module
        self.every = every

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:  # AttributeError, for all that only asks whether this is a function
            raise AttributeError(
                "torch.export and torch.jit.script read the source of forward, and cannot follow a network with "
                "sc.checkpoint; end it with sc.checkpoint(net, every=None), and begin it again afterwards"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            _refuse_compiler()
        if any(value.device.type == "ipu" for value in flattened([args, kwargs])):
            raise Unsupported(
                "sc.checkpoint is for PyTorch's backward pass, and PopTorch has its own: end it with "
                "sc.checkpoint(net, every=None), and name what is computed again with poptorch.recomputationCheckpoint"
            )
        module = self.module
        plain: Callable[..., Any] = type(module).forward
        if not torch.is_grad_enabled():
            return plain(module, *args, **kwargs)
        if not in_turn(module):
            return _region([module], lambda *args, **kwargs: plain(module, *args, **kwargs), args, kwargs)
        if len(args) != 1 or kwargs:
            return plain(module, *args, **kwargs)  # which raises as it does
        layers = [layer for layer in module._modules.values() if layer is not None]
        value = args[0]
        for begin in range(0, len(layers), self.every):
            group = layers[begin : begin + self.every]
            value = _region(group, _Turns(group), (value,), {})
        return value


class _Turns:
    """Layers one after the other."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers

    def __call__(self, value: Any) -> Any:
        for layer in self._layers:
            value = layer(value)
        return value


def _region(modules: Sequence[nn.Module], run: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
    region = Region(modules, run)
    return torch_checkpoint.checkpoint(region, kwargs, *args, use_reentrant=False, preserve_rng_state=region.draws)
