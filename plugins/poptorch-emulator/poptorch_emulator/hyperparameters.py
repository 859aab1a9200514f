"""Reads the hyper-parameters of an optimiser, torch's or PopTorch's, and which of them may change.

Rules of this module:

- They are read once, by :func:`read`, when a model is wrapped and when ``setOptimizer`` is called. Nothing reads the
  optimiser itself later, so a learning rate that was only changed in it has no effect.
- A *constant* is compiled in. PopTorch's optimisers say what is constant (``variable_attrs``). In torch's, a
  hyper-parameter with its default value is constant, betas and alpha always are, and the learning rate never is.
- What PopTorch refuses is refused with its text. What it would ignore without a word (``maximize``), or compute
  differently from torch (dampening), is refused as well, and so is what the emulator does not model: float16 moments,
  a largest norm of gradients, TensorFlow's RMSprop, AdamW without bias correction.
- Accepted, because the values stay the same: ``loss_scaling`` multiplies the loss and divides the gradients,
  ``velocity_scaling`` the same for velocities, ``use_combined_accum`` merges two buffers; ``foreach``, ``fused`` and
  the like choose an implementation.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from torch import nn

from . import _formulas as formulas
from . import optim
from ._errors import cpp_error, logger, not_modelled, popart_error, py_error

#: Hyper-parameters that are compiled in from torch's optimisers, whatever their value.
_FIXED = ("betas", "alpha", "nesterov", "centered")
#: Those that decide which operations the program has, so they are always constants.
_STRUCTURAL = ("nesterov", "centered")
_ACCUM_TYPES = (
    "accum_type",
    "velocity_accum_type",
    "first_order_momentum_accum_type",
    "second_order_momentum_accum_type",
)


@dataclass(frozen=True)
class Value:
    """The value of a hyper-parameter, and whether it is compiled in."""

    value: Any
    constant: bool


Values = Mapping[str, Value]


@dataclass(frozen=True)
class Kind:
    """One of the optimisers that PopTorch has."""

    name: str
    #: Its class, from which those of a user may inherit.
    base: type
    formula: formulas.Formula
    #: Hyper-parameters of a group; with this value they are constants in a torch optimiser.
    attributes: Mapping[str, Optional[float]]
    #: The state that it has for each weight; names as in the table of :mod:`_formulas`.
    moments: Tuple[str, ...]
    #: The name of the velocity, which there is not if the momentum is a constant 0.
    velocity: str = ""

    def buffers(self, values: Values) -> Tuple[str, ...]:
        """The names of the state that it has for a weight with these values."""
        names = list(self.moments)
        if "centered" in values and values["centered"].value:
            names.append("Accl2")
        if self.velocity and (values["momentum"].value or not values["momentum"].constant):
            names.append(self.velocity)
        return tuple(names)


_MOMENTS: Mapping[str, Optional[float]] = {"lr": None, "betas": None, "eps": 1e-8}
_MEAN_AND_SQUARE = ("Accl1", "Accl2", "Step")

#: Subclasses before their bases: since torch 2.7 AdamW is a subclass of Adam.
KINDS: Tuple[Kind, ...] = (
    Kind(
        "SGD",
        torch.optim.SGD,
        formulas.sgd,
        {"lr": None, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": None},
        (),
        "Accl",
    ),
    Kind("AdamW", torch.optim.AdamW, formulas.adamw, {**_MOMENTS, "weight_decay": 1e-2}, _MEAN_AND_SQUARE),
    Kind("Adam", torch.optim.Adam, formulas.adam, {**_MOMENTS, "weight_decay": 0}, _MEAN_AND_SQUARE),
    Kind(
        "RMSprop",
        torch.optim.RMSprop,
        formulas.rmsprop,
        {"lr": None, "momentum": 0, "weight_decay": 0, "alpha": None, "eps": 1e-8, "centered": None},
        ("Accl1",),
        "Accl3",
    ),
    Kind(
        "LAMB",
        optim.LAMB,
        formulas.lamb,
        {**_MOMENTS, "weight_decay": 1e-2, "max_weight_norm": 65500.0},
        _MEAN_AND_SQUARE,
    ),
)


@dataclass(frozen=True)
class Hyperparameters:
    """All that was read of one optimiser."""

    kind: Kind
    #: The parameters of each group.
    params: Tuple[Tuple[nn.Parameter, ...], ...]
    #: The values of each group.
    groups: Tuple[Values, ...]
    defaults: Values
    loss_scaling: Value
    #: LAMB: whether moments are corrected for beginning at 0.
    bias_correction: bool

    def check_replacement(self, other: Hyperparameters) -> None:
        """Raise poptorch.Error if ``other`` cannot be given to a model that was compiled with these."""
        if other.kind is not self.kind or other.bias_correction != self.bias_correction:
            raise _no_replacement(
                f"Can not replace optimizer of type {self.kind.name} with new optimizer of type {other.kind.name}"
            )
        if [list(map(id, group)) for group in self.params] != [list(map(id, group)) for group in other.params]:
            raise py_error(
                "the new optimizer has other groups of parameters than the one that the model was compiled with. "
                "PopTorch would give the values of its groups to the old ones, by number."
            )
        _check_value("loss_scaling", self.loss_scaling, other.loss_scaling)
        for old, new in zip((self.defaults, *self.groups), (other.defaults, *other.groups)):
            for name in old:
                _check_value(name, old[name], new[name])


def _no_replacement(why: str) -> Exception:
    return popart_error(f"New optimizer is not a valid replacement. {why}")


def _check_value(name: str, old: Value, new: Value) -> None:
    if old.constant != new.constant or (old.constant and old.value != new.value):
        was, now = ("constant" if value.constant else "variable" for value in (old, new))
        raise _no_replacement(
            f"Problem with {name}. It was {was} ({old.value}) when the model was compiled, and is {now} ({new.value}) "
            f"now; optimizer.variable_attrs.markAsVariable({name!r}) makes it a variable from the beginning."
        )


def read(optimizer: torch.optim.Optimizer) -> Hyperparameters:
    """The hyper-parameters that the optimiser has now.

    Raises what PopTorch raises for an optimiser or a value that it does not have, and poptorch.Error for what PopTorch
    would silently do differently from the optimiser, or the emulator differently from PopTorch.
    """
    kind = next((kind for kind in KINDS if isinstance(optimizer, kind.base)), None)
    if kind is None:
        raise AssertionError(f"Unsupported optimizer type. Types supported {[kind.name for kind in KINDS]}")
    if type(optimizer) not in (kind.base, getattr(optim, kind.name)):
        logger.warning("%s is run as %s: what else it does is ignored", type(optimizer).__name__, kind.name)
    _check_settings(optimizer, kind)
    variable = getattr(optimizer, "variable_attrs", None)
    groups = optimizer.param_groups
    for number, group in enumerate(groups):
        if kind.name == "RMSprop" and group["centered"] != groups[0]["centered"]:
            raise AssertionError(
                "All parameter groups must have the same value for the 'centered' attribute (Group 0: "
                f"{groups[0]['centered']} / Group {number}: {group['centered']})"
            )
        _check_group(group, kind, variable)
    scaling = getattr(optimizer, "loss_scaling", 1.0)
    constant = variable.isConstant("loss_scaling") if variable else scaling == 1.0
    return Hyperparameters(
        kind,
        tuple(tuple(group["params"]) for group in groups),
        tuple(_values(group, kind, variable) for group in groups),
        _values(optimizer.defaults, kind, variable),
        Value(_number(scaling, "loss_scaling"), constant),
        getattr(optimizer, "bias_correction", True),
    )


def _check_settings(optimizer: Any, kind: Kind) -> None:
    """Check the settings of the whole optimiser, which only PopTorch's have."""
    for name in _ACCUM_TYPES:
        dtype = getattr(optimizer, name, torch.float32)
        if dtype not in (torch.float16, torch.float32):
            raise ValueError(f"{name} must be set to either torch.float16 or torch.float32 not {dtype}")
        if dtype == torch.float16:
            raise not_modelled(f"{name}=torch.float16", "leave it at torch.float32")
    if getattr(optimizer, "use_tf_variant", False):
        raise not_modelled("use_tf_variant=True")
    if kind.name == "AdamW" and not getattr(optimizer, "bias_correction", True):
        raise not_modelled("AdamW with bias_correction=False", "by its sources, PopTorch corrects nevertheless")
    norm = getattr(optimizer, "max_grad_norm", math.inf)
    if math.isnan(norm):
        raise cpp_error("Maximum norm of gradients cannot be NaN")
    if norm != math.inf:
        raise not_modelled(f"max_grad_norm={norm}")
    if getattr(optimizer, "loss_scaling", 1.0) == 0:
        raise popart_error("Loss scaling cannot be 0")


def _check_group(group: Dict[str, Any], kind: Kind, variable: Optional[optim.VariableAttributes]) -> None:
    if group.get("amsgrad"):
        raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported.")
    if group.get("maximize"):
        raise py_error("PopTorch ignores maximize=True and would minimise. Give the model the negative of the loss.")
    if kind.name == "Adam" and group.get("decoupled_weight_decay"):
        raise py_error("PopTorch ignores decoupled_weight_decay=True. Use AdamW.")
    if group.get("dampening") and variable is None:
        raise py_error(
            "PopTorch's SGD dampens the first step, and steps without momentum, and torch's does not. Set dampening to "
            "0, or use poptorch.optim.SGD if that is meant."
        )
    if group.get("nesterov") and group["dampening"]:
        raise popart_error(f"When enable nesterov momentum, dampening ({group['dampening']}) in SGD shouled be zero")
    if "eps" in group and group["eps"] <= 0:
        family = "Adaptive" if kind.name == "RMSprop" else "Adam"
        raise popart_error(f"Non-positive eps ({group['eps']}) in {family} is not supported")


def _values(group: Mapping[str, Any], kind: Kind, variable: Optional[optim.VariableAttributes]) -> Values:
    values = {}
    for name, default in kind.attributes.items():
        if group.get(name) is None:
            raise AssertionError(f"Mandatory attribute {name} not found in optimizer group")
        value = _pair(group[name]) if name == "betas" else _number(group[name], name)
        constant = variable.isConstant(name) if variable else name in _FIXED or value == default
        values[name] = Value(value, constant or name in _STRUCTURAL)
    return values


def _number(value: Any, name: str) -> Any:
    if not isinstance(value, numbers.Number):
        raise AssertionError(f"Expected a number for {name} but got {value} instead")
    return value


def _pair(value: Any) -> Any:
    if not isinstance(value, tuple) or len(value) != 2:
        raise AssertionError(f"Expected a pair for betas but got {value} instead")
    return _number(value[0], "betas[0]"), _number(value[1], "betas[1]")
