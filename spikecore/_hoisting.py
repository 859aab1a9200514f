"""First layers once: what is the same at every step is computed for one step.

An input that repeats one step (:mod:`spikecore._shell.repeated`) goes through layers without state that treat every
sample apart from the others, and comes out repeated. Such a layer is computed for the one step, and its output is
repeated; the gradient is summed over time before it reaches the layer. Rules of this module:

- A layer counts as such a one if its type is in a table of ``_layer_kinds``, or if its author says so
  (:func:`per_sample`), and if nothing watches it: a hook sees the layer as it always did, with every step.
- Batch normalisation in training is computed for one step, since the statistics of T equal steps are those of one. Only
  the unbiased variance differs, by which the running one moves, and it is corrected.
- Everything else is computed step by step: dropout in training, what writes into its input, subclasses, and whatever
  is not in the tables.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterator, Optional, Tuple, Type, TypeVar, Union

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module
from torch.nn.utils.parametrize import type_before_parametrizations

from spikecore import _layer_kinds as _kinds
from spikecore._base.words import a_kind
from spikecore._shell import norms
from spikecore._shell.checks import shown
from spikecore._shell.repeated import repeat, repeated_as, step_of

_Marked = TypeVar("_Marked", bound=Union[nn.Module, Type[nn.Module]])
_Hook = TypeVar("_Hook", bound=Callable[..., Any])

#: The attribute of a module, or of a class, that its author calls one of samples apart from each other.
_MARK = "_spikecore_per_sample"
#: Layers that write into their input with ``inplace=True``, and what is derived from them.
_WRITERS = tuple(_kinds.ELEMENTWISE | _kinds.DROPOUTS | {nn.RReLU})
#: The attribute of a hook that takes a layer as it is computed.
_OBSERVES = "_spikecore_observes"


def per_sample(module: _Marked) -> _Marked:
    """Says of a module, or as a decorator of a class of modules, that it treats every sample apart from the others.

    For an input ``[B, ...]`` its output ``[B, ...]`` is ``y[b] = f(x[b])``, with the same ``f`` for every ``b`` and at
    every call: no statistics of the batch, no random numbers, no state, and the input is not changed in place. Modules
    within it must be such ones, too, or it is computed step by step all the same. A subclass with a ``forward`` of its
    own says it again.

    Raises TypeError for something that is neither.
    """
    if not (isinstance(module, nn.Module) or (isinstance(module, type) and issubclass(module, nn.Module))):
        raise TypeError(f"per_sample({shown(module)}) needs an nn.Module or a class of them")
    setattr(module, _MARK, True)
    return module


def hoist(net: nn.Module) -> nn.Module:
    """Let ``nn.Linear`` and its kin in ``net`` compute an input once that is the same at every step; returns ``net``.

    It is for layers that get ``[T, B, ...]`` as it is, such as an ``nn.Linear`` behind ``sc.encode.Constant(T)``:
    linear layers, normalisation of each sample over its last dimensions, and functions of each number.
    A layer of torch with ``inplace=True`` behind another one in an ``nn.Sequential`` gets a copy to write into, unless
    another module than an ``nn.Sequential`` holds it, too.
    :class:`~spikecore.layers.TimeBatched` needs none of this, and :func:`spikecore.training_model` and
    :func:`spikecore.inference_model` do it by themselves. Names in ``state_dict`` stay as they are; :func:`unhoist`
    ends it.

    Raises TypeError for something that is not a module.
    """
    _check(net)
    # a layer that something else than a chain holds may be called for what it writes, which a copy would lose
    held = {part for module in net.modules() if not _is_chain(module) for part in module.children()}
    for module in net.modules():
        if _stands_behind_time(module) and not is_hoisted(module):
            module.register_forward_pre_hook(_take_step)
            module.register_forward_hook(_give_steps)
        if _is_chain(module):
            for part in _behind_others(module):
                writes = part not in held and isinstance(part, _WRITERS) and hasattr(part, "inplace")
                if writes and _take_copy not in part._forward_pre_hooks.values():
                    part.register_forward_pre_hook(_take_copy)
    return net


def _is_chain(module: nn.Module) -> bool:
    """Whether a module gives each of its parts what the one before it gave."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _behind_others(chain: nn.Module, behind: bool = False) -> Iterator[nn.Module]:
    """The layers of a chain, and of chains within it, that take what another layer of it gave."""
    for part in chain.children():
        if _is_chain(part):
            yield from _behind_others(part, behind)
        elif behind:
            yield part
        behind = True


def unhoist(net: nn.Module) -> nn.Module:
    """End what :func:`hoist` began; returns ``net``. Raises TypeError for something that is not a module."""
    _check(net)
    for module in net.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if hook in _OWN]:
                del hooks[key]
    return net


def is_hoisted(module: nn.Module) -> bool:
    """Whether :func:`hoist` was called for this module."""
    return any(hook is _take_step for hook in module._forward_pre_hooks.values())


def other_hooks(module: nn.Module) -> bool:
    """Whether a module has forward hooks other than those of :func:`hoist`."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(hook not in _OWN and not hasattr(hook, _OBSERVES) for hook in hooks)


def observing(hook: _Hook) -> _Hook:
    """Says of a forward hook that it takes a layer as it is computed, be it for one step; it changes nothing."""
    setattr(hook, _OBSERVES, True)
    return hook


def hoisted_steps(args: Tuple[Any, ...]) -> int:
    """How many steps a module computes once, by the arguments that its hooks get; 0 if it computes every step."""
    return args.repeats.shape[0] if isinstance(args, _OneStep) else 0


def is_watched(module: nn.Module) -> bool:
    """Whether a hook, other than those of :func:`hoist`, or a ``forward`` of its own sees what this module computes."""
    return is_watched_itself(module) or any(_global_hooks())


def is_watched_itself(module: nn.Module) -> bool:
    """The same, but for hooks of all modules."""
    backward = module._backward_hooks or getattr(module, "_backward_pre_hooks", None)
    return bool(backward) or "forward" in vars(module) or other_hooks(module)


def _global_hooks() -> Tuple[Any, ...]:
    kinds = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return tuple([getattr(_module, f"_global_{kind}", ()) for kind in kinds])


def _check(net: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is {a_kind(net)}; give the network (an nn.Module)")


# -- layers behind time


class _OneStep(tuple):  # type: ignore[type-arg]  # of one tensor
    """Arguments of a module that are those of one step, and the input that repeats it."""

    repeats: Tensor


def _take_step(module: nn.Module, args: Tuple[Any, ...]) -> Optional[Tuple[Any, ...]]:
    """Before ``forward``: the one step in place of an input that repeats it."""
    x = args[0] if len(args) == 1 else None
    # another hook may replace the arguments, and _give_steps would not know that they were those of one step
    if not isinstance(x, Tensor) or is_watched(module) or not _is_pure_behind_time(module, x.ndim - 1):
        return None
    if not _stands_behind_time(module):
        return None  # its class was replaced since
    step = step_of(x)
    if step is None:
        return None
    found = _OneStep((step,))
    found.repeats = x
    return found


def _take_copy(module: nn.Module, args: Tuple[Any, ...]) -> Optional[Tuple[Any, ...]]:
    """Before ``forward`` of a layer that writes into its input: a copy of every step in place of a repeated one.

    Only for layers behind another one in an ``nn.Sequential``, which takes what they return. Torch refuses to write
    into a tensor that repeats a step. If the layer in front were not computed once, its output would be no such tensor.
    """
    x = args[0] if len(args) == 1 else None
    if not (isinstance(x, Tensor) and getattr(module, "inplace", False)):
        return None
    return (x.clone(),) if x.ndim and x.shape[0] > 1 and x.stride(0) == 0 else None


def _give_steps(module: nn.Module, args: Tuple[Any, ...], output: Tensor) -> Optional[Tensor]:
    """After ``forward``: the output of one step as that of all."""
    return repeated_as(args.repeats, output) if isinstance(args, _OneStep) else None


_OWN: Tuple[Callable[..., Any], ...] = (_take_step, _take_copy, _give_steps)


def _stands_behind_time(module: nn.Module) -> bool:
    """Whether ``[T, B, ...]`` is to this type of module as ``[B, ...]``."""
    return type_before_parametrizations(module) in _kinds.BEHIND_TIME


def _is_pure_behind_time(module: nn.Module, ndim: int) -> bool:
    """Whether it treats the samples of one step, of so many dimensions, apart from each other."""
    if getattr(module, "inplace", False):
        return False
    if type_before_parametrizations(module) in _kinds.DROPOUTS:
        return not module.training
    return ndim > len(getattr(module, "normalized_shape", ()))


# -- layers within TimeBatched


def for_one_step(module: nn.Module, step: Tensor, steps: int) -> Tuple[Any, bool]:
    """The module on one step ``[B, ...]`` that ``steps`` steps repeat: its output, and whether that is of one step.

    Where a layer needs all steps, it and those behind it get time and batch as one, ``[T * B, ...]``, and so the output
    is.
    """
    if type(module) is nn.Sequential and not is_watched(module):
        value, is_one = step, True
        for part in module:
            value, is_one = for_one_step(part, value, steps) if is_one else (part(value), False)
        return value, is_one
    if _is_pure(module, step):
        # the caller's own tensor may be what a layer, or one within it, would write into
        writes = any(getattr(part, "inplace", False) for part in module.modules())
        value = module(step.clone() if writes else step)
        if isinstance(value, Tensor):
            return value, True
        # values and indices, as of MaxPool2d(return_indices=True): what takes them gets those of all steps
    if (
        type_before_parametrizations(module) in _kinds.BATCH_NORMS
        and not is_watched(module)
        and norms.has_one_step(step)
    ):
        return _observed(module, partial(norms.normalised_step, module, steps=steps), step), True
    every = repeat(step, steps).flatten(0, 1)
    # of a batch of one sample flatten gives a view, into which no layer could write
    return module(every.clone() if step.shape[:1] == (1,) else every), False


def _observed(module: nn.Module, compute: Callable[[Tensor], Tensor], step: Tensor) -> Tensor:
    """What ``compute`` gives in the place of a module's ``forward``, seen by the hooks that only observe."""
    if not (module._forward_pre_hooks or module._forward_hooks):
        return compute(step)
    vars(module)["forward"] = compute
    try:
        seen: Tensor = module(step)
    finally:
        vars(module).pop("forward")
    return seen


def _is_pure(module: nn.Module, step: Tensor) -> bool:
    """Whether a module treats the samples of ``step`` apart from each other."""
    kind = type_before_parametrizations(module)
    if is_watched(module) or not isinstance(step, Tensor) or not step.ndim:
        return False
    if kind in _kinds.ELEMENTWISE or kind in _kinds.OF_SAMPLES:
        return step.ndim > 1
    if kind in _kinds.PADS:
        return step.ndim > _kinds.PADS[kind]
    if kind in _kinds.CONVOLUTIONS:
        return step.ndim == _kinds.CONVOLUTIONS[kind]
    if kind in _kinds.DROPOUTS:
        return not module.training
    if kind in _kinds.BATCH_NORMS:
        return not norms.takes_batch(module)
    if isinstance(module, norms.Deferred):
        return True
    if kind is nn.Flatten:
        return int(module.start_dim) >= 1  # type: ignore[arg-type]  # a number
    if kind is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim >= 1
    if _stands_behind_time(module):
        return _is_pure_behind_time(module, step.ndim)
    return _is_marked(module) and all(_is_pure_within(part) for part in module.children())


def _is_pure_within(module: nn.Module) -> bool:
    """The same of a module within one that its author marked, whose input is not known."""
    if type(module) in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
        return not is_watched(module) and all(map(_is_pure_within, module.children()))
    kind = type_before_parametrizations(module)
    dims = _kinds.CONVOLUTIONS.get(kind, 2 + _kinds.PADS.get(kind, len(getattr(module, "normalized_shape", ()))))
    return _is_pure(module, torch.empty((0,) * dims, device="meta"))


def _is_marked(module: nn.Module) -> bool:
    if _MARK in vars(module):
        return True
    # the class that wrote the forward must be the one that was marked, or one derived from it
    kinds = type(module).__mro__
    marked = next((k for k, kind in enumerate(kinds) if _MARK in vars(kind)), None)
    written = next(k for k, kind in enumerate(kinds) if "forward" in vars(kind))
    return marked is not None and marked <= written
