"""Layers whose inputs take time: linear layers, convolutions, or axons alone."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikecore.context import autocast_dtype
from spikecore.core import checks, modules, observe, parameters, ranges
from spikecore.core.modules import has_own_hooks
from spikecore.core.state import State, Stateful
from spikecore.layers.lags import PLACES, Delayed, all_steps, following, whole
from spikecore.words import shown

PARAMS = ("delay", "sigma")
#: Name of the inputs before a call in the state.
PAST = "past"
#: Sharing of a delay: one for each connection, one for all connections of an input, or one for the layer.
PER = ("connection", "input", "layer")
#: The least width. There all but one lag have a part below the smallest number, unless a delay ends in one half.
_LEAST_SIGMA = 0.01
#: The width that annealing ends with, at which a whole delay has 0.79 of its weight, as published.
_ANNEALED = 0.5


class Delay(Stateful):
    """A layer whose inputs take time: delays of 0 to ``max_delay`` steps, learnt or fixed.

    ::

        y[t, o] = bias[o] + sum over j, k of weight[o, j] * share(k, delay[o, j]) * x[t - k, j],    k = 0 .. max_delay

        share(k, d) = exp(-(k - d)^2 / (2 sigma^2)) / (sum of the same over all k)     in training, of learnt delays
        share(k, d) = 1 where k = round(d), else 0                                     in eval(), and of fixed delays

    ``[T, ..., in_features] -> [T, ..., out_features]``, or ``[..., in_features] -> [..., out_features]`` of one step
    with ``step="single"``; x is 0 before the first step. A convolution takes ``[T, B, C, L]`` or ``[T, B, C, H, W]``,
    and the sum goes over the taps of its kernel, too. It stands before a neuron,
    ``nn.Sequential(sc.Delay(nn.Linear(700, 256), 25), sc.LIF())``, or feeds one back,
    ``sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(256, 256), 25))``, where a spike comes back ``delay + 1`` steps
    after it was fired, the step being that of the feedback itself.

    linear: an ``nn.Linear``, ``nn.Conv1d`` or ``nn.Conv2d``, or ``nn.Identity()`` for axons, which delay their inputs
        and do nothing else; ``state_dict`` has its weight and bias as ``linear.weight`` and ``linear.bias``.
    max_delay: the longest delay, in time steps; 1 or more.
    delay: one value for all, a tensor of the weight's shape with one for each connection, or ``[in]`` with one for each
        input (channel), in time steps from 0 to ``max_delay``; None draws uniformly from that range. Axons take one
        value, ``[C]`` along the last dimension, or ``[C, 1, 1]`` for the channels of ``[T, B, C, H, W]``.
    per: ``"connection"``, ``"input"`` or ``"layer"``: the shape of ``delay`` where it is one value or drawn. None is
        ``"layer"`` for axons and for one fixed value, else ``"connection"``. One delay for the layer costs a shift, and
        one for each input a look-up; one for each connection costs a product for each of ``max_delay + 1`` lags, by a
        convolution over time, whose settings in torch hold (``torch.backends.cudnn.allow_tf32``).
    learn: ``("delay",)``, ``("delay", "sigma")``, or ``()`` for fixed delays, which are rounded to whole steps.
    sigma: width of the Gaussian in time steps, 0.01 or more; ``max_delay / 2`` if None. Begin wide, so that every lag
        has a gradient, and narrow it while training, by ``anneal`` or ``layer.sigma = 0.5``; it is a tensor that is
        filled, so that compiled and captured steps see the new value. It is saved in ``state_dict``; fixed delays have
        none.
    anneal: number of training steps in which ``sigma`` becomes 0.5, by the same factor in each, as published. A step
        of ``training_model`` narrows it; in a loop of your own :func:`spikecore.functional.anneal` does, once after
        ``optimizer.step()``. ``state_dict`` then has the width that it began with, too, as ``first_sigma``: a loaded
        checkpoint goes on.
    step: ``"multi"`` or ``"single"``, as of a neuron.
    generator: what draws the delays.

    ``round`` takes a half to the even number; ``layer.whole`` has the rounded delays. A learnt delay outside its
    range counts as the nearest value inside, as parameters of neurons do; a step of ``training_model`` and
    :func:`spikecore.functional.project` put it there. ``half()`` and ``bfloat16()`` leave ``delay`` and ``sigma`` in
    float32: in 16 bits a delay may become another whole number. The weight's gradient flows in ``eval()``, that of the
    delay does not.

    The state is ``{"past": [..., in_features, max_delay]}``, the last inputs, the newest last. It is carried, reset and
    detached as that of a neuron: a call starts from zeros but in single steps and within :func:`spikecore.carry_state`.

    Warns in ``eval()`` where ``sigma`` is above 1 and nothing narrows it: whole delays compute something else than the
    wide Gaussians that were trained.

    A checkpoint of a layer with ``anneal`` loads without it, too. One of learnt delays is refused by fixed ones.

    Raises TypeError for a ``linear`` of another kind, and for arguments of a wrong type; ValueError for a delay outside
    its range or of another shape, for a ``sigma`` of fixed delays, for an input of another width, and for a ``linear``
    with hooks, which nothing would call; those that it gets later are not called. TypeError for an input of another
    dtype than the weight outside autocast.

    Hammouamri, Khalfaoui-Hassani, Masquelier: Learning Delays in Spiking Neural Networks using Dilated Convolutions
    with Learnable Spacings. ICLR 2024.
    """

    max_delay: int
    learn: Tuple[str, ...]
    linear: Any
    #: Training steps in which ``sigma`` becomes narrow; None leaves it to the user.
    anneal: Optional[int]
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
        anneal: Optional[int] = None,
        step: str = "multi",
        generator: Optional[torch.Generator] = None,
    ) -> None:
        super().__init__(step)
        self.linear = linear
        if checks.whole("Delay", "max_delay", max_delay) < 1:
            raise ValueError(f"Delay: max_delay={max_delay} must be 1 or more; without delays use the layer itself")
        self.max_delay = max_delay
        self.learn = parameters.names_to_learn("Delay", learn, PARAMS)
        if "sigma" in self.learn and "delay" not in self.learn:
            raise ValueError("Delay: learn names 'sigma' alone, and fixed delays have none; learn 'delay', too")
        self.anneal = self._checked_anneal(anneal, sigma)
        start = self._first_delay(delay, per, generator)
        parameters.declare(self, "delay", start, "delay" in self.learn)
        if "delay" in self.learn:
            width = torch.as_tensor(self._inside("sigma", max_delay / 2 if sigma is None else sigma)).to(start)
            if width.ndim:
                self._check_shape("sigma", width, start.shape)
            parameters.declare(self, "sigma", width.clone(), "sigma" in self.learn)
            if self.anneal is not None:
                self.register_buffer("first_sigma", width.clone())
            return
        if sigma is not None:
            raise ValueError(
                f"Delay: sigma={shown(sigma)} has no effect on fixed delays, which are rounded to whole steps; "
                "leave it out, or learn=('delay',)"
            )
        self.register_buffer("sigma", None)

    def _checked_anneal(self, anneal: Any, sigma: Any) -> Optional[int]:
        if anneal is None:
            return None
        if checks.whole("Delay", "anneal", anneal) < 1:
            raise ValueError(f"Delay: anneal={anneal} must be 1 or more, a number of training steps")
        if self.learn != ("delay",) or isinstance(sigma, Tensor):
            raise ValueError(
                f"Delay: anneal={anneal} narrows one sigma for all while delays are learnt; give learn=('delay',), and "
                "a number as sigma"
            )
        return int(anneal)

    def _first_delay(self, delay: Any, per: Optional[str], generator: Optional[torch.Generator]) -> Tensor:
        weight: Any = getattr(self.linear, "weight", None)
        shapes: Dict[str, Tuple[int, ...]] = {"layer": ()}
        like: Dict[str, Any] = {"dtype": torch.float32}
        if weight is not None:
            shapes.update(connection=tuple(weight.shape), input=(_channels(self.linear),))
            like = {"dtype": torch.promote_types(weight.dtype, torch.float32), "device": weight.device}
        if per is not None and per not in shapes:
            named = " or ".join(repr(name) for name in sorted(shapes))
            axons = "; axons take a tensor [C] as delay" if weight is None else ""
            raise ValueError(f"Delay: per={per!r} must be {named}{axons}")
        value = None if delay is None else self._inside("delay", delay)
        if not isinstance(value, Tensor):
            alone = weight is None or (value is not None and "delay" not in self.learn)
            shape = shapes[per or ("layer" if alone else "connection")]
            if value is None:
                return torch.rand(shape, generator=generator, **like) * self.max_delay
            return torch.full(shape, value, **like)
        fitting = [shape for name, shape in shapes.items() if per in (None, name)]
        is_of_axons = weight is None and per is None and value.ndim > 0 and value.shape[1:].numel() == 1
        if tuple(value.shape) not in fitting and not is_of_axons:
            wanted = " or ".join(str([*shape]) for shape in fitting if shape) + (f" for per={per!r}" if per else "")
            wanted = wanted or "[C], or [C, 1, 1] for channels"
            raise ValueError(f"Delay: delay has shape {list(value.shape)}; give one number, or shape {wanted}")
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
        delay: Any = self.delay
        sigma: Any = self.sigma
        # once: a parametrisation computes it whenever it is read
        weight, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
        tensors = [("delay", delay), *([] if sigma is None else [("sigma", sigma)])]
        tensors += [] if weight is None else [("linear.weight", weight)]
        of = Delayed(linear, weight, bias, delay, None, self.max_delay)
        self._check_input(x, of)
        checks.same_device("Delay", x.device, tensors)
        modules.check_gathered("Delay", x, tensors)
        if weight is not None and x.dtype != weight.dtype and autocast_dtype(x.device.type) is None:
            raise TypeError(
                f"Delay: x is {x.dtype} and linear.weight is {weight.dtype}; give both one dtype, by x.to(...) or "
                "layer.to(...)"
            )
        ranges_ = self._ranges()
        if "delay" in self.learn:
            of = of._replace(delay=ranges_["delay"].equation(delay, delay.dtype))
        if sigma is not None and self.training:
            learnt = "sigma" in self.learn
            return of._replace(sigma=ranges_["sigma"].equation(sigma, sigma.dtype) if learnt else sigma)
        return of

    def _check_input(self, x: Tensor, of: Delayed) -> None:
        axons = of.weight is None
        channels = _channels(self.linear) if not axons else of.delay.shape[0] if of.delay.ndim else None
        fits = x.ndim >= of.places + (1 if channels is None else 2)
        if fits and channels in (None, x.shape[-1 - of.places]):
            return
        single = self.step == "single"
        name = ("C" if axons else "in_features", "C", "C")[of.places]
        step = f"..., {name}{('', ', L', ', H, W')[of.places]}"
        form = f"[{step}] of one step" if single else f"[T, {step}]"
        count = "" if channels is None else f" with {name}={channels}"
        raise ValueError(f"Delay: x must be {form}{count}, got shape {list(x.shape[1:] if single else x.shape)}")

    def _steps(self, x: Tensor, state: Optional[Mapping[str, Tensor]], final: bool = True) -> Tuple[Tensor, State]:
        if self._watchers:
            _, (x,) = observe.begin("Delay", self._watchers, (x,), (), ())
        (x,) = checks.inputs("Delay", ("x",), (x,))
        of = self.delayed(x)
        shape = (*x.shape[1:], self.max_delay)
        start = checks.state("Delay", (PAST,), state, x, state is self._state, {PAST: shape})
        past = None if start is None else start[0].to(x.dtype)
        y = all_steps(of, x, past)
        if self._watchers:
            (y,) = observe.tell(self, self._watchers, (x,), (y,), {}, self.step == "single")
        return y, {PAST: following(self.max_delay, x, past)} if final else {}

    def _state_names(self) -> Collection[str]:
        return (PAST,)

    def in_words(self) -> str:
        """Delays in a few words."""
        delay: Any = self.delay
        how = "learnt" if "delay" in self.learn else "fixed"
        if not delay.ndim and not delay.is_meta and how == "fixed":
            return f"a delay of {int(self.whole)} steps, fixed"
        return f"delays of 0 to {self.max_delay} steps per {self._per()}, {how}"

    def _per(self) -> str:
        delay: Any = self.delay
        weight = getattr(self.linear, "weight", None)
        return PER[2] if not delay.ndim else PER[1] if weight is None or delay.ndim < weight.ndim else PER[0]

    def extra_repr(self) -> str:
        """The longest delay, and how delays are shared, learnt and blurred."""
        parts = [f"max_delay={self.max_delay}", f"per={self._per()!r}", f"learn={self.learn!r}"]
        if self.sigma is not None:
            parts.append(f"sigma={parameters.shown(self.sigma)}")
        if self.anneal is not None:
            parts.append(f"anneal={self.anneal}")
        return ", ".join([*parts, f"step={self.step!r}"] if self.step == "single" else parts)

    def project(self) -> None:
        """Put learnt delays and widths that left their ranges back to the nearest value inside, in place."""
        ranges.project(self._parameters, self._ranges())

    def narrow(self) -> None:
        """One training step of annealing: ``sigma`` times ``(0.5 / first_sigma) ** (1 / anneal)``, and 0.5 at last.
        Nothing without ``anneal``.
        """
        if self.anneal is not None:
            sigma: Any = self.sigma
            first: Any = self.first_sigma
            with torch.no_grad():
                narrow = (sigma * (_ANNEALED / first) ** (1 / self.anneal)).clamp(min=_ANNEALED)
                torch.minimum(sigma, narrow, out=sigma)  # one that was set to less stays

    def train(self, mode: bool = True) -> Delay:
        """Change of mode of every module, and a warning where whole delays take the place of wide Gaussians."""
        sigma: Any = self.sigma
        narrows = self.anneal is not None or sigma is None or sigma.is_meta
        if self.training and not (mode or narrows) and bool((sigma > 1).any()):
            warnings.warn(
                "Delay: in eval() delays are whole steps, and in training sigma is above 1 step: outputs differ. "
                "Narrow it while training, by anneal=steps or layer.sigma = 0.5",
                UserWarning,
                stacklevel=2,
            )
        super().train(mode)
        return self

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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("max_delay", "learn", "anneal") and name in self.__dict__:
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
        names = (*PARAMS, "first_sigma")
        params = [value for value in map({**self._parameters, **self._buffers}.get, names) if value is not None]
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
        if self.sigma is None and isinstance(state_dict.get(prefix + "sigma"), Tensor):
            errors.append(
                f"{prefix}sigma: the checkpoint is of learnt delays, and those of this Delay are fixed; make it with "
                "learn=('delay',)"
            )
        if not errors:
            self.__dict__["_assigns"] = True  # torch sets attributes with assign=True alone
            try:
                super()._load_from_state_dict(state_dict, prefix, *args)
            finally:
                del self.__dict__["_assigns"]
            # that of a layer with anneal: without it sigma stays as it is loaded
            args[-2][:] = [key for key in args[-2] if key != prefix + "first_sigma"]
        args[-1].extend(errors)


def _channels(layer: Any) -> int:
    """Number of inputs of a layer, those of one place."""
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def _check_linear(linear: Any, delay: Optional[Tensor]) -> None:
    kind: Any = next((kind for kind in PLACES if isinstance(linear, kind)), None)
    if type(linear) is not nn.Identity and (kind is None or type(linear).forward is not kind.forward):
        raise TypeError(
            f"Delay: linear={shown(linear)} must be an nn.Linear, nn.Conv1d or nn.Conv2d whose forward is torch's, or "
            "nn.Identity(): delays stand between its inputs and outputs"
        )
    if has_own_hooks(linear):
        raise ValueError(
            "Delay: linear has hooks or a forward of its own, which nothing would call, since Delay takes its weight "
            "and bias; put hooks on the Delay, and compute the weight by torch.nn.utils.parametrize"
        )
    if kind is None:
        return
    if is_lazy(linear.weight):
        raise TypeError("Delay: linear has no weight before its first call; give nn.Linear with its number of inputs")
    if PLACES[kind] and (isinstance(linear.padding, str) or linear.padding_mode != "zeros"):
        raise TypeError(
            f"Delay: linear has padding={linear.padding!r} and padding_mode={linear.padding_mode!r}; give numbers as "
            "padding, and padding_mode='zeros'"
        )
    if delay is not None and tuple(delay.shape) not in ((), (_channels(linear),), tuple(linear.weight.shape)):
        raise ValueError(
            f"Delay: linear.weight has shape {list(linear.weight.shape)}, and delay {list(delay.shape)}; make a new "
            "Delay of another layer"
        )
