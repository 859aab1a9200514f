"""Feedback around any neuron."""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.backend import Tensors, Unsupported
from spikecore.context import COMPILED, is_compiling, world
from spikecore.core import checks, observe
from spikecore.core.call import call
from spikecore.core.modules import calls_as, has_hooks
from spikecore.core.neuron import Neuron
from spikecore.core.state import State, Stateful, Stepped
from spikecore.layers import Delay
from spikecore.layers._delay import PAST, following, one_by_one, whole
from spikecore.neurons._feedback import FedResults, Matrix, fed_back, under_autocast
from spikecore.words import a_kind

__all__ = ["FEEDBACK", "Recurrent"]

#: Name of the fed-back output in the state.
FEEDBACK = "feedback"


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
    to, and ``output`` says which output comes back.

    neuron: any neuron of spikecore.
    linear: the module that the outputs come back through.
    step: ``"multi"`` or ``"single"``, as of a neuron.
    repeat: the number of steps of a call whose input is one step, as of a neuron; None where the input has time.
    fused: None takes one call where the backend can; True raises :class:`~spikecore.backend.Unsupported` where it
        cannot; False always takes the loop.
    detach: whether what comes back is a constant for backward: ``linear(y[t-1].detach())``. Its weights learn from
        their product at each step, and no gradient goes through it to earlier steps.
    into: the name of the input that what comes back is added to, one of ``neuron.inputs``; None where there is one.
    output: the number of the output that comes back, from 0; None where there is one.
    """

    configuration = {
        **Stateful.configuration,
        "fused": checks.flag_or_none,
        "repeat": checks.steps_or_none,
        "detach": checks.flag,
    }
    #: For :func:`spikecore.layers.pack`, the part whose output this gives.
    output_of = "neuron"
    # as class attributes, for a module that was pickled whole before there were these
    fused: Optional[bool] = None
    detach: bool = False
    into: Optional[str] = None
    output: Optional[int] = None
    _looped: Optional[str] = None

    def __init__(
        self,
        neuron: Neuron,
        linear: nn.Module,
        *,
        step: str = "multi",
        repeat: Optional[int] = None,
        fused: Optional[bool] = None,
        detach: bool = False,
        into: Optional[str] = None,
        output: Optional[int] = None,
    ) -> None:
        super().__init__(step)
        if not isinstance(neuron, Neuron):
            raise TypeError(
                f"Recurrent: neuron={neuron!r} must be a spikecore neuron; the order is Recurrent(neuron, linear)"
            )
        if not isinstance(linear, nn.Module):
            raise TypeError(f"Recurrent: linear={linear!r} must be a module, such as nn.Linear(C, C)")
        _check_ends(neuron, into, output)
        if FEEDBACK in neuron.states:
            raise ValueError(
                f"Recurrent: {type(neuron).__name__} has a state {FEEDBACK!r}, as the last output is called in "
                "the state of Recurrent; rename it"
            )
        if neuron.step != "multi":
            raise ValueError("Recurrent: neuron has step='single'; give the step mode to Recurrent(step=...) instead")
        if neuron.repeat is not None:
            raise ValueError(f"Recurrent: neuron has repeat={neuron.repeat}; give it to Recurrent(repeat=...) instead")
        if not calls_as(neuron, Neuron) or "forward" in vars(neuron) or neuron._forward_pre_hooks:
            raise ValueError(
                f"Recurrent: this {type(neuron).__name__} has a forward of its own or a forward pre-hook, which would "
                "not be called; write what it does in dynamics, or in linear"
            )
        self.neuron = neuron
        self.linear = linear
        self.repeat = repeat
        self.fused = fused
        self.detach = detach
        self.into = into
        self.output = output

    @staticmethod
    def _check_linear(neuron: Neuron, linear: nn.Module) -> None:
        """Refuse what a loop over the steps would call wrongly: it gives ``linear`` one step, ``[B, ...]``."""
        if not isinstance(linear, Delay):
            for part in linear.modules():
                _check_part(type(linear).__name__, part)
            return
        if linear.step != "multi":
            raise ValueError("Recurrent: linear has step='single'; give the step mode to Recurrent(step=...) instead")
        if type(linear).forward is not Delay.forward:
            raise TypeError(f"Recurrent: {type(linear).__name__} has a forward of its own, which would not be called")
        if PAST in neuron.states:
            raise ValueError(
                f"Recurrent: {type(neuron).__name__} has a state {PAST!r}, as earlier outputs are called in the state "
                "of Recurrent with a Delay; rename it"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "linear" and isinstance(value, nn.Module):
            self._check_linear(self.neuron, value)
        super().__setattr__(name, value)

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
        names = checks.recorded("Recurrent", record, self.neuron.states)
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

    def _ends(self, neuron: Neuron) -> Tuple[int, int]:
        """The numbers of the input that is added to, and of the output that comes back."""
        return 0 if self.into is None else neuron.inputs.index(self.into), self.output or 0

    def _state_names(self) -> Collection[str]:
        names = (*self.neuron.states, FEEDBACK)
        return (*names, PAST) if isinstance(self.linear, Delay) else names

    def _constant_states(self) -> Collection[str]:
        constant = self.neuron._constant_states()
        return (*constant, FEEDBACK, PAST) if self.detach else constant

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
        names = observe.states_to_record("Recurrent", watchers, self.neuron.states, record)
        outputs, end, trace = self._computed(inputs, state, names, final)
        observe.tell(self, watchers, tuple(inputs), outputs, trace, self.step == "single")
        return outputs, end, {name: trace[name] for name in record}

    def _computed(
        self, inputs: Sequence[Tensor], state: Optional[Mapping[str, Tensor]], record: Tuple[str, ...], final: bool
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        neuron: Any = self._modules["neuron"]  # past nn.Module.__getattr__, which takes a while
        linear = self._modules["linear"]
        inputs = checks.inputs("Recurrent", neuron.inputs, inputs)
        into, output = self._ends(neuron)
        x = inputs[into]
        names, past = self._state_names(), None
        shapes = {PAST: (*x.shape[1:], linear.max_delay)} if isinstance(linear, Delay) else {}
        start = checks.state("Recurrent", names, state, x, state is self._state, shapes)
        if start is not None:
            # outputs, not states of the neuron
            end_of_states = len(neuron.states)
            fed, *rest = [value.to(x.dtype) for value in start[end_of_states:]]
            start, past = (*start[:end_of_states], fed), rest[0] if rest else None
        mode = world()
        matrix: Union[Matrix, str] = "torch.compile traces the call" if mode is COMPILED else self._matrix(x)
        results: Union[FedResults, str] = "" if isinstance(matrix, Matrix) else matrix
        if isinstance(matrix, Matrix):
            state_before = start if start is None or past is None else (*start, past)
            options = (self.detach, into, output)
            results = fed_back(neuron, inputs, state_before, matrix, record, final, options, mode)
        if mode is not COMPILED:
            self.__dict__["_looped"] = results if isinstance(results, str) else ""
        if not isinstance(results, str):
            outputs, end, trace = results
            return outputs, dict(zip(names, end or ())), dict(zip(record, trace))
        if self.fused and x.numel():
            raise Unsupported(f"Recurrent was to run all steps in one call (fused=True): {results}")
        return self._loop(inputs, start, record, past)

    def _matrix(self, x: Tensor) -> Union[Matrix, str]:
        """Matrix of the feedback, or the reason why it is none."""
        linear: Any = self._modules["linear"]
        if self.fused is False:
            return "fused=False was asked for"
        if isinstance(linear, Delay):
            return self._delayed(x)
        if type(linear).forward is not nn.Linear.forward or type(linear).__call__ is not nn.Module.__call__:
            kind = type(linear)
            return f"linear is {kind.__module__}.{kind.__qualname__}, and one call takes the forward of nn.Linear only"
        if "forward" in linear.__dict__:
            return "linear has a forward of its own"
        if has_hooks(linear):
            return "linear has hooks, which are called at every step"
        neuron: Any = self._modules["neuron"]
        if type(neuron).run is not Neuron.run:
            return f"{type(neuron).__name__} has a run() of its own"
        return under_autocast(x, Matrix(linear.weight, linear.bias))

    def _delayed(self, x: Tensor) -> Union[Matrix, str]:
        """The matrix of a Delay, or why a loop keeps what outputs send to later steps."""
        linear: Any = self.linear
        if linear.delay.ndim == 2:
            return "linear is Delay with a delay for each connection, and one call takes one for each neuron"
        if linear.sigma is not None and linear.training:
            return "linear is Delay that learns its delays, and one call takes whole ones, as in eval()"
        if has_hooks(linear):
            return "linear has hooks or a forward of its own, which are called at every step"
        if type(self.neuron).run is not Neuron.run:
            return f"{type(self.neuron).__name__} has a run() of its own"
        of = linear.delayed(x)
        return under_autocast(x, Matrix(of.weight, of.bias, whole(of.delay, of.longest), of.longest))

    def _through(self, x: Tensor, past: Optional[Tensor]) -> Callable[[Tensor], Tensor]:
        """Feedback function of one step: the linear layer or the delay line."""
        if not isinstance(self.linear, Delay):
            return self._linear_of(x.shape[1:])
        past = past.detach() if self.detach and past is not None else past
        return one_by_one(self.linear.delayed(x), x, past)

    def _linear_of(self, step: torch.Size) -> nn.Module:
        """``linear``, which is no Delay, for steps of this shape."""
        linear: Any = self._modules["linear"]
        is_linear = type(linear) is nn.Linear
        if is_linear and step[-1:] != (linear.in_features,) and not is_compiling():
            raise ValueError(
                f"Recurrent: linear takes {linear.in_features} outputs, and one time step of the input "
                f"has shape {list(step)}; give nn.Linear({step[-1] if step else 1}, {step[-1] if step else 1})"
            )
        return linear  # type: ignore[no-any-return]  # a module

    def _behind(self, x: Tensor, past: Optional[Tensor], fed: Sequence[Tensor]) -> State:
        """The part of the state that a Delay has after these outputs came back."""
        if not isinstance(self.linear, Delay):
            return {}
        longest = self.linear.max_delay
        last = torch.stack([*fed[-longest:]]) if fed else x.new_zeros(0, *x.shape[1:])
        return {PAST: following(longest, last, past)}

    def _is_one_call(self) -> bool:
        """True if a single step is ``linear`` and a call of a neuron with one input and one output, with nothing else
        to compute or to tell.
        """
        if self.fused or self._watchers or self.into is not None or self.output is not None:
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
                *_, fed = checks.state("Recurrent", names, before, x.unsqueeze(0), True)  # type: ignore[misc]  # not at rest
                fed = fed.to(x.dtype)
        back = self._linear_of(fed.shape)(fed.detach() if self.detach else fed)
        if type(back) is not Tensor or back.shape != fed.shape:
            _checked(back, x)
        outputs, end, _ = call(neuron, (x + back,), inner, (), True, True)
        state: State = end or {}
        state[FEEDBACK] = outputs[0].clone()  # a caller may change the output in place
        return outputs, state

    def _loop(
        self, inputs: Tensors, start: Optional[Tensors], record: Tuple[str, ...], past: Optional[Tensor]
    ) -> Tuple[Tensors, State, Dict[str, Tensor]]:
        """One step after the other."""
        into, output = self._ends(self.neuron)
        x = inputs[into]
        if start is None:
            inner: Optional[Dict[str, Tensor]] = None
            fed = torch.zeros_like(x[0]) if len(x) else x.new_zeros(x.shape[1:])
        else:
            inner, fed = dict(zip(self.neuron.states, start)), start[-1]
        first, through = fed, self._through(x, past)
        rows: List[List[Tensor]] = [[] for _ in self.neuron.program.outputs]
        traces: Dict[str, List[Tensor]] = {name: [] for name in record}
        for at in zip(*[value.unbind(0) for value in inputs]):
            back = _checked(through(fed.detach() if self.detach else fed), at[into])
            step = [value.unsqueeze(0) for value in (*at[:into], at[into] + back, *at[into + 1 :])]
            out, inner = self.neuron.run(*step, state=inner)
            outputs = [value.squeeze(0) for value in (out if isinstance(out, tuple) else (out,))]
            fed = outputs[output]
            for row, value in zip(rows, outputs):
                row.append(value)
            for name in record:
                traces[name].append(inner[name])
        if inner is None or not len(x):
            # no steps: what the neuron itself makes of them has the right shapes, dtypes and state
            none, final, *trace = self.neuron.run(*inputs, state=inner, record=record)
            nones = none if isinstance(none, tuple) else (none,)
            return nones, {**final, FEEDBACK: fed, **self._behind(x, past, ())}, trace[0] if trace else {}
        return (
            tuple(map(torch.stack, rows)),
            {**inner, FEEDBACK: fed, **self._behind(x, past, [first, *rows[output][:-1]])},
            {name: torch.stack(seen) for name, seen in traces.items()},
        )

    def extra_repr(self) -> str:
        """Settings, and how the steps of the last call outside torch.compile were computed."""
        names = ("repeat", "fused", "into", "output")
        values = {**{name: getattr(self, name) for name in names}, "detach": self.detach or None}
        settings = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        if self._looped is None:
            return settings
        steps = f"steps=a loop ({self._looped})" if self._looped else "steps=one call"
        return f"{settings}, {steps}" if settings else steps


def _alone(outputs: Sequence[Tensor]) -> Any:
    """A single output itself, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _check_ends(neuron: Neuron, into: Any, output: Any) -> None:
    """Refuse an input or an output that the neuron has not, or none where it has several."""
    kind, inputs, count = type(neuron).__name__, neuron.inputs, len(neuron.program.outputs)
    if into not in inputs if into is not None else len(inputs) != 1:
        raise ValueError(
            f"Recurrent: into={into!r} must name the input of {kind} that what comes back is added to: "
            f"{', '.join(inputs) or 'it has none'}"
        )
    is_number = isinstance(output, int) and not isinstance(output, bool)
    if (not is_number or output not in range(count)) if output is not None else count != 1:
        raise ValueError(f"Recurrent: output={output!r} must be the output of {kind} that comes back, 0 to {count - 1}")


def _checked(back: Any, x: Tensor) -> Tensor:
    """Output of ``linear`` for a step ``x``, checked for its type and shape."""
    if not isinstance(back, Tensor):
        raise TypeError(
            f"Recurrent: linear gives {a_kind(back)}; give a module without state that makes a tensor of the shape "
            "of a step, such as nn.Linear(C, C)"
        )
    if back.shape != x.shape:
        raise ValueError(
            f"Recurrent: linear gives shape {list(back.shape)}, one time step of the input has {list(x.shape)}; "
            "give a module that keeps the shape, such as nn.Linear(C, C)"
        )
    return back


def _check_part(kind: str, part: nn.Module) -> None:
    """Refuse a module within ``linear``, a ``kind``, that would take a batch for steps, or go on from the last call."""
    if isinstance(part, Delay):
        raise ValueError(
            f"Recurrent: linear is {kind} with a Delay in it, which would take the steps one "
            "by one for whole sequences; give the Delay itself, Recurrent(neuron, Delay(nn.Linear(C, C), 20))"
        )
    name = type(part).__name__
    where = f"linear is {kind}" if kind == name else f"linear is {kind} with {name} in it"
    if isinstance(part, Stateful):
        raise ValueError(
            f"Recurrent: {where}, whose state would be no part of that of Recurrent; give a module without state, and "
            "write neurons that feed each other as the equations of one, or as a loop over neuron.run(x, state=state)"
        )
    if isinstance(part, Stepped) and part.step == "multi":
        raise ValueError(
            f"Recurrent: {where} with step='multi', which would take the batch of a step for time; call "
            "sc.set_step(linear, 'single') first"
        )
