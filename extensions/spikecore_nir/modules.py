"""Modules of a loaded graph: NIR's neurons and layers in time steps, and the network that joins them."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor, nn

from spikecore.batches import folded, unfolded_as
from spikecore.core import checks
from spikecore.core.neuron import Neuron
from spikecore.core.state import State, Stateful
from spikecore.lang import ops
from spikecore.layers import SumPool2d
from spikecore.words import shown

#: The name of the graph's input among the sources of a unit.
INPUT = ""


class NIRLI(Neuron):
    """NIR's LI, and I with ``decay=1``: a leaky integrator, whose output is its potential::

        v' = v_leak + (v - v_leak) decay + gain x

    ``v`` starts at ``v_leak``. ``decay`` is ``1 - dt/tau`` or ``exp(-dt/tau)``, ``gain`` is ``R (1 - decay)``, see
    :class:`spikecore_nir.Convention`.
    """

    states = {"v": "v_leak"}
    params = {"decay": 0.5, "gain": 1.0, "v_leak": 0.0}

    def charge(self, v: Any, x: Any, p: Any) -> Any:
        """The potential after a step of input ``x``."""
        return p.v_leak + (v - p.v_leak) * p.decay + p.gain * x

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        v = self.charge(s.v, x, p)
        return v, {"v": v}


class NIRLIF(NIRLI):
    """NIR's LIF, and IF with ``decay=1``: :class:`NIRLI` with a threshold::

        h = v_leak + (v - v_leak) decay + gain x
        z = [h > threshold]                         strict=True, NIR's meaning
        z = [h >= threshold]                        strict=False
        v' = v_reset where z, else h                reset="hard"
        v' = h - threshold z                        reset="soft"

    With ``reset_delay`` a spike resets the potential at the start of the next step, before it decays, without a
    gradient: ``h = v_leak + (v - v_leak) decay + gain x - r threshold`` (soft), or from ``v = v_reset`` where ``r``
    (hard), with ``r = [v > threshold]``. With ``many`` (and a soft reset at once)
    ``z = floor(h / threshold)`` where that is 1 or above.
    """

    params = {**NIRLI.params, "threshold": 1.0, "v_reset": 0.0}
    configuration = {
        **Neuron.configuration,
        "reset": checks.reset,
        "reset_delay": checks.flag,
        "strict": checks.flag,
        "many": checks.flag,
    }
    reset_states = ("v",)

    def __init__(
        self,
        *,
        strict: bool = True,
        reset: str = "hard",
        reset_delay: bool = False,
        many: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if reset == "none":
            raise ValueError(f"{type(self).__name__}: reset='none' must be 'hard' or 'soft'")
        if many and (reset_delay or reset != "soft"):
            raise ValueError(f"{type(self).__name__}: many=True needs reset='soft' and reset_delay=False")
        self.strict = strict
        self.reset = reset
        self.reset_delay = reset_delay
        self.many = many

    def fire(self, v: Any, x: Any, p: Any) -> Tuple[Any, Any]:
        """Spikes and the next potential of ``v`` after a step of input ``x``."""
        if self.reset_delay:
            r = ops.detach(self.spike(v - p.threshold, strict=self.strict))
            if self.reset == "soft":
                h = self.charge(v, x, p) - r * p.threshold
            else:
                h = self.charge(ops.select(r, p.v_reset, v), x, p)
            return self.spike(h - p.threshold, strict=self.strict), h
        h = self.charge(v, x, p)
        z = self.spike(h - p.threshold, strict=self.strict)
        if self.many:
            z = z * ops.maximum(ops.floor(h / p.threshold), 1.0)
        return z, (h - z * p.threshold if self.reset == "soft" else ops.select(z, p.v_reset, h))

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        z, v = self.fire(s.v, x, p)
        return z, {"v": v}


class NIRCubaLI(NIRLI):
    """NIR's CubaLI: a synaptic current that charges a leaky integrator::

        i' = i syn_decay + syn_gain x
        v' = v_leak + (v - v_leak) decay + gain i'

    ``i`` starts at 0, ``v`` at ``v_leak``.
    """

    states = {"i": 0.0, "v": "v_leak"}
    params = {"syn_decay": 0.5, "syn_gain": 1.0, **NIRLI.params}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        i = s.i * p.syn_decay + p.syn_gain * x
        v = self.charge(s.v, i, p)
        return v, {"i": i, "v": v}


class NIRCubaLIF(NIRLIF):
    """NIR's CubaLIF: a synaptic current, ``i' = i syn_decay + syn_gain x``, that charges a :class:`NIRLIF`.

    The potential is charged by the current of the same step, ``i'``. A spike does not reset the current.
    """

    states = {"i": 0.0, "v": "v_leak"}
    params = {"syn_decay": 0.5, "syn_gain": 1.0, **NIRLIF.params}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        i = s.i * p.syn_decay + p.syn_gain * x
        z, v = self.fire(s.v, i, p)
        return z, {"i": i, "v": v}


class Scale(nn.Module):
    """NIR's Scale: ``y = scale * x`` element by element; ``scale`` is learnt and has the shape of one sample."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        if not isinstance(scale, Tensor) or not scale.is_floating_point():
            raise TypeError(f"Scale: scale={shown(scale)} must be a floating-point tensor")
        self.scale = scale if isinstance(scale, nn.Parameter) else nn.Parameter(scale.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``[..., *N] -> [..., *N]``."""
        return self.scale * x

    def extra_repr(self) -> str:
        """The shape."""
        return f"{list(self.scale.shape)}"


class Threshold(Neuron):
    """NIR's Threshold: ``z = [x > threshold]`` at every step, with the neuron's surrogate; no state."""

    states: Mapping[str, Union[float, str]] = {}
    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        return self.spike(x - p.threshold, strict=True), {}


class DelaySteps(Stateful):
    """NIR's Delay: ``y[t, n] = x[t - steps[n], n]``, 0 before the first step; ``[T, B, *N] -> [T, B, *N]``.

    steps: whole numbers of time steps, a tensor of the shape ``[*N]`` of one sample.
    step: ``"multi"`` or ``"single"``, as of a neuron.

    The state is ``{"past": [longest, B, *N]}``, the last inputs, the newest last, which is
    carried and reset as that of a neuron.
    """

    steps: Tensor
    _longest: int

    def __init__(self, steps: Union[Tensor, Sequence[int]], *, step: str = "multi") -> None:
        super().__init__(step)
        whole = torch.as_tensor(steps)
        if whole.is_floating_point() or whole.is_complex() or whole.dtype == torch.bool:
            raise TypeError(f"DelaySteps: steps has dtype {whole.dtype}; give whole numbers of time steps")
        if whole.numel() and int(whole.min()) < 0:
            raise ValueError(f"DelaySteps: steps has {int(whole.min())}; a delay must be 0 or above")
        self.register_buffer("steps", whole.long())
        self._note_longest()

    def _note_longest(self) -> None:
        # read once: at every call a GPU would be waited for
        self.__dict__["_longest"] = int(self.steps.max()) if self.steps.numel() else 0

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._note_longest()

    def forward(self, x: Tensor) -> Tensor:
        """``x``, each element as long ago as it says."""
        single = self.step == "single"
        if not (single or self._carrying):
            return self._delayed(x, None)[0]
        y, state = self._delayed(x.unsqueeze(0) if single else x, self._begin())
        self._end(state)
        return y.squeeze(0) if single else y

    def _delayed(self, x: Tensor, state: Optional[State]) -> Tuple[Tensor, State]:
        shape = list(self.steps.shape)
        if x.ndim < 1 + len(shape) or (shape and list(x.shape[-len(shape) :]) != shape):
            raise ValueError(f"DelaySteps: x of shape {list(x.shape)} must end with the shape of steps, {shape}")
        longest = self._longest
        past = x.new_zeros(longest, *x.shape[1:]) if state is None else state["past"]
        if list(past.shape[1:]) != list(x.shape[1:]):
            raise ValueError(
                f"DelaySteps: x has steps of shape {list(x.shape[1:])}, the state carried from the last call "
                f"{list(past.shape[1:])}; call sc.reset(net) between sequences of different batches"
            )
        known = torch.cat([past.to(x.dtype), x])
        steps = torch.arange(len(x), device=x.device).view(-1, *[1] * (x.ndim - 1))
        y = known.gather(0, (steps + longest - self.steps).expand_as(x))
        return y, {"past": known[len(x) :].clone()}

    def extra_repr(self) -> str:
        """The delays."""
        longest = self._longest
        return f"{list(self.steps.shape)}, 0 to {longest} steps" + (", step='single'" if self.step == "single" else "")


#: Layers whose input is one step, with batch in front; the others take time as well.
OF_ONE_STEP: Tuple[Type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.AvgPool2d, SumPool2d, nn.Flatten)


class Unit(NamedTuple):
    """One module of a network: its name, and the units whose outputs are added for its input."""

    name: str
    module: nn.Module
    sources: Tuple[str, ...]


class Network(nn.Module):
    """Network that :func:`spikecore_nir.load` returns: ``[T, B, *N] -> [T, B, *M]``, as every network here.

    Submodules have the names of the nodes, ``net.get_submodule("features.0")``, with ``_`` for all but ASCII letters,
    digits and dots: tools of torch make code of module names, and a file's may be a stranger's. ``places`` has the
    paths by the names in the file. Where several edges lead to a node their sources are added, in the order of the
    edges. Layers that take one step (convolutions, pooling, flattening)
    get time and batch as one, as in :class:`~spikecore.layers.TimeBatched`. With neurons of ``step="single"`` it takes
    ``[B, *N]``.
    """

    def __init__(self, units: Sequence[Unit], sources: Sequence[str]) -> None:
        super().__init__()
        # before the modules, which then get other names than these
        self.wiring: List[Tuple[str, Tuple[str, ...]]] = [(unit.name, tuple(unit.sources)) for unit in units]
        self.result = tuple(sources)
        self.places: Dict[str, str] = {}
        #: Formats of a prepared network, by paths of modules.
        self.formats: Dict[str, Any] = {}
        for unit in units:
            self.places[unit.name] = self._place(unit.name, unit.module)

    def _place(self, name: str, module: nn.Module) -> str:
        """Register a module under the name of its node, dots being levels; the place that it got."""
        holder: nn.Module = self
        *levels, last = [re.sub(r"\W", "_", level, flags=re.ASCII) or "_" for level in name.split(".")]
        path: List[str] = []
        for level in levels:
            inner = holder._modules.get(level)
            if inner is None or type(inner) is not nn.Module:  # another one may call its children
                level = _free(holder, level)
                inner = nn.Module()
                holder.add_module(level, inner)
            path.append(level)
            holder = inner
        last = _free(holder, last)
        holder.add_module(last, module)
        return ".".join([*path, last])

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for ``[T, B, *N]``."""
        y: Tensor = self.traced_forward(lambda module, of: unfolded_as(module(folded(of)), of), x)
        return y

    def traced_forward(self, over_samples: Callable[[nn.Module, Any], Any], x: Any) -> Any:
        """``forward`` for a reader of networks, which has no shapes (:func:`spikecore.graph.read`)."""
        values = {INPUT: x}
        modules = {name: self.get_submodule(place) for name, place in self.places.items()}
        single = any(isinstance(module, Stateful) and module.step == "single" for module in modules.values())
        for name, sources in self.wiring:
            module, inputs = modules[name], _summed(values, sources)
            folds = isinstance(module, OF_ONE_STEP) and not single
            values[name] = over_samples(module, inputs) if folds else module(inputs)
        return _summed(values, self.result)

    def extra_repr(self) -> str:
        """The edges."""
        edges = [(source, _shown(name)) for name, sources in self.wiring for source in sources]
        edges += [(source, "output") for source in self.result]
        return ", ".join(f"{_shown(source) if source else 'input'} -> {target}" for source, target in edges)


def _shown(name: str) -> str:
    """The name of a node; in quotes and escaped where it is not plain."""
    return name if re.fullmatch(r"[\w.]+", name, re.ASCII) else ascii(name)


def _free(holder: nn.Module, name: str) -> str:
    """The name, or one like it that torch takes for a module here."""
    while hasattr(holder, name):
        name += "_"
    return name


def _summed(values: Dict[str, Tensor], sources: Sequence[str]) -> Tensor:
    total: Any = values[sources[0]]
    for each in sources[1:]:
        total = total + values[each]
    return total  # type: ignore[no-any-return]  # a tensor
