"""SpikingJelly 2.0: which of its modules a neuron of spikecore computes, with which arguments, and how they are called.

A node keeps what SpikingJelly's tools know of it: memories (``v``), ``step_mode``, ``store_v_seq``, ``reset``, and the
functional form, which is what is written here. Containers give it all steps at once.
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore import surrogate
from spikecore.core.modules import has_own_hooks
from spikecore.core.neuron import Neuron
from spikecore.layers import SequenceDropout, SpikingGRU, SpikingLSTM
from spikecore.neurons import EIF, FEEDBACK, IF, KLIF, LI, LIF, PLIF, QIF, Izhikevich, Synaptic
from spikecore_convert._spikingjelly_layers import ByStepMode
from spikecore_convert._swapped import (
    Carrying,
    Change,
    Left,
    Named,
    Swapped,
    built,
    counterpart,
    not_converted,
    with_neuron,
)

Values = Tuple[Any, ...]
FIXED = {
    "v_reset": "set neuron.reset and neuron.v_reset of this module; for None, neuron.reset = 'soft'",
    "surrogate_function": "set neuron.surrogate of this module",
    "backend": "call sc.set_backend(net, name), whose names are those of spikecore",
}


class Memories(Carrying):
    """A ``MemoryModule``: its memories are the state that spikecore sees."""

    #: To a reader of networks it is one call (:func:`spikecore.graph.read`).
    is_one_call = True
    stays: ClassVar[Tuple[str, ...]] = ()
    _memories: Dict[str, Any]
    _memories_rv: Dict[str, Any]

    def _storage(self) -> Dict[str, Any]:
        return self._memories

    def _rest(self, name: str) -> Any:
        return self._memories_rv[name]

    def reset(self) -> None:
        """Memories are what they were at first."""
        super().reset()  # type: ignore[misc]  # of MemoryModule
        self._agree()


class Node(Memories, ByStepMode):
    """A spiking node. One call of one step or of all steps is one call of the neuron.

    :func:`spikecore.fuse` puts a ``NormNeuron`` in the place of the neuron, which may take a shortcut as well.
    """

    #: For :func:`spikecore.fuse`.
    calls_neuron = True
    _fixed: ClassVar[Mapping[str, str]] = FIXED
    store_v_seq: bool
    v_seq: Optional[Tensor]

    @property
    def v_reset(self) -> Any:
        """None for a soft reset."""
        return self.cell.v_reset if self.cell.reset == "hard" else None

    @property
    def surrogate_function(self) -> Any:
        """The neuron's surrogate."""
        return self.cell.surrogate

    def named_memories(self) -> Any:
        """Memories by name."""
        self._follow()
        yield from self._memories.items()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A call of one step or all steps, by ``step_mode``."""
        self._check_carried()
        self._follow()
        out = super().forward(*args, **kwargs)  # type: ignore[misc]  # of MemoryModule
        self._agree()
        return out

    def materialize_states(self, inputs: Sequence[Tensor], states: Values, step_mode: str) -> Values:
        """States unchanged: numbers become tensors within the call, and rest needs none."""
        return states

    def single_step_functional_forward(self, inputs: Sequence[Tensor], states: Values, **_: Any) -> Any:
        """``((spikes,), memories)`` of one step ``[*N]``."""
        (out,), after = self.multi_step_functional_forward([x.unsqueeze(0) for x in inputs], states)
        return (out.squeeze(0),), after

    def multi_step_functional_forward(self, inputs: Sequence[Tensor], states: Values, **_: Any) -> Any:
        """``((spikes,), memories)`` of all steps ``[T, *N]``."""
        out, after, _trace = self._run(inputs, states)
        return (out,), after

    def multi_step_forward(self, *inputs: Tensor) -> Tensor:
        """Spikes of all steps; the memories are those of the last one."""
        out, after, trace = self._run(inputs, tuple(self._memories[name] for name in self._states), self.store_v_seq)
        self._memories.update(zip(self._states, after))
        if self.store_v_seq:
            self.v_seq = trace
        return out

    def all_steps(self, x_seq: Tensor) -> Tensor:
        """A call of all steps, whatever ``step_mode`` is."""
        self._check_carried()
        self._follow()
        out = self.multi_step_forward(x_seq)
        self._agree()
        return out

    def _run(self, inputs: Sequence[Tensor], memories: Values, stored: bool = False) -> Tuple[Tensor, Values, Any]:
        state = self._start(inputs[0], memories)
        if stored:
            out, end, trace = self.neuron.run(*inputs, state=state, record=("v",))
            return out, tuple(end[name] for name in self._states.values()), trace["v"]
        out, end = self.neuron.run(*inputs, state=state)
        return out, tuple(end[name] for name in self._states.values()), None

    def _start(self, x: Tensor, memories: Values) -> Optional[Dict[str, Tensor]]:
        """The neuron's state; None at rest. A memory of another shape is put to rest, as SpikingJelly does."""
        start = dict(zip(self._states, memories))
        shape, dtype = x.shape[1:], torch.float64 if x.dtype == torch.float64 else torch.float32
        rest = self._memories_rv
        for name, value in start.items():
            if isinstance(value, Tensor) and value.shape != shape:
                start[name] = rest[name]
        if all(not isinstance(value, Tensor) and value == rest[name] for name, value in start.items()):
            return None
        return {
            self._states[name]: value.to(x.device, dtype)
            if isinstance(value, Tensor)
            else torch.full(shape, float(value), dtype=dtype, device=x.device)
            for name, value in start.items()
        }

    def extra_repr(self) -> str:
        """The neuron says the rest."""
        return f"step_mode={self.step_mode}"


class Mask(Memories):
    """A dropout that keeps its mask. SpikingJelly draws it, and it is the state of a ``SequenceDropout``, too, so that
    ``sc.reset`` and the steps of ``sc.training_model`` have another one drawn.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of SpikingJelly's dropout, with the neuron's state kept the same."""
        self._follow()
        out = super().forward(*args, **kwargs)  # type: ignore[misc]  # of MemoryModule
        self._agree()
        return out


class ReadOut(Named):
    """``NonSpikingLIFNode``: potentials of all steps, from rest, and what ``decode`` makes of them."""

    stays: ClassVar[Tuple[str, ...]] = ()
    decode: Optional[str]
    v: Tensor

    def forward(self, x_seq: Tensor) -> Any:
        """``[T, *N]``; without ``decode`` a list of the steps."""
        v = self.neuron(x_seq)
        self.v = v[-1]
        if self.decode == "max-mem":
            return v.max(0).values
        if self.decode == "max-abs-mem":
            high, low = v.max(0).values, v.min(0).values
            return high * (high.abs() > low.abs()) + low * (high.abs() <= low.abs())
        if self.decode == "mean-mem":
            return v.mean(0)
        return v[-1] if self.decode == "last_mem" else list(v.unbind(0))


class Gated(Named):
    """``SpikingLSTM`` or ``SpikingGRU`` of one layer: all steps from rest or from states, which it gives back."""

    #: To a reader of networks it is one call.
    is_one_call = True
    stays: ClassVar[Tuple[str, ...]] = ()
    _fixed: ClassVar[Mapping[str, str]] = {"cells": "its layers are neuron.linear and neuron.recurrent.linear"}

    def forward(self, x: Tensor, states: Any = None) -> Any:
        """``[T, B, input_size]``: the output, and ``(h, c)`` or ``h``, each ``[1, B, hidden_size]``."""
        (inner,) = self.neuron.recurrent.neuron.states  # c of the LSTM, and h of the GRU, which is its output, too
        start = None
        if states is not None:
            last, *others = [states] if inner == "h" else states
            start = {inner: (others or [last])[0].squeeze(0), FEEDBACK: last.squeeze(0)}
        y, end = self.neuron.run(x, state=start)
        last = end[FEEDBACK].unsqueeze(0)
        return y, (last if inner == "h" else (last, end[inner].unsqueeze(0)))


class Steps(Swapped):
    """A container that calls its modules step by step: nodes get all steps at once, others one step after the other."""

    stateful = True
    step_mode = "m"
    #: The dimension of time.
    _time = 0

    def forward(self, x_seq: Tensor) -> Any:
        """Forward pass of the container, module after module instead of step after step."""
        if self.step_mode == "s" or not self.stateful:
            return super().forward(x_seq)  # type: ignore[misc]  # of the container
        y = x_seq.movedim(self._time, 0)
        for module in self:  # type: ignore[attr-defined]  # an nn.Sequential
            plain = isinstance(module, Node) and not module.store_v_seq
            if plain and not has_own_hooks(module):
                y = module.all_steps(y)
            else:
                y = torch.stack([module(x_t) for x_t in y.unbind(0)])
        return y.movedim(0, self._time)


# -- what is converted

PACKAGE = "spikingjelly.activation_based."


class Row(NamedTuple):
    """Ours, and their attributes by our names."""

    build: Callable[..., Neuron]
    #: Their attribute -> our argument, numbers that can be set later.
    numbers: Dict[str, str] = {}
    #: Their attributes that are options of ours, of the same name.
    options: Tuple[str, ...] = ()
    #: Their parameter, ours of the same name.
    learnt: Tuple[str, ...] = ()
    states: Dict[str, str] = {"v": "v"}


_LEAK = {"tau": "tau"}
_REST = {"tau": "tau", "v_rest": "v_rest"}
NODES: Dict[str, Row] = {
    "IFNode": Row(IF),
    "LIFNode": Row(LIF, _LEAK, ("decay_input",)),
    "ParametricLIFNode": Row(PLIF, {}, ("decay_input",), ("w",)),
    "KLIFNode": Row(KLIF, _LEAK, ("decay_input", "scale_reset"), ("k",)),
    "QIFNode": Row(QIF, {**_REST, "v_c": "v_c", "a0": "a0"}),
    "EIFNode": Row(EIF, {**_REST, "delta_T": "delta_t", "theta_rh": "theta_rh"}),
    "IzhikevichNode": Row(
        Izhikevich,
        {**_REST, "v_c": "v_c", "a0": "a0", "w_rest": "w_rest", "tau_w": "tau_w", "a": "a", "b": "b"},
        states={"v": "v", "w": "w"},
    ),
    "CUBALIFNode": Row(Synaptic, {"c_decay": "alpha", "v_decay": "beta"}, states={"v": "v", "c": "i"}),
}
#: Theirs -> ours, and their attributes in the order of our arguments.
SURROGATES: Dict[str, Tuple[Any, Tuple[str, ...]]] = {
    "ATan": (surrogate.ATan, ("alpha",)),
    "Sigmoid": (surrogate.Sigmoid, ("alpha",)),
    "SuperSpike": (surrogate.SuperSpike, ("alpha",)),
    "PiecewiseQuadratic": (surrogate.PiecewiseQuadratic, ("alpha",)),
    "PiecewiseExp": (surrogate.PiecewiseExp, ("alpha",)),
    "SoftSign": (surrogate.SoftSign, ("alpha",)),
    "Erf": (surrogate.Erf, ("alpha",)),
    "Rect": (surrogate.Rectangular, ("alpha",)),
    "PiecewiseLeakyReLU": (surrogate.PiecewiseLeakyReLU, ("w", "c")),
    "NonzeroSignLogAbs": (surrogate.NonzeroSignLogAbs, ("alpha",)),
    "SquarewaveFourierSeries": (surrogate.SquarewaveFourier, ("n", "T_period")),
    "S2NN": (surrogate.S2NN, ("alpha", "beta")),
    "QPseudoSpike": (surrogate.QPseudoSpike, ("alpha",)),
    "LeakyKReLU": (surrogate.LeakyKReLU, ("leak", "k")),
    "FakeNumericalGradient": (surrogate.FakeNumericalGradient, ("alpha",)),
    "LogTailedReLU": (surrogate.LogTailedReLU, ("alpha",)),
    "DeterministicPass": (surrogate.StraightThrough, ()),
}
#: Containers that call their modules step by step -> the dimension of time.
STEPPING = {"MultiStepContainer": 0, "TLastMultiStepContainer": -1, "StepModeContainer": 0}
#: Layers of gates -> ours.
GATED: Dict[str, Callable[..., Any]] = {"SpikingLSTM": SpikingLSTM, "SpikingGRU": SpikingGRU}
#: Dropouts with a mask for each sequence.
DROPOUTS = ("Dropout", "Dropout2d")
#: Neurons that are layers here.
LAYERS = ("PSN", "SlidingPSN")
#: Modules that keep something between calls and are no neurons: outputs that are fed back to the nodes within, and
#: weights.
RUN_AS_BEFORE = ("ElementWiseRecurrentContainer", "LinearRecurrentContainer", "DropConnectLinear")


def change(module: Any) -> Optional[Change]:
    """Change of a module: what stands in its place, and its description; None for one without state."""
    if isinstance(module, (Node, Mask, ReadOut, Gated, Steps)):
        return None
    kind = type(module)
    name = kind.__name__ if kind.__module__.startswith(PACKAGE) else ""
    if name in NODES:
        return _node(module, NODES[name])
    if name == "NonSpikingLIFNode":
        return _read_out(module)
    if name in GATED:
        return _gated(module, GATED[name])
    if name in DROPOUTS:
        return _mask(module)
    if name in STEPPING:
        return _steps(module, STEPPING[name])
    if name in LAYERS:
        raise Left(f"sc.layers.{name} has its equations and takes its state_dict, put it there")
    if name.endswith("Cell") and name[:-4] in GATED:
        raise Left(f"a cell takes one step, and {name[:-4]} here all; make it rnn.{name[:-4]} with num_layers=1")
    if name in RUN_AS_BEFORE or not _is_neuron_or_has_state(module):
        return None
    raise not_converted(kind, PACKAGE, NODES)


def _is_neuron_or_has_state(module: Any) -> bool:
    theirs = [base for base in type(module).__mro__ if base.__module__.startswith(PACKAGE)]
    modules = (PACKAGE + "neuron", PACKAGE + "rnn")
    return any(base.__name__ == "MemoryModule" or base.__module__.startswith(modules) for base in theirs)


def _node(module: Any, row: Row) -> Change:
    numbers = {"v_threshold": "threshold", **row.numbers}
    if getattr(module, "_neuron_precision", None) is not None:
        raise Left("it has a precision of its own for states, which are float32 or float64 here")
    arguments: Dict[str, Any] = {ours: getattr(module, theirs) for theirs, ours in numbers.items()}
    arguments.update({name: getattr(module, name) for name in row.options})
    soft = module.v_reset is None
    arguments.update(reset="soft" if soft else "hard", v_reset=0.0 if soft else module.v_reset)
    arguments.update(detach_reset=module.detach_reset, surrogate=_surrogate(module.surrogate_function))
    # "single": it carries its state until it is reset, as nodes do
    neuron = built("its numbers", row.build, **arguments, step="single")
    names = {**numbers, **{name: name for name in (*row.options, *row.learnt, "detach_reset")}}

    def replace() -> Tuple[nn.Module, str]:
        return with_neuron(module, Node, neuron, names, row.states, row.learnt), _in_words(neuron, module)

    return replace


def _mask(module: Any) -> Change:
    def replace() -> Tuple[nn.Module, str]:
        dropout = SequenceDropout(module.p, step="single")
        return with_neuron(module, Mask, dropout, {"p": "p"}, {"mask": "mask"}), _in_words(dropout, module)

    return replace


def _in_words(neuron: nn.Module, module: Any) -> str:
    """Description of a module's neuron, and of the steps that a call takes: the neuron itself always carries state."""
    text = repr(neuron).replace(", step='single'", "")
    takes = "all steps" if module.step_mode == "m" else "one step"
    return f"{text}; step_mode={module.step_mode!r}: a call takes {takes}"


def _surrogate(function: Any) -> surrogate.Surrogate:
    kind = type(function)
    known = SURROGATES.get(kind.__name__) if kind.__module__ == PACKAGE + "surrogate" else None
    if known is None:
        raise Left(f"no surrogate here is its {kind.__name__}; see sc.Surrogate for one of your own")
    if not getattr(function, "spiking", True):
        raise Left("its surrogate has spiking=False, which makes the output smooth, and neurons here always spike")
    build, names = known
    values = [getattr(function, name) for name in names]
    if any(isinstance(value, torch.Tensor) for value in values):
        raise Left("its surrogate has a tensor for a parameter, which is a number here")
    made: surrogate.Surrogate = build(*values)
    return made


def _read_out(module: Any) -> Change:
    neuron = built("its numbers", LI, tau=module.tau)

    def replace() -> Tuple[nn.Module, str]:
        return with_neuron(module, ReadOut, neuron, {"tau": "tau"}, {}), repr(neuron)

    return replace


def _gated(module: Any, build: Callable[..., Any]) -> Change:
    if module.num_layers != 1 or module.bidirectional:
        raise Left(
            f"it has num_layers={module.num_layers} and bidirectional={module.bidirectional}, and a layer here has one "
            "direction and one layer; make it of several with num_layers=1"
        )
    (cell,) = module.cells
    derivative, other = _surrogate(cell.surrogate_function1), cell.surrogate_function2
    if other is not None and _surrogate(other) != derivative:
        raise Left("its gates have two surrogates, and those of a layer here have one")
    if any(map(has_own_hooks, (module.cells, cell))):
        raise Left("its cells have hooks, which would not be called")

    def replace() -> Tuple[nn.Module, str]:
        layer = build(module.input_size, module.hidden_size, bias=module.bias, surrogate=derivative)
        layer.linear, layer.recurrent.linear = cell.linear_ih, cell.linear_hh
        prefixes = {"cells.0.linear_ih.": "linear.", "cells.0.linear_hh.": "recurrent.linear."}
        names = {name: prefixes[name[:18]] + name[18:] for name in module.state_dict()}
        words = f"{build.__name__}({module.input_size}, {module.hidden_size}, surrogate={derivative!r})"
        return with_neuron(module, Gated, layer, names, {}), words

    return replace


def _steps(module: nn.Sequential, time: int) -> Optional[Change]:
    parts = list(module)
    # the order of calls matters to a module that is called twice in a step
    if len(set(map(id, parts))) < len(parts) or not getattr(module, "stateful", True):
        return None

    def replace() -> Tuple[nn.Module, str]:
        made = counterpart(module, Steps)
        made._time = time
        return made, "all steps at once for the nodes in it"

    return replace
