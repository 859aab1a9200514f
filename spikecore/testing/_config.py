"""A configuration: one call of one neuron, as data, and the check that it gives what the oracle gives.

Most cases of the suite are rows of this: a name that never changes, and one configuration or several. :func:`check`
makes the neuron, its inputs and cotangents, calls it, runs backwards, and compares every result and every gradient.
A configuration is text that reads back: ``model=alif,dtype=float16,shape=17x3x5,learn=all,given=outputs``.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

import spikecore as sc
from spikecore.dtypes import DTYPES, NARROW
from spikecore.layers._delay import PAST
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._custom import CUSTOM, TENT
from spikecore.testing._layers import Layer, feedback, multiplies, near, normalisation
from spikecore.testing._models import MODELS, Model, spread
from spikecore.testing._network import in_network
from spikecore.testing._oracle import FEEDBACK, OTHER_ARGUMENTS, SURROGATES, Array, Derivative, Matrix
from spikecore.testing._strides import EVERY, laid, laid_step, repeated
from spikecore.testing._subject import SHAPE, Subject
from spikecore.testing._subnormal import foremost
from spikecore.testing._suspects import of_gradients, of_parameter_gradient, of_parts
from spikecore.testing._turning import SWAP, TURN

Names = Tuple[str, ...]

#: The neurons that a configuration may name.
NEURONS: Mapping[str, Model] = {model.name: model for model in (*MODELS, *CUSTOM, SWAP, TURN)}
#: Kinds of parameters, one for each parameter in turn.
_MIXED = ["full", "number", "scalar"]
#: By what cotangents are multiplied so that gradients overflow in float16 and cotangents do not: those of outputs, and
#: those of states, which are never float16. The share of them that is NaN.
_HUGE, _HUGE_STATE, _NANS = 2.0**14, 2.0**18, 0.02


@dataclass(frozen=True)
class Config:
    """One call. The default of each field is its simplest value, which the text of a configuration leaves out."""

    #: Name of the neuron, or a drawn one.
    model: Union[str, Model] = "lif"
    reset: str = "hard"
    detach: bool = False
    #: Name of the surrogate; with a star, with other arguments than its defaults.
    surrogate: str = "ATan"
    dtype: str = "float32"
    #: ``[T, *N]``.
    shape: Tuple[int, ...] = SHAPE
    #: Inputs with which nothing is rounded and potentials meet the threshold, instead of those with a margin.
    exact: bool = False
    #: Outputs and states are compared to the bit with those of the dtype of arithmetic.
    bits: bool = False
    #: Parameters: ``number``, ``scalar`` tensors, one value per ``channel``, ``full``, one per neuron, ``spread``, with
    #: dimensions of one, ``mixed``, or a shape that broadcasts to one time step: ``1x7``; or one of each in turn:
    #: ``full/channel``.
    params: str = "number"
    #: Of parameters that are tensors; by default the dtype of arithmetic.
    param_dtype: str = ""
    param_layout: str = "contiguous"
    channel_dim: int = 1
    #: Names of learnt parameters; ``*`` for all.
    learn: Names = ()
    #: Whether a state is given, and how it lies.
    state: bool = False
    state_layout: str = "contiguous"
    #: Names of recorded states; ``*`` for all.
    record: Names = ()
    #: ``run`` returns the final state; ``short`` is ``neuron(x)``; ``single`` one call per step; ``carried`` calls that
    #: carry their state, ``cut`` the same with a state that is detached after the first; ``model`` a network that the
    #: backend's ``inference_model`` and ``training_model`` run.
    call: str = "run"
    #: Inputs and states that require a gradient, by name; ``inputs``, ``states`` for all.
    wanted: Names = ()
    #: Results that have a cotangent: ``output 0``, ``final v``, ``trace v``; ``outputs``, ``final``, ``trace`` for all.
    given: Names = ()
    #: Layouts of the first input, of the second (``same``: it is the first; ``view``: a view of it), and of the
    #: cotangents of outputs, final states and traces.
    x: str = "contiguous"
    x2: str = "contiguous"
    g: str = "contiguous"
    g_final: str = "contiguous"
    g_trace: str = "contiguous"
    #: Layouts of single tensors: ``b strided``, ``g output 1 expanded``.
    lay: Names = ()
    #: ``huge``: gradients overflow in float16. ``nan``: some are not a number. ``last``: 0 but for the last step;
    #: ``one``: but for one neuron of that.
    cotangents: str = "plain"
    #: The output comes back through a matrix: ``fused`` in one call, or in a ``loop`` over the steps.
    feedback: str = "none"
    #: Whether the output is a constant of what comes back.
    constant: bool = False
    #: Numbers of the input that is added to, and of the output that comes back.
    into: int = 0
    output: int = 0
    #: The longest delay of an output that comes back; 0 for none.
    longest: int = 0
    #: Batch normalisation in front of the neuron, in mode ``train`` or ``eval``; a shortcut ``before`` the neuron, or
    #: ``after`` it, or ``normalised`` before it; channels ``first`` in a sample, or ``last``.
    norm: str = "none"
    shortcut: str = "none"
    channels: str = "first"
    #: Weight and bias of that layer: ``learnt``, ``frozen``, ``absent`` (of the matrix the bias), ``masked``.
    weights: str = "learnt"
    #: Whether the call is under autocast.
    autocast: bool = False
    #: In fixed point, with words of so many bits; 0 for floats. The rounding is ``nearest`` or ``floor``.
    word: int = 0
    rounding: str = "nearest"
    #: Another number for other values.
    draw: int = 0

    def __str__(self) -> str:
        said = [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(f"{name}={_text(value)}" for name, value in said) or "simplest"

    @classmethod
    def parse(cls, text: str) -> Config:
        """The configuration that prints as ``text``. Raises ``ValueError`` for one that there is not."""
        known = {field.name: field.default for field in fields(cls)}
        values: Dict[str, Any] = {}
        for part in text.split(",") if text != "simplest" else ():
            name, _, value = part.partition("=")
            if name not in known:
                raise ValueError(f"{part!r} of {text!r}: a factor is one of {', '.join(known)}")
            try:
                values[name] = _value(value, known[name])
            except (KeyError, ValueError):
                raise ValueError(f"{part!r} of {text!r}: {name} is written as {_text(known[name])!r} is") from None
        config = cls(**values)
        config.validate()
        return config

    def validate(self) -> None:
        """Raise ``ValueError`` for a name that there is not, with those that there are."""
        levels: Dict[str, Sequence[str]] = {
            "dtype": tuple(DTYPES),
            "call": ("run", "short", "single", "carried", "cut", "model"),
            "cotangents": ("plain", "huge", "nan", "last", "one"),
            "feedback": ("none", "fused", "loop"),
            "norm": ("none", "train", "eval"),
            "shortcut": ("none", "before", "after", "normalised"),
            "channels": ("first", "last"),
            "weights": ("learnt", "frozen", "absent", "masked"),
            "rounding": ("nearest", "floor"),
            "x": ("contiguous", *EVERY),
            "x2": ("contiguous", "same", "view", *EVERY),
            **dict.fromkeys(("param_layout", "state_layout", "g", "g_final", "g_trace"), ("contiguous", *EVERY)),
        }
        if isinstance(self.model, str):
            levels["model"] = tuple(NEURONS)
        for name, some in levels.items():
            if getattr(self, name) not in some:
                raise ValueError(f"{name}={getattr(self, name)} must be one of {', '.join(some)}")
        for name, some in (("learn", self.learnt), ("record", self.recorded)):
            every = self.neuron.params if name == "learn" else self.states
            if not set(some) <= set(every):
                raise ValueError(f"{name}={_text(some)} must be some of {', '.join(every)}, or all")

    @property
    def neuron(self) -> Model:
        """The neuron."""
        return self.model if isinstance(self.model, Model) else NEURONS[self.model]

    @property
    def states(self) -> Names:
        """Names of the neuron's states."""
        return tuple(self.neuron.oracle.rest)

    @property
    def inputs(self) -> Names:
        """Names of the inputs, that of a shortcut among them."""
        skip = () if self.norm == "none" or self.shortcut == "none" else ("skip",)
        return (*self.neuron.oracle.inputs, *skip)

    @property
    def carried(self) -> Names:
        """Names of what is carried from step to step: the states and, with feedback, the last output."""
        return self.states if self.feedback == "none" else (*self.states, FEEDBACK)

    @property
    def layered(self) -> bool:
        """Whether there is a layer around the neuron."""
        return (self.feedback, self.norm) != ("none", "none")

    @property
    def learnt(self) -> Names:
        """Names of the learnt parameters."""
        return tuple(self.neuron.params) if self.learn == ("*",) else self.learn

    @property
    def recorded(self) -> Names:
        """Names of the recorded states."""
        return self.states if self.record == ("*",) else self.record

    @property
    def leaves(self) -> Names:
        """Names of inputs and states that require a gradient."""
        groups = {"inputs": self.inputs, "states": self.carried}
        return tuple(name for part in self.wanted for name in groups.get(part, (part,)))

    @property
    def results(self) -> Names:
        """Names of the results that have a cotangent."""
        groups = {
            "outputs": tuple(f"output {k}" for k in range(len(self.neuron.outputs))),
            "final": tuple(f"final {name}" for name in self.carried),
            "trace": tuple(f"trace {name}" for name in self.recorded),
        }
        return tuple(name for part in self.given for name in groups.get(part, (part,)))

    @property
    def derivative(self) -> Derivative:
        """The surrogate's."""
        if self.neuron.surrogate is not None:
            derivative: Derivative = self.neuron.surrogate
            return derivative
        if self.surrogate == TENT.name:
            return TENT
        return OTHER_ARGUMENTS[self.surrogate[:-1]] if self.surrogate.endswith("*") else SURROGATES[self.surrogate]

    @property
    def kinds(self) -> Dict[str, str]:
        """Parameter -> its kind."""
        kinds = _MIXED if self.params == "mixed" else self.params.split("/")
        return {name: kinds[k % len(kinds)] for k, name in enumerate(self.neuron.params)}

    @property
    def needs(self) -> Names:
        """The capabilities that the call takes, beside its dtype."""
        inputs = any(name in self.inputs for name in self.leaves)
        states = any(name in self.carried for name in self.leaves)
        kinds, fed = set(self.kinds.values()) or {self.params}, self.feedback != "none" and bool(self.given)
        layer = bool(self.given) and (self.feedback == "fused" or self.norm != "none")
        needed = {
            "recurrent": self.feedback == "fused",
            "feedback_options": self.feedback == "fused" and any((self.constant, self.into, self.output, self.longest)),
            "normalisation": self.norm != "none",
            "normalised_shortcut": self.shortcut == "normalised",
            "gradients": inputs or layer,
            "parameter_gradients": bool(self.learn) or layer,
            "state_gradients": fed or states or (self.call != "short" and (inputs or bool(self.learn))),
            "record": bool(self.record),
            "channel_parameters": "channel" in kinds or self.norm != "none",
            "full_parameters": bool({"full", "spread"} & kinds) or "x" in self.params,
            "several_inputs": len(self.inputs) > 1,
            "several_outputs": len(self.neuron.outputs) > 1,
        }
        return tuple(name for name, need in needed.items() if need)

    def layout(self, name: str) -> str:
        """The layout of an input, a state, a parameter or, as ``g final v``, a cotangent."""
        for entry in self.lay:
            if entry.rpartition(" ")[0] == name:
                return entry.rpartition(" ")[2]
        if name.startswith("g "):
            return {"output": self.g, "final": self.g_final, "trace": self.g_trace}[name.split()[1]]
        if name in self.inputs:
            second = self.x if self.x2 in ("same", "view") else self.x2
            return (self.x, second, "contiguous")[self.inputs.index(name)]
        return self.state_layout if name in self.carried else self.param_layout

    def values(self) -> Dict[str, Any]:
        """The parameters that are tensors, as arrays. All values of an array differ, but for those that a layout
        repeats.
        """
        step = self.shape[1:]
        sizes: Dict[str, Sequence[int]] = {"scalar": (), "full": step}
        sizes["spread"] = tuple(n if k % 2 else 1 for k, n in enumerate(step))
        if "channel" in self.kinds.values():
            sizes["channel"] = (step[self.channel_dim],)
        arrays: Dict[str, Any] = {}
        for name, kind in self.kinds.items():
            if kind != "number":
                shape = sizes[kind] if kind in sizes else tuple(map(int, kind.split("x")))
                value, layout = self.neuron.params[name], self.layout(name)
                array = np.full(shape, value) if layout == "one-number" else repeated(spread(value, shape), layout)
                # none of float64 is one that float32 holds
                arrays[name] = array * (1 + 2.0**-30) if self.param_dtype == "float64" else array
        return arrays

    def subject(self, context: Context) -> Subject:
        """The neuron beside its oracle."""
        options: Dict[str, Any] = {} if self.channel_dim == 1 else {"channel_dim": self.channel_dim}
        if self.call == "single" and not self.layered:
            options["step"] = "single"
        return Subject(
            context,
            self.neuron,
            self.reset,
            detach=self.detach,
            surrogate=self.derivative,
            dtype=self.dtype,
            learn=self.learnt,
            values=self.values(),
            shape=self.shape,
            state=self.state,
            exact=self.exact,
            draw=self.draw,
            tie=self._tied,
            repeated=lambda name, value: repeated(value, self.layout(name)),
            param_dtype=self.param_dtype,
            laid=lambda name, value: laid_step(value, self.layout(name)),
            layer=self._layer if self.layered else None,
            cut=_pieces(self.shape[0])[0] if self.call == "cut" else 0,
            word=self.word,
            rounding=self.rounding,
            **options,
        )

    def _layer(self, s: Subject) -> Layer:
        if self.norm != "none":
            return normalisation(s, self.norm, self.weights, self.shortcut, self.channels)
        step = "single" if self.call == "single" else "multi"
        options: Dict[str, Any] = {"fused": self.feedback == "fused", "step": step, "detach": self.constant}
        return feedback(s, self.weights, ends=(self.into, self.output), longest=self.longest, **options)

    def _tied(self, draws: Tuple[Array, ...]) -> Tuple[Array, ...]:
        """Inputs that the layouts can hold."""
        once = [repeated(x, self.layout(name)) for name, x in zip(self.inputs, draws)]
        return (once[0], once[0]) if self.x2 in ("same", "view") else tuple(once)


def _pieces(steps: int) -> List[int]:
    """The steps of calls that carry their state: a first part, one step, none, and the others."""
    first = min(16, steps // 2)
    return [first, 1, 0, steps - first - 1]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        if value and isinstance(value[0], int):
            return "x".join(map(str, value))
        return "+".join("all" if name == "*" else name.replace(" ", ":") for name in value) or "none"
    if isinstance(value, Model):
        return value.name
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _value(text: str, default: Any) -> Any:
    """What a text says, for a factor with this default."""
    if isinstance(default, bool):
        return {"yes": True, "no": False}[text]
    if isinstance(default, int):
        return int(text)
    if isinstance(default, tuple):
        if default and isinstance(default[0], int):
            return tuple(int(length) for length in text.split("x"))
        return tuple("*" if name == "all" else name.replace(":", " ") for name in text.split("+") if name != "none")
    return text


def add_row(cases: Collection, id: str, tier: str, holds: str, *configs: Config) -> None:
    """Add a case that consists of configurations, one after the other."""
    needs = dict.fromkeys(name for config in configs for name in config.needs)
    cases.add(id, tier, holds, partial(check_all, configs=configs), tuple(needs), dtype=configs[0].dtype)


def check_all(context: Context, configs: Sequence[Config]) -> None:
    """Each of them."""
    for config in configs:
        check(context, config)


def simplest(config: Config, fails: Callable[[Config], bool], tries: int = 200) -> Config:
    """The configuration with as many factors at their defaults, and as few steps, as it still fails with."""
    moved = True
    while moved:
        moved = False
        for simpler in _simpler(config):
            tries -= 1
            if tries < 0:
                return config
            if fails(simpler):
                config, moved = simpler, True
                break
    return config


def _simpler(config: Config) -> Iterator[Config]:
    for shape in (SHAPE, (config.shape[0], *SHAPE[1:]), (SHAPE[0], *config.shape[1:])):
        if shape != config.shape and np.prod(shape) <= max(np.prod(config.shape), np.prod(SHAPE)):
            yield replace(config, shape=shape)
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        others: List[Any] = [field.default] if value != field.default else []
        if isinstance(value, tuple) and len(value) > 1:
            others += [(*value[:k], *value[k + 1 :]) for k in range(len(value))]
        if name not in ("shape", "model"):
            yield from (replace(config, **{name: other}) for other in others)


def check(context: Context, config: Config) -> None:
    """Raise :class:`Mismatch` where a result or a gradient of the call is not the oracle's."""
    if config.feedback != "none" and not multiplies(context, config.dtype):
        config = replace(config, dtype="float32")
    s = config.subject(context)
    leaves = _leaves(s, config)
    if config.call == "model":
        cotangents = _cotangents(s, config)
        calls = in_network(
            context.name, s.another, leaves, lambda neuron: partial(_results, s, config, neuron=neuron), cotangents
        )
        for where, results, changes in calls:
            _check_values(s, config, leaves, results, f", in {where},")
            _compare_gradients(s, config, cotangents, changes, f", in {where},")
        return
    with torch.autocast(context.device.type, dtype=torch.bfloat16) if config.autocast else nullcontext():
        results = _results(s, config, leaves)
    _check_values(s, config, leaves, results, _words(config))
    connected = [name for name, value in results.items() if value.requires_grad]
    if connected and not (config.leaves or config.learnt or config.layered):
        raise Mismatch(f"{connected[0]} of {s.of} requires a gradient, where nothing given does: what is saved for it?")
    if config.given:
        _check_gradients(s, config, leaves, results)


def _leaves(s: Subject, config: Config) -> Dict[str, Tensor]:
    """Inputs and states in their layouts; two names of one tensor where an input is given twice."""
    leaves = {name: laid(x, config.layout(name)) for name, x in zip(config.inputs, s.xs())}
    leaves.update({name: laid_step(value, config.layout(name)) for name, value in (s.start() or {}).items()})
    leaves = {name: value.detach().requires_grad_(name in config.leaves) for name, value in leaves.items()}
    first = leaves[config.inputs[0]]
    s.given = first
    if config.x2 in ("same", "view"):
        leaves[config.inputs[1]] = first
    return leaves


def _results(s: Subject, config: Config, leaves: Mapping[str, Tensor], neuron: Any = None) -> Dict[str, Tensor]:
    """Results by name."""
    neuron = s.module if neuron is None else neuron
    xs = [leaves[name] for name in config.inputs]
    if config.x2 == "view":
        xs[1] = xs[1].view_as(xs[1])
    final: Mapping[str, Tensor] = {}
    trace: Mapping[str, Tensor] = {}
    if config.call == "short":
        output = neuron(*xs)
    elif config.call == "single":
        output = torch.stack([neuron(*at) for at in zip(*xs)])
        final = neuron.state or {}
    elif config.call in ("carried", "cut"):
        pieces = []
        with sc.carry_state(neuron):
            for piece in zip(*(x.split(_pieces(len(x))) for x in xs)):
                pieces.append(neuron(*piece))
                if config.call == "cut" and len(pieces) == 1:
                    sc.detach(neuron)
            final = dict(neuron.state or {})
        output = torch.cat(pieces)
        if neuron.state is not None:
            raise Mismatch(f"{s.of} keeps a state after carry_state ended")
    else:
        state = {name: leaves[name] for name in config.carried} if config.state else None
        output, final, *traces = neuron.run(*xs, state=state, record=config.recorded)
        trace = traces[0] if traces else {}
    if tuple(trace) != config.recorded:
        raise Mismatch(f"record={config.recorded} of {s.of} gives {tuple(trace)}")
    outputs = output if isinstance(output, tuple) else (output,)
    named = {f"output {k}": value for k, value in enumerate(outputs)}
    named.update((f"final {name}", value) for name, value in final.items())
    named.update((f"trace {name}", value) for name, value in trace.items())
    return named


def _check_values(
    s: Subject, config: Config, leaves: Mapping[str, Tensor], results: Mapping[str, Tensor], words: str
) -> None:
    """Outputs, final states and traces are the oracle's."""
    exact = config.bits or config.exact
    outputs = tuple(value.detach() for name, value in results.items() if name.startswith("output"))
    if config.shortcut == "after" and "skip" in leaves:  # a difference of multiples of 1/4 is exact
        outputs = (outputs[0] - leaves["skip"].detach(),)
    right = s.bits() if config.bits else s.seen
    checks = [partial(s.check_outputs, outputs, words, exact=exact)]
    for kind, what, expected in (("final", "final state", right.final), ("trace", "recorded", right.states)):
        values = {name.partition(" ")[2]: value.detach() for name, value in results.items() if name.startswith(kind)}
        past = values.pop(PAST, None) if config.longest else None
        checks.append(partial(s.check_states, values, expected, what, exact))
        if past is not None and isinstance(s.seen.layer, Matrix):
            fed = np.concatenate([s.seen.start[FEEDBACK][None], s.seen.outputs[config.output]])
            checks.append(partial(same, "final past", s.of, as_array(past), s.seen.layer.past(fed, config.longest)))
    foremost(checks, Mismatch)
    if config.call != "short" and not all(f"final {name}" in results for name in config.states):
        raise Mismatch(f"{s.of}: no state is carried between single steps")


def _words(config: Config) -> str:
    if config.call == "single":
        return ", step by step,"
    if config.call in ("carried", "cut"):
        return " of the pieces"
    return ", with a gradient wanted," if config.wanted else ""


def _cotangents(s: Subject, config: Config) -> Dict[str, Tensor]:
    """Cotangents by the names of results, in their layouts; of a drawn neuron without those whose gradients hang on the
    last digit.
    """
    cotangents = {name: s.cotangent_of(name) for name in config.results}
    for name, g in cotangents.items():
        if config.cotangents == "huge":
            g.mul_(_HUGE if name.startswith("output") else _HUGE_STATE)
        elif config.cotangents == "nan":
            g[s.context.tensor(s.random(tuple(g.shape)) < _NANS, g.dtype).bool()] = float("nan")
        elif config.cotangents in ("last", "one"):
            g[:-1] = 0.0
            if config.cotangents == "one":
                g.flatten(1)[:, 1:] = 0.0
    if s.drawn:
        unsteady = s.unsteady(*_groups(config, cotangents))
        keep = s.context.tensor(~unsteady, torch.float32).bool()
        cotangents = {name: torch.where(keep, g, torch.zeros_like(g)) for name, g in cotangents.items()}
    return {
        name: (laid_step if name.startswith("final") else laid)(g, config.layout(f"g {name}"))
        for name, g in cotangents.items()
    }


def _groups(config: Config, cotangents: Mapping[str, Tensor]) -> Tuple[List[Optional[Tensor]], Any, Any]:
    """Cotangents of outputs, of final states and of traces."""
    outputs = [cotangents.get(f"output {k}") for k in range(len(config.neuron.outputs))]
    final, trace = (
        {name: cotangents[f"{kind} {name}"] for name in config.carried if f"{kind} {name}" in cotangents}
        for kind in ("final", "trace")
    )
    return outputs, final, trace


def _check_gradients(s: Subject, config: Config, leaves: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> None:
    """What requires a gradient has the oracle's, and nothing else has one."""
    cotangents = _cotangents(s, config)
    # a result that nothing wanted leads to may be without a graph, and one without steps or elements, too
    connected = [name for name in cotangents if results[name].requires_grad]
    if not connected and not s.drawn and s.shape[0]:
        connected = [name for name in cotangents if results[name].numel() and (config.leaves or config.learnt)]
    if connected:
        of = s.of if len(connected) == len(results) else f"{', '.join(connected)} of {s.of}"
        backward(of, [results[name] for name in connected], [cotangents[name] for name in connected])
    gradients: Dict[str, Optional[Tensor]] = {}
    parameters = {_own_name(name): value for name, value in s.module.named_parameters()}
    for name, leaf in (*leaves.items(), *parameters.items()):
        if not leaf.requires_grad and leaf.grad is not None:
            raise Mismatch(f"{name} of {s.of} requires no gradient and got one")
        if leaf.grad is not None and leaf.grad.dtype != leaf.dtype:
            raise Mismatch(f"the gradient of {name} of {s.of} is {leaf.grad.dtype}, not {leaf.dtype}")
        if leaf.requires_grad:
            gradients[name] = leaf.grad
    _compare_gradients(s, config, cotangents, gradients, "")


def _compare_gradients(
    s: Subject,
    config: Config,
    cotangents: Mapping[str, Tensor],
    gradients: Mapping[str, Optional[Tensor]],
    words: str,
) -> None:
    """Gradients by the names of leaves are the oracle's."""
    groups = _groups(config, cotangents)
    right = s.gradients(*groups)
    inputs = dict(zip(config.inputs, right.inputs))
    terms: Dict[str, Array] = {}
    if config.x2 in ("same", "view"):
        first, second = config.inputs[:2]
        terms[first] = np.abs(inputs[first]) + np.abs(inputs[second])
        inputs = {first: inputs[first] + inputs[second]}
    if s.drawn:
        terms.update(s.sizes(*groups))
    checks = []
    for quantity, some in (
        ("input gradient", inputs),
        ("state gradient", right.state),
        ("parameter gradient", right.params),
    ):
        for name, expected in some.items():
            if name not in gradients:
                continue
            grad: Any = gradients[name]
            if grad is None and not np.any(expected):
                continue  # a gradient that is not there is 0
            if config.feedback != "none" and (config.dtype in NARROW or config.autocast):
                # in 16 bits the products of all steps are rounded, one after the other
                near(f"{quantity} of {name}", as_array(grad), expected, s.of)
                continue
            checks.append(
                partial(
                    s.check,
                    quantity,
                    grad,
                    expected,
                    name=_named(quantity, name, config) + words,
                    stored=config.param_dtype if name in s.params else "",
                    terms=terms.get(name),
                    suspects=_suspects(s, config, cotangents, groups, name),
                )
            )
    foremost(checks, Mismatch)


def _own_name(path: str) -> str:
    """The name of a parameter within its module: ``linear.weight`` is ``weight``, behind a parametrisation, too; that
    of the normalisation of a shortcut is ``skip_weight``.
    """
    return path.replace(".original", "").replace("shortcut_norm.", "skip_").rpartition(".")[2]


def _named(quantity: str, name: str, config: Config) -> str:
    """The leaf in words, where its quantity does not say it."""
    words = f"the initial {name}" if quantity == "state gradient" else name
    if "outputs" in config.given:
        return "" if quantity == "input gradient" and len(config.inputs) == 1 else words
    return f"{words}, with cotangents of {', '.join(config.results)} alone,"


def _suspects(
    s: Subject, config: Config, cotangents: Mapping[str, Tensor], groups: Sequence[Any], name: str
) -> Dict[str, Any]:
    """What else the gradient of a leaf might be."""
    if s.drawn or config.x2 in ("same", "view") or config.layered:
        return {}
    outputs, final, trace = groups
    suspects: Dict[str, Any] = {}
    if name == s.twin.inputs[0]:
        suspects.update(of_gradients(s, outputs[0] if len(outputs) == 1 else outputs, final, trace))
    if list(cotangents) != ["output 0"] or name in s.params:
        suspects.update(of_parts(s, name, cotangents))
    if name in s.params and list(cotangents) == ["output 0"]:
        suspects.update(of_parameter_gradient(s, name, cotangents["output 0"]))
    return suspects
