"""Sums over delayed inputs: for all time steps at once, and for one step after the other.

::

    y[t, o] = bias[o] + sum over j, k of weight[o, j] * share[o, j, k] * x[t - k, j],      k = 0 .. longest

``share`` says which part of an input arrives after ``k`` steps: 1 at a whole delay, else a Gaussian around the delay.
With one delay for each input, ``share[j, k]``, the inputs are delayed and then multiplied by ``weight``. What came
before the first step is the ``past``, ``[*N, longest]``, the newest last; None for zeros.
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecore.lang._plain import is_jit_tracing


class Delayed(NamedTuple):
    """What delayed inputs are multiplied by in one call."""

    weight: Tensor
    bias: Optional[Tensor]
    #: ``[out, in]``, or ``[in]`` for one delay for each input.
    delay: Tensor
    #: The width of the Gaussian around each delay; None for whole delays.
    sigma: Optional[Tensor]
    longest: int

    @property
    def is_of_inputs(self) -> bool:
        """Whether each input has one delay to all outputs."""
        return self.delay.ndim == 1

    def shares(self) -> Tensor:
        """``[*delay.shape, longest + 1]``: the part of an input that arrives after each number of steps."""
        lags = torch.arange(self.longest + 1, device=self.delay.device)
        if self.sigma is None:
            return (lags == whole(self.delay, self.longest).unsqueeze(-1)).to(self.weight.dtype)
        # in 16 bits a delay of 20 steps has no more than two bits behind the point, and its square none
        wide = torch.promote_types(self.delay.dtype, torch.float32)
        apart = (lags - self.delay.to(wide).unsqueeze(-1)) / self.sigma.to(wide).unsqueeze(-1)
        # softmax divides by the sum, and does not underflow where every lag is many widths away
        return torch.softmax(-0.5 * apart.square(), -1)

    def by_lag(self) -> Tensor:
        """``[out, in, longest + 1]``: weights of the connections, by the number of steps."""
        return (self.weight.unsqueeze(-1) * self.shares()).to(self.weight.dtype)


def whole(delay: Tensor, longest: int) -> Tensor:
    """Delays as whole numbers of steps, a half to the even one."""
    # clamped as a whole number: NaN becomes one far outside, which a GPU would take for an address
    return delay.detach().round().long().clamp(0, longest)


def all_steps(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Outputs ``[T, ..., out]`` for ``x`` ``[T, ..., in]``."""
    if not x.numel():
        return F.linear(x, of.weight, of.bias)
    if of.is_of_inputs:
        delayed = _picked(of, x, past) if of.sigma is None else _blurred(of, x, past)
        return F.linear(delayed, of.weight, of.bias)
    if of.sigma is None and x.numel() // x.shape[-1] <= of.longest + 1:
        return _looked_up(of, x, past)
    summed = F.conv1d(_joined(of, x, past), of.by_lag().flip(-1), of.bias)
    return _time_first(summed, x)


def following(longest: int, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """The past of the step behind ``x``."""
    if x.shape[0] >= longest:
        return x[x.shape[0] - longest :].movedim(0, -1).clone(memory_format=torch.contiguous_format)
    before = x.new_zeros(*x.shape[1:], longest) if past is None else past
    return torch.cat([before[..., x.shape[0] :], x.movedim(0, -1)], -1)


def one_by_one(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Callable[[Tensor], Tensor]:
    """From the input of a step to its output, called for one step after the other of ``x``."""
    looks_up = of.sigma is None and x[:1].numel() // max(x.shape[-1], 1) <= of.longest + 1
    # torch.jit.trace traces a second time without gradients, and compares both traces
    if x.shape[0] == 1 or (looks_up and not (torch.is_grad_enabled() or is_jit_tracing())):
        return _Collecting(of, past)
    return _Sending(of, past)


class _Collecting:
    """The last inputs are kept, and each step is one of :func:`all_steps`."""

    def __init__(self, of: Delayed, past: Optional[Tensor]) -> None:
        self._of, self._past = of, past

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        now = x.unsqueeze(0)
        y = all_steps(self._of, now, self._past)
        self._past = following(self._of.longest, now, self._past)
        return y.squeeze(0)


class _Sending:
    """What inputs send to later steps is kept.

    An input is multiplied by the weights of all lags when it comes, and what arrives later is added to the sums of
    later steps. Collecting the last inputs in every step instead would keep ``longest + 1`` of them for backward, at
    every step.
    """

    def __init__(self, of: Delayed, past: Optional[Tensor]) -> None:
        self._of = of
        #: What arrives at this step and at those behind it, ``[..., longest + 1, size]``; None before the first step.
        self._due: Optional[Tensor] = None
        if of.is_of_inputs:
            self._shares = of.shares().transpose(0, 1).to(of.weight.dtype)  # [longest + 1, in]
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
            sent = F.linear(x, self._weights, self._bias).unflatten(-1, (of.longest + 1, of.weight.shape[0]))
        # many lags are added up in at least 32 bits, as within a product
        sums = sent.to(torch.promote_types(sent.dtype, torch.float32)) if self._due is None else sent + self._due
        self._due = F.pad(sums[..., 1:, :], (0, 0, 0, 1))
        arrived = sums[..., 0, :].to(sent.dtype)
        return F.linear(arrived, of.weight, of.bias) if of.is_of_inputs else arrived

    def _from_past(self, past: Tensor) -> Tensor:
        """What inputs before the first step still send: to ``longest`` steps, and nothing to the one behind them."""
        of = self._of
        rest = past.new_zeros(of.longest, *past.shape[:-1])
        if of.is_of_inputs:
            due = _blurred(of, rest, past)
        else:
            due = all_steps(of._replace(bias=None), rest, past)
        wide = due.movedim(0, -2).to(torch.promote_types(due.dtype, torch.float32))
        return F.pad(wide, (0, 0, 0, 1))


def _joined(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """``[N, in, longest + T]``: inputs over time, those before the first step included."""
    flat = x.reshape(x.shape[0], -1, x.shape[-1]).permute(1, 2, 0)
    if past is None:
        return F.pad(flat, (of.longest, 0))
    return torch.cat([past.reshape(flat.shape[0], flat.shape[1], of.longest), flat], -1)


def _time_first(y: Tensor, like: Tensor) -> Tensor:
    """``[N, size, T]`` as ``[T, ..., size]``, the steps of ``like``; contiguous, since neurons copy other ones."""
    return y.permute(2, 0, 1).reshape(*like.shape[:-1], y.shape[1]).contiguous()


def _looked_up(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Whole delays of connections: one input for each of them.

    For few samples and steps: this writes ``[T, ..., out, in]``, where a convolution begins with weights by lag,
    ``[out, in, longest + 1]``, nearly all of them 0. A step of one sample and 256 x 256 connections of up to 25 steps
    takes 0.3 ms instead of 20.
    """
    windows = _joined(of, x, past).unfold(-1, of.longest + 1, 1).permute(2, 0, 1, 3).flatten(2).flatten(0, 1)
    first = torch.arange(of.longest, windows.shape[-1], of.longest + 1, device=x.device)
    chosen = (first - whole(of.delay, of.longest)).flatten()
    inputs = windows.index_select(1, chosen).unflatten(1, of.delay.shape)
    y = torch.einsum("noi,oi->no", inputs, of.weight)
    y = y if of.bias is None else y + of.bias.to(y.dtype)
    return y.view(*x.shape[:-1], y.shape[-1])


def _blurred(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Every input summed over its lags."""
    shares = of.shares().flip(-1).unsqueeze(1).to(of.weight.dtype)
    return _time_first(F.conv1d(_joined(of, x, past), shares, groups=shares.shape[0]), x)


def _picked(of: Delayed, x: Tensor, past: Optional[Tensor]) -> Tensor:
    """Every input a whole number of steps later."""
    before = x.new_zeros(of.longest, *x.shape[1:]) if past is None else past.movedim(-1, 0)
    steps = torch.arange(of.longest, of.longest + x.shape[0], device=x.device)
    sources = steps.unsqueeze(-1) - whole(of.delay, of.longest)
    spread: List[int] = [x.shape[0], *[1] * (x.ndim - 2), x.shape[-1]]
    return torch.cat([before, x]).gather(0, sources.view(spread).expand(x.shape))
