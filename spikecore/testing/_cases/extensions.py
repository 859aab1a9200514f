"""Cases of extensions: neurons in fixed point (the tier ``fixed``), and learning rules along with time.

Of ``sc.quant.fixed`` outputs and states are integers over a power of two. Bits are compared with those of NumPy's
float32, which are those of integers: the program is proven to be exact there. Random programs in fixed point are
``generated/fixed-programs`` and ``random/fixed-programs``.
"""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.backend import Backend, Unsupported
from spikecore.testing._case import Collection
from spikecore.testing._cases.rows import BACK, BOTH
from spikecore.testing._config import Config
from spikecore.testing._config_check import add_row
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array, adjoint
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch, as_array
from spikecore.testing.models import MODELS

CASES = Collection()

# -- fixed point

#: Few steps: some compilers unroll them, and take a minute for the gradients of twelve.
_SHORT = (5, 3, 7)
#: Words of 16 bits, or of 12 for a neuron whose products float32 would not hold. Inputs are not on the grid.
_WORD: Dict[str, Any] = {"word": 16, "draw": 1}


def _add(name: str, holds: str, **changes: Any) -> None:
    add_row(CASES, f"fixed/{name}", "fixed", holds, Config(**{**_WORD, "bits": True, **changes}))


def _add_models() -> None:
    """Every neuron of the library, with its first reset."""
    classes: List[type] = []
    for model in MODELS:
        if model.neuron not in classes:
            classes.append(model.neuron)
            which = {"model": model.name, "reset": model.resets[0]}
            # parameters that are powers of two, where there are such: a product with one is often half a unit
            halves = {"exact": bool(model.exact_params)}
            _add(model.name, "outputs and final state of words have the bits of integers", **which, **halves)
            holds = "gradients pass a rounding, and stop at a saturation; parameters learn"
            _add(f"gradient-{model.name}", holds, **which, **BACK, learn=("*",), shape=_SHORT)


def _add_kinds() -> None:
    """Other words, dtypes and calls."""
    for model in ("lif", "izhikevich", "brf"):
        wide: Dict[str, Any] = {"reset": "none" if model == "brf" else "hard", "dtype": "float64", "word": 24}
        _add(f"{model}-float64", "words that float32 would not hold are integers in float64", model=model, **wide)
    for dtype in ("float16", "bfloat16"):
        _add(dtype, "inputs of 16 bits are rounded to words, outputs to 16 bits", model="li", reset="none", dtype=dtype)
    _add("floor", "values are rounded down", model="alif", rounding="floor")
    grows: Dict[str, Any] = {"model": "if", "reset": "none", "word": 8, "shape": (40, 2, 5)}
    _add("saturation", "a sum saturates, and does not wrap around", **grows)
    _add("gradient-saturation", "where a sum saturates its gradient is 0", **grows, **BACK)
    _add("full", "a parameter of every neuron is rounded by itself", params="full", **BACK, learn=("*",))
    _add("full-forward", "a state may start at a rounded parameter of every neuron", params="full")
    _add("state", "a run goes on from words", model="synaptic", **BOTH)
    _add("record", "a recorded state has the bits of integers, and its gradient", model="alif", record=("*",),
         wanted=("inputs",), given=("trace",))  # fmt: skip
    _add("single-step", "step by step the bits are those of one call", model="leaky", reset="soft", call="single")
    _add("long", "rounding errors do not add up over many steps", shape=(250, 2, 3))


_add_models()
_add_kinds()

# -- learning rules

_STATE = ("gradients", "state_gradients")
_SHAPE = (7, 3, 5)


def _weighted(y: Tensor, weights: Tensor) -> Tensor:
    return (y * weights).sum()


def _by_inputs(s: Subject, rule: str, weights: Tensor) -> Array:
    """The errors at the inputs of the neuron, as the rule has them."""
    if rule != "sltt":
        return s.gradients(weights).inputs[0]
    errors = np.zeros(s.shape)
    for t in range(s.shape[0]):
        alone = np.zeros(s.shape)
        alone[t] = as_array(weights[t])
        errors[t] = adjoint(s.seen, [alone], cut=t).inputs[0][t]
    return errors


@CASES.case("online/d-rtrl", "sequences", "traces of weights give backpropagation's gradient, for any chunk", *_STATE)
@CASES.case("online/eprop", "sequences", "the same with the reset detached", *_STATE, rule="eprop")
@CASES.case("online/sltt", "sequences", "errors of each step alone, without those of later ones", *_STATE, rule="sltt")
def _online(context: Context, rule: str = "d_rtrl") -> None:
    """A linear layer that is the identity, so that the neuron reads the suite's inputs."""
    for model in ("lif", "alif"):
        s = subject(context, model, "soft", shape=_SHAPE, detach=rule == "eprop")
        layer = nn.Linear(_SHAPE[-1], _SHAPE[-1], bias=False)
        nn.init.eye_(layer.weight)
        net = nn.Sequential(context.place(layer), s.neuron)
        x, weights = s.x(), s.cotangent(s.x())
        s.check_outputs(s.neuron(x))
        errors = _by_inputs(s, rule, weights)
        right = np.einsum("tbj,tbi->ji", errors, as_array(x))
        for chunk in (1, 3, s.shape[0]):
            options = sc.OnlineOptions(rule=rule, chunk=chunk, time_targets=True)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
            try:
                step: Any = sc.training_model(net, _weighted, optimizer, backend=context.name, options=options)
            except Unsupported:
                if type(context.backend).training_model is Backend.training_model:
                    raise
                return
            if type(context.backend).training_model is not Backend.training_model:
                raise Mismatch(f"backend {context.name!r} trains in a way of its own, and took {options!r}")
            outputs, _ = step(x, weights)
            s.check_outputs(outputs, f" of chunks of {chunk}")
            terms = np.einsum("tbj,tbi->ji", np.abs(errors), np.abs(as_array(x)))
            s.check("parameter gradient", layer.weight.grad, right, name=f"a weight, chunks of {chunk}", terms=terms)
