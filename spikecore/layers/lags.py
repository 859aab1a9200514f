"""Delays as functions of tensors: what arrives at each step from the inputs before it.

::

    y[t, o] = bias[o] + sum over j, k of weight[o, j] * share[o, j, k] * x[t - k, j],      k = 0 .. longest

``share`` is the part of an input that arrives after ``k`` steps: 1 at a whole delay, else a Gaussian around the delay.
With one delay for each input, ``share[j, k]``, or one for all, ``share[k]``, the inputs are delayed and then go through
the layer. What came before the first step is the ``past``, ``[*N, longest]``, the newest last; None for zeros. Inputs
are ``[T, ..., C, *S]``: C channels at places S, of which a linear layer has none.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Tuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecore.context import EAGER, is_exporting, world
from spikecore.scan import is_any_length

#: Convolutions over this many dimensions and one more: that of time.
_OVER_TIME = (F.conv1d, F.conv2d, F.conv3d)
#: Convolutions that take delays, and how many dimensions their places have.
PLACES = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2}
_PRODUCTS = (F.linear, F.conv1d, F.conv2d)


class Delayed(NamedTuple):
    """Layer and delays of one call."""

    #: ``nn.Linear``, a convolution, or ``nn.Identity`` for delays alone.
    layer: nn.Module
    #: Weight and bias of the layer, computed once for the call.
    weight: Optional[Tensor]
    bias: Optional[Tensor]
    #: Of the shape of the weight, ``[C]`` for one delay for each input, or ``[]`` for one for all.
    delay: Tensor
    #: The width of the Gaussian around each delay; None for whole delays.
    sigma: Optional[Tensor]
    longest: int

    @property
    def is_of_inputs(self) -> bool:
        """True if an input has one delay to all outputs."""
        return self.weight is None or self.delay.ndim < 2

    @property
    def places(self) -> int:
        """Number of dimensions behind that of the channels."""
        return max(self.delay.ndim - 1, 0) if self.weight is None else self.weight.ndim - 2

    def shares(self, dtype: torch.dtype) -> Tensor:
        """``[*delay.shape, longest + 1]``: the part of an input that arrives after each number of steps."""
        lags = torch.arange(self.longest + 1, device=self.delay.device)
        if self.sigma is None:
            return (lags == whole(self.delay, self.longest).unsqueeze(-1)).to(dtype)
        # in 16 bits a delay of 20 steps has no more than two bits behind the point, and its square none
        wide = torch.promote_types(self.delay.dtype, torch.float32)
        apart = (lags - self.delay.to(wide).unsqueeze(-1)) / self.sigma.to(wide).unsqueeze(-1)
        # softmax divides by the sum, and does not underflow where every lag is many widths away
        return torch.softmax(-0.5 * apart.square(), -1).to(dtype)

    def by_lag(self) -> Tensor:
        """``[*weight.shape, longest + 1]``: weights of the connections, by the number of steps."""
        weight: Any = self.weight
        wide = torch.promote_types(self.delay.dtype, weight.dtype)
        return (weight.unsqueeze(-1) * self.shares(wide)).to(weight.dtype)  # type: ignore[no-any-return]  # a tensor

    def product(self, x: Tensor) -> Tensor:
        """The layer's output for inputs ``[T, ..., C, *S]``."""
        if self.weight is None:
            return x
        if not self.places:
            return F.linear(x, self.weight, self.bias)
        flat = x.flatten(0, -2 - self.places)
        out = _PRODUCTS[self.places](flat, self.weight, self.bias, *self._strides(()))
        return out.view(*x.shape[: -1 - self.places], *out.shape[1:])

    def over_time(self, x: Tensor) -> Tensor:
        """``[N, C, longest + T, *S] -> [N, O, T, *S]``: the layer with the weights of all lags."""
        kernel = self.by_lag().movedim(-1, 2).flip(2)
        return _OVER_TIME[self.places](x, kernel, self.bias, *self._strides((0,)))

    def _strides(self, time: Tuple[int, ...]) -> Tuple[Any, ...]:
        """Stride, padding, dilation and groups of the layer, behind those of time."""
        layer: Any = self.layer
        if not self.places:
            return ()
        ones = (1,) * len(time)
        return (*ones, *layer.stride), (*time, *layer.padding), (*ones, *layer.dilation), layer.groups


def whole(delay: Tensor, longest: int) -> Tensor:
    """Delays as whole numbers of steps, a half to the even one."""
    # clamped as a whole number: NaN becomes one far outside, which a GPU would take for an address
    return delay.detach().round().long().clamp(0, longest)


def all_steps(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Outputs ``[T, ..., O, *S]`` for ``x`` ``[T, ..., C, *S]``."""
    if not x.numel():
        return of.product(x)
    if of.is_of_inputs:
        return of.product(_picked(of, x, past) if of.sigma is None else _blurred(of, x, past))
    if not of.places and of.sigma is None and _are_few(of, x):
        return _looked_up(of, x, past)
    return _time_first(of.over_time(_joined(of.longest, of.places, x, past)), x, of.places)


def following(longest: int, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """The past of the step behind ``x``."""
    if not is_any_length(x) and x.shape[0] >= longest:
        return x[x.shape[0] - longest :].movedim(0, -1).clone(memory_format=torch.contiguous_format)
    before = x.new_zeros(*x.shape[1:], longest) if past is None else past
    if is_any_length(x):
        return torch.cat([before, x.movedim(0, -1)], -1)[..., x.shape[0] :].clone(memory_format=torch.contiguous_format)
    return torch.cat([before[..., x.shape[0] :], x.movedim(0, -1)], -1)


def one_by_one(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Callable[[Tensor], Tensor]:
    """From the input of a step to its output, called for one step after the other of ``x``."""
    looks_up = of.sigma is None and _are_few(of, x[:1])
    if not (x.shape[0] == 1 or (looks_up and not torch.is_grad_enabled())):
        return _Sending(of, past)

    def of_last_inputs(x_t: Tensor) -> Tensor:
        nonlocal past
        y = all_steps(of, x_t.unsqueeze(0), past)
        past = following(of.longest, x_t.unsqueeze(0), past)
        return y.squeeze(0)

    return of_last_inputs


class _Sending:
    """Delay line that keeps the sums that inputs send to later steps.

    An input is multiplied by the weights of all lags when it comes, and what arrives later is added to the sums of
    later steps. Collecting the last inputs in every step instead would keep ``longest + 1`` of them for backward, at
    every step.
    """

    def __init__(self, of: Delayed, past: Optional[Tensor]) -> None:
        self._of, weight = of, cast(Tensor, of.weight)
        self._weight = weight
        #: Sums that arrive at this step and at later ones, ``[..., longest + 1, size]``; None before the first step.
        self._due: Optional[Tensor] = None
        if of.is_of_inputs:
            shares = of.shares(weight.dtype)
            self._shares = shares.view(-1, of.longest + 1).transpose(0, 1)  # [longest + 1, in], or [longest + 1, 1]
        else:
            self._weights = of.by_lag().permute(2, 0, 1).flatten(0, 1)  # [(longest + 1) * out, in]
            self._bias = None if of.bias is None else F.pad(of.bias, (0, self._weights.shape[0] - of.bias.shape[0]))
        if past is not None and past.numel():
            self._due = self._from_past(past)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        of = self._of
        if of.is_of_inputs:
            sent = x.unsqueeze(-2) * self._shares
        else:
            sent = F.linear(x, self._weights, self._bias).unflatten(-1, (of.longest + 1, self._weight.shape[0]))
        # many lags are added up in at least 32 bits, as within a product
        sums = sent.to(torch.promote_types(sent.dtype, torch.float32)) if self._due is None else sent + self._due
        self._due = F.pad(sums[..., 1:, :], (0, 0, 0, 1))
        arrived = sums[..., 0, :].to(sent.dtype)
        return F.linear(arrived, self._weight, of.bias) if of.is_of_inputs else arrived

    def _from_past(self, past: Tensor) -> Tensor:
        """Sums that inputs before the first step still send: to ``longest`` steps, and 0 to the one behind them."""
        of = self._of
        rest = past.new_zeros(of.longest, *past.shape[:-1])
        if of.is_of_inputs:
            due = _blurred(of, rest, past)
        else:
            due = all_steps(of._replace(bias=None), rest, past)
        wide = due.movedim(0, -2).to(torch.promote_types(due.dtype, torch.float32))
        return F.pad(wide, (0, 0, 0, 1))


def _joined(longest: int, places: int, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """``[N, C, longest + T, *S]``: inputs over time, those before the first step included."""
    flat = x.reshape(x.shape[0], -1, *x.shape[-1 - places :]).movedim(0, 2)
    if past is None:
        return F.pad(flat, (*[0] * (2 * places), longest, 0))
    before = past.reshape(flat.shape[0], *past.shape[-2 - places :]).movedim(-1, 2)
    return torch.cat([before, flat], 2)


def _time_first(y: Tensor, like: Tensor, places: int) -> Tensor:
    """``[N, O, T, *S]`` as ``[T, ..., O, *S]``, the steps of ``like``; contiguous, since neurons copy other ones."""
    y = y.movedim(2, 0)
    return y.reshape(*like.shape[: -1 - places], *y.shape[2:]).contiguous()


def _are_few(of: Delayed, x: Tensor) -> bool:
    """True for few samples and steps, of which torch.export knows the numbers."""
    rows: Any = x.numel() // max(x.shape[-1], 1)
    return not (is_exporting() and isinstance(rows, torch.SymInt)) and rows <= of.longest + 1


def _looked_up(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Whole delays of the connections of a linear layer: one input for each of them.

    For few samples and steps: this writes ``[T, ..., out, in]``, where a convolution begins with weights by lag,
    ``[out, in, longest + 1]``, nearly all of them 0. A step of one sample and 256 x 256 connections of up to 25 steps
    takes 0.3 ms instead of 20.
    """
    joined = _joined(of.longest, 0, x, past)
    windows = joined.unfold(-1, of.longest + 1, 1).permute(2, 0, 1, 3).flatten(2).flatten(0, 1)
    first = torch.arange(of.longest, windows.shape[-1], of.longest + 1, device=x.device)
    chosen = (first - whole(of.delay, of.longest)).flatten()
    inputs = windows.index_select(1, chosen).unflatten(1, of.delay.shape)
    y = torch.einsum("noi,oi->no", inputs, of.weight)
    y = y if of.bias is None else y + of.bias.to(y.dtype)
    return y.view(*x.shape[:-1], y.shape[-1])


def _blurred(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Every input summed over its lags."""
    places, shape = of.places, x.shape
    shares = of.shares(x.dtype if of.weight is None else of.weight.dtype).flip(-1)
    if shares.ndim == 1:  # one for all: every number is a sample of one channel
        places, x = 0, x.reshape(x.shape[0], -1, 1)
        past = None if past is None else past.reshape(-1, 1, of.longest)
    kernel = shares.reshape(-1, 1, of.longest + 1, *[1] * places)
    summed = _OVER_TIME[places](_joined(of.longest, places, x, past), kernel, groups=kernel.shape[0])
    return _time_first(summed, x, places).view(shape)


def _picked(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Every input a whole number of steps later."""
    steps = whole(of.delay, of.longest)
    if not steps.ndim and steps.is_cpu and world() is EAGER:
        return _shifted(int(steps), of.longest, x, past)
    before = x.new_zeros(of.longest, *x.shape[1:]) if past is None else past.movedim(-1, 0)
    at = torch.arange(of.longest, of.longest + x.shape[0], device=x.device)
    if not steps.ndim:
        return torch.cat([before, x]).index_select(0, at - steps)
    steps = steps.view(-1, *[1] * of.places)
    sources = at.view(-1, *[1] * (x.ndim - 1)) - steps
    return torch.cat([before, x]).gather(0, sources.expand(x.shape))


def _shifted(steps: int, longest: int, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """All inputs a number of steps later that the host knows: one copy."""
    before = x.new_zeros(steps, *x.shape[1:]) if past is None else past.movedim(-1, 0)[longest - steps :]
    return torch.cat([before, x])[: x.shape[0]] if x.shape[0] < steps else torch.cat([before, x[: x.shape[0] - steps]])
