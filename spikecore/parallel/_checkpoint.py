"""Activation checkpointing: ``sc.checkpoint`` and the networks that it returns, computed again group by group."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import fx, nn

from spikecore.context import require_compiler
from spikecore.core.checks import check_network
from spikecore.graph import NotFollowed, layers_in_turn, read_block, read_parts
from spikecore.parallel._again import computed_again
from spikecore.parallel._groups import Step, steps_of
from spikecore.parallel._pipeline import Pipeline, refuse_compiler
from spikecore.words import a_kind

_COMPILED = (
    "torch.compile and torch.export cannot follow a network with sc.checkpoint; compile its layers, which are then "
    "computed again compiled: for layer in net: layer.compile(); or end it with net = sc.checkpoint(net, every=None)"
)

#: Value of ``every`` for groups that begin and end with spikes.
SPIKES = "spikes"


def checkpoint(
    net: nn.Module,
    every: Union[int, str, None],
    modules: Optional[Sequence[str]] = None,
    *,
    preserve_rng_state: bool = True,
) -> nn.Module:
    """``net`` with its layers in groups of ``every``, which are computed again in backward. Use what it returns::

        net = sc.checkpoint(net, every=2)  # of an nn.Sequential, layers two by two
        net = sc.checkpoint(net, every=1, modules=["layer1", "layer2"])  # of any network, the modules of these names
        net = sc.checkpoint(net, every=None)  # the network without groups

    A group keeps its input and output; what its layers save for backward is computed again from the input. With n
    layers of one size, groups of sqrt(n) take the least memory; the price is one more forward pass.

    What has groups: an ``nn.Sequential``, of its children; a :class:`spikecore.parallel.Pipeline`, in each stage; with
    ``modules``, each of these modules. One that is no ``nn.Sequential`` is a group as a whole. A :class:`Checkpointed`
    stands in the place of each. ``every=None`` takes these out, of all of ``net`` or of ``modules``.

    preserve_rng_state: as of ``torch.utils.checkpoint``. False saves time where no layer draws; a step that is captured
        as a CUDA graph needs it.

    Outputs, gradients, states and running statistics are those of the plain network, bit for bit. Names in
    ``state_dict`` and of parameters, copies and pickles are as before. Without gradients nothing is computed again.
    Forward hooks within a group run again with it; those of an ``nn.Sequential`` that has groups do not run. A call of
    ``train()`` or ``eval()`` between forward and backward changes nothing; other changes are not compared.

    Raises TypeError or ValueError for a network without ``modules`` that is none of these, and for an unknown name;
    Unsupported before torch 2.6. When it runs: RuntimeError under ``torch.compile`` (compile the layers:
    ``net[0].compile()``) and ``torch.export``.
    """
    check_network("sc.checkpoint", net)
    if every not in (None, SPIKES) and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(
            f"every={every!r} must be the number of layers in a group, 1 or more, {SPIKES!r} for groups between spikes, "
            "or None for no groups"
        )
    if modules is not None:
        chosen = _named(net, modules)
    elif every == SPIKES:
        chosen = _readable(net)
    elif every is None:
        chosen = list(net.modules())
    elif isinstance(net, Pipeline):
        chosen = [_inner(stage) for stage in net]
    elif layers_in_turn(_inner(net)) is not None:
        chosen = [_inner(net)]
    else:
        names = ", ".join(repr(name) for name, _ in net.named_children())
        raise TypeError(
            f"net is {a_kind(net)}, whose forward, __call__ or __iter__ is its own, so that its layers have no known "
            "order; name the modules to compute again, sc.checkpoint(net, every=1, modules=[...]); it has "
            f"{names or 'none'}"
        )
    if every is None:
        others = {module: module for module in chosen}
    else:
        require_compiler("sc.checkpoint")
        kind = Grouped if every == SPIKES else Checkpointed
        others = {module: kind(module, every, preserve_rng_state) for module in chosen}
    for parent in [module for module in net.modules() if not isinstance(module, Checkpointed)]:
        for name, child in parent._modules.items():
            if child is not None and _inner(child) in others:
                parent._modules[name] = others[_inner(child)]
    return others.get(_inner(net), net)


class Checkpointed(nn.Module):
    """A network whose layers are computed again in backward, as :func:`checkpoint` returns it: ``.module`` is the
    network itself, whose names, attributes and layers this one has.
    """

    #: Mark for :func:`spikecore.core.modules.unwrapped`.
    is_checkpointed = True
    #: To a reader of networks it is one call (:func:`spikecore.graph.read`).
    is_one_call = True

    def __init__(self, module: nn.Module, every: Any, preserve_rng_state: bool) -> None:
        super().__init__()
        self.module = module
        self.every = every
        self.preserve_rng_state = preserve_rng_state
        self.training = module.training
        self.register_load_state_dict_pre_hook(_load_below)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Result of ``module``, computed group by group."""
        refuse_compiler(_COMPILED)
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        layers, size, value = layers_in_turn(self.module) or [], self.every, None
        chains = [nn.Sequential(*layers[begin : begin + size]) for begin in range(0, len(layers), size)]
        for group in chains or (self.module,):
            value = computed_again(partial(group, **kwargs), [group], args, (), self.preserve_rng_state)
            args, kwargs = (value,), {}
        return value

    def traced_forward(self, over_samples: Any, *args: Any, **kwargs: Any) -> Any:
        """``module`` on traced values."""
        return self.module(*args, **kwargs)

    # -- the names of the network itself

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """State of ``module``."""
        return self.module.state_dict(*args, **kwargs)

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[Any]:
        """This wrapper, which has no name and no tensors, then those of ``module`` under the names that they have."""
        yield prefix, self
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in vars(self).get("_modules", ()):  # while it is copied or unpickled
                raise
            return getattr(self.module, name)

    def __getitem__(self, position: Any) -> Any:
        return self.module[position]  # type: ignore[index]  # for a network that has parts

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]  # as above

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload,no-any-return]  # as above

    def extra_repr(self) -> str:
        """The number of layers in a group."""
        return f"every={self.every!r}"


class Grouped(Checkpointed):
    """A network that is computed again in groups of calls that begin and end with spikes: ``every="spikes"``."""

    def forward(self, *args: Any) -> Any:
        """Result of ``module``, computed group by group."""
        refuse_compiler(_COMPILED)
        if not torch.is_grad_enabled():
            return self.module(*args)
        plan = self.plan
        values = dict(zip(plan.inputs, args))
        del args
        for step in plan.steps:
            read = [values[name] for name in step.inputs]
            for name in step.last:
                del values[name]
            run = partial(step.run, self.module)
            if step.is_group:
                made = computed_again(run, step.modules, read, step.wholes, self.preserve_rng_state)
            else:
                made = run(*read)
            values.update(zip(step.outputs, made))
        return fx.node.map_aggregate(plan.output, lambda value: values[value.name] if isinstance(value, fx.Node) else value)

    @property
    def plan(self) -> _Plan:
        """The steps of the network as it is now: it is read again after modules or their forwards were replaced."""
        form = [(part, vars(part).get("forward"), getattr(part, "step", None)) for part in self.module.modules()]
        made = vars(self).get("_plan")
        if made is None or made[0] != form:
            made = vars(self)["_plan"] = form, _planned(self.module)
        return made[1]  # type: ignore[no-any-return]  # a plan

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_plan"}


class _Plan(NamedTuple):
    """A network in steps: the names of its inputs, and what it returns, of nodes."""

    inputs: Tuple[str, ...]
    steps: List[Step]
    output: Any


def _planned(net: nn.Module) -> _Plan:
    parts = read_parts(net)
    if net in parts.reasons:
        raise parts.reasons[net]
    graph = read_block(net, parts.graphs[0].followed.keys())
    if graph is None:
        raise NotFollowed(f"forward of {type(net).__name__} has constants or names that a graph cannot have")
    return _Plan(tuple([call.node.name for call in graph.inputs]), steps_of(graph), graph.output.node.args[0])


def _readable(net: nn.Module) -> List[nn.Module]:
    """The network, or where it cannot be read the largest modules of it that can."""
    chosen: Dict[nn.Module, None] = {}
    for graph in read_parts(_inner(net)).graphs:
        if not any(graph.net in [*other.modules()] for other in chosen):
            chosen[graph.net] = None
    return [*chosen]


def _load_below(module: nn.Module, state_dict: Dict[str, Any], prefix: str, *_: Any) -> None:
    """Give entries the names that they have in the wrapper."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}module.{name[len(prefix) :]}"] = state_dict.pop(name)


def _inner(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, Checkpointed) else module


def _named(net: nn.Module, modules: Sequence[str]) -> List[nn.Module]:
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise TypeError(f"modules={modules!r} must be a list of names of modules, as in net.named_modules()")
    known = dict(net.named_modules(remove_duplicate=False))
    for name in modules:
        if name not in known:
            some = ", ".join(repr(path) for path in known if path)
            raise ValueError(f"modules: {type(net).__name__} has no module {name!r}; it has {some or 'none'}")
    return [known[name] for name in modules]
