"""Neurons with random numbers in their equations, such as escape noise.

A random number is an input of the equations that a call draws where it is not given. Rules of this module:

- The numbers of a call are a function of a key, of the step and of the neuron (:func:`uniform`), and not
  of device, memory layout, backend or batch size: a row of a batch has the numbers that it has in a larger one.
- The key is drawn by torch at each call: from ``generator``, or from torch's stream of the input's device. So
  ``torch.manual_seed`` determines all of it, there is no state to save beside torch's, ``torch.utils.checkpoint``
  draws the same numbers again, and a CUDA graph draws new ones at each replay. Nothing waits for the device.
- No gradient flows to a random number.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Unsupported
from spikecore.core import checks
from spikecore.core.neuron import Neuron
from spikecore.core.state import with_generator, without_generator
from spikecore.dtypes import compute_dtype
from spikecore.lang import ops
from spikecore.neurons import LIF
from spikecore.surrogate import StraightThrough, Surrogate

__all__ = ["EscapeNoise", "Stochastic"]
__dir__ = __all__.copy

#: Multipliers of the two halves of a counter, and what the words of a key grow by in each round.
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF
#: Neurons of one step that have numbers: four for each value of the first word of a counter.
MOST = 4 << 32
#: Numbers that a CPU makes at a time.
_BLOCK = 1 << 17


class Stochastic(Neuron):
    """Base class of neurons whose equations have random numbers: inputs named in ``drawn``, the last of ``inputs``.

    Each is uniform in [0, 1), independent for every neuron and step, and drawn in every call that is not given it::

        class Noisy(sc.stochastic.Stochastic):
            inputs, drawn = ("x", "u"), ("u",)
            states = {"v": 0.0}
            params = {"decay": 0.9, "width": 0.5}

            def dynamics(self, x, s, p):
                v = p.decay * s.v + x.x + p.width * (x.u - 0.5)
                z = self.spike(v - 1.0)
                return z, {"v": sc.ops.select(z, 0.0, v)}


        noisy = Noisy()
        spikes = noisy(x)  # [T, *N]
        spikes = noisy(x, noisy.draw(x)[0])  # the same with numbers that are kept

    With ``repeat`` the inputs in front are one step, and the numbers have time: they are others at every step.

    generator: what draws the keys of calls, on a device of its own (with a CPU's, the numbers are the same on every
        device); None takes torch's stream of the device of ``x``.

    Numbers are in float32, or float64 beside float64. Of 16-bit inputs the neuron takes copies in float32, and its
    outputs have the dtype of ``x``.

    Raises TypeError for a generator that is none and for a class whose ``drawn`` are not the last of its inputs,
    ValueError for more than 2^34 neurons, :class:`Unsupported` on an IPU, which has no 64-bit integers (give it the
    numbers), and in a compiled or exported graph with a generator.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        count = len(cls.inputs) - len(cls.drawn)
        drawn: Any = cls.drawn
        if isinstance(drawn, str) or count < 1 or tuple(cls.inputs[count:]) != tuple(drawn):
            raise TypeError(
                f"{cls.__name__}.drawn = {cls.drawn!r} must be the last of its inputs {tuple(cls.inputs)!r}, behind "
                'at least one that is given, as in inputs, drawn = ("x", "u"), ("u",)'
            )

    def __init__(self, *, generator: Optional[torch.Generator] = None, **options: Any) -> None:
        super().__init__(**options)
        self.generator = checks.generator(type(self).__name__, generator)

    def draw(self, x: Tensor) -> Tuple[Tensor, ...]:
        """The random numbers of a call with the input ``x``, one tensor of its shape for each name in ``drawn``."""
        if x.device.type == "ipu":
            raise Unsupported(
                f"{type(self).__name__}: an IPU has no 64-bit integers, of which random numbers are made; draw on the "
                f"host and give them: neuron({', '.join(self.inputs)})"
            )
        shape = tuple(x.shape) if self.step == "single" else tuple(x.shape[1:])
        steps = 1 if self.step == "single" else x.shape[0]
        count = 1
        for size in shape:
            count *= size
        if count > MOST:
            raise ValueError(f"{type(self).__name__}: {count} neurons have no random numbers; at most 2**34 have")
        key, dtype = self._key(x.device), compute_dtype(x.dtype)
        numbers = [uniform(key, steps, shape, stream, dtype) for stream in range(len(self.drawn))]
        return tuple([u.squeeze(0) for u in numbers] if self.step == "single" else numbers)

    def _key(self, device: torch.device) -> Tensor:
        """Two words, drawn by torch."""
        if self.generator is None:
            return torch.randint(1 << 32, (2,), device=device)
        checks.refuse_compiled_draw(type(self).__name__)
        there = self.generator.device
        if device.type == "cuda" and there.type != "cuda" and torch.cuda.is_current_stream_capturing():
            raise Unsupported(
                f"{type(self).__name__}: a CUDA graph would draw the same numbers at each replay, from a generator on "
                f"{there}: leave generator= out, or make it with torch.Generator(device={str(device)!r})"
            )
        key = torch.randint(1 << 32, (2,), generator=self.generator, device=there)
        return key.to(device, non_blocking=True)

    def _repeat(self) -> Optional[int]:
        return None  # the numbers are others at every step: see _completed

    def _completed(self, inputs: Sequence[Tensor]) -> Tuple[Sequence[Tensor], Optional[torch.dtype]]:
        """The inputs with the numbers that are drawn, and the dtype of the outputs if that is another one."""
        if self.repeat is not None and self.step == "multi" and all(isinstance(x, Tensor) for x in inputs):
            count = len(self.inputs) - len(self.drawn)
            inputs = (*[x.expand(self.repeat, *x.shape) for x in inputs[:count]], *inputs[count:])
        if len(inputs) != len(self.inputs) - len(self.drawn) or not all(isinstance(x, Tensor) for x in inputs):
            return inputs, None
        x = inputs[0]
        if not x.is_floating_point() or (self.step == "multi" and not x.ndim):
            return (*inputs, *[x] * len(self.drawn)), None  # refused by its name
        wide = compute_dtype(x.dtype)
        drawn = self.draw(x)
        return (*[value.to(wide) for value in inputs], *drawn), None if wide == x.dtype else x.dtype

    def forward(self, *inputs: Tensor) -> Any:
        """Call of a neuron with the inputs that are not drawn, or with all."""
        completed, dtype = self._completed(inputs)
        return _narrow(super().forward(*completed), dtype)

    def run(self, *inputs: Tensor, state: Optional[Mapping[str, Tensor]] = None, record: Sequence[str] = ()) -> Any:
        """Counterpart of :meth:`Neuron.run <spikecore.Neuron.run>` with the inputs that are not drawn, or with all."""
        completed, dtype = self._completed(inputs)
        output, *rest = super().run(*completed, state=state, record=record)
        return (_narrow(output, dtype), *rest)

    def __getstate__(self) -> Dict[str, Any]:
        return without_generator(super().__getstate__())

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(with_generator(state))


Stochastic._equations = Stochastic


def _narrow(output: Any, dtype: Optional[torch.dtype]) -> Any:
    if dtype is None:
        return output
    return output.to(dtype) if isinstance(output, Tensor) else tuple([value.to(dtype) for value in output])


class EscapeNoise(Stochastic, LIF):
    """LIF that fires at random, the more likely the nearer its potential is to the threshold::

        h = v + (x - (v - v_reset)) / tau              decay_input=True
        h = v - (v - v_reset) / tau + x                decay_input=False
        r = rate exp(min((h - threshold) / delta, 20))
        p = 1 - exp(-r)
        z = [u < p],  u uniform in [0, 1)
        v' = v_reset where z, else h                   reset="hard"
        v' = h - threshold z                           reset="soft"
        v' = h                                         reset="none"

    For ``delta`` towards 0 it is LIF. Gerstner, Kistler, Naud and Paninski, Neuronal Dynamics (2014), section 9.1:
    exponential escape rate, and the probability of a spike within a time step.

    tau: time constant of the potential, in time steps; 1 or above.
    rate: escape rate at the threshold, in spikes per time step; above 0.
    delta: width of the noise, in the unit of the potential; above 0.
    surrogate: what takes the place of the derivative by ``p - u``; 1 if None.
    generator: what draws the random numbers, as of :class:`Stochastic`.
    decay_input: whether the input is divided by ``tau``, too.
    threshold: where it fires, in the unit of the potential; 0 or above (``v_reset`` or above where that is below 0).
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start, after a hard reset, and that ``v`` leaks to.

    The derivative of a spike is that of its probability: ``dz/dh = dp/dh``, the gradient of the expected spike given
    the potential (straight-through, Bengio et al., 2013; for spiking networks Gygax and Zenke, 2025).
    """

    inputs, drawn = ("x", "u"), ("u",)
    params = {**LIF.params, "rate": 1.0, "delta": 0.2}
    positive = ("rate", "delta")

    def __init__(
        self,
        tau: Any = params["tau"],
        *,
        rate: Any = params["rate"],
        delta: Any = params["delta"],
        surrogate: Optional[Surrogate] = None,
        **options: Any,
    ) -> None:
        surrogate = StraightThrough() if surrogate is None else surrogate
        super().__init__(tau=tau, rate=rate, delta=delta, surrogate=surrogate, **options)

    def probability(self, h: Any, p: Any) -> Any:
        """Of a spike at the potential ``h``."""
        # beyond exp(20) the probability is 1, and an infinite rate would make its derivative NaN
        return 1.0 - ops.exp(-(p.rate * ops.exp(ops.minimum((h - p.threshold) / p.delta, 20.0))))

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step."""
        h = self.charge(x.x, s, p)
        z = self.spike(self.probability(h, p) - x.u, strict=True)
        return z, {"v": self.after_spike(h, z, p)}


# random numbers by counter: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
# 3" (SC 2011), with the constants and test vectors of their library Random123


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words for each counter of four words, under a key of two; words are in int64, from 0 to 2^32 - 1.

    Counter and key broadcast against each other. A product of two words that is 2^63 or more wraps around, which leaves
    its bits as they are.
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (high >> 32 & _WORD) ^ b ^ first, high & _WORD, (low >> 32 & _WORD) ^ d ^ second, low & _WORD
        first, second = first + _WEYL[0] & _WORD, second + _WEYL[1] & _WORD
    return a, b, c, d


def uniform(key: Tensor, steps: int, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    """``[steps, *shape]`` numbers in [0, 1), multiples of 2^-24 in float32 and of 2^-32 in float64.

    ``key`` is two words in int64, on the device where the numbers are to be. Number ``i`` of step ``t``, counted over
    ``shape`` row by row, is word ``i % 4`` of counter ``(i // 4, stream, t, 0)``, of which float32 takes the upper 24
    bits. ``shape`` has at most :data:`MOST` numbers.
    """
    count = 1
    for size in shape:
        count *= size
    together = steps
    if key.device.type == "cpu":  # so that what the rounds pass on stays in the cache: three times as fast
        together = max(1, min(steps, _BLOCK // max(count, 1)))
    begins = range(0, steps, max(together, 1))
    blocks = [_block(key, first, min(together, steps - first), count, stream, dtype) for first in begins]
    numbers = blocks[0] if len(blocks) == 1 else torch.cat([*blocks, key.new_empty((0, count), dtype=dtype)])
    return numbers.reshape(steps, *shape)


def _block(key: Tensor, first: int, steps: int, count: int, stream: int, dtype: torch.dtype) -> Tensor:
    """``[steps, count]`` numbers, of the steps from ``first`` on."""
    device = key.device
    place = torch.arange((count + 3) // 4, device=device)
    step = torch.arange(first, first + steps, device=device).unsqueeze(1)
    other = torch.full((), stream, dtype=torch.int64, device=device)
    words = torch.stack(philox((place, other, step, torch.zeros_like(other)), key.unbind(0)), -1)
    words = words.reshape(steps, -1)[:, :count]
    if dtype == torch.float64:
        return words.to(dtype) * 2.0**-32
    return (words >> 8).to(dtype) * 2.0**-24
