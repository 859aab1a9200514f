"""Feedback around any neuron."""

from __future__ import annotations

import operator
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spikecore.backend import Tensors, Unsupported
from spikecore.context import COMPILED, EAGER, autocast_dtype, is_compiling, world
from spikecore.core import checks, observe, vectors
from spikecore.core.call import call, signature
from spikecore.core.modules import calls_as, has_hooks
from spikecore.core.neuron import Neuron
from spikecore.core.state import State, Stateful
from spikecore.dtypes import compute_dtype
from spikecore.layers import Delay, Feedback
from spikecore.layers.delay import PAST
from spikecore.layers.feedback import Into, check_one_step
from spikecore.layers.lags import following, one_by_one, whole
from spikecore.neurons._feedback import Looped, Matrix, fed_back, recalled, under_autocast
from spikecore.scan import is_any_length, scan
from spikecore.words import a_kind

__all__ = ["FEEDBACK", "Recurrent"]

#: Name of the fed-back output in the state; of several, ``"feedback.0"`` by their numbers.
FEEDBACK = "feedback"


class Way(NamedTuple):
    """A way back: a module, the inputs that what it gives is added to, and the output that it is given, as numbers."""

    #: The name of the module in messages.
    name: str
    module: nn.Module
    into: Tuple[int, ...]
    output: int
    detach: bool
    #: The module that is called for a step: the ``Feedback`` around it, where there is one.
    called: nn.Module


class Recurrent(Stateful):
    """A neuron whose last output comes back: ``y[t] = neuron(x[t] + linear(y[t-1]))``, with ``y[-1] = 0``.

    ``repeat=T`` takes the input as one step ``[*N]`` and repeats it, as of any neuron: ``[*N] -> [T, *N]``.

    ``linear`` is any module without state that keeps the shape of one time step: ``nn.Linear(C, C)``, a convolution, an
    elementwise gain. The state is that of the neuron and ``"feedback"``, the last output. ``step``, ``run``,
    ``record``, ``carry_state`` and ``reset`` work as for any neuron.

    With ``sc.Delay(nn.Linear(C, C), max_delay)`` an output comes back ``delay + 1`` steps later. The state then
    has ``"past"``, too, ``[*N, max_delay]``: the outputs before the last one, the newest last.

    With ``nn.Linear``, or a subclass that keeps its ``forward``, or a ``Delay`` with one whole delay for each neuron
    (``per="input"``; fixed, or learnt and in ``eval()``), all steps are one call of a backend that declares
    ``recurrent``, and one node of autograd's graph on a backend with kernels. Its weight may be computed by a
    parametrisation, such as a mask, which then is computed once a call. Any other module, one with hooks or whose
    ``forward`` was replaced, a call that torch traces or transforms, and other backends take a loop over the steps;
    :attr:`looped` says why. With ``step="single"`` a call is ``linear`` and one step of the neuron.

    A neuron with several inputs or outputs is called as ever, with all of them: ``into`` names the input that is added
    to, and ``output`` says which output comes back. With k names in ``into`` the module gives k times the numbers of a
    step, along one dimension, in parts of this order: ``nn.Linear(C, 4 * C)``, into ``("i", "f", "g", "o")``. An input
    that is a vector of n values counts as n: the first value of all neurons, then the second, and so on. Several
    modules, of several outputs, are a list of :class:`spikecore.layers.Feedback`; what comes back to one input adds up.
    The state has ``"feedback.0"`` and so on, by their numbers, where several outputs come back.

    neuron: any neuron of spikecore. Random numbers of a :class:`spikecore.stochastic.Stochastic` one are drawn where
        they are not given.
    linear: the module that the outputs come back through, or a list of :class:`spikecore.layers.Feedback`.
    step: ``"multi"`` or ``"single"``, as of a neuron.
    repeat: the number of steps of a call whose input is one step, as of a neuron; None where the input has time.
    fused: None takes one call where the backend can; True raises :class:`~spikecore.backend.Unsupported` where it
        cannot; False always takes the loop.
    detach: whether what comes back is a constant for backward: ``linear(y[t-1].detach())``. Its weights learn from
        their product at each step, and no gradient goes through it to earlier steps.
    into: the name of the input that what comes back is added to, one of ``neuron.inputs``, or a tuple of names; None
        where there is one input.
    output: the number of the output that comes back, from 0; None where there is one.
    given: the names of the inputs that a call is given, in their order; the others are what comes back alone. None for
        all.
    packed: whether a call is given one tensor ``[..., k * C]`` with the k inputs side by side, as a linear layer makes
        them.
    """

    configuration = {
        **Stateful.configuration,
        "fused": checks.flag_or_none,
        "repeat": checks.steps_or_none,
        "detach": checks.flag,
        "packed": checks.flag,
    }
    #: For :func:`spikecore.layers.pack`, the part whose output this gives.
    output_of = "neuron"
    # as class attributes, for a module that was pickled whole before there were these
    fused: Optional[bool] = None
    detach: bool = False
    into: Into = None
    output: Optional[int] = None
    given: Optional[Tuple[str, ...]] = None
    packed: bool = False
    _looped: Optional[str] = None

    def __init__(
        self,
        neuron: Neuron,
        linear: Union[nn.Module, Sequence[Feedback]],
        *,
        step: str = "multi",
        repeat: Optional[int] = None,
        fused: Optional[bool] = None,
        detach: bool = False,
        into: Into = None,
        output: Optional[int] = None,
        given: Optional[Sequence[str]] = None,
        packed: bool = False,
    ) -> None:
        super().__init__(step)
        if not isinstance(neuron, Neuron):
            raise TypeError(
                f"Recurrent: neuron={neuron!r} must be a spikecore neuron; the order is Recurrent(neuron, linear)"
            )
        listed = _listed(linear)
        if listed and (into, output, detach) != (None, None, False):
            raise ValueError("Recurrent: of a list each Feedback has into, output and detach; give them there")
        if FEEDBACK in neuron.states:
            raise ValueError(
                f"Recurrent: {type(neuron).__name__} has a state {FEEDBACK!r}, as the last output is called in "
                "the state of Recurrent; rename it"
            )
        if neuron.step != "multi":
            raise ValueError("Recurrent: neuron has step='single'; give the step mode to Recurrent(step=...) instead")
        if neuron.repeat is not None:
            raise ValueError(f"Recurrent: neuron has repeat={neuron.repeat}; give it to Recurrent(repeat=...) instead")
        if not calls_as(neuron, neuron._equations) or "forward" in vars(neuron) or neuron._forward_pre_hooks:
            raise ValueError(
                f"Recurrent: this {type(neuron).__name__} has a forward of its own or a forward pre-hook, which would "
                "not be called; write what it does in dynamics, or in linear"
            )
        self.neuron = neuron
        self.repeat = repeat
        self.fused = fused
        self.detach = detach
        self.into = tuple(into) if isinstance(into, list) else into
        self.output = output
        self.given = None if given is None else _checked_given(neuron, given)
        self.packed = packed
        for way in listed:
            _check_ends(neuron, way.into, way.output)
            _check_past(neuron, way.module)
        if packed and vectors.are_inputs(neuron):
            kind = type(neuron).__name__
            raise ValueError(f"Recurrent: {kind} takes vectors, which packed=True does not part; give inputs apart")
        if listed:
            self.feedbacks = nn.ModuleList(listed)
        else:
            _check_ends(neuron, self.into, output)
            self.linear: Any = linear
        if self.given is not None:
            _check_reached(neuron, self.ways, self.given)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "linear" and isinstance(value, nn.Module):
            check_one_step("Recurrent", "linear", value)
            _check_past(self.neuron, value)
        if name in ("into", "output", "given") and name in self.__dict__:
            raise AttributeError(f"Recurrent: {name} is fixed when a Recurrent is made; make a new one")
        if name in ("detach", "linear") and "feedbacks" in self.__dict__.get("_modules", ()):
            of = "detach" if name == "detach" else "module"
            raise ValueError(f"Recurrent: of a list each Feedback has its {of}; set it there, net.feedbacks[0].{of}")
        super().__setattr__(name, value)

    @property
    def several(self) -> bool:
        """True if this is more than one module from one output into one input, beside which all inputs are given."""
        neuron: Any = self._modules["neuron"]
        several = self.packed or self.given is not None or isinstance(self.into, tuple)
        return several or "feedbacks" in self._modules or vectors.are_inputs(neuron)

    @property
    def looped(self) -> Optional[str]:
        """Reason why the last call of several steps outside torch.compile computed one after the other: "" if it did
        not, None before the first one.
        """
        return self._looped

    def forward(self, *inputs: Tensor) -> Any:
        """Outputs for ``[T, *N]``, or ``[*N]`` in single-step mode."""
        single = self.step == "single"
        if not (single or self._carrying):
            return _alone(self._steps(self._over_time(inputs), None, (), final=False)[0])
        before = self._begin()
        if not single:
            outputs, state, _ = self._steps(self._over_time(inputs), before, ())
        elif self._is_one_call():
            outputs, state = self._one_step(inputs, before)
        else:
            at_once = [x.unsqueeze(0) if isinstance(x, Tensor) else x for x in inputs]
            timed, state, _ = self._steps(at_once, before, ())
            outputs = tuple([out.squeeze(0) for out in timed])
        self._end(state)
        return _alone(outputs)

    def run(self, *inputs: Tensor, state: Optional[Mapping[str, Tensor]] = None, record: Sequence[str] = ()) -> Any:
        """Counterpart of :meth:`Neuron.run`: ``(output, state)``, with ``record`` also the trace of states of the inner
        neuron.
        """
        names = checks.recorded("Recurrent", record, self.neuron)
        outputs, final, trace = self._steps(self._over_time(inputs), state, names)
        return (_alone(outputs), final, trace) if names else (_alone(outputs), final)

    @property
    def makes_time(self) -> bool:
        """True if the input has no time and the output has, because ``repeat`` is set."""
        return self.repeat is not None

    def _over_time(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.repeat is None:
            return inputs
        return [x.expand(self.repeat, *x.shape) if isinstance(x, Tensor) else x for x in inputs]

    @property
    def ways(self) -> Tuple[Way, ...]:
        """The ways back, in order."""
        neuron: Any = self._modules["neuron"]  # past nn.Module.__getattr__, which takes a while
        listed: Any = self._modules.get("feedbacks")
        if listed is None:
            linear: Any = self._modules["linear"]
            return (Way("linear", linear, *_ends(neuron, self.into, self.output), self.detach, linear),)
        return tuple(
            [
                Way(f"feedbacks.{k}.module", of.module, *_ends(neuron, of.into, of.output), of.detach, of)
                for k, of in enumerate(listed)
            ]
        )

    def _given_names(self) -> Tuple[str, ...]:
        """The names of the inputs that a call is given, without random numbers."""
        neuron: Any = self._modules["neuron"]
        return self.given or tuple([name for name in vectors.named_inputs(neuron) if name not in neuron.drawn])

    def _over_inputs(self, inputs: Sequence[Any]) -> Tensors:
        """Every input of the neuron, of those that a call is given: with random numbers, and zeros for the rest."""
        neuron: Any = self._modules["neuron"]
        setting = "" if self.repeat is None else f"repeat={self.repeat}"
        if not (self.packed or neuron.drawn or self.given or vectors.are_inputs(neuron)):
            return checks.inputs("Recurrent", neuron.inputs, inputs, setting)
        names = self._given_names()
        if vectors.are_inputs(neuron):
            inputs, names = vectors.inputs(neuron, inputs, names), vectors.elements_of(neuron, names)
        if self.packed:
            (x,) = checks.inputs("Recurrent", ("x",), inputs)
            if x.ndim < 2 or x.shape[-1] % len(names):
                raise ValueError(
                    f"Recurrent: x has shape {list(x.shape)}, and packed=True shares its last dimension among "
                    f"{len(names)} inputs ({', '.join(names)}); give [..., {len(names)} * C]"
                )
            inputs = x.chunk(len(names), -1)
        elif neuron.drawn and len(inputs) == len(neuron.inputs):
            names = neuron.inputs
        inputs = checks.inputs("Recurrent", names, inputs, setting)
        if names == neuron.inputs:
            return inputs
        x, every = inputs[0], dict(zip(names, inputs))
        if neuron.drawn and not {*neuron.drawn} <= {*names}:
            if x.dtype != compute_dtype(x.dtype):
                kind = type(neuron).__name__
                raise TypeError(f"Recurrent: x is {x.dtype}, and random numbers of {kind} are not; give x.float()")
            every = {**dict(zip(neuron.drawn, neuron.draw(x))), **every}
        rest = x.new_zeros(x.shape[1:]).expand(x.shape)
        return tuple([every.get(name, rest) for name in neuron.inputs])

    def _back_names(self, ways: Sequence[Way]) -> Dict[str, Tuple[int, int]]:
        """States beside those of the neuron -> the number of an output, and of its earlier steps; 0 for the last."""
        if len(ways) == 1 and not isinstance(ways[0].module, Delay):  # the usual layer
            return {FEEDBACK: (ways[0].output, 0)}
        numbers = sorted({way.output for way in ways})
        longest = {n: max([_longest(way.module) for way in ways if way.output == n]) for n in numbers}
        named = "{}" if len(numbers) == 1 else "{}.{}"
        last = {named.format(FEEDBACK, n): (n, 0) for n in numbers}
        return {**last, **{named.format(PAST, n): (n, longest[n]) for n in numbers if longest[n]}}

    def _state_names(self) -> Collection[str]:
        return (*self.neuron.states, *self._back_names(self.ways))

    def _constant_states(self) -> Collection[str]:
        constant = self.neuron._constant_states()
        if "feedbacks" not in self._modules:
            return (*constant, FEEDBACK, PAST) if self.detach else constant
        learn = {way.output for way in self.ways if not way.detach}
        names = [name for name, (output, _) in self._back_names(self.ways).items() if output not in learn]
        return (*constant, *names)

    def _steps(
        self,
        inputs: Sequence[Tensor],
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool = True,
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        watchers = self._watchers
        if not watchers:
            return self._computed(inputs, state, record, final)
        names, inputs = observe.begin("Recurrent", watchers, inputs, self.neuron.recordable, record)
        outputs, end, trace = self._computed(inputs, state, names, final)
        outputs = observe.tell(self, watchers, tuple(inputs), outputs, trace, self.step == "single")
        return outputs, end, {name: trace[name] for name in record}

    def _computed(
        self, inputs: Sequence[Tensor], state: Optional[Mapping[str, Tensor]], record: Tuple[str, ...], final: bool
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        given, inputs, ways, mode = inputs, self._over_inputs(inputs), self.ways, world()
        reason = "torch.compile traces the call"
        if mode is not COMPILED:
            try:
                results = self._at_once(given, inputs, state, record, final, ways, mode)
                self.__dict__["_looped"] = ""
                return results
            except Looped as why:
                reason = self.__dict__["_looped"] = str(why)
        if self.fused and inputs[0].numel():
            raise Unsupported(f"Recurrent was to run all steps in one call (fused=True): {reason}")
        return self._loop(inputs, self._start(inputs, state, ways), record, ways)

    def _at_once(
        self,
        given: Sequence[Tensor],
        inputs: Tensors,
        state: Optional[Mapping[str, Tensor]],
        record: Tuple[str, ...],
        final: bool,
        ways: Sequence[Way],
        mode: str,
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        """All steps as one call of the backend; raises :class:`Looped` where that cannot be."""
        neuron: Any = self._modules["neuron"]  # past nn.Module.__getattr__, which takes a while
        if self.fused is False:
            raise Looped("fused=False was asked for")
        if type(neuron).run is not neuron._equations.run:
            raise Looped(f"{type(neuron).__name__} has a run() of its own")
        matrices = [self._matrix(way, inputs[way.into[0]], len(ways) == len(way.into) == 1) for way in ways]
        ends = tuple([way[2:5] for way in ways])
        names = (*neuron.states, *self._back_names(ways)) if final or state is not None else ()
        sent, beside, key = inputs, (), None
        if self.packed:
            beside = tuple(map(neuron.inputs.index, self._given_names()))
            sent = (given[0], *[x for k, x in enumerate(inputs) if k not in beside])
        if mode is EAGER and not (record or neuron.vectors or matrices[0].longest):
            dtype = autocast_dtype(inputs[0].device.type)
            tensors = (*sent, *[value for matrix in matrices for value in matrix[:2]])
            key = signature(tensors, names, state, (final, *ends, *beside, dtype))
        results = None if key is None else recalled(neuron, key, sent, state, matrices)
        if results is not None:
            return results[0], dict(zip(names, results[1] or ())), {}
        start, recorded = self._start(inputs, state, ways), vectors.recorded(neuron, record)
        if state is not None and not all(map(operator.is_, start or (), state.values())):
            key = None  # of another dtype
        start = vectors.apart(neuron, start)
        outputs, end, trace = fed_back(neuron, inputs, start, matrices, recorded, final, ends, mode, key, sent, beside)
        end = vectors.together(neuron, neuron.states, end) if end else ()
        return outputs, dict(zip(names, end)), dict(zip(record, vectors.together(neuron, record, trace)))

    def _start(self, inputs: Tensors, state: Optional[Mapping[str, Tensor]], ways: Sequence[Way]) -> Optional[Tensors]:
        """The states of the neuron, then the outputs that come back at the first step, checked; None at rest."""
        neuron, back, x = self.neuron, self._back_names(ways), inputs[ways[0].into[0]]
        shapes = vectors.shapes(neuron, x.shape[1:])
        shapes.update({name: (*x.shape[1:], longest) for name, (_, longest) in back.items() if longest})
        names, count = (*neuron.states, *back), len(neuron.states)
        start = checks.state("Recurrent", names, state, x, state is self._state, shapes)
        # outputs, not states of the neuron
        return None if start is None else (*start[:count], *[value.to(x.dtype) for value in start[count:]])

    def _matrix(self, way: Way, x: Tensor, is_alone: bool) -> Matrix:
        """The matrix of one feedback; raises :class:`Looped` if it is none."""
        name, linear, *_, called = way
        if isinstance(linear, Delay):
            if not is_alone:
                raise Looped(f"{name} is a Delay, and one call takes no other beside it")
            return _delayed(name, linear, x)
        if called is not linear and (type(called).forward is not Feedback.forward or has_hooks(called)):
            raise Looped(f"the Feedback of {name} has hooks or a forward of its own, which are called at every step")
        if type(linear).forward is not nn.Linear.forward or type(linear).__call__ is not nn.Module.__call__:
            kind = f"{type(linear).__module__}.{type(linear).__qualname__}"
            raise Looped(f"{name} is {kind}, and one call takes the forward of nn.Linear only")
        if "forward" in vars(linear) or has_hooks(linear):
            has = "a forward of its own" if "forward" in vars(linear) else "hooks, which are called at every step"
            raise Looped(f"{name} has {has}")
        return under_autocast(x, Matrix(linear.weight, linear.bias))  # type: ignore[arg-type]  # those of nn.Linear

    def _is_one_call(self) -> bool:
        """True if a single step is ``linear`` and a call of a neuron with one input and one output, with nothing else
        to compute or to tell.
        """
        if self.fused or self._watchers or self.several or self.into is not None or self.output is not None:
            return False
        neuron: Any = self._modules["neuron"]  # past nn.Module.__getattr__, which takes a while
        return not isinstance(self._modules["linear"], Delay) and type(neuron).run is Neuron.run

    def _one_step(self, inputs: Sequence[Tensor], before: Optional[State]) -> Tuple[Tensors, State]:
        """One step ``[*N]`` of a neuron with one input: ``linear``, and one call of the neuron."""
        if len(inputs) != 1:
            checks.inputs("Recurrent", self.neuron.inputs, inputs)
        (x,) = inputs
        checks.tensor("Recurrent", "x", x)
        neuron: Any = self._modules["neuron"]
        inner: Optional[State] = None
        fed: Any = None
        if before is None:
            fed = torch.zeros_like(x)
        else:
            inner = dict(before)
            fed = inner.pop(FEEDBACK, None)
            if type(fed) is not Tensor or fed.shape != x.shape or fed.dtype is not x.dtype or fed.device != x.device:
                names = (*neuron.states, FEEDBACK)
                shapes = vectors.shapes(neuron, x.shape)
                *_, fed = checks.state("Recurrent", names, before, x.unsqueeze(0), True, shapes)  # type: ignore[misc]  # not at rest
                fed = fed.to(x.dtype)
        linear: Any = self._modules["linear"]
        _check_width("linear", linear, fed.shape)
        back = linear(fed.detach() if self.detach else fed)
        if type(back) is not Tensor or back.shape != fed.shape:
            _parts("linear", back, x.shape, 1)
        outputs, end, _ = call(neuron, (x + back,), inner, (), True, True)
        state: State = end or {}
        state[FEEDBACK] = outputs[0].clone()  # a caller may change the output in place
        return outputs, state

    def _loop(
        self, inputs: Tensors, start: Optional[Tensors], record: Tuple[str, ...], ways: Sequence[Way]
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        """One step after the other."""
        x, back = inputs[ways[0].into[0]], self._back_names(ways)
        if is_any_length(x):
            return self._scanned(inputs, start, record, ways)
        inner: Optional[Dict[str, Tensor]] = None
        last: Dict[int, Tensor] = {}
        pasts: Dict[int, Tensor] = {}
        if start is not None:
            inner = dict(zip(self.neuron.states, start))
            for (output, longest), value in zip(back.values(), start[len(inner) :]):
                (pasts if longest else last)[output] = value
        else:
            rest = torch.zeros_like(x[0]) if len(x) else x.new_zeros(x.shape[1:])
            last = {output: rest for output, longest in back.values() if not longest}
        first, through = {**last}, [_through(way, x, pasts.get(way.output)) for way in ways]
        rows: List[List[Tensor]] = [[] for _ in self.neuron.program.outputs]
        traces: Dict[str, List[Tensor]] = {name: [] for name in record}
        values = tuple([name for name in record if name not in self.neuron.states])
        for at in zip(*[value.unbind(0) for value in inputs]):
            step = [*at]
            for way, sent in zip(ways, through):
                fed = last[way.output]
                came = sent(fed.detach() if way.detach else fed)
                for number, part in zip(way.into, _parts(way.name, came, x.shape[1:], len(way.into))):
                    step[number] = step[number] + part
            drive = vectors.regrouped(self.neuron, tuple([value.unsqueeze(0) for value in step]))
            out, inner, *seen = self.neuron.run(*drive, state=inner, record=values)
            outputs = [value.squeeze(0) for value in (out if isinstance(out, tuple) else (out,))]
            last = {output: outputs[output] for output in last}
            for row, value in zip(rows, outputs):
                row.append(value)
            for name in record:
                traces[name].append(seen[0][name].squeeze(0) if name in values else inner[name])
        earlier = {output: [first[output], *rows[output]][: len(x)] for output in last}
        ends = {
            name: _following(longest, earlier[output], x, pasts.get(output)) if longest else last[output]
            for name, (output, longest) in back.items()
        }
        if inner is None or not len(x):
            # no steps: what the neuron itself makes of them has the right shapes, dtypes and state
            drive = vectors.regrouped(self.neuron, inputs)
            none, final, *trace = self.neuron.run(*drive, state=inner, record=record)
            return none if isinstance(none, tuple) else (none,), {**final, **ends}, trace[0] if trace else {}
        return (
            tuple(map(torch.stack, rows)),
            {**inner, **ends},
            {name: torch.stack(steps) for name, steps in traces.items()},
        )

    def _scanned(
        self, inputs: Tensors, start: Optional[Tensors], record: Tuple[str, ...], ways: Sequence[Way]
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        """The steps as one operation of an exported program."""
        names, count = self._state_names(), len(self.neuron.program.outputs)
        x = inputs[ways[0].into[0]]
        if start is None:
            # the state of no steps
            none = vectors.regrouped(self.neuron, tuple([value[:0] for value in inputs]))
            shapes = [
                (*x.shape[1:], longest) if longest else x.shape[1:] for _, longest in self._back_names(ways).values()
            ]
            start = (*self.neuron.run(*none)[1].values(), *[x.new_zeros(shape) for shape in shapes])
        tensors = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        one = _OneStep(self, record)

        def step(carry: Sequence[Tensor], now: Sequence[Tensor], constants: Sequence[Tensor]) -> Any:
            values = {f"layer.{name}": value for name, value in zip(tensors, constants)}
            versions = [value._version for value in constants]
            outputs, state, trace = functional_call(one, values, ([value.unsqueeze(0) for value in now], carry))
            changed = [name for name, value, old in zip(tensors, constants, versions) if value._version != old]
            if changed:
                raise Unsupported(
                    f"Recurrent: every step changes {', '.join(changed)}, which a program of any number of steps would "
                    "not keep; export net.eval(), or leave dimension 0 out of dynamic_shapes"
                )
            rows = [*outputs, *[trace[name] for name in record]]
            return [state[name] for name in names], [value.squeeze(0) for value in rows]

        last, rows = scan(step, start, inputs, tuple(tensors.values()))
        return rows[:count], dict(zip(names, last)), dict(zip(record, rows[count:]))

    def extra_repr(self) -> str:
        """Settings, and how the steps of the last call outside torch.compile were computed."""
        names = ("repeat", "fused", "into", "output", "given")
        flags = {name: getattr(self, name) or None for name in ("detach", "packed")}
        values = {**{name: getattr(self, name) for name in names}, **flags}
        settings = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        if self._looped is None:
            return settings
        steps = f"steps=a loop ({self._looped})" if self._looped else "steps=one call"
        return f"{settings}, {steps}" if settings else steps


def _alone(outputs: Sequence[Tensor]) -> Any:
    """A single output itself, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _OneStep(nn.Module):
    """One step of a :class:`Recurrent`, as a module whose parameters :func:`torch.func.functional_call` replaces."""

    def __init__(self, layer: Recurrent, record: Tuple[str, ...]) -> None:
        super().__init__()
        # where a network has some module twice, torch.export calls proxies of all, which another trace does not know
        self.layer, self.record = Recurrent.__new__(Recurrent), record
        self.layer.__dict__.update(layer.__dict__)

    def forward(self, inputs: Tensors, state: Tensors) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        """Outputs, next states by name and recorded values for inputs ``[1, *N]``."""
        return self.layer._loop(inputs, state, self.record, self.layer.ways)


def _listed(linear: Any) -> Sequence[Feedback]:
    """The ways back of a list; none of a single module."""
    if isinstance(linear, Feedback):
        return (linear,)
    if isinstance(linear, nn.Module) and not isinstance(linear, nn.ModuleList):
        return ()
    if not isinstance(linear, (list, tuple, nn.ModuleList)):
        raise TypeError(f"Recurrent: linear={linear!r} must be a module, such as nn.Linear(C, C)")
    if not linear or not all(isinstance(way, Feedback) for way in linear):
        raise TypeError(f"Recurrent: {linear!r} must be a list of sc.layers.Feedback, of one or more")
    return tuple(linear)


def _check_ends(neuron: Neuron, into: Any, output: Any) -> None:
    """Refuse an input or an output that the neuron has not, or none where it has several."""
    kind, count = type(neuron).__name__, len(neuron.program.outputs)
    inputs = [name for name in vectors.named_inputs(neuron) if name not in neuron.drawn]
    names = (into,) if isinstance(into, str) else into
    if len(inputs) != 1 if names is None else not names or any(name not in inputs for name in names):
        raise ValueError(
            f"Recurrent: into={into!r} must name the input of {kind} that what comes back is added to: "
            f"{', '.join(inputs) or 'it has none'}"
        )
    is_number = isinstance(output, int) and not isinstance(output, bool)
    if (not is_number or output not in range(count)) if output is not None else count != 1:
        raise ValueError(f"Recurrent: output={output!r} must be the output of {kind} that comes back, 0 to {count - 1}")


def _ends(neuron: Neuron, into: Into, output: Optional[int]) -> Tuple[Tuple[int, ...], int]:
    """The numbers of the inputs that are added to, and of the output that comes back."""
    if into is None and not vectors.are_inputs(neuron):  # the usual layer
        return (0,), output or 0
    names = (into,) if isinstance(into, str) else vectors.named_inputs(neuron)[:1] if into is None else into
    return tuple(map(neuron.inputs.index, vectors.elements_of(neuron, names))), output or 0


def _checked_given(neuron: Neuron, given: Any) -> Tuple[str, ...]:
    """The names of the inputs that a call is given."""
    names = () if isinstance(given, str) else tuple(given)
    inputs = vectors.named_inputs(neuron)
    if not names or len({*names}) != len(names) or any(name not in inputs for name in names):
        raise ValueError(
            f"Recurrent: given={given!r} must be a tuple of inputs of {type(neuron).__name__}, each once: "
            f"{', '.join(inputs)}"
        )
    return names


def _check_reached(neuron: Neuron, ways: Sequence[Way], given: Sequence[str]) -> None:
    """Refuse inputs that are neither passed to a call nor reached by a feedback: they would be 0 at every step."""
    reached = {
        *vectors.elements_of(neuron, given),
        *neuron.drawn,
        *[neuron.inputs[number] for way in ways for number in way.into],
    }
    zero = [name for name in neuron.inputs if name not in reached]
    if zero:
        raise ValueError(
            f"Recurrent: given={given!r} leaves out {', '.join(zero)} of {type(neuron).__name__}, which no feedback "
            "reaches either; give it, or name it in into"
        )


def _check_past(neuron: Neuron, module: nn.Module) -> None:
    """Refuse a state of the neuron that is named as that of a Delay."""
    if isinstance(module, Delay) and PAST in neuron.states:
        raise ValueError(
            f"Recurrent: {type(neuron).__name__} has a state {PAST!r}, as earlier outputs are called in the state "
            "of Recurrent with a Delay; rename it"
        )


def _longest(module: nn.Module) -> int:
    """The longest delay of a Delay; 0 of another module."""
    return module.max_delay if isinstance(module, Delay) else 0


def _delayed(name: str, delay: Delay, x: Tensor) -> Matrix:
    """The matrix of a Delay; raises :class:`Looped` where a loop keeps what outputs send to later steps."""
    if delay.delay.ndim == 2:
        raise Looped(f"{name} is Delay with a delay for each connection, and one call takes one for each neuron")
    if delay.sigma is not None and delay.training:
        raise Looped(f"{name} is Delay that learns its delays, and one call takes whole ones, as in eval()")
    if has_hooks(delay):
        raise Looped(f"{name} has hooks or a forward of its own, which are called at every step")
    of: Any = delay.delayed(x)
    delays = whole(of.delay, of.longest).expand(delay.linear.in_features).contiguous()
    return under_autocast(x, Matrix(of.weight, of.bias, delays, of.longest))


def _through(way: Way, x: Tensor, past: Optional[Tensor]) -> Callable[[Tensor], Any]:
    """Feedback function of one step: the module or the delay line."""
    if not isinstance(way.module, Delay):
        _check_width(way.name, way.module, x.shape[1:])
        return way.called
    if past is not None:
        past = past[..., past.shape[-1] - way.module.max_delay :]
        past = past.detach() if way.detach else past
    return one_by_one(way.module.delayed(x), x, past)


def _following(longest: int, outputs: Sequence[Tensor], x: Tensor, past: Optional[Tensor]) -> Tensor:
    """The outputs before the last one, of those of a call behind that before the first step."""
    last = torch.stack([*outputs[-longest:]]) if outputs else x.new_zeros(0, *x.shape[1:])
    return following(longest, last, past)


def _check_width(name: str, linear: nn.Module, step: torch.Size) -> None:
    """Refuse a linear layer of another width than that of a step."""
    if type(linear) is nn.Linear and step[-1:] != (linear.in_features,) and not is_compiling():
        width = step[-1] if step else 1
        raise ValueError(
            f"Recurrent: {name} takes {linear.in_features} outputs, and one time step of the input "
            f"has shape {list(step)}; give nn.Linear({width}, {width})"
        )


def _parts(name: str, back: Any, step: torch.Size, count: int) -> Sequence[Tensor]:
    """The output of a module for a step of this shape, as so many tensors of that shape."""
    if not isinstance(back, Tensor):
        raise TypeError(
            f"Recurrent: {name} gives {a_kind(back)}; give a module without state that makes a tensor of the shape "
            "of a step, such as nn.Linear(C, C)"
        )
    if count == 1:
        if back.shape != step:
            raise ValueError(
                f"Recurrent: {name} gives shape {list(back.shape)}, one time step of the input has {list(step)}; "
                "give a module that keeps the shape, such as nn.Linear(C, C)"
            )
        return (back,)
    other = [d for d, (size, wanted) in enumerate(zip(back.shape, step)) if size != wanted]
    if back.ndim != len(step) or len(other) != 1 or back.shape[other[0]] != count * step[other[0]]:
        raise ValueError(
            f"Recurrent: {name} gives shape {list(back.shape)} for {count} inputs, one time step of which has "
            f"{list(step)}; give a module that makes one dimension {count} times as large, such as "
            f"nn.Linear(C, {count} * C)"
        )
    return back.chunk(count, other[0])
