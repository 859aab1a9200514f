"""Layers around a neuron, computed in one call: ``Recurrent`` with a linear layer, and ``NormNeuron``."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import NormNeuron
from spikecore.testing._case import Collection
from spikecore.testing._cases.rows import ALL, BACK
from spikecore.testing._config import SHAPE, Config
from spikecore.testing._config_check import add_row
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject
from spikecore.testing.compare import Mismatch, as_array, same
from spikecore.testing.models import BY_NAME
from spikecore.testing.tolerances import OTHER_DTYPES

CASES = Collection()
_MODELS = ("lif", "if", "plif", "alif", "synaptic", "li")
_IMAGE = (6, 2, 3, 2, 5)
_SHAPES = {
    "steps-1": (1, 3, 7),
    "steps-17": (17, 3, 7),
    "steps-33": (33, 2, 5),
    "width-1": (12, 4, 1),
    "width-37": (6, 3, 37),
    "width-300": (5, 2, 300),
    "width-1100": (3, 1, 1100),
    "batch-1": (12, 1, 9),
    "no-batch": (12, 9),
    "two-batches": (8, 2, 3, 5),
    "steps-45": (45, 2, 5),
    "steps-90": (90, 2, 3),
}


def _recurrent(name: str, holds: str, *changes: Dict[str, Any]) -> None:
    """Calls with feedback, with a gradient of the outputs unless a change says otherwise."""
    configs = [Config(**{"feedback": "fused", **BACK, **change}) for change in changes]
    add_row(CASES, f"recurrent/{name}", "state", holds, *configs)


def _add_recurrent() -> None:
    loop = "outputs, and gradients of input, weight and bias, are those of the loop"
    for model in _MODELS:
        _recurrent(model, loop, {"model": model, "reset": BY_NAME[model].resets[0]})
    for name, shape in _SHAPES.items():
        _recurrent(name, f"{loop}, {name}", {"shape": shape})
    for dtype in OTHER_DTYPES:
        _recurrent(dtype, f"{loop}, in this dtype", {"dtype": dtype})
    _recurrent("no-bias", "without a bias nothing is added", {"weights": "absent"})
    _recurrent("detach", "resets without gradient leave that of the feedback", {"reset": "soft", "detach": True})
    learnt = {"params": "channel", "learn": ("*",)}
    _recurrent("learnt", "parameters of each neuron learn beside the matrix", learnt)
    _recurrent("frozen", "a matrix that is not learnt gets no gradient", {"weights": "frozen"})
    _recurrent("input-alone", "the matrix learns where the input needs no gradient", {"wanted": ()})
    every = {"model": "alif", **ALL, "learn": (), "call": "run"}
    _recurrent("states", "from a given state, to the final one and the recorded ones, with their gradients", every)
    kinds = {**every, "learn": ("*",), "params": "full/channel/scalar", "channel_dim": -1, "shape": (18, 3, 4)}
    holds = "of parameters of every kind, with the cotangents of some results alone"
    alone = [{**kinds, "given": given} for given in (("outputs",), ("trace v",), ("final a", "trace a"))]
    _recurrent("kinds", holds, {**kinds, "given": ("outputs", "final", "trace")}, *alone)
    last = {"reset": "soft", "call": "run", "given": ("final feedback",)}
    _recurrent("last-output", "the last output has a gradient as part of the final state", last)
    exact: Dict[str, Any] = {"model": "if", "reset": "soft", "exact": True, "shape": (12, 5, 9)}
    forward: Dict[str, Any] = {**exact, "call": "run", "wanted": (), "given": ()}
    holds = "with sums that are exact, the bits are those of one step after the other"
    _recurrent("bits", holds, forward, {**forward, "feedback": "loop"})
    holds = "two calls that carry their state are one, and sc.detach cuts between them"
    _recurrent("carried", holds, *[{"call": call, "shape": (11, 3, 6)} for call in ("carried", "cut")])
    _recurrent("again", "a later call gives what the first one gives", {"calls": 3, "model": "alif"})
    _recurrent("single", "single steps give the bits of one call", {"reset": "soft", "call": "single"})
    which: Dict[str, Any] = {"model": "alif"}
    layouts = [{**which, "x": how, "g": "ones"} for how in ("batch-first", "strided", "transposed")]
    _recurrent("strides", "inputs and cotangents of any strides give the same", *layouts)
    _recurrent("masked", "a weight that a parametrisation computes gets its gradient through it", {"weights": "masked"})
    _recurrent("autocast", "under autocast the product has its dtype", {**exact, "autocast": True})
    holds = "a neuron with feedback gives what its loop gives, gradient included"
    config = Config(reset="soft", shape=(6, 2, 3), feedback="loop", weights="absent", **BACK)
    add_row(CASES, "custom/recurrent", "language", holds, config)


def _add_detached() -> None:
    """Outputs that come back as constants."""
    holds = "of an output that is detached the weight learns, and no gradient goes back to it"
    for name, shape in (("", (12, 3, 7)), ("-steps-45", (45, 2, 5)), ("-steps-1", (1, 3, 7))):
        change = {"constant": True, "model": "alif", "shape": shape, **ALL, "call": "run"}
        _recurrent(f"detached{name}", holds, change, {**change, "feedback": "loop", "learn": ()})
    _recurrent("detached-carried", holds, *[{"constant": True, "call": call} for call in ("carried", "single")])


def _add_several() -> None:
    """Of several inputs and outputs."""
    holds = "of several inputs and outputs the named ones are joined, and the others are as ever"
    joined: Dict[str, Any] = {"model": "turn", "reset": "none"}
    for into, output in ((0, 0), (1, 0), (1, 1), (0, 1)):
        turn = {**joined, "shape": (6, 3, 5), "into": into, "output": output}
        whole = {**turn, **ALL, "learn": (), "call": "run"}
        alone = [{**turn, "wanted": (name,), "given": ("output 1",)} for name in ("x", "y")]
        _recurrent(f"output-{output}-into-{into}", holds, whole, {**whole, "feedback": "loop"}, *alone)
    _recurrent(
        "several-long",
        holds,
        {**joined, "into": 0, "output": 1, "shape": (33, 2, 3), "weights": "absent", "constant": True},
    )


def _add_gates() -> None:
    """Of one matrix into several inputs, and of several matrices."""
    holds = "each input gets its rows of a matrix, and what comes back to one input adds up"
    turn: Dict[str, Any] = {"model": "turn", "reset": "none", "shape": (6, 3, 5)}
    ways = {
        "gates": ("0 01",),
        "gates-turned": ("1 10",),
        "matrices-one-output": ("1 01", "1 1"),
        "matrices-two-outputs": ("0 0", "1 1"),
        "matrices-one-input": ("0 1", "1 1"),
        "matrices-gates": ("0 10", "1 01", "0 1"),
        "matrices-detached": ("1 01 detach", "0 0", "1 1"),
        "matrices-all-detached": ("0 01 detach", "1 0 detach"),
    }
    for name, some in ways.items():
        whole = {**turn, "ways": some, **ALL, "learn": (), "call": "run"}
        alone = {**turn, "ways": some, "given": ("output 1",), "weights": "absent"}
        _recurrent(name, holds, whole, {**whole, "feedback": "loop"}, alone)
    gates: Dict[str, Any] = {**turn, "ways": ways["matrices-gates"]}
    # many steps and sums amplify the rounding of float32
    wide: Dict[str, Any] = {**ALL, "learn": (), "call": "run", "dtype": "float64"}
    for name, shape in (("steps-1", (1, 3, 5)), ("wide", (4, 2, 70)), ("batches", (5, 2, 3, 4))):
        _recurrent(f"gates-{name}", f"{holds}, {name}", {**gates, "shape": shape, **wide})
    long = [{**turn, "shape": (45, 2, 5), "ways": some, **wide} for some in (("1 10",), ("0 0", "1 0"))]
    _recurrent("gates-steps-45", f"{holds}, over many steps", *long)
    learnt = {"params": "full/channel/scalar", "channel_dim": -1, "learn": ("*",)}
    _recurrent("gates-learnt", "parameters learn beside several matrices", {**gates, **learnt})
    _recurrent("gates-frozen", "matrices that are not learnt get no gradient", {**gates, "weights": "frozen"})
    holds = "an input without an outer part is what comes back"
    _recurrent("gates-alone", holds, *[{**turn, "ways": some, "alone": True} for some in (("0 01",), ("0 1", "1 01"))])
    calls = [{**gates, "call": call, "given": ("output 0", "output 1")} for call in ("run", "short")]
    _recurrent("gates-again", "a later call gives what the first one gives", *[{**at, "calls": 3} for at in calls])


def _add_delays() -> None:
    """Outputs that come back later."""
    holds = "of whole delays the output of each neuron comes back so many steps later, forward and backward"
    for longest, shape in ((1, (12, 3, 7)), (5, (33, 2, 7)), (20, (12, 3, 7)), (3, (1, 3, 7))):
        late: Dict[str, Any] = {"longest": longest, "model": "alif", "shape": shape, "params": "channel"}
        late = {**late, "learn": ("*",), "call": "run", "given": ("outputs", "final v", "final feedback")}
        detached = {**late, "constant": True}
        _recurrent(f"delays-{longest}-steps-{shape[0]}", holds, late, {**late, "feedback": "loop"}, detached)
    calls = [{"longest": 4, "call": call, "shape": (11, 3, 6)} for call in ("carried", "cut", "single", "short")]
    _recurrent("delays-carried", "outputs before a call come back in it, and not behind a reset", *calls)
    late = {"longest": 6, "model": "turn", "reset": "none", "shape": (6, 3, 5), "into": 1, "output": 1}
    _recurrent("delays-several", "delays, and several inputs and outputs", {**late, "given": ("output 0", "output 1")})


_add_recurrent()
_add_detached()
_add_several()
_add_gates()
_add_delays()


@CASES.case(
    "recurrent/rest",
    "state",
    "every call starts at rest; without steps or neurons there is nothing to compute",
    "recurrent",
)
def _rest(context: Context) -> None:
    """Other calls before leave nothing behind."""
    s = Subject(context, Config(feedback="fused"))
    x = s.x()
    s.module(x + 3.0)
    for _ in range(2):
        s.check_outputs(s.module(x), " of a later call")
    for empty in (x[:0], x[:, :0]):
        output, state = s.module.run(empty)
        if output.shape != empty.shape:
            raise Mismatch(f"{s.of}: of an input {list(empty.shape)} the output is {list(output.shape)}")
        for name, value in state.items() if not len(empty) else ():
            start = np.asarray(s.seen.start[name], np.float32)
            same(f"state {name} without steps", s.of, as_array(value), start, axes="n")


@CASES.case(
    "robust/feedback-changed", "robust", "a matrix of feedback that is changed in place counts anew", "recurrent"
)
def _changed(context: Context) -> None:
    """In one call half of the last output comes back, in the next a quarter."""
    linear = context.place(nn.Linear(3, 3, bias=False))
    net = sc.Recurrent(sc.LI(tau=2.0, backend=context.name), linear, fused=True)
    x = np.random.default_rng(38).integers(-8, 9, (6, 2, 3)) / 8.0
    for weight in (0.5, 0.25):
        with torch.no_grad():
            linear.weight.copy_(weight * torch.eye(3))
        output, v = as_array(net(context.tensor(x))), np.zeros(x.shape[1:])
        for t, step in enumerate(x):
            v = (v + step + weight * v) / 2  # of this neuron the output is the state
            if not np.array_equal(output[t], v):
                raise Mismatch(f"step {t} of {net!r} differs once the weight is {weight}: is an earlier one kept?")


# -- normalisation


def _normalised(name: str, holds: str, **changes: Any) -> None:
    """A call in training, with a gradient of the outputs unless a change says otherwise."""
    config = Config(**{"norm": "train", **BACK, **changes})
    add_row(CASES, f"normalised/{name}", "parameters", holds, config)


def _add_normalised() -> None:
    behind = "input, weight and bias get the gradients of batch normalisation in front of the neuron"
    for model in _MODELS:
        _normalised(f"training-{model}", behind, model=model, reset=BY_NAME[model].resets[0])
    for name, shape in (("image", _IMAGE), ("steps-1", (1, 4, 3)), ("steps-33", (33, 2, 3)), ("wide", (5, 37, 113))):
        _normalised(name, f"{behind}, {name}", shape=shape)
    for dtype in OTHER_DTYPES:
        _normalised(dtype, f"{behind}, in this dtype", dtype=dtype)
    image: Dict[str, Any] = dict.fromkeys(("x", "x2", "g"), "channels-last")
    image["shape"] = _IMAGE
    _normalised("channels-last", f"{behind}, channels innermost", **image)
    _normalised("learnt", "the neuron's own parameters learn beside them", params="channel", learn=("*",))
    _normalised("affine-false", "without weight and bias the input gets its gradient", weights="absent")
    _normalised("frozen", "weight and bias that are not learnt get none", weights="frozen")
    _normalised("input-alone", "weight and bias get theirs where the input needs none", wanted=())
    _normalised("soft", f"{behind}, with detached resets", reset="soft", detach=True)
    for name, where, place in (("shortcut", "before", "in front of"), ("shortcut-behind", "after", "behind")):
        holds = f"a shortcut {place} the neuron gets its gradient"
        _normalised(name, holds, shortcut=where)
        _normalised(f"{name}-image", f"{holds}: an image, channels innermost", shortcut=where, **image)
    for dtype in OTHER_DTYPES:
        _normalised(f"shortcut-{dtype}", f"{behind}, beside a shortcut, in this dtype", shortcut="before", dtype=dtype)
    for alone in ("x", "skip"):
        _normalised(
            f"shortcut-{alone}", f"of input and shortcut {alone} alone gets one", shortcut="before", wanted=(alone,)
        )
    holds = "a shortcut behind the neuron gets its gradient where nothing else does"
    _normalised("shortcut-alone", holds, shortcut="after", weights="frozen", wanted=("skip",))
    holds = "both inputs and both pairs of weight and bias get the gradients of two normalisations and a sum"
    _normalised("two", holds, shortcut="normalised")
    _normalised("two-image", f"{holds}: an image, channels innermost", shortcut="normalised", **image)
    for dtype in OTHER_DTYPES:
        _normalised(f"two-{dtype}", f"{holds}, in this dtype", shortcut="normalised", dtype=dtype)
    _normalised("two-frozen", "weights that are not learnt get none", shortcut="normalised", weights="frozen")
    alone = "the shortcut gets the gradient of its normalisation where x needs none"
    _normalised("two-skip", alone, shortcut="normalised", wanted=("skip",))
    _normalised("two-eval", "both running statistics normalise", shortcut="normalised", norm="eval")
    tokens: Dict[str, Any] = {"shape": (6, 2, 5, 3), "channels": "last"}
    _normalised("tokens", f"{behind}, whose channels are the last dimension", **tokens)
    _normalised("tokens-two", f"{holds}, whose channels are the last dimension", shortcut="normalised", **tokens)
    state = {"call": "run", "state": True, "wanted": ("inputs", "states")}
    _normalised("state", "from a given state, with its gradient", **state)
    _normalised(
        "state-shortcut", "from a given state, with its gradient, beside a shortcut", shortcut="before", **state
    )
    _normalised("eval", "in eval mode the running statistics normalise, and stay", norm="eval")
    for norm in ("train", "eval"):
        holds = "without running statistics those of the call normalise, with another eps, in training and in eval mode"
        for apart in (False, True):
            name = f"untracked-{norm}{'-apart' if apart else ''}"
            _normalised(name, holds, norm=norm, weights="untracked", apart=apart)
        for shortcut in ("none", "before", "after", "normalised"):
            name = f"{norm}{'' if shortcut == 'none' else f'-{shortcut}'}"
            later: Dict[str, Any] = {"norm": norm, "shortcut": shortcut, "calls": 3, "model": "synaptic"}
            holds = "a later call gives what the first one gives"
            _normalised(f"again-{name}", holds, **later, reset="none", params="channel", learn=("*",))
            two: Dict[str, Any] = {"norm": norm, "shortcut": shortcut, "apart": True, "shape": _IMAGE}
            _normalised(f"apart-{name}", "one after the other gives the same as one call", **two)
            holds = "of one step for all the gradient is that of its normalisation, once, and the sum over the steps"
            _normalised(f"repeat-{name}", holds, **two, repeat=True)
    for model, reset in (("lif", "hard"), ("plif", "hard")):
        _normalised(f"again-{model}", "a later call gives what the first one gives", model=model, reset=reset, calls=3)
    for apart in (False, True):
        volume = {"shape": (4, 2, 3, 2, 2, 3), "apart": apart}
        _normalised(f"volume{'-apart' if apart else ''}", f"{behind}, in three dimensions", **volume)
    _normalised(
        "apart-affine-false", "without weight and bias the input gets its gradient", apart=True, weights="absent"
    )


_add_normalised()


_MOVED = "running statistics move once a call, by momentum or as an average"
_NORM = ("normalisation", "channel_parameters")


@CASES.case("normalised/running", "parameters", _MOVED, *_NORM, config=Config(norm="train"))
@CASES.case(
    "normalised/two-running",
    "parameters",
    f"{_MOVED}, those of the shortcut by its own",
    *_NORM,
    "several_inputs",
    "normalised_shortcut",
    config=Config(norm="train", shortcut="normalised"),
)
@CASES.case(
    "normalised/apart-running", "parameters", f"{_MOVED}, one after the other", config=Config(norm="train", apart=True)
)
def _running(context: Context, config: Config) -> None:
    """Three calls with a momentum, and three with none, which is the average of all; then one in eval mode."""
    for momentum in (0.25, None):
        s = Subject(context, config)
        layer: NormNeuron = s.module
        norms: List[Any] = [*layer.norms]
        moved = [(np.zeros(SHAPE[2]), np.ones(SHAPE[2])) for _ in norms]
        for norm in norms:
            norm.momentum = momentum
        for call in range(4):
            scaled = [x * (call + 1) for x in s.inputs]
            layer.train(call < 3)
            output = layer(*[context.tensor(x, s.dtype) for x in scaled])
            if call < 3:  # another scale of the input leaves what is normalised as it is, but for eps
                s.check_outputs(output, f" of call {call}")
                factor = 1.0 / (call + 1) if momentum is None else momentum
                moved = [
                    (mean + factor * (x.mean((0, 1)) - mean), variance + factor * (x.var((0, 1), ddof=1) - variance))
                    for (mean, variance), x in zip(moved, scaled)
                ]
        for norm, (mean, variance) in zip(norms, moved):
            for what, value, right in (("mean", norm.running_mean, mean), ("variance", norm.running_var, variance)):
                s.check("output", value, right, name=f"running {what}, momentum {momentum}")
            if int(norm.num_batches_tracked) != 3:
                raise Mismatch(f"after 3 calls of {s.of} num_batches_tracked is {int(norm.num_batches_tracked)}")


# -- named values, which a call records as states


class _Named(sc.Neuron):
    """Leaky neuron that names its potential before the spike, and how far that is from the threshold."""

    states: Dict[str, float] = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """One step."""
        h = sc.ops.named("h", s.v + (x - s.v) / p.tau)
        z = self.spike(h - 1.0)
        sc.ops.named("far", 1.0 - h)
        return z, {"v": sc.ops.select(z, 0.0, h)}


class _Stated(_Named):
    """The same with states in the place of named values."""

    states = {"v": 0.0, "h": 0.0, "far": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """One step."""
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, h), "h": h, "far": 1.0 - h}


_AS_STATES = "values that a definition names are recorded as states are, and carry gradients"


@CASES.case("record/named", "state", _AS_STATES, "record", "gradients", form="")
@CASES.case("record/named-state", "state", f"{_AS_STATES}, after a given state", "record", "gradients", form="state")
@CASES.case("record/named-repeat", "state", f"{_AS_STATES}, of an input repeated", "record", "gradients", form="repeat")
@CASES.case("record/named-recurrent", "state", f"{_AS_STATES}, with feedback", "record", "gradients", form="recurrent")
@CASES.case("record/named-normalised", "state", f"{_AS_STATES}, normalised", "record", "gradients", form="normalised")
def _named(context: Context, form: str) -> None:
    results = []
    for kind in (_Named, _Stated):
        neuron = kind(backend=context.name, repeat=5 if form == "repeat" else None)
        layer: Any = {
            "recurrent": lambda neuron: sc.Recurrent(neuron, _filled(nn.Linear(7, 7))),
            "normalised": lambda neuron: NormNeuron(nn.BatchNorm1d(7), neuron),
        }.get(form, lambda neuron: neuron)(neuron)
        context.place(layer)
        draws = np.random.default_rng(0)
        x = context.tensor(draws.uniform(-1.0, 4.0, (3, 7) if form == "repeat" else (5, 3, 7)), grad=True)
        state = {name: context.tensor(draws.uniform(-0.5, 0.5, (3, 7))) for name in kind.states}
        out, end, trace = layer.run(x, state=state if form == "state" else None, record=("far", "v", "h"))
        if kind is _Named and "h" in end:
            raise Mismatch(f"a named value is in the state after the last step: {sorted(end)}")
        if form in ("", "state", "repeat"):
            right_h = _potentials(as_array(x), as_array(state["v"]) if form == "state" else 0.0, form == "repeat")
            same("the value", f"{kind.__name__} {form}", as_array(trace["h"]), right_h)
        loss = sum(((k + 1.0) * value * value).sum() for k, value in enumerate((out, *trace.values())))
        results.append({**trace, "the output": out, "the gradient": torch.autograd.grad(loss, x)[0]})
    ours, right = results
    for what, value in ours.items():
        same(what, f"{_Named.__name__} {form}", as_array(value), as_array(right[what]), right="states written out")


def _potentials(x: Any, v: Any, repeat: bool) -> Any:
    """The potential of ``_Named`` before each spike, in float32."""
    rows, x = [], np.asarray([x] * 5 if repeat else x, np.float32)
    v = np.zeros_like(x[0]) + np.float32(v)
    for x_t in x:
        h = v + (x_t - v) / np.float32(2.0)
        v = np.where(h >= 1.0, np.float32(0.0), h)
        rows.append(h)
    return np.stack(rows)


def _filled(linear: nn.Linear) -> nn.Linear:
    """The layer with the same weights each time."""
    with torch.no_grad():
        for value in linear.parameters():
            value.copy_(torch.linspace(-0.3, 0.3, value.numel()).view_as(value))
    return linear
