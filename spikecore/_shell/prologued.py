"""A neuron with batch normalisation, and maybe a shortcut, in front of its dynamics: its calls.

See :mod:`spikecore._shell.prologue`. A call is one program of a backend where that can be, else normalisation and
neuron one after the other.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore._base.batches import folded, unfolded
from spikecore._plugins.registry import AUTO_NAME
from spikecore._plugins.selection import REFERENCE
from spikecore._shell import checks, earlier, modules, norms, parameters
from spikecore._shell.automatic import Calls, automatic_runner
from spikecore._shell.binding import SpecKey
from spikecore._shell.checks import lacking
from spikecore._shell.fused_calls import FusedCalls, Results
from spikecore._shell.prologue import Prologue, added, lie_alike
from spikecore.backend import MAX_STATIC_STEPS, Spec, Tensors
from spikecore.dtypes import NAMES
from spikecore.lang._normalised import normalised
from spikecore.lang._plain import is_compiling, is_exporting, is_jit_tracing, is_plain, is_transforming


class Prologued(FusedCalls):
    """A neuron that may have a prologue."""

    #: What is computed in front of the dynamics; a class attribute until there is one.
    _prologue: Optional[Prologue] = None
    states: Mapping[str, Union[float, str]]
    channel_dim: int
    repeat: Optional[int]

    @property
    def normalises(self) -> bool:
        """Whether calls normalise the input first, as in :class:`spikecore.layers.NormNeuron` and after ``sc.fuse``: of
        this the program says nothing.
        """
        return self._prologue is not None

    def _execute(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool = False,
    ) -> Results:
        """A call without the prologue."""
        raise NotImplementedError(f"{type(self).__name__} must define _execute")

    def _behind_prologue(
        self,
        inputs: Sequence[Any],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool = False,
    ) -> Results:
        """A call of a neuron with a prologue."""
        prologue: Any = self._prologue
        # whether the input is one time step
        one = single or self.repeat is not None
        x, skip = prologue.taken(type(self).__name__, inputs, one)
        before = skip if prologue.shortcut == "before" else None
        if one and not single:
            # it is normalised once, which reads and writes less than one program would
            prologue.refuse(type(self).__name__, f"repeat={self.repeat} gives it one step, which is normalised once")
            y = norms.normalised(prologue.norm, x)
            results = self._execute((y if before is None else y + before,), state, record, final)
            return results if before is skip else added(results, skip)
        # what of it goes into the program
        within = skip if before is not None or (skip is not None and self._adds(prologue, x, skip)) else None
        found = None
        ordinary = state is None and not (record or final or single or is_compiling())
        if ordinary and prologue.fused is not False:
            found = self._as_before(prologue, x, within)
        if found is not None:
            y = x
        else:
            found = self._fused(prologue, x, within, state, record, final, single)
            y = x if found else self._normalised(prologue.norm, x, single)
        if found is None:
            found, within = self._execute((y if before is None else y + before,), state, record, final, single), before
        return found if within is skip else added(found, skip)

    def _adds(self, prologue: Prologue, x: Tensor, skip: Tensor) -> bool:
        """Whether a shortcut behind the neuron is part of its program. One of another shape, dtype or order of memory
        is not, and none where the first output is not spikes: rounded once, the sum would be another one.
        """
        if prologue.fused is False or not lie_alike(x, skip):
            return False
        return self._can_add(x.device.type, bool(prologue.fused), self._stamp())

    def _can_add(self, device_type: str, asked: bool, stamp: str) -> bool:
        """Whether a kernel adds a shortcut to spikes. ``asked``: whether one program was asked for."""
        if self._traced().outputs[0].op != "spike":
            return False
        backend = self._bind(device_type).backend
        return asked or (backend.name != REFERENCE and backend.capabilities_on(device_type).several_inputs)

    # as _find_fused
    _can_add._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes

    def _normalised(self, norm: Any, x: Tensor, single: bool) -> Tensor:
        """The input as torch normalises it."""
        if single:
            return norms.normalised(norm, x)
        return unfolded(norms.normalised(norm, folded(x)), x.shape[0], x.shape[1])

    def _fused(
        self,
        prologue: Prologue,
        x: Tensor,
        skip: Optional[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
    ) -> Optional[Results]:
        """The call as one program, None where it is to be computed one after the other."""
        owner, norm = type(self).__name__, prologue.norm
        if is_exporting():
            return None  # the reference computes it, see Bound._computes
        quick = self._cache.quick  # kept: a concurrent change replaces it, and the new one must not get this call
        steps = x.unsqueeze(0) if single else x
        reason = self._reason(prologue, x, steps)
        if reason:
            prologue.refuse(owner, reason)
            return None
        inputs = checks.inputs(owner, ("x", "skip")[: 1 if skip is None else 2], self._timed(x, skip, single))
        steps = inputs[0]
        grad = torch.is_grad_enabled()
        own = self._values()
        checks.same_device(owner, steps.device, own)
        if not is_compiling():
            modules.check_gathered(owner, steps, own)
        values, kinds = parameters.place(owner, own, steps.shape[1:], self.channel_dim)
        start = checks.state(owner, self.states, state, steps, carried=state is not None and state is self._state)
        learnt = [name for name, value in own if isinstance(value, Tensor) and value.requires_grad]
        affine = tuple([value is not None and value.requires_grad for value in (norm.weight, norm.bias)])
        gradients = grad and any(value.requires_grad for value in inputs)
        learns = grad and bool(learnt or any(affine))
        state_gradients = grad and (
            (start is not None and any(value.requires_grad for value in start)) or (final and (gradients or learns))
        )
        fixed = operator.index(steps.shape[0]) if steps.shape[0] <= MAX_STATIC_STEPS else None
        spec = (steps.dtype, fixed, kinds, tuple(learnt) if grad else (), final)
        shortcut = prologue.shortcut if skip is not None else ""
        how = (shortcut, norms.takes_batch(norm), affine if grad else (False, False), bool(prologue.fused))
        flags = (gradients, state_gradients, bool(record))
        lacks = self._find_fused(steps.device.type, spec, how, flags, self._stamp())
        if lacks:
            prologue.refuse(owner, lacks)
            return None
        runner = self._cache.fused[steps.device.type, spec, how, flags]
        count = len(values) - len(self._cache.numbers)
        ordinary = start is None and not (record or final or single or is_compiling())
        if ordinary and earlier.only_input((x,)) is not None:
            results = self._noted(prologue, runner, x, skip, own, values, count, quick)
            if results is not None:
                return results
        # from here on nothing is refused: the running statistics move once
        moments, statistics = getattr(runner, "moments", None), getattr(runner, "input_statistics", None)
        by = norms.constants(norm, steps, moments, statistics)
        placed = norms.among(values, count, by, steps.ndim)
        outputs, end, trace = runner(inputs, start, placed, record)
        prologue.reason = ""
        if single:
            outputs = tuple([out.squeeze(0) for out in outputs])
        return outputs, dict(zip(self.states, end)) if end is not None else None, trace

    def _timed(self, x: Tensor, skip: Optional[Tensor], single: bool) -> Tensors:
        """The inputs with a dimension of time."""
        given = (x,) if skip is None else (x, skip)
        return tuple([value.unsqueeze(0) for value in given]) if single else given

    def _reason(self, prologue: Prologue, x: Tensor, steps: Tensor) -> str:
        """Why a call cannot be one program, whatever the backend; "" if it can."""
        if prologue.fused is False:
            return "fused=False was asked for"
        if not is_compiling() and (is_jit_tracing() or is_transforming() or not is_plain(x)):
            return "torch traces or transforms the call, or x is no plain tensor"
        if x.dtype not in NAMES or x.layout is not torch.strided or not norms.takes(prologue.norm, steps):
            return f"x of shape {list(x.shape)} and {x.dtype} is no plain input of the normalisation"
        norm: Any = prologue.norm
        if not norm.eps > 0:  # a constant channel would be 0 / 0, and newer versions of torch refuse it
            return f"eps={norm.eps} of the normalisation is not above 0"
        # parameters per channel are placed along the dimension that is normalised over
        if self.channel_dim != 1 and any(isinstance(value, Tensor) for _, value in self._values()):
            return f"channel_dim={self.channel_dim}, and a parameter is a tensor"
        if is_compiling() and self._left_out(x.device.type, self._stamp()):
            return "the backend does not support torch_compile"
        return ""

    def _find_fused(
        self, device_type: str, spec: SpecKey, how: Tuple[Any, ...], flags: Tuple[bool, bool, bool], stamp: str
    ) -> str:
        """Make the runner of ``_cache.fused`` for calls of this kind; gives why there is none, else "".

        how: the shortcut, whether by statistics of the batch, whether weight and bias are learnt, whether one program
        was asked for.
        """
        cache, key = self._cache, (device_type, spec, how, flags)
        if key in cache.fused:
            return ""
        shortcut, batch, affine, asked = how
        dtype, steps, kinds, learnt, final = spec[:5]
        program, names = normalised(self._traced(), shortcut, batch)
        count = len(kinds) - len(self._cache.numbers)
        kinds = (*kinds[:count], *["channel"] * len(names), *kinds[count:])
        if len(kinds) != len(program.params):
            return "the dynamics do not read their input"
        learn = (*learnt, *[name for name, wants in zip(names[2:], affine) if wants])
        wanted = Spec(dtype, steps, kinds, learn, final)
        resolved = self._bind(device_type)
        if resolved.backend.name == REFERENCE and not asked:
            # it runs a program operation by operation, and torch has one operation for the whole of a normalisation
            return f"backend {REFERENCE!r} computes one operation after the other, and is quicker so"
        lacks = functools.partial(
            lacking,
            program=program,
            spec=wanted,
            gradients=flags[0],
            state_gradients=flags[1],
            record=flags[2],
        )
        missing = (*lacks(resolved.backend.capabilities_on(device_type)),)
        if not missing and not resolved.backend.capabilities_on(device_type).normalisation:
            missing = ("normalisation",)
        if missing:
            return checks.unsupported(resolved, type(self).__name__, missing, device_type)
        if resolved.source == AUTO_NAME:
            cache.fused[key] = automatic_runner(resolved, Calls(device_type, program, wanted, lacks))
        else:
            cache.fused[key] = resolved.backend.runner(program, wanted)
        return ""

    # see Bound: torch.compile takes what this returns as a constant
    _find_fused._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes


def set_prologue(neuron: Prologued, prologue: Optional[Prologue]) -> None:
    """Give a neuron a prologue, or take it away."""
    if prologue is None:
        neuron.__dict__.pop("_prologue", None)
    else:
        neuron.__dict__["_prologue"] = prologue


def prologue_of(module: nn.Module) -> Optional[Prologue]:
    """The prologue of a neuron, None without one and for another module."""
    return module._prologue if isinstance(module, Prologued) else None
