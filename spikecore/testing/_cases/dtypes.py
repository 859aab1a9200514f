"""The other dtypes: the same claims for a neuron of each kind, with float32 state under 16-bit inputs."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict

import torch

from spikecore.testing._case import Collection
from spikecore.testing._cases import core
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import OTHER_DTYPES

#: A neuron of each kind, with the reset it is tried with.
KINDS = (
    ("if", "soft"),
    ("lif", "hard"),
    ("lif-nodecay", "soft"),
    ("plif", "hard"),
    ("klif", "hard"),
    ("eif", "hard"),
    ("izhikevich", "soft"),
    ("synaptic", "none"),
    ("alif", "soft"),
    ("li", "none"),
    ("leaky", "hard"),
    ("leaky-prompt", "soft"),
)
_EXACT = ("if", "lif", "leaky")
_NOT_ARITHMETIC = ("plif", "eif")


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for dtype in OTHER_DTYPES:
        for model, reset in KINDS:
            which: Dict[str, Any] = {"model": model, "reset": reset, "dtype": dtype}
            cases.add(
                f"forward/{model}-{reset}-{dtype}",
                "dtypes",
                "outputs and final state are the oracle's, in their dtypes",
                partial(core.forward, **which),
                dtype=dtype,
            )
            if model in _EXACT:
                cases.add(
                    f"exact/{model}-{reset}-{dtype}",
                    "dtypes",
                    "outputs are right to the bit where potentials meet the threshold",
                    partial(core.forward, **which, exact=True),
                    dtype=dtype,
                )
            if model not in _NOT_ARITHMETIC:
                cases.add(
                    f"bits/{model}-{reset}-{dtype}",
                    "dtypes",
                    "state and arithmetic are float32 for 16-bit inputs, float64 for float64, to the bit",
                    partial(core.bits, **which),
                    dtype=dtype,
                )
            cases.add(
                f"gradient/{model}-{reset}-{dtype}",
                "dtypes",
                "the input gradient is the oracle's, in the input's dtype",
                partial(gradient, **which),
                ("gradients",),
                dtype=dtype,
            )
        cases.add(
            f"parameters/gradient-{dtype}",
            "dtypes",
            "parameter gradients are summed in full precision, and have the parameter's dtype",
            partial(parameter_gradient, dtype=dtype),
            ("gradients", "parameter_gradients"),
            dtype=dtype,
        )
    cases.add(
        "parameters/float64-on-float32",
        "dtypes",
        "a parameter of a wider dtype than the arithmetic is rounded to it, and "
        "its gradient comes back in its own dtype",
        wide_parameter,
        ("gradients", "parameter_gradients"),
    )


def gradient(context: Context, model: str, reset: str, dtype: str) -> None:
    """As in the core tier, and the dtype."""
    core.gradient(context, model, reset, dtype=dtype)
    s = Subject(context, model, reset, dtype=dtype)
    x = s.x(grad=True)
    output = s.neuron(x)
    s.backward(output, torch.ones_like(output))
    if x.grad is None or x.grad.dtype != s.dtype:
        raise Mismatch(f"the input gradient of {s.of} is {x.grad if x.grad is None else x.grad.dtype}, not {s.dtype}")


def parameter_gradient(context: Context, dtype: str) -> None:
    """Shared parameters of LIF."""
    s = Subject(context, "lif", "hard", dtype=dtype, learn=("tau", "threshold", "v_reset"))
    output = s.neuron(s.x())
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    expected = s.gradients(cotangent).params
    for name, parameter in s.neuron.named_parameters():
        s.check("parameter gradient", parameter.grad, expected[name], name=name)
        if parameter.grad is not None and parameter.grad.dtype != parameter.dtype:
            raise Mismatch(f"the gradient of {name} of {s.of} is {parameter.grad.dtype}, not {parameter.dtype}")


def wide_parameter(context: Context) -> None:
    """tau in float64, input in float32."""
    s = Subject(context, "lif", "hard", learn=("tau",))
    s.neuron.tau = torch.nn.Parameter(context.tensor(s.params["tau"], torch.float64))
    output = s.neuron(s.x())
    s.check_outputs(output)
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("parameter gradient", s.neuron.tau.grad, s.gradients(cotangent).params["tau"], name="tau")
    if s.neuron.tau.grad.dtype != torch.float64:
        raise Mismatch(f"the gradient of tau, torch.float64, of {s.of} is {s.neuron.tau.grad.dtype}")
