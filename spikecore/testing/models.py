"""The neurons that cases are made of: each with its oracle, its parameters, and the inputs that make it fire.

Every number is one that float32 holds exactly, so that no difference comes from writing it down.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import FunctionType, SimpleNamespace
from typing import Any, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import nn

import spikecore as sc
from spikecore.core.neuron import Neuron
from spikecore.testing._oracle import Array, Derivative, Next, Oracle, Value, ops
from spikecore.testing._oracle import neurons as oracle
from spikecore.testing._oracle.rules import EXACT
from spikecore.testing._oracle.surrogates import Arctan

ALL_RESETS = ("hard", "soft", "none")
_RESETS = ("hard", "soft")
QUARTERS = tuple(k / 4 for k in range(-1, 5))
HALVES = tuple(k / 2 for k in range(-1, 6))


def single(**values: float) -> Mapping[str, float]:
    """Numbers rounded to what float32 holds."""
    return {name: float(np.float32(value)) for name, value in values.items()}


@dataclass(frozen=True)
class Model:
    """A neuron as a case sees it."""

    name: str
    neuron: Type[Neuron]
    oracle: Type[Oracle]
    params: Mapping[str, float]
    #: Margin inputs are uniform in this.
    drive: Tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)
    resets: Tuple[str, ...] = ALL_RESETS
    #: Parameters and input levels with which nothing is rounded; the steps for which that holds, and the resets.
    exact_params: Mapping[str, float] = field(default_factory=dict)
    exact_levels: Tuple[float, ...] = ()
    exact_steps: int = 12
    exact_resets: Tuple[str, ...] = ALL_RESETS
    #: Made of + - * / and comparisons alone, so every bit of it is fixed.
    arithmetic: bool = True
    #: Kind of each output, by its name in the table of tolerances.
    outputs: Tuple[str, ...] = ("spikes",)
    #: The surrogate of a drawn neuron; others have that of a configuration.
    surrogate: Any = None

    @property
    def fires(self) -> bool:
        """True if there are spikes among the outputs."""
        return "spikes" in self.outputs

    def twin(self, reset: str, surrogate: Optional[Derivative] = None, detach: bool = False) -> Oracle:
        """The oracle of this neuron with this reset."""
        return self.oracle(surrogate, reset=reset, detach_reset=detach, **self.options)

    def build(
        self,
        backend: str,
        reset: str,
        values: Mapping[str, Any],
        *,
        surrogate: Optional[sc.Surrogate] = None,
        detach: bool = False,
        learn: Sequence[str] = (),
        **options: Any,
    ) -> Neuron:
        """The neuron, with numbers or tensors as parameters, those in ``learn`` learnable."""
        arguments = {**self.options, **options, **values}
        if len(self.resets) > 1:
            arguments["reset"] = reset
        w = arguments.pop("w", None)
        neuron: Any = self.neuron(
            surrogate=surrogate,
            detach_reset=detach,
            backend=backend,
            **arguments,
            learn=tuple(n for n in learn if n != "w"),
        )
        if w is not None:
            # PLIF takes tau and stores w, a rounding apart
            neuron.w = nn.Parameter(torch.as_tensor(w, dtype=torch.float32)) if "w" in learn else w
        made: Neuron = neuron
        return made


def as_written(neuron: Type[Neuron], **facts: Any) -> Type[Oracle]:
    """The oracle of a neuron of the suite's own: its equations, which compute with NumPy's numbers in the place of the
    language's. facts: what the class does not say, such as ``outputs``.
    """
    written: Any = neuron.dynamics
    space = {**written.__globals__, "sc": SimpleNamespace(ops=ops), "torch": ops}
    equations = FunctionType(written.__code__, space, None, None, written.__closure__)

    def step(self: Any, s: Any, p: Any, *x: Value) -> Next:
        inputs = SimpleNamespace(**dict(zip(neuron.inputs, x))) if len(x) > 1 else x[0]
        outputs, following = equations(SimpleNamespace(spike=self.fire, surrogate=Arctan()), inputs, s, p)
        return outputs if isinstance(outputs, tuple) else (outputs,), following

    declared = {"inputs": neuron.inputs, "rest": neuron.states, "params": tuple(neuron.params), "step": step}
    return type(neuron.__name__, (Oracle,), {**declared, "reset_states": neuron.reset_states, **facts})


def spread(value: float, shape: Sequence[int], amount: float = 0.15) -> Array:
    """Values around ``value``, one per element of ``shape``, all different, each held by float32."""
    count = int(np.prod(shape))
    steps = np.linspace(-amount, amount, count) if count > 1 else np.zeros(count)
    return np.asarray(np.float32(value * (1 + steps)) if value else np.float32(steps), float).reshape(tuple(shape))


#: Changed options, and the drive of a neuron whose input does not decay.
_NO_DECAY: Mapping[str, Any] = {"decay_input": False}
_PROMPT: Mapping[str, Any] = {"options": {"reset_delay": False}, "resets": _RESETS, "exact_resets": _RESETS}
_ONE_RESET: Mapping[str, Any] = {"resets": ("none",), "exact_resets": ("none",)}
_INEXACT: Mapping[str, Any] = {"arithmetic": False}
_WITHOUT_TIES: Mapping[str, Any] = {"resets": ("none",), "exact_resets": (), "arithmetic": False}


def described(
    neuron: Type[Neuron],
    name: str,
    drive: Tuple[float, float],
    params: str,
    exact: str = "",
    *,
    twin: Optional[Type[Oracle]] = None,
    **more: Any,
) -> Model:
    """A model whose parameters, and those of exact inputs, are written as ``tau=2.7 threshold=0.9``. twin: its oracle,
    by default the one of the same name.
    """

    def numbers(text: str) -> Mapping[str, float]:
        return {key: float(value) for key, _, value in (part.partition("=") for part in text.split())}

    twin = getattr(oracle, neuron.__name__) if twin is None else twin
    return Model(name, neuron, twin, single(**numbers(params)), drive, exact_params=numbers(exact), **more)


_LIF = described(
    sc.LIF, "lif", (-1.0, 4.5), "tau=2.7 threshold=0.9 v_reset=0.1", "tau=2 threshold=1 v_reset=0", exact_levels=HALVES
)
_PLIF = described(
    sc.PLIF, "plif", (-1.0, 4.5), "w=-0.4 threshold=0.9 v_reset=0.1", "w=0 threshold=1 v_reset=0",
    exact_levels=HALVES, **_INEXACT,
)  # fmt: skip
_KLIF = described(
    sc.KLIF, "klif", (-1.0, 3.5), "tau=2.7 threshold=0.9 v_reset=0.1 k=1.3", "tau=2 threshold=1 v_reset=0 k=2",
    exact_levels=QUARTERS,
)  # fmt: skip
_QUADRATIC = "tau=2.3 v_c=0.7 a0=0.9 v_rest=0.05 threshold=1.1 v_reset=-0.2"
_EXACT_QUADRATIC = "tau=2 v_c=0.5 a0=0.5 v_rest=0 threshold=1 v_reset=0"
_ALIF = described(
    sc.ALIF, "alif", (-1.0, 5.0), "tau=2.7 threshold=0.9 v_reset=0.1 rho=0.8 beta=0.3",
    "tau=2 threshold=1 v_reset=0 rho=0.5 beta=0.25", exact_levels=HALVES, exact_steps=8,
)  # fmt: skip
_LI = described(
    sc.LI, "li", (-2.0, 3.0), "tau=2.7 v_rest=0.1", "tau=2 v_rest=0", exact_levels=HALVES, outputs=("output",),
    **_ONE_RESET,
)  # fmt: skip
_LEAKY = described(
    sc.Leaky, "leaky", (-0.4, 1.2), "beta=0.85 threshold=1.1", "beta=0.5 threshold=1", exact_levels=QUARTERS
)
_SYNAPTIC_LEAKY = described(
    sc.SynapticLeaky, "synaptic-leaky", (-0.6, 1.0), "alpha=0.6 beta=0.7 threshold=1.1",
    "alpha=0.5 beta=0.5 threshold=1", exact_levels=QUARTERS,
)  # fmt: skip
_TERNARY = described(
    sc.TernaryLIF, "ternary", (-4.0, 4.5), "tau=2.7 threshold=0.9 v_reset=0.1", "tau=2 threshold=1 v_reset=0",
    exact_levels=HALVES,
)  # fmt: skip

_ILIF = described(
    sc.ILIF, "ilif", (-1.0, 3.0), "beta=0.4 threshold=0.9", "beta=0.5 threshold=1", exact_levels=QUARTERS,
    outputs=("output",), **_ONE_RESET,
)  # fmt: skip


def _without_decay(
    model: Model, drive: Tuple[float, float], levels: Tuple[float, ...] = QUARTERS, **more: Any
) -> Model:
    """The neuron whose input does not decay."""
    return replace(model, name=f"{model.name}-nodecay", drive=drive, options=_NO_DECAY, exact_levels=levels, **more)


_TUNED: Tuple[Model, ...] = (
    described(sc.IF, "if", (-0.6, 1.0), "threshold=1.1 v_reset=-0.2", "threshold=1 v_reset=0", exact_levels=QUARTERS),
    _LIF,
    _without_decay(_LIF, (-0.4, 1.4)),
    _PLIF,
    _without_decay(_PLIF, (-0.4, 1.4)),
    _KLIF,
    _without_decay(
        _KLIF, (-0.6, 1.0), params={**_KLIF.params, **single(k=1.2)}, exact_params={**_KLIF.exact_params, "k": 1.0}
    ),
    replace(_KLIF, name="klif-scaled", options={"scale_reset": True}),
    described(sc.QIF, "qif", (-2.0, 3.0), _QUADRATIC, _EXACT_QUADRATIC, exact_levels=(0.0, 2.0, 4.0), exact_steps=3),
    # the potential is 0 after every step, where exp is exact
    described(
        sc.EIF, "eif", (-2.0, 2.5), "tau=2.3 delta_t=0.9 theta_rh=0.7 v_rest=0.05 threshold=1.1 v_reset=-0.2",
        "tau=2 delta_t=1 theta_rh=0 v_rest=0 threshold=1 v_reset=0", exact_levels=(-1.0, 1.0), exact_resets=_RESETS,
        **_INEXACT,
    ),
    described(
        sc.Izhikevich, "izhikevich", (-2.0, 3.0), f"{_QUADRATIC} w_rest=0.1 tau_w=3.1 a=0.3 b=0.2",
        f"{_EXACT_QUADRATIC} w_rest=0 tau_w=2 a=0.5 b=0.25", exact_levels=(0.0, 2.0, 4.0), exact_steps=3,
    ),
    described(
        sc.Synaptic, "synaptic", (-0.8, 1.0), "alpha=0.6 beta=0.7 threshold=1.1 v_reset=-0.2",
        "alpha=0.5 beta=0.5 threshold=1 v_reset=0", exact_levels=QUARTERS,
    ),
    _ALIF,
    _without_decay(_ALIF, (-0.4, 1.5)),
    _LI,
    _without_decay(_LI, (-1.0, 1.5)),
    _LEAKY,
    replace(_LEAKY, name="leaky-prompt", **_PROMPT),
    _SYNAPTIC_LEAKY,
    replace(_SYNAPTIC_LEAKY, name="synaptic-leaky-prompt", **_PROMPT),
    # the logarithm of the square is twice the other one to the bit, so tau is 2
    described(
        sc.Alpha, "alpha", (-1.0, 2.5), "alpha=0.85 beta=0.7 threshold=0.6", "alpha=0.5 beta=0.25 threshold=0.25",
        exact_levels=QUARTERS, exact_steps=6, **_INEXACT,
    ),
    described(
        sc.Lapicque, "lapicque", (-0.8, 3.0), "R=1.3 C=1.7 time_step=0.6 threshold=0.9",
        "R=2 C=1 time_step=1 threshold=1", exact_levels=QUARTERS,
    ),
    described(sc.CLIF, "clif", (-0.5, 1.6), "tau=2.3 threshold=0.9", **_WITHOUT_TIES),
    # a sigmoid of 0 is exact
    described(
        sc.GLIF, "glif", (-0.5, 1.6), "w_alpha=0.3 w_beta=-0.2 w_gamma=0.4 w_tau=0.5 w_leak=-1.5 w_threshold=0.2 "
        "w_drop=-0.3 w_conductance=0.6", "w_alpha=0 w_beta=0 w_gamma=0 w_tau=0 w_leak=0 w_threshold=0 w_drop=0 "
        "w_conductance=0", exact_levels=(0.0, 1.0, 2.0), exact_steps=4, **_ONE_RESET, **_INEXACT,
    ),
    described(
        sc.TCLIF, "tclif", (-0.6, 1.2), "c1=0.4 c2=-0.3 gamma=0.4 threshold=0.9 v_reset=0.1",
        "c1=0 c2=0 gamma=0.5 threshold=1 v_reset=0", exact_levels=HALVES, exact_steps=5, **_INEXACT,
    ),
    described(
        sc.SEAdLIF, "se-adlif", (-0.8, 3.0), "tau_u=3.1 tau_w=7.3 a=0.4 b=0.7 q=1.5 threshold=0.5", **_WITHOUT_TIES
    ),
    # without a rotation the square root is that of 1
    described(
        sc.BRF, "brf", (-2.5, 4.0), "omega=1.7 b=0.4 dt=0.35 gamma=0.8 threshold=0.6",
        "omega=0 b=0.5 dt=0.5 gamma=0.5 threshold=1", exact_levels=(0.0, 1.0, 2.0), exact_steps=4, **_ONE_RESET,
        **_INEXACT,
    ),
    _ILIF,
    # the potential goes below the floor, and above what all spikes take
    replace(
        _ILIF, name="ilif-down", drive=(-1.5, 3.5), options={"levels": 3, "rounding": "down", "v_min": -0.5}
    ),
    _TERNARY,
    _without_decay(_TERNARY, (-1.4, 1.6)),
)  # fmt: skip


def _at_defaults(name: str, neuron: Type[Neuron]) -> Model:
    """The model of a neuron that has no row above: with its defaults, or what the oracle has as ``values``."""
    twin: Any = getattr(oracle, name)
    nodes = sc.neurons.example(name).program.nodes
    # surrogates jump at -1, which is a potential of 0 below a threshold of 1
    off = {param: 0.9 * neuron.params[param] for param in neuron.params if param == "threshold"}
    return Model(
        name.lower(),
        neuron,
        twin,
        single(**{**neuron.params, **off, **twin.values}),
        twin.drive,
        resets=ALL_RESETS if "reset" in neuron.configuration else ("none",),
        exact_resets=(),
        arithmetic=all(node.is_leaf or node.op in EXACT for node in nodes),
        outputs=("spikes" if any(node.op == "spike" for node in nodes) else "output",),
    )


#: Those above, and every other neuron of the library but those with vectors (:mod:`spikecore.testing._cases.vectors`).
MODELS: Tuple[Model, ...] = (
    *_TUNED,
    *(
        _at_defaults(name, neuron)
        for name, neuron in sc.neurons.MODELS.items()
        if neuron not in [model.neuron for model in _TUNED] and not sc.neurons.example(name).vectors
    ),
)
BY_NAME: Mapping[str, Model] = {model.name: model for model in MODELS}
