"""``poptorch.optim``: PopTorch's optimisers, which are torch's with further settings and a state on the device.

Rules of this module:

- An optimiser only holds hyper-parameters: its ``step`` never runs for a model on a device. They are read when the
  model is wrapped, and again at ``setOptimizer``. torch's schedulers change them as they do in torch's own.
- An argument that is left ``None`` has torch's default (LAMB's is in :class:`LAMB`) and is a *constant* of the compiled
  program, a learning rate too: changing it later is an error. One that is given is a *variable*. ``variable_attrs``
  says which, and changes it. :mod:`_hyperparameters` says which settings are followed.
- The state, such as moments, is on the device. ``state_dict()`` reads it from there, under ``ipu_state``, and
  ``load_state_dict`` has it written there before the next update, or when the model is compiled. The
  :class:`~poptorch_emulator._update.Updater` that holds the state attaches itself (:meth:`Optimizer.attach`); without
  one, ``state_dict()`` has what was read or loaded last.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

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
        """Whether it is compiled in."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Compile it in."""
        self._check(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let ``setOptimizer`` change it."""
        self._check(attr)
        self._variable_attributes.append(attr)

    def allow(self, attr: str) -> None:
        """Accept one more attribute."""
        self._allowed_attributes.append(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._allowed_attributes:
            raise AssertionError(f"Unknown attribute {attr}, allowed values: {self._allowed_attributes}")


class Optimizer(torch.optim.Optimizer):
    """What PopTorch's optimisers add to torch's."""

    #: Arguments that torch's constructor does not have, with their defaults; they become attributes.
    _own: Mapping[str, Any] = {}
    variable_attrs: VariableAttributes
    defaults: Dict[str, Any]
    param_groups: List[Dict[str, Any]]

    def _init(self, arguments: Dict[str, Any]) -> None:
        """Set this up from the arguments of a constructor, those not given being None."""
        given = {name: value for name, value in arguments.items() if name != "self" and value is not None}
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
        """Call the constructor of torch's."""
        super().__init__(**arguments)

    def attach(self, device: Any) -> None:
        """From now on :meth:`state_dict` asks ``device.read_state()``; it is referenced weakly."""
        self._device = weakref.ref(device)

    def detach(self) -> None:
        """Read the state from the device a last time."""
        self._read()
        self._device = None

    def has_state(self) -> bool:
        """Whether there is a state to start from: one that was read from a device, or loaded."""
        return self._state_dict["ipu_state"] is not None and self._state_dict["ipu_param"] is not None

    def device_state(self) -> DeviceState:
        """What was read from a device, or loaded."""
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


class SGD(Optimizer, torch.optim.SGD):
    """``poptorch.optim.SGD``."""

    _own = {
        "loss_scaling": 1.0,
        "velocity_scaling": 1.0,
        "use_combined_accum": False,
        "accum_type": torch.float32,
        "velocity_accum_type": torch.float32,
        "max_grad_norm": math.inf,
    }
    velocity_scaling: float

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: Optional[float] = None,
        dampening: Optional[float] = None,
        weight_decay: Optional[float] = None,
        nesterov: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        velocity_scaling: Optional[float] = None,
        use_combined_accum: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        velocity_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._init(dict(locals()))
        del self.velocity_scaling  # it is one per group, if at all
        if use_combined_accum:
            for group in (self.defaults, *self.param_groups):
                group.setdefault("velocity_scaling", 1.0 if velocity_scaling is None else velocity_scaling)
            self.variable_attrs.allow("velocity_scaling")
        elif velocity_scaling is not None:
            logger.warning(
                "velocity_scaling value ignored when using the separate variant (use_combined_accum=False). In future, "
                "this will lead to an error. Please update your code."
            )


class Adam(Optimizer, torch.optim.Adam):
    """``poptorch.optim.Adam``."""

    _own = {"loss_scaling": 1.0, **_MOMENTS, "max_grad_norm": math.inf}

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._init(dict(locals()))


class AdamW(Optimizer, torch.optim.AdamW):
    """``poptorch.optim.AdamW``."""

    _own = {"loss_scaling": 1.0, "bias_correction": True, **_MOMENTS, "max_grad_norm": math.inf}

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._init(dict(locals()))


class RMSprop(Optimizer, torch.optim.RMSprop):
    """``poptorch.optim.RMSprop``."""

    _own = {"loss_scaling": 1.0, **_MOMENTS, "use_tf_variant": False}

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        alpha: Optional[float] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        momentum: Optional[float] = None,
        centered: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        use_tf_variant: Optional[bool] = None,
    ) -> None:
        self._init(dict(locals()))


class LAMB(Optimizer):
    """``poptorch.optim.LAMB``: layer-wise adaptive moments (You et al., 2020), phi(z) = min(z, max_weight_norm)."""

    _own = {"loss_scaling": 1.0, "bias_correction": True, **_MOMENTS}
    bias_correction: bool

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        max_weight_norm: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
    ) -> None:
        self._init(dict(locals()))

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
