"""A case on a backend: tensors of the drawn layouts, one call, and the comparison with the oracle."""

from __future__ import annotations

import os
import secrets
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.registry import default_registry
from spikecore.testing.random_programs.case import Case, draw, rounded
from spikecore.testing.random_programs.oracle import Run
from spikecore.testing.random_programs.rules import Array
from spikecore.testing.random_programs.tree import built, source

#: Where the first seed of a run comes from, if it is set; else it is random.
VARIABLE = "SPIKECORE_SEED"
#: Results may differ by so many times what the errors that were tried made of them, and by so many units in the last
#: place.
FACTOR, ULPS = 4.0, 32.0
#: Relative error of a sum of many terms, to their sizes.
SUMMED = {"float64": 1e-13}
#: Half a unit in the last place of a result that is rounded to 16 bits, and its smallest number; generous by two.
ROUNDED = {"float16": (2.0**-10, 2.0**-23), "bfloat16": (2.0**-7, 2.0**-120)}


class Difference(AssertionError):
    """A backend and the oracle differ."""


def first_seed() -> int:
    """The seed of this run: that of the environment, or a random one. Whoever asks prints it."""
    return int(os.environ.get(VARIABLE) or secrets.randbelow(1 << 40))


def check_many(
    backend: str,
    count: int,
    seed: Optional[int] = None,
    *,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    inexact: Sequence[str] = (),
    hostile: bool = True,
    progress: Callable[[str], None] = print,
) -> int:
    """Check so many programs, from a seed on; raises :class:`Difference` at the first that differs. Gives the seed."""
    seed = first_seed() if seed is None else seed
    progress(f"random programs on {backend}: {VARIABLE}={seed}, {count} of them")
    for k in range(count):
        check(seed + k, backend, device=device, dtypes=dtypes, inexact=inexact, hostile=hostile)
    return seed


def check(
    seed: int,
    backend: str,
    *,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    inexact: Sequence[str] = (),
    hostile: bool = True,
) -> None:
    """Raise :class:`Difference` where the program of a seed gives something else on a backend than in the oracle."""
    case = draw(seed, tuple(dtypes or _dtypes(backend)), hostile, inexact)
    try:
        found = _call(case, backend, device)
    except Exception as error:
        raise Difference(f"{type(error).__name__}: {error}\n{_told(case, backend)}") from error
    for what, ours, wanted, tolerance in _compared(case, found):
        if ours is None or ours.shape != wanted.shape:
            shape = "None" if ours is None else f"of shape {ours.shape}"
            raise Difference(f"{what} is {shape}, should be of shape {wanted.shape}\n{_told(case, backend)}")
        if tolerance is None:
            same = (ours == wanted) & (np.signbit(ours) == np.signbit(wanted))
        else:
            same = np.abs(ours - wanted) <= tolerance
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            within = "" if tolerance is None else f" to within {np.broadcast_to(tolerance, wanted.shape)[at]:.3g}"
            raise Difference(
                f"{what}{list(at)} is {ours[at]!r}, should be {wanted[at]!r}{within}; {(~same).sum()} of {same.size} "
                f"differ\n{_told(case, backend)}"
            )


def _dtypes(backend: str) -> Tuple[str, ...]:
    """The dtypes that a backend declares."""
    capabilities = default_registry().get(backend, "the random programs").capabilities
    return tuple(n for n in ("float32", "float16", "bfloat16", "float64") if getattr(capabilities, n))


def _told(case: Case, backend: str) -> str:
    tree = case.tree
    return (
        f"\n{source(tree)}\n"
        f"class {tree.name!r}: inputs {tree.inputs}, states {tree.states}, params {tree.params}, "
        f"detach_reset {tree.detach_reset}, reset_states {tree.reset_states}, "
        f"surrogate {tree.surrogate!r} {tree.fields}\n"
        f"{case.dtype}, {len(case.inputs[0])} steps of {case.shape}, inputs {case.layouts}, parameters {case.kinds}, "
        f"learn {case.learn}, state given {case.state is not None}, record {case.record}, short call {case.short}, "
        f"cotangents {case.cotangent_layout}\n"
        f"again: {VARIABLE}={case.seed} python -m spikecore.testing.random_programs {backend} --count 1"
    )


# -- the call


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


def _call(case: Case, backend: str, device: str) -> Dict[str, Any]:
    """Every result and gradient of the case, by name."""
    kind, surrogate = built(case.tree)
    dtype, compute = getattr(torch, case.dtype), torch.float64 if case.dtype == "float64" else torch.float32
    values = {
        name: float(value) if case.kinds[name] == "number" else torch.from_numpy(np.array(value))
        for name, value in case.params.items()
    }
    neuron: Any = kind(
        surrogate=surrogate, detach_reset=case.tree.detach_reset, learn=case.learn, backend=backend, **values
    ).to(device)
    inputs = [_laid(x, kind, dtype, device) for x, kind in zip(case.inputs, case.layouts)]
    inputs = [x.requires_grad_(case.wanted[0]) for x in inputs]
    state = None
    if case.state is not None:
        state = {n: torch.from_numpy(np.array(v, case.compute)).to(device) for n, v in case.state.items()}
        state = {n: v.requires_grad_(case.wanted[1]) for n, v in state.items()}
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
    wanted = {f"gradient of input {n}": x for n, x in zip(case.tree.inputs, inputs) if case.wanted[0]}
    if state is not None and case.wanted[1]:
        wanted.update({f"gradient of state {n}": v for n, v in state.items()})
    used = case.tree.used_params
    wanted.update({f"gradient of {n}": getattr(neuron, n) for n in case.learn if n in used})
    found: Dict[str, Any] = {name: _array(value) for name, value in results.items()}
    given = {f"output {k}": g for k, g in enumerate(case.given.outputs) if g is not None}
    given.update({f"trace of {n}": g for n, g in case.given.trace.items()})
    given.update({f"final {n}": g for n, g in case.given.final.items()})
    pairs = []
    for name, g in given.items():
        if results[name].requires_grad:
            steps = not name.startswith("final") and case.cotangent_layout != "one step"
            g_dtype = dtype if name.startswith("output") else compute
            pairs.append((results[name], _laid(g, case.cotangent_layout if steps else "contiguous", g_dtype, device)))
    if wanted and pairs:
        grads = torch.autograd.grad(
            [r for r, _ in pairs], list(wanted.values()), [g for _, g in pairs], allow_unused=True
        )
        none = None if len(inputs[0]) else 0.0  # without steps nothing is computed, and nothing depends on anything
        for (name, value), grad in zip(wanted.items(), grads):
            found[name] = _array(grad) if grad is not None else (none if none is None else np.zeros(value.shape))
    elif wanted:  # no result has a graph, which is right where the oracle's gradients are 0, too
        found.update((name, np.zeros(value.shape)) for name, value in wanted.items())
    assert_dtypes(case, results, dtype, compute)
    return found


def assert_dtypes(case: Case, results: Dict[str, Tensor], dtype: torch.dtype, compute: torch.dtype) -> None:
    """Outputs have the dtype of the input, states that of arithmetic."""
    for name, value in results.items():
        right = dtype if name.startswith("output") else compute
        if value.dtype != right:
            raise Difference(f"{name} is {value.dtype}, should be {right}")


def _array(value: Tensor) -> Array:
    value = value.detach().cpu()
    return np.asarray(value.double().numpy() if value.dtype == torch.bfloat16 else value.numpy()).astype(np.float64)


# -- the comparison


def _compared(case: Case, found: Dict[str, Any]) -> List[Tuple[str, Any, Array, Optional[Array]]]:
    """(what, found, wanted, tolerance), None for the very bits, of everything that was found."""
    names = _rows(case)
    rows: List[Tuple[str, Any, Array, Optional[Array]]] = []
    for name, ours in found.items():
        base, others, kind = names[name]
        wanted = base.astype(np.float64)
        spread = np.max([np.abs(other.astype(np.float64) - wanted) for other in others], axis=0)
        stored = case.dtype if kind in ("output", "input") else ("float64" if case.dtype == "float64" else "float32")
        if kind in ("output", "state") and case.exact:
            rows.append((name, ours, rounded(base, stored).astype(np.float64), None))
            continue
        eps = float(np.finfo(case.compute).eps)
        top = np.abs(wanted).max(axis=0, initial=0.0) if kind in ("output", "input") else np.abs(wanted)
        tolerance = FACTOR * spread + ULPS * eps * (top + np.abs(wanted)) + 1e-30
        if kind == "param":
            # a parameter that a state starts from has two sums, added in its own dtype
            sizes = _shaped(case, name, case.expected.sizes)
            tolerance = tolerance + (SUMMED.get(case.dtype, 4e-6) + float(np.finfo(np.float32).eps)) * sizes
        relative, least = ROUNDED.get(stored, (0.0, 0.0))
        rows.append((name, ours, wanted, tolerance + relative * np.abs(wanted) + least))
    return rows


def _rows(case: Case) -> Dict[str, Tuple[Array, List[Array], str]]:
    """Name -> what the oracle gives without and with errors, and which kind of result it is."""
    runs = [case.expected, *case.others]

    def row(pick: Callable[[Run], Array], kind: str) -> Tuple[Array, List[Array], str]:
        base, *others = [pick(run) for run in runs]
        return base, others, kind

    rows: Dict[str, Tuple[Array, List[Array], str]] = {}
    for k in range(len(case.tree.outputs)):
        rows[f"output {k}"] = row(lambda run, k=k: run.outputs[k], "output")  # type: ignore[misc]
    for n in case.tree.states:
        rows[f"trace of {n}"] = row(lambda run, n=n: run.trace[n], "state")  # type: ignore[misc]
        rows[f"final {n}"] = row(lambda run, n=n: run.final[n], "state")  # type: ignore[misc]
        rows[f"gradient of state {n}"] = row(lambda run, n=n: run.state[n], "gradient")  # type: ignore[misc]
    for k, n in enumerate(case.tree.inputs):
        rows[f"gradient of input {n}"] = row(lambda run, k=k: run.inputs[k], "input")  # type: ignore[misc]
    for n in case.tree.params:
        name = f"gradient of {n}"
        rows[name] = row(lambda run, name=name: _shaped(case, name, run.params), "param")  # type: ignore[misc]
    return rows


def _shaped(case: Case, name: str, per_neuron: Dict[str, Array]) -> Array:
    """A parameter's numbers summed over the neurons that share it."""
    name = name[len("gradient of ") :]
    value, kind = per_neuron[name], case.kinds[name]
    if kind == "full":
        return value
    if kind == "channel":
        summed = value.sum(axis=tuple(d for d in range(value.ndim) if d != 1))
        return np.asarray(summed.reshape(case.params[name].shape))
    return np.asarray(value.sum())
