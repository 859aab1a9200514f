"""SpikingJelly 2.0: which of its modules a neuron of spikecore computes, and with which arguments."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import nn

from spikecore import surrogate
from spikecore._convert._jelly_node import Node, ReadOut, Steps
from spikecore._convert._report import Left
from spikecore._convert._swapped import become, swapped
from spikecore.neuron import Neuron
from spikecore.neurons import EIF, IF, KLIF, LI, LIF, PLIF, QIF, Izhikevich, Synaptic

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
#: What keeps something between calls and is no neuron: outputs that are fed back to the nodes within, and masks.
RUN_AS_BEFORE = (
    *("ElementWiseRecurrentContainer", "LinearRecurrentContainer"),
    *("Dropout", "Dropout2d", "DropConnectLinear"),
)


def change(module: Any) -> Optional[Callable[[], str]]:
    """How a module becomes one of ours; None for one without state."""
    if isinstance(module, (Node, ReadOut, Steps)):
        return None
    kind = type(module)
    ours = kind.__module__.startswith(PACKAGE)
    name = kind.__name__ if ours else ""
    if name in NODES:
        return _node(module, NODES[name])
    if name == "NonSpikingLIFNode":
        return _read_out(module)
    if name in STEPPING:
        return _steps(module, STEPPING[name])
    if name in RUN_AS_BEFORE or not _is_neuron_or_has_state(module):
        return None
    base = next((base.__name__ for base in kind.__mro__ if base.__name__ in NODES), None)
    if not ours and base is not None:
        raise Left(f"a class of its own, which may compute something else than the {base} that it inherits")
    raise Left("no neuron here has its equations")


def _is_neuron_or_has_state(module: Any) -> bool:
    theirs = [base for base in type(module).__mro__ if base.__module__.startswith(PACKAGE)]
    return any(base.__name__ == "MemoryModule" or base.__module__.startswith(PACKAGE + "neuron") for base in theirs)


def _node(module: Any, row: Row) -> Callable[[], str]:
    numbers = {"v_threshold": "threshold", **row.numbers}
    if getattr(module, "_neuron_precision", None) is not None:
        raise Left("it has a precision of its own for states, which are float32 or float64 here")
    given: Dict[str, Any] = {ours: getattr(module, theirs) for theirs, ours in numbers.items()}
    given.update({name: getattr(module, name) for name in row.options})
    soft = module.v_reset is None
    given.update(reset="soft" if soft else "hard", v_reset=0.0 if soft else module.v_reset)
    given.update(detach_reset=module.detach_reset, surrogate=_surrogate(module.surrogate_function))
    # "single": it carries its state until it is reset, as nodes do
    neuron = _built(row.build, {**given, "step": "single"})
    names = {**numbers, **{name: name for name in (*row.options, *row.learnt, "detach_reset")}}

    def replace() -> str:
        for name in row.learnt:
            neuron.register_parameter(name, getattr(module, name))
        become(module, Node, neuron, names, row.states)
        return repr(neuron)

    return replace


def _built(build: Callable[..., Neuron], given: Dict[str, Any]) -> Neuron:
    try:
        return build(**given)
    except (TypeError, ValueError) as error:
        raise Left(f"its numbers are refused here: {error}") from error


def _surrogate(function: Any) -> surrogate.Surrogate:
    kind = type(function)
    known = SURROGATES.get(kind.__name__) if kind.__module__ == PACKAGE + "surrogate" else None
    if known is None:
        raise Left(f"no surrogate here is its {kind.__name__}; see sc.surrogate.Surrogate for one of your own")
    if not getattr(function, "spiking", True):
        raise Left("its surrogate has spiking=False, which makes the output smooth, and neurons here always spike")
    build, names = known
    values = [getattr(function, name) for name in names]
    if any(isinstance(value, torch.Tensor) for value in values):
        raise Left("its surrogate has a tensor for a parameter, which is a number here")
    made: surrogate.Surrogate = build(*values)
    return made


def _read_out(module: Any) -> Callable[[], str]:
    neuron = _built(LI, {"tau": module.tau})

    def replace() -> str:
        become(module, ReadOut, neuron, {"tau": "tau"}, {})
        return repr(neuron)

    return replace


def _steps(module: nn.Sequential, time: int) -> Optional[Callable[[], str]]:
    parts = list(module)
    # the order of calls matters to a module that is called twice in a step
    if len(set(map(id, parts))) < len(parts) or not getattr(module, "stateful", True):
        return None

    def replace() -> str:
        was: Any = type(module)
        module.__class__ = swapped(Steps, was)
        module.__dict__["_time"] = time
        return "all steps at once for the nodes in it"

    return replace
