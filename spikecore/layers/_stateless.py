"""Layers without state over all steps of a sequence: ``TimeBatched``, batch normalisation over time, and ``Voting``."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Type

import torch
from torch import Tensor, nn

from spikecore.batches import folded, unfolded
from spikecore.context import is_compiling
from spikecore.core.checks import whole
from spikecore.core.state import Stateful, Stepped
from spikecore.words import no_tensor, shown

_OF_DIMS: Dict[int, Type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def counts(owner: str, **values: Any) -> None:
    """Whole numbers of 1 or more, by the names of their arguments."""
    for name, value in values.items():
        if whole(owner, name, value) < 1:
            raise ValueError(f"{owner}: {name}={value!r} must be 1 or more")


def makers(owner: str, **values: Any) -> None:
    """Functions that make a module for each place: not modules, which all places would share."""
    for name, value in values.items():
        if isinstance(value, nn.Module) or not callable(value):
            what = f"the module {type(value).__name__}" if isinstance(value, nn.Module) else shown(value)
            raise TypeError(
                f"{owner}: {name} must be a function that makes a module for each place, got {what}; give one, as in "
                "neuron=lambda: sc.LIF(tau=2.0) or norm=lambda channels: nn.BatchNorm2d(channels)"
            )


class TimeBatched(Stepped):
    """Applies stateless modules to ``[T, B, ...]`` in one call, with time folded into the batch.

    ``y[t] = module(x[t])`` for every step, computed as ``module(x.flatten(0, 1))``; ``[T, B, ...] -> [T, B, ...]``, the
    trailing dimensions being the module's affair. Several modules are applied in order:
    ``TimeBatched(conv, norm, pool)``. Folding and unfolding are views where the strides allow it, so that channels-last
    steps stay channels-last; x is copied only if time and batch do not follow each other in memory.

    Batch normalisation sees T * B samples: in training its statistics are those over time and batch together, one
    update of the running ones per call, not one set per step. Dropout draws a new mask for every step.

    ``step="single"``: x is one step, ``[B, ...] -> [B, ...]``, and the modules are called as they are; then batch
    normalisation in training sees B samples. :func:`spikecore.set_step` sets it for a network.

    modules: the modules, applied in order.
    step: ``"multi"`` or ``"single"``, as of a neuron.

    Where ``x`` would be the same at every step, leave it out and give the neuron behind its layers ``repeat=T``.

    Raises TypeError for something that is not a module, no tensor in or no tensor out; ValueError without modules, for
    one that contains a stateful neuron or what else needs the time dimension (place it outside), for ``x`` of too few
    dimensions, and for a module that changes the size of the leading dimension. What the module itself raises says how
    ``x`` was taken.
    """

    def __init__(self, *modules: nn.Module, step: str = "multi") -> None:
        super().__init__()
        if not modules:
            raise ValueError("TimeBatched needs at least one module, as in TimeBatched(nn.Conv2d(2, 8, 3))")
        for position, module in enumerate(modules):
            if not isinstance(module, nn.Module):
                raise TypeError(f"module {position} of TimeBatched must be an nn.Module, got {shown(module)}")
            for name, part in module.named_modules():
                kind, where = type(part).__name__, f"module {position}" + (f", at {name!r}," if name else "")
                if isinstance(part, Stateful):
                    raise ValueError(
                        f"{where} of TimeBatched is {kind}, which has state and needs the time dimension; place it "
                        "after, as in nn.Sequential(TimeBatched(conv), neuron)"
                    )
                if isinstance(part, Stepped) and part.mixes_time:
                    raise ValueError(
                        f"{where} of TimeBatched is {kind}, which needs the time dimension; place it before or behind, "
                        f"as in nn.Sequential(TimeBatched(conv), {kind}(...))"
                    )
        self.module = modules[0] if len(modules) == 1 else nn.Sequential(*modules)
        if step != "multi":
            self.step = step

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, ...] -> [T, B, ...]``, or ``[B, ...] -> [B, ...]`` in single-step mode."""
        if not isinstance(x, Tensor):
            raise TypeError(f"TimeBatched: {no_tensor('x', x)}")
        if self._step == "single":
            if x.ndim < 1:
                raise ValueError(f"x must be [B, ...], one step (step='single'), got shape {tuple(x.shape)}")
            return self._called(x, x)
        if x.ndim < 2:
            raise ValueError(f"x must be [T, B, ...] (time, batch), got shape {tuple(x.shape)}")
        steps, batch = x.shape[:2]
        y = self._called(folded(x), x)
        if y.ndim == 0 or y.shape[0] != steps * batch:
            raise ValueError(
                f"the module of TimeBatched must keep the leading dimension, T * B = {steps * batch} for x of shape "
                f"{tuple(x.shape)}, got an output of shape {tuple(y.shape)}"
            )
        return unfolded(y, steps, batch)

    def traced_forward(self, over_samples: Callable[[nn.Module, Any], Any], x: Any) -> Any:
        """``forward`` for a reader of networks, which has no shapes (:func:`spikecore.graph.read`)."""
        return self.module(x) if self._step == "single" else over_samples(self.module, x)

    def extra_repr(self) -> str:
        """The step mode, where it is not the usual one."""
        return f"step={self.step!r}" if self._step != "multi" else ""

    def _called(self, samples: Tensor, x: Tensor) -> Tensor:
        """The module on samples, which are the input ``x`` or its steps as one batch."""
        try:
            y = self.module(samples)
        except (RuntimeError, ValueError) as error:
            # a subclass, such as OutOfMemoryError, is kept: callers catch it by its type
            if is_compiling() or type(error) not in (RuntimeError, ValueError):
                raise
            raise type(error)(self._explained(x, error)) from error
        if not isinstance(y, Tensor):
            raise TypeError(f"the module of TimeBatched must return a tensor, got {type(y).__name__}")
        return y

    def _explained(self, x: Tensor, error: Exception) -> str:
        """An error of the module, how ``x`` was taken, and what to give in place of it."""
        form = f"{x.shape[0]} time steps of a batch of {x.shape[1]}" if self._step == "multi" else ""
        way_out = (
            "x must be [T, B, ...]. Inputs without time, [B, ...], get it from an encoder in front, "
            "sc.encode.Constant(T). A network of step='single' neurons has no time dimension: call "
            "sc.set_step(net, 'single')"
        )
        if self._step == "single":
            form = "one time step (step='single')"
            way_out = "x must be [B, ...]; for [T, B, ...] call sc.set_step(net, 'multi')"
        dtypes = sorted({str(parameter.dtype) for parameter in self.module.parameters()})
        if "type" in str(error) and dtypes and str(x.dtype) not in dtypes:
            way_out = f"x is {x.dtype}, and the module has parameters of {' and '.join(dtypes)}: give x.to({dtypes[0]})"
            if x.is_floating_point():
                way_out += f", or convert the network, as in net.to({x.dtype})"
            else:
                way_out += ", scaled to what the network takes, as in x.float() / 255 for images of bytes"
        return f"TimeBatched took x of shape {tuple(x.shape)} for {form}, and its module raised: {error}\n{way_out}"


def tdbn(channels: int, *, threshold: float = 1.0, alpha: float = 1.0, dims: int = 2, **keywords: Any) -> nn.Module:
    """Threshold-dependent batch normalisation (tdBN): ``nn.BatchNorm`` whose weight begins at ``alpha * threshold``.

    ::

        y = w * (x - mean) / sqrt(var + eps) + b        w = lambda * alpha * threshold

    with mean and variance over time, batch and space, so that inputs of a neuron begin with the standard deviation
    ``alpha * threshold``. It is to stand within :class:`TimeBatched` or :class:`NormNeuron`, which give it all steps at
    once. It is a plain ``nn.BatchNorm1d``, ``2d`` or ``3d`` (``dims``; 1 for ``[B, C]``, too), and what holds for
    these holds for it: ``sc.fuse``, kernels, checkpoints. The paper learns ``lambda``, from 1 on; here its product with
    the constants is learnt: the same functions, but steps of an optimiser differ where ``alpha * threshold`` is not 1.

    threshold: that of the neuron behind it.
    alpha: 1, or ``1 / sqrt(n)`` where n such normalisations are added before a neuron, as behind a residual block.
    keywords: those of ``nn.BatchNorm``.

    Raises ValueError for other ``dims``, ``channels`` below 1 and a ``threshold`` or ``alpha`` that is not above 0 or
    not finite, TypeError for what is no number.
    Source: Zheng, Wu, Deng, Hu, Li: Going Deeper With Directly-Trained Larger Spiking Neural Networks. AAAI 2021.
    """
    counts("tdbn", channels=channels)
    for name, value in (("threshold", threshold), ("alpha", alpha)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"tdbn: {name} must be a number, got {value!r}")
        if not 0 < value < math.inf:
            raise ValueError(f"tdbn: {name} must be above 0, got {value!r}")
    norm: nn.Module = _of_dims("tdbn", dims)(channels, **keywords)
    weight: Any = norm.weight
    if weight is not None:
        nn.init.constant_(weight, alpha * threshold)
    return norm


class TEBN(Stepped):
    """Temporal effective batch normalisation: statistics over all steps, and a learnt factor for each step.

    ::

        y[t] = p[t] * (w * (x[t] - mean) / sqrt(var + eps) + b)

    with mean and variance over time, batch and space, as :class:`TimeBatched` gives them, weight ``w`` and bias ``b``
    per channel, and one ``p[t]`` per step, which begins at 1. ``[T, B, C, ...] -> [T, B, C, ...]`` with
    ``T = steps``; it stands outside ``TimeBatched``: ``nn.Sequential(TimeBatched(conv), TEBN(64, 4), sc.LIF())``.
    ``state_dict`` has ``norm.weight``, ``norm.bias``, the running statistics, and ``scale`` ``[steps]``.

    channels: C, the number of channels.
    steps: T, the number of time steps.
    dims: 1, 2 or 3, as of ``nn.BatchNorm2d``; 1 for ``[T, B, C]``, too.
    keywords: those of ``nn.BatchNorm``.

    A single step has no factor of its own, so ``step="single"`` is refused; ``sc.fuse`` leaves it as it is. Raises
    TypeError or ValueError for ``steps`` that are no whole number from 1 on, ValueError for other ``dims``, and for an
    input of another number of steps. Source: Duan, Ding, Chen, Yu, Huang: Temporal
    Effective Batch Normalization in Spiking Neural Networks. NeurIPS 2022.
    """

    only_multi = "it has a factor for each step of a sequence; stream in multi-step calls of its number of steps"
    mixes_time = True

    def __init__(self, channels: int, steps: int, *, dims: int = 2, **keywords: Any) -> None:
        super().__init__()
        counts("TEBN", channels=channels, steps=steps)
        self.steps = steps
        self.norm = _of_dims("TEBN", dims)(channels, **keywords)
        self.scale = nn.Parameter(torch.ones(steps))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, ...] -> [T, B, C, ...]``."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"TEBN: x must be a floating-point tensor, got {shown(x)}")
        if x.ndim < 3 or x.shape[0] != self.steps:
            raise ValueError(
                f"TEBN: x must be [T, B, C, ...] with T={self.steps}, the steps that it has factors for, got shape "
                f"{tuple(x.shape)}"
            )
        y = unfolded(self.norm(folded(x)), x.shape[0], x.shape[1])
        return y * self.scale.to(y.dtype).reshape(-1, *[1] * (y.ndim - 1))

    def extra_repr(self) -> str:
        """The number of steps."""
        return f"steps={self.steps}"


def normalised(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """A layer of one step and the normalisation behind it, which may be one that knows of time, for ``[T, B, ...]``."""
    if isinstance(norm, Stepped):
        return nn.Sequential(TimeBatched(layer), norm)
    return TimeBatched(layer, norm)


def silenced(norm: nn.Module) -> None:
    """Have a normalisation give 0 at first: its weight becomes 0."""
    inner = norm.norm if isinstance(norm, TEBN) else norm
    weight = getattr(inner, "weight", None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"zero_init needs a normalisation with a weight, got {norm}")
    nn.init.zeros_(weight)


def _of_dims(owner: str, dims: int) -> Type[Any]:
    if isinstance(dims, bool) or not isinstance(dims, int) or dims not in _OF_DIMS:
        raise ValueError(f"{owner}: dims must be 1, 2 or 3, as of nn.BatchNorm1d, 2d and 3d, got {dims!r}")
    return _OF_DIMS[dims]


class Voting(nn.Module):
    """The mean over groups of neighbouring neurons: each group votes for one class.

    ``y[..., c] = 1 / voters * sum over k of x[..., c * voters + k], k = 0 .. voters - 1``;
    ``[..., C * voters] -> [..., C]``, of all steps or of one.

    voters: the number of neurons in a group; 1 or more.

    Raises TypeError or ValueError for ``voters`` that are no whole number from 1 on, ValueError for an input whose last
    dimension is no multiple of it. Source: the voting layer of Fang et al. (ICCV 2021, parametric LIF); SpikingJelly's
    ``VotingLayer``.
    """

    def __init__(self, voters: int = 10) -> None:
        super().__init__()
        counts("Voting", voters=voters)
        self.voters = voters

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C * voters] -> [..., C]``."""
        if not isinstance(x, Tensor):
            raise TypeError(f"Voting: x must be a tensor, got {type(x).__name__}")
        if x.ndim == 0 or x.shape[-1] % self.voters:
            raise ValueError(
                f"Voting: the last dimension of x must be a multiple of voters={self.voters}, got shape "
                f"{tuple(x.shape)}"
            )
        means: Tensor = x.unflatten(-1, (x.shape[-1] // self.voters, self.voters)).mean(-1)
        return means

    def extra_repr(self) -> str:
        """The number of neurons for a class."""
        return f"voters={self.voters}"
