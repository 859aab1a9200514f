"""Delays and their widths as parameters: drawn or given, kept in their ranges, set, saved and loaded."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore._shell import checks, parameters, ranges
from spikecore._shell.state import Stateful

PARAMS = ("delay", "sigma")
#: How one delay is shared: by nobody, or by all connections of an input.
PER = ("connection", "input")
_FIXED = ("max_delay", "learn")
#: The least width. There all but one lag have a part below the smallest number, unless a delay ends in one half.
_LEAST_SIGMA = 0.01


class Positions(Stateful):
    """A module with one delay for each connection of ``linear``, or for each of its inputs; see ``Delay``."""

    max_delay: int
    learn: Tuple[str, ...]
    linear: nn.Linear

    def _take(
        self,
        max_delay: int,
        delay: Any,
        per: Optional[str],
        learn: Any,
        sigma: Any,
        generator: Optional[torch.Generator],
    ) -> None:
        """The arguments of the constructor."""
        if checks.whole("Delay", "max_delay", max_delay) < 1:
            raise ValueError(f"Delay: max_delay={max_delay} must be 1 or more; without delays use the layer itself")
        self.max_delay = max_delay
        self.learn = parameters.names_to_learn("Delay", learn, PARAMS)
        if "sigma" in self.learn and "delay" not in self.learn:
            raise ValueError("Delay: learn names 'sigma' alone, and fixed delays have none; learn 'delay', too")
        start = self._first_delay(delay, per, generator)
        parameters.declare(self, "delay", start, "delay" in self.learn)
        if "delay" not in self.learn:
            if sigma is not None:
                raise ValueError(
                    f"Delay: sigma={checks.shown(sigma)} has no effect on fixed delays, which are rounded to whole "
                    "steps; leave it out, or learn=('delay',)"
                )
            self.register_buffer("sigma", None)
            return
        width = torch.as_tensor(self._inside("sigma", max_delay / 2 if sigma is None else sigma)).to(start)
        if width.ndim:
            self._check_shape("sigma", width, start.shape)
        parameters.declare(self, "sigma", width.clone(), "sigma" in self.learn)

    def _first_delay(self, delay: Any, per: Optional[str], generator: Optional[torch.Generator]) -> Tensor:
        weight: Any = self.linear.weight
        if per is not None and per not in PER:
            raise ValueError(f"Delay: per={per!r} must be 'connection' or 'input'")
        shape = weight.shape[1:] if per == "input" else weight.shape
        like = {"dtype": torch.promote_types(weight.dtype, torch.float32), "device": weight.device}
        if delay is None:
            return torch.rand(shape, generator=generator, **like) * self.max_delay
        value = self._inside("delay", delay)
        if not isinstance(value, Tensor):
            return torch.full(shape, value, **like)
        if value.shape not in (weight.shape, weight.shape[1:]) or (per is not None and value.shape != shape):
            either = f"{list(weight.shape)} or {list(weight.shape[1:])}"
            wanted = either if per is None else f"{list(shape)} for per={per!r}"
            raise ValueError(f"Delay: delay has shape {list(value.shape)}; give one number, or shape {wanted}")
        # a Parameter may be learnt in several places; any other tensor is the caller's
        shared = isinstance(value, nn.Parameter) and "delay" in self.learn
        return value if shared else value.detach().clone()

    def project(self) -> None:
        """Put learnt delays and widths that left their ranges back to the nearest value inside, in place."""
        ranges.project(self._parameters, self._ranges())

    def _ranges(self) -> Dict[str, ranges.Interval]:
        return {"delay": ranges.Interval(0.0, float(self.max_delay)), "sigma": ranges.Interval(_LEAST_SIGMA)}

    def _inside(self, name: str, value: Any) -> Union[float, Tensor]:
        """A number or tensor in the range of the parameter of this name."""
        found = parameters.checked("Delay", name, value)
        within = self._ranges()[name]
        if not isinstance(found, Tensor):
            # not through a tensor, which torch.device("meta") would make without a value
            holds = bool(within.holds(found))
        elif type(found) in (Tensor, nn.Parameter) and found.is_cpu:
            # in float32: a module in float32 that becomes float64 has a width that is 2e-10 below the least one
            holds = bool(within.holds(found.float()).all())
        else:
            holds = True
        if not holds:
            raise ValueError(f"Delay: {name}={checks.shown(value)} must be {within}, in time steps")
        return found

    def _check_shape(self, name: str, value: Tensor, shape: Any) -> None:
        if value.shape != shape:
            raise ValueError(f"Delay: {name} has shape {list(value.shape)}, wanted is {list(shape)} or one number")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and name in self.__dict__:
            raise AttributeError(f"Delay: {name} is fixed when a Delay is made; make a new one")
        held = None
        if name in PARAMS:
            if name in self._buffers and self._buffers[name] is None:
                raise AttributeError("Delay: fixed delays have no sigma; make a new one with learn=('delay',)")
            held = self._parameters.get(name, self._buffers.get(name))
        if held is None:
            super().__setattr__(name, value)
            return
        value = self._inside(name, value)
        replaces = isinstance(value, nn.Parameter) and isinstance(held, nn.Parameter)
        if isinstance(value, Tensor) and value.numel() != 1:
            self._check_shape(name, value, held.shape)
        if replaces:
            # its shape says whether delays are of connections or of inputs
            if value.shape != held.shape:
                given, wanted = list(value.shape), list(held.shape)
                raise ValueError(f"Delay: {name} is a Parameter of shape {given}, wanted is {wanted}; give a number")
            super().__setattr__(name, value)
            return
        # in place: what torch compiled or captured reads this memory
        with torch.no_grad():
            if not isinstance(value, Tensor):
                held.fill_(value)
            else:
                held.copy_(value if value.numel() != 1 else value.reshape(()))

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        found = [self._parameters.get(name, self._buffers.get(name)) for name in PARAMS]
        held = [value for value in found if value is not None]
        held += [value.grad for value in held if value.grad is not None]

        def wide(value: Tensor) -> Tensor:
            # of 17.45 steps bfloat16 makes 17.5, which is rounded to 18, and of 299 steps 300
            moved = fn(value)
            dtype = torch.promote_types(moved.dtype, torch.float32)
            if dtype == moved.dtype or not any(value is each for each in held):
                return moved
            return value.to(moved.device, dtype)

        return super()._apply(wide, *args, **kwargs)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.project()  # an optimiser may have stepped, and what is saved must load again
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        refused = []
        for name in PARAMS:
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor) and value.device.type != "meta":
                try:
                    self._inside(name, value.detach().cpu())
                except (TypeError, ValueError) as error:
                    refused.append(f"{prefix}{name}: {error}")
        if refused:
            error_msgs.extend(refused)
            return
        args = (state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(*args)
