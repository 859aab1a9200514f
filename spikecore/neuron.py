"""The neuron: a thin stateful shell over a pure function of input, state and parameters.

The path of a tensor: ``forward -> _call -> runner``. Most calls are like an earlier one that passed every check
(:mod:`spikecore._shell.earlier`): ``_call`` finds its runner with one look-up and skips the checks. Any other call goes
through ``_execute``, which checks it, places the parameters, and finds or compiles the runner of the bound backend for
the traced program. What a neuron *is* stands in its ``dynamics``; what it holds between calls is in
:mod:`spikecore._shell.state`, its backend in :mod:`spikecore._shell.binding`.
"""

from __future__ import annotations

import operator
from types import MappingProxyType
from typing import Any, ClassVar, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore._base.caches import CALLS
from spikecore._plugins.selection import asked_in_words, capture
from spikecore._shell import checkpoints, checks, compiled, definition, earlier, modules, observe, parameters, ranges
from spikecore._shell.binding import Bound
from spikecore._shell.state import State, Stateful
from spikecore.backend import MAX_STATIC_STEPS, BackendError, ParamValue, Tensors, one_step
from spikecore.dtypes import compute_dtype
from spikecore.lang import ops
from spikecore.lang._plain import is_compiling, is_followed, with_traced_sizes
from spikecore.surrogate import ATan, Surrogate

__all__ = ["Neuron", "Stateful"]


class Neuron(Bound):
    """Base class of every neuron. A subclass declares states and parameters and writes one step as arithmetic::

        class AdaptiveLIF(sc.Neuron):
            states = {"v": 0.0, "a": 0.0}
            params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

            def dynamics(self, x, s, p):
                h = s.v + (x - s.v) / p.tau
                z = self.spike(h - (p.threshold + p.beta * s.a))
                return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}

    Arguments of every neuron, beside its own parameters by name:

    surrogate: what stands for the derivative of the spike, see :mod:`spikecore.surrogate`.
    detach_reset: if true, spikes carry no gradient where they enter the next value of a state in ``reset_states``.
    learn: names of the parameters to learn; they become ``nn.Parameter``.
    bounds: ranges of parameters that replace those the class declares, ``{"tau": (1.0, 10.0)}``; ``{"tau": None}`` for
        none, and ``bounds=None`` for no ranges at all. See :mod:`spikecore._shell.ranges`.
    channel_dim: dimension of one time step ``[B, C, ...]`` that parameters of shape ``[C]`` lie along.
    step: ``"multi"``: a call takes ``[T, *N]`` and starts at rest. ``"single"``: a call takes ``[*N]`` and continues.
    repeat: the number of steps of a multi-step call whose input is the same at every step: the call takes that step
        alone, ``[*N] -> [repeat, *N]``, of each input. The layers before the neuron then see no time, and compute once.
        Values are those of ``neuron(x.expand(repeat, *x.shape))``; the gradient of ``x`` is the sum over the steps. An
        input that has time all the same cannot be told from one step, and gets a further dimension.
    backend: name of the backend; ``None`` leaves it to context, environment and auto.

    Arithmetic and state are float32, or float64 for float64 input; outputs have the dtype of the input.
    """

    #: name -> initial value: a number, or the name of a parameter.
    states: Mapping[str, Union[float, str]] = {}
    #: Ranges that parameters must be in and are kept in while they are learnt, ends included: name -> (low, high), with
    #: None for no end; None instead of a pair lifts the range of a base class. Those of base classes hold as well.
    bounds: Mapping[str, Any] = {}
    #: Parameters that must be above 0.
    positive: ClassVar[Tuple[str, ...]] = ()
    #: What a range that follows another parameter is made of, for errors: name -> words.
    follows: ClassVar[Mapping[str, str]] = {}
    #: Names of the inputs. With more than one, ``dynamics`` gets them as a named tuple.
    inputs: Tuple[str, ...] = ("x",)
    #: States whose next value counts as reset by the spike, for ``detach_reset``; None for all of them.
    reset_states: ClassVar[Optional[Tuple[str, ...]]] = None
    configuration = {
        "surrogate": checks.surrogate,
        "detach_reset": checks.flag,
        "channel_dim": checks.whole,
        "repeat": checks.steps_or_none,
        **Bound.configuration,
    }
    #: The ranges now, which ``bounds`` shows, and ``bounds`` as it was given, which stays when ranges follow values.
    _ranges: Dict[str, ranges.Interval]
    _given_bounds: Any
    #: Whether a checkpoint is loaded.
    _loading = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        checks.declaration(cls, Neuron)
        ranges.declaration(cls)

    def __init__(
        self,
        *,
        surrogate: Optional[Surrogate] = None,
        detach_reset: bool = False,
        learn: Sequence[str] = (),
        channel_dim: int = 1,
        step: str = "multi",
        repeat: Optional[int] = None,
        backend: Optional[str] = None,
        bounds: Any = MappingProxyType({}),
        **params: Any,
    ) -> None:
        super().__init__(step)
        checks.known_keywords(type(self), params)
        self.surrogate = ATan() if surrogate is None else surrogate
        self.detach_reset = detach_reset
        self.channel_dim = channel_dim
        self.repeat = repeat
        self.learn = parameters.names_to_learn(type(self).__name__, learn, tuple(self.params))
        values = {name: params.get(name, default) for name, default in self.params.items()}
        self._given_bounds = dict(bounds) if isinstance(bounds, Mapping) else bounds
        parameters.adopt(self, parameters.ranges_with(self, values))
        for name, value in values.items():
            parameters.declare(self, name, parameters.checked_value(self, name, value), name in self.learn)
        self._ask(capture(backend))

    # -- definition

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step: ``(x, states, parameters) -> (output or tuple of outputs, next states)``, in the language."""
        raise NotImplementedError(f"{type(self).__name__} must define dynamics(self, x, s, p)")

    def spike(self, u: Any, strict: bool = False, surrogate: Optional[Surrogate] = None) -> Any:
        """1 where ``u >= 0`` (``u > 0`` if ``strict``), else 0; its derivative is the surrogate: see `sc.ops.spike`."""
        return ops.spike(u, self.surrogate if surrogate is None else surrogate, strict)

    def _trace(self) -> definition.Traced:
        names = self.reset_states if self.reset_states is not None else tuple(self.states)
        return definition.traced(self, names if self.detach_reset else (), self._ranges)

    def _settings(self) -> Tuple[Any, ...]:
        """What the program was traced with: configuration, and the ranges of what is learnt."""
        learnt = {name: value for name, value in self._parameters.items() if name in self._ranges}
        limits = [(name, self._ranges[name], value.dtype) for name, value in learnt.items() if value is not None]
        return (*super()._settings(), *limits)

    def _follow_limits(self) -> None:
        """Trace again if the ranges of what is learnt changed, or what is learnt within one."""
        if self._cache.program is not None and self._cache.settings != self._settings():
            self._redefine()

    # -- parameters

    def _declared_bounds(self, values: Mapping[str, Any]) -> Dict[str, ranges.Interval]:
        """The ranges of this neuron's parameters, given their values, before ``bounds`` replaces some."""
        return ranges.declared(type(self))

    def _own_names(self) -> Collection[str]:
        return tuple(dict.fromkeys((*self.params, *self.configuration, *checks.COMMON)))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.params:
            parameters.set_parameter(self, name, value)
        elif name == "bounds":
            parameters.set_bounds(self, value)
        elif name == "learn" and "learn" in self.__dict__:
            raise AttributeError(
                "learn is fixed when a neuron is made; make a new one, or set a parameter to an nn.Parameter"
            )
        else:
            super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        parameters.project(self)  # an optimiser may have stepped, and what is saved must load again
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        def load(entries: Mapping[str, Any]) -> None:
            args = (prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
            super(Neuron, self)._load_from_state_dict(entries, *args)

        checkpoints.load(self, state_dict, prefix, load, unexpected_keys, error_msgs)

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        """What an entry of another library's checkpoint means here: None if nothing is known of it, "" if this neuron
        is as it says, else why it is not.
        """
        return checkpoints.of_snntorch(getattr(self, "reset", None), name, value)

    def __getstate__(self) -> Dict[str, Any]:
        return {**super().__getstate__(), "bounds": dict(self._ranges)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        parameters.adopt(self, state["_ranges"])

    # -- calls

    def forward(self, *inputs: Tensor) -> Any:
        """Spikes (or whatever ``dynamics`` outputs) for ``[T, *N]``; ``[*N]`` in single steps, or with ``repeat``."""
        if not (self.step == "single" or self._carrying):
            plain = is_compiling() and not self._watchers and self.repeat is None
            if plain and len(inputs) == 1 and isinstance(inputs[0], Tensor):
                output = self._in_graph(inputs[0])
                if output is not None:
                    return output
            outputs = self._call(inputs, None, False)[0]
        else:
            outputs = self._continue(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, *inputs: Tensor, state: Optional[Mapping[str, Tensor]] = None, record: Sequence[str] = ()) -> Any:
        """The functional core: ``(output, state)`` for ``[T, *N]``, or ``(output, state, trace)`` with ``record``; with
        ``repeat`` for ``[*N]``.

        Pure: it neither reads nor writes what the neuron carries. ``state`` maps each state's name to a tensor ``[*N]``
        (None starts at rest); the one returned is that after the last step. ``trace`` maps each recorded state's name
        to its values after every step, ``[T, *N]``. All are differentiable.
        """
        names = checks.recorded(type(self).__name__, record, self.states)
        if not names:
            outputs, final = self._call(inputs, state, final=True)
            return outputs[0] if len(outputs) == 1 else outputs, final
        if self._watchers:
            outputs, final, trace_ = observe.recorded(self, self._compute, inputs, state, names, True, False)
        else:
            outputs, final, trace_ = self._execute(inputs, state, names, final=True)
        return outputs[0] if len(outputs) == 1 else outputs, final, dict(zip(names, trace_))

    def _continue(self, inputs: Sequence[Tensor]) -> Tensors:
        """Outputs of a call that goes on from the state of the last one."""
        outputs, state = self._call(inputs, self._begin(), final=True, single=self.step == "single")
        self._end(state)
        return outputs

    def _call(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        final: bool,
        single: bool = False,
        watched: bool = True,
    ) -> Tuple[Tensors, Optional[State]]:
        """A call without a record. If an earlier call of its kind passed the checks, this one skips them.

        ``single``: inputs and outputs are those of one time step, ``[*N]``. ``watched``: whether watchers are told.
        """
        if self._watchers and watched:
            return observe.recorded(self, self._compute, inputs, state, (), final, single)[:2]  # type: ignore[no-any-return]  # of a neuron
        x, repeat = earlier.only_input(inputs), None if single else self._repeat()
        one = single or repeat is not None  # whether x is one time step
        if x is None or not (one or x.ndim):
            return self._execute(inputs, state, (), final, single)[:2]
        start = None if state is None else earlier.state_as_before(self.states, state, x, one)
        if start is None and state is not None:
            return self._execute(inputs, state, (), final, single)[:2]
        quick, signature = self._cache.quick, earlier.signature(x, start, final, 0 if single else repeat)
        found = quick.get(signature)
        values = None if found is None else earlier.values_as_before(found, self, x, one)
        if found is None or values is None:
            return self._execute(inputs, state, (), final, single)[:2]
        constant: Tensors = ()
        if repeat is not None:
            x, constant = over_time(x, repeat, found.constant)
        if found.call is not None:
            try:
                outputs, end = found.call((x,), start, (*constant, *values) if constant else values)
            except BackendError:  # the runner meets it, too, and does what is to be done then
                quick.pop(signature, None)
                return self._execute(inputs, state, (), final, single)[:2]
        elif single:
            outputs, end = one_step(found.runner, (x,), start, earlier.placed(found, values))
        else:
            outputs, end = found.runner((x,), start, (*constant, *earlier.placed(found, values)), ())[:2]
        return outputs, dict(zip(self.states, end)) if end is not None else None

    def _compute(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
    ) -> Tuple[Tensors, Optional[State], Tensors]:
        """A call of which watchers are told; without a record it is as quick as one that is not watched."""
        if record:
            return self._execute(inputs, state, record, final, single)
        return (*self._call(inputs, state, final, single, watched=False), ())

    @with_traced_sizes
    def _execute(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool = False,
    ) -> Tuple[Tensors, Optional[State], Tensors]:
        given, owner = inputs, type(self).__name__
        repeat = None if single else self._repeat()
        if single or repeat is not None:
            inputs = [x.unsqueeze(0) if isinstance(x, Tensor) else x for x in inputs]
        quick = self._cache.quick  # kept: a concurrent change replaces it, and the new one must not get this entry
        inputs = checks.inputs(owner, self.inputs, inputs)
        x = inputs[0]
        if is_compiling() and self._left_out(x.device.type, self._stamp()):
            return self._execute_eagerly(given, state, record, final, single)  # type: ignore[no-any-return]  # as here
        grad = torch.is_grad_enabled()
        # the inputs that the program has as parameters, and their names
        constant: Tensors = ()
        names: Tuple[str, ...] = ()
        if repeat is not None:
            learnt = grad and any(value.requires_grad for value in inputs)
            names = self._constant_names(x.device.type, learnt, self._stamp())
            inputs, constant = self._over_time(inputs, repeat, names)
            x = inputs[0]
        named, values, kinds = self._placed(x)
        start = checks.state(owner, self.states, state, x, carried=state is not None and state is self._state)
        gradients = grad and any(value.requires_grad for value in inputs)
        arguments = (*zip(filter(None, names), constant), *named)
        learn = tuple(name for name, value in arguments if grad and isinstance(value, Tensor) and value.requires_grad)
        # a gradient may come in through a state that is handed out
        state_gradients = grad and (
            (start is not None and any(value.requires_grad for value in start))
            or (final and (gradients or bool(learn)))
        )
        # index: torch.compile, which may take T for a variable, is to fix it here
        steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
        spec = (x.dtype, steps, (*["full"] * len(constant), *kinds), learn, final)
        kind = self._find(
            x.device.type, spec, gradients, state_gradients, bool(record), self._stamp(), constant=bool(constant)
        )
        self._settle()
        runner = self._cache.runners[kind]
        trace_: Tensors = ()
        # as later calls are run: a checkpointed call must save the same tensors when it is recomputed
        found, quickly = None, None
        taken = tuple([value.squeeze(0) for value in inputs]) if single else inputs
        if len(inputs) == 1 and not (record or is_followed()):
            found = earlier.noted(runner, named, values, x, self, bool(constant))
            found, quickly = earlier.first_call(found, taken, start, constant, named, values, single)
        if quickly is not None:
            outputs, end = quickly
        elif single and not (is_compiling() or record):
            outputs, end = one_step(runner, taken, start, values)
        else:
            outputs, end, trace_ = runner(inputs, start, (*constant, *values), record)
            outputs = tuple([out.squeeze(0) for out in outputs]) if single else outputs
        if found is not None:
            if len(quick) >= CALLS:
                quick.clear()
            quick[earlier.signature(given[0], start, final, 0 if single else repeat)] = found
        return outputs, dict(zip(self.states, end)) if end is not None else None, trace_

    def _placed(self, x: Tensor) -> Tuple[Sequence[Tuple[str, Any]], Tuple[ParamValue, ...], Tuple[str, ...]]:
        """The parameters by name, as they lie over one of the time steps ``x``, and the kind of each."""
        owner, named = type(self).__name__, self._values()
        checks.same_device(owner, x.device, named)
        if not is_compiling():
            modules.check_gathered(owner, x, named)
        values, kinds = parameters.place(owner, named, x.shape[1:], self.channel_dim)
        return named, values, kinds

    def _repeat(self) -> Optional[int]:
        """For how many steps a multi-step call repeats its inputs; None where they have time."""
        return self.repeat

    @property
    def makes_time(self) -> bool:
        """Whether inputs have no time, and outputs have: ``repeat`` is set."""
        return self.repeat is not None

    def _over_time(self, inputs: Tensors, repeat: int, names: Tuple[str, ...]) -> Tuple[Tensors, Tensors]:
        """Inputs ``[1, *N]`` over all steps, and those that the program has as parameters, under their names."""
        if not names:
            return tuple([x.expand(repeat, *x.shape[1:]) for x in inputs]), ()
        each = [over_time(x.squeeze(0), repeat, bool(name)) for x, name in zip(inputs, names)]
        return tuple([x for x, _ in each]), tuple([value for _, constant in each for value in constant])

    @compiled.uncompiled
    def _execute_eagerly(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        single: bool,
    ) -> Tuple[Tensors, Optional[State], Tensors]:
        """``_execute``, as a break in a compiled graph."""
        return self._execute(inputs, state, record, final, single)

    # -- module

    def _state_names(self) -> Mapping[str, bool]:
        return dict.fromkeys(self.states, True)

    def _constant_states(self) -> Collection[str]:
        program = self._cache.program
        return () if program is None else program.constant_states()

    def extra_repr(self) -> str:
        """Parameters, configuration, and which backend was asked for and bound."""
        learnt = {name for name, _ in self.named_parameters(recurse=False)}
        shown = {name: parameters.shown(getattr(self, name)) for name in self.params}
        parts = [f"{name}={text}" + (" (learnt)" if name in learnt else "") for name, text in shown.items()]
        usual = {"step": "multi", "detach_reset": False, "channel_dim": 1}
        own = [name for name in self.configuration if name not in Neuron.configuration]
        told = [name for name in (*own, *Neuron.configuration) if getattr(self, name) != usual.get(name)]
        parts += [f"{name}={getattr(self, name)!r}" for name in told]
        bound = ", ".join(f"{resolved.backend.name} on {device}" for device, resolved in self._cache.bound.items())
        asked = asked_in_words(self._request, self._cache.bound.values())
        return ", ".join(parts) + f", backend={asked}" + (f" ({bound})" if bound else "")


def over_time(x: Tensor, repeat: int, constant: bool) -> Tuple[Tensor, Tensors]:
    """One step ``[*N]`` as the input ``[repeat, *N]``; ``constant``: and as the parameter that has its gradient."""
    if not constant:
        return x.expand(repeat, *x.shape), ()
    return x.detach().expand(repeat, *x.shape), (x.to(compute_dtype(x.dtype)),)
