"""snnTorch 1.0: which of its modules a neuron of spikecore computes, with which arguments, and their step, which is the
same call, ``spk, mem = lif(x, mem)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore import surrogate
from spikecore.core.modules import has_own_hooks
from spikecore.core.neuron import Neuron
from spikecore.lang import ops
from spikecore.neurons import Alpha, Lapicque, Leaky, SynapticLeaky
from spikecore.neurons.gated import FiringLSTMCell
from spikecore.surrogate import Surrogate
from spikecore_convert._swapped import Carrying, Change, Left, built, not_converted, with_neuron

# -- neurons with feedback and surrogates of snnTorch that are not public, in the order in which it computes them
#
# What comes back is added last, ``a i + x + fed``: with it as a part of the input, sums would be rounded differently.
# ``alpha`` and ``beta`` are limited to [0, 1].


class RLeaky(Leaky):
    """``u' = b u + x + fed``, then ``- R threshold`` (soft) or ``- R u'`` (hard); ``fed`` is what came back."""

    inputs = ("x", "fed")

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = self.fired(s.v, p)
        u = self.less(ops.clamp(p.beta, 0.0, 1.0) * s.v + x.x + x.fed, r, p)
        z, v = self.fire(u, r, p)
        return z, {"v": v}


class RSynaptic(SynapticLeaky):
    """:class:`SynapticLeaky` with ``i' = a i + x + fed``; ``fed`` is what came back."""

    inputs = ("x", "fed")

    def current(self, x: Any, s: Any, p: Any) -> Any:
        return ops.clamp(p.alpha, 0.0, 1.0) * s.i + x.x + x.fed


@dataclass(frozen=True)
class Heaviside(Surrogate):
    """1 above the threshold, else 0."""

    def derivative(self, u: Any) -> Any:
        return ops.where(u > 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Signed(Surrogate):
    """snnTorch's ``triangular``, which is none: ``threshold`` below the threshold, ``-threshold`` from there on."""

    threshold: float = 1.0

    def derivative(self, u: Any) -> Any:
        return ops.where(u >= 0.0, -self.threshold, self.threshold)


@dataclass(frozen=True)
class SpikeRateEscape(Surrogate):
    """``slope exp(-beta |u - 1|)`` (Gerstner and Kistler, 2002)."""

    beta: float = 1.0
    slope: float = 25.0
    positive: ClassVar[Tuple[str, ...]] = ("beta",)

    def derivative(self, u: Any) -> Any:
        return self.slope * ops.exp(-self.beta * ops.abs(u - 1.0))


@dataclass(frozen=True)
class SparseFastSigmoid(Surrogate):
    """``1 / (1 + slope |u|)^2`` for ``u > B``, else 0 (Perez-Nieves and Goodman, 2021)."""

    slope: float = 25.0
    B: float = 1.0
    positive: ClassVar[Tuple[str, ...]] = ("slope",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 + self.slope * ops.abs(u)
        return ops.where(u > self.B, 1.0 / (w * w), 0.0)


@dataclass(frozen=True)
class NoGradient(Surrogate):
    """0 everywhere, as with ``surrogate_disable=True``."""

    def derivative(self, u: Any) -> Any:
        return 0.0


# -- one step of a neuron

FIXED = {
    "spike_grad": "set neuron.surrogate of this module",
    "reset_mechanism": "set neuron.reset, 'soft' (by subtraction), 'hard' or 'none', of this module",
    "reset_delay": "set neuron.reset_delay of this module",
    "inhibition": "convert a network without it, or leave the neuron; it has no counterpart in neuron",
    "state_quant": "convert a network without it, or leave the neuron; it has no counterpart in neuron",
}
#: By ``reset_mechanism_val``.
RESETS = ("soft", "hard", "none")


class Step(Carrying):
    """One step of a neuron, with states as arguments or, with ``init_hidden=True``, within."""

    _fixed: ClassVar[Mapping[str, str]] = FIXED
    stays: ClassVar[Tuple[str, ...]] = ("reset_delay", "inhibition", "state_quant")
    #: Names of the states in the order of the arguments.
    _order: Tuple[str, ...]
    init_hidden: bool
    output: bool
    graded_spikes_factor: Tensor

    def _storage(self) -> Dict[str, Any]:
        # no buffers: an empty one is refused by PopTorch, and one that a call replaces as well
        memory: Dict[str, Any] = self.__dict__["_memory"]
        return memory

    def _rest(self, name: str) -> Any:
        return torch.zeros(0, device="cpu")

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_memory", ()):
            self._follow()
            return self._storage()[name]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_memory", ()):
            self._check(name, value)
            self._storage()[name] = value
            self._after(name)
        else:
            super().__setattr__(name, value)

    def reset_mem(self) -> Any:
        """Go to rest, as snnTorch's ``init_leaky()`` and its like do; the states."""
        memory = self._storage()
        for name in memory:
            memory[name] = self._rest(name)
        self._agree()
        states = tuple(memory.values())
        return states if len(states) > 1 else states[0]

    @property
    def spike_grad(self) -> Any:
        """The neuron's surrogate."""
        return self.neuron.surrogate

    def forward(self, input_: Tensor, *states: Optional[Tensor], **named: Optional[Tensor]) -> Any:
        """``(spk, *states)`` after one step; with ``init_hidden`` and without ``output`` the spikes alone."""
        if not any(value is not None for value in (*states, *named.values())):
            self._check_carried()
        if states or named:
            self._take(states, named)
        else:
            self._follow()
        memory, shape = self._storage(), self._kept_shape(input_)
        fits = [memory[name].shape == shape for name in self._states]
        start = None
        if any(fits):
            dtype = torch.float64 if input_.dtype == torch.float64 else torch.float32
            start = {
                ours: memory[name].to(dtype) if fit else input_.new_zeros(shape, dtype=dtype)
                for (name, ours), fit in zip(self._states.items(), fits)
            }
        out, end = self._step(input_.unsqueeze(0), start)
        spk = out.squeeze(0) * self.graded_spikes_factor
        for name, ours in self._states.items():
            memory[name] = end[ours]
        self._keep(spk)
        self._agree()
        if self.init_hidden and not self.output:
            return spk
        return (spk, *[memory[name] for name in self._order if name not in self._beside])

    def _take(self, states: Tuple[Optional[Tensor], ...], named: Mapping[str, Optional[Tensor]]) -> None:
        """The states that are given, for those that are kept."""
        kind = type(self).__name__
        if len(states) > len(self._order):
            raise TypeError(f"{kind} takes an input and {len(self._order)} states, got {len(states)} states")
        entries = {**dict(zip(self._order, states)), **named}
        for name in named:
            if name not in self._order:
                raise TypeError(f"{kind} has no state {name!r}; states: {', '.join(self._order)}")
        entries = {name: value for name, value in entries.items() if value is not None}
        if entries and self.init_hidden:
            what = " or ".join(f"`{name}`" for name in self._order)
            raise TypeError(f"{kind}: {what} should not be passed as an argument while `init_hidden=True`")
        self._follow()
        self._storage().update(entries)

    def _step(self, x: Tensor, start: Optional[Dict[str, Tensor]]) -> Any:
        return self.neuron.run(x, state=start)

    def _kept_shape(self, x: Tensor) -> Sequence[int]:
        """The shape of states that go on; others begin at rest."""
        return x.shape

    def _keep(self, spk: Tensor) -> None:
        """Nothing but the states is kept."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        errors = args[-1]
        value = state_dict.get(prefix + "reset_mechanism_val")
        if isinstance(value, Tensor) and RESETS[int(value)] != self.neuron.reset:
            errors.append(
                f"{prefix}reset_mechanism_val is {int(value)}, which means neuron.reset={RESETS[int(value)]!r}, and it "
                f"is {self.neuron.reset!r} in this network; set it, and load again"
            )
        for name in self._order:  # states, which snnTorch saved before 0.9
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class FedStep(Step):
    """One step of a neuron whose last spikes come back through its layer ``recurrent``."""

    _beside: ClassVar[Tuple[str, ...]] = ("spk",)
    recurrent: Any

    def _step(self, x: Tensor, start: Optional[Dict[str, Tensor]]) -> Any:
        memory, x_t = self._storage(), x[0]
        spk = memory["spk"] if memory["spk"].shape == x_t.shape else torch.zeros_like(x_t)
        fed = self.recurrent(spk)
        if fed.shape != x_t.shape:
            raise ValueError(
                f"{type(self).__name__}: recurrent gives shape {list(fed.shape)}, and the input has {list(x_t.shape)}"
            )
        return self.neuron.run(x, fed.unsqueeze(0), state=start)

    def _keep(self, spk: Tensor) -> None:
        self._storage()["spk"] = spk


class GatedStep(Step):
    """One step of ``SLSTM``: its ``lstm_cell`` has the weights of the gates. As in snnTorch 1.0, states that have not
    the shape of the input begin at rest, so at every step where ``input_size`` is not ``hidden_size``.
    """

    lstm_cell: Any

    def _step(self, x: Tensor, start: Optional[Dict[str, Tensor]]) -> Any:
        memory = x.new_zeros(self._shape(x[0])) if start is None else start["mem"].to(x.dtype)
        gates = [gate.unsqueeze(0) for gate in self._gates(x[0], memory)]
        (spk, _), end = self.neuron.run(*gates, state=start)
        return spk, end

    def _gates(self, x: Tensor, memory: Tensor) -> Sequence[Tensor]:
        cell = self.lstm_cell
        fed = nn.functional.linear(memory, cell.weight_hh, cell.bias_hh)
        return (nn.functional.linear(x, cell.weight_ih, cell.bias_ih) + fed).chunk(4, -1)

    def _shape(self, x: Tensor) -> Sequence[int]:
        return (*x.shape[:-1], self.lstm_cell.hidden_size)


class ConvolvedStep(GatedStep):
    """One step of ``SConv2dLSTM``, whose ``conv`` takes inputs and ``mem`` side by side."""

    conv: Any

    def _gates(self, x: Tensor, memory: Tensor) -> Sequence[Tensor]:
        i, f, o, g = self.conv(torch.cat([x, memory], 1)).chunk(4, 1)
        return i, f, g, o

    def _shape(self, x: Tensor) -> Sequence[int]:
        return (x.shape[0], self.conv.out_channels // 4, *x.shape[2:])

    _kept_shape = _shape


# -- what is converted


PACKAGE = "snntorch._neurons"


class Row(NamedTuple):
    """Ours, its parameters (which have their names), and their states in the order of the call -> ours."""

    build: Callable[..., Neuron]
    params: Tuple[str, ...]
    states: Dict[str, Optional[str]]
    kind: Any = Step


NEURONS: Dict[str, Row] = {
    "Leaky": Row(Leaky, ("beta", "threshold"), {"mem": "v"}),
    "RLeaky": Row(RLeaky, ("beta", "threshold"), {"spk": None, "mem": "v"}, FedStep),
    "Synaptic": Row(SynapticLeaky, ("alpha", "beta", "threshold"), {"syn": "i", "mem": "v"}),
    "RSynaptic": Row(RSynaptic, ("alpha", "beta", "threshold"), {"spk": None, "syn": "i", "mem": "v"}, FedStep),
    "Lapicque": Row(Lapicque, ("R", "C", "time_step", "threshold"), {"mem": "v"}),
    "Alpha": Row(Alpha, ("alpha", "beta", "threshold"), {"syn_exc": "i_exc", "syn_inh": "i_inh", "mem": "v"}),
    "SLSTM": Row(FiringLSTMCell, ("threshold",), {"syn": "syn", "mem": "mem"}, GatedStep),
    "SConv2dLSTM": Row(FiringLSTMCell, ("threshold",), {"syn": "syn", "mem": "mem"}, ConvolvedStep),
}
#: The factory of a surrogate there -> ours, and the names of what it was given, in the order of our arguments.
SURROGATES: Dict[str, Tuple[Any, Tuple[str, ...]]] = {
    "atan": (surrogate.ATan, ("alpha",)),
    "fast_sigmoid": (surrogate.FastSigmoid, ("slope",)),
    "sigmoid": (surrogate.Sigmoid, ("slope",)),
    "straight_through_estimator": (surrogate.StraightThrough, ()),
    "heaviside": (Heaviside, ()),
    "triangular": (Signed, ("threshold",)),
    "spike_rate_escape": (SpikeRateEscape, ("beta", "slope")),
    "SFS": (SparseFastSigmoid, ("slope", "B")),
}


def change(module: Any) -> Optional[Change]:
    """Change of a module: what stands in its place, and its description; None for one that is no neuron."""
    if isinstance(module, Step):
        return None
    kind = type(module)
    if kind.__module__.startswith(PACKAGE) and kind.__name__ in NEURONS:
        return _step(module, NEURONS[kind.__name__])
    neuron = any(base.__module__.startswith(PACKAGE) for base in kind.__mro__)
    if not neuron or kind.__name__ == "RecurrentOneToOne":
        return None
    raise not_converted(kind, PACKAGE, NEURONS)


def _step(module: Any, row: Row) -> Change:
    if module.state_quant:
        raise Left("state_quant rounds its states, which no neuron here does")
    if module.inhibition:
        raise Left("inhibition=True lets one neuron fire for all, and neurons here do not see one another")
    if getattr(module, "max_pool", 0) or getattr(module, "avg_pool", 0):
        raise Left("it pools mem before it fires, which no layer here does")
    if row.kind is GatedStep and has_own_hooks(module.lstm_cell):
        raise Left("its lstm_cell has hooks, which would not be called")
    factor = module.graded_spikes_factor
    graded = isinstance(factor, nn.Parameter) or bool((factor != 1).any())
    reset = RESETS[int(module.reset_mechanism_val)]
    options: Dict[str, Any] = {"reset": reset, "step": "single", "channel_dim": -1, "bounds": None}
    if hasattr(module, "reset_delay"):
        options["reset_delay"] = module.reset_delay
        if not module.reset_delay and graded:
            raise Left("graded_spikes_factor is not 1, and with reset_delay=False it would be divided out of the reset")
        if not module.reset_delay and type(module).__name__ == "RSynaptic":
            raise Left("with reset_delay=False snnTorch's RSynaptic resets the arguments of the call, not its states")
    if bool(module.reset_mechanism_val != _bound_reset(module)):
        raise Left("its reset_mechanism was changed after it was made, which snnTorch records and does not follow")
    values = {name: _floating(getattr(module, name)) for name in row.params}
    options["surrogate"] = _surrogate(module)
    neuron = built("its numbers", row.build, **values, **options)

    def replace() -> Tuple[nn.Module, str]:
        states = {theirs: ours for theirs, ours in row.states.items() if ours is not None}
        made = with_neuron(module, row.kind, neuron, {name: name for name in row.params}, states)
        del made.state_function
        made._order = tuple(row.states)
        made._memory = {name: made._buffers.pop(name) for name in row.states}
        made.instances.append(made)  # as snnTorch's constructor does, for utils.reset
        return made, repr(neuron)

    return replace


def _floating(value: Tensor) -> Tensor:
    """A parameter of a neuron; snnTorch keeps ``beta=1`` as an integer."""
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def _bound_reset(module: Any) -> int:
    """The reset that it was made with."""
    return ("_base_sub", "_base_zero", "_base_int").index(module.state_function.__name__)


def _surrogate(module: Any) -> Surrogate:
    if module.surrogate_disable:
        return NoGradient()
    function = module.spike_grad
    factory = getattr(function, "__qualname__", type(function).__name__).partition(".")[0]
    known = SURROGATES.get(factory) if getattr(function, "__module__", None) == "snntorch.surrogate" else None
    if known is None:
        raise Left(f"no surrogate here is its spike_grad {factory}; see sc.Surrogate for one of your own")
    build, names = known
    # snnTorch's surrogates are functions that remember what their factory was given, and nothing else says it
    closure = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    made: Surrogate = built("the numbers of its spike_grad", build, *[closure[name] for name in names])
    return made
