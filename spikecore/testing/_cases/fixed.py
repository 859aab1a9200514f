"""The tier ``fixed``: neurons of ``sc.quant.fixed``, whose outputs and states are integers over a power of two.

Bits are compared with those of NumPy's float32, which are those of integers: the program is proven to be exact there.
Random programs in fixed point are ``generated/fixed-programs`` and ``random/fixed-programs``.
"""

from __future__ import annotations

from typing import Any, Dict, List

from spikecore.testing._case import Collection
from spikecore.testing._cases.rows import BACK, BOTH
from spikecore.testing._config import Config
from spikecore.testing._config_check import add_row
from spikecore.testing.models import MODELS

CASES = Collection()
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
