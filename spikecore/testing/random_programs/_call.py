"""A case on a backend by one call of its neuron, with tensors of the drawn layouts."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._compare import Mismatch
from spikecore.testing._oracle.rules import Array
from spikecore.testing.random_programs._case import Case
from spikecore.testing.random_programs._memory import of_one_step, over_time
from spikecore.testing.random_programs._tree import built


class Difference(Mismatch):
    """A backend and the oracle differ."""


def compute_dtype(case: Case) -> torch.dtype:
    """The dtype of arithmetic, states and their cotangents."""
    return torch.float64 if case.dtype == "float64" else torch.float32


def neuron_of(case: Case, backend: str, device: str) -> Any:
    """The neuron, with its parameters."""
    kind, surrogate = built(case.tree)
    values = {name: _parameter(case, name) for name in case.params}
    neuron: Any = kind(
        surrogate=surrogate, detach_reset=case.tree.detach_reset, learn=case.learn, backend=backend, **values
    )
    return neuron.to(device)


def _parameter(case: Case, name: str) -> Any:
    value, kind, around = case.params[name], case.kinds[name], case.around
    if kind == "number":
        return float(value)
    if kind == "channel" and around.flat_channels:
        value = value.reshape(-1)
    tensor = of_one_step(value, around.param_layout, getattr(torch, around.param_dtype or str(value.dtype)), "cpu")
    return torch.nn.Parameter(tensor) if name in case.learn else tensor


def arguments(case: Case, device: str) -> Tuple[List[Tensor], Optional[Dict[str, Tensor]]]:
    """Inputs in their layouts, and the state if one is given."""
    dtype = getattr(torch, case.dtype)
    inputs = [over_time(x, kind, dtype, device) for x, kind in zip(case.inputs, case.layouts)]
    if case.around.same_input:
        inputs[1] = inputs[0]
    if case.state is None:
        return inputs, None
    compute, layout = compute_dtype(case), case.around.state_layout
    return inputs, {n: of_one_step(v, layout, compute, device) for n, v in case.state.items()}


def results_of(
    case: Case, neuron: Any, inputs: Sequence[Tensor], state: Optional[Dict[str, Tensor]]
) -> Dict[str, Tensor]:
    """Outputs, traces and final states by name."""
    final: Dict[str, Tensor] = {}
    trace: Dict[str, Tensor] = {}
    if case.short:
        out = neuron(*inputs)
    else:
        out, final, *recorded = neuron.run(*inputs, state=state, record=case.record)
        trace = recorded[0] if recorded else {}
    outputs = list(out) if isinstance(out, tuple) else [out]
    results = {f"output {k}": value for k, value in enumerate(outputs)}
    results.update({f"trace of {n}": value for n, value in trace.items()})
    results.update({f"final {n}": value for n, value in final.items()})
    return results


def cotangents(case: Case, device: str) -> Dict[str, Tensor]:
    """What arrives at results, by their names, in the drawn layout."""
    dtype, compute = getattr(torch, case.dtype), compute_dtype(case)
    given = {f"output {k}": g for k, g in enumerate(case.given.outputs) if g is not None}
    given.update({f"trace of {n}": g for n, g in case.given.trace.items()})
    given.update({f"final {n}": g for n, g in case.given.final.items()})
    laid = {}
    for name, g in given.items():
        layout = case.around.cotangent_layouts.get(name)
        if name.startswith("final"):
            laid[name] = of_one_step(g, layout or "contiguous", compute, device)
        else:
            layout = layout or ("contiguous" if case.cotangent_layout == "one step" else case.cotangent_layout)
            laid[name] = over_time(g, layout, dtype if name.startswith("output") else compute, device)
    return laid


def inputs_wanted(case: Case) -> Sequence[str]:
    """Inputs whose gradients are asked for; the first stands for both where they are one tensor."""
    if not case.wanted[0]:
        return ()
    names = case.tree.inputs if case.around.inputs_wanted is None else case.around.inputs_wanted
    return names[:1] if case.around.same_input else names


def learnt(case: Case) -> List[str]:
    """Parameters whose gradients are compared: those that are learnt and that a step depends on."""
    used = case.tree.used_params
    return [name for name in case.learn if name in used]


def by_call(case: Case, backend: str, device: str) -> Dict[str, Array]:
    """Every result and gradient of the case, by name, from one call and ``torch.autograd.grad``."""
    neuron = neuron_of(case, backend, device)
    inputs, state = arguments(case, device)
    wants = inputs_wanted(case)
    for name, x in zip(case.tree.inputs, inputs):
        if name in wants:
            x.requires_grad_()
    if state is not None:
        state = {n: v.requires_grad_(case.wanted[1]) for n, v in state.items()}
    results = results_of(case, neuron, inputs, state)
    wanted = {f"gradient of input {n}": x for n, x in zip(case.tree.inputs, inputs) if n in wants}
    if state is not None and case.wanted[1]:
        wanted.update({f"gradient of state {n}": v for n, v in state.items()})
    wanted.update({f"gradient of {n}": getattr(neuron, n) for n in learnt(case)})
    found: Dict[str, Any] = {name: array(value) for name, value in results.items()}
    pairs = [(results[name], g) for name, g in cotangents(case, device).items() if results[name].requires_grad]
    if wanted and pairs:
        grads = torch.autograd.grad(
            [r for r, _ in pairs], list(wanted.values()), [g for _, g in pairs], allow_unused=True
        )
        none = None if len(inputs[0]) else 0.0  # without steps nothing is computed, and nothing depends on anything
        for (name, value), grad in zip(wanted.items(), grads):
            found[name] = array(grad) if grad is not None else (none if none is None else np.zeros(value.shape))
    elif wanted:  # no result has a graph, which is right where the oracle's gradients are 0, too
        found.update((name, np.zeros(value.shape)) for name, value in wanted.items())
    for name in learnt(case):
        gradient = found.get(f"gradient of {name}")
        if case.kinds[name] == "channel" and gradient is not None:
            found[f"gradient of {name}"] = gradient.reshape(case.params[name].shape)
    assert_dtypes(case, results)
    return found


def assert_dtypes(case: Case, results: Dict[str, Tensor]) -> None:
    """Outputs have the dtype of the input, states that of arithmetic."""
    for name, value in results.items():
        right = getattr(torch, case.dtype) if name.startswith("output") else compute_dtype(case)
        if value.dtype != right:
            raise Difference(f"{name} is {value.dtype}, should be {right}")


def array(value: Tensor) -> Array:
    """The numbers in float64."""
    value = value.detach().cpu()
    return np.asarray(value.double().numpy() if value.dtype == torch.bfloat16 else value.numpy()).astype(np.float64)
