"""Delays between a layer and the neurons behind it."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikecore._base.autocast import autocast_dtype
from spikecore._base.words import a_kind
from spikecore._delayed import Delayed, all_steps, following, whole
from spikecore._positions import PARAMS, PER, Positions
from spikecore._shell import checks, modules, parameters
from spikecore._shell.modules import is_watched_itself
from spikecore._shell.state import State
from spikecore.lang._plain import is_compiling, with_traced_sizes

#: Name of the inputs before a call in the state.
PAST = "past"


class Delay(Positions):
    """``nn.Linear`` whose connections take time: delays of 0 to ``max_delay`` steps, learnt or fixed.

    ::

        y[t, o] = bias[o] + sum over j, k of weight[o, j] * share(k, delay[o, j]) * x[t - k, j],    k = 0 .. max_delay

        share(k, d) = exp(-(k - d)^2 / (2 sigma^2)) / (sum of the same over all k)     in training, of learnt delays
        share(k, d) = 1 where k = round(d), else 0                                     in eval(), and of fixed delays

    ``[T, ..., in_features] -> [T, ..., out_features]``, or ``[..., in_features] -> [..., out_features]`` of one step
    with ``step="single"``; x is 0 before the first step. It stands before a neuron,
    ``nn.Sequential(sc.Delay(nn.Linear(700, 256), 25), sc.LIF())``, or feeds one back,
    ``sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(256, 256), 25))``, where a spike comes back ``delay + 1`` steps after it
    was fired, the step being that of the feedback itself.

    linear: an ``nn.Linear``; ``state_dict`` has its weight and bias as ``linear.weight`` and ``linear.bias``.
    max_delay: the longest delay, in time steps; 1 or more.
    delay: one value for all, a tensor ``[out, in]`` with one for each connection, or ``[in]`` with one for each input,
        in time steps from 0 to ``max_delay``; None draws uniformly from that range.
    per: ``"connection"`` or ``"input"``: the shape of ``delay`` where it is one value or drawn; None for connections.
        One delay for each input costs one product; one for each connection a product for each of ``max_delay + 1``
        lags, by a convolution over time, whose settings in torch hold (``torch.backends.cudnn.allow_tf32``).
    learn: ``("delay",)``, ``("delay", "sigma")``, or ``()`` for fixed delays, which are rounded to whole steps.
    sigma: width of the Gaussian in time steps, 0.01 or more; ``max_delay / 2`` if None. Begin wide, so that every lag
        has a gradient, and narrow it while training, ``layer.sigma = 0.5`` at the end; it is a tensor that is filled,
        so that compiled and captured steps see the new value. It is saved in ``state_dict``; fixed delays have none.
    step: ``"multi"`` or ``"single"``, as of a neuron.
    generator: what draws the delays.

    ``round`` takes a half to the even number; ``layer.whole`` has the rounded delays. A learnt delay outside its
    range counts as the nearest value inside, as parameters of neurons do; a step of ``training_model`` and
    :func:`spikecore.project` put it there. ``half()`` and ``bfloat16()`` leave ``delay`` and ``sigma`` in float32:
    in 16 bits a delay may become another whole number. The weight's gradient flows in ``eval()``, that of the delay
    does not.

    The state is ``{"past": [..., in_features, max_delay]}``, the last inputs, the newest last. It is carried, reset and
    detached as that of a neuron: a call starts from zeros but in single steps and within :func:`spikecore.carry_state`.

    Raises TypeError for a ``linear`` that is no ``nn.Linear``, and for arguments of a wrong type; ValueError for a
    delay outside its range or of another shape, for a ``sigma`` of fixed delays, and for an input of another width;
    RuntimeError for a ``linear`` with hooks, which nothing would call; TypeError for an input of another dtype than the
    weight outside autocast.

    Hammouamri, Khalfaoui-Hassani, Masquelier: Learning Delays in Spiking Neural Networks using Dilated Convolutions
    with Learnable Spacings. ICLR 2024.
    """

    def __init__(
        self,
        linear: nn.Module,
        max_delay: int,
        *,
        delay: Union[float, Tensor, None] = None,
        per: Optional[str] = None,
        learn: Tuple[str, ...] = ("delay",),
        sigma: Union[float, Tensor, None] = None,
        step: str = "multi",
        generator: Optional[torch.Generator] = None,
    ) -> None:
        super().__init__(step)
        self.linear = _checked_linear(linear)
        self._take(max_delay, delay, per, learn, sigma, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Sums for ``[T, ..., in_features]``, or ``[..., in_features]`` in single-step mode."""
        single = self.step == "single"
        if not (single or self._carrying):
            return self._steps(x, None, final=False)[0]
        before = self._begin()
        at_once = x.unsqueeze(0) if single and isinstance(x, Tensor) else x
        out, state = self._steps(at_once, before)
        self._end(state)
        return out.squeeze(0) if single else out

    def run(self, x: Tensor, *, state: Optional[Mapping[str, Tensor]] = None) -> Tuple[Tensor, State]:
        """As :meth:`Neuron.run <spikecore.Neuron.run>`: ``(output, state)`` for ``[T, ..., in_features]``."""
        return self._steps(x, state)

    @property
    def whole(self) -> Tensor:
        """The delays in whole steps, as in ``eval()``: int64, of the shape of ``delay``."""
        return whole(self.delay, self.max_delay)  # type: ignore[arg-type]  # a tensor

    def delayed(self, x: Tensor) -> Delayed:
        """What inputs such as ``x`` ``[T, ..., in_features]`` are multiplied by now."""
        linear: Any = self.linear
        # another layer may stand there since: one that adds to what its weight gives, or a quantised one
        if not is_compiling() and (is_watched_itself(linear) or type(linear).forward is not nn.Linear.forward):
            raise RuntimeError(
                f"Delay: linear has hooks or a forward of its own ({type(linear).__name__}), which nothing would call, "
                "since Delay takes its weight and bias; put hooks on the Delay, and compute the weight by "
                "torch.nn.utils.parametrize"
            )
        if x.ndim < 2 or x.shape[-1] != linear.in_features:
            single = self.step == "single"
            form = "[..., in_features] of one step" if single else "[T, ..., in_features]"
            shape = list(x.shape[1:] if single else x.shape)
            raise ValueError(f"Delay: x must be {form} with in_features={linear.in_features}, got shape {shape}")
        learnt, within = "delay" in self.learn, self._ranges()
        named = [(name, getattr(self, name)) for name in PARAMS if getattr(self, name) is not None]
        weight, bias = linear.weight, linear.bias  # once: a parametrisation computes it whenever it is read
        every = [*named, ("linear.weight", weight)]
        checks.same_device("Delay", x.device, every)
        modules.check_gathered("Delay", x, every)
        self._check_weight(x, weight)
        values = {
            name: within[name].equation(value, value.dtype) if name in self.learn else value for name, value in named
        }
        sigma = values["sigma"] if learnt and self.training else None
        if sigma is None:
            # a delay that is NaN has no whole number: it makes its weights NaN, so that it is seen here, too
            weight = weight + (0 * values["delay"].detach()).to(weight.dtype)
        return Delayed(weight, bias, values["delay"], sigma, self.max_delay)

    def _check_weight(self, x: Tensor, weight: Tensor) -> None:
        """Say what would be an error of torch's about tensors that its user does not see."""
        delay: Any = self.delay
        if delay.shape != weight.shape[2 - delay.ndim :]:
            raise ValueError(
                f"Delay: linear.weight has shape {list(weight.shape)}, and delay {list(delay.shape)}: another layer "
                "was put in the place of linear; make a new Delay of it"
            )
        if x.dtype != weight.dtype and autocast_dtype(x.device.type) is None:
            raise TypeError(
                f"Delay: x is {x.dtype} and linear.weight is {weight.dtype}; give both one dtype, by x.to(...) or "
                "layer.to(...)"
            )

    def past_before(self, owner: str, state: Mapping[str, Any], x: Tensor, carried: bool) -> Tensor:
        """The past in a state for a call with ``x``, which is checked; ``owner`` is whose state it is."""
        past, wanted = state.get(PAST), [*x.shape[1:], self.max_delay]
        if list(state) != [PAST]:
            raise ValueError(f"{owner}: state has {sorted(state)}; give a value for {PAST} and no other")
        what, way_out = (
            ("the state carried from the last call", "call sc.reset(net) between sequences of different batches")
            if carried
            else ("state", "give the inputs of the last max_delay steps, the newest last")
        )
        if not isinstance(past, Tensor) or not past.is_floating_point():
            raise TypeError(f"{owner}: {what} has {PAST}={checks.shown(past)}; give a floating-point tensor")
        if list(past.shape) != wanted:
            raise ValueError(f"{owner}: {what} has {PAST} of shape {list(past.shape)}, wanted is {wanted}; {way_out}")
        if past.device != x.device:
            raise ValueError(f"{owner}: {what} has {PAST} on {past.device}, the input is on {x.device}; {way_out}")
        return past.to(x.dtype)

    @with_traced_sizes
    def _steps(self, x: Tensor, state: Optional[Mapping[str, Tensor]], final: bool = True) -> Tuple[Tensor, State]:
        (x,) = checks.inputs("Delay", ("x",), (x,))
        of, past = self.delayed(x), None
        if state is not None:
            if not isinstance(state, Mapping):
                raise TypeError(f"Delay: state is {a_kind(state)}; give a dict with {PAST}, or None for rest")
            past = self.past_before("Delay", state, x, carried=state is self._state)
        y = all_steps(of, x, past)
        return y, {PAST: following(self.max_delay, x, past)} if final else {}

    def _state_names(self) -> Mapping[str, bool]:
        return {PAST: False}

    def in_words(self) -> str:
        """Delays in a few words."""
        delay: Any = self.delay
        which = "input" if delay.ndim == 1 else "connection"
        how = "learnt" if "delay" in self.learn else "fixed"
        return f"delays of 0 to {self.max_delay} steps per {which}, {how}"

    def extra_repr(self) -> str:
        """The longest delay, and how delays are shared, learnt and blurred."""
        delay: Any = self.delay
        parts = [f"max_delay={self.max_delay}", f"per={PER[2 - delay.ndim]!r}", f"learn={self.learn!r}"]
        if self.sigma is not None:
            parts.append(f"sigma={parameters.shown(self.sigma)}")  # type: ignore[arg-type]  # a tensor
        return ", ".join([*parts, f"step={self.step!r}"] if self.step == "single" else parts)


def _checked_linear(linear: Any) -> nn.Linear:
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        raise TypeError(
            f"Delay: linear={checks.shown(linear)} must be an nn.Linear whose forward is torch's, such as "
            "nn.Linear(C, C): delays stand between its inputs and outputs"
        )
    if is_lazy(linear.weight):
        raise TypeError("Delay: linear has no weight before its first call; give nn.Linear with its number of inputs")
    return linear
