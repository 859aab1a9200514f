"""A case on a backend by one call of its neuron, with tensors of the drawn layouts."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing.random_programs.case import Case
from spikecore.testing.random_programs.rules import Array
from spikecore.testing.random_programs.tree import built


class Difference(AssertionError):
    """A backend and the oracle differ."""


def _laid(value: Array, layout: str, dtype: torch.dtype, device: str) -> Tensor:
    """The numbers ``[T, *N]`` as a tensor of a layout."""
    x = torch.from_numpy(np.ascontiguousarray(value)).to(device=device, dtype=dtype)
    if not len(x):
        return x
    dims = list(range(1, x.ndim))
    if layout == "permuted":
        there = [0, *dims[:1], *dims[2:], *dims[1:2]]
        return x.permute(there).contiguous().permute([there.index(d) for d in range(x.ndim)])
    if layout == "batch first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "every other":
        return torch.stack([x, x + 1], -1)[..., 0]
    if layout == "part":
        return torch.cat([x + 1, x, x], 1)[:, x.shape[1] : 2 * x.shape[1]]
    return x[:1].expand(x.shape) if layout == "one step" and bool((x == x[:1]).all()) else x


def compute_dtype(case: Case) -> torch.dtype:
    """The dtype of arithmetic, states and their cotangents."""
    return torch.float64 if case.dtype == "float64" else torch.float32


def neuron_of(case: Case, backend: str, device: str) -> Any:
    """The neuron, with its parameters."""
    kind, surrogate = built(case.tree)
    values = {
        name: float(value) if case.kinds[name] == "number" else torch.from_numpy(np.array(value))
        for name, value in case.params.items()
    }
    neuron: Any = kind(
        surrogate=surrogate, detach_reset=case.tree.detach_reset, learn=case.learn, backend=backend, **values
    )
    return neuron.to(device)


def arguments(case: Case, device: str) -> Tuple[List[Tensor], Optional[Dict[str, Tensor]]]:
    """Inputs in their layouts, and the state if one is given."""
    dtype = getattr(torch, case.dtype)
    inputs = [_laid(x, kind, dtype, device) for x, kind in zip(case.inputs, case.layouts)]
    if case.state is None:
        return inputs, None
    return inputs, {n: torch.from_numpy(np.array(v, case.compute)).to(device) for n, v in case.state.items()}


def results_of(
    case: Case, neuron: Any, inputs: Sequence[Tensor], state: Optional[Dict[str, Tensor]]
) -> Dict[str, Tensor]:
    """Outputs, traces and final states by name."""
    final: Dict[str, Tensor] = {}
    trace: Dict[str, Tensor] = {}
    if case.short:
        out = neuron(*inputs)
    else:
        out, final, *rest = neuron.run(*inputs, state=state, record=case.record)
        trace = rest[0] if rest else {}
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
        steps = not name.startswith("final") and case.cotangent_layout != "one step"
        layout = case.cotangent_layout if steps else "contiguous"
        laid[name] = _laid(g, layout, dtype if name.startswith("output") else compute, device)
    return laid


def learnt(case: Case) -> List[str]:
    """Parameters whose gradients are compared: those that are learnt and that a step depends on."""
    used = case.tree.used_params
    return [name for name in case.learn if name in used]


def by_call(case: Case, backend: str, device: str) -> Dict[str, Array]:
    """Every result and gradient of the case, by name, from one call and ``torch.autograd.grad``."""
    neuron = neuron_of(case, backend, device)
    inputs, state = arguments(case, device)
    inputs = [x.requires_grad_(case.wanted[0]) for x in inputs]
    if state is not None:
        state = {n: v.requires_grad_(case.wanted[1]) for n, v in state.items()}
    results = results_of(case, neuron, inputs, state)
    wanted = {f"gradient of input {n}": x for n, x in zip(case.tree.inputs, inputs) if case.wanted[0]}
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
