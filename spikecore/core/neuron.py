"""The neuron: a thin stateful shell over a pure function of input, state and parameters.

The path of a tensor: ``forward -> call -> runner`` (:mod:`spikecore.core.call`). What a neuron *is* stands in its
``dynamics``; what it holds between calls is in :mod:`spikecore.core.state`; its program, backends and runners are in
its :class:`~spikecore.core.dispatch.Dispatch`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Callable, ClassVar, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.context import compile_time, uncompiled
from spikecore.core import _arguments as arguments
from spikecore.core import checkpoints, checks, parameters, ranges, vectors
from spikecore.core.call import call
from spikecore.core.dispatch import Dispatch, ask, request
from spikecore.core.state import Stateful
from spikecore.lang import Program, TraceError, Vector, ops, spike_times
from spikecore.lang.transform import Transform
from spikecore.plugins.selection import Resolved, asked_in_words, capture
from spikecore.surrogate import ATan, Surrogate

__all__ = ["Neuron", "Stateful"]


#: Types of values that never change. An attribute that is set to the object that it was has changed nothing.
_FIXED = (bool, int, float, str, type(None))


class Neuron(Stateful):
    """Base class of every neuron. A subclass declares states and parameters and writes one step as arithmetic::

        class AdaptiveLIF(sc.Neuron):
            states = {"v": 0.0, "a": 0.0}
            params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

            def dynamics(self, x, s, p):
                h = s.v + (x - s.v) / p.tau
                z = self.spike(h - (p.threshold + p.beta * s.a))
                return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}

    Arguments of every neuron, beside its own parameters by name:

    surrogate: what stands for the derivative of a spike, see :mod:`spikecore.surrogate`; None: the class's own, which
        is ``ATan()`` unless it says otherwise.
    detach_reset: whether spikes carry no gradient where they enter the next value of a state in ``reset_states``.
    gradient: ``"surrogate"``, or ``"spike_time"``: the exact derivative of the times of spikes (EventProp).
    learn: names of the parameters to learn, as in ``("tau",)``; they become ``nn.Parameter``.
    channel_dim: dimension of one time step ``[B, C, ...]`` that parameters of shape ``[C]`` lie along.
    step: ``"multi"``: a call takes ``[T, *N]`` and starts at rest. ``"single"``: a call takes ``[*N]`` and continues.
    repeat: number of steps for which a call repeats inputs without time, ``[*N] -> [repeat, *N]``; None: they have it.
    backend: name of the backend; None leaves it to context, environment and auto.
    bounds: ranges in place of those of the class, ``{"tau": (1.0, 10.0)}``; None for one, or for all, lifts them.

    Docstrings of subclasses get these lines, and those of other bases, for arguments that they do not describe.

    ``gradient="spike_time"`` is for equations with one spike. The spikes stay as they are; ``surrogate`` and
    ``detach_reset`` have no effect. The neuron then has two more states, ``"time_shift"`` and ``"last_u"``. See the
    page on spike times.

    With ``repeat`` the layers before the neuron see no time, and compute once. Values are those of
    ``neuron(x.expand(repeat, *x.shape))``; the gradient of ``x`` is the sum over the steps. An input that has time all
    the same cannot be told from one step, and gets a further dimension.

    Ranges: see :mod:`spikecore.core.ranges`.

    A state or a parameter that is a vector, ``{"h": sc.vector(16)}``, has n values in each neuron: outside a tensor
    ``[..., n]``, in ``dynamics`` a value whose operators go by element, with ``h[0]``, slices and ``sc.ops.sum(h)``.

    A class attribute with the name of an argument, ``reset = "soft"``, is the default of that argument for the class.

    A call takes each input as ``[T, *N]``, T steps of any shape, and returns each output as ``[T, *N]``. Arithmetic and
    state are float32, or float64 for float64 input; outputs have the dtype of the input.

    Raises TypeError for an unknown argument and for one of a wrong type, ValueError for a value out of its range.
    """

    #: name -> default value.
    params: Mapping[str, Any] = {}
    #: name -> initial value: a number, or the name of a parameter; ``sc.vector(n)`` for a state of n values.
    states: Mapping[str, Union[float, str, Vector]] = {}
    #: Numbers of values of vectors that are arguments of the constructor: name -> default.
    sizes: Mapping[str, int] = {}
    #: The states and parameters of a neuron that are vectors.
    vectors: Mapping[str, Vector] = {}
    #: What a call takes, by name, where a vector is among it.
    _input_kinds: Mapping[str, Optional[Vector]] = {}
    #: Ranges that parameters must be in and are kept in while they are learnt, ends included: name -> (low, high), with
    #: None for no end; None instead of a pair lifts the range of a base class. Those of base classes hold as well.
    bounds: Mapping[str, Any] = {}
    #: Parameters that must be above 0.
    positive: ClassVar[Tuple[str, ...]] = ()
    #: Words of errors beside a range, such as the other parameter that it follows: name -> words.
    follows: ClassVar[Mapping[str, str]] = {}
    #: Names of the inputs. With more than one, ``dynamics`` gets them as a named tuple. With ``{"x": sc.vector(n)}`` a
    #: call takes ``[T, *N, n]``, and a neuron has the inputs ``x[0]``, ``x[1]``, ....
    inputs: Any = ("x",)
    #: Names of the inputs that a call draws where they are not given: see :class:`spikecore.stochastic.Stochastic`.
    drawn: ClassVar[Tuple[str, ...]] = ()
    #: The class whose ``forward`` and ``run`` are the equations and nothing else.
    _equations: ClassVar[Any]
    #: States whose next value counts as reset by the spike, for ``detach_reset``; None for all of them.
    reset_states: ClassVar[Optional[Tuple[str, ...]]] = None
    configuration = {
        "surrogate": checks.surrogate,
        "detach_reset": checks.flag,
        "gradient": checks.gradient,
        "channel_dim": checks.whole,
        "repeat": checks.steps_or_none,
        **Stateful.configuration,
    }
    #: Transforms of the traced program, in order, such as fixed point.
    transforms: Tuple[Transform, ...] = ()
    #: The ranges now, which ``bounds`` shows, and ``bounds`` as it was given, which stays when ranges follow values.
    _ranges: Dict[str, ranges.Interval]
    _given_bounds: Any
    #: Surrogate of neurons that are given None.
    surrogate: Surrogate = ATan()
    #: Derivative of a spike; the class's value serves neurons that were pickled before there was a choice.
    gradient: str = "surrogate"
    #: True while a checkpoint is loaded.
    _loading = False
    #: Dispatch of calls; missing while the neuron is made.
    _dispatch: Dispatch

    #: Parameters that the constructor computes from other arguments, and does not take itself.
    _computed: ClassVar[Tuple[str, ...]] = ()
    #: The defaults of arguments that the class and its bases declare: see :mod:`spikecore.core._arguments`.
    _defaults: ClassVar[Mapping[str, Any]] = {}
    __signature__ = arguments.Signature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        checks.declaration(cls, Neuron)
        vectors.declaration(cls)
        ranges.declaration(cls)
        arguments.declare_defaults(cls, Neuron)
        docstring: Any = arguments.Docstring(cls.__doc__)
        cls.__doc__ = docstring

    @arguments.with_defaults
    def __init__(
        self,
        *,
        surrogate: Optional[Surrogate] = None,
        detach_reset: bool = False,
        gradient: str = "surrogate",
        learn: Sequence[str] = (),
        channel_dim: int = 1,
        step: str = "multi",
        repeat: Optional[int] = None,
        backend: Optional[str] = None,
        bounds: Any = MappingProxyType({}),
        **params: Any,
    ) -> None:
        """Arguments are those in the docstring of the class."""
        super().__init__(step)
        checks.definition(type(self), Neuron)
        checks.known_keywords(type(self), params)
        vectors.settle(self, params)
        self.surrogate = type(self).surrogate if surrogate is None else surrogate
        self.detach_reset = detach_reset
        self.gradient = gradient
        self.channel_dim = channel_dim
        self.repeat = repeat
        self.learn = parameters.names_to_learn(type(self).__name__, learn, tuple(self.params))
        values = {name: params.get(name, default) for name, default in self.params.items()}
        for name, value in values.items():
            if isinstance(value, Tensor) and value is self.params[name]:
                values[name] = value.clone()  # that of the class, and loading changes a tensor in place
        self._given_bounds = dict(bounds) if isinstance(bounds, Mapping) else bounds
        parameters.adopt(self, parameters.ranges_with(self, values))
        for name, value in values.items():
            value = parameters.checked_value(self, name, value)
            shape = vectors.shapes(self, ()).get(name, ())
            parameters.declare(self, name, value, name in self.learn, shape)
        self.__dict__["_dispatch"] = Dispatch(capture(backend))

    # -- definition

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step: ``(x, states, parameters) -> (output or tuple of outputs, next states)``, in the language."""
        raise NotImplementedError(f"{type(self).__name__} must define dynamics(self, x, s, p)")

    def spike(self, u: Any, *others: Any, strict: bool = False, surrogate: Optional[Surrogate] = None) -> Any:
        """1 where ``u >= 0`` (``u > 0`` if ``strict``), else 0; its derivative is the surrogate: see `sc.ops.spike`.
        TraceError for more values, such as a threshold: write ``self.spike(v - threshold)``.
        """
        if others:
            raise TraceError(
                f"{type(self).__name__}: self.spike takes one value, and fires where it is 0 or more; write "
                "self.spike(v - threshold), and strict=... and surrogate=... by name"
            )
        return ops.spike(u, self.surrogate if surrogate is None else surrogate, strict)

    @property
    def program(self) -> Program:
        """This neuron's dynamics as a program, as they were when they were traced; see :meth:`retrace`."""
        return self._settled().define(self)

    @property
    def recordable(self) -> Tuple[str, ...]:
        """Names of what a call can record: the states, and the values that ``dynamics`` names by ``sc.ops.named``."""
        return (*self.states, *self.program.named)

    def retrace(self) -> None:
        """Trace ``dynamics`` again, for what it reads beside attributes of the neuron.

        A program is what ``dynamics`` gave when it was traced: before the first call, and again whenever an attribute
        of the neuron is set, deleted, registered, loaded or moved. Call this after a change of anything else that it
        reads: an attribute with a leading underscore, a global, a closure, an attribute of a class, or what a list, a
        dict, an array, a module or another object holds, an attribute of the neuron or not. Where the program is the
        same, nothing is compiled again.
        """
        self.__dict__["_dispatch"] = self._dispatch.anew()
        self._dispatch.settle(self)

    @compile_time
    def _settle(self) -> None:
        """Trace the definition, if it was not: a call reads its key, which torch.compile guards."""
        self._dispatch.settle(self)

    def _settled(self) -> Dispatch:
        """The dispatch of one call, which reads it once: another thread may put another one in its place."""
        self._settle()
        return self._dispatch

    @uncompiled
    def _redefine(self) -> None:
        """Trace the definition again, if it was traced: now, because torch.compile guards its key."""
        before = self.__dict__.get("_dispatch")
        if before is not None and before.program is not None:
            self.__dict__["_dispatch"] = after = before.anew()
            with suppress(Exception):  # the next call says what is wrong
                after.settle(self)
            if after.program == before.program and after.transforms == before.transforms:
                after.adopt(before)

    def _changed(self, name: str) -> None:
        """An attribute was set, deleted or registered; one with a leading underscore is data, and changes nothing."""
        if not name.startswith("_") and name not in self.params:
            self._redefine()

    @contextmanager
    def under(self, transform: Transform) -> Iterator[None]:
        """Within the block calls compute by the program that ``transform`` makes of this neuron's; see
        :class:`spikecore.lang.transform.Transform`. Tables of the neuron stay, so that a block costs no new trace.
        """
        before = self._settled()
        self.__dict__["_dispatch"] = within = before.of(transform)
        try:
            yield
        finally:
            now = self._dispatch  # another one if the neuron was changed within the block
            self.__dict__["_dispatch"] = before if now is within else now.anew(before.of_calls)

    # -- backend

    @property
    def backend(self) -> Optional[str]:
        """The name that was asked for, by argument or context; None if context, environment and auto decide."""
        return self._dispatch.request.name

    @backend.setter
    def backend(self, name: Optional[str]) -> None:
        ask(self.modules(), request(name, "set_backend()"))

    @property
    def bound(self) -> Mapping[str, Resolved]:
        """Device type -> the backend that computes there for this neuron, and why. Empty before the first call."""
        return dict(self._dispatch.bound)

    # -- parameters

    def named_values(self) -> Dict[str, Union[float, Tensor]]:
        """The value of each parameter of :attr:`program`, by name and in its order: this neuron's own parameters as
        they are, numbers or tensors, and behind them the numbers of its surrogate.
        """
        dispatch = self._settled()
        return dict(dispatch.values(self, dispatch.stamp))

    def _declared_bounds(self, values: Mapping[str, Any]) -> Dict[str, ranges.Interval]:
        """The ranges of this neuron's parameters, given their values, before ``bounds`` replaces some."""
        return ranges.declared(type(self))

    def _states_for(self, gradient: str) -> Mapping[str, Union[float, str, Vector]]:
        """The states of this neuron's program, which ``states`` shows."""
        declared = vectors.sized(self, type(self).states)
        if gradient == "surrogate":
            return declared
        shift, last = spike_times.names_of((*self.inputs, *declared, *self.params))
        return {**declared, shift: 0.0, last: spike_times.UNKNOWN}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.params:
            parameters.set_parameter(self, name, value)
        elif name == "bounds":
            parameters.set_bounds(self, value)
        elif name == "learn" and "learn" in self.__dict__:
            raise AttributeError(
                "learn is fixed when a neuron is made; make a new one, or set a parameter to an nn.Parameter"
            )
        elif name in self.sizes:
            raise AttributeError(f"{name} is fixed when a neuron is made; make a new one with {name}={value!r}")
        else:
            before = self.__dict__.get(name, self.__dict__)
            super().__setattr__(name, value)
            after = self.__dict__.get(name)
            if name == "gradient":
                self.__dict__["states"] = self._states_for(value)
            if after is not before or type(after) not in _FIXED:
                self._changed(name)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name in self.params and "_dispatch" in self.__dict__:
            self._dispatch.noted.clear()  # a tensor may be set where there was a number
        self._changed(name)

    def register_parameter(self, name: str, param: Optional[nn.Parameter]) -> None:
        """Override of ``nn.Module``; see :meth:`retrace`."""
        super().register_parameter(name, param)
        self._changed(name)

    def register_buffer(self, name: str, tensor: Optional[Tensor], persistent: bool = True) -> None:
        """Override of ``nn.Module``; see :meth:`retrace`."""
        super().register_buffer(name, tensor, persistent)
        self._changed(name)

    def add_module(self, name: str, module: Optional[nn.Module]) -> None:
        """Override of ``nn.Module``; see :meth:`retrace`."""
        super().add_module(name, module)
        self._changed(name)

    def train(self, mode: bool = True) -> Any:
        """Override of ``nn.Module``; ``dynamics`` may read the mode of a module in the neuron, which is set after its
        own.
        """
        super().train(mode)
        if self._modules:
            self._redefine()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        result = super()._apply(fn, *args, **kwargs)
        self._redefine()
        return result

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        parameters.project(self)  # an optimiser may have stepped, and what is saved must load again
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for stored in filter(torch.is_tensor, [transform.stored() for transform in self.transforms]):
            destination[prefix + checkpoints.TRANSFORM] = stored

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
            self._redefine()

        checkpoints.load(self, state_dict, prefix, load, unexpected_keys, error_msgs)

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        """Meaning of an entry of another library's checkpoint: None if unknown, "" if this neuron agrees with it, else
        the difference.
        """
        return checkpoints.of_snntorch(getattr(self, "reset", None), name, value)

    def __getstate__(self) -> Dict[str, Any]:
        state = {**super().__getstate__(), "_dispatch": self._dispatch.request}
        del state["bounds"]  # a view of the ranges
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__({**state, "_dispatch": Dispatch(state["_dispatch"])})
        parameters.adopt(self, state["_ranges"])

    # -- calls

    def forward(self, *inputs: Tensor) -> Any:
        """Spikes (or whatever ``dynamics`` outputs) for ``[T, *N]``; ``[*N]`` in single steps, or with ``repeat``.

        Several inputs have one shape, or broadcast to it with sizes of 1 (``[T, 1, C]``); ``[T]`` is one value a step.
        """
        if self._input_kinds:
            inputs = vectors.inputs(self, inputs)
        single = self.step == "single"
        if single or self._carrying:  # continues, without a call of its own
            outputs, state, _ = call(self, inputs, self._begin(), (), True, single)
            self._end(state)
        else:
            outputs = call(self, inputs, None, (), False)[0]
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, *inputs: Tensor, state: Optional[Mapping[str, Tensor]] = None, record: Sequence[str] = ()) -> Any:
        """The functional core: ``(output, state)`` for ``[T, *N]``, or ``(output, state, trace)`` with ``record``; with
        ``repeat`` for ``[*N]``.

        Pure: it neither reads nor writes what the neuron carries. ``state`` maps each state's name to a tensor ``[*N]``
        (None starts at rest); the one returned is that after the last step. ``trace`` maps each recorded state's name
        to its values after every step, ``[T, *N]``, and each name of ``sc.ops.named`` to its values within every step.
        All are differentiable.
        """
        if self._input_kinds:
            inputs = vectors.inputs(self, inputs)
        names = checks.recorded(type(self).__name__, record, self)
        outputs, final, trace = call(self, inputs, state, names, True)
        output = outputs[0] if len(outputs) == 1 else outputs
        return (output, final, dict(zip(names, trace))) if names else (output, final)

    def _repeat(self) -> Optional[int]:
        """For how many steps a multi-step call repeats its inputs; None where they have time."""
        return self.repeat

    @property
    def makes_time(self) -> bool:
        """True if inputs have no time and outputs have, because ``repeat`` is set."""
        return self.repeat is not None

    # -- module

    def _state_names(self) -> Collection[str]:
        return tuple(self.states)

    def _constant_states(self) -> Collection[str]:
        program = self._dispatch.program
        constant = () if program is None else program.constant_states()
        return vectors.whole(self, constant) if self.vectors else constant

    def extra_repr(self) -> str:
        """Parameters, configuration, and which backend was asked for and bound."""
        learnt = dict.fromkeys(self._parameters, " (learnt)")
        parts = [f"{name}={getattr(self, name)}" for name in self.sizes]
        parts += [f"{name}={parameters.shown(getattr(self, name))}{learnt.get(name, '')}" for name in self.params]
        usual = {"step": "multi", "detach_reset": False, "gradient": "surrogate", "channel_dim": 1}
        added = [name for name in self.configuration if name not in Neuron.configuration]
        unusual = [name for name in (*added, *Neuron.configuration) if getattr(self, name) != usual.get(name)]
        parts += [f"{name}={getattr(self, name)!r}" for name in unusual]
        parts += [f"transforms={self.transforms!r}"] if self.transforms else []
        resolved = self._dispatch.bound
        bound = ", ".join(f"{chosen.backend.name} on {device}" for device, chosen in resolved.items())
        asked = asked_in_words(self._dispatch.request, resolved.values())
        return ", ".join(parts) + f", backend={asked}" + (f" ({bound})" if bound else "")


Neuron._equations = Neuron
