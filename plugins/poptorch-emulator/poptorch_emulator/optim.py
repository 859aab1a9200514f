"""``poptorch.optim``: PopTorch's optimisers, which are torch's with further settings and a state on the device.

Rules of this module:

- An optimiser only holds hyper-parameters: its ``step`` never runs for a model on a device. They are read when the
  model is wrapped, and again at ``setOptimizer``. torch's schedulers change them as they do in torch's own.
- An argument that is left ``None`` has torch's default (LAMB's is in :class:`LAMB`) and is a *constant* of the compiled
  program, a learning rate too: changing it later is an error. One that is given is a *variable*. ``variable_attrs``
  says which, and changes it. :mod:`.hyperparameters` says which settings are followed.
- The state, such as moments, is on the device. ``state_dict()`` reads it from there, under ``ipu_state``, and
  ``load_state_dict`` has it written there before the next update, or when the model is compiled. The
  :class:`~poptorch_emulator.update.Updater` that holds the state attaches itself (:meth:`Optimizer.attach`); without
  one, ``state_dict()`` has what was read or loaded last.
"""

from __future__ import annotations

import inspect
import math
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from ._errors import logger
from ._formulas import lamb

#: What an optimiser keeps on the device: ``{"ipu_state": {name: tensor}, "ipu_param": {name: tensor}}``; None for both
#: if nothing is known yet.
DeviceState = Dict[str, Optional[Dict[str, Tensor]]]


class VariableAttributes:
    """Which attributes of an optimiser the compiled program can change; ``optimizer.variable_attrs``."""

    def __init__(self, variable_attributes: List[str], allowed_attributes: List[str]) -> None:
        self._variable_attributes = variable_attributes
        self._allowed_attributes = allowed_attributes

    def isConstant(self, attr: str) -> bool:
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        self._check(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let ``setOptimizer`` change it."""
        self._check(attr)
        self._variable_attributes.append(attr)

    def allow(self, attr: str) -> None:
        self._allowed_attributes.append(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._allowed_attributes:
            raise AssertionError(f"Unknown attribute {attr}, allowed values: {self._allowed_attributes}")


class Optimizer(torch.optim.Optimizer):
    """Base of the optimisers: what PopTorch adds to torch's."""

    #: The names of the constructor's arguments, in PopTorch's order. Left out or None is not given.
    _arguments = "params"
    #: Arguments that must be given.
    _required: Tuple[str, ...] = ("params",)
    #: Arguments that torch's constructor does not have, with their defaults; they become attributes.
    _own: Mapping[str, Any] = {}
    _signature: inspect.Signature
    variable_attrs: VariableAttributes
    defaults: Dict[str, Any]
    param_groups: List[Dict[str, Any]]

    def __init_subclass__(cls) -> None:
        if "_arguments" in vars(cls):
            kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
            names = {name: empty if name in cls._required else None for name in cls._arguments.split()}
            cls._signature = inspect.Signature([inspect.Parameter(n, kind, default=d) for n, d in names.items()])
            cls.__signature__ = cls._signature  # type: ignore[attr-defined]  # what inspect.signature() reads

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = self._signature.bind(*args, **kwargs).arguments
        given = {name: value for name, value in arguments.items() if value is not None}
        self._device: Optional[weakref.ReferenceType[Any]] = None
        self._state_dict: DeviceState = {"ipu_state": None, "ipu_param": None}
        #: Whether the state was loaded, and is still to be written to the device.
        self.ipu_state_is_dirty = False
        self._init_torch(**{name: value for name, value in given.items() if name not in self._own})
        for group in (self.defaults, *self.param_groups):
            # a newer torch makes a tuple of a list, which PopTorch refuses
            if "betas" in given and group["betas"] == tuple(given["betas"]):
                group["betas"] = given["betas"]
        for name, default in self._own.items():
            value = given.get(name, default)
            if name.endswith("accum_type") and value not in (torch.float16, torch.float32):
                raise AssertionError("Accumulation types must be either torch.float32 or torch.float16")
            setattr(self, name, value)
        self.variable_attrs = VariableAttributes(list(given), [*self.defaults, "loss_scaling"])

    def _init_torch(self, **arguments: Any) -> None:
        super().__init__(**arguments)

    def attach(self, device: Any) -> None:
        """From now on :meth:`state_dict` asks ``device.read_state()``; it is referenced weakly."""
        self._device = weakref.ref(device)

    def detach(self) -> None:
        """Read the state from the device a last time."""
        self._read()
        self._device = None

    def has_state(self) -> bool:
        """True if there is a state to start from: one that was read from a device, or loaded."""
        return self._state_dict["ipu_state"] is not None and self._state_dict["ipu_param"] is not None

    def device_state(self) -> DeviceState:
        """The state that was read from a device, or loaded."""
        return self._state_dict

    def _read(self) -> None:
        device = None if self._device is None else self._device()
        if device is not None and not self.ipu_state_is_dirty:
            self._state_dict = device.read_state()

    def state_dict(self) -> Dict[str, Any]:
        """``ipu_state`` and ``ipu_param`` from the device, and what torch's optimiser has."""
        self._read()
        return {**self._state_dict, **super().state_dict()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave.

        Raises ``RuntimeError`` for the state of an optimiser that ran on the host.
        """
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        if "ipu_state" not in state or "ipu_param" not in state:
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        super().load_state_dict(state)
        self._state_dict = {name: state[name] for name in ("ipu_state", "ipu_param")}
        self.ipu_state_is_dirty = True

    def __getstate__(self) -> Dict[str, Any]:
        self._read()
        state: Dict[str, Any] = super().__getstate__()
        kept = ("variable_attrs", "_state_dict", *self._own)
        state.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        # a copy belongs to no device, and goes on from this state when it gets one
        state.update(_device=None, ipu_state_is_dirty=self.has_state())
        return state


__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]

#: The types of what optimisers with moments store; float16 is not modelled.
_MOMENTS: Mapping[str, Any] = {
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
}


_ACCUMULATORS = "accum_type first_order_momentum_accum_type second_order_momentum_accum_type"


class SGD(Optimizer, torch.optim.SGD):
    """``poptorch.optim.SGD``."""

    _arguments = (
        "params lr momentum dampening weight_decay nesterov maximize foreach differentiable loss_scaling "
        "velocity_scaling use_combined_accum accum_type velocity_accum_type max_grad_norm"
    )
    _required = ("params", "lr")
    _own = {
        "loss_scaling": 1.0,
        "velocity_scaling": 1.0,
        "use_combined_accum": False,
        "accum_type": torch.float32,
        "velocity_accum_type": torch.float32,
        "max_grad_norm": math.inf,
    }
    velocity_scaling: float
    use_combined_accum: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scaling = self.velocity_scaling
        del self.velocity_scaling  # it is one per group, if at all
        if self.use_combined_accum:
            for group in (self.defaults, *self.param_groups):
                group.setdefault("velocity_scaling", scaling)
            self.variable_attrs.allow("velocity_scaling")
        elif not self.variable_attrs.isConstant("velocity_scaling"):
            logger.warning(
                "velocity_scaling value ignored when using the separate variant (use_combined_accum=False). In future, "
                "this will lead to an error. Please update your code."
            )


class Adam(Optimizer, torch.optim.Adam):
    """``poptorch.optim.Adam``."""

    _arguments = (
        "params lr betas eps weight_decay amsgrad foreach maximize capturable differentiable fused loss_scaling "
        f"{_ACCUMULATORS} max_grad_norm"
    )
    _own = {"loss_scaling": 1.0, **_MOMENTS, "max_grad_norm": math.inf}


class AdamW(Optimizer, torch.optim.AdamW):
    """``poptorch.optim.AdamW``."""

    _arguments = (
        "params lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused loss_scaling "
        f"bias_correction {_ACCUMULATORS} max_grad_norm"
    )
    _own = {"loss_scaling": 1.0, "bias_correction": True, **_MOMENTS, "max_grad_norm": math.inf}


class RMSprop(Optimizer, torch.optim.RMSprop):
    """``poptorch.optim.RMSprop``."""

    _arguments = (
        "params lr alpha eps weight_decay momentum centered foreach maximize differentiable loss_scaling "
        f"{_ACCUMULATORS} use_tf_variant"
    )
    _own = {"loss_scaling": 1.0, **_MOMENTS, "use_tf_variant": False}


class LAMB(Optimizer):
    """``poptorch.optim.LAMB``: layer-wise adaptive moments (You et al., 2020), phi(z) = min(z, max_weight_norm)."""

    _own = {"loss_scaling": 1.0, "bias_correction": True, **_MOMENTS}
    _arguments = f"params lr betas eps weight_decay bias_correction loss_scaling max_weight_norm {_ACCUMULATORS}"
    bias_correction: bool

    def _init_torch(self, **arguments: Any) -> None:
        params = arguments.pop("params")
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}
        torch.optim.Optimizer.__init__(self, params, {**defaults, **arguments})

    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]  # torch's has overloads
        """One update on the host, from the gradients there."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        state = self.state[weight]
                        if not state:
                            zeros = {name: torch.zeros_like(weight) for name in ("Accl1", "Accl2")}
                            state.update(**zeros, Step=torch.zeros(()))
                        lamb(weight, weight.grad, state, {**group, "bias_correction": self.bias_correction})
        return loss
