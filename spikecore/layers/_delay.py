"""Delays between a layer and the neurons behind it: a linear layer whose connections take time.

::

    y[t, o] = bias[o] + sum over j, k of weight[o, j] * share[o, j, k] * x[t - k, j],      k = 0 .. longest

``share`` says which part of an input arrives after ``k`` steps: 1 at a whole delay, else a Gaussian around the delay.
With one delay for each input, ``share[j, k]``, the inputs are delayed and then multiplied by ``weight``. What came
before the first step is the ``past``, ``[*N, longest]``, the newest last; None for zeros.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from spikecore.context import autocast_dtype
from spikecore.core import checks, modules, parameters, ranges
from spikecore.core.modules import has_own_hooks
from spikecore.core.state import State, Stateful
from spikecore.words import shown

PARAMS = ("delay", "sigma")
#: Name of the inputs before a call in the state.
PAST = "past"
#: Sharing of a delay: one for each connection, or one for all connections of an input.
PER = ("connection", "input")
#: The least width. There all but one lag have a part below the smallest number, unless a delay ends in one half.
_LEAST_SIGMA = 0.01


class Delay(Stateful):
    """``nn.Linear`` whose connections take time: delays of 0 to ``max_delay`` steps, learnt or fixed.

    ::

        y[t, o] = bias[o] + sum over j, k of weight[o, j] * share(k, delay[o, j]) * x[t - k, j],    k = 0 .. max_delay

        share(k, d) = exp(-(k - d)^2 / (2 sigma^2)) / (sum of the same over all k)     in training, of learnt delays
        share(k, d) = 1 where k = round(d), else 0                                     in eval(), and of fixed delays

    ``[T, ..., in_features] -> [T, ..., out_features]``, or ``[..., in_features] -> [..., out_features]`` of one step
    with ``step="single"``; x is 0 before the first step. It stands before a neuron,
    ``nn.Sequential(sc.Delay(nn.Linear(700, 256), 25), sc.LIF())``, or feeds one back,
    ``sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(256, 256), 25))``, where a spike comes back ``delay + 1`` steps
    after it was fired, the step being that of the feedback itself.

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
    :func:`spikecore.functional.project` put it there. ``half()`` and ``bfloat16()`` leave ``delay`` and ``sigma`` in
    float32: in 16 bits a delay may become another whole number. The weight's gradient flows in ``eval()``, that of the
    delay does not.

    The state is ``{"past": [..., in_features, max_delay]}``, the last inputs, the newest last. It is carried, reset and
    detached as that of a neuron: a call starts from zeros but in single steps and within :func:`spikecore.carry_state`.

    Raises TypeError for a ``linear`` that is no ``nn.Linear``, and for arguments of a wrong type; ValueError for a
    delay outside its range or of another shape, for a ``sigma`` of fixed delays, for an input of another width, and for
    a ``linear`` with hooks, which nothing would call; those that it gets later are not called. TypeError for an input
    of another dtype than the weight outside autocast.

    Hammouamri, Khalfaoui-Hassani, Masquelier: Learning Delays in Spiking Neural Networks using Dilated Convolutions
    with Learnable Spacings. ICLR 2024.
    """

    max_delay: int
    learn: Tuple[str, ...]
    linear: nn.Linear
    #: True if a tensor that is set replaces the one before, and does not fill it.
    _assigns = False

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
        self.linear = linear  # type: ignore[assignment]  # checked in __setattr__
        if checks.whole("Delay", "max_delay", max_delay) < 1:
            raise ValueError(f"Delay: max_delay={max_delay} must be 1 or more; without delays use the layer itself")
        self.max_delay = max_delay
        self.learn = parameters.names_to_learn("Delay", learn, PARAMS)
        if "sigma" in self.learn and "delay" not in self.learn:
            raise ValueError("Delay: learn names 'sigma' alone, and fixed delays have none; learn 'delay', too")
        start = self._first_delay(delay, per, generator)
        parameters.declare(self, "delay", start, "delay" in self.learn)
        if "delay" in self.learn:
            width = torch.as_tensor(self._inside("sigma", max_delay / 2 if sigma is None else sigma)).to(start)
            if width.ndim:
                self._check_shape("sigma", width, start.shape)
            parameters.declare(self, "sigma", width.clone(), "sigma" in self.learn)
            return
        if sigma is not None:
            raise ValueError(
                f"Delay: sigma={shown(sigma)} has no effect on fixed delays, which are rounded to whole steps; "
                "leave it out, or learn=('delay',)"
            )
        self.register_buffer("sigma", None)

    def _first_delay(self, delay: Any, per: Optional[str], generator: Optional[torch.Generator]) -> Tensor:
        weight: Any = self.linear.weight
        shapes = {None: (weight.shape, weight.shape[1:]), "connection": (weight.shape,), "input": (weight.shape[1:],)}
        if per not in shapes:
            raise ValueError(f"Delay: per={per!r} must be 'connection' or 'input'")
        like = {"dtype": torch.promote_types(weight.dtype, torch.float32), "device": weight.device}
        if delay is None:
            return torch.rand(shapes[per][0], generator=generator, **like) * self.max_delay
        value = self._inside("delay", delay)
        if not isinstance(value, Tensor):
            return torch.full(shapes[per][0], value, **like)
        if value.shape not in shapes[per]:
            fitting = " or ".join(str(list(shape)) for shape in shapes[per]) + (f" for per={per!r}" if per else "")
            raise ValueError(f"Delay: delay has shape {list(value.shape)}; give one number, or shape {fitting}")
        # a Parameter may be learnt in several places; any other tensor is the caller's
        shared = isinstance(value, nn.Parameter) and "delay" in self.learn
        return value if shared else value.detach().clone()

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
        """Analogue of :meth:`Neuron.run <spikecore.Neuron.run>`: ``(output, state)`` for ``[T, ..., in_features]``."""
        return self._steps(x, state)

    @property
    def whole(self) -> Tensor:
        """The delays in whole steps, as in ``eval()``: int64, of the shape of ``delay``."""
        return whole(self.delay, self.max_delay)

    def delayed(self, x: Tensor) -> Delayed:
        """Current weight, bias and delays, cast for inputs such as ``x`` ``[T, ..., in_features]``."""
        linear: Any = self.linear
        if x.ndim < 2 or x.shape[-1] != linear.in_features:
            single = self.step == "single"
            form = "[..., in_features] of one step" if single else "[T, ..., in_features]"
            shape = list(x.shape[1:] if single else x.shape)
            raise ValueError(f"Delay: x must be {form} with in_features={linear.in_features}, got shape {shape}")
        delay: Any = self.delay
        sigma: Any = self.sigma
        weight, bias = linear.weight, linear.bias  # once: a parametrisation computes it whenever it is read
        tensors = [("delay", delay), *([] if sigma is None else [("sigma", sigma)]), ("linear.weight", weight)]
        checks.same_device("Delay", x.device, tensors)
        modules.check_gathered("Delay", x, tensors)
        if x.dtype != weight.dtype and autocast_dtype(x.device.type) is None:
            raise TypeError(
                f"Delay: x is {x.dtype} and linear.weight is {weight.dtype}; give both one dtype, by x.to(...) or "
                "layer.to(...)"
            )
        ranges_ = self._ranges()
        delay = ranges_["delay"].equation(delay, delay.dtype) if "delay" in self.learn else delay
        if sigma is None or not self.training:
            # a delay that is NaN has no whole number: it makes its weights NaN, so that it is seen here, too
            return Delayed(weight + (0 * delay.detach()).to(weight.dtype), bias, delay, None, self.max_delay)
        sigma = ranges_["sigma"].equation(sigma, sigma.dtype) if "sigma" in self.learn else sigma
        return Delayed(weight, bias, delay, sigma, self.max_delay)

    def _steps(self, x: Tensor, state: Optional[Mapping[str, Tensor]], final: bool = True) -> Tuple[Tensor, State]:
        (x,) = checks.inputs("Delay", ("x",), (x,))
        of = self.delayed(x)
        shape = (*x.shape[1:], self.max_delay)
        start = checks.state("Delay", (PAST,), state, x, state is self._state, {PAST: shape})
        past = None if start is None else start[0].to(x.dtype)
        y = all_steps(of, x, past)
        return y, {PAST: following(self.max_delay, x, past)} if final else {}

    def _state_names(self) -> Collection[str]:
        return (PAST,)

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
            parts.append(f"sigma={parameters.shown(self.sigma)}")
        return ", ".join([*parts, f"step={self.step!r}"] if self.step == "single" else parts)

    def project(self) -> None:
        """Put learnt delays and widths that left their ranges back to the nearest value inside, in place."""
        ranges.project(self._parameters, self._ranges())

    def _ranges(self) -> Dict[str, ranges.Interval]:
        return {"delay": ranges.Interval(0.0, float(self.max_delay)), "sigma": ranges.Interval(_LEAST_SIGMA)}

    def _inside(self, name: str, value: Any) -> Union[float, Tensor]:
        """A number or tensor in the range of the parameter of this name."""
        checked = parameters.checked("Delay", name, value)
        interval = self._ranges()[name]
        fine = True
        if not isinstance(checked, Tensor):
            # not through a tensor, which torch.device("meta") would make without a value
            fine = bool(interval.holds(checked))
        elif type(checked) in (Tensor, nn.Parameter) and checked.is_cpu:
            # in float32: a module in float32 that becomes float64 has a width that is 2e-10 below the least one
            fine = bool(interval.holds(checked.float()).all())
        if not fine:
            raise ValueError(f"Delay: {name}={shown(value)} must be {interval}, in time steps")
        return checked

    def _check_shape(self, name: str, value: Tensor, shape: Any) -> None:
        if value.shape != shape:
            raise ValueError(f"Delay: {name} has shape {list(value.shape)}, wanted is {list(shape)} or one number")

    def _own_names(self) -> Collection[str]:
        return (*super()._own_names(), *PARAMS, "linear", "max_delay", "learn")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("max_delay", "learn") and name in self.__dict__:
            raise AttributeError(f"Delay: {name} is fixed when a Delay is made; make a new one")
        if name == "linear":
            _check_linear(value, self._parameters.get("delay", self._buffers.get("delay")))
        before = self._parameters.get(name, self._buffers.get(name)) if name in PARAMS else None
        if before is None:
            if name in PARAMS and name in self._buffers:
                raise AttributeError("Delay: fixed delays have no sigma; make a new one with learn=('delay',)")
            super().__setattr__(name, value)
            return
        value = self._inside(name, value)
        if isinstance(value, nn.Parameter) and isinstance(before, nn.Parameter):
            # its shape says whether delays are of connections or of inputs
            if value.shape != before.shape:
                shapes = f"{list(value.shape)}, wanted is {list(before.shape)}"
                raise ValueError(f"Delay: {name} is a Parameter of shape {shapes}; give a number")
            super().__setattr__(name, value)
            return
        if isinstance(value, Tensor):
            value = value.detach().reshape(()).expand(before.shape) if value.numel() == 1 else value.detach()
            self._check_shape(name, value, before.shape)
        with torch.no_grad():
            if isinstance(value, Tensor) and (self._assigns or before.is_meta):
                value = value.contiguous()  # an expanded one has no memory of its own
                learnt = isinstance(before, nn.Parameter)
                super().__setattr__(name, nn.Parameter(value, before.requires_grad) if learnt else value)
            elif isinstance(value, Tensor):
                before.copy_(value)  # in place: what torch compiled or captured reads this memory
            else:
                before.fill_(value)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        params = [value for value in map({**self._parameters, **self._buffers}.get, PARAMS) if value is not None]
        ours = {id(value) for value in [*params, *[value.grad for value in params]]}

        def wide(value: Tensor) -> Tensor:
            # of 17.45 steps bfloat16 makes 17.5, which is rounded to 18, and of 299 steps 300
            moved = fn(value)
            dtype = torch.promote_types(moved.dtype, torch.float32)
            return value.to(moved.device, dtype) if id(value) in ours and dtype != moved.dtype else moved

        return super()._apply(wide, *args, **kwargs)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.project()  # an optimiser may have stepped since the last call, and what is saved must load again
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # a layer with a smaller max_delay than the saved one would cut its delays in silence
        errors: List[str] = []
        for name in PARAMS:
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor) and not value.is_meta:
                try:
                    self._inside(name, value.detach().cpu())
                except (TypeError, ValueError) as error:
                    errors.append(f"{prefix}{name}: {error}")
        if not errors:
            self.__dict__["_assigns"] = True  # torch sets attributes with assign=True alone
            try:
                super()._load_from_state_dict(state_dict, prefix, *args)
            finally:
                del self.__dict__["_assigns"]
        args[-1].extend(errors)


def _check_linear(linear: Any, delay: Optional[Tensor]) -> None:
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        raise TypeError(
            f"Delay: linear={shown(linear)} must be an nn.Linear whose forward is torch's, such as "
            "nn.Linear(C, C): delays stand between its inputs and outputs"
        )
    if is_lazy(linear.weight):
        raise TypeError("Delay: linear has no weight before its first call; give nn.Linear with its number of inputs")
    if has_own_hooks(linear):
        raise ValueError(
            "Delay: linear has hooks or a forward of its own, which nothing would call, since Delay takes its weight "
            "and bias; put hooks on the Delay, and compute the weight by torch.nn.utils.parametrize"
        )
    if delay is not None and delay.shape != linear.weight.shape[2 - delay.ndim :]:
        raise ValueError(
            f"Delay: linear.weight has shape {list(linear.weight.shape)}, and delay {list(delay.shape)}; make a new "
            "Delay of another layer"
        )


class Delayed(NamedTuple):
    """Weight, bias and delays of one call."""

    weight: Tensor
    bias: Optional[Tensor]
    #: ``[out, in]``, or ``[in]`` for one delay for each input.
    delay: Tensor
    #: The width of the Gaussian around each delay; None for whole delays.
    sigma: Optional[Tensor]
    longest: int

    @property
    def is_of_inputs(self) -> bool:
        """True if each input has one delay to all outputs."""
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
        self._of = of
        #: Sums that arrive at this step and at later ones, ``[..., longest + 1, size]``; None before the first step.
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
        """Sums that inputs before the first step still send: to ``longest`` steps, and 0 to the one behind them."""
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
