"""One call of a group of layers that is computed again in backward: its first run, and every other one as that was.

What a region of torch.utils.checkpoint does not do by itself, and is done here:

- Batch normalisation moves its running statistics once, not again when the region runs again.
- An encoder with a generator of its own draws the same numbers again.
- Layers run again in the mode, training or not, of the first run.
- What would give other numbers in the second run is refused: inputs, parameters, buffers and settings of neurons that
  changed since. Plain torch raises for a changed tensor that it saved; here the layers save nothing.

The states of neurons are the affair of :mod:`spikecore._shell.recompute`, torch's random numbers and autocast torch's.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from spikecore._base.batches import flattened
from spikecore._shell.binding import Bound, numbers_of, traced_program
from spikecore._shell.norms import Deferred
from spikecore._shell.processes import is_shard
from spikecore._shell.prologued import prologue_of
from spikecore._shell.state import Stateful, own_names
from spikecore.parallel._draws import may_draw

#: Where torch defines the forward of its norms. A subclass with a forward of its own may read running statistics.
_NORMS = ("torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
#: Attributes of a neuron, beside its own arguments, that change with what its user sets: their names for users.
_DERIVED = {"_request": "backend", "_ranges": "bounds"}


class _Held(NamedTuple):
    """A parameter or a buffer as it was; ``version`` is None for a tensor that has none."""

    owner: nn.Module
    name: str
    value: Tensor
    version: Optional[int]


class _Settings(NamedTuple):
    """What the user of a neuron had set when it ran first."""

    neuron: Stateful
    names: Tuple[str, ...]
    values: Tuple[Any, ...]
    program: Any


class Region:
    """One call of a group."""

    def __init__(self, modules: Sequence[nn.Module], run: Callable[..., Any]) -> None:
        inside = [part for module in modules for part in module.modules()]
        # a neuron may normalise in the place of a module that stands in another group
        every = list(dict.fromkeys([*inside, *(prologue.norm for prologue in map(prologue_of, inside) if prologue)]))
        #: Whether a layer may draw from torch's own generators, whose state torch then keeps.
        self.draws = any(map(may_draw, every))
        self._run = run
        self._parts = every
        self._modes = [part.training for part in every]
        self._norms = [part for part in every if part.training and _is_norm(part)]
        moved = set(self._norms)
        self._others = [part for part in every if part._buffers and part not in moved]
        self._generators = [value for part in every for value in vars(part).values() if _is_generator(value)]
        self._began: Optional[List[Tensor]] = None
        self._inputs: List[Tuple[Tensor, int]] = []
        self._buffers: List[_Held] = []
        self._parameters: List[_Held] = []
        self._settings: List[_Settings] = []

    def __call__(self, kwargs: Dict[str, Any], *args: Any) -> Any:
        """The outputs of the group; every call but the first one is in backward."""
        if self._began is not None:
            with _in_modes(self._parts, self._modes):
                self._check_same()
                with _drawing(self._generators, self._began), _statistics_kept(self._norms):
                    return self._run(*args, **kwargs)
        self._began = [generator.get_state() for generator in self._generators]
        given = [value for value in flattened([args, kwargs]) if not value.is_inference()]
        self._inputs = [(value, value._version) for value in given]
        self._buffers = _held(self._others, "_buffers")
        made = self._run(*args, **kwargs)
        for held, _ in _changed(self._buffers, "_buffers"):
            raise RuntimeError(
                f"{type(held.owner).__name__} changes its buffer {held.name!r} in forward, and is in a group of "
                "sc.checkpoint: computed again, it would begin with the changed value. Leave it out of the groups "
                "(modules=[...] names what is computed again)"
            )
        self._check_inputs("by one of its layers")
        # after the run, since it gives lazy parameters their shapes, and traces neurons
        self._parameters = _held(self._parts, "_parameters")
        self._settings = [_settings(part) for part in self._parts if isinstance(part, Stateful)]
        return made

    def _check_same(self) -> None:
        """Raise RuntimeError for what changed since the first run."""
        self._check_inputs("since the group ran first")
        for kind, every in (("parameter", self._parameters), ("buffer", self._buffers)):
            for held, replaced in _changed(every, f"_{kind}s"):
                how = "is another tensor than when" if replaced else "was written to after"
                raise RuntimeError(
                    f"the {kind} {held.name!r} of {type(held.owner).__name__}, shape {tuple(held.value.shape)}, {how} "
                    "its group of sc.checkpoint ran first, and the group would be computed again with the new values. "
                    f"Call backward before {_CAUSES[kind, replaced]}; or end the groups with "
                    "sc.checkpoint(net, every=None)"
                )
        for settings in self._settings:
            name = _changed_setting(settings)
            if name:
                raise RuntimeError(
                    f"{name} of {type(settings.neuron).__name__} changed since its group of sc.checkpoint ran first, "
                    "and the group would be computed again with the new setting. Call backward before it changes; or "
                    "end the groups with sc.checkpoint(net, every=None)"
                )

    def _check_inputs(self, when: str) -> None:
        for value, version in self._inputs:
            if value._version != version:
                raise RuntimeError(
                    f"the input of a group of sc.checkpoint, shape {tuple(value.shape)}, was changed in place {when}, "
                    "and the group would be computed again from the changed one; use inplace=False there, or groups "
                    "that begin at another layer"
                )


#: What changes tensors between forward and backward: by kind, and whether the tensor is another one.
_CAUSES = {
    ("parameter", False): "it changes (optimizer.step(), load_state_dict)",
    ("parameter", True): "it is replaced; torch.func.functional_call puts the old ones back when it returns",
    ("buffer", False): "it changes (load_state_dict, DistributedDataParallel without broadcast_buffers=False)",
    ("buffer", True): "it is replaced",
}


def _is_norm(module: nn.Module) -> bool:
    """Whether its running statistics are moved by torch's own forward, which does not read them in training."""
    own = isinstance(module, _NormBase) and type(module).forward.__module__ in _NORMS
    return own or isinstance(module, Deferred)


def _held(modules: Sequence[nn.Module], kind: str) -> List[_Held]:
    """The tensors of modules as they are; not shards, which are others while fully_shard has them gathered."""
    return [
        _Held(module, name, value, None if is_lazy(value) or value.is_inference() else value._version)
        for module in modules
        for name, value in vars(module)[kind].items()
        if value is not None and not is_shard(value)
    ]


def _changed(every: Sequence[_Held], kind: str) -> Iterator[Tuple[_Held, bool]]:
    """Those that changed, and whether by another tensor in their place."""
    for held in every:
        now = vars(held.owner)[kind].get(held.name)
        if now is not held.value:
            # None: FullyShardedDataParallel takes parameters out of their modules for a time
            if now is not None and not is_shard(now):
                yield held, True
        elif held.version is not None and now._version != held.version:
            yield held, False


def _settings(neuron: Stateful) -> _Settings:
    names = (*own_names(neuron), *_DERIVED)
    return _Settings(neuron, (*names, "surrogate"), _values(neuron, names), traced_program(neuron))


def _values(neuron: Stateful, names: Sequence[str]) -> Tuple[Any, ...]:
    """The attributes of these names, and behind them the numbers of the surrogate."""
    return (*map(vars(neuron).get, names), numbers_of(neuron))


def _changed_setting(settings: _Settings) -> str:
    """What changed, for users; "" if nothing did."""
    neuron = settings.neuron
    # asked first: it traces again, and takes other numbers, where a setting was written past __setattr__
    now = neuron.program if settings.program is not None and isinstance(neuron, Bound) else settings.program
    same = now is settings.program or now == settings.program  # to compare two programs takes long
    names = settings.names
    for name, value, own in zip(names, settings.values, _values(neuron, names[:-1])):
        if own is not value and not (type(own) is type(value) and bool(own == value)):
            return repr(_DERIVED.get(name, name))
    return "" if same else "the definition"


def _is_generator(value: Any) -> bool:
    return torch.Generator in type(value).__mro__  # isinstance takes ten times as long: its class has one of Python


@contextmanager
def _in_modes(modules: Sequence[nn.Module], modes: Sequence[bool]) -> Iterator[None]:
    """Let modules be in training, or not, as these say."""
    others = [(module, module.training) for module, mode in zip(modules, modes) if module.training != mode]
    for module, now in others:
        module.training = not now
    try:
        yield
    finally:
        for module, now in others:
            module.training = now


@contextmanager
def _drawing(generators: Sequence[torch.Generator], began: Sequence[Tensor]) -> Iterator[None]:
    """Draw from these states, and go on from those of now afterwards."""
    now = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, began):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, now):
            generator.set_state(state)


@contextmanager
def _statistics_kept(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Let layers move copies of their running statistics."""
    held = [(norm, dict(norm._buffers)) for norm in norms]
    for norm, buffers in held:
        for name, value in buffers.items():
            norm._buffers[name] = None if value is None else value.clone()
    try:
        yield
    finally:
        for norm, buffers in held:
            norm._buffers.update(buffers)
