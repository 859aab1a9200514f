"""What a pipeline finds out once for each kind of input: whether its stages fit, and where the batch is in outputs."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any, Dict, Hashable, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore._base.batches import flattened, tree_map
from spikecore._shell.outside import outside
from spikecore.parallel import _dims as dims
from spikecore.parallel import _dry as dry
from spikecore.parallel import _guess as guess
from spikecore.parallel._placement import Stages

if TYPE_CHECKING:
    from spikecore.parallel._pipeline import Pipeline

_log = logging.getLogger("spikecore")
#: So many kinds of inputs are remembered.
_MOST = 256


class Kinds:
    """The kinds of inputs that were checked, by shape and all else that a dry run depends on."""

    def __init__(self) -> None:
        #: Why the last new kind could not be checked; "" if it was.
        self.unknown = ""
        self._warned = False
        self._known: Dict[Hashable, dims.OfOutput] = {}

    def check_parts(self, net: Pipeline, x: Any, dim: int, sizes: Sequence[int], given: Optional[int]) -> dims.OfOutput:
        """Where the batch is in the outputs of parts. Raises ValueError for a stage that does not fit."""
        if len(sizes) > 1 and not self._warned and net.training:
            self._warned = _warned_of_statistics(net, sizes)
        kind = ("parts", *_kind(net, x), dim, tuple(sizes), given)
        known = self._known.get(kind)
        return self._keep(kind, self._parts(net, x, dim, sizes, given)) if known is None else known

    def check_steps(self, net: Pipeline, x: Any, several: bool) -> None:
        """Raise ValueError for a stage that does not fit one step at a time; ``several``: with multi-step neurons."""
        kind = ("steps", *_kind(net, x), several)
        if kind not in self._known:
            self._steps(net, x, several)
            self._keep(kind, dims.OfOutput((), 0, ""))

    def forget(self) -> None:
        """Check every kind anew."""
        self._known.clear()

    def _keep(self, kind: Hashable, value: dims.OfOutput) -> dims.OfOutput:
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[kind] = value
        return value

    def _parts(self, net: Pipeline, x: Any, dim: int, sizes: Sequence[int], given: Optional[int]) -> dims.OfOutput:
        stages, different = _stages(net), sorted({*sizes})
        what = f"the input, {dry.shapes(x)}"
        if len(sizes) > 1:
            what = f"a part of {different[0]} of the input, {dry.shapes(x)}, whose batch is dimension batch_dim={dim}"
        outcome = self._rehearsed(stages, [dims.hollow(x, dim, size) for size in different], what)
        larger = different[1] if len(different) > 1 else different[0] + 1
        other = self._larger(stages, x, dim, larger) if len(sizes) > 1 and outcome.outputs else None
        if len(sizes) > 1 and net.guesses:
            guess.check(net, x, dim, different[0], outcome.calls, None if other is None else (larger, other.calls[0]))
        if given is not None:
            return dims.OfOutput(None, given, "batch_dim")
        if other is not None:
            return dims.OfOutput(dims.found(outcome.outputs[0], other.outputs[0], different[0], larger), 0, "")
        return dims.OfOutput(None, dims.of_output(net, dim), "")

    def _larger(self, stages: Stages, x: Any, dim: int, size: int) -> Optional[dry.Outcome]:
        """A run for a part of another size; None if there is none."""
        try:
            outcome = dry.rehearse(stages, [dims.hollow(x, dim, size)], "")
        except ValueError:
            return None  # the stages are made for one size of a part
        return None if outcome.unknown else outcome

    def _steps(self, net: Pipeline, x: Any, several: bool) -> None:
        stages, what = _stages(net), f"one step of the input, {dry.shapes(x)}"
        if not several:
            self._rehearsed(stages, [tree_map(_as_it_is, x)], what)
            return
        self._rehearsed(stages, [tree_map(lambda value: _steps_of(value, 1), x)], what)
        try:
            outcome = dry.rehearse(stages, [tree_map(lambda value: _steps_of(value, 2), x)], "")
        except ValueError:
            return  # the stages take one step only
        for output in outcome.outputs:
            for value in flattened(output):
                if value.ndim == 0 or value.shape[0] != 2:
                    raise ValueError(
                        f"constant_forward takes the steps one by one, and for 2 steps together the stages give shape "
                        f"{tuple(value.shape)}, without a dimension of time: a layer reads several steps, as a mean "
                        "over time does. Leave that layer out; constant_forward sums over time (reduce=True) or gives "
                        "[T, B, ...] (reduce=False)"
                    )

    def _rehearsed(self, stages: Stages, inputs: Sequence[Any], what: str) -> dry.Outcome:
        outcome = dry.rehearse(stages, inputs, what)
        self.unknown = outcome.unknown
        if outcome.unknown:
            _log.debug("Pipeline: shapes are not checked before the first call: %s", outcome.unknown)
        return outcome


def _kind(net: Pipeline, x: Any) -> Tuple[Hashable, ...]:
    stages = tuple([(id(module), type(module)) for module in net.modules()])  # they may get other layers
    return tuple([(tuple(value.shape), value.dtype) for value in flattened(x)]), net.training, stages


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _steps_of(value: torch.Tensor, steps: int) -> torch.Tensor:
    return torch.empty((steps, *value.shape), dtype=value.dtype, device="meta")


def _stages(net: Pipeline) -> Stages:
    """The stages with their devices. Raises ValueError for one that was moved since."""
    stages = net.placed
    for position, (stage, device) in enumerate(stages):
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            if tensor.device != device:
                raise ValueError(
                    f"stage {position} of a Pipeline is placed on {device}, and its {name!r} is on {tensor.device}; "
                    f"move it back with .to({str(device)!r}), or make another Pipeline"
                )
    return stages


def _warned_of_statistics(net: nn.Module, sizes: Sequence[int]) -> bool:
    """Warn if a layer normalises with statistics of a part; whether there is one."""
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            warnings.warn(
                f"Pipeline: {name!r} ({type(module).__name__}) in training normalises each of {len(sizes)} parts by "
                f"the statistics of that part ({sizes[0]} of {sum(sizes)} samples), and moves its running ones "
                f"{len(sizes)} times a call: other numbers than on one device. Larger parts come closer; nn.GroupNorm "
                "has no such statistics",
                UserWarning,
                stacklevel=outside(),
            )
            return True
    return False
