"""Batch normalisation and a neuron as one layer, computed by one kernel where a backend has one."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.running import Runner
from spikecore.backend import Tensors, Unsupported
from spikecore.context import COMPILED, EAGER, PLAIN, is_exporting, world
from spikecore.core import checks, observe, vectors
from spikecore.core.call import NotedCall, arguments, call, checked_state, named_state, signature
from spikecore.core.dispatch import Dispatch
from spikecore.core.modules import calls_as
from spikecore.core.neuron import Neuron
from spikecore.core.observe import Results
from spikecore.dtypes import NAMES
from spikecore.layers import _batch_norm_stats as stats
from spikecore.words import a_kind

#: The parameters of a layer that are added to x, and to a shortcut that is normalised, before the normalisations.
BIASES = ("input_bias", "shortcut_bias")
#: The normalisations of the inputs of a call: of x, and of the shortcut if that is normalised.
Norms = Sequence[stats.Norm]


class NormNeuron(nn.Module):
    """Batch normalisation in front of a neuron, with a shortcut if there is one, as one layer.

    ::

        y = neuron(norm(x))                 NormNeuron(norm, neuron)(x)
        y = neuron(norm(x) + skip)          NormNeuron(norm, neuron, shortcut="before")(x, skip)
        y = neuron(norm(x) + norm2(skip))   NormNeuron(norm, neuron, shortcut="before", shortcut_norm=norm2)(x, skip)
        y = neuron(norm(x)) + skip          NormNeuron(norm, neuron, shortcut="after")(x, skip), as in SEW-ResNet

    ``x`` and ``skip`` are ``[T, B, C, ...]``, or ``[B, C, ...]`` of a single-step neuron; ``y`` has their shape. Tokens
    are ``[T, B, N, C]`` with ``channel_dim=-1``: ``nn.BatchNorm1d`` then normalises over all but the last dimension.
    ``norm`` is ``nn.BatchNorm1d``, ``nn.BatchNorm2d`` or ``nn.BatchNorm3d`` for one time step. It normalises as within
    :class:`spikecore.layers.TimeBatched`: in training with mean and variance over time, batch and space, one update of
    the running ones per call (Zheng et al., 2021, normalise in this way and scale by the threshold); ``momentum=None``,
    ``affine=False``, ``track_running_stats=False`` and ``eval()`` mean what they mean in torch.

    A backend with ``Capabilities.normalisation`` computes normalisation, shortcut and all steps in one kernel: forward
    reads x once beside its statistics, backward reads x and the cotangent twice, and nothing normalised is stored. With
    another backend, on the reference, and where something else stands in the way, normalisation and neuron are computed
    one after the other, and ``reason`` says why. ``fused=True`` raises :class:`spikecore.backend.Unsupported` instead;
    ``fused=False`` always computes them so. A shortcut behind a neuron is added by torch, whatever ``fused`` is, where
    the output is no spikes, or the shortcut has another dtype than x or another order of memory.

    ``norm``, ``shortcut_norm`` and ``neuron`` are modules of this one: ``state_dict`` has ``norm.weight``,
    ``shortcut_norm.weight``, ``neuron.tau`` and so on. They are not called, so hooks on them are not called either,
    fused or not; hooks of this layer are. ``neuron(y)`` called alone is the neuron without the normalisation.
    ``shortcut``, ``shortcut_norm``, ``channel_dim`` and ``fused`` may be set later, and count from the next call on.
    ``input_bias`` and ``shortcut_bias`` are None, or parameters that :func:`spikecore.fuse` took from the layers before
    the normalisations: ``norm(x + input_bias)``. Batch statistics undo them, so that nothing adds them then.

    norm: the normalisation, of one time step.
    neuron: any neuron with one input.
    shortcut: where ``skip`` is added: ``"before"`` or ``"after"`` the neuron; None for no shortcut.
    shortcut_norm: the normalisation of ``skip``, of the kinds that ``norm`` may be; for ``shortcut="before"`` alone.
    channel_dim: the dimension of a time step that is not normalised over: 1 (``[B, C, ...]``) or -1 (``[B, ..., C]``).
    fused: None takes one kernel where the backend can; True raises Unsupported where it cannot; False never does.

    Raises TypeError for a ``norm`` or ``shortcut_norm`` of another kind, ``nn.SyncBatchNorm`` for one, and for a
    ``neuron`` that is none; ValueError for one of them with hooks (``nn.utils.weight_norm``), for a neuron with several
    inputs, for one with a ``forward`` of its own or a forward pre-hook, for an unknown ``shortcut`` or ``channel_dim``,
    for a ``shortcut_norm`` without ``shortcut="before"``, and for ``channel_dim=-1`` with another norm than
    ``nn.BatchNorm1d``.
    """

    #: Reason why the last call computed normalisation and neuron one after the other: "" if it did not, None before
    #: one.
    reason: Optional[str]
    input_bias: Optional[nn.Parameter]
    shortcut_bias: Optional[nn.Parameter]
    #: True if sc.fuse made it of a sum in a block: a call may have no ``skip`` then, or one that broadcasts.
    adds_for_block = False
    #: Range of a shortcut before the neuron, as in ``Whole``, so that it is kept for backward as bits.
    shortcut_spikes: Optional[Tuple[int, float]] = None

    #: To a reader of networks it is one call (:func:`spikecore.graph.read`).
    is_one_call = True
    #: For :func:`spikecore.layers.pack`, the part whose output this gives.
    output_of = "neuron"

    def __init__(
        self,
        norm: nn.Module,
        neuron: Neuron,
        *,
        shortcut: Optional[str] = None,
        shortcut_norm: Optional[nn.Module] = None,
        channel_dim: int = 1,
        fused: Optional[bool] = None,
    ) -> None:
        super().__init__()
        self.norm, self.shortcut, self.shortcut_norm, self.neuron = norm, shortcut, shortcut_norm, neuron
        self.channel_dim, self.fused, self.reason = channel_dim, fused, None
        for name in BIASES:
            self.register_parameter(name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        _check_no_tensor(self, name, value)
        if name in _CHECKS:
            _CHECKS[name](self, value)
        super().__setattr__(name, value)

    @property
    def norms(self) -> Tuple[nn.Module, ...]:
        """The normalisations of the inputs: ``norm``, and behind it ``shortcut_norm`` if there is one."""
        norm, of_shortcut = self._modules["norm"], self._modules.get("shortcut_norm")
        return (norm,) if of_shortcut is None else (norm, of_shortcut)  # type: ignore[return-value]  # never None

    def forward(self, x: Tensor, *skip: Tensor) -> Any:
        """``[T, B, C, ...] -> [T, B, C, ...]``; with a shortcut also ``skip`` of that shape."""
        neuron: Any = self._modules["neuron"]
        if neuron.continues:
            outputs, state, _ = self._call((x, *skip), neuron._begin(), (), True, neuron.step == "single")
            neuron._end(state)
        else:
            outputs = self._call((x, *skip), None, (), False, False)[0]
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, *inputs: Tensor, state: Optional[Mapping[str, Tensor]] = None, record: Sequence[str] = ()) -> Any:
        """The functional core, as :meth:`spikecore.Neuron.run`: ``(output, state)``, or ``(output, state, trace)`` with
        ``record``. Pure but for the running statistics of the normalisation, which move in training.
        """
        neuron: Any = self._modules["neuron"]
        names = checks.recorded(type(neuron).__name__, record, neuron)
        outputs, end, trace = self._call(inputs, state, names, True, False)
        output = outputs[0] if len(outputs) == 1 else outputs
        return (output, end, dict(zip(names, trace))) if names else (output, end)

    def extra_repr(self) -> str:
        """The shortcut, if there is one, and where channels are."""
        shown = [f"shortcut={self.shortcut!r}"] if self.shortcut else []
        return ", ".join([*shown, *([f"channel_dim={self.channel_dim}"] if self.channel_dim != 1 else [])])

    # -- a call

    def _call(
        self,
        inputs: Sequence[Any],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
    ) -> Results:
        """A call with these inputs; ``single``: they are those of one time step."""
        neuron: Any = self._modules["neuron"]
        x, skip = self._checked_inputs(inputs, single or neuron.repeat is not None)
        mode, watched = world(), bool(neuron._watchers)
        # whether torch adds the shortcut after the program: a monitor sees the spikes without it
        apart = watched and any(watcher.wants_spikes for watcher in neuron._watchers)
        is_behind = self.shortcut == "after" and skip is not None and (apart or not self._adds(x, skip, mode))
        behind = skip if is_behind else None
        program_inputs = (x,) if skip is None or behind is not None else (x, skip)
        execute_it = functools.partial(self._execute, mode)
        if watched:
            results = observe.recorded(neuron, execute_it, program_inputs, state, record, final, single)
        else:
            results = execute_it(program_inputs, state, record, final, single)
        return results if behind is None else _added(results, behind)

    def _checked_inputs(self, inputs: Sequence[Any], one_step: bool) -> Tuple[Tensor, Optional[Tensor]]:
        """The input and the shortcut of a call; raises for what the neuron does not check."""
        owner = type(self._modules["neuron"]).__name__
        names = ("x", "skip") if self.shortcut and not (self.adds_for_block and len(inputs) == 1) else ("x",)
        if len(inputs) != len(names):
            count = "1 or 2 inputs" if self.adds_for_block else f"{len(names)} input{'s' * (len(names) != 1)}"
            raise TypeError(
                f"{owner}, which normalises its input, takes {count} ({', '.join(names)}), got {len(inputs)}"
            )
        for name, value in zip(names, inputs):
            if not isinstance(value, Tensor):
                raise TypeError(f"{owner}: {name} is {a_kind(value)}; give a tensor")
        x, skip = inputs[0], inputs[1] if len(names) > 1 else None
        least, form = (2, "[B, C, ...]") if one_step else (3, "[T, B, C, ...]")
        if x.ndim < least:
            raise ValueError(f"{owner}: x must be {form} to be normalised over all but C, got shape {list(x.shape)}")
        if skip is not None and not self.adds_for_block and skip.shape != x.shape:
            raise ValueError(
                f"{owner}: skip has shape {list(skip.shape)} and x has {list(x.shape)}; a shortcut has the shape of x"
            )
        return x, skip

    def _execute(
        self,
        mode: str,
        inputs: Tensors,
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
    ) -> Results:
        """A call as one program where that can be, else normalisation and neuron one after the other."""
        x, skip = inputs[0], inputs[1] if len(inputs) > 1 else None
        neuron: Any = self._modules["neuron"]
        alike = skip is None or skip.dtype is x.dtype
        may_note = alike and mode is EAGER and state is None and not (record or final or single)
        one_step = single or neuron.repeat is not None
        norms: Norms = [stats.norm_of(norm, self._parameters[name]) for norm, name in zip(self.norms, BIASES)]
        if norms[0].shift is not None or norms[-1].shift is not None:
            inputs, norms = self._shifted(inputs, norms, one_step, every=False)
        results = self._noted_call(inputs, norms) if may_note and self.fused is not False else None
        if results is None:
            results = self._fused_call(inputs, norms, state, record, final, single, mode, may_note)
        if results is not None:
            return results
        inputs, _ = self._shifted(inputs, norms, one_step, every=True)
        y, *others = [stats.normalised(n.module, v, self.channel_dim, one_step) for n, v in zip(norms, inputs)]
        if skip is not None and self.shortcut == "before":
            y = y + (others[0] if others else skip)
        results = call(neuron, (y,), state, record, final, single, watched=False)
        return _added(results, skip) if skip is not None and self.shortcut == "after" else results

    def _shifted(self, inputs: Tensors, norms: Norms, one_step: bool, every: bool) -> Tuple[Tensors, Norms]:
        """The inputs with the biases added that their normalisations do not take over, which are those that get a
        gradient by running statistics, or ``every`` one; and the normalisations without these.
        """
        shifted, left = [*inputs], [*norms]
        for k, (x, norm) in enumerate(zip(inputs, norms)):
            shift = norm.shift
            learns = torch.is_grad_enabled() and shift is not None and shift.requires_grad
            if shift is not None and (every or (learns and not stats.takes_batch(norm))):
                view = [1] * (x.ndim - (not one_step))
                view[self.channel_dim] = -1
                shifted[k], left[k] = x + shift.to(x.dtype).view(view), norm._replace(shift=None)
        return tuple(shifted), left

    def _fused_call(
        self,
        inputs: Tensors,
        norms: Norms,
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
        mode: str,
        may_note: bool,
    ) -> Optional[Results]:
        """The call as one program; None where normalisation and neuron are computed one after the other."""
        if is_exporting():
            return None  # the reference computes it, see Dispatch.computes
        neuron: Any = self.neuron
        steps = tuple([v.unsqueeze(0) for v in inputs]) if single else inputs
        named = tuple([name for name in record if name not in neuron.states])
        dispatch: Dispatch = neuron._settled().recording(named)
        reason = self._why_apart(dispatch, steps, norms, single, mode)
        if reason:
            self._refuse(reason)
            return None
        owner = type(neuron).__name__
        inputs = checks.inputs(owner, ("x", "skip")[: len(steps)], steps)
        x = inputs[0]
        start = checked_state(neuron, state, x, named)
        shortcut = self.shortcut or "" if len(inputs) > 1 else ""
        whole = self.shortcut_spikes if shortcut == "before" and len(norms) == 1 else None
        how = (shortcut, tuple(map(stats.takes_batch, norms)), whole)
        normalised = dispatch.by_name[dispatch.by_fields("normalised", how, dispatch.stamp)]
        affine = [pair for k, norm in enumerate(norms) for pair in zip(normalised.behind[4 * k + 2 :], norm[1:3])]
        args = arguments(neuron, normalised, inputs, start, final, mode, behind=affine)
        values, kind = args.values, (*args.kind, bool(record))
        key_or_reason = normalised.find_normalised(x.device.type, kind, bool(self.fused), normalised.stamp)
        if isinstance(key_or_reason, str):
            self._refuse(key_or_reason)
            return None
        runner = normalised.runners[key_or_reason]
        before = len(values) - len(dispatch.numbers)
        # from here on nothing is refused: the running statistics move once
        norm_params = self._norm_params(runner, norms, inputs)
        self.__dict__["reason"] = ""
        placed = self._among(values, before, norm_params, x.ndim)
        if may_note and not neuron.vectors:
            noted = NotedCall(runner, args.named, values, neuron, before)
            own = tuple([value for _, value in args.named])
            if noted.bind(inputs, None, (*own[:before], *norm_params, *own[before:]), placed):
                # as later ones: a checkpointed call must save the same tensors when it is computed again
                outputs = noted.results(inputs, None, own, norm_params)[0]
                dispatch.note(self._signature(inputs, norms), noted)
                return outputs, None, ()
        outputs, end, trace = runner(inputs, start, placed, vectors.recorded(neuron, record))
        if single:
            outputs = tuple([out.squeeze(0) for out in outputs])
        return outputs, named_state(neuron, end), vectors.together(neuron, record, trace)

    def _refuse(self, reason: str) -> None:
        """Note why a call is computed one after the other. Raises :class:`Unsupported` where it must not be."""
        self.__dict__["reason"] = reason
        if self.fused:
            owner = type(self.neuron).__name__
            raise Unsupported(f"{owner} was to normalise within its kernel (fused=True): {reason}")

    def _why_apart(self, dispatch: Dispatch, inputs: Tensors, norms: Norms, single: bool, mode: str) -> str:
        """Reason why a call with these inputs ``[T, *N]`` cannot be one program on any backend; "" if it can."""
        neuron, x = self.neuron, inputs[0]
        if neuron.repeat is not None and not single:
            # it is normalised once, which reads and writes less than one program would
            return f"repeat={neuron.repeat} gives it one step, which is normalised once"
        if self.fused is False:
            return "fused=False was asked for"
        if mode is not COMPILED and (mode is not EAGER or type(x) not in PLAIN):
            return "torch traces or transforms the call, or x is no plain tensor"
        if self.adds_for_block and any((v.shape, v.dtype, v.device) != (x.shape, x.dtype, x.device) for v in inputs):
            return "the shortcut has another shape or dtype than x"
        for name, value, norm in zip(("x", "skip"), inputs, norms):
            plain = value.dtype in NAMES and value.layout is torch.strided
            if not plain or not stats.fits(norm, value, self.channel_dim):
                shape = list(value.shape[1:] if single else value.shape)
                return f"{name} of shape {shape} and {value.dtype} is no plain input of the normalisation"
            if not norm.module.eps > 0:  # a constant channel would be 0 / 0
                return f"eps={norm.module.eps} of the normalisation is not above 0"
        # parameters per channel are placed along the dimension of the channels that are normalised
        dims = x.ndim - 1
        if (neuron.channel_dim - self.channel_dim) % dims and any(
            isinstance(value, Tensor) for _, value in dispatch.values(neuron, dispatch.stamp)
        ):
            return f"channel_dim={neuron.channel_dim}, and a parameter is a tensor"
        if mode is COMPILED and dispatch.leaves_graph(x.device.type, dispatch.stamp):
            return "the backend does not support torch_compile"
        return ""

    def _adds(self, x: Tensor, skip: Tensor, mode: str) -> bool:
        """True if a shortcut behind the neuron is part of its program. One of another shape, dtype or order of memory
        is not, and none where the first output is not spikes: rounded once, the sum would be another one.
        """
        if self.fused is False or not _lie_alike(x, skip, mode):
            return False
        dispatch: Dispatch = self.neuron._settled()
        return dispatch.adds_to_spikes(x.device.type, bool(self.fused), dispatch.stamp)

    # -- calls at rest for outputs alone, like one that passed every check: straight to the kernels

    def _signature(self, inputs: Sequence[Tensor], norms: Norms) -> Optional[Tuple[Any, ...]]:
        """The key of such a call, beside the neuron's parameters. No call of the neuron itself has an equal one."""
        modules = [norm.module for norm in norms]
        of_norms = [(type(module), module.num_features, module.eps > 0) for module in modules]
        by_batch = [stats.takes_batch(norm) for norm in norms]
        how = (self.shortcut, self.shortcut_spikes, self.channel_dim, self.fused is True, *of_norms, *by_batch)
        return signature((*inputs, *[value for norm in norms for value in norm[1:5]]), (), None, how)

    def _noted_call(self, inputs: Tensors, norms: Norms) -> Optional[Results]:
        """The results of a call like one that passed the checks; None, with no statistics moved, if there was none."""
        neuron: Any = self._modules["neuron"]
        noted: Optional[NotedCall] = neuron._dispatch.noted.get(self._signature(inputs, norms))
        values = None if noted is None else noted.values(neuron)
        if noted is None or values is None:
            return None
        norm_params = self._norm_params(noted.runner, norms, inputs)
        self.__dict__["reason"] = ""
        return noted.results(inputs, None, values, norm_params)[0], None, ()

    def _norm_params(self, runner: Runner, norms: Norms, inputs: Tensors) -> Tensors:
        """Mean, 1 / sqrt(variance + eps), weight and bias of each normalised input, by the runner where it can. Moves
        the running statistics.
        """
        moments, statistics = getattr(runner, "moments", None), getattr(runner, "input_statistics", None)
        dim = self.channel_dim
        params: List[Tensor] = []
        for norm, x in zip(norms, inputs):
            params += stats.constants(norm, x, dim if dim > 0 else dim + x.ndim - 1, moments, statistics)
        return tuple(params)

    def _among(self, values: Sequence[Any], before: int, norm_params: Sequence[Tensor], ndim: int) -> Tuple[Any, ...]:
        """A neuron's parameters, with those of the normalisations behind the first ``before``, placed over a time step
        of an input with ``ndim`` dimensions.
        """
        view = [1] * (ndim - 1)
        view[self.channel_dim] = -1
        return (*values[:before], *[value.view(view) for value in norm_params], *values[before:])


def _lie_alike(x: Tensor, skip: Tensor, mode: str) -> bool:
    """True if a kernel reads both tensors in place."""
    if mode is not COMPILED and (mode is not EAGER or type(skip) not in PLAIN):
        return False
    strided = x.layout is torch.strided is skip.layout
    alike = strided and x.shape == skip.shape and x.dtype == skip.dtype and x.device == skip.device
    return alike and x.stride() == skip.stride()


def _check_shortcut(layer: NormNeuron, shortcut: Any) -> None:
    if shortcut not in (None, "before", "after"):
        raise ValueError(
            f"NormNeuron: shortcut={shortcut!r} must be None, 'before' (neuron(norm(x) + skip)) or 'after' "
            "(neuron(norm(x)) + skip)"
        )
    _check_placed(shortcut, layer._modules.get("shortcut_norm"))


def _check_norm(layer: NormNeuron, norm: Any) -> None:
    stats.check_norm("NormNeuron", norm)
    _check_dims(layer.__dict__.get("channel_dim", 1), norm)


def _check_shortcut_norm(layer: NormNeuron, norm: Any) -> None:
    if norm is not None:
        stats.check_norm("NormNeuron", norm, "shortcut_norm")
        _check_dims(layer.__dict__.get("channel_dim", 1), norm)
    _check_placed(layer.shortcut, norm)


def _check_placed(shortcut: Optional[str], norm: Any) -> None:
    if norm is not None and shortcut != "before":
        raise ValueError(
            f"NormNeuron: shortcut_norm with shortcut={shortcut!r}; a shortcut is normalised with shortcut='before' "
            "alone, neuron(norm(x) + shortcut_norm(skip))"
        )


def _check_channel_dim(layer: NormNeuron, channel_dim: Any) -> None:
    if channel_dim not in (1, -1) or isinstance(channel_dim, bool):
        raise ValueError(f"NormNeuron: channel_dim={channel_dim!r} must be 1 ([B, C, ...]) or -1 ([B, ..., C])")
    for norm in layer.norms:
        _check_dims(channel_dim, norm)


def _check_dims(channel_dim: int, norm: Any) -> None:
    if channel_dim == -1 and not isinstance(norm, nn.BatchNorm1d):
        raise ValueError(
            f"NormNeuron: channel_dim=-1 with {a_kind(norm)}; nn.BatchNorm1d(C) normalises [T, B, ..., C] over all "
            "but the last dimension"
        )


def _check_fused(layer: NormNeuron, fused: Any) -> None:
    if not (fused is None or isinstance(fused, bool)):
        raise TypeError(f"NormNeuron: fused={fused!r} must be True, False or None (where the backend can)")


def _check_neuron(layer: NormNeuron, neuron: Any) -> None:
    """Refuse a module that cannot be one layer with a normalisation."""
    if not isinstance(neuron, Neuron):
        raise TypeError(f"NormNeuron: neuron={neuron!r} must be a spikecore neuron")
    if len(neuron.inputs) != 1:
        raise ValueError(
            f"NormNeuron: {type(neuron).__name__} has the inputs {', '.join(neuron.inputs)}; which of them to "
            "normalise is not known: normalise it before the call"
        )
    if not calls_as(neuron, Neuron) or "forward" in vars(neuron) or neuron._forward_pre_hooks:
        # what they do to the input would come before the normalisation: a factor, for one, would be divided out
        raise ValueError(
            f"NormNeuron: this {type(neuron).__name__} has a forward of its own or a forward pre-hook, which would "
            "see the input before it is normalised; leave norm in front of the neuron: "
            "nn.Sequential(sc.layers.TimeBatched(conv, norm), neuron)"
        )


#: Checks that refuse a value of an attribute: ``check(layer, value)``.
_CHECKS: Dict[str, Callable[[NormNeuron, Any], None]] = {
    "norm": _check_norm,
    "shortcut": _check_shortcut,
    "shortcut_norm": _check_shortcut_norm,
    "neuron": _check_neuron,
    "channel_dim": _check_channel_dim,
    "fused": _check_fused,
}


class NormPlace(nn.Identity):
    """Placeholder of :func:`spikecore.fuse` for a normalisation that a :class:`NormNeuron` has now."""

    def __setattr__(self, name: str, value: Any) -> None:
        _check_no_tensor(self, name, value)
        super().__setattr__(name, value)


def _check_no_tensor(module: nn.Module, name: str, value: Any) -> None:
    """Refuse what torch.func.functional_call sets where a name of ``state_dict()`` leads to no parameter."""
    if isinstance(value, Tensor):
        raise AttributeError(
            f"{type(module).__name__} has no tensor {name!r}: in a fused network it belongs to the norm or the neuron "
            "of a NormNeuron. Give torch.func.functional_call the names of net.named_parameters() and "
            "net.named_buffers(), or call sc.unfuse(net) first"
        )


def neuron_of(layer: nn.Module) -> Optional[Neuron]:
    """The neuron of a layer that is one, or that normalises in front of one."""
    inner = layer.neuron if isinstance(layer, NormNeuron) else layer
    return inner if isinstance(inner, Neuron) else None


def _added(results: Results, skip: Tensor) -> Results:
    """The results of a call, with ``skip`` added to its first output."""
    outputs, end, trace = results
    return (outputs[0] + skip, *outputs[1:]), end, trace
