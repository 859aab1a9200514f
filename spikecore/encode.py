"""Encoders: from values to spike trains.

Rules of this module:

- An encoder is a module, ``encoder(x) -> [T, *x.shape]``, in the dtype and on the device of ``x``; ``Delta`` takes
  values that have a time dimension already, ``[T, ...] -> [T, ...]``.
- ``step="single"`` (``sc.set_step``) makes one step, ``[*N] -> [*N]``, where a step can be made alone.
- ``x`` is floating point, scaled to [0, 1] where a formula says so. Nothing reads a value on the host: out-of-range
  values are clamped, never an error.
- Every encoder takes ``generator``, so that one can take another's place; the deterministic ones draw nothing from it.
- A generator travels with its encoder: a copied or unpickled encoder goes on with the same stream, independently.
- Spikes come from comparisons and carry no gradient to ``x``; ``Constant`` is the encoder to train through.
  ``Population`` stands in front of an encoder.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.core import checks
from spikecore.core.state import Stepped, with_generator, without_generator
from spikecore.dtypes import compute_dtype

__all__ = ["Constant", "Delta", "Encoder", "Latency", "Phase", "Poisson", "Population"]
__dir__ = __all__.copy


class Encoder(Stepped):
    """Base of the encoders: checks the input, keeps the generator. A subclass writes :meth:`encode`; one that can make
    a step alone writes :meth:`encode_step`, too, and sets ``only_multi = ""``.

    generator: what draws the random numbers; None takes torch's global stream of the device of ``x``.
    """

    only_multi = (
        "it makes all time steps of its input together; leave it out of the network, and give what it makes one step "
        "after the other"
    )

    mixes_time = True
    #: Names of the attributes that ``repr`` shows.
    settings: Tuple[str, ...] = ()
    #: True if the input has no time yet: ``[*N] -> [T, *N]``.
    makes_time: ClassVar[bool] = True

    def __init__(self, *, generator: Optional[torch.Generator] = None) -> None:
        super().__init__()
        self.generator = checks.generator(type(self).__name__, generator)

    def encode(self, x: Tensor) -> Tensor:
        """The spike train of a checked input."""
        raise NotImplementedError(f"{type(self).__name__} must define encode(x)")

    def encode_step(self, x: Tensor) -> Tensor:
        """One step of the spike train of a checked input, in single-step mode."""
        raise NotImplementedError(f"{type(self).__name__} must define encode_step(x)")

    def forward(self, x: Tensor) -> Tensor:
        """``x -> [T, *x.shape]``, of one step ``x -> [*x.shape]``. TypeError if ``x`` is no floating-point tensor."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"x must be floating point, got {x.dtype}; convert and scale it, as in x.float() / 255")
        return self.encode(x) if self._step == "multi" else self.encode_step(x)

    def extra_repr(self) -> str:
        """The settings, as keyword arguments."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.settings)

    def __getstate__(self) -> Dict[str, Any]:
        return without_generator(self.__dict__)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        nn.Module.__setstate__(self, with_generator(state))


class Poisson(Encoder):
    """Each step spikes with probability ``clamp(gain * x + offset, 0, 1)``, independently of all others.

    ``x [*N] -> [steps, *N]``. Uniform numbers are drawn in float32 (float64 for float64) whatever the dtype of ``x``,
    so that probabilities are not rounded to those of half precision; probability 0 never spikes, 1 always.

    steps: the number of time steps.
    gain: the factor of the value, which makes it a probability per time step.
    offset: what is added to it, a probability per time step.
    generator: what draws the random numbers; None takes torch's global stream of the device of ``x``.

    In single-step mode each call draws one step; a generator then gives other numbers than for all steps at once.

    Raises TypeError or ValueError for ``steps`` not a positive integer or a factor that is not a finite number,
    ValueError for a generator on another device than ``x``. Source: snnTorch's ``spikegen.rate``. Bernoulli in discrete
    time is what the field calls Poisson coding.
    """

    settings = ("steps", "gain", "offset")
    only_multi = ""

    def __init__(
        self, steps: int, *, gain: float = 1.0, offset: float = 0.0, generator: Optional[torch.Generator] = None
    ) -> None:
        super().__init__(generator=generator)
        self.steps = _steps(steps)
        self.gain = _number("gain", gain)
        self.offset = _number("offset", offset)

    def encode(self, x: Tensor) -> Tensor:
        """``[*N] -> [steps, *N]``."""
        return self._drawn(x, (self.steps, *x.shape))

    def encode_step(self, x: Tensor) -> Tensor:
        """``[*N] -> [*N]``."""
        return self._drawn(x, x.shape)

    def _drawn(self, x: Tensor, shape: Tuple[int, ...]) -> Tensor:
        options = checks.draw_options(type(self).__name__, self.generator, x.device)
        probability = (x.to(compute_dtype(x.dtype)) * self.gain + self.offset).clamp(0.0, 1.0)
        drawn: Tensor = torch.rand(shape, device=x.device, dtype=probability.dtype, **options)
        return (drawn < probability).to(x.dtype)


class Latency(Encoder):
    r"""One spike per element, the earlier the larger the value.

    ``x [*N] -> [steps, *N]``, x clamped to [0, 1]; a spike at step ``round(t)`` (halves to even) with

    - ``t = tau * log(x' / (x' - threshold))``, ``x' = max(x, threshold + 1e-7)``: when a leaky integrator with constant
      input x reaches the threshold; or
    - ``linear=True``: ``t = min(tau * (1 - x), tau * (1 - threshold))``.

    A value below the threshold has the latest time there is, or no spike at all with ``clip=True``. ``normalize=True``
    fits the times into the steps: the logarithmic ones are scaled such that the latest one in ``x`` (the whole tensor,
    batch included) is ``steps - 1``; the linear ones take ``tau = steps - 1``. A spike that is due after the last step
    is left out.

    steps: the number of time steps.
    threshold: that of the integrator, between 0 and 1; of ``linear`` the value that spikes last.
    tau: time constant of the integrator, or the time of the value 0, in time steps; above 0.
    normalize: whether the times are fitted into the steps.
    linear: whether the time falls linearly with the value.
    clip: whether values below the threshold have no spike.
    generator: not used; every encoder takes it, so that one can take another's place.

    Raises TypeError or ValueError for ``steps`` not a positive integer, ``threshold`` outside (0, 1) or ``tau`` not
    positive. Source: snnTorch's ``spikegen.latency(..., bypass=True)``; without ``bypass``
    it reads the times on the host to raise for late ones.
    """

    settings = ("steps", "threshold", "tau", "normalize", "linear", "clip")
    #: Keeps the logarithm finite at the threshold.
    epsilon = 1e-7

    def __init__(
        self,
        steps: int,
        *,
        threshold: float = 0.01,
        tau: float = 1.0,
        normalize: bool = False,
        linear: bool = False,
        clip: bool = False,
        generator: Optional[torch.Generator] = None,
    ) -> None:
        super().__init__(generator=generator)
        self.steps = _steps(steps)
        self.threshold = _number("threshold", threshold)
        if not 0.0 < self.threshold < 1.0:
            raise ValueError(f"threshold must be between 0 and 1, both excluded, got {threshold!r}")
        self.tau = _positive("tau", tau)
        self.normalize, self.linear, self.clip = normalize, linear, clip

    def encode(self, x: Tensor) -> Tensor:
        """``[*N] -> [steps, *N]``."""
        value = x.to(compute_dtype(x.dtype)).clamp(0.0, 1.0)
        due = self._linear(value) if self.linear else self._logarithmic(value)
        step = torch.arange(self.steps, device=x.device, dtype=value.dtype).reshape(-1, *[1] * x.ndim)
        spikes = due.round() == step
        if self.clip:
            spikes = spikes & (value >= self.threshold)
        return spikes.to(x.dtype)

    def _logarithmic(self, value: Tensor) -> Tensor:
        value = value.clamp(min=self.threshold + self.epsilon)
        due = self.tau * torch.log(value / (value - self.threshold))
        if self.normalize and due.numel():
            # The smallest number is for times that are all 0, where a threshold is lost beside the values.
            due = due * (self.steps - 1) / due.amax().clamp(min=torch.finfo(due.dtype).tiny)
        return due

    def _linear(self, value: Tensor) -> Tensor:
        tau = self.steps - 1 if self.normalize else self.tau
        return (tau * (1.0 - value)).clamp(max=tau * (1.0 - self.threshold))


class Delta(Encoder):
    """A spike where the value rose by the threshold or more since the step before.

    ``x [T, ...] -> [T, ...]``: 1 where ``x[t] - x[t-1] >= threshold`` and, with ``off_spikes=True``, -1 where ``x[t] -
    x[t-1] <= -threshold``; 0 elsewhere. ``x[-1]`` is 0, or ``x[0]`` with ``padding=True``, so that the first step never
    spikes. The difference is taken in the dtype of ``x``.

    threshold: the difference of two steps that makes a spike, in the unit of the value; above 0.
    off_spikes: whether a value that falls makes spikes of -1.
    padding: whether the value before the first step is that of the first step, and not 0.
    generator: not used; every encoder takes it, so that one can take another's place.

    Raises TypeError or ValueError for a ``threshold`` not positive, ValueError for ``x`` without a time dimension.
    Source: snnTorch's ``spikegen.delta``.
    """

    makes_time = False
    settings = ("threshold", "off_spikes", "padding")

    def __init__(
        self,
        threshold: float = 0.1,
        *,
        off_spikes: bool = False,
        padding: bool = False,
        generator: Optional[torch.Generator] = None,
    ) -> None:
        super().__init__(generator=generator)
        self.threshold = _positive("threshold", threshold)
        self.off_spikes, self.padding = off_spikes, padding

    def encode(self, x: Tensor) -> Tensor:
        """``[T, ...] -> [T, ...]``."""
        if x.ndim == 0:
            raise ValueError("x must be [T, ...] with time first, got a 0-d tensor")
        start = x[:1] if self.padding else torch.zeros_like(x[:1])
        change = x - torch.cat((start, x[:-1]))
        spikes = (change >= self.threshold).to(x.dtype)
        return spikes - (change <= -self.threshold).to(x.dtype) if self.off_spikes else spikes


class Constant(Encoder):
    """The value itself at every step: direct, or current, coding; the first layer of neurons makes the spikes.

    ``x [*N] -> [steps, *N]``, a copy of ``x`` for every step: steps that share memory could not be written one by one
    (``y[0] = 0``), and most layers write them out anyway. The gradient of ``x`` is the sum over the steps. ``x`` itself
    in single-step mode.

    Layers behind it compute every step. Where those in front of the first neuron see no time, leave it out and give
    that neuron ``repeat=steps``: they then compute once.

    steps: the number of time steps.
    generator: not used; every encoder takes it, so that one can take another's place.

    Raises TypeError or ValueError for ``steps`` not a positive integer.
    """

    settings = ("steps",)
    only_multi = ""

    def __init__(self, steps: int, *, generator: Optional[torch.Generator] = None) -> None:
        super().__init__(generator=generator)
        self.steps = _steps(steps)

    def encode(self, x: Tensor) -> Tensor:
        """``[*N] -> [steps, *N]``."""
        return x.expand(self.steps, *x.shape).clone()

    def encode_step(self, x: Tensor) -> Tensor:
        """``[*N] -> [*N]``."""
        return x


class Phase(Encoder):
    """The binary digits of the value, one at each step, the largest first (weighted phases).

    ``x [*N] -> [steps, *N]``, x clamped to [0, 1]: a spike at step t where the digit of weight
    ``2^-(1 + t mod period)`` of ``floor(2^period x) / 2^period`` is 1; 1 itself has all digits.

    steps: the number of time steps.
    period: the number of steps, 1 to 62, after which the digits repeat.
    generator: not used; every encoder takes it, so that one can take another's place.

    Source: Kim et al., "Deep neural networks with weighted spikes" (2018); SpikingJelly's ``WeightedPhaseEncoder``.
    There and here spikes are 0 and 1: what reads them has the weights.
    """

    settings = ("steps", "period")

    def __init__(self, steps: int, *, period: int = 8, generator: Optional[torch.Generator] = None) -> None:
        super().__init__(generator=generator)
        self.steps, self.period = _steps(steps), _steps(period, "period")
        if period > 62:
            raise ValueError(f"period must be at most 62, the bits of a number, got {period}")

    def encode(self, x: Tensor) -> Tensor:
        """``[*N] -> [steps, *N]``."""
        value = x.to(compute_dtype(x.dtype)).clamp(0.0, 1.0)
        number = (value * 2**self.period).long().clamp(max=2**self.period - 1)
        place = self.period - 1 - torch.arange(self.steps, device=x.device) % self.period
        return (torch.bitwise_right_shift(number, place.reshape(-1, *[1] * x.ndim)) & 1).to(x.dtype)


class Population(nn.Module):
    """Learnt receptive fields: each feature becomes the activities of several neurons, from 0 to 1.

    ``y[..., c n + k] = exp(-((x[..., c] - center[c, k]) / width[c, k])^2 / 2)``, ``[..., C] -> [..., C n]``. Behind it
    ``Poisson(T)`` draws spikes; ``sc.IF(threshold=0.999, reset="soft", repeat=T)`` fires at these rates, and has a
    gradient. ``Poisson`` and ``Latency`` pass none, so fields do not learn behind them. ``requires_grad_(False)`` fixes
    the fields.

    features, neurons: C, the number of features, and n, that of neurons for each.
    low, high: the first and the last center at first.
    width: the standard deviation of all fields at first; None for the distance of two centers.

    Source: Tang et al., PopSAN (2020); SpikingJelly's ``PopSpikeEncoderDeterministic`` and ``PopSpikeEncoderRandom``.
    """

    def __init__(
        self, features: int, neurons: int, *, low: float = 0.0, high: float = 1.0, width: Optional[float] = None
    ) -> None:
        super().__init__()
        if min(checks.whole("Population", *each) for each in (("features", features), ("neurons", neurons))) < 1:
            raise ValueError(f"Population: features={features} and neurons={neurons} must be 1 or more")
        if not _number("low", low) < _number("high", high):
            raise ValueError(f"low must be below high, got low={low!r} and high={high!r}")
        width = (high - low) / max(neurons - 1, 1) if width is None else _positive("width", width)
        self.center = nn.Parameter(torch.linspace(low, high, neurons).repeat(features, 1))
        self.width = nn.Parameter(torch.full((features, neurons), width))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C] -> [..., C n]``."""
        if not isinstance(x, Tensor) or x.ndim == 0 or x.shape[-1] != len(self.center):
            raise ValueError(f"x must be [..., {len(self.center)}], a number a feature, got {getattr(x, 'shape', x)}")
        distance = (x.unsqueeze(-1) - self.center) / self.width
        return (-0.5 * distance * distance).exp().flatten(-2)


def _steps(steps: Any, name: str = "steps") -> int:
    if isinstance(steps, Tensor):
        raise TypeError(
            "steps must be an int, the number of time steps, got a Tensor; an encoder is made with the number of "
            "steps, and then called with the tensor: sc.encode.Constant(8)(x)"
        )
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"{name} must be an int, the number of time steps, got {steps!r}")
    if steps < 1:
        raise ValueError(f"{name} must be at least 1, got {steps}")
    return steps


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def _positive(name: str, value: float) -> float:
    if not _number(name, value) > 0.0:
        raise ValueError(f"{name} must be greater than 0, got {value!r}")
    return float(value)
