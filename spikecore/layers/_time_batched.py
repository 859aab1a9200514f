"""Stateless modules applied to all time steps in one call."""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor, nn

from spikecore._base.batches import folded, unfolded
from spikecore._base.bits import Whole
from spikecore._base.errors import no_tensor
from spikecore._shell.state import Stateful, Stepped
from spikecore.lang._plain import is_compiling
from spikecore.layers._packed import Follow


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

    Where ``x`` would be the same at every step, leave it out and give the neuron behind its layers ``repeat=T``; so
    does :func:`spikecore.hoist`.

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
                raise TypeError(f"module {position} of TimeBatched must be an nn.Module, got {type(module).__name__}")
            for name, part in module.named_modules():
                if isinstance(part, Stateful):
                    where = f"module {position}" + (f", at {name!r}," if name else "")
                    raise ValueError(
                        f"{where} of TimeBatched is {type(part).__name__}, which has state and needs the time "
                        f"dimension; place it after, as in nn.Sequential(TimeBatched(conv), neuron)"
                    )
                if isinstance(part, Stepped) and part.mixes_time:
                    where = f"module {position}" + (f", at {name!r}," if name else "")
                    raise ValueError(
                        f"{where} of TimeBatched is {type(part).__name__}, which needs the time dimension; place it "
                        f"before or behind, as in nn.Sequential(TimeBatched(conv), {type(part).__name__}(...))"
                    )
        self.module = modules[0] if len(modules) == 1 else nn.Sequential(*modules)
        if step != "multi":
            self.step = step

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, ...] -> [T, B, ...]``, or ``[B, ...] -> [B, ...]`` in single-step mode."""
        if not isinstance(x, Tensor):
            raise TypeError(f"TimeBatched: {no_tensor('x', x)}")
        if self._step == "single":
            return self._one(x)
        if x.ndim < 2:
            raise ValueError(f"x must be [T, B, ...] (time, batch), got shape {tuple(x.shape)}")
        steps, batch = x.shape[:2]
        y = self._folded(x)
        if not isinstance(y, Tensor):
            raise TypeError(f"the module of TimeBatched must return a tensor, got {type(y).__name__}")
        if y.ndim == 0 or y.shape[0] != steps * batch:
            raise ValueError(
                f"the module of TimeBatched must keep the leading dimension, T * B = {steps * batch} for x of shape "
                f"{tuple(x.shape)}, got an output of shape {tuple(y.shape)}"
            )
        return unfolded(y, steps, batch)

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        return follow(self.module, known)

    def _one(self, x: Tensor) -> Tensor:
        """The module on one step."""
        if x.ndim < 1:
            raise ValueError(f"x must be [B, ...], one step (step='single'), got shape {tuple(x.shape)}")
        try:
            y = self.module(x)
        except (RuntimeError, ValueError) as error:
            if is_compiling() or type(error) not in (RuntimeError, ValueError):
                raise
            raise type(error)(
                f"TimeBatched took x of shape {tuple(x.shape)} for one time step (step='single'), and its module "
                f"raised: {error}\n"
                + self._way_out(x, error, "x must be [B, ...]; for [T, B, ...] call sc.set_step(net, 'multi')")
            ) from error
        if not isinstance(y, Tensor):
            raise TypeError(f"the module of TimeBatched must return a tensor, got {type(y).__name__}")
        return y

    def extra_repr(self) -> str:
        """The step mode, where it is not the usual one."""
        return f"step={self.step!r}" if self._step != "multi" else ""

    def _folded(self, x: Tensor) -> Any:
        """The module on time and batch as one."""
        if is_compiling():
            return self.module(folded(x))
        try:
            return self.module(folded(x))
        except (RuntimeError, ValueError) as error:
            if type(error) not in (RuntimeError, ValueError):
                raise  # a subclass, such as OutOfMemoryError, is kept: callers catch it by its type
            raise type(error)(
                f"TimeBatched took x of shape {tuple(x.shape)} for {x.shape[0]} time steps of a batch of "
                f"{x.shape[1]}, and its module raised: {error}\n"
                + self._way_out(
                    x,
                    error,
                    "x must be [T, B, ...]. A network of step='single' neurons has no time dimension: call "
                    "sc.set_step(net, 'single')",
                )
            ) from error

    def _way_out(self, x: Tensor, error: Exception, shape: str) -> str:
        """What to give in place of ``x``. ``shape``: where it is not the dtype that the module refused."""
        dtypes = sorted({str(one.dtype) for one in self.module.parameters()})
        if "type" not in str(error) or not dtypes or str(x.dtype) in dtypes:
            return shape
        said = f"x is {x.dtype}, and the module has parameters of {' and '.join(dtypes)}: give x.to({dtypes[0]})"
        if x.is_floating_point():
            return f"{said}, or convert the network, as in net.to({x.dtype})"
        return f"{said}, scaled to what the network takes, as in x.float() / 255 for images of bytes"
