"""snnTorch 1.0: which of its modules a neuron of spikecore computes, and with which arguments."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore import surrogate
from spikecore._convert import _snn_neurons
from spikecore._convert._report import Left
from spikecore._convert._snn_step import RESETS, FedStep, Step
from spikecore._convert._swapped import become
from spikecore.neuron import Neuron
from spikecore.neurons import Alpha, Lapicque, Leaky, SynapticLeaky


class Row(NamedTuple):
    """Ours, its parameters (which have their names), and their states in the order of the call -> ours."""

    build: Callable[..., Neuron]
    params: Tuple[str, ...]
    states: Dict[str, Optional[str]]


NEURONS: Dict[str, Row] = {
    "Leaky": Row(Leaky, ("beta", "threshold"), {"mem": "v"}),
    "RLeaky": Row(_snn_neurons.RLeaky, ("beta", "threshold"), {"spk": None, "mem": "v"}),
    "Synaptic": Row(SynapticLeaky, ("alpha", "beta", "threshold"), {"syn": "i", "mem": "v"}),
    "RSynaptic": Row(_snn_neurons.RSynaptic, ("alpha", "beta", "threshold"), {"spk": None, "syn": "i", "mem": "v"}),
    "Lapicque": Row(Lapicque, ("R", "C", "time_step", "threshold"), {"mem": "v"}),
    "Alpha": Row(Alpha, ("alpha", "beta", "threshold"), {"syn_exc": "i_exc", "syn_inh": "i_inh", "mem": "v"}),
}
#: The factory of a surrogate there -> ours, and the names of what it was given, in the order of our arguments.
SURROGATES: Dict[str, Tuple[Any, Tuple[str, ...]]] = {
    "atan": (surrogate.ATan, ("alpha",)),
    "fast_sigmoid": (surrogate.FastSigmoid, ("slope",)),
    "sigmoid": (surrogate.Sigmoid, ("slope",)),
    "straight_through_estimator": (surrogate.StraightThrough, ()),
    "heaviside": (_snn_neurons.Heaviside, ()),
    "triangular": (_snn_neurons.Signed, ("threshold",)),
    "spike_rate_escape": (_snn_neurons.SpikeRateEscape, ("beta", "slope")),
    "SFS": (_snn_neurons.SparseFastSigmoid, ("slope", "B")),
}


def change(module: Any) -> Optional[Callable[[], str]]:
    """How a module becomes one of ours; None for one that is no neuron."""
    if isinstance(module, Step):
        return None
    kind = type(module)
    ours = kind.__module__.startswith("snntorch._neurons")
    if ours and kind.__name__ in NEURONS:
        return _step(module, NEURONS[kind.__name__])
    bases = [base for base in kind.__mro__ if base.__module__.startswith("snntorch._neurons")]
    if not bases or kind.__name__ == "RecurrentOneToOne":
        return None
    if not ours and bases[0].__name__ in NEURONS:
        raise Left(
            f"a class of its own, which may compute something else than the {bases[0].__name__} that it inherits"
        )
    raise Left("no neuron here has its equations")


def _step(module: Any, row: Row) -> Callable[[], str]:
    if module.state_quant:
        raise Left("state_quant rounds its states, which no neuron here does")
    if module.inhibition:
        raise Left("inhibition=True lets one neuron fire for all, and neurons here do not see one another")
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
    try:
        neuron = row.build(**values, **options)
    except (TypeError, ValueError) as error:
        raise Left(f"its numbers are refused here: {error}") from error

    def replace() -> str:
        states = {theirs: ours for theirs, ours in row.states.items() if ours is not None}
        kind = Step if len(states) == len(row.states) else FedStep
        module.__dict__.pop("state_function", None)
        module.__dict__["_order"] = tuple(row.states)
        module.__dict__["_memory"] = {name: module._buffers.pop(name) for name in row.states}
        become(module, kind, neuron, {name: name for name in row.params}, states)
        return repr(neuron)

    return replace


def _floating(value: Tensor) -> Tensor:
    """A parameter of a neuron; snnTorch keeps ``beta=1`` as an integer."""
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def _bound_reset(module: Any) -> int:
    """The reset that it was made with."""
    return ("_base_sub", "_base_zero", "_base_int").index(module.state_function.__name__)


def _surrogate(module: Any) -> surrogate.Surrogate:
    if module.surrogate_disable:
        return _snn_neurons.NoGradient()
    function = module.spike_grad
    factory = getattr(function, "__qualname__", type(function).__name__).partition(".")[0]
    known = SURROGATES.get(factory) if getattr(function, "__module__", None) == "snntorch.surrogate" else None
    if known is None:
        raise Left(f"no surrogate here is its spike_grad {factory}; see sc.surrogate.Surrogate for one of your own")
    build, names = known
    # snnTorch's surrogates are functions that remember what their factory was given, and nothing else says it
    given = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    try:
        made: surrogate.Surrogate = build(*[given[name] for name in names])
    except (TypeError, ValueError) as error:
        raise Left(f"the numbers of its spike_grad are refused here: {error}") from error
    return made
