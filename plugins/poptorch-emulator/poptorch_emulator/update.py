"""The updates of a compiled model: what PopTorch puts into the program instead of ``optimizer.step()``.

Rules of this module:

- Hyper-parameters come from :func:`~poptorch_emulator.hyperparameters.read`, never from the optimiser itself.
- Each trainable parameter is in a group. PopTorch would update one that is in none, with the defaults.
- A parameter without a gradient is not updated, not even by weight decay, and has no state.
- An updater attaches itself to one of PopTorch's optimisers, which then reads the state in ``state_dict()``; a state
  that was loaded into the optimiser is written to the updater before the next update. So an executor makes an
  ``Updater`` when it compiles, calls :meth:`Updater.update` and :meth:`Updater.set`, and before it drops the updater
  calls ``optimizer.state_dict()``, which leaves a copy of the state in the optimiser. With one of torch's optimisers
  the state is in the updater only.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Set

import torch
from torch import Tensor, nn

from ._errors import py_error
from ._formulas import State
from .hyperparameters import Hyperparameters, Values, read
from .optim import DeviceState, Optimizer

#: Hyper-parameters that have another name in PopART.
_NAMES = {"lr": "learningRate", "weight_decay": "weightDecay", "max_weight_norm": "maxWeightNorm"}
_SPECIFIC = "___specific___"


class Updater:
    """Changes ``weights``, the device's copies of the parameters that are trained, by their gradients.

    ``named_parameters`` are the model's own, which the optimiser's groups hold. ``hyperparameters`` are those read when
    the model was wrapped, or by ``setOptimizer`` since; the present ones if None.

    Raises ``KeyError`` if the optimiser holds a parameter that is not the model's, poptorch.Error if a parameter is
    trained that it does not hold.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Mapping[str, nn.Parameter],
        weights: Mapping[str, Tensor],
        hyperparameters: Optional[Hyperparameters] = None,
    ) -> None:
        self._read = read(optimizer) if hyperparameters is None else hyperparameters
        self._weights = weights
        #: Parameter -> its group's number.
        self._group = _groups(self._read, named_parameters, weights)
        self._values = self._values_now()
        self._state = {name: self._zeros(name) for name in weights}
        #: Parameters that had no gradient.
        self._unreached: Set[str] = set()
        self._optimizer = optimizer
        self._connect()

    def set(self, optimizer: torch.optim.Optimizer, hyperparameters: Optional[Hyperparameters] = None) -> None:
        """Go on with the hyper-parameters of this optimiser, and the state that it was given, if any.

        Raises poptorch.Error for another type of optimiser, for other groups, and for another value of a constant.
        """
        new = read(optimizer) if hyperparameters is None else hyperparameters
        self._read.check_replacement(new)
        self._read = new
        self._values = self._values_now()
        if optimizer is not self._optimizer:
            if isinstance(self._optimizer, Optimizer):
                self._optimizer.detach()
            self._optimizer = optimizer
            self._connect()

    def update(self, gradients: Mapping[str, Optional[Tensor]]) -> None:
        """One update, in place, from one gradient per weight, or None where none reaches it."""
        self._write_what_was_loaded()
        for name, gradient in gradients.items():
            if gradient is None:
                self._unreached.add(name)
                self._state[name] = {}
            else:
                self._update(self._weights[name], gradient, self._state[name], self._values[name])

    def _update(self, weight: Tensor, gradient: Tensor, state: State, values: Mapping[str, Any]) -> None:
        with torch.no_grad():
            precise = weight.to(_precision(weight))
            self._read.kind.formula(precise, gradient.to(precise.dtype), state, values)
            if precise is not weight:
                weight.copy_(precise)

    def read_state(self) -> DeviceState:
        """The state, and the hyper-parameters that are variables, under PopART's names."""
        state, values = {}, {}
        for name in self._weights:
            state.update({f"{kind}___{name}": tensor.clone() for kind, tensor in self._state[name].items()})
            values.update({f"{key}{_SPECIFIC}{name}": value for key, value in self._variables(name).items()})
        if not self._read.loss_scaling.constant:
            values["lossScaling_FLOAT"] = self._read.loss_scaling.value
        # in float64, so that training goes on from it with exactly the same numbers
        return {
            "ipu_state": state,
            "ipu_param": {key: torch.tensor(value, dtype=torch.float64) for key, value in values.items()},
        }

    def write_state(self, state: DeviceState) -> None:
        """Go on from what :meth:`read_state` gave; what is missing in it stays as it is.

        Hyper-parameters are those of the optimiser's groups: those that were saved are not used, in PopTorch either.
        Raises poptorch.Error for the state of another optimiser or model.
        """
        for key, tensor in (state["ipu_state"] or {}).items():
            kind, _, name = key.partition("___")
            mine = self._state.get(name, {}).get(kind)
            if mine is not None and mine.shape == tensor.shape:
                mine.copy_(tensor)
            elif name not in self._unreached:
                has = "no such state" if mine is None else f"one of shape {list(mine.shape)}"
                raise py_error(
                    f"the state {key} of shape {list(tensor.shape)} does not belong to this model and its optimizer, "
                    f"which have {has}"
                )

    def _variables(self, name: str) -> Dict[str, float]:
        """The present values of one weight's variables, under PopART's names."""
        values: Dict[str, float] = {}
        for attribute, described in self._described(name).items():
            if described.constant:
                continue
            value = self._values[name][attribute]
            if attribute == "betas":
                values["beta1"], values["beta2"] = value
            else:
                values[_NAMES.get(attribute, attribute)] = value
        return values

    def _described(self, name: str) -> Values:
        return self._read.groups[self._group[name]]

    def _values_now(self) -> Dict[str, Dict[str, Any]]:
        """For each weight, the values of its group."""
        common = {"bias_correction": self._read.bias_correction}
        return {
            name: {**{key: value.value for key, value in self._described(name).items()}, **common}
            for name in self._weights
        }

    def _zeros(self, name: str) -> State:
        weight = self._weights[name]
        zeros = torch.zeros_like(weight, dtype=_precision(weight), requires_grad=False)
        buffers = self._read.kind.buffers(self._described(name))
        return {kind: zeros.new_zeros(()) if kind == "Step" else zeros.clone() for kind in buffers}

    def _connect(self) -> None:
        if isinstance(self._optimizer, Optimizer):
            self._optimizer.attach(self)
            self._optimizer.ipu_state_is_dirty = self._optimizer.has_state()
            self._write_what_was_loaded()

    def _write_what_was_loaded(self) -> None:
        optimizer = self._optimizer
        if isinstance(optimizer, Optimizer) and optimizer.ipu_state_is_dirty:
            self.write_state(optimizer.device_state())
            optimizer.ipu_state_is_dirty = False


def _precision(weight: Tensor) -> torch.dtype:
    """The dtype of the state: float32 at least."""
    return torch.promote_types(weight.dtype, torch.float32)


def _groups(
    found: Hyperparameters, named_parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]
) -> Dict[str, int]:
    """The number of the group that holds each parameter."""
    names = {id(parameter): name for name, parameter in named_parameters.items()}
    groups: Dict[str, int] = {}
    for number, held in enumerate(found.params):
        for parameter in held:
            if id(parameter) not in names:
                raise KeyError(f"group {number} of the optimizer holds a parameter that is not the model's")
            groups[names[id(parameter)]] = number
    left_out = [name for name in weights if name not in groups]
    if left_out:
        raise py_error(
            f"the optimizer does not hold {', '.join(left_out)}, which PopTorch would train all the same, with its "
            "default values. Give it all parameters that require a gradient, and freeze the others with "
            "requires_grad_(False)."
        )
    return groups
