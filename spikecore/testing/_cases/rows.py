"""The cases that are configurations: a name that never changes, a sentence, and what is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterator, Tuple

from spikecore.testing._case import Collection
from spikecore.testing._config import Config
from spikecore.testing._config_check import add_row
from spikecore.testing._inputs import BROADCAST, EXPANDED, LAYOUTS
from spikecore.testing._oracle import OTHER_ARGUMENTS, SURROGATES
from spikecore.testing.custom import CUSTOM
from spikecore.testing.models import MODELS, Model
from spikecore.testing.tolerances import OTHER_DTYPES

#: A forward call whose input requires a gradient, and a backward pass from its outputs.
BACK: Dict[str, Any] = {"call": "short", "wanted": ("inputs",), "given": ("outputs",)}
#: A backward pass from outputs and final state to inputs and initial state.
BOTH: Dict[str, Any] = {"state": True, "wanted": ("inputs", "states"), "given": ("outputs", "final")}
#: From everything that a call gives to everything that it takes.
ALL: Dict[str, Any] = {
    "record": ("*",),
    "learn": ("*",),
    "state": True,
    "wanted": ("inputs", "states"),
    "given": ("outputs", "final", "trace"),
}
#: Models whose cases of state are made for every reset.
_EVERY_RESET = ("lif", "leaky", "alif", "izhikevich")
#: A neuron of each kind, with the reset it is tried with in other dtypes; those of + - * / alone that meet ties.
_KINDS = (
    "if-soft lif-hard lif-nodecay-soft plif-hard klif-hard eif-hard izhikevich-soft synaptic-none alif-soft li-none "
    "leaky-hard leaky-prompt-soft"
).split()
_EXACT, _NOT_ARITHMETIC = ("if", "lif", "leaky"), ("plif", "eif")
#: Step counts around 16, up to which a backend may unroll and beyond which it works in chunks; and beyond.
_LONG, _STEPS = (2, 15, 16, 17, 31, 32, 33, 40), (17, 33, 64, 100, 250)
#: Name -> shape ``[T, *N]``. No steps, one; no neurons, one, odd counts, counts beside a power of two.
_SHAPES: Dict[str, Tuple[int, ...]] = {
    "no-steps": (0, 3, 5),
    "one-step": (1, 3, 5),
    "no-neurons": (4, 0, 5),
    "no-steps-no-neurons": (0, 0),
    "one-neuron": (4, 1),
    "a-neuron-without-dimension": (4,),
    "odd": (3, 7, 11),
    "prime": (5, 127),
    "next-to-a-block": (2, 257),
    "past-several-blocks": (2, 3, 1031),
    "image": (4, 2, 3, 5, 7),
    "one-by-one-image": (3, 2, 5, 1, 1),
}
_IMAGE = (4, 2, 3, 6, 5)
#: Layouts of a given state.
_PLACES = ("strided", "backwards", "unaligned", "part-of-a-larger-one", "first-of-the-batch", "expanded")


def configurations() -> Iterator[Tuple[Model, str, str]]:
    """Every neuron with every reset it has, and the name of the two."""
    for model in MODELS:
        for reset in model.resets:
            yield model, reset, f"{model.name}-{reset}" if len(model.resets) > 1 else model.name


def add_to(cases: Collection) -> None:
    """Add these cases."""
    for model, reset, name in configurations():
        _core(cases, model, reset, name)
    for model, reset, name in configurations():
        _parameters(cases, model, reset, name)
        _state(cases, model, reset, name)
    _surrogates(cases)
    _dtypes(cases)
    _kinds_of_parameters(cases)
    _kinds_of_state(cases)
    _turning(cases)
    _repeated(cases)
    _broadcast(cases)
    _sizes(cases)
    _wanted(cases)
    _custom(cases)
    _layouts(cases)


def _core(cases: Collection, model: Model, reset: str, name: str) -> None:
    which: Dict[str, Any] = {"model": model.name, "reset": reset}
    # the core needs no capability: a neuron of several inputs is no part of it
    tier = "core" if len(model.oracle.inputs) == 1 else "parameters"
    holds = "outputs and final state are the oracle's, on inputs with a margin"
    add_row(cases, f"forward/{name}", tier, holds, Config(**which))
    if reset in model.exact_resets:
        holds = "outputs and final state are the oracle's to the bit where potentials meet the threshold"
        add_row(cases, f"exact/{name}", tier, holds, Config(**which, exact=True))
    if model.arithmetic:
        holds = "the final state of a neuron of + - * / is bit for bit that of IEEE arithmetic in source order"
        add_row(cases, f"bits/{name}", tier, holds, Config(**which, bits=True))
    holds = "step by step gives what all steps at once give"
    add_row(cases, f"single-step/{name}", tier, holds, Config(**which, call="single", shape=(5, 3, 7)))
    for detach in (False, True) if model.fires and reset != "none" else (False,):
        id = f"gradient/{name}{'-detach' if detach else ''}"
        add_row(cases, id, tier, "the input gradient is the oracle's", Config(**which, **BACK, detach=detach))


def _surrogates(cases: Collection) -> None:
    for name in SURROGATES:
        configs = [
            Config(model, reset, surrogate=surrogate, exact=exact, **BACK)
            for surrogate in (name, *([f"{name}*"] if name in OTHER_ARGUMENTS else []))
            for model, reset, exact in (("lif", "hard", False), ("leaky-prompt", "soft", False), ("lif", "soft", True))
        ]
        holds = "the input gradient with this surrogate is the oracle's, with a margin and at the threshold"
        add_row(cases, f"surrogate/{name.lower()}", "core", holds, *configs)


def _dtypes(cases: Collection) -> None:
    for dtype in OTHER_DTYPES:
        for name in _KINDS:
            model, _, reset = name.rpartition("-")
            which: Dict[str, Any] = {"model": model, "reset": reset, "dtype": dtype}
            holds = "outputs and final state are the oracle's, in their dtypes"
            add_row(cases, f"forward/{name}-{dtype}", "dtypes", holds, Config(**which))
            if model in _EXACT:
                holds = "outputs are right to the bit where potentials meet the threshold"
                add_row(cases, f"exact/{name}-{dtype}", "dtypes", holds, Config(**which, exact=True))
            if model not in _NOT_ARITHMETIC:
                holds = "state and arithmetic are float32 for 16-bit inputs, float64 for float64, to the bit"
                add_row(cases, f"bits/{name}-{dtype}", "dtypes", holds, Config(**which, bits=True))
            holds = "the input gradient is the oracle's, in the input's dtype"
            add_row(cases, f"gradient/{name}-{dtype}", "dtypes", holds, Config(**which, **BACK))
        holds = "parameter gradients are summed in full precision, and have the parameter's dtype"
        add_row(cases, f"parameters/gradient-{dtype}", "dtypes", holds, Config(dtype=dtype, learn=("*",), **BACK))


def _parameters(cases: Collection, model: Model, reset: str, name: str) -> None:
    which: Dict[str, Any] = {"model": model.name, "reset": reset}
    one, learnt = "parameters", {**BACK, "learn": ("*",)}
    holds = "the gradient of every shared parameter is the oracle's"
    add_row(cases, f"parameters/gradient-{name}", one, holds, Config(**which, **learnt))
    if reset == model.resets[0]:
        holds = "0-d tensors give what numbers give"
        add_row(cases, f"parameters/scalar-{model.name}", one, holds, Config(**which, params="scalar"))
        for kind, values in (("channel", "channel"), ("full", "neuron")):
            holds = f"every parameter may have one value per {values}, learnt ones too"
            add_row(cases, f"parameters/{kind}-{model.name}", one, holds, Config(**which, **learnt, params=kind))


def _kinds_of_parameters(cases: Collection) -> None:
    one, learnt = "parameters", {**BACK, "learn": ("*",)}
    for kind in ("channel", "full"):
        holds = "a batch of one has the gradients of all its neurons' values"
        config = Config(reset="soft", params=kind, shape=(6, 1, 7), **learnt)
        add_row(cases, f"parameters/{kind}-batch-of-one", one, holds, config)
    for dim in (0, 1, 2, -1):
        holds = "channel_dim says along which dimension of a time step the channels lie"
        config = Config(shape=(6, 2, 3, 2, 5), params="channel", channel_dim=dim, learn=("*",), **BACK)
        add_row(cases, f"parameters/channel-dim{dim}", one, holds, config)
    for values in ("1x7", "3x1", "1x1"):
        holds = "a parameter that broadcasts to one time step is spread over it, and its gradient summed"
        add_row(cases, f"parameters/full-{values}", one, holds, Config(reset="soft", params=values, **learnt))
    holds = "a shared parameter's gradient is summed over many neurons and steps"
    add_row(cases, "parameters/many", one, holds, Config(shape=(5, 37, 113), **learnt))


def _state(cases: Collection, model: Model, reset: str, name: str) -> None:
    which: Dict[str, Any] = {"model": model.name, "reset": reset}
    if reset == model.resets[0] or model.name in _EVERY_RESET:
        holds = "a recorded state is its value after every step, the last one the final state's"
        config = Config(**which, record=("*",), bits=model.arithmetic)
        add_row(cases, f"record/{name}", "state", holds, config)
        holds = "a run continues from the state it is given"
        add_row(cases, f"state/given-{name}", "state", holds, Config(**which, state=True))
    holds = "gradients flow to the initial state and from the final one"
    add_row(cases, f"state/gradient-{name}", "state", holds, Config(**which, **BOTH))


def _kinds_of_state(cases: Collection) -> None:
    def add(name: str, holds: str, *configs: Config) -> None:
        add_row(cases, name, "state", holds, *configs)

    for steps in _LONG:
        shape = (steps, 3, 5)
        holds = "any number of steps gives the oracle's outputs and final state"
        add(f"state/long-{steps}", holds, Config("lif-nodecay", "soft", shape=shape, bits=True))
        pair = Config("lif-nodecay", "soft", shape=shape, **BOTH), Config("alif", shape=shape, **BOTH)
        add(f"state/long-{steps}-gradient", "and the oracle's gradients, from all outputs and the final state", *pair)
    holds = "step by step, the gradient through the carried state is that of one call"
    single = {**BACK, "call": "single", "shape": (8, 3, 5)}
    add("state/single-gradient", holds, *[Config(model, "soft", **single) for model in ("lif", "leaky", "alif")])
    pieces: Dict[str, Any] = {"reset": "soft", "shape": (40, 3, 5), "call": "carried", "bits": True}
    models = ("lif", "synaptic", "leaky")
    holds = "calls that carry their state give what one long call gives"
    add("state/carried", holds, *[Config(model, **pieces) for model in models])
    holds = "nothing is rounded on the way from call to call"
    add("state/carried-16-bit", holds, *[Config(model, dtype="float16", **pieces) for model in models])
    config = Config(reset="soft", shape=(12, 3, 5), **{**BACK, "call": "cut"})
    add("state/truncated", "a detached state lets the value through and no gradient", config)


def _turning(cases: Collection) -> None:
    """States that change places, and many steps, beside whatever else a call may have."""

    def add(name: str, holds: str, config: Config) -> None:
        add_row(cases, f"state/{name}", "state", holds, config)

    swap = "states that take each other's values are all read before one is written"
    for name, model in (("swap-two", "swap"), ("swap-three", "turn")):
        add(name, swap, Config(model, "none", shape=(6, 3, 5), bits=True))
    for steps in (*_STEPS, 1025):
        long: Dict[str, Any] = {**ALL, "reset": "none", "shape": (steps, 2, 3)}
        every = f"in {steps} steps, from a given state, with the cotangents of outputs, trace and final state, "
        add(f"steps-{steps}-scalar", every + "shared parameters get their gradients", Config("turn", **long))
    holds = "one step from a given state, recorded: every gradient is the oracle's"
    add("one-step-gradient", holds, Config("turn", "none", shape=(1, 3, 5), **ALL))


def _repeated(cases: Collection) -> None:
    """Calls with ``repeat=T``: one step for all."""
    holds = "of an input that is the same at every step the gradient is the sum over the steps"
    for model, reset in (("lif", "soft"), ("alif", "hard"), ("synaptic", "none"), ("turn", "none")):
        which: Dict[str, Any] = {"model": model, "reset": reset, "repeat": True, "bits": True}
        rest = Config(**which, **{**ALL, "state": False, "wanted": ("inputs",)})
        rows = {model: [rest, *(Config(**which, **BACK, learn=("*",), calls=calls) for calls in (1, 3))]}
        if model != "turn":
            carried: Dict[str, Any] = {**which, "shape": (40, 3, 5), "learn": ("*",), **BACK}
            rows[f"{model}-carried"] = [Config(**{**carried, "call": call}) for call in ("carried", "cut")]
        for name, configs in rows.items():
            add_row(cases, f"repeat/{name}", "state", holds, *configs)


def _broadcast(cases: Collection) -> None:
    """Inputs that broadcast over others."""

    def add(name: str, holds: str, *configs: Config, tier: str = "state") -> None:
        add_row(cases, f"broadcast/{name}", tier, holds, *configs)

    turn: Dict[str, Any] = {"model": "turn", "reset": "none", "bits": True}
    back = {**BACK, "learn": ("*",)}
    # rows of odd length, of one that fits vectors, and longer than a block; an image in two layouts
    shapes = [Config(**turn, shape=shape, **back) for shape in ((6, 3, 5), (17, 12, 64), (3, 4, 1031), (4, 640, 3))]
    shapes += [Config(**turn, shape=_IMAGE, x=x, **back) for x in ("contiguous", "channels-last")]
    for how in BROADCAST:
        holds = f"an input that broadcasts ({how}) is read as what it stands for, and its gradient is the sum"
        for name in ("x", "y"):
            add(f"{name}-{how}", holds, *[replace(config, broadcast=(f"{name} {how}",)) for config in shapes])
        spikes = Config("gated", "hard", exact=True, shape=(9, 4, 33), broadcast=(f"gate {how}",), **back)
        add(f"spikes-{how}", f"{holds} of a neuron that fires", spikes)
    small: Dict[str, Any] = {**turn, "shape": (20, 6, 24)}
    holds = "so it is from a given state, recorded, with parameters of each kind that are learnt"
    kinds = [("scalar", ("*",)), ("channel", ("*",)), ("full", ("*",)), ("channel/full/number", ("leak",))]
    every = [
        Config(**small, **{**ALL, "learn": learn}, params=params, broadcast=(f"y {how}",))
        for params, learn in kinds
        for how in ("batch", "step", "time")
    ]
    add("everything", holds, *every)
    holds = "two inputs that broadcast in different ways do not meet"
    pairs = [("x batch", "y time"), ("x time", "y step"), ("x step", "y time"), ("x batch", "y last")]
    add("both", holds, *[Config(**small, **back, broadcast=pair) for pair in pairs])
    holds = "one that wants no gradient gets none, and one alone gets its own"
    wanted = [{**back, "wanted": names} for names in (("x",), ("y",), ())]
    add("wanted", holds, *[Config(**small, **each, broadcast=("y batch",)) for each in wanted])
    alone = {**BOTH, "wanted": ("y",), "learn": ()}
    add("wanted-alone", holds, *[Config(**small, **alone, broadcast=(f"y {how}",)) for how in ("batch", "step")])
    for call in ("single", "carried", "cut"):
        holds = f"and step by step, or in pieces ({call})"
        each = [Config("gated", "hard", exact=True, shape=(8, 4, 9), call=call, broadcast=(f"gate {how}",), **{
            key: value for key, value in BACK.items() if key != "call"}) for how in ("batch", "step")]  # fmt: skip
        add(f"{call}", holds, *each)
    lies = [
        Config(**small, **back, x=x, x2=layout, broadcast=(f"y {how}",))
        for layout in ("strided", "transposed", "part", "expanded-steps")
        for x, how in (("contiguous", "batch"), (layout, "batch"), ("contiguous", "step"))
    ]
    add("lies", "wherever its numbers lie", *lies)
    long = [Config(**turn, shape=(250, 4, 40), **back, broadcast=(f"y {how}",)) for how in ("batch", "step")]
    add("long", "and with many chunks of steps", *long)
    for dtype in OTHER_DTYPES:
        holds = "the sum is rounded to this dtype once"
        configs = [Config(**small, dtype=dtype, **back, broadcast=(f"y {how}",)) for how in ("batch", "step", "last")]
        add(dtype, holds, *configs, tier="dtypes")


def _sizes(cases: Collection) -> None:
    """Sizes at which a backend may forget neurons."""
    holds = "one neuron without dimensions begins with the state that is given"
    config = Config("li", "none", shape=(6,), state=True, bits=True)
    add_row(cases, "robust/no-dimensions", "robust", holds, config)
    holds = "neurons that fill whole vectors: outputs and gradients of 64 and of 96 neurons"
    configs = [Config("li", "none", shape=shape, exact=True, **BACK) for shape in ((6, 64), (6, 2, 3, 16))]
    add_row(cases, "robust/whole-vectors", "robust", holds, *configs)


def _wanted(cases: Collection) -> None:
    """Gradients that are wanted, and those that arrive, beside those that calls of the tier ``generated`` draw."""
    nothing = [Config("turn", "none", shape=(6, 3, 5), state=state, record=("*",)) for state in (True, False)]
    add_row(cases, "wanted/none", "state", "where nothing requires a gradient results require none", *nothing)
    every = Config("turn", "none", shape=(6, 3, 5), **{**ALL, "learn": ("leak", "gain")})
    for x2 in ("same", "view"):
        holds = "one tensor given as both inputs gets the sum of both gradients"
        add_row(cases, f"wanted/one-tensor-for-both-inputs-{x2}", "state", holds, replace(every, x2=x2))
    holds = "each result's sum(), whose cotangent is one number, has its gradient"
    sums = replace(every, g="one-number", g_final="one-number", g_trace="one-number")
    add_row(cases, "wanted/sums-of-everything", "state", holds, sums)
    holds = "a loss of the last step's outputs, or of one neuron's, has its gradient"
    last = [Config(reset="soft", shape=(20, 3, 5), cotangents=which, **BACK) for which in ("last", "one")]
    add_row(cases, "wanted/last-step-only", "state", holds, *last)
    holds = "without steps the final state is the given one, and its cotangent its gradient"
    empty: Dict[str, Any] = {"shape": (0, 3, 5), **BOTH, "exact": True, "given": ("final",)}
    add_row(cases, "state/no-steps-gradient", "state", holds, *[Config(model, **empty) for model in ("lif", "alif")])


def _custom(cases: Collection) -> None:
    """Neurons and a surrogate as users write them."""
    for model in CUSTOM:
        which: Dict[str, Any] = {"model": model.name, "reset": model.resets[0]}
        holds = "a user's neuron gives what its equations say"
        add_row(cases, f"custom/{model.name}", "language", holds, Config(**which, bits=True))
        if model.exact_resets:
            holds = "and does so where potentials meet the threshold"
            add_row(cases, f"custom/{model.name}-exact", "language", holds, Config(**which, exact=True, bits=True))
        for detach in (False, True):
            holds = "a user's neuron has the gradients of its equations, of inputs, parameters and state"
            id = f"custom/{model.name}-gradient{'-detach' if detach else ''}"
            add_row(cases, id, "language", holds, Config(**which, **BOTH, detach=detach, learn=("*",)))
    holds = "a user's surrogate is the derivative of the spike"
    add_row(cases, "custom/surrogate", "language", holds, Config(surrogate="Tent", **BACK))


def _layouts(cases: Collection) -> None:
    """Shapes and memory layouts, of inputs and of incoming gradients: none of them may change a value."""

    def add(name: str, holds: str, *configs: Config) -> None:
        add_row(cases, f"layouts/{name}", "layouts", holds, *configs)

    for name, shape in _SHAPES.items():
        add(name, "this shape gives the oracle's outputs and states", Config(shape=shape), Config("alif", shape=shape))
        config = Config(reset="soft", shape=shape, learn=("tau",), **BACK)
        add(f"{name}-gradient", "this shape gives the oracle's gradients", config)
    call: Dict[str, Any] = {"shape": (6, 4, 5), "bits": True, **ALL, "params": "full/channel/number"}
    ones = [("b",), ("gain",), ("g output 1",), ("g final b",), ("g trace c",)]
    holds = "tensors of one role may have strides of their own"
    add("one-of-each", holds, *[
        Config("turn", "none", **{**call, "learn": ("leak", "gain")}, lay=tuple(f"{name} transposed" for name in names))
        for names in ones
    ])  # fmt: skip
    configs = [Config(model, shape=(0, 3, 5), state=True, exact=True) for model in ("lif", "alif")]
    add("no-steps-state", "no steps give back the state that was given", *configs)
    for name in LAYOUTS:
        config = Config(shape=_IMAGE, x=name, bits=True)
        add(f"input-{name}", "an input of these strides is read where it lies", config)
        holds = "the gradient of an input of these strides is right"
        add(f"input-{name}-gradient", holds, Config(shape=_IMAGE, x=name, **BACK))
        holds = "also in 16 bits, where several values share a word"
        add(f"input-{name}-float16", holds, Config(dtype="float16", shape=_IMAGE, x=name, bits=True))
    for name in (*LAYOUTS, *EXPANDED):
        holds = "an incoming gradient of these strides is read as what it stands for"
        add(f"incoming-{name}", holds, Config(shape=_IMAGE, g=name, **BACK))
    holds = "one value per channel goes with channels-last"
    config = Config(shape=_IMAGE, x="channels-last", g="channels-last", params="channel", learn=("tau",), **BACK)
    add("channels-last-channel", holds, config)
    holds = "output.sum(), whose gradient is one number expanded, has the right gradient"
    add("sum", holds, Config(reset="soft", g="ones", **BACK))
    thin: Dict[str, Any] = {"shape": (6, 3, 5)}
    holds = "an expanded input is read as what it stands for, between calls with its copy"
    copies = [Config(x=how, **thin, bits=True) for how in ("contiguous", *EXPANDED, "contiguous")]
    add("input-expanded", holds, *copies)
    holds = "and each of its copies has its gradient"
    add("input-expanded-gradient", holds, *[Config(x=how, **thin, **BACK) for how in EXPANDED])
    states = [Config(shape=(6, 4, 5), state=True, bits=True, state_layout=how) for how in (*_PLACES, "one-number")]
    add("state", "a given state of any strides is read where it lies", *states)
    final: Dict[str, Any] = {"shape": (6, 4, 5), "state": True, "wanted": ("inputs",), "given": ("final",)}
    incoming = [Config(**final, g_final=how) for how in ("ones", "backwards")]
    add("state-incoming", "so are the gradients of the final state", *incoming)
