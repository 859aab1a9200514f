"""``poptorch.optim``: PopTorch's optimisers, which are torch's with further settings.

Rules of this module:

- An optimiser only holds hyper-parameters: its ``step`` never runs for a model on a device. They are read when the
  model is wrapped, and again at ``setOptimizer``. torch's schedulers change them as they do in torch's own.
- Arguments and defaults are PopTorch's; what is left ``None`` has torch's default, and LAMB's is in :class:`LAMB`.
- :mod:`_hyperparameters` says which settings are followed; :mod:`_optimizer` says what is a constant, and where the
  state is.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Callable, Iterable, Mapping, Optional, Tuple

import torch

from ._formulas import lamb
from ._optimizer import Optimizer, VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]

_log = logging.getLogger("poptorch")

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
            _log.warning(
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
