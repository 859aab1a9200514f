"""Facts about a module from outside: its hooks, what wraps it, its shards.

``DistributedDataParallel`` wraps a network, whose names then have a prefix. ``fully_shard`` turns parameters into
shards (``DTensor``), and into plain tensors while the module it was given runs.
"""

from __future__ import annotations

import copy
import operator
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Mapping, Sequence, Set, Tuple, Type, TypeVar, Union

from torch import Tensor, nn
from torch.nn.modules import module as _module

from spikecore.context import PLAIN

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
#: Marks a hook as read-only: it does not change the layer's inputs or output.
_OBSERVES = "_spikecore_observes"
#: Hooks of all modules.
_GLOBAL = (
    _module._global_forward_hooks,
    _module._global_forward_pre_hooks,
    _module._global_backward_hooks,
    _module._global_backward_pre_hooks,
)


def observing(hook: _Hook) -> _Hook:
    """Says of a forward hook that it takes a layer as it is computed; it changes nothing."""
    setattr(hook, _OBSERVES, True)
    return hook


def has_own_hooks(module: nn.Module) -> bool:
    """True if a hook of this module, or a ``forward`` set on it, sees its result. The graph that ``sc.fuse`` puts in
    the place of a forward is none.
    """
    forward = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    hooks = (*module._backward_hooks, *module._backward_pre_hooks, *[h for h in forward if not hasattr(h, _OBSERVES)])
    own_forward = vars(module).get("forward")
    return bool(hooks) or not getattr(own_forward, "is_graph", own_forward is None)


def has_own_inputs(module: nn.Module) -> bool:
    """True if a hook of this module, or a ``forward`` set on it, may change its inputs."""
    hooks = module._forward_pre_hooks.values()
    return "forward" in vars(module) or any(not hasattr(hook, _OBSERVES) for hook in hooks)


def has_hooks(module: nn.Module) -> bool:
    """The same, with hooks of all modules."""
    return has_own_hooks(module) or any(_GLOBAL)


def calls_as(module: nn.Module, base: Type[nn.Module]) -> bool:
    """True if the class of ``module`` has the ``forward`` of ``base``, and no ``__call__`` of its own."""
    kind, plain = type(module), nn.Module
    same = kind.__call__ is plain.__call__ and kind._call_impl is plain._call_impl
    return isinstance(module, base) and kind.forward is base.forward and same


def pair(size: Any) -> Tuple[int, int]:
    """Rows and columns of a setting of a layer, such as a window; one number, or a list of one, is for both."""
    h, *others = size if isinstance(size, (tuple, list)) else (size,)
    return operator.index(h), operator.index(others[0] if others else h)


@contextmanager
def in_mode(net: nn.Module, training: bool) -> Iterator[None]:
    """``net.train(training)`` within the block; after it every module is in the mode that it was in."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        net.train(training)
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def outside(net: nn.Module, kinds: Union[type, Tuple[type, ...]]) -> Iterator[Tuple[str, nn.Module]]:
    """Every module with its name, but for the parts of these kinds, which such a module calls itself."""
    within: Set[nn.Module] = set()
    for name, module in net.named_modules():
        if module not in within:
            yield name, module
            parts = module.modules()
            within.update(parts if isinstance(module, kinds) else ())


def makes_time(net: Any) -> bool:
    """True if the network makes time itself, so that dimension 0 of its input is the batch.

    A module that does so has a true attribute ``makes_time``: the encoders of :mod:`spikecore.encode`, neurons with
    ``repeat``, and networks whose own ``forward`` repeats or transposes their input, which nobody can tell from
    outside.
    """
    return isinstance(net, nn.Module) and any(
        getattr(module, "makes_time", False) and getattr(module, "step", "multi") == "multi" for module in net.modules()
    )


def time_makers(net: nn.Module) -> Set[nn.Module]:
    """The encoders and neurons of a network that make time: before the first of them is called, there is none."""
    return {module for module in net.modules() if makes_time(module) and not [*module.children()]}


_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def is_compiled(net: nn.Module) -> bool:
    """True if ``torch.compile`` runs the network or a part of it, by ``layer.compile()``, too."""
    return any(
        getattr(part, "_compiled_call_impl", None) is not None or "_orig_mod" in part._modules for part in net.modules()
    )


def unwrapped(net: nn.Module, checkpointed: bool = False) -> nn.Module:
    """The network itself, within ``DistributedDataParallel``, ``torch.compile`` and ``sc.checkpoint``; with
    ``checkpointed`` that of ``sc.checkpoint`` counts as one.
    """
    inner: Any = net
    while True:
        wraps = isinstance(inner, _WRAPPERS) or (not checkpointed and getattr(type(inner), "is_checkpointed", False))
        within = inner._modules.get("module" if wraps else "_orig_mod")
        if within is None:
            return inner  # type: ignore[no-any-return]  # a module
        inner = within


def copy_of(net: nn.Module) -> nn.Module:
    """A copy of a network. Torch copies no tensor that has a graph, such as the weight of ``nn.utils.weight_norm``."""
    attributes = [value for module in net.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(net, {id(value): value.detach().clone() for value in attributes if not value.is_leaf})


def named_as(net: nn.Module, state: Mapping[str, Any]) -> nn.Module:
    """``net``, if ``state`` names its values as this wrapped network does, else the network within."""
    return net if state.keys() == net.state_dict().keys() else unwrapped(net)


def replace_modules(net: nn.Module, others: Mapping[nn.Module, nn.Module]) -> None:
    """Put the values of ``others`` in the places of its keys, wherever they stand."""
    for parent in list(net.modules()):
        for name, part in list(parent._modules.items()):
            if part is not None and others.get(part, part) is not part:
                parent._modules[name] = others[part]


def is_shard(value: Any) -> bool:
    """True for a ``DTensor``, of which each process may hold a part only."""
    return isinstance(value, Tensor) and type(value) not in PLAIN and hasattr(value, "full_tensor")


def check_gathered(owner: str, x: Tensor, named: Sequence[Tuple[str, Any]]) -> None:
    """Raise RuntimeError for a parameter that is a shard beside an input that is none."""
    for name, value in named:
        if is_shard(value) and not is_shard(x):
            raise RuntimeError(
                f"{owner}: {name} is sharded over processes (fully_shard), and gathered only while the forward of the "
                "module that was given to fully_shard runs. Call the neuron within that; where it is called as "
                "neuron.run(...), after torch.distributed.fsdp.register_fsdp_forward_method(neuron, 'run'); or gather "
                "by hand: unshard() of the module that was given to fully_shard before, reshard() after"
            )


#: Modules of other libraries that keep a state from call to call: library and base class.
_FOREIGN = {("snntorch", "SpikingNeuron"), ("spikingjelly", "MemoryModule")}


def foreign_carriers(net: nn.Module) -> List[str]:
    """The modules of other libraries in a network that keep a state, by name and class; of snnTorch those that are made
    so.

    A module that computes by a neuron of ours has ``is_converted = True``.
    """
    names = []
    for name, module in net.named_modules():
        bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(module).__mro__}
        keeps = getattr(module, "init_hidden", True) and not getattr(module, "is_converted", False)
        if keeps and not bases.isdisjoint(_FOREIGN):
            kind = type(module).__name__
            names.append(f"{name} ({kind})" if name else kind)
    return names
