"""A configuration: one call of one neuron, as data and as text.

Most cases of the suite are rows of this: a name that never changes, and one configuration or several, which
:mod:`spikecore.testing._config_check` makes, calls, and compares with the oracle. A configuration is text that reads
back: ``model=alif,dtype=float16,shape=17x3x5,learn=all,given=outputs``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple, Union

import numpy as np

from spikecore.dtypes import DTYPES
from spikecore.testing._inputs import BROADCAST, EVERY, part_of, repeated
from spikecore.testing._oracle import OTHER_ARGUMENTS, SURROGATES, Array, Derivative, names_of_outputs
from spikecore.testing.custom import CUSTOM, SWAP, TENT, TURN
from spikecore.testing.models import MODELS, Model, spread

Names = Tuple[str, ...]
SHAPE = (12, 3, 7)

#: The neurons that a configuration may name.
NEURONS: Mapping[str, Model] = {model.name: model for model in (*MODELS, *CUSTOM, SWAP, TURN)}
#: Kinds of parameters, one for each parameter in turn.
_MIXED = ["full", "number", "scalar"]


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
    #: True if a state is given; and its layout.
    state: bool = False
    state_layout: str = "contiguous"
    #: Names of recorded states; ``*`` for all.
    record: Names = ()
    #: ``run`` returns the final state; ``short`` is ``neuron(x)``; ``single`` one call per step; ``carried`` calls that
    #: carry their state, ``cut`` the same with a state that is detached after the first; ``model`` a network that the
    #: backend's ``inference_model`` and ``training_model`` run.
    call: str = "run"
    #: The input is the same at every step, and the call takes that step alone: ``repeat=T``.
    repeat: bool = False
    #: Inputs that broadcast, and over what: ``gate batch``, ``x step``.
    broadcast: Names = ()
    #: How often the call is made; results and gradients are those of the last time.
    calls: int = 1
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
    #: True if the fed-back output is a constant.
    constant: bool = False
    #: Numbers of the input that is added to, and of the output that comes back.
    into: int = 0
    output: int = 0
    #: Several matrices: of each the output, the inputs, and ``detach`` of a constant one: ``0 01``, ``1 0 detach``.
    ways: Names = ()
    #: True if the last input has no outer part: it is what comes back.
    alone: bool = False
    #: The longest delay of an output that comes back; 0 for none.
    longest: int = 0
    #: Batch normalisation in front of the neuron, in mode ``train`` or ``eval``; a shortcut ``before`` the neuron, or
    #: ``after`` it, or ``normalised`` before it; channels ``first`` in a sample, or ``last``.
    norm: str = "none"
    shortcut: str = "none"
    channels: str = "first"
    #: Normalisation and neuron are computed one after the other (``fused=False``).
    apart: bool = False
    #: Weight and bias of that layer: ``learnt``, ``frozen``, ``absent`` (of the matrix the bias), ``masked``; or there
    #: are no running statistics, and another eps: ``untracked``.
    weights: str = "learnt"
    #: True for a call under autocast.
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
            "surrogate": (*SURROGATES, *[f"{name}*" for name in OTHER_ARGUMENTS], TENT.name),
            "call": ("run", "short", "single", "carried", "cut", "model"),
            "cotangents": ("plain", "huge", "nan", "last", "one"),
            "feedback": ("none", "fused", "loop"),
            "norm": ("none", "train", "eval"),
            "shortcut": ("none", "before", "after", "normalised"),
            "channels": ("first", "last"),
            "weights": ("learnt", "frozen", "absent", "masked", "untracked"),
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
        for how in map(self.over, self.inputs):
            if how and (
                how not in BROADCAST or self.repeat or (how[:4] == "time" and self.call not in ("run", "short"))
            ):
                raise ValueError(
                    f"broadcast={_text(self.broadcast)} must be an input and one of {', '.join(BROADCAST)}, without "
                    "repeat=yes, and over time where all steps are one call"
                )
        fused = self.feedback != "none" or (self.norm != "none" and not self.apart)
        if self.repeat and (fused or self.call == "single" or not self.shape[0]):
            raise ValueError("repeat=yes takes 1 step or more, no feedback, no call=single, and norm with apart=yes")

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
        """Names of the inputs of a call, that of a shortcut among them."""
        skip = () if self.norm == "none" or self.shortcut == "none" else ("skip",)
        return (*self.neuron.oracle.inputs[: len(self.neuron.oracle.inputs) - self.alone], *skip)

    @property
    def ends(self) -> Tuple[Tuple[int, Tuple[int, ...], bool], ...]:
        """Of each matrix the output, the inputs, and whether it is constant."""
        if not self.ways:
            return ((self.output, (self.into,), self.constant),)
        words = [way.split() for way in self.ways]
        return tuple([(int(output), tuple(map(int, into)), "detach" in rest) for output, into, *rest in words])

    @property
    def carried(self) -> Names:
        """Names of what is carried from step to step: the states and, with feedback, the last outputs."""
        if self.feedback == "none":
            return self.states
        return (*self.states, *names_of_outputs([output for output, *_ in self.ends]).values())

    @property
    def layered(self) -> bool:
        """True if there is a layer around the neuron."""
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
        normalised = self.norm != "none" and not self.apart
        layer = bool(self.given) and (self.feedback == "fused" or normalised)
        needed = {
            "recurrent": self.feedback == "fused",
            "feedback_options": self.feedback == "fused"
            and any((self.longest, *[output or into[0] or constant for output, into, constant in self.ends])),
            "feedback_gates": self.feedback == "fused" and sum(len(into) for _, into, _ in self.ends) > 1,
            "normalisation": normalised,
            "normalised_shortcut": normalised and self.shortcut == "normalised",
            "gradients": inputs or layer,
            "parameter_gradients": bool(self.learn) or layer,
            "state_gradients": fed or states or (self.call != "short" and (inputs or bool(self.learn))),
            "record": bool(self.record),
            "channel_parameters": "channel" in kinds or normalised,
            "full_parameters": bool({"full", "spread"} & kinds) or "x" in self.params,
            "several_inputs": len(self.neuron.oracle.inputs if self.apart else self.inputs) > 1,
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
            return dict(zip(self.inputs, (self.x, second))).get(name, "contiguous")
        return self.state_layout if name in self.carried else self.param_layout

    def over(self, name: str) -> str:
        """Dimensions that an input broadcasts over; "" for one that does not."""
        return next((how for of, how in map(str.split, self.broadcast) if of == name), "")

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

    @property
    def options(self) -> Dict[str, Any]:
        """Arguments of the neuron beside its parameters."""
        options: Dict[str, Any] = {} if self.channel_dim == 1 else {"channel_dim": self.channel_dim}
        if self.call == "single" and not self.layered:
            options["step"] = "single"
        if self.repeat:
            options["repeat"] = self.shape[0]
        return options

    def tied(self, draws: Tuple[Array, ...]) -> Tuple[Array, ...]:
        """Inputs that the layouts can hold."""
        once = [repeated(x, self.layout(name)) for name, x in zip(self.inputs, draws)]
        once += draws[len(once) :]
        once = [repeated(x, "expanded-steps") for x in once] if self.repeat else once
        for k, how in enumerate(map(self.over, self.inputs)):
            if how:
                once[k] = np.broadcast_to(part_of(once[k], how, len(self.shape) - 1), once[k].shape)
        return (once[0], once[0]) if self.x2 in ("same", "view") else tuple(once)


def piece_lengths(steps: int) -> List[int]:
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
    """Value of a text, for a factor with this default."""
    if isinstance(default, bool):
        return {"yes": True, "no": False}[text]
    if isinstance(default, int):
        return int(text)
    if isinstance(default, tuple):
        if default and isinstance(default[0], int):
            return tuple(int(length) for length in text.split("x"))
        return tuple("*" if name == "all" else name.replace(":", " ") for name in text.split("+") if name != "none")
    return text


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
