"""Activation checkpointing: ``sc.checkpoint`` and the networks that it returns, computed again group by group."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, fx, nn

from spikecore._base.bits import Whole
from spikecore.backend import Unsupported
from spikecore.context import is_compiling, is_exporting, require_compiler, uncompiled, unread
from spikecore.core.checks import check_network
from spikecore.core.modules import has_own_hooks
from spikecore.graph import NotFollowed, layers_in_turn, read_block, read_parts
from spikecore.parallel._again import Packed, computed_again, pack
from spikecore.parallel._groups import End, Step, Wholes, steps_of, whole_inputs
from spikecore.parallel._pipeline import Pipeline
from spikecore.words import a_kind

#: Value of ``every`` for groups that begin and end with spikes.
SPIKES = "spikes"


def checkpoint(
    net: nn.Module,
    every: Union[int, str, None],
    modules: Optional[Sequence[str]] = None,
    *,
    bits: bool = False,
    preserve_rng_state: bool = True,
) -> nn.Module:
    """``net`` with its layers in groups of ``every``, which are computed again in backward. Use what it returns::

        net = sc.checkpoint(net, every="spikes")  # of any network that can be read, groups between spikes
        net = sc.checkpoint(net, every=2)  # of an nn.Sequential, layers two by two
        net = sc.checkpoint(net, every=1, modules=["layer1", "layer2"])  # of any network, the modules of these names
        net = sc.checkpoint(net, every=None)  # the network without groups

    A group keeps its input and output; what its layers save for backward is computed again from the input. With n
    layers of one size, groups of sqrt(n) take the least memory; the price is one more forward pass.

    What has groups: an ``nn.Sequential``, of its children; a :class:`spikecore.parallel.Pipeline`, in each stage; with
    ``modules``, each of these modules. One that is no ``nn.Sequential`` is a group as a whole. A :class:`Checkpointed`
    stands in the place of each. ``every=None`` takes these out, of all of ``net`` or of ``modules``.

    ``every="spikes"`` makes groups of the calls of a network, whatever its modules are: each begins and ends with
    spikes or counts, which are kept as bits, so that most has a thirtieth of the bytes that the plain network saves.
    :func:`spikecore.graph.read` has to follow its ``forward``; where it cannot, the largest modules that it can follow
    have groups. ``print(net)`` says what each group keeps. A sum that hands potentials on from block to block is kept
    whole. A call with keyword arguments has no groups. Numbers and strings that a forward reads of its module may
    change from call to call; what it reads otherwise, as of a global or a dict, is that of the first call.

    bits: if true, inputs of groups that the reader of networks knows for spikes or counts are kept as bits, as of
        :class:`spikecore.layers.PackedLinear`: what does not hold them raises ValueError on a CPU, and gives gradients
        of NaN elsewhere. ``every="spikes"`` always does.
    preserve_rng_state: as of ``torch.utils.checkpoint``. False saves time where no layer draws; a step that is captured
        as a CUDA graph needs it. Groups of ``"spikes"`` with dropout or another random layer are then computed once.

    Outputs, gradients, states and running statistics are those of the plain network, bit for bit, but for the order in
    which ``"spikes"`` adds up gradients of a value that three calls or more read. Names in
    ``state_dict`` and of parameters, copies and pickles are as before. Without gradients nothing is computed again.
    Forward hooks within a group run again with it; those of an ``nn.Sequential`` that has groups do not run. A call of
    ``train()`` or ``eval()`` between forward and backward changes nothing; other changes are not compared.

    ``net.compile(...)`` compiles each group by itself, with these arguments of ``torch.compile``; within a network that
    ``torch.compile`` runs, groups are compiled so, too, and the network breaks there.

    Raises TypeError or ValueError for a network without ``modules`` that is none of these, and for an unknown name;
    ValueError where ``"spikes"`` finds no group; Unsupported before torch 2.6, and when ``torch.export`` runs it.
    """
    check_network("sc.checkpoint", net)
    if every not in (None, SPIKES) and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(
            f"every={every!r} must be the number of layers in a group, 1 or more, {SPIKES!r} for groups between "
            "spikes, or None for no groups"
        )
    if modules is not None:
        chosen = _named(net, modules)
    elif every == SPIKES:
        with _taken_out(net) as plain:
            chosen = _readable(plain)
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
        with _taken_out(net) as plain:
            others = _wrapped(plain, chosen, every, bits, preserve_rng_state)
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

    def __init__(self, module: nn.Module, every: Any, preserve_rng_state: bool, wholes: Sequence[Wholes] = ()) -> None:
        super().__init__()
        self.every = every
        self.preserve_rng_state = preserve_rng_state
        #: Of each group the ranges of its inputs, by which they are kept as bits.
        self.wholes = tuple(wholes)
        #: Arguments of torch.compile for the groups; None: they are not compiled.
        self.compiled: Optional[Dict[str, Any]] = None
        self.training = module.training
        self.register_load_state_dict_pre_hook(_load_below)
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Result of ``module``, computed group by group."""
        if is_exporting():
            raise Unsupported("torch.export cannot follow sc.checkpoint; export net = sc.checkpoint(net, every=None)")
        if is_compiling():
            return _outside(self, args, kwargs)
        return self._computed(args, kwargs, self.compiled)

    def compile(self, **options: Any) -> None:
        """Have ``torch.compile`` run each group, with these options."""
        self.compiled = options

    def _computed(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], compiled: Optional[Dict[str, Any]]) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        value = None
        for number, group in enumerate(self._groups()):
            wholes = self.wholes[number] if number < len(self.wholes) else ()
            run = self._run(number, group, compiled)
            value = self._again(number, partial(run, **kwargs), [group], args, [*map(pack, args, wholes)])
            args, kwargs = (value,), {}
        return value

    def _groups(self) -> List[nn.Module]:
        """The groups: chains of layers, or the module as a whole."""
        layers, size = layers_in_turn(self.module), self.every
        if not layers:
            return [self.module]
        chains: Any = vars(self).get("_chains")
        if chains is None or chains[0] != layers:
            chains = layers, [nn.Sequential(*layers[begin : begin + size]) for begin in range(0, len(layers), size)]
            vars(self)["_chains"] = chains
            vars(self).pop("_runs", None)
        return chains[1]  # type: ignore[no-any-return]  # chains

    def _run(self, number: int, group: Callable[..., Any], compiled: Optional[Dict[str, Any]]) -> Callable[..., Any]:
        """A group, compiled by itself."""
        if compiled is None:
            return group
        runs = vars(self).setdefault("_runs", {})
        if number not in runs:
            runs[number] = _compiled(group, compiled)
        return runs[number]  # type: ignore[no-any-return]  # as the group

    def _again(
        self,
        number: int,
        run: Callable[..., Any],
        modules: Sequence[nn.Module],
        args: Sequence[Any],
        packed: Sequence[Optional[Packed]],
        end: Optional[Callable[..., Any]] = None,
    ) -> Any:
        kept = [each if of is None else of.data for each, of in zip(args, (*packed, *[None] * len(args)))]
        size = sum(each.numel() * each.element_size() for each in kept if isinstance(each, Tensor))
        vars(self).setdefault("_kept", {})[number] = size
        return computed_again(run, end or run, modules, args, packed, self.preserve_rng_state)

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _MADE}

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

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the network, but for those of the wrapper."""
        inner = vars(self).get("_modules", {}).get("module")
        is_own = name == "module" or name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        if inner is None or is_own:
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)

    def __getitem__(self, position: Any) -> Any:
        return self.module[position]  # type: ignore[index]  # for a network that has parts

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]  # as above

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload,no-any-return]  # as above

    def extra_repr(self) -> str:
        """The size of a group, and what each one keeps."""
        return "\n".join([f"every={self.every!r}", *self._in_words()])

    def _in_words(self) -> List[str]:
        kept, wholes = vars(self).get("_kept", {}), dict(enumerate(self.wholes))
        rows = [(number, "input", each) for number, ranges in wholes.items() for each in ranges if each is not None]
        return [_row(number, f"{name} in {_bits(whole)}", kept.get(number)) for number, name, whole in rows]


class Grouped(Checkpointed):
    """A network that is computed again in groups of calls that begin and end with spikes: ``every="spikes"``."""

    def _computed(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], compiled: Optional[Dict[str, Any]]) -> Any:
        if not torch.is_grad_enabled() or kwargs:
            return self.module(*args, **kwargs)
        plan = self.plan
        values = dict(zip(plan.inputs, args))
        del args
        bits: Dict[str, Optional[Packed]] = {}
        for number, step in enumerate(plan.steps):
            read = [values[name] for name in step.inputs]
            is_group = step.is_group and (self.preserve_rng_state or not step.draws)
            run: Callable[..., Any] = partial(step.run, self.module)
            is_compiled = compiled is not None and step.compiles
            if is_compiled:
                run = self._run(number, run, compiled)
            for name, value, whole in zip(step.inputs, read, step.wholes) if is_group else ():
                if name not in bits:
                    bits[name] = pack(value, whole)
            packed = [bits.get(name) for name in step.inputs]
            for name in step.last:
                del values[name]
                bits.pop(name, None)
            if is_group:
                end = None if step.end is None or is_compiled else partial(_ended, step.end, self.module)
                made = self._again(number, run, step.modules, read, packed, end)
            else:
                made = run(*read)
            values.update(zip(step.outputs, made))
        return fx.node.map_aggregate(plan.output, lambda node: values[node.name] if isinstance(node, fx.Node) else node)

    @property
    def plan(self) -> Plan:
        """The steps of the network as it is now, made anew after modules, forwards, hooks or numbers of it changed."""
        planned: Any = vars(self).get("_plan")
        if planned is None or planned[0] != _form(self.module, planned[1].followed):
            plan = _planned(self.module)
            planned = vars(self)["_plan"] = _form(self.module, plan.followed), plan
            vars(self).pop("_runs", None)
        return planned[1]  # type: ignore[no-any-return]  # a plan

    def _in_words(self) -> List[str]:
        kept = vars(self).get("_kept", {})
        return [
            _row(number, f"to {step.title}: " + ", ".join(map(_named_bits, step.inputs, step.wholes)), kept.get(number))
            for number, step in enumerate(self.plan.steps)
            if step.is_group
        ]


#: Attributes of a wrapper that are made anew: groups, what torch.compile made of them, what the last call kept.
_MADE = ("_chains", "_runs", "_plan", "_kept")


def _ended(end: End, net: nn.Module, *inputs: Any) -> None:
    """A group for what it saves: nobody reads the spikes of its neuron, which are not computed."""
    args = end.head(net, *inputs)
    with unread():
        end.layer(*args)


def _compiled(group: Callable[..., Any], options: Dict[str, Any]) -> Callable[..., Any]:
    """A group, compiled. Torch's compiler wants gradients of a result in its layout only where that is an image's:
    channels-last steps ``[T, B, C, H, W]`` leave it as images ``[T * B, C, H, W]``.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        made = group(*args, **kwargs)
        values = made if isinstance(made, tuple) else (made,)
        steps = [value.shape[:2] if _is_last(value) else None for value in values]
        values = tuple([value if size is None else value.flatten(0, 1) for value, size in zip(values, steps)])
        return (values if isinstance(made, tuple) else values[0]), steps

    # torch.compile counts its results by code, which all groups would share
    own = torch.compile(FunctionType(run.__code__.replace(), run.__globals__, closure=run.__closure__), **options)

    def call(*args: Any, **kwargs: Any) -> Any:
        made, steps = own(*args, **kwargs)
        values = made if isinstance(made, tuple) else (made,)
        values = tuple([value if size is None else value.unflatten(0, size) for value, size in zip(values, steps)])
        return values if isinstance(made, tuple) else values[0]

    return call


def _is_last(value: Any) -> bool:
    """True for steps of images or volumes that are channels-last."""
    if not isinstance(value, Tensor) or value.ndim not in (5, 6) or value.is_contiguous():
        return False
    return value.permute(0, 1, *range(3, value.ndim), 2).is_contiguous()


@uncompiled
def _outside(net: Checkpointed, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """The call of a wrapper in a network that torch.compile runs: it breaks there, and groups are compiled."""
    return net._computed(args, kwargs, net.compiled or {})


def _row(number: int, text: str, kept: Optional[int]) -> str:
    return f"group {number} {text}" + ("" if kept is None else f"; {kept:,} bytes in the last call")


def _bits(whole: Optional[Whole]) -> str:
    return "whole" if whole is None else f"{whole.bits} bit{'s' * (whole.bits > 1)}"


def _named_bits(name: str, whole: Optional[Whole]) -> str:
    return f"{name} {_bits(whole)}"


class Plan(NamedTuple):
    """A network in steps: the names of its inputs, what it returns, of nodes, and the modules that were followed."""

    inputs: Tuple[str, ...]
    steps: List[Step]
    output: Any
    followed: Tuple[nn.Module, ...]


def _form(net: nn.Module, followed: Sequence[nn.Module]) -> Tuple[List[Any], ...]:
    """The facts of a network that its steps depend on: its modules, and numbers and strings that a forward may read."""
    parts = [
        (part, vars(part).get("forward"), getattr(part, "step", None), has_own_hooks(part)) for part in net.modules()
    ]
    return parts, [_constants(vars(part)) for part in followed]


def _constants(attributes: Dict[str, Any]) -> Dict[str, Any]:
    kinds = (bool, int, float, str, tuple, list, type(None))
    return {
        name: [*value] if isinstance(value, list) else value
        for name, value in attributes.items()
        if name != "training" and isinstance(value, kinds) and _is_constant(value)
    }


def _is_constant(value: Any) -> bool:
    return not isinstance(value, (tuple, list)) or all(isinstance(v, (bool, int, float, str)) for v in value)


def _planned(net: nn.Module) -> Plan:
    """The steps of a network. Raises :class:`spikecore.graph.NotFollowed`."""
    parts = read_parts(net)
    if net in parts.reasons:
        raise parts.reasons[net]
    followed = tuple(parts.graphs[0].followed)
    graph = read_block(net, followed)
    if graph is None:
        raise NotFollowed(f"forward of {type(net).__name__} has constants or names that a graph cannot have")
    return Plan(tuple([call.node.name for call in graph.inputs]), steps_of(graph), graph.output.node.args[0], followed)


def _readable(net: nn.Module) -> List[nn.Module]:
    """The network, or where it cannot be read the largest modules of it that can, which have groups between spikes."""
    parts = read_parts(net)
    chosen: List[nn.Module] = []
    reasons = [str(error) for error in parts.reasons.values()]
    for graph in parts.graphs:
        if not any(graph.net in [*other.modules()] for other in chosen):
            try:
                groups = [step for step in _planned(graph.net).steps if step.is_group]
            except NotFollowed as error:
                reasons.append(str(error))
                continue
            if len(groups) > 1 and any(whole is not None for step in groups for whole in step.wholes):
                chosen.append(graph.net)
    if not chosen:
        why = f": {'; '.join(reasons[:2])}" if reasons else ", since no value of it is known to be spikes"
        raise ValueError(
            f"every={SPIKES!r} finds no group between spikes in net, {a_kind(net)}{why}. Name modules, "
            "sc.checkpoint(net, every=1, modules=[...])"
        )
    return chosen


def _wrapped(
    net: nn.Module, chosen: Sequence[nn.Module], every: Any, bits: bool, preserve_rng_state: bool
) -> Dict[nn.Module, nn.Module]:
    """The wrapper of each module that has groups."""
    if every == SPIKES:
        return {module: Grouped(module, every, preserve_rng_state) for module in chosen}
    wrappers: Dict[nn.Module, nn.Module] = {}
    graphs = read_parts(net).graphs if bits else []
    for module in chosen:
        layers = layers_in_turn(module) or [module]
        size = every if layers != [module] else 1
        groups = [layers[begin : begin + size] for begin in range(0, len(layers), size)]
        wholes = [whole_inputs(graphs, group) for group in groups] if bits else []
        wrappers[module] = Checkpointed(module, every, preserve_rng_state, wholes)
    return wrappers


@contextmanager
def _taken_out(net: nn.Module) -> Iterator[nn.Module]:
    """A block in which the network has no wrappers, as a reader of networks has to see it."""
    places = [
        (parent._modules, name, child)
        for parent in [*net.modules()]
        for name, child in parent._modules.items()
        if isinstance(child, Checkpointed) and not isinstance(parent, Checkpointed)
    ]
    for modules, name, child in places:
        modules[name] = _inner(child)
    try:
        yield _inner(net)
    finally:
        for modules, name, child in places:
            modules[name] = child


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
