"""Layers that NIR has and torch has not: a scale, sums over windows, a threshold without memory, whole delays."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecore._shell import checks
from spikecore._shell.state import State, Stateful
from spikecore.neuron import Neuron


class Scale(nn.Module):
    """NIR's Scale: ``y = scale * x`` element by element; ``scale`` is learnt and has the shape of one sample."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        if not isinstance(scale, Tensor) or not scale.is_floating_point():
            raise TypeError(f"Scale: scale={checks.shown(scale)} must be a floating-point tensor")
        self.scale = scale if isinstance(scale, nn.Parameter) else nn.Parameter(scale.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``[..., *N] -> [..., *N]``."""
        return self.scale * x

    def extra_repr(self) -> str:
        """The shape."""
        return f"{list(self.scale.shape)}"


class SumPool2d(nn.Module):
    """NIR's SumPool2d: sums over windows, ``[B, C, H, W] -> [B, C, H', W']``; what is padded is 0."""

    def __init__(
        self,
        kernel_size: Union[int, Tuple[int, int]],
        stride: Union[int, Tuple[int, int], None] = None,
        padding: Union[int, Tuple[int, int]] = 0,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """The sums."""
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, divisor_override=1)

    def extra_repr(self) -> str:
        """The window."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class Threshold(Neuron):
    """NIR's Threshold: ``z = [x > threshold]`` at every step, with the neuron's surrogate; no state."""

    states: Mapping[str, Union[float, str]] = {}
    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        return self.spike(x - p.threshold, strict=True), {}


class DelaySteps(Stateful):
    """NIR's Delay: ``y[t, n] = x[t - steps[n], n]``, 0 before the first step; ``[T, B, *N] -> [T, B, *N]``.

    steps: whole numbers of time steps, a tensor of the shape ``[*N]`` of one sample.
    step: ``"multi"`` or ``"single"``, as of a neuron.

    The state is ``{"past": [longest, B, *N]}``, the last inputs, the newest last, which is
    carried and reset as that of a neuron.
    """

    steps: Tensor
    _longest: int

    def __init__(self, steps: Union[Tensor, Sequence[int]], *, step: str = "multi") -> None:
        super().__init__(step)
        whole = torch.as_tensor(steps)
        if whole.is_floating_point() or whole.is_complex() or whole.dtype == torch.bool:
            raise TypeError(f"DelaySteps: steps has dtype {whole.dtype}; give whole numbers of time steps")
        if whole.numel() and int(whole.min()) < 0:
            raise ValueError(f"DelaySteps: steps has {int(whole.min())}; a delay must be 0 or above")
        self.register_buffer("steps", whole.long())
        self._note_longest()

    def _note_longest(self) -> None:
        # read once: at every call a GPU would be waited for
        self.__dict__["_longest"] = int(self.steps.max()) if self.steps.numel() else 0

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._note_longest()

    def forward(self, x: Tensor) -> Tensor:
        """``x``, each element as long ago as it says."""
        single = self.step == "single"
        if not (single or self._carrying):
            return self._delayed(x, None)[0]
        y, state = self._delayed(x.unsqueeze(0) if single else x, self._begin())
        self._end(state)
        return y.squeeze(0) if single else y

    def _delayed(self, x: Tensor, state: Optional[State]) -> Tuple[Tensor, State]:
        shape = list(self.steps.shape)
        if x.ndim < 1 + len(shape) or (shape and list(x.shape[-len(shape) :]) != shape):
            raise ValueError(f"DelaySteps: x of shape {list(x.shape)} must end with the shape of steps, {shape}")
        longest = self._longest
        past = x.new_zeros(longest, *x.shape[1:]) if state is None else state["past"]
        if list(past.shape[1:]) != list(x.shape[1:]):
            raise ValueError(
                f"DelaySteps: x has steps of shape {list(x.shape[1:])}, the state carried from the last call "
                f"{list(past.shape[1:])}; call sc.reset(net) between sequences of different batches"
            )
        known = torch.cat([past.to(x.dtype), x])
        steps = torch.arange(len(x), device=x.device).view(-1, *[1] * (x.ndim - 1))
        y = known.gather(0, (steps + longest - self.steps).expand_as(x))
        return y, {"past": known[len(x) :].clone()}

    def extra_repr(self) -> str:
        """The delays."""
        longest = self._longest
        return f"{list(self.steps.shape)}, 0 to {longest} steps" + (", step='single'" if self.step == "single" else "")


#: Layers whose input is one step, with batch in front; the others take time as well.
OF_ONE_STEP: Tuple[Type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.AvgPool2d, SumPool2d, nn.Flatten)
