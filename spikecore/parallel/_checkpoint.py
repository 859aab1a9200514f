"""Activation checkpointing: layers that are computed again in backward, from the input and the state they began with.

``torch.utils.checkpoint`` runs a region again, with torch's random numbers and autocast as they were. What it does not
know is given to it as its ``context_fn``, and is in :class:`_Region`:

- A neuron that carries its state begins again with the state that it began with, and keeps the one that it has.
- Batch normalisation moves its running statistics once, not again when the region runs again.
- A ``torch.Generator`` of an encoder or a dropout gives the same numbers again.
- Layers run again in the mode, training or not, of the first run.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import checkpoint as torch_checkpoint

from spikecore import context
from spikecore.backend import Unsupported
from spikecore.batches import flattened
from spikecore.context import require_compiler
from spikecore.core.modules import in_turn
from spikecore.core.state import State, Stateful, carried, put_back
from spikecore.parallel._pipeline import Pipeline, refuse_compiler
from spikecore.words import a_kind, shown

_COMPILED = (
    "torch.compile and torch.export cannot follow a network with sc.checkpoint; compile its layers, which are then "
    "computed again compiled: for layer in net: layer.compile(); or end it with net = sc.checkpoint(net, every=None)"
)

Contexts = Tuple[ContextManager[Any], ContextManager[Any]]


def checkpoint(
    net: nn.Module,
    every: Optional[int],
    modules: Optional[Sequence[str]] = None,
    *,
    preserve_rng_state: bool = True,
) -> nn.Module:
    """``net`` with its layers in groups of ``every``, which are computed again in backward. Use what it returns::

        net = sc.checkpoint(net, every=2)  # of an nn.Sequential, layers two by two
        net = sc.checkpoint(net, every=1, modules=["layer1", "layer2"])  # of any network, the modules of these names
        net = sc.checkpoint(net, every=None)  # the network without groups

    A group keeps its input and output; what its layers save for backward is computed again from the input, group by
    group. With n layers of one size, groups of sqrt(n) take the least memory; the price is one more forward pass.

    What has groups: an ``nn.Sequential``, of its children; a :class:`spikecore.parallel.Pipeline`, in each stage; with
    ``modules``, each of these modules. One that is no ``nn.Sequential`` is a group as a whole, whatever ``every`` is.
    A :class:`Checkpointed` stands in the place of each, in ``net`` itself where ``net`` contains it. ``every=None``
    takes these out, of all of ``net`` or of ``modules``.

    preserve_rng_state: as of ``torch.utils.checkpoint``: torch's random numbers are drawn again as they were. False
        saves time where no layer draws; a step that is captured as a CUDA graph needs it.

    Outputs, gradients, states and running statistics are those of the plain network, bit for bit: with carried state
    and in single steps, under autocast, with dropout. Names in ``state_dict`` and of parameters, copies, pickles and
    several inputs and outputs are as before. Without gradients nothing is computed again. Forward hooks within a group
    run again with it; those of an ``nn.Sequential`` that has groups do not run.

    Raises TypeError or ValueError for a network without ``modules`` that is none of these, and for an unknown name;
    Unsupported before torch 2.6. When it runs: RuntimeError under ``torch.compile`` (compile the layers:
    ``net[0].compile()``) and ``torch.export``. A call of ``train()`` or ``eval()`` between forward and backward changes
    nothing. Parameters, buffers and other attributes are not compared: where they changed since forward, in forward
    itself too, backward computes with the new ones. Change them after backward.
    """
    _check_net(net)
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"every={every!r} must be the number of layers in a group, 1 or more, or None for no groups")
    chosen = _chosen(net, every) if modules is None else _named(net, modules)
    if every is None:
        return _replaced(net, {module: module for module in chosen})
    require_compiler("sc.checkpoint")
    return _replaced(net, {module: Checkpointed(module, every, preserve_rng_state) for module in chosen})


def checkpoint_contexts(net: nn.Module) -> Callable[[], Contexts]:
    """Value of ``context_fn`` of ``torch.utils.checkpoint`` for a network that carries its state::

        y = torch.utils.checkpoint.checkpoint(
            net, x, use_reentrant=False, context_fn=sc.parallel.checkpoint_contexts(net)
        )

    Without it neurons that carry their state go on, when the region is computed again, from the state of then: torch
    does not say so, and gradients would be wrong. Neurons at rest need nothing. Raises Unsupported before torch 2.6.
    """
    _check_net(net)
    require_compiler("sc.checkpoint")
    return _contexts_of([net])


class Checkpointed(nn.Module):
    """A network whose layers are computed again in backward, as :func:`checkpoint` returns it: ``.module`` is the
    network itself, whose names, attributes and layers this one has.
    """

    #: Mark for :func:`spikecore.core.modules.unwrapped`.
    is_checkpointed = True
    #: To a reader of networks it is one call (:func:`spikecore.graph.read`).
    is_one_call = True

    def __init__(self, module: nn.Module, every: int, preserve_rng_state: bool) -> None:
        super().__init__()
        self.module = module
        self.every = every
        self.preserve_rng_state = preserve_rng_state
        self.training = module.training
        self.register_load_state_dict_pre_hook(_load_below)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Result of ``module``, computed group by group."""
        refuse_compiler(_COMPILED)
        if any(value.device.type == "ipu" for value in flattened([args, kwargs])):
            raise Unsupported(
                "sc.checkpoint is for PyTorch's backward pass, and PopTorch has its own: end it with net = "
                "sc.checkpoint(net, every=None), and name what is computed again with poptorch.recomputationCheckpoint"
            )
        module = self.module
        if not torch.is_grad_enabled() or (in_turn(module) and (len(args) != 1 or kwargs)):
            return module(*args, **kwargs)
        if not in_turn(module):
            return self._region([module], lambda *values: module(*values, **kwargs), args)
        layers, value = list(module), args[0]  # type: ignore[call-overload]  # a sequence
        for begin in range(0, len(layers), self.every):
            group = layers[begin : begin + self.every]
            value = self._region(group, nn.Sequential(*group), (value,))
        return value

    def traced_forward(self, over_samples: Any, *args: Any, **kwargs: Any) -> Any:
        """``module`` on traced values."""
        return self.module(*args, **kwargs)

    def _region(self, modules: Sequence[nn.Module], run: Callable[..., Any], args: Sequence[Any]) -> Any:
        return torch_checkpoint.checkpoint(
            run,
            *args,
            use_reentrant=False,
            preserve_rng_state=self.preserve_rng_state,
            context_fn=_contexts_of(modules),
        )

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
        return f"every={self.every}"


def _load_below(module: nn.Module, state_dict: Dict[str, Any], prefix: str, *_: Any) -> None:
    """Give entries the names that they have in the wrapper."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}module.{name[len(prefix) :]}"] = state_dict.pop(name)


# -- which modules have groups


def _check_net(net: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is {a_kind(net)}; give the network (an nn.Module)")


def _inner(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, Checkpointed) else module


def _chosen(net: nn.Module, every: Optional[int]) -> List[nn.Module]:
    """The modules that have groups, where the user names none."""
    if every is None:
        return list(net.modules())
    if isinstance(net, Pipeline):
        return [_inner(stage) for stage in net]
    if not in_turn(_inner(net)):
        names = ", ".join(repr(name) for name, _ in net.named_children())
        raise TypeError(
            f"net is {a_kind(net)}, whose forward, __call__ or __iter__ is its own, so that its layers have no known "
            "order; name the modules to compute again, sc.checkpoint(net, every=1, modules=[...]); it has "
            f"{names or 'none'}"
        )
    return [_inner(net)]


def _named(net: nn.Module, modules: Sequence[str]) -> List[nn.Module]:
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise TypeError(f"modules={modules!r} must be a list of names of modules, as in net.named_modules()")
    known = dict(net.named_modules(remove_duplicate=False))
    for name in modules:
        if name not in known:
            some = ", ".join(repr(path) for path in known if path)
            raise ValueError(f"modules: {type(net).__name__} has no module {name!r}; it has {some or 'none'}")
    return [known[name] for name in modules]


def _replaced(net: nn.Module, others: Dict[nn.Module, nn.Module]) -> nn.Module:
    """``net`` with other modules in the places of some, and of the wrappers around them."""
    for parent in [module for module in net.modules() if not isinstance(module, Checkpointed)]:
        for name, child in parent._modules.items():
            if child is not None and _inner(child) in others:
                parent._modules[name] = others[_inner(child)]
    return others.get(_inner(net), net)


# -- one call of a group

#: Beginning of a run: modes of the modules, states of generators, and what neurons carry, with their states.
_Beginning = Tuple[List[bool], List[torch.Tensor], List[Tuple[Dict[str, Any], Optional[State]]]]


class _Region:
    """One call of some modules: its :meth:`first` run, and as a context every other one, in backward, as that was.

    There may be several of these: ``retain_graph=True``, regions within context.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._entered: List[ContextManager[None]] = []
        self._parts = list(dict.fromkeys(part for module in modules for part in module.modules()))
        self._norms = [part for part in self._parts if part.training and isinstance(part, _NormBase)]
        self._neurons = [part for part in self._parts if isinstance(part, Stateful)]
        self._generators = [
            # isinstance takes ten times as long: its class has one of Python
            value
            for part in self._parts
            for value in vars(part).values()
            if torch.Generator in type(value).__mro__
        ]

    @contextmanager
    def first(self) -> Iterator[None]:
        """Around the first run: note what it begins with."""
        self._beginning = self._snapshot()
        with context.running(context.FIRST):
            yield

    def __enter__(self) -> None:
        block = self._again()
        block.__enter__()
        self._entered.append(block)

    def __exit__(self, *error: Any) -> Any:
        return self._entered.pop().__exit__(*error)

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Restore the beginning of the first run within the block; nothing of it remains afterwards."""
        current = self._snapshot()
        statistics = [dict(norm._buffers) for norm in self._norms]
        for norm, buffers in zip(self._norms, statistics):
            norm._buffers.update({name: value if value is None else value.clone() for name, value in buffers.items()})
        modes, drawn, carrying = self._beginning
        self._begin((modes, drawn, [(carries, _as_leaves(state)) for carries, state in carrying]))
        try:
            with context.running(context.AGAIN):
                yield
        finally:
            self._begin(current)
            for norm, buffers in zip(self._norms, statistics):
                norm._buffers.update(buffers)

    def _snapshot(self) -> _Beginning:
        return (
            [part.training for part in self._parts],
            [generator.get_state() for generator in self._generators],
            [(carried(neuron), neuron.state) for neuron in self._neurons],
        )

    def _begin(self, beginning: _Beginning) -> None:
        modes, drawn, carrying = beginning
        for part, mode in zip(self._parts, modes):
            if part.training != mode:
                part.training = mode
        for generator, state in zip(self._generators, drawn):
            generator.set_state(state)
        for neuron, (carries, values) in zip(self._neurons, carrying):
            put_back(neuron, carries, values)


def _contexts_of(modules: Sequence[nn.Module]) -> Callable[[], Contexts]:
    def contexts() -> Contexts:
        region = _Region(modules)
        return region.first(), region

    return contexts


def _as_leaves(state: Optional[State]) -> Optional[State]:
    """The values of a state without their graph, which ask for gradients where they did."""
    if state is None:
        return None
    return {name: value.detach().requires_grad_(value.requires_grad) for name, value in state.items()}
