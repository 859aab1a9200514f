"""Activation checkpointing by ``torch.utils.checkpoint``: layers that are computed again in backward.

Torch restores its random numbers and autocast. :class:`_Again`, its ``context_fn``, restores the rest: the states that
neurons carried, the modes of layers and the states of generators; running statistics move only in the first run.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import checkpoint as torch_checkpoint

from spikecore import context
from spikecore.context import require_compiler
from spikecore.core.checks import check_network
from spikecore.core.state import State, Stateful, carried, put_back
from spikecore.graph import layers_in_turn
from spikecore.parallel._pipeline import Pipeline, refuse_compiler
from spikecore.words import a_kind

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
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"every={every!r} must be the number of layers in a group, 1 or more, or None for no groups")
    if modules is not None:
        chosen = _named(net, modules)
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
        others = {module: Checkpointed(module, every, preserve_rng_state) for module in chosen}
    for parent in [module for module in net.modules() if not isinstance(module, Checkpointed)]:
        for name, child in parent._modules.items():
            if child is not None and _inner(child) in others:
                parent._modules[name] = others[_inner(child)]
    return others.get(_inner(net), net)


def checkpoint_contexts(net: nn.Module) -> Callable[[], Contexts]:
    """Value of ``context_fn`` of ``torch.utils.checkpoint`` for a network that carries its state::

        y = torch.utils.checkpoint.checkpoint(
            net, x, use_reentrant=False, context_fn=sc.parallel.checkpoint_contexts(net)
        )

    Without it neurons that carry their state go on, when the region is computed again, from the state of then: torch
    does not say so, and gradients would be wrong. Neurons at rest need nothing. Raises Unsupported before torch 2.6.
    """
    check_network("checkpoint_contexts", net)
    require_compiler("sc.checkpoint")
    return lambda: (context.running(context.FIRST), _Again(net))


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
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        layers, size, value = layers_in_turn(self.module) or [], self.every, None
        chains = [nn.Sequential(*layers[begin : begin + size]) for begin in range(0, len(layers), size)]
        for group in chains or (self.module,):
            value = torch_checkpoint.checkpoint(
                partial(group, **kwargs),
                *args,
                use_reentrant=False,
                preserve_rng_state=self.preserve_rng_state,
                context_fn=checkpoint_contexts(group),
            )
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
        return f"every={self.every}"


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


class _Again:
    """Context of each run of a module in backward, which begins as the first run, the next one, begins now.

    It is entered more than once under ``retain_graph=True``.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())
        self._norms = [part for part in self._parts if part.training and isinstance(part, _NormBase)]
        self._neurons = [part for part in self._parts if isinstance(part, Stateful)]
        self._generators = [
            # isinstance takes ten times as long: its class has one of Python
            value
            for part in self._parts
            for value in vars(part).values()
            if torch.Generator in type(value).__mro__
        ]
        self._beginning = self._current()

    def __enter__(self) -> None:
        self._block = self._restored()
        self._block.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._block.__exit__(*error)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        current, statistics = self._current(), [dict(norm._buffers) for norm in self._norms]
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

    def _current(self) -> Tuple[List[Any], ...]:
        """Modes of the parts, states of the generators, and what the neurons carry, with their states."""
        return (
            [part.training for part in self._parts],
            [generator.get_state() for generator in self._generators],
            [(carried(neuron), neuron.state) for neuron in self._neurons],
        )

    def _begin(self, beginning: Sequence[List[Any]]) -> None:
        modes, drawn, carrying = beginning
        for part, mode in zip(self._parts, modes):
            if part.training != mode:
                part.training = mode
        for generator, state in zip(self._generators, drawn):
            generator.set_state(state)
        for neuron, (carries, values) in zip(self._neurons, carrying):
            put_back(neuron, carries, values)


def _as_leaves(state: Optional[State]) -> Optional[State]:
    """The values of a state without their graph, which ask for gradients where they did."""
    if state is None:
        return None
    return {name: value.detach().requires_grad_(value.requires_grad) for name, value in state.items()}
